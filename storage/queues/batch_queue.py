"""One batch queue for reading: a unit names a record that holds several messages. Java: BatchConsumeQueue.

It shows the entries of a `ConsumeQueue`, one for each message: those of one record are equal. So what finds ends, positions and
times in queues needs to know nothing of batches; `scan.py` reads each record once. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.errors import OffsetOutOfRangeError
from storage.format.batch_items import single_message
from storage.format.consume_queue import BATCH_UNIT, BATCH_UNIT_SIZE, ENTRY, is_batch_unit
from storage.format.record import Message
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue

_BLOCK_UNITS = 4096
_FILES_SEARCHED = 3


def entries_of_units(units: np.ndarray) -> np.ndarray:
    """What units and entries have in common."""
    entries = np.empty(len(units), ENTRY)
    for name in ENTRY.names or ():
        entries[name] = units[name]
    return entries


class BatchConsumeQueue(ConsumeQueue):
    """The files of one batch queue. A file's name counts bytes of units, and so says no queue offset: that stands in units."""

    unit_size_bytes = BATCH_UNIT_SIZE

    def units(self, start: int, end: int) -> np.ndarray:
        """The units whose records hold messages at queue offsets [start, end), in order."""
        found = []
        for units in self._units_from(max(0, self._number_at(start))) if start < end else ():
            found.append(units[: np.searchsorted(units["base_offset"], end)])
            if len(found[-1]) < len(units):
                break
        units = np.concatenate(found) if found else np.empty(0, BATCH_UNIT)
        return units[units["base_offset"].astype(np.int64) + units["message_count"] > start]

    def entries(self, start: int, end: int) -> np.ndarray:
        """One for each queue offset in [start, end): that of its message's record; zeros where there is none."""
        result = np.zeros(max(0, end - start), ENTRY)
        units = self.units(start, end)
        counts = units["message_count"].astype(np.int64)
        bases = units["base_offset"].astype(np.int64)
        offsets = np.repeat(bases - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        inside = (offsets >= start) & (offsets < end)
        result[offsets[inside] - start] = np.repeat(entries_of_units(units), counts)[inside]
        return result

    def sizes(self, start: int, end: int) -> np.ndarray:
        """The bytes of a record count at the first of its messages that is in [start, end)."""
        sizes = np.zeros(max(0, end - start), np.int64)
        units = self.units(start, end)
        sizes[np.maximum(units["base_offset"].astype(np.int64), start) - start] = units["size_bytes"]
        return sizes

    def last_place(self, file_start: int) -> int:
        position = self.file_size_bytes - BATCH_UNIT_SIZE
        return int(self._read(file_start, position, BATCH_UNIT_SIZE).view(BATCH_UNIT)["commitlog_offset"][0])

    def message_at(self, queue_offset: int, log: CommitLog, log_end: int, place: int | None = None) -> Message:
        """Raises CorruptMessageError where the record's batch is none."""
        return single_message(super().message_at(queue_offset, log, log_end, place), queue_offset)

    def bytes_from(self, start: int, count: int) -> bytes:
        return self.entries(start, start + count).tobytes() if self.file_starts else b""

    @property
    def first_file_offset(self) -> int:
        """The queue offset of the first message of the first unit; 0 if there is none."""
        units = next(self._units_from(0), None)
        return 0 if units is None else int(units[0]["base_offset"])

    @property
    def last_file_end_offset(self) -> int:
        """The queue offset at which the last unit ends: room for more units is room for any number of messages."""
        return self.written_end()

    @property
    def recovery_start(self) -> int:
        """The end itself, as it takes a look at the units to know it."""
        return self.written_end()

    def written_end(self, start: int | None = None) -> int:
        """The queue offset behind the messages of the last written unit, searched from a queue offset on, or from the third file before
        the last, as in Java (BatchConsumeQueue.recover).
        """
        if not self.file_starts:
            return 0
        files = len(self.file_starts)
        number = max(0, files - _FILES_SEARCHED) * self._file_units if start is None else max(0, self._number_at(start))
        end = start or 0
        for units in self._units_from(number):
            end = max(end, int(units[-1]["base_offset"]) + int(units[-1]["message_count"]))
        return end

    def data_end(self, start: int) -> int:
        return start

    @property
    def _file_units(self) -> int:
        return self.file_size_bytes // BATCH_UNIT_SIZE

    def _units_from(self, number: int) -> Iterator[np.ndarray]:
        """The written units from a number on, which counts from the first file, up to the first that is not written; no empty array."""
        for row in range(number // max(1, self._file_units), len(self.file_starts)):
            start = self.file_starts[row]
            for at in range(max(0, number - row * self._file_units), self._file_units, _BLOCK_UNITS):
                count = min(_BLOCK_UNITS, self._file_units - at)
                units = self._read(start, at * BATCH_UNIT_SIZE, count * BATCH_UNIT_SIZE).view(BATCH_UNIT)
                free = np.flatnonzero(~is_batch_unit(units))
                if len(free):
                    units = units[: free[0]]
                if len(units):
                    yield units
                if len(free):
                    return

    def _number_at(self, queue_offset: int) -> int:
        """The number of the last unit that begins at or before a queue offset; −1 if none does."""
        low, high = 0, len(self.file_starts) * self._file_units
        while low < high:
            middle = (low + high) // 2
            row, at = divmod(middle, self._file_units)
            unit = self._read(self.file_starts[row], at * BATCH_UNIT_SIZE, BATCH_UNIT_SIZE).view(BATCH_UNIT)
            if is_batch_unit(unit)[0] and unit["base_offset"][0] <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _expired(self, file_start: int) -> OffsetOutOfRangeError:
        """Names no offset of the queue for certain: that stood in the file."""
        return OffsetOutOfRangeError(self.topic, self.queue_id, 0, 0, 0)
