"""A long log is read by one thread and entered by another: what comes of it is the same, errors too."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.rebuild_queues import rebuild_queues
from storage.recovery import passes
from tests.support.fixture_stores import Fixture

KEPT = ("consumequeue", "index")


def rebuilt(source: Path, directory: Path) -> dict[str, bytes]:
    """Queues and index of a copy of a broker's store, built again from its log; index files by their order."""
    shutil.copytree(source, directory)
    config = source.parent / "broker.conf"
    if config.exists():
        shutil.copy(config, directory.parent)
    rebuild_queues(str(directory))
    files = [path for kept in KEPT for path in sorted((directory / kept).rglob("*")) if path.is_file()]
    names = [str(path.relative_to(directory)) for path in files]
    return {
        name if "index" not in name else f"index {number}": path.read_bytes()
        for number, (name, path) in enumerate(zip(names, files, strict=True))
    }


def test_queues_and_index_are_the_same(
    pristine_store: Callable[[str], Fixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pristine_store("roll").root
    alone = rebuilt(source, tmp_path / "alone" / "store")
    readers: list[str] = []
    dispatch = passes.dispatch

    def noted(*arguments: object) -> object:
        readers.append(threading.current_thread().name)
        return dispatch(*arguments)

    monkeypatch.setattr(passes, "AHEAD_FROM_BYTES", 0)
    monkeypatch.setattr(passes, "dispatch", noted)
    ahead = rebuilt(source, tmp_path / "ahead" / "store")
    assert ahead == alone
    assert readers
    assert threading.main_thread().name not in readers


def test_an_error_of_the_reader_reaches_who_opens(
    pristine_store: Callable[[str], Fixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(passes, "AHEAD_FROM_BYTES", 0)
    monkeypatch.setattr(passes, "dispatch", failing)
    with pytest.raises(OSError, match="Input/output"):
        rebuilt(pristine_store("roll").root, tmp_path / "store")
