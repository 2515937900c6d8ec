"""The timer's log: a unit for each message that waits, appended and never changed. Java: TimerLog, MappedFileQueue.

Files are read through maps and written by position. Where the log ends stands nowhere: it is the first place that holds no unit,
looked for from where the checkpoint says that log and wheel are on the disk.
"""

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
    UNIT,
    UNIT_SIZE,
    decode_units,
    encode_filler,
    is_filler,
    is_unit,
)

_LOG = logging.getLogger(__name__)


class UnitRun(NamedTuple):
    """Units of one file that follow each other."""

    positions: np.ndarray
    """int64, in the whole log."""
    units: np.ndarray


class TimerLog:
    """The log under ROOT/timerlog. `end` is where the next unit goes; `walk` finds it."""

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
        """Where the last file ends; 0 of a log without files."""
        return self._starts[-1] + self.file_size_bytes if self._starts else 0

    # Reading

    def walk(self, position: int) -> Iterator[UnitRun]:
        """The units from a position on, to the first place that holds none, which is `end` then. Java: recoverAndRevise.

        Begins at the file that holds `position`, at its place of a unit at or before it.
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
        """The units at these positions; zeros, which are no unit, where none can be."""
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
        """The unit before `end`; None of a log without units."""
        at_start = self.end in self._starts or self.end == self.files_end
        position = self._last_place(self.end - self.file_size_bytes) if at_start else self.end - UNIT_SIZE
        unit = self.units_at(np.array([position], np.int64)) if position >= 0 else np.zeros(1, UNIT)
        return unit[0] if is_unit(unit)[0] else None

    def _last_place(self, start: int) -> int:
        """Where a full file has its last unit. Java: getOffsetForLastUnit."""
        return start + ((self.file_size_bytes - FILLER_SIZE) // UNIT_SIZE - 1) * UNIT_SIZE

    def _open(self, start: int) -> ReadableFile:
        if start not in self._open_files:
            self._open_files[start] = self._file_system.open_file(self._path(start))
        return self._open_files[start]

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    # Writing

    def places(self, count: int) -> np.ndarray:
        """Where the next `count` units go, int64. Java: TimerLog.append."""
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
        """Delete and zero what stands behind `end`, so that nothing there is taken for a unit later. Java: truncateDirtyFiles.

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
        """Delete files from the first on whose last unit points before the commit log; returns how many.

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
        """Delete all files. Durable on return; nothing else may be asked of it then."""
        for start in list(self._starts):
            self._forget(start)
        self.sync()

    def sync(self) -> None:
        """Everything written so far onto the disk."""
        for path in sorted(self._unsynced, reverse=True):
            self._file_system.sync(path)
        self._unsynced.clear()

    def close(self) -> None:
        for opened in self._open_files.values():
            opened.close()
        self._open_files.clear()
