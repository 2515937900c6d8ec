"""One batch queue for reading: a unit names a record that holds several messages. Java: BatchConsumeQueue.

It shows the entries of a `ConsumeQueue`, one for each message: those of one record are equal. So what finds ends, positions and
times in queues needs to know nothing of batches; `scan.py` reads each record once. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from storage.errors import CorruptMessageError, OffsetOutOfRangeError
from storage.format.batch_items import single_messages
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


def _message_of(record: Message, messages: list[Message], queue_offset: int) -> Message:
    """The message at a queue offset, of those of a record; a record without a batch is its own, at any offset."""
    if messages and messages[0] is record:
        return record
    number = queue_offset - record.queue_offset
    if not 0 <= number < len(messages):
        place = record.topic, record.queue_id, record.queue_offset, record.commitlog_offset
        raise CorruptMessageError(*place, "batch of messages", f"a message {number}", f"{len(messages)} messages")
    return messages[number]


class BatchConsumeQueue(ConsumeQueue):
    """The files of one batch queue. A file's name counts bytes of units, and so says no queue offset: that stands in units."""

    unit_size_bytes = BATCH_UNIT_SIZE
    _found: tuple[tuple[int, ...], int] = (), 0
    """The files in which the end was searched, and the number of the last written unit: the next search begins there."""

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
        """Raises CorruptMessageError where the record's batch is none, or has no such message."""
        record = super().message_at(queue_offset, log, log_end, place)
        return _message_of(record, single_messages(record), queue_offset)

    def reading(self, log: CommitLog, log_end: int) -> Callable[[int, int], Message]:
        """Decodes a record once for consecutive messages of it."""
        last: tuple[int, Message, list[Message]] | None = None

        def read(queue_offset: int, place: int) -> Message:
            nonlocal last
            if last is None or last[0] != place:
                record = log.message_at(place, log_end)
                last = place, record, single_messages(record)
            return _message_of(last[1], last[2], queue_offset)

        return read

    def bytes_from(self, start: int, count: int) -> bytes:
        return self.entries(start, start + count).tobytes() if self.file_starts else b""

    @property
    def first_file_offset(self) -> int:
        """The queue offset of the first message of the first unit; 0 if there is none."""
        units = next(self._units_from(0, 1), None)
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
        starts = self.file_starts
        if not starts:
            return 0
        number = max(0, len(starts) - _FILES_SEARCHED) * self._file_units
        if start is not None:
            number = max(0, self._number_at(start))
        elif self._found[0] == starts and next(self._units_from(self._found[1], 1), None) is not None:
            number = self._found[1]
        end = start or 0
        for units in self._units_from(number, 1):
            end = max(end, int(units[-1]["base_offset"]) + int(units[-1]["message_count"]))
            number += len(units)
        if start is None:
            self._found = starts, max(0, number - 1)
        return end

    def data_end(self, start: int) -> int:
        return start

    @property
    def _file_units(self) -> int:
        return self.file_size_bytes // BATCH_UNIT_SIZE

    def _units_from(self, number: int, first_count: int = _BLOCK_UNITS) -> Iterator[np.ndarray]:
        """The written units from a number on, which counts from the first file, up to the first that is not written; no empty array.

        A few at first, then more at a time.
        """
        most = first_count
        for row in range(number // max(1, self._file_units), len(self.file_starts)):
            start, at = self.file_starts[row], max(0, number - row * self._file_units)
            while at < self._file_units:
                count = min(most, self._file_units - at)
                units = self._read(start, at * BATCH_UNIT_SIZE, count * BATCH_UNIT_SIZE).view(BATCH_UNIT)
                at, most = at + count, min(16 * most, _BLOCK_UNITS)
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
