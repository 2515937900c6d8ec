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

import storage.batch.commit
import storage.batch.slices
import storage.log.writer
import storage.store
from storage.errors import StorageError
from storage.format.consume_queue import decode_entries, is_ext_address
from storage.put.store_writer import StoreWriter
from tests.crash.sink_store import SETTINGS, SinkStore
from tests.crash.workload import check, run
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem

pytestmark = pytest.mark.crash

FLUSH = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])


class Recorded:
    """The workload's run, cut off wherever a test likes."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        sync_flush: bool,
        forgets: Callable[[str], bool] = lambda path: False,
        more_settings: str = "",
        also: Callable[[Path], None] = lambda root: None,
    ) -> None:
        """`also` looks at the store when all is well again.

        `decided N` marks where the intent of batch N is durable, `acknowledged N` where its commit returned.
        """
        self._sync_flush = sync_flush
        self._also = also
        root = SinkStore.make_place(directory, SETTINGS + more_settings)
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
            patch.setattr(storage.batch.commit, "reach", reach)
            patch.setattr(storage.batch.slices, "SLICE_BYTES", 2_500)  # so that a few rows are several slices
            patch.setattr(storage.log.writer, "SLICE_BYTES", 1_000)  # of several writes each
            run(SinkStore(root, files, sync_flush=sync_flush), files.mark, begin)

    def lose_power(self, stride: int, first: int = 0) -> None:
        """In one state in `stride`, from the one after operation `first` on."""
        self._crash(stride, first, lambda number, marks, disk: self._lose_power(disk, marks, self._choice(number), 2))

    def kill(self, stride: int, first: int = 0) -> None:
        """Likewise the process goes, and the machine goes on: what was written is there."""
        self._crash(stride, first, lambda number, marks, disk: self._kill(disk, marks))

    def lose_power_again(self, stride: int, first: int = 0) -> None:
        """Likewise lose power or kill the process, and lose power once more in what the next process does."""

        def crash_twice(number: int, marks: list[str], disk: Disk) -> None:
            choice = self._choice(number)
            files = self._lose_power(disk, marks, choice, 2) if choice.randrange(2) else self._kill(disk, marks)
            chosen = choice.randint(1, len(files.operations))
            count, new_marks, left = next(state for state in files.states() if state[0] == chosen)
            with _named(files, count):
                self._lose_power(left, [*marks, *new_marks], choice, 3)

        self._crash(stride, first, crash_twice)

    def kill_and_lose_power(self, number: int) -> None:
        """Kill the process after this operation, and lose power wherever the next one has made a promise."""
        marks, disk = next(
            (list(marks), deepcopy(disk)) for count, marks, disk in self.files.states() if count == number
        )
        with _named(self.files, number):
            files = self._kill(disk, marks)
            for count, new_marks, left in files.states():
                if count and files.operations[count - 1].kind == "mark":
                    with _named(files, count):
                        self._lose_power(left, [*marks, *new_marks], self._choice(count), 3)

    def _crash(self, stride: int, first: int, crash: Callable[[int, list[str], Disk], object]) -> None:
        for number, marks, disk in self.files.states():
            if number % stride == first:
                with _named(self.files, number):
                    crash(number, marks, disk)

    def _choice(self, number: int) -> random.Random:
        return random.Random(f"{number} {self._sync_flush}")

    def _lose_power(self, disk: Disk, marks: Collection[str], choice: random.Random, boot: int) -> CrashFileSystem:
        return self._go_on(disk.after_power_loss(choice), marks, boot)

    def _kill(self, disk: Disk, marks: Collection[str]) -> CrashFileSystem:
        return self._go_on(deepcopy(disk), marks, self.files.boot)

    def _go_on(self, disk: Disk, marks: Collection[str], boot: int) -> CrashFileSystem:
        files = CrashFileSystem(self.files.root, disk, boot)
        files.forgets = self.files.forgets
        check(SinkStore(Path(files.root), files, sync_flush=self._sync_flush, days=boot), marks, files.mark)
        self._also(Path(files.root))
        return files


@contextmanager
def _named(files: CrashFileSystem, number: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"the crash came after operation {number}: {files.operations[:number][-1:]}"[:1_000])
        raise


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


Crash = Callable[[Recorded, int, int], None]
CRASHES: dict[Crash, int] = {Recorded.lose_power: 24, Recorded.lose_power_again: 96, Recorded.kill: 48}
"""`make test` takes one state in so many."""


@pytest.mark.slow
@FLUSH
@pytest.mark.parametrize("crash", CRASHES)
def test_some_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool, crash: Crash) -> None:
    crash(Recorded(tmp_path, monkeypatch, sync_flush=sync_flush), CRASHES[crash], 5)


@pytest.mark.slow
@pytest.mark.long
@FLUSH
@pytest.mark.parametrize("crash", CRASHES)
def test_every_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool, crash: Crash) -> None:
    crash(Recorded(tmp_path, monkeypatch, sync_flush=sync_flush), 1, 0)


def entries_name_their_units(root: Path) -> None:
    raw = b"".join(path.read_bytes() for path in root.glob("consumequeue/*/*/*"))
    entries = decode_entries(raw)
    assert is_ext_address(entries["tags_code"][entries["size_bytes"] > 0]).all()


@pytest.mark.slow
@FLUSH
@pytest.mark.parametrize("crash", CRASHES)
def test_some_states_of_a_store_with_extension_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool, crash: Crash
) -> None:
    settings = "enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=128\n"
    recorded = Recorded(
        tmp_path, monkeypatch, sync_flush=sync_flush, more_settings=settings, also=entries_name_their_units
    )
    crash(recorded, 3 * CRASHES[crash], 7)


@pytest.mark.slow
def test_a_directory_that_a_killed_process_made_is_kept_with_what_later_ones_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one dies before it has synced the directory's entry, and power is lost when the next has put something there."""
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=True)
    made = [
        number
        for number, operation in enumerate(recorded.files.operations, 1)
        if operation.kind == "make-directory" and "/consumequeue/" not in operation.path
    ]
    assert len(made) > 5
    for number in made:
        recorded.kill_and_lose_power(number)


# The checker itself: each of these faults loses rows, and must be seen to.

FORGOTTEN = {
    "an intent's sync": lambda path: "/spark_mq/intents/" in path,
    "a segment's sync": lambda path: path.endswith(".segment"),
    "the log's sync": lambda path: "/commitlog/" in path,
    "a directory's sync": os.path.isdir,
    "the topics' sync": lambda path: "/config/topics.json" in path,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FORGOTTEN)
def test_a_forgotten_sync_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=False, forgets=FORGOTTEN[fault])
    with pytest.raises((AssertionError, StorageError)):
        recorded.lose_power(5)


@pytest.mark.slow
def test_an_intent_that_goes_before_the_log_is_synced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreWriter, "sync_log", lambda writer: None)
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=False)
    with pytest.raises((AssertionError, StorageError)):
        recorded.lose_power(5)


@pytest.mark.slow
def test_an_intent_that_goes_before_its_batch_is_there_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.store, "finish_open_intents", lambda writer, torn: 0)
    recorded = Recorded(tmp_path, monkeypatch, sync_flush=True)
    with pytest.raises((AssertionError, StorageError)):
        recorded.kill(5)
