"""The timer's wheel: for each tick of the next days the newest unit of the timer log that is due then. Java: TimerWheel.

It is read whole and changed in memory; `save` writes the pages that changed. A slot is never emptied: it belongs to a tick as long as
it names that tick, and the next tick that needs its place takes it over.
"""

from __future__ import annotations

import numpy as np

from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import NO_POSITION, SLOT, WHEEL_SLOTS

ALL_TICKS = 1 << 62
"""An end behind every tick."""
_PAGE_BYTES = 4096
_PAGE_SLOTS = _PAGE_BYTES // SLOT.itemsize


class TimerWheel:
    """The slots of ROOT/timerwheel. `was_there` tells whether there was such a file."""

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        """Raises StoreRefusedError for a file of another length, with which a broker does not start."""
        self._file_system = file_system
        self._path = f"{root}/timerwheel"
        self._dirty_pages: set[int] = set()
        self.slots = np.zeros(WHEEL_SLOTS, SLOT)
        self.was_there = file_system.exists(self._path) and self._read()

    def _read(self) -> bool:
        """Most of a wheel are holes, which are not read. An empty file counts as none, as in Java."""
        found = self._file_system.open_file(self._path)
        if found.size_bytes not in (0, self.slots.nbytes):
            reason = f"it has {found.size_bytes} bytes, and a timer wheel {self.slots.nbytes}"
            raise StoreRefusedError(self._path, reason, hint="a real broker does not start on such a store either")
        content = self.slots.view(np.uint8)
        for start, end in found.data_ranges(0):
            content[start:end] = found.view(start, end - start)
        found.close()
        return found.size_bytes > 0

    # What stands in it

    def waiting(self, start_tick: int, end_tick: int) -> np.ndarray:
        """The slots of ticks [start, end), by tick; a copy. Tick 0 is that of slots never used."""
        rows = np.flatnonzero((self.slots["tick"] >= max(1, start_tick)) & (self.slots["tick"] < end_tick))
        found = self.slots[rows]
        found = found[(found["tick"] % WHEEL_SLOTS == rows) & (found["last_position"] != NO_POSITION)]
        return found[np.argsort(found["tick"])]

    # Changing it

    def enter(self, ticks: np.ndarray, positions: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """Link units in the order of their positions into the slots of their ticks; returns what each has before it in its slot.

        `changes` is what each adds to its slot's count. No two of the ticks may have the same slot. Java: doEnqueue, putSlot.
        """
        if not len(ticks):
            return np.empty(0, np.int64)
        order = np.argsort(ticks, kind="stable")
        by_tick, of_tick = ticks[order], positions[order]
        first = np.concatenate(([0], np.flatnonzero(by_tick[1:] != by_tick[:-1]) + 1))
        last = np.append(first[1:], len(order)) - 1
        rows = by_tick[first] % WHEEL_SLOTS
        is_new = self._take_over(rows, by_tick[first])
        previous = np.empty(len(order), np.int64)
        previous[order[1:]] = of_tick[:-1]
        previous[order[first]] = self.slots["last_position"][rows]
        fresh = is_new | (self.slots["first_position"][rows] == NO_POSITION)
        self.slots["first_position"][rows[fresh]] = of_tick[first[fresh]]
        self.slots["last_position"][rows] = of_tick[last]
        self.slots["count"][rows] += np.add.reduceat(changes[order], first)
        self._touch(rows)
        return previous

    def _take_over(self, rows: np.ndarray, ticks: np.ndarray) -> np.ndarray:
        """Empty slots of other ticks for these; returns which were."""
        is_new = self.slots["tick"][rows] != ticks
        taken = np.zeros(int(is_new.sum()), SLOT)
        taken["tick"], taken["first_position"], taken["last_position"] = ticks[is_new], NO_POSITION, NO_POSITION
        self.slots[rows[is_new]] = taken
        return is_new

    def revise(self, ticks: np.ndarray, positions: np.ndarray) -> None:
        """Let slots end at units that the log holds and the wheel may not know. Java: reviseSlot.

        Departure: a slot that comes to its tick only now counts what it gets; Java leaves the number of the slot's former tick.
        """
        distinct, first, counts = np.unique(ticks, return_index=True, return_counts=True)
        last = len(ticks) - 1 - np.unique(ticks[::-1], return_index=True)[1]
        rows = distinct % WHEEL_SLOTS
        is_new = self._take_over(rows, distinct)
        empty = self.slots["first_position"][rows] == NO_POSITION
        self.slots["first_position"][rows[empty]] = positions[first[empty]]
        self.slots["last_position"][rows] = positions[last]
        self.slots["count"][rows[is_new]] = counts[is_new]
        self._touch(rows)

    def behind(self, position: int, start_tick: int) -> np.ndarray:
        """The slots from a tick on whose newest unit is at or behind a place in the log, where there is none. Java: checkPhyPos."""
        slots = self.waiting(start_tick, ALL_TICKS)
        return slots[slots["last_position"] >= position]

    def empty(self, ticks: np.ndarray) -> None:
        """Let nothing wait for these ticks.

        Java leaves such slots, and then links a unit to itself when the log has grown so far: its timer goes round in it for ever.
        """
        rows = ticks % WHEEL_SLOTS
        self.slots["first_position"][rows] = self.slots["last_position"][rows] = NO_POSITION
        self.slots["count"][rows] = 0
        self._touch(rows)

    # Keeping it

    def _touch(self, rows: np.ndarray) -> None:
        self._dirty_pages.update(np.unique(rows // _PAGE_SLOTS).tolist())

    def drop(self) -> None:
        """Delete the file. Durable on return; nothing else may be asked of it then."""
        if self._file_system.exists(self._path):
            self._file_system.unlink(self._path)
            self._file_system.sync(self._path.rpartition("/")[0])

    def save(self) -> None:
        """What changed, onto the disk. The units that it names are there already."""
        if not self.was_there:
            self._file_system.create_file(self._path, self.slots.nbytes)
            self._file_system.sync(self._path.rpartition("/")[0])
            self.was_there = True
        elif not self._dirty_pages:
            return
        writer = self._file_system.open_for_writing(self._path)
        try:
            for start, end in _stretches(sorted(self._dirty_pages)):
                rows = slice(start * _PAGE_SLOTS, end * _PAGE_SLOTS)
                writer.write(start * _PAGE_BYTES, self.slots[rows].tobytes())
            writer.sync()
        finally:
            writer.close()
        self._dirty_pages.clear()


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges [start, end)."""
    if not numbers:
        return []
    found = np.array(numbers)
    breaks = np.flatnonzero(np.diff(found) > 1)
    starts, ends = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(found) - 1]
    return [(int(found[start]), int(found[end]) + 1) for start, end in zip(starts, ends, strict=True)]
