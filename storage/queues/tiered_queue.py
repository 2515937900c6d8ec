"""A queue whose old messages have moved into a directory of tiered storage. Java: PosixFileSegment, FlatMessageFile, FlatAppendFile.

    DIRECTORY/TOPIC/QUEUE/CONSUME_QUEUE/9e984c1000000000000000001600    entries of 20 bytes, as in a consume queue
                          COMMIT_LOG/cfcd208400000000000000000000       records of this queue alone, one behind the other

A file's name ends in the place of its first byte, in 20 digits, behind eight of a hash. Entries and records name places in the queue's
own log, not in the commit log that the records came from (CommitLogInputStream): so does a broker's consumer see them.

The broker copies messages there while they still lie in the store. So they are read here only where the store's log has them no more.
Reads only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.files.file_system import FileSystem
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries
from storage.format.record import MINIMUM_RECORD_SIZE, Message, decode_record
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue

_PLACE_DIGITS = 20
_SLICE_BYTES = 12 << 20
_SLICE_ROWS = 8_192


class MovedSlice(NamedTuple):
    """Records of a queue in its order, with their queue offsets."""

    queue_offsets: np.ndarray
    records: Records


class _Segments(NamedTuple):
    starts: list[int]
    sizes: list[int]
    paths: list[str]

    @property
    def end(self) -> int:
        return self.starts[-1] + self.sizes[-1] if self.starts else 0


class MovedMessages:
    """The files of one queue in tiered storage."""

    def __init__(self, file_system: FileSystem, directory: str, topic: str, queue_id: int) -> None:
        self.directory = f"{directory}/{topic}/{queue_id}"
        self._file_system = file_system
        self._topic = topic
        self._queue_id = queue_id
        self.list_files()

    def list_files(self) -> None:
        """List the files again: they grow, and expire."""
        self._queue, self._log = self._segments("CONSUME_QUEUE"), self._segments("COMMIT_LOG")

    def _segments(self, kind: str) -> _Segments:
        found = sorted(
            (int(entry.name[-_PLACE_DIGITS:]), entry.size_bytes, f"{self.directory}/{kind}/{entry.name}")
            for entry in self._file_system.list_directory(f"{self.directory}/{kind}")
            if not entry.is_directory and entry.name[-_PLACE_DIGITS:].isdigit() and entry.size_bytes
        )
        return _Segments(*([list(column) for column in zip(*found, strict=True)] if found else ([], [], [])))

    @property
    def minimum(self) -> int:
        """The first queue offset that is there; the end if none is. Java: getConsumeQueueMinOffset."""
        if not self._queue.starts or not self._log.starts:
            return self.end
        first, end = self._queue.starts[0] // ENTRY_SIZE, self.end
        while first < end:  # the log's files expire apart from the queue's
            middle = (first + end) // 2
            if int(self.entries(middle, middle + 1)["commitlog_offset"][0]) < self._log.starts[0]:
                first = middle + 1
            else:
                end = middle
        return first

    @property
    def end(self) -> int:
        return self._queue.end // ENTRY_SIZE

    def entries(self, start: int, end: int) -> np.ndarray:
        """The entries at queue offsets [start, end), whose places are those in the queue's own log; zeros where there is none."""
        result = np.zeros(max(0, end - start), ENTRY)
        first = max(0, bisect_right(self._queue.starts, start * ENTRY_SIZE) - 1)
        for base, size, path in list(zip(*self._queue, strict=True))[first:]:
            at, stop = max(start, base // ENTRY_SIZE), min(end, (base + size) // ENTRY_SIZE)
            if base // ENTRY_SIZE >= end:
                break
            if at < stop:
                data = self._read(path, at * ENTRY_SIZE - base, (stop - at) * ENTRY_SIZE)
                result[at - start : stop - start] = decode_entries(data)
        return result

    def slices(self, start: int, end: int) -> Iterator[MovedSlice]:
        """The messages at queue offsets [start, end) that are there, checked as those of a log are."""
        at = start
        while at < end:
            entries = self.entries(at, min(end, at + _SLICE_ROWS))
            sizes = entries["size_bytes"].astype(np.int64)
            count = max(1, int(np.searchsorted(np.cumsum(sizes), _SLICE_BYTES, side="right")))
            places, sizes = entries["commitlog_offset"].astype(np.int64)[:count], sizes[:count]
            offsets = np.arange(at, at + len(places))
            at += len(places)
            files = np.searchsorted(self._log.starts, places, side="right") - 1
            for number in np.unique(files[(files >= 0) & (sizes >= MINIMUM_RECORD_SIZE)]).tolist():
                rows = np.flatnonzero((files == number) & (sizes >= MINIMUM_RECORD_SIZE))
                yield from self._of_file(number, offsets[rows], places[rows], sizes[rows])

    def _of_file(self, number: int, offsets: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> Iterator[MovedSlice]:
        base, size, path = self._log.starts[number], self._log.sizes[number], self._log.paths[number]
        inside = places + sizes <= base + size
        offsets, places, sizes = offsets[inside], places[inside], sizes[inside]
        if not len(places):
            return
        first, last = int(places.min()), int((places + sizes).max())
        records = Records(self._read(path, first - base, last - first), places - first)
        agrees = records.agree(places, sizes, self._topic.encode(), self._queue_id)
        agrees &= records.column("queue_offset") == offsets
        if agrees.any():
            yield MovedSlice(offsets[agrees], records.take(agrees))

    def message_at(self, queue_offset: int) -> Message:
        """Raises CorruptRecordError where no record of that offset is."""
        for part in self.slices(queue_offset, queue_offset + 1):
            size = int(part.records.column("size_bytes")[0])
            start = int(part.records.positions[0])
            found = decode_record(part.records.buffer[start : start + size].tobytes())
            if isinstance(found, Message):
                return found
        raise CorruptRecordError("record", 0, f"the message of offset {queue_offset}", "none", file=self.directory)

    def store_time_at(self, queue_offset: int) -> int:
        """−1 where no message is."""
        times = [int(part.records.column("store_time_ms")[0]) for part in self.slices(queue_offset, queue_offset + 1)]
        return times[0] if times else -1

    def _read(self, path: str, position: int, length: int) -> np.ndarray:
        try:
            opened = self._file_system.open_small_reads(path)
            try:
                return opened.view(position, length).copy()
            finally:
                opened.close()
        except FileNotFoundError as error:
            self.list_files()
            raise OffsetOutOfRangeError(self._topic, self._queue_id, self.minimum, self.end, 0) from error


class TieredConsumeQueue(ConsumeQueue):
    """A consume queue that goes on before its own first file where tiered storage does. Entries from there name places before the log's
    first file, where nothing is read.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        topic: str,
        queue_id: int,
        file_size_bytes: int | None,
        moved: MovedMessages,
    ) -> None:
        super().__init__(file_system, directory, topic, queue_id, file_size_bytes)
        self.moved = moved

    @property
    def first_file_offset(self) -> int:
        own, moved = super().first_file_offset, self.moved.minimum
        return moved if moved < own <= self.moved.end else own

    def entries(self, start: int, end: int) -> np.ndarray:
        own = super().first_file_offset
        if start >= own:
            return super().entries(start, end)
        border = max(start, min(own, end))
        return np.concatenate((self.moved.entries(start, border), super().entries(border, end)))

    def bytes_from(self, start: int, count: int) -> bytes:
        own = super().first_file_offset
        return (
            super().bytes_from(start, count) if start >= own else self.entries(start, min(own, start + count)).tobytes()
        )

    def border(self, log: CommitLog, end: int) -> int:
        """The first queue offset whose message the store's own log holds."""
        return super().first_offset_at(log.minimum, end)

    def held_minimum(self, minimum: int) -> int:
        moved = self.moved.minimum
        return moved if moved < minimum <= self.moved.end else minimum

    def message_at(self, queue_offset: int, log: CommitLog, log_end: int) -> Message:
        if queue_offset < self.border(log, queue_offset + 1):
            return self.moved.message_at(queue_offset)
        return super().message_at(queue_offset, log, log_end)

    def offset_by_time(self, bounds: tuple[int, int], timestamp_ms: int, *, upper: bool) -> int | None:
        """The offset by time (`positions.offset_by_time`) within bounds that lie in tiered storage; None if a later offset may be."""
        low, high = bounds
        newest = self.moved.store_time_at(high - 1)
        if newest < timestamp_ms or (upper and newest == timestamp_ms):
            return None
        first = low
        while low < high:
            middle = (low + high) // 2
            time_ms = self.moved.store_time_at(middle)
            if time_ms < timestamp_ms or (upper and time_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1) if upper else low
