"""The disk forgets what was not synced, at any step of committing, closing and recovering: no committed row is lost, none comes twice.

The workload runs once on a disk that remembers every operation; the states between them are made crashes. A failure names the
operation. What is lost is drawn from a generator seeded with the operation's number, so the same crash comes again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import pytest

import storage.batch_commit
import storage.commit_log_writer
import storage.message_store
from storage.errors import StorageError
from storage.store_writer import StoreWriter
from tests.crash.sink_store import SinkStore
from tests.crash.workload import check, run
from tests.support.crash_file_system import CrashFileSystem, Disk

pytestmark = pytest.mark.crash

FLUSH = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
STRIDE = 8
"""`make test` takes one state in so many."""


class Recorded:
    """The workload's run, cut off wherever a test likes."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        sync_flush: bool,
        forgets: Callable[[str], bool] = lambda path: False,
    ) -> None:
        """`decided N` marks where the intent of batch N is durable, `acknowledged N` where its commit returned."""
        self._sync_flush = sync_flush
        root = SinkStore.make_place(directory)
        self.files = files = CrashFileSystem(str(root))
        files.forgets = forgets
        current = 0

        def begin(number: int) -> None:
            nonlocal current
            current = number

        def reach(name: str) -> None:
            if name == "after-intent":
                files.mark(f"decided {current}")

        with monkeypatch.context() as patch:
            patch.setattr(storage.batch_commit, "reach", reach)
            patch.setattr(storage.commit_log_writer, "SLICE_BYTES", 1_000)  # so that a few rows are several writes
            run(SinkStore(root, files, sync_flush=sync_flush), files.mark, begin)

    def lose_power(self, is_wanted: Callable[[int], bool], *, again: bool = False) -> None:
        """In every wanted state. `again`: a second time while a new process makes good the first."""
        for number, marks, disk in self.files.states():
            if is_wanted(number):
                choice = random.Random(f"{number} {self._sync_flush}")
                with _named(self.files, number):
                    left = self._lose_power(disk, marks, choice, 2)
                    if again:
                        self._lose_power_again(left, list(marks), choice)

    def kill(self, is_wanted: Callable[[int], bool]) -> None:
        """In every wanted state the process goes, and the machine goes on: what was written is there."""
        for number, marks, disk in self.files.states():
            if is_wanted(number):
                with _named(self.files, number):
                    self._open(CrashFileSystem(self.files.root, deepcopy(disk), 1), marks)

    def _lose_power(self, disk: Disk, marks: Collection[str], choice: random.Random, boot: int) -> CrashFileSystem:
        left = CrashFileSystem(self.files.root, disk.after_power_loss(choice), boot)
        left.forgets = self.files.forgets
        self._open(left, marks)
        return left

    def _lose_power_again(self, files: CrashFileSystem, marks: list[str], choice: random.Random) -> None:
        chosen = choice.randint(1, len(files.operations))
        number, new_marks, disk = next(state for state in files.states() if state[0] == chosen)
        with _named(files, number):
            self._lose_power(disk, marks + new_marks, choice, 3)

    def _open(self, files: CrashFileSystem, marks: Collection[str]) -> None:
        check(SinkStore(Path(files.root), files, sync_flush=self._sync_flush, days=files.boot), marks, files.mark)


@contextmanager
def _named(files: CrashFileSystem, number: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"the crash came after operation {number}: {files.operations[:number][-1:]}"[:1_000])
        raise


def every(stride: int, first: int = 0) -> Callable[[int], bool]:
    return lambda number: number % stride == first


@FLUSH
def test_the_recorded_disk_is_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool) -> None:
    files = Recorded(tmp_path, monkeypatch, sync_flush=sync_flush).files
    real = {f"{directory}/{name}" for directory, _, names in os.walk(files.root) for name in names}
    assert files.disk.paths() == real
    for path in real:
        assert Path(path).read_bytes() == files.disk.content(path), path
    *_, (_, marks, last) = files.states()
    assert {path: last.content(path) for path in last.paths()} == {path: files.disk.content(path) for path in real}
    assert [mark for mark in marks if mark.startswith("decided")] == [f"decided {number}" for number in range(6)]


@FLUSH
def test_power_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool) -> None:
    Recorded(tmp_path, monkeypatch, sync_flush=sync_flush).lose_power(every(STRIDE, sync_flush))


@FLUSH
def test_power_is_lost_again_while_the_first_loss_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool
) -> None:
    Recorded(tmp_path, monkeypatch, sync_flush=sync_flush).lose_power(every(4 * STRIDE, 3), again=True)


@FLUSH
def test_the_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool) -> None:
    Recorded(tmp_path, monkeypatch, sync_flush=sync_flush).kill(every(STRIDE, 2))


@pytest.mark.slow
@pytest.mark.long
@FLUSH
def test_every_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool) -> None:
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=sync_flush)
    recorded.lose_power(every(1))
    recorded.lose_power(every(2), again=True)
    recorded.kill(every(1))


# The checker itself: each of these faults loses rows, and must be seen to.

FORGOTTEN = {
    "an intent's sync": lambda path: "/spark_mq/intents/" in path,
    "a segment's sync": lambda path: path.endswith(".segment"),
    "the log's sync": lambda path: "/commitlog/" in path,
    "a directory's sync": os.path.isdir,
    "the topics' sync": lambda path: "/config/topics.json" in path,
}


@pytest.mark.parametrize("fault", FORGOTTEN)
def test_a_forgotten_sync_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=False, forgets=FORGOTTEN[fault])
    with pytest.raises((AssertionError, StorageError)):
        recorded.lose_power(every(5))


def test_an_intent_that_goes_before_the_log_is_synced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreWriter, "sync_log", lambda writer: None)
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=False)
    with pytest.raises((AssertionError, StorageError)):
        recorded.lose_power(every(5))


def test_an_intent_that_goes_before_its_batch_is_there_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.message_store, "finish_open_intents", lambda writer: 0)
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=True)
    with pytest.raises((AssertionError, StorageError)):
        recorded.kill(every(5))
