"""A real store on the disk that forgets, opened, let go of and crashed by a test that compares what it serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from random import Random

from storage import GetStatus, MessageStore, open_store
from storage.format.record import Message
from storage.settings.load import StoreConfig
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem

START_MS = 1_795_000_000_000
PowerLoss = tuple[Random, str]
"""By what chance, and which extreme (`crash_file_system.EXTREMES`) or none."""


class HeldStore:
    """A store of tiny files in `directory`; its clock goes on by a millisecond at each look, and by leaps."""

    def __init__(self, directory: Path) -> None:
        settings = StoreConfig.tiny().settings
        (directory / "broker.conf").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items()), "ascii"
        )
        self._root = directory / "store"
        self._root.mkdir()
        self.root = str(self._root)
        self.files = CrashFileSystem(self.root)
        self.now_ms = START_MS
        self.sync_flush = False
        """How the store is opened the next time."""
        self._store: MessageStore | None = None
        self._step_began = 0

    def clock(self) -> int:
        self.now_ms += 1
        return self.now_ms

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def open(self) -> MessageStore:
        """The store, open for writing."""
        if self._store is None:
            self._store = open_store(
                self.root,
                read_only=False,
                create=True,
                flush_disk_type="SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
                file_system=self.files,
                clock=self.clock,
            )
        return self._store

    @contextmanager
    def look(self) -> Iterator[MessageStore]:
        """The store as it is open, or opened for reading alone."""
        if self._store is not None:
            yield self._store
            return
        with open_store(self.root, file_system=self.files, clock=self.clock) as store:
            yield store

    def let_go(self, *, close: bool) -> None:
        """Close the store cleanly or only release it, if it is open."""
        store, self._store = self._store, None
        if store is not None and not close:
            store.release()
        elif store is not None:
            store.close()

    # What a crash leaves

    def begin_step(self) -> None:
        """From here on a crash may come amid what is done."""
        self._step_began = len(self.files.operations)

    def is_amid_step(self, steps_back: int) -> bool:
        """Whether so many operations before now is inside of the last step."""
        return steps_back > 0 and len(self.files.operations) > self._step_began

    def crash(self, steps_back: int, power_loss: PowerLoss | None) -> None:
        """The process is gone, so many operations of the last step before its end; with `power_loss` what was not synced, too."""
        disk = self._disk(max(self._step_began, len(self.files.operations) - steps_back))
        if power_loss is not None:
            disk = disk.after_power_loss(*power_loss)
        if self._store is not None:  # what that writes is not on the disk that is left
            self._store.__exit__(RuntimeError, RuntimeError(), None)
            self._store = None
        self._place(disk, 1 if power_loss is not None else 0)

    def _disk(self, operation_count: int) -> Disk:
        if operation_count == len(self.files.operations):
            return deepcopy(self.files.disk)
        return next(disk for count, _, disk in self.files.states() if count == operation_count)

    def _place(self, disk: Disk, boots: int) -> None:
        self.files = CrashFileSystem(self.root, disk, self.files.boot + boots)
        self._step_began = 0

    def forget(self, name: str) -> None:
        """Delete a file of the store, or a directory with all that is in it, durably. The store is not open."""
        assert self._store is None
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self.found_changed()

    def found_changed(self) -> None:
        """Somebody else has changed the store, durably."""
        self.files = CrashFileSystem(self.root, boot=self.files.boot)
        self._step_began = 0


def served(store: MessageStore, topic: str, queue_id: int, start: int) -> Iterator[tuple[int, Message | None]]:
    """Each offset of a queue from `start` on with what is served there; None where nothing is."""
    offset, end = start, store.max_offset(topic, queue_id)
    while offset < end:
        result = store.get(topic, queue_id, offset, 32)
        assert result.next_begin_offset > offset, f"{topic} queue {queue_id}: a get from {offset} leads to {result}"
        found = {message.queue_offset: message for message in result.messages}
        assert (result.status is GetStatus.FOUND) == bool(found), (topic, queue_id, offset, result)
        for at in range(offset, result.next_begin_offset):
            yield at, found.pop(at, None)
        offset = result.next_begin_offset
        assert not found, f"{topic} queue {queue_id}: offsets {sorted(found)} in a get that goes on at {offset}"
