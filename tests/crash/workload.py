"""Two sinks take turns at one store, and what must be true of it wherever that is cut off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest

import storage.batch_commit
import storage.commit_log_writer
import storage.message_store
import storage.staged_segment
import storage.store_writer
from storage.batch_ledger import Batch
from storage.files.file_system import LocalFileSystem
from tests.crash.sink_store import SinkStore, assert_holds_exactly, found_rows, is_whole
from tests.support.crash_file_system import CrashFileSystem, Disk
from tests.support.stage_rows import BatchRows

CLOSE = None
LETTER = b"a row that is no message"
_TOPICS = ("orders", "bills")


def _rows(sink_id: str, batch_id: int, *counts: int) -> BatchRows:
    return BatchRows(Batch(sink_id, f"query-of-{sink_id}", batch_id), counts, _TOPICS)


STEPS: tuple[BatchRows | None, ...] = (
    _rows("first", 0, 7, 5),
    _rows("second", 0, 12),
    _rows("first", 1, 9, 14),
    CLOSE,
    _rows("first", 2, 3),
    _rows("second", 1, 30, 6),
    _rows("first", 3, 11, 4),
)
BATCHES = [step for step in STEPS if step is not None]
WITH_LETTERS = BATCHES[2]
"""This batch brings a file of dead letters along."""


class Workload:
    """Runs the steps on a disk that remembers them; then makes crashes of them."""

    def __init__(self, directory: Path, *, sync_flush: bool, file_system: type[CrashFileSystem] = CrashFileSystem) -> None:
        self.root = SinkStore.make_place(directory)
        self.sync_flush = sync_flush
        self.file_system = file_system(str(self.root))
        self._kind = file_system

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All steps; `decided N` and `acknowledged N` mark what has become of BATCHES[N]."""
        store = SinkStore(self.root, self.file_system, sync_flush=self.sync_flush)
        current = 0

        def reach(name: str) -> None:
            if name == "after-intent":
                self.file_system.mark(f"decided {current}")

        with monkeypatch.context() as patch:
            patch.setattr(storage.batch_commit, "reach", reach)
            for step in STEPS:
                if step is CLOSE:
                    store.close()
                else:
                    store.commit(step, dead_letters=self._letters(store) if step is WITH_LETTERS else ())
                    self.file_system.mark(f"acknowledged {current}")
                    current += 1

    @property
    def letter_paths(self) -> tuple[str, str]:
        """Where dead letters are staged, and where they belong."""
        return f"{self.root}/letters/.staged", f"{self.root}/letters/2.letters"

    def _letters(self, store: SinkStore) -> Sequence[tuple[str, str]]:
        staged, final = self.letter_paths
        files = store.file_system
        files.make_directories(f"{self.root}/letters")
        if not files.exists(staged):
            files.create_file(staged, 0)
        files.write(staged, 0, LETTER)
        files.sync(staged)
        files.sync(f"{self.root}/letters")
        return [(staged, final)]

    def check(self, disk: Disk, marks: Sequence[str], *, boot: int) -> CrashFileSystem:
        """A new process finds this disk. What was decided is whole, the rest whole or not there; the sinks go on, exactly once.

        Returns the file system that has seen the opening and all that follows.
        """
        files = self._kind(str(self.root), disk, boot)
        store = SinkStore(self.root, files, sync_flush=self.sync_flush, days=boot)
        with store.open() as opened:
            found = found_rows(opened)
            there = [is_whole(found, rows) for rows in BATCHES]
            opened.release()
        for number, is_there in enumerate(there):
            assert is_there or f"decided {number}" not in marks, f"{BATCHES[number].batch} was decided and is not there"
            assert is_there or f"acknowledged {number}" not in marks
        done = {number for number in range(len(BATCHES)) if f"acknowledged {number}" in marks}
        for number in _replayed(done):
            rows = BATCHES[number]
            letters = self._letters(store) if rows is WITH_LETTERS and not there[number] else ()
            outcome = store.commit(rows, dead_letters=letters)
            assert outcome.already_done == there[number], f"{rows.batch}: {outcome}, it was {'' if there[number] else 'not '}there"
            there[number] = True
        store.close()
        if there[BATCHES.index(WITH_LETTERS)]:
            assert files.read_file(self.letter_paths[1]) == LETTER
        assert_holds_exactly(
            store.root, [rows for rows, is_there in zip(BATCHES, there, strict=True) if is_there], LocalFileSystem()
        )
        return files

    def power_loss(self, disk: Disk, marks: Sequence[str], choice: random.Random, *, boot: int = 2) -> CrashFileSystem:
        return self.check(disk.after_power_loss(choice), marks, boot=boot)

    def kill(self, disk: Disk, marks: Sequence[str]) -> CrashFileSystem:
        """The process is gone, the machine goes on: everything written is there, synced or not."""
        return self.check(deepcopy(disk), marks, boot=1)


def _replayed(done: set[int]) -> list[int]:
    """What Spark brings after a restart: of each sink the last acknowledged batch, and the one that follows."""
    replayed = set()
    for sink_id in ("first", "second"):
        numbers = [number for number, rows in enumerate(BATCHES) if rows.batch.sink_id == sink_id]
        acknowledged = [number for number in numbers if number in done]
        replayed |= set(acknowledged[-1:]) | set(numbers[len(acknowledged) : len(acknowledged) + 1])
    return sorted(replayed)
