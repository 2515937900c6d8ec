"""A queue whose old messages have moved into a directory of tiered storage. Java: PosixFileSegment, FlatMessageFile, FlatAppendFile.

    DIRECTORY/TOPIC/QUEUE/CONSUME_QUEUE/9e984c1000000000000000001600    entries of 20 bytes, as in a consume queue
                          COMMIT_LOG/cfcd208400000000000000000000       records of this queue alone, one behind the other

A file's name ends in the place of its first byte, in 20 digits, behind eight of a hash. Entries and records name places in the queue's
own log, not in the commit log that the records came from (CommitLogInputStream): so does a broker's consumer see them.

The broker copies messages there while they still lie in the store. So they are read here only where the store's log has them no more.
Each queue offset in between has its message there, so one without is an error. Reads only.
"""

from __future__ import annotations

import hashlib
import posixpath
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from storage.errors import CorruptRecordError, MovedMessagesMissingError, OffsetOutOfRangeError
from storage.files.file_system import FileSystem
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries
from storage.format.record import MINIMUM_RECORD_SIZE, Message, decode_record
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue, QueueFiles

_PLACE_DIGITS = 20
_SLICE_BYTES = 12 << 20
_SLICE_ROWS = 8_192


class MovedSlice(NamedTuple):
    """Records of a queue in its order, with their queue offsets."""

    queue_offsets: np.ndarray
    records: Records


class _Segments(NamedTuple):
    directory: str
    starts: list[int]
    sizes: list[int]
    paths: list[str]

    @property
    def end(self) -> int:
        return self.starts[-1] + self.sizes[-1] if self.starts else 0

    def path_of(self, place: int) -> str:
        """The file in which that place lies; where there is none, the name it has in a complete directory."""
        number = bisect_right(self.starts, place) - 1
        start = self.starts[number] + self.sizes[number] if number >= 0 else 0
        if place < start:
            return self.paths[number]
        digest = hashlib.md5(str(start).encode(), usedforsecurity=False).hexdigest()
        return f"{self.directory}/{digest[:8]}{start:0{_PLACE_DIGITS}d}"


class _Listing(NamedTuple):
    queue: _Segments
    log: _Segments


