"""What is still being written is synced by another thread, and no failure of that is lost."""

from __future__ import annotations

import errno
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage.files import syncs
from storage.files.file_system import LocalWriter
from storage.files.syncs import EarlyFileSync

PATIENCE_S = 30


class Synced(LocalWriter):
    """Notes who syncs; a sync fails where it is told to, and once only, as the system's do."""

    def __init__(self, path: Path) -> None:
        path.touch()
        super().__init__(str(path))
        self.threads: list[threading.Thread] = []
        self.fails = False
        self.may_end = threading.Event()
        self.may_end.set()

    def sync(self) -> None:
        self.threads.append(threading.current_thread())
        assert self.may_end.wait(PATIENCE_S)
        if self.fails:
            self.fails = False
            raise OSError(errno.ENOSPC, "planted")
        super().sync()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Synced:
    monkeypatch.setattr(syncs, "EARLY_BYTES", 100)
    return Synced(tmp_path / "file")


def test_a_short_file_is_synced_once_and_by_its_writer(file: Synced) -> None:
    sync = EarlyFileSync(file)
    sync.note(99)
    sync.finish()
    assert file.threads == [threading.current_thread()]


@pytest.mark.parametrize("fails", [False, True])
def test_where_no_thread_is_to_be_had_its_writer_syncs(
    file: Synced, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    sync, file.fails = EarlyFileSync(file), fails
    sync.note(100)
    assert file.threads == [threading.current_thread()]
    with pytest.raises(OSError, match="planted") if fails else nullcontext():
        sync.finish()
    assert len(file.threads) == 1 + (not fails)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_long_file_is_synced_meanwhile_and_at_its_end(file: Synced) -> None:
    sync = EarlyFileSync(file)
    for _ in range(4):
        sync.note(60)
    sync.finish()
    assert len(file.threads) >= 2
    assert threading.current_thread() not in file.threads[:-1]
    assert file.threads[-1] is threading.current_thread()


def test_one_sync_runs_at_a_time_and_its_writer_goes_on(file: Synced) -> None:
    file.may_end.clear()
    sync = EarlyFileSync(file)
    for _ in range(10):
        sync.note(100)
    assert len(file.threads) <= 1
    file.may_end.set()
    sync.finish()
    assert len(file.threads) == 2


def test_a_failure_in_between_fails_the_last_sync_too(file: Synced) -> None:
    """The system tells it once: the next sync of the same pages, which are clean now, would say that all is well."""
    file.fails = True
    sync = EarlyFileSync(file)
    sync.note(100)
    with pytest.raises(OSError, match="planted") as raised:
        sync.finish()
    assert raised.value.errno == errno.ENOSPC, "what a full disk says"
    assert len(file.threads) == 1


def test_nobody_syncs_a_file_that_was_given_up(file: Synced) -> None:
    file.may_end.clear()
    sync = EarlyFileSync(file)
    sync.note(100)
    threading.Timer(0.1, file.may_end.set).start()
    sync.give_up()
    assert len(file.threads) <= 1
    assert not any(thread.is_alive() for thread in file.threads)
