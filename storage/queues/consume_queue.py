"""One consume queue for reading: entries by queue offset, where it ends, where it begins.

Java: ConsumeQueue. Entries are only claims: there are stale ones after a truncated log's end, and pre-blank ones before a queue's
first message. `valid_entries` compares them with the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from storage.errors import OffsetOutOfRangeError, StoreRefusedError
from storage.files.file_system import FileSystem, ReadableFile, end_of_data
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries, hole_start, is_entry, is_pre_blank
from storage.format.record import Message
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog

_BLOCK_ENTRIES = 4096


class QueueFiles(NamedTuple):
    """The files of one queue, which have one size."""

    starts: list[int]
    """Byte positions in the queue at which its files begin, ascending."""
    size_bytes: int


class ConsumeQueue:
    """The files of one queue. Holds no end of its own: entries are looked up each time."""

    unit_size_bytes = ENTRY_SIZE
    refuses_batches = False
    """Whether a record that holds several messages may lie here and cannot be read (`refuse_batches`)."""

    def __init__(
        self, file_system: FileSystem, directory: str, topic: str, queue_id: int, file_size_bytes: int | None = None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self._file_system = file_system
        self._configured_size = file_size_bytes
        self._open_files: dict[int, ReadableFile] = {}
        self._listed: QueueFiles | None = None

    def list_files(self) -> QueueFiles:
        """List the files again. The first listing happens at the first use, as a store may have very many queues.

        Raises StoreRefusedError for files on which a broker does not start.
        """
        found = [
            entry
            for entry in self._file_system.list_directory(self.directory)
            if not entry.is_directory and entry.size_bytes
        ]
        size = self._configured_size or (found[0].size_bytes if found else 0)
        for entry in found:
            is_number = entry.name.isascii() and entry.name.isdigit()
            if not is_number or entry.size_bytes != size or entry.size_bytes % self.unit_size_bytes:
                raise StoreRefusedError(
                    self.directory,
                    f"{entry.name} with {entry.size_bytes} bytes is not a consume queue file of {size} bytes",
                    hint="a real broker does not start on such a store either; give the right broker.conf",
                )
        self._listed = QueueFiles(sorted(int(entry.name) for entry in found), size)
        return self._listed

    @property
    def _files(self) -> QueueFiles:
        return self._listed or self.list_files()

    @property
    def _starts(self) -> list[int]:
        return (self._listed or self.list_files()).starts

    @property
    def file_size_bytes(self) -> int:
        """Bytes of each file; 0 if there is none and none was configured."""
        return self._files.size_bytes

    @property
    def first_file_offset(self) -> int:
        """The queue offset at which the first file begins."""
        return self._starts[0] // ENTRY_SIZE if self._starts else 0

    @property
    def last_file_end_offset(self) -> int:
        """The queue offset at which the last file ends."""
        starts, size_bytes = self._files
        return (starts[-1] + size_bytes) // ENTRY_SIZE if starts else 0

    def path_of(self, file_start: int) -> str:
        return f"{self.directory}/{file_start:020d}"

    @property
    def file_starts(self) -> tuple[int, ...]:
        """Byte positions in the queue at which its files begin."""
        return tuple(self._starts)

    def entries(self, start: int, end: int) -> np.ndarray:
        """The bytes at queue offsets [start, end), written or not; zeros where no file was at the last listing.

        Raises OffsetOutOfRangeError if a file expired since.
        """
        if start < end and len(whole := self.bytes_from(start, end - start)) == (end - start) * ENTRY_SIZE:
            return decode_entries(whole)
        result = np.zeros(max(0, end - start), ENTRY)
        first = max(0, bisect_right(self._starts, start * ENTRY_SIZE) - 1)
        for file_start in self._starts[first : bisect_right(self._starts, max(0, end * ENTRY_SIZE - 1))]:
            at = max(start, file_start // ENTRY_SIZE)
            found = self.bytes_from(at, end - at)
            result[at - start : at - start + len(found) // ENTRY_SIZE] = decode_entries(found)
        return result

    def sizes(self, start: int, end: int) -> np.ndarray:
        """Bytes of the records at queue offsets [start, end), as entries say; 0 where none is."""
        entries = self.entries(start, end)
        return np.where(_is_message(entries), entries["size_bytes"], 0).astype(np.int64)

    def message_at(self, queue_offset: int, log: CommitLog, log_end: int, place: int | None = None) -> Message:
        """The message that the entry at a queue offset leads to, whether or not it is the queue's.

        `place` is the log offset that the entry names, where the caller has read it.
        Raises OffsetOutOfRangeError outside the validated log, CorruptRecordError where no record begins.
        """
        if place is None:
            place = int(self.entries(queue_offset, queue_offset + 1)[0]["commitlog_offset"])
        return log.message_at(place, log_end)

    def reading(self, log: CommitLog, log_end: int) -> Callable[[int, int], Message]:
        """`message_at` for several messages of one look: from the queue offset and the place in its entry."""
        return lambda queue_offset, place: self.message_at(queue_offset, log, log_end, place)

    def last_place(self, file_start: int) -> int:
        """The log offset that the last entry of a full file points to."""
        end = (file_start + self.file_size_bytes) // self.unit_size_bytes
        return int(self.entries(end - 1, end)["commitlog_offset"][0])

    def border(self, log: CommitLog, end: int) -> int:
        """The first queue offset whose message the store's own log holds, where tiered storage may have those before it; else 0."""
        return 0

    def refuse_batches(self, records: Records) -> None:
        """Raises StoreRefusedError for records of several messages, where `refuses_batches`."""

    def held_minimum(self, minimum: int) -> int:
        """The first queue offset that can be read, where `minimum` is the first that the log holds."""
        return minimum

    def last_message_end(self, start: int, end: int) -> tuple[int, int] | None:
        """The last offset in [start, end) with a message's entry, and the log offset where the message ends; None if there is none.

        Does not read the log.
        """
        entries = self.entries(start, end)
        rows = np.flatnonzero(_is_message(entries))
        if not len(rows):
            return None
        last = entries[rows[-1]]
        return start + int(rows[-1]), int(last["commitlog_offset"]) + int(last["size_bytes"])

    def blocks(self, start: int, end: int) -> Iterator[np.ndarray]:
        """`entries`, a few thousand at a time."""
        return (self.entries(at, min(end, at + _BLOCK_ENTRIES)) for at in range(start, end, _BLOCK_ENTRIES))

    def bytes_from(self, start: int, count: int) -> bytes:
        """The bytes of up to `count` entries from `start` on, from one file; fewer at its end, none without a file."""
        starts, size_bytes = self._files
        number = bisect_right(starts, start * ENTRY_SIZE) - 1
        if number < 0:
            return b""
        file_start = starts[number]
        position = start * ENTRY_SIZE - file_start
        length = min(count * ENTRY_SIZE, size_bytes - position)
        return self._read(file_start, position, length).tobytes() if length > 0 else b""

    def _read(self, file_start: int, position: int, length: int) -> np.ndarray:
        try:
            opened = self._open_files.get(file_start)
            if opened is None:
                opened = self._file_system.open_small_reads(self.path_of(file_start))
                self._open_files[file_start] = opened
            return opened.view(position, length)
        except FileNotFoundError as error:
            raise self._expired(file_start) from error

    def _expired(self, file_start: int) -> OffsetOutOfRangeError:
        """The error for a file that is gone since it was listed."""
        start, end = file_start // ENTRY_SIZE, (file_start + self.file_size_bytes) // ENTRY_SIZE
        return OffsetOutOfRangeError(self.topic, self.queue_id, end, self.last_file_end_offset, start)

    @property
    def recovery_start(self) -> int:
        """The queue offset from which the end is searched: the third file before the last, as in Java (ConsumeQueue.recover).

        A hole further back is not found.
        """
        starts = self._starts
        return starts[-3:][0] // ENTRY_SIZE if starts else 0

    def written_end(self, start: int | None = None) -> int:
        """The first queue offset from `start` on without an entry; `start` None = `recovery_start`."""
        if not self._starts:
            return 0
        at = self.recovery_start if start is None else start
        end, block_size = self.last_file_end_offset, 64
        while at < end:
            block = self.entries(at, min(end, at + block_size))
            free = np.flatnonzero(~is_entry(block))
            if len(free):
                return at + int(free[0])
            at, block_size = at + len(block), min(4 * block_size, _BLOCK_ENTRIES)
        return end

    def data_end(self, start: int) -> int:
        """The queue offset after the last nonzero byte from `start` on; `start` if all are zero.

        There is data after a queue's end if an entry inside it is wrong or lost, or if a power loss or Java's cut left data.
        """
        for file_start in reversed(self._starts):
            position = max(0, start * ENTRY_SIZE - file_start)
            if position >= self.file_size_bytes:
                break
            last = end_of_data(self._file_system.open_small_reads(self.path_of(file_start)), position)
            if last > position:
                return -(-(file_start + last) // ENTRY_SIZE)
        return start

    def greatest_end(self, end: int) -> int:
        """Log offset where the record of the last entry before `end` ends; −1 for a queue without messages."""
        if end <= self.first_file_offset:
            return -1
        last = self.entries(end - 1, end)
        if is_pre_blank(last)[0]:  # Java takes its size for a message's, and then never enters anything below 2 GiB
            return -1
        return int(last["commitlog_offset"][0]) + int(last["size_bytes"][0])

    def first_offset_at(self, commitlog_offset: int, end: int) -> int:
        """The first queue offset before `end` whose entry points at or after a log offset; `end` if none does.

        Entries ascend. Fillers (before the first message or in a hole) point nowhere and are skipped: the nearest message before them
        counts. Java: ConsumeQueue.correctMinOffset, which takes a filler for an entry at log offset 0 and so loses the messages before
        a hole.
        """
        low, high = self.first_file_offset, end
        if high - low > _BLOCK_ENTRIES and self._is_message_at(low, commitlog_offset):
            return low
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            found = self._last_message(low, middle)
            if found is None or found[1] < commitlog_offset:
                low = middle + 1
            else:
                high = found[0]
        reaches = _is_message(block := self.entries(low, high)) & (block["commitlog_offset"] >= commitlog_offset)
        return low + int(np.argmax(reaches)) if reaches.any() else high

    def _is_message_at(self, queue_offset: int, commitlog_offset: int) -> bool:
        entry = self.entries(queue_offset, queue_offset + 1)
        return bool(_is_message(entry)[0] and entry["commitlog_offset"][0] >= commitlog_offset)

    def _last_message(self, low: int, at: int) -> tuple[int, int] | None:
        """Queue offset and log offset of the last message among the entries `low` to `at`; None if there is none.

        A filler says where its hole begins. A filler that does not was written by a broker before the queue's first message, or by an
        earlier version in a hole: a message precedes it if the queue's first entry is one, or if the filler is in a later file. Then
        the message is searched block by block.
        """
        while at >= low:
            entry = self.entries(at, at + 1)
            if _is_message(entry)[0]:
                return at, int(entry["commitlog_offset"][0])
            if is_pre_blank(entry)[0] and (start := hole_start(entry[0])):
                at = min(start, at) - 1
                continue
            if is_pre_blank(entry)[0] and self._is_before_first_message(at):
                return None
            start = max(low, at + 1 - _BLOCK_ENTRIES)
            rows = np.flatnonzero(_is_message(block := self.entries(start, at + 1)))
            if len(rows):
                return start + int(rows[-1]), int(block["commitlog_offset"][rows[-1]])
            at = start - 1
        return None

    def _is_before_first_message(self, filler: int) -> bool:
        """Java's rule: a filler before the first message is in the queue's first file (ConsumeQueue.fillPreBlank)."""
        first = self.first_file_offset
        is_in_first_file = filler * ENTRY_SIZE < self._starts[0] + self.file_size_bytes
        return is_in_first_file and bool(is_pre_blank(self.entries(first, first + 1))[0])

    def visible_end(self, end: int, log: CommitLog, log_end: int) -> int:
        """How many of the entries before `end` are messages of the validated log: `end` without its stale tail.

        Entries beyond the log's end are dropped first; then, from the back, those whose record is another's. If the last entry is valid
        there is no stale tail, and a wrong entry before it hides none of the others.
        """
        if end > self.first_file_offset:
            last = self.entries(end - 1, end)
            if valid_entries(last, self.topic, self.queue_id, log, log_end)[0]:
                return end
        end, block_size = self.first_offset_at(log_end, end), 16
        while end > self.first_file_offset:
            start = max(self.first_file_offset, end - block_size)
            entries = self.entries(start, end)
            sound = valid_entries(entries, self.topic, self.queue_id, log, log_end) | is_pre_blank(entries)
            sound |= entries["commitlog_offset"] < log.minimum
            if sound.any():
                return start + int(np.flatnonzero(sound)[-1]) + 1
            end, block_size = start, min(4 * block_size, _BLOCK_ENTRIES)
        return end

    def close(self) -> None:
        for opened in self._open_files.values():
            opened.close()
        self._open_files.clear()


def _is_message(entries: np.ndarray) -> np.ndarray:
    """Which entries claim to point to a message."""
    return np.asarray(is_entry(entries) & ~is_pre_blank(entries))


def valid_entries(entries: np.ndarray, topic: str, queue_id: int, log: CommitLog, log_end: int) -> np.ndarray:
    """Which entries may be served: inside the validated log, with a record that agrees in size, place, topic and queue id."""
    offsets = entries["commitlog_offset"].astype(np.int64)
    sizes = entries["size_bytes"].astype(np.int64)
    valid = is_entry(entries) & ~is_pre_blank(entries) & (offsets >= log.minimum) & (offsets + sizes <= log_end)
    rows = np.flatnonzero(valid)
    valid[rows] = False
    rows = rows[np.argsort(offsets[rows], kind="stable")]
    for part, records in log.records(offsets[rows], sizes[rows]):
        valid[rows[part]] = records.agree(offsets[rows[part]], sizes[rows[part]], topic.encode(), queue_id)
    return valid