class MovedMessages:
    """The files of one queue in tiered storage."""

    def __init__(self, file_system: FileSystem, directory: str, topic: str, queue_id: int) -> None:
        self.directory = f"{directory}/{topic}/{queue_id}"
        self._file_system = file_system
        self._topic = topic
        self._queue_id = queue_id

    @cached_property
    def _listing(self) -> _Listing:
        """At the first use, as a store may have very many queues."""
        return _Listing(self._segments("CONSUME_QUEUE"), self._segments("COMMIT_LOG"))

    def list_files(self) -> None:
        """List the files again when they are needed: they grow, and expire."""
        for listed in ("_listing", "minimum"):
            self.__dict__.pop(listed, None)

    def _segments(self, kind: str) -> _Segments:
        directory = f"{self.directory}/{kind}"
        found = sorted(
            (int(entry.name[-_PLACE_DIGITS:]), entry.size_bytes, f"{directory}/{entry.name}")
            for entry in self._file_system.list_directory(directory)
            if not entry.is_directory and entry.name[-_PLACE_DIGITS:].isdigit() and entry.size_bytes
        )
        columns = [list(column) for column in zip(*found, strict=True)] if found else ([], [], [])
        return _Segments(directory, *columns)

    @cached_property
    def minimum(self) -> int:
        """The first queue offset that is there; the end if none is. Java: getConsumeQueueMinOffset."""
        queue, log = self._listing
        if not queue.starts or not log.starts:
            return self.end
        first, end = queue.starts[0] // ENTRY_SIZE, self.end
        while first < end:  # the log's files expire apart from the queue's
            middle = (first + end) // 2
            entry = self.entries(middle, middle + 1)[0]
            if entry["size_bytes"] and int(entry["commitlog_offset"]) < log.starts[0]:
                first = middle + 1
            else:
                end = middle
        return first

    @property
    def end(self) -> int:
        return self._listing.queue.end // ENTRY_SIZE

    def entries(self, start: int, end: int) -> np.ndarray:
        """The entries at queue offsets [start, end), whose places are those in the queue's own log; zeros where there is none."""
        result = np.zeros(max(0, end - start), ENTRY)
        _, starts, sizes, paths = self._listing.queue
        first = max(0, bisect_right(starts, start * ENTRY_SIZE) - 1)
        for base, size, path in list(zip(starts, sizes, paths, strict=True))[first:]:
            at, stop = max(start, base // ENTRY_SIZE), min(end, (base + size) // ENTRY_SIZE)
            if base // ENTRY_SIZE >= end:
                break
            if at < stop:
                data = self._read(path, at * ENTRY_SIZE - base, (stop - at) * ENTRY_SIZE, at)
                result[at - start : stop - start] = decode_entries(data)
        return result

    def slices(self, start: int, end: int) -> Iterator[MovedSlice]:
        """The messages at queue offsets [start, end), checked as those of a log are.

        Raises MovedMessagesMissingError behind the messages before one that is not there.
        """
        at = start
        while at < end:
            entries = self.entries(at, min(end, at + _SLICE_ROWS))
            sizes = entries["size_bytes"].astype(np.int64)
            count = max(1, int(np.searchsorted(np.cumsum(sizes), _SLICE_BYTES, side="right")))
            places, sizes = entries["commitlog_offset"].astype(np.int64)[:count], sizes[:count]
            offsets = np.arange(at, at + len(places))
            at += len(places)
            log = self._listing.log
            numbers = np.searchsorted(log.starts, places, side="right") - 1
            ends = np.add(log.starts, log.sizes)[numbers] if log.starts else np.zeros(len(places), np.int64)
            found = (sizes >= MINIMUM_RECORD_SIZE) & (numbers >= 0) & (places + sizes <= ends)
            sound = len(found) if found.all() else int(np.argmin(found))
            for number in np.unique(numbers[:sound]).tolist():
                rows = np.flatnonzero(numbers[:sound] == number)
                yield from self._of_file(number, offsets[rows], places[rows], sizes[rows])
            if sound < len(found):
                raise self._missing(offsets, places, sizes, found)

    def _of_file(self, number: int, offsets: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> Iterator[MovedSlice]:
        log = self._listing.log
        first, last = int(places.min()), int((places + sizes).max())
        data = self._read(log.paths[number], first - log.starts[number], last - first, int(offsets[0]))
        records = Records(data, places - first)
        agrees = records.agree(places, sizes, self._topic.encode(), self._queue_id)
        agrees &= records.column("queue_offset") == offsets
        sound = len(agrees) if agrees.all() else int(np.argmin(agrees))
        if sound:
            yield MovedSlice(offsets[:sound], records.take(slice(sound)))
        if sound < len(agrees):
            raise self._missing(offsets, places, sizes, agrees)

    def _missing(
        self, offsets: np.ndarray, places: np.ndarray, sizes: np.ndarray, found: np.ndarray
    ) -> MovedMessagesMissingError:
        """The error for the first run of messages that are not `found`."""
        first = int(np.argmin(found))
        end = first + int(np.argmax(found[first:])) if found[first:].any() else len(found)
        has_entry = int(sizes[first]) >= MINIMUM_RECORD_SIZE
        queue, log = self._listing
        file = log.path_of(int(places[first])) if has_entry else queue.path_of(int(offsets[first]) * ENTRY_SIZE)
        asked, behind = int(offsets[first]), int(offsets[end - 1]) + 1
        return MovedMessagesMissingError(self._topic, self._queue_id, behind, self.end, asked, file)

    def message_at(self, queue_offset: int) -> Message:
        """Raises MovedMessagesMissingError, CorruptRecordError."""
        for part in self.slices(queue_offset, queue_offset + 1):
            for message in _messages(part.records):
                return message
        raise CorruptRecordError("record", 0, f"the message of offset {queue_offset}", "none", file=self.directory)

    def having(self, text: str, start: int, end: int) -> Iterator[Message]:
        """The messages at queue offsets [start, end) whose properties, names and values, contain the text."""
        for part in self.slices(start, end):
            rows = pc.match_substring(part.records.raw_properties(), text.encode()).to_numpy(zero_copy_only=False)
            yield from _messages(part.records.take(rows))

    def store_time_at(self, queue_offset: int) -> int:
        times = [int(part.records.column("store_time_ms")[0]) for part in self.slices(queue_offset, queue_offset + 1)]
        return times[0]

    def _read(self, path: str, position: int, length: int, queue_offset: int) -> np.ndarray:
        try:
            opened = self._file_system.open_small_reads(path)
            try:
                return opened.view(position, length).copy()
            finally:
                opened.close()
        except FileNotFoundError as error:  # it has expired since it was listed
            directory = posixpath.dirname(posixpath.dirname(self.directory))
            now = MovedMessages(self._file_system, directory, self._topic, self._queue_id)
            raise OffsetOutOfRangeError(self._topic, self._queue_id, now.minimum, now.end, queue_offset) from error


def _messages(records: Records) -> Iterator[Message]:
    sizes = records.column("size_bytes").tolist()
    for start, size in zip(records.positions.tolist(), sizes, strict=True):
        found = decode_record(records.buffer[start : start + size].tobytes())
        if isinstance(found, Message):
            yield found


class TieredConsumeQueue(ConsumeQueue):
    """A consume queue that goes on before its own first file where tiered storage does. Entries from there name places before the log's
    first file, where nothing is read.

    A broker deletes a queue when all its messages have left the log (ConsumeQueueStore.cleanExpired): all of it has moved then.
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
    def _own_first(self) -> int:
        """Where its own files begin; without one, behind what has moved."""
        return super().first_file_offset if self._starts else self.moved.end

    @property
    def first_file_offset(self) -> int:
        own, moved = self._own_first, self.moved.minimum
        return moved if moved < own <= self.moved.end else own

    @property
    def last_file_end_offset(self) -> int:
        return super().last_file_end_offset if self._starts else self.moved.end

    @property
    def recovery_start(self) -> int:
        return super().recovery_start if self._starts else self.moved.end

    def written_end(self, start: int | None = None) -> int:
        return super().written_end(start) if self._starts else self.moved.end

    def entries(self, start: int, end: int) -> np.ndarray:
        own = self._own_first
        if start >= own:
            return super().entries(start, end)
        border = max(start, min(own, end))
        return np.concatenate((self.moved.entries(start, border), super().entries(border, end)))

    def bytes_from(self, start: int, count: int) -> bytes:
        own = self._own_first
        return (
            super().bytes_from(start, count) if start >= own else self.entries(start, min(own, start + count)).tobytes()
        )

    def list_files(self) -> QueueFiles:
        self.moved.list_files()
        return super().list_files()

    def border(self, log: CommitLog, end: int) -> int:
        if not self._starts:
            return min(end, self.moved.end)
        return super().first_offset_at(log.minimum, end) if self.moved.end else 0

    def held_minimum(self, minimum: int) -> int:
        self.moved.list_files()  # what has just expired from the log was moved before
        moved = self.moved.minimum
        return moved if moved < minimum <= self.moved.end else minimum

    def message_at(self, queue_offset: int, log: CommitLog, log_end: int, place: int | None = None) -> Message:
        if queue_offset < self.border(log, queue_offset + 1):
            return self.moved.message_at(queue_offset)
        return super().message_at(queue_offset, log, log_end, place)

    def offset_by_time(self, bounds: tuple[int, int], timestamp_ms: int, *, upper: bool) -> int | None:
        """The offset by time (`store.offset_by_time`) within bounds that lie in tiered storage; None if a later offset may be."""
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
