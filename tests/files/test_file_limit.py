"""That a process with few open files raises its limit, and that a server refuses to start where that is too little."""

from __future__ import annotations

import resource
from contextlib import closing
from pathlib import Path

import pytest

from storage import open_store
from storage.errors import ConfigurationError
from storage.files.os_errors import need_files
from storage.ha.listener import ListenerSettings, Replicator
from tests.remoting_server.echo import running


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Soft and hard limit of a system that is none."""
    held = [64, 64]

    def set_limits(which: int, wanted: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        held[0] = wanted[0]

    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(held))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    return held


def test_the_limit_is_raised_where_it_may_be(limits: list[int]) -> None:
    limits[1] = 4_096
    assert need_files(256, "a server") == 4_096
    assert limits == [4_096, 4_096]
    limits[0] = 300
    assert need_files(256, "a server") == 300, "what suffices is left alone"


def test_a_listener_that_may_open_few_files_does_not_listen(limits: list[int], tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store", read_only=False, create=True)) as store:
        with pytest.raises(ConfigurationError, match="may open 64 files, and a server needs 256 at least"), running():
            pass
        with pytest.raises(ConfigurationError, match="may open 64 files, and a master needs 128 at least"):
            Replicator(store, ListenerSettings())
