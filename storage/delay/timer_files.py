"""The timer's two files: the wheel, and the log that its slots point into."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from storage.errors import StoreRefusedError
from storage.files.file_system import ReadableFile, end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import view_at
from storage.format.delay import (
    FILLER_SIZE,
    NO_POSITION,
    SLOT,
    UNIT,
    UNIT_SIZE,
    WHEEL_SLOTS,
    decode_units,
    encode_filler,
    is_filler,
    is_unit,
)

ALL_TICKS = 1 << 62
"""A tick after all others."""
_PAGE_BYTES = 4096
_PAGE_SLOTS = _PAGE_BYTES // SLOT.itemsize


class TimerWheel:
    """The slots of ROOT/timerwheel: for each tick of the next days the newest unit of the timer log that is due then.

    It is read whole and changed in memory; `save` writes the changed pages. A slot is never emptied: it belongs to the tick that it
    names until another tick needs its place. `was_there` = the file existed. Java: TimerWheel.
    """

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        """Raises StoreRefusedError for a file of another length, with which a broker does not start."""
        self._file_system = file_system
        self._path = f"{root}/timerwheel"
        self._dirty_pages: set[int] = set()
        self.slots = np.zeros(WHEEL_SLOTS, SLOT)
        self.was_there = file_system.exists(self._path) and self._read()

    def _read(self) -> bool:
        """Read the file without its holes, which are most of it. An empty file counts as missing, as in Java."""
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
        """The slots of ticks [start, end), by tick; a copy. Unused slots have tick 0."""
        rows = np.flatnonzero((self.slots["tick"] >= max(1, start_tick)) & (self.slots["tick"] < end_tick))
        found = self.slots[rows]
        found = found[(found["tick"] % WHEEL_SLOTS == rows) & (found["last_position"] != NO_POSITION)]
        return found[np.argsort(found["tick"])]

    # Changing it

    def enter(self, ticks: np.ndarray, positions: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """Link units in the order of their positions into the slots of their ticks; returns the previous unit of each slot.

        `changes` is added to the slots' counts. No two of the ticks may have the same slot. Java: doEnqueue, putSlot.
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
        """Set slots to end at units that the log holds and the wheel may not know. Java: reviseSlot.

        Departure: a slot that belonged to another tick starts its count anew; Java keeps the former tick's count.
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
        """The slots from a tick on whose newest unit is at or after the log's end. Java: checkPhyPos."""
        slots = self.waiting(start_tick, ALL_TICKS)
        return slots[slots["last_position"] >= position]

    def empty(self, ticks: np.ndarray) -> None:
        """Empty the slots of these ticks.

        Java keeps such slots, and then links a unit to itself when the log has grown so far: its timer loops forever.
        """
        rows = ticks % WHEEL_SLOTS
        self.slots["first_position"][rows] = self.slots["last_position"][rows] = NO_POSITION
        self.slots["count"][rows] = 0
        self._touch(rows)

    # Keeping it

    def _touch(self, rows: np.ndarray) -> None:
        self._dirty_pages.update(np.unique(rows // _PAGE_SLOTS).tolist())

    def drop(self) -> None:
        """Delete the file. Durable on return; the object must not be used afterwards."""
        if self._file_system.exists(self._path):
            self._file_system.unlink(self._path)
            self._file_system.sync(self._path.rpartition("/")[0])

    def save(self) -> None:
        """Write and sync what changed. The units that it names must be on the disk already."""
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


_LOG = logging.getLogger(__name__)


class UnitRun(NamedTuple):
    """Units of one file that follow each other."""

    positions: np.ndarray
    """int64, in the whole log."""
    units: np.ndarray


class TimerLog:
    """The log under ROOT/timerlog: a unit for each message that waits, appended and never changed. Java: TimerLog, MappedFileQueue.

    Files are read through maps and written by position. No file says where the log ends: it is the first place without a unit,
    searched from where the checkpoint says that log and wheel are on the disk. `end` is the place of the next unit; `walk` finds it.
    """

    def __init__(self, file_system: LocalFileSystem, root: str, file_size_bytes: int) -> None:
        """Raises StoreRefusedError for files of another length, with which a broker does not start."""
        self.directory = f"{root}/timerlog"
        self.file_size_bytes = file_size_bytes
        self.end = 0
        self._file_system = file_system
        self._open_files: dict[int, ReadableFile] = {}
        self._unsynced: set[str] = set()
        self._starts: list[int] = []
        for entry in file_system.list_directory(self.directory):
            if entry.is_directory or not entry.size_bytes:
                continue
            if entry.size_bytes != file_size_bytes or not entry.name.isdigit():
                raise StoreRefusedError(
                    self.directory,
                    f"{entry.name} with {entry.size_bytes} bytes is no timer log file of {file_size_bytes} bytes",
                    hint="a real broker does not start on such a store either; give mappedFileSizeTimerLog as it was",
                )
            self._starts.append(int(entry.name))

    @property
    def file_starts(self) -> tuple[int, ...]:
        """Positions at which the files begin, ascending."""
        return tuple(self._starts)

    @property
    def files_end(self) -> int:
        """The end of the last file; 0 without files."""
        return self._starts[-1] + self.file_size_bytes if self._starts else 0

    # Reading

    def walk(self, position: int) -> Iterator[UnitRun]:
        """The units from a position on, to the first place without one, which becomes `end`. Java: recoverAndRevise.

        Begins in the file of `position`, at the unit at or before it.
        """
        self.end = min(self._starts, default=0)
        for start in self._starts:
            if start + self.file_size_bytes <= position and start != self._starts[-1]:
                continue
            first = max(0, position - start) // UNIT_SIZE
            units = decode_units(self._open(start).view(0, self.file_size_bytes))[first:]
            sound = is_unit(units)
            count = len(units) if sound.all() else int(np.argmin(sound))
            self.end = start + (first + count) * UNIT_SIZE
            if count:
                yield UnitRun(start + (first + np.arange(count, dtype=np.int64)) * UNIT_SIZE, units[:count])
            rolls = count == len(units) or bool(is_filler(units[count : count + 1]).all())
            if not rolls or start + self.file_size_bytes not in self._starts:
                return

    def units_at(self, positions: np.ndarray) -> np.ndarray:
        """The units at these positions; zeros, which are no unit, at impossible ones."""
        found = np.zeros(len(positions), UNIT)
        starts = positions // self.file_size_bytes * self.file_size_bytes
        for start in np.unique(starts).tolist():
            rows = np.flatnonzero((starts == start) & (positions < self.end))
            rows = rows[positions[rows] - start <= self.file_size_bytes - UNIT_SIZE]
            if start in self._starts and len(rows):
                content = self._open(start).view(0, self.file_size_bytes)
                found[rows] = view_at(content, positions[rows] - start, UNIT)
        return found

    def units_between(self, first: int, last: int) -> Iterator[UnitRun]:
        """All units at positions [first, last], a file at a time."""
        for start in self._starts:
            low, high = max(first, start), min(last + UNIT_SIZE, self.end, start + self.file_size_bytes)
            if low < high:
                units = decode_units(self._open(start).view(low - start, high - low))
                positions = low + np.arange(len(units), dtype=np.int64) * UNIT_SIZE
                sound = is_unit(units)
                yield UnitRun(positions[sound], units[sound])

    def last_unit(self) -> np.void | None:
        """The unit before `end`; None if there is none."""
        at_start = self.end in self._starts or self.end == self.files_end
        position = self._last_place(self.end - self.file_size_bytes) if at_start else self.end - UNIT_SIZE
        unit = self.units_at(np.array([position], np.int64)) if position >= 0 else np.zeros(1, UNIT)
        return unit[0] if is_unit(unit)[0] else None

    def _last_place(self, start: int) -> int:
        """Position of the last unit of a full file. Java: getOffsetForLastUnit."""
        return start + ((self.file_size_bytes - FILLER_SIZE) // UNIT_SIZE - 1) * UNIT_SIZE

    def _open(self, start: int) -> ReadableFile:
        if start not in self._open_files:
            self._open_files[start] = self._file_system.open_file(self._path(start))
        return self._open_files[start]

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    # Writing

    def places(self, count: int) -> np.ndarray:
        """Positions of the next `count` units, int64. Java: TimerLog.append."""
        runs, position = [np.empty(0, np.int64)], self.end
        while count:
            file_end = (position // self.file_size_bytes + 1) * self.file_size_bytes
            fitting = min(count, max(0, (file_end - position - FILLER_SIZE) // UNIT_SIZE))
            runs.append(position + np.arange(fitting, dtype=np.int64) * UNIT_SIZE)
            count -= fitting
            position = file_end if count else position
        return np.concatenate(runs)

    def append(self, positions: np.ndarray, units: np.ndarray) -> None:
        """Write units to the `places` for them, with the fillers between files; on the disk after `sync`."""
        starts = positions // self.file_size_bytes * self.file_size_bytes
        last_start = int(starts[-1]) if len(starts) else 0
        for start in range(
            self.end // self.file_size_bytes * self.file_size_bytes, last_start + 1, self.file_size_bytes
        ):
            rows = np.flatnonzero(starts == start)
            at = int(positions[rows[0]]) if len(rows) else max(self.end, start)
            data = units[rows].tobytes()
            if start < last_start:
                data += encode_filler(start + self.file_size_bytes - at - len(data))
            if data:
                self._make(start)
                self._file_system.write(self._path(start), at - start, data)
                self._unsynced.add(self._path(start))
        if len(positions):
            self.end = int(positions[-1]) + UNIT_SIZE

    def _make(self, start: int) -> None:
        if start not in self._starts:
            self._file_system.make_directories(self.directory)
            self._file_system.create_file(self._path(start), self.file_size_bytes)
            self._unsynced.add(self.directory)
            self._starts = sorted([*self._starts, start])

    def cut(self) -> None:
        """Delete and zero all data after `end`, so that it is not taken for units later. Java: truncateDirtyFiles.

        Departure: Java leaves the bytes of the last file in place.
        """
        for start in [start for start in self._starts if start > self.end]:
            self._forget(start)
        if self._starts and self.end < self.files_end:
            start = self._starts[-1]
            position = self.end - start
            opened = self._open(start)
            dirty = end_of_data(opened, position)
            if dirty > position:
                self._file_system.zero(self._path(start), position, dirty - position)
                self._unsynced.add(self._path(start))

    def delete_expired(self, minimum_commitlog_offset: int) -> int:
        """Delete the first files, as long as their last unit points before the commit log; returns how many.

        Never the last file. Java: deleteExpiredFileByOffsetForTimerLog.
        """
        count = 0
        while len(self._starts) > 1:
            last = self.units_at(np.array([self._last_place(self._starts[0])], np.int64))
            if not is_unit(last)[0] or last["commitlog_offset"][0] >= minimum_commitlog_offset:
                break
            _LOG.info(
                "deleting %s: its last unit points before %d, where the log begins",
                *(self._path(self._starts[0]), minimum_commitlog_offset),
            )
            self._forget(self._starts[0])
            count += 1
        return count

    def _forget(self, start: int) -> None:
        if opened := self._open_files.pop(start, None):
            opened.close()
        self._file_system.unlink(self._path(start))
        self._unsynced.discard(self._path(start))
        self._unsynced.add(self.directory)
        self._starts.remove(start)

    def drop(self) -> None:
        """Delete all files. Durable on return; the object must not be used afterwards."""
        for start in list(self._starts):
            self._forget(start)
        self.sync()

    def sync(self) -> None:
        """Sync everything written so far."""
        for path in sorted(self._unsynced, reverse=True):
            self._file_system.sync(path)
        self._unsynced.clear()

    def close(self) -> None:
        for opened in self._open_files.values():
            opened.close()
        self._open_files.clear()
