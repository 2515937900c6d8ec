"""Reads for a broker's clients, of a store that this process writes: records as bytes, ends, times, keys.

    entries ─▶ filter by tags code or bit map ─▶ which the log still holds ─▶ where the pull is full ─▶ rows to read

It has files of its own, so no read waits for a put; the writer provides the ends of queues and log (`DispatchedEnds`). Pure functions
over arrays decide which entries a pull takes. A pull is full before an entry if its count, or the bytes including that entry, would
exceed the limits; they are lower for an entry that has probably left the page cache. It is never full before its first message.
Filtered entries count as looked at.
Java: DefaultMessageStore.getMessage, getMinOffsetInQueue, getOffsetInQueueByTime, getMessageStoreTimeStamp, queryMessage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from storage.dispatch.queue_ends import DispatchedEnds
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.arrays import index_key_hash, view_at
from storage.format.bloom_filter import BitTest
from storage.format.consume_queue import ENTRY_SIZE, decode_entries, is_ext_address, is_pre_blank
from storage.format.keys import index_key
from storage.format.record import (
    BORN_HOST_V6,
    HEADERS,
    MINIMUM_RECORD_SIZE,
    STORE_TIME_POSITION,
    SYS_FLAG_POSITION,
    Message,
)
from storage.format.record_batch import Records
from storage.index.store import messages_with_key
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.ext import ExtUnit
from storage.queues.get import GetStatus
from storage.queues.store import ConsumeQueueStore, QueuePosition, offset_by_time, read_positions
from storage.store import MessageStore

_T = TypeVar("_T")
_LOOKS = 20
_PLACES_TOGETHER = 64
"""Store times that are read before other reads have their turn."""
_HEADER = HEADERS[0]


_MOST_BYTES = 128 << 20
"""Java: DefaultMessageStore.MAX_PULL_MSG_SIZE."""
_INT_BITS = 32


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """The most that one pull gets. Java: MessageStoreConfig.maxTransfer…, maxFilterMessageSize, accessMessageInMemoryMaxRatio."""

    memory_bytes: int
    """Records this close to the log's end count as in memory."""
    in_memory_count: int = 32
    in_memory_bytes: int = 262_144
    on_disk_count: int = 8
    on_disk_bytes: int = 65_536
    filter_bytes: int = 16_000
    """Bytes of queue entries that one pull looks at, unless it requests more messages than these."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages a pull wants: by the entry's tags code, by its unit's bit map, then by the record's encoded properties;
    None = all.
    """

    tags_codes: frozenset[int] | None = None
    bits: BitTest | None = None
    accepts: Callable[[bytes], bool] | None = None


ALL_MESSAGES = MessageFilter()


class RawGet(NamedTuple):
    """The result of a pull. `body` holds the records as they are in the log, concatenated."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    message_count: int = 0
    is_behind: bool = False
    """Whether the last entry looked at is so far before the log's end that the client should use a slave."""
    last_store_time_ms: int = 0
    """Store time of the last record found."""
    behind_bytes: int | None = None
    """Distance of the last entry looked at from the log's end; None if there was none."""


class LogSpan(NamedTuple):
    """The readable part of the log, the end of its written part, and the size of its files."""

    minimum: int
    end: int
    written_end: int
    file_size_bytes: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """The entries that a pull looks at, from its offset on."""

    places: np.ndarray
    sizes: np.ndarray
    passes: np.ndarray
    """Which pass the filter by their tags codes and bit maps."""
    is_gone: np.ndarray
    """Which name a message that has expired from the log."""
    is_there: np.ndarray
    """Which name a message of the log; the others are fillers."""


def entries_looked_at(max_messages: int, limits: TransferLimits) -> int:
    """The most entries that a pull looks at. The product wraps like Java's int."""
    product = (max_messages * ENTRY_SIZE + (1 << _INT_BITS - 1)) % (1 << _INT_BITS) - (1 << _INT_BITS - 1)
    return -(-max(limits.filter_bytes, product) // ENTRY_SIZE)


def candidates(
    entries: np.ndarray,
    tags_codes: np.ndarray,
    wanted: frozenset[int] | None,
    span: LogSpan,
    by_bits: np.ndarray | None = None,
) -> Candidates:
    """Entries as the pull sees them. `tags_codes` are theirs, read through extension units; Java compares their lower 32 bits.

    `by_bits` are those that pass by the bit maps of these units.
    """
    places, sizes = entries["commitlog_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
    passes = pass_by_entry(tags_codes, wanted, by_bits)
    is_message = ~is_pre_blank(entries) & (sizes > 0)
    is_there = is_message & (places >= span.minimum) & (places + sizes <= span.end)
    return Candidates(places, sizes, passes, is_message & ~is_there, is_there)


def pass_by_entry(tags_codes: np.ndarray, wanted: frozenset[int] | None, by_bits: np.ndarray | None) -> np.ndarray:
    """Which entries pass a filter by their tags codes and bit maps. Java: MessageFilter.isMatchedByConsumeQueue."""
    if wanted is None:
        return np.ones(len(tags_codes), bool) if by_bits is None else by_bits
    return np.isin(tags_codes.astype(np.int32), list(wanted))


def stop_of(seen: Candidates, taken: np.ndarray, max_messages: int, limits: TransferLimits, span: LogSpan) -> int:
    """Row of the entry before which the pull is full, given the `taken` entries; their number if it is not. Java: isTheBatchFull."""
    most = max(1, min(max_messages, limits.in_memory_count))
    if taken.all() and span.written_end - int(seen.places.min()) <= limits.memory_bytes:  # the usual pull
        stop = min(len(taken), most)
        if int(seen.sizes[:stop].sum()) <= min(limits.in_memory_bytes, _MOST_BYTES):
            return stop
    taken_sizes = np.where(taken, seen.sizes, 0)
    count = np.cumsum(taken) - taken
    with_entry = np.cumsum(taken_sizes) - taken_sizes + seen.sizes
    in_memory = span.written_end - seen.places <= limits.memory_bytes
    most_bytes = np.where(in_memory, limits.in_memory_bytes, limits.on_disk_bytes)
    most_count = np.where(in_memory, limits.in_memory_count, limits.on_disk_count)
    is_full = (count + 1 > max_messages) | (with_entry > np.minimum(most_bytes, _MOST_BYTES)) | (count > most_count - 1)
    is_full &= count > 0
    stop = int(np.argmax(is_full))
    return stop if is_full[stop] else len(taken)


def status_of_nothing(seen: Candidates, count: int, span: LogSpan) -> GetStatus:
    """The status of a pull that found nothing among the first `count`: was the last entry expired, or filtered?

    Java skips the rest of the log file of an expired one.
    """
    passes, is_gone, places = seen.passes[:count], seen.is_gone[:count], seen.places[:count]
    if not is_gone.any():
        return GetStatus.NO_MATCHED_MESSAGE
    size = max(1, span.file_size_bytes)
    rolled = np.where(is_gone & passes, (places // size + 1) * size, 0)
    is_looked_at = places >= np.concatenate(([0], np.maximum.accumulate(rolled)[:-1]))
    gone, filtered = np.flatnonzero(is_gone & passes & is_looked_at), np.flatnonzero(~passes & is_looked_at)
    is_gone_last = len(gone) and (not len(filtered) or gone[-1] > filtered[-1])
    return GetStatus.MESSAGE_WAS_REMOVING if is_gone_last else GetStatus.NO_MATCHED_MESSAGE


class _Turns:
    """A lock for blocks, given in turns: a thread that releases it and wants it again comes after those that wait.

    A `threading.Lock` gives it back to the thread that runs, so others would wait for all parts of a long look, not for one.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._taken = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._taken.acquire()

    def __exit__(self, *_: object) -> None:
        self._taken.release()


class ServedStore:
    """One store's readable messages. Thread-safe: one read at a time; several of these objects read side by side."""

    def __init__(self, store: MessageStore) -> None:
        """Raises StoreNotWritableError if the store is open for reading."""
        self._store = store
        self._writer = writer = store.writer
        self._lock = _Turns()
        self._log = store.layout.commit_log(writer.file_system)
        self._queues = store.layout.consume_queues(writer.file_system)
        self._index = store.new_index()
        self._ends = self._new_ends()

    def _new_ends(self) -> DispatchedEnds:
        """The writer's ends, without remembered minimums of queues."""
        return DispatchedEnds(self._writer.ends, lambda: self._writer.dispatched_end, self._log)

    def close(self) -> None:
        """Close the files. A later read opens them again."""
        with self._lock:
            self._log.close()
            self._queues.close()
            self._index.close()

    def list_files(self) -> None:
        """List the files again: some have expired, or a topic was deleted."""
        with self._lock:
            self._log.list_files()
            self._queues.close()
            self._queues = self._store.layout.consume_queues(self._writer.file_system)
            self._ends = self._new_ends()

    # Ends and times

    @property
    def log_end(self) -> int:
        """The end of what is appended."""
        return self._writer.log_end

    @property
    def log_minimum(self) -> int:
        """The first byte of the log that is there."""
        with self._lock:
            return self._log.minimum

    def maximum(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message; 0 if the queue does not exist. Does not wait."""
        return self._writer.ends.readable_ends.get((topic, queue_id), 0)

    def minimum(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose message the log holds; the maximum if it holds none, 0 if the queue does not exist."""
        return self._look(topic, queue_id, lambda: self._minimum(topic, queue_id))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at a queue offset; −1 if there is none."""
        position = self._look(topic, queue_id, lambda: self._position(topic, queue_id, offset))
        return -1 if position is None else position.store_time_ms

    def store_times(self, places: Collection[tuple[str, int, int]]) -> dict[tuple[str, int, int], int]:
        """Store times of the messages at these topics, queues and queue offsets; −1 if there is none. Many together cost little.

        Other reads have their turn after each _PLACES_TOGETHER of them.
        """
        listed, found = list(places), dict.fromkeys(places, -1)
        for start in range(0, len(listed), _PLACES_TOGETHER):
            part = listed[start : start + _PLACES_TOGETHER]
            try:
                found |= self._store_times(part)
            except OffsetOutOfRangeError:  # files have expired meanwhile: one by one, which lists them anew
                found |= {place: self.store_time(*place) for place in part}
        return found

    def _store_times(self, places: Sequence[tuple[str, int, int]]) -> dict[tuple[str, int, int], int]:
        with self._lock:
            there: list[tuple[str, int, int]] = []
            queues: list[ConsumeQueue] = []
            for place in places:
                topic, queue_id, offset = place
                if 0 <= offset < self.maximum(topic, queue_id):
                    self._see_queue(topic, queue_id)
                    if (queue := self._queues.get(topic, queue_id)) is not None:
                        there.append(place)
                        queues.append(queue)
            offsets = [offset for _, _, offset in there]
            positions = read_positions(queues, offsets, self._log, self._ends.dispatched_end)
        return {
            place: position.store_time_ms
            for place, position in zip(there, positions, strict=True)
            if position is not None
        }

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's first message; −1 if there is none. Java: getEarliestMessageTime."""
        return self.store_time(topic, queue_id, self.minimum(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Like `MessageStore.offset_in_queue_by_time`."""

        def find() -> int:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                return 0
            bounds = self._ends.minimum(queue), self.maximum(topic, queue_id)
            return offset_by_time(queue, self._log, self._ends.dispatched_end, bounds, time_ms, upper=upper)

        return self._look(topic, queue_id, find)

    def _minimum(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else self._ends.minimum(queue)

    def _position(self, topic: str, queue_id: int, offset: int) -> QueuePosition | None:
        """Place and store time of the message at a queue offset; None if no message is visible there."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not 0 <= offset < self.maximum(topic, queue_id):
            return None
        return read_positions([queue], [offset], self._log, self._ends.dispatched_end)[0]

    def is_in_memory(self, topic: str, queue_id: int, offset: int, memory_bytes: int) -> bool:
        """Whether there is a message at a queue offset, so close to the log's end that it is probably in the page cache.

        Java asks the kernel about a single message (mincore), and uses this rule for many.
        """
        position = self._look(topic, queue_id, lambda: self._position(topic, queue_id, offset))
        return position is not None and self.log_end - position.commitlog_offset <= memory_bytes

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues with entries, sorted."""
        return sorted(queue_id for name, queue_id in list(self._writer.ends.readable_ends) if name == topic)

    def topics(self) -> set[str]:
        """Topics that have a queue with entries."""
        return {name for name, _ in list(self._writer.ends.readable_ends)}

    # Records

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """The record that begins there, as bytes of the log; None if none does."""
        with self._lock:
            try:
                self._log.see(self._writer.written_end)
                message = self._log.message_at(commitlog_offset, self._writer.written_end)
            except (OffsetOutOfRangeError, CorruptRecordError):
                return None
            return self._log.bytes_at(commitlog_offset, message.size_bytes)

    def records_by_key(
        self, topic: str, key: str, most: int, begin_ms: int, end_ms: int, index_type: str | None = None
    ) -> list[bytes]:
        """The newest records, at most `most`, whose key has the key's hash, by log offset; with `index_type` "T" whose tags have it.

        A client compares keys. Raises IndexGeometryUnknownError, IndexElsewhereError.
        """
        with self._lock:
            self._log.see(self._ends.dispatched_end)
            self._index.require_files()
            hits = self._index.lookup(index_key_hash(index_key(topic, key, index_type)), begin_ms, end_ms)
            places = sorted(hit.commitlog_offset for hit in islice(hits, max(0, most)))
        found = (self.record_at(place) for place in places)
        return [record for record in found if record is not None]

    def index_end(self) -> tuple[int, int]:
        """Store time and log offset of the last record in the index. Java: indexLastUpdateTimestamp, indexLastUpdatePhyoffset."""
        with self._lock:
            files = self._index.files()
            header = files[-1].header() if files else None
            return (0, 0) if header is None else (header.end_time_ms, header.end_commitlog_offset)

    def entries(
        self, topic: str, queue_id: int, start: int, count: int, wanted: MessageFilter = ALL_MESSAGES
    ) -> list[ServedEntry]:
        """The queue's entries from an offset on, with their extension units, and whether they pass; fewer at the queue's end."""
        end = min(self.maximum(topic, queue_id), start + count)

        def read() -> list[ServedEntry]:
            queue = self._queues.get(topic, queue_id)
            return [] if queue is None or end <= start else served_entries(self._queues, queue, start, end, wanted)

        return self._look(topic, queue_id, read)

    def count_wanted(
        self, topic: str, queue_id: int, start: int, end: int, wanted: MessageFilter, most_entries: int
    ) -> int:
        """Number of messages of [start, end) that pass by tags codes and bit maps; of more than `most_entries`, an estimate by these.

        Java: ConsumeQueue.estimateMessageCount.
        """
        first = max(start, self.minimum(topic, queue_id))
        count, seen = end - first, min(end - first, most_entries)
        if seen <= 0:
            return 0

        def read() -> int:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                return 0
            entries = queue.entries(first, min(first + seen, end))
            codes, by_bits = by_units(self._queues, queue, entries, wanted.bits)
            return int(np.count_nonzero(pass_by_entry(codes, wanted.tags_codes, by_bits) & (entries["size_bytes"] > 0)))

        return self._look(topic, queue_id, read) * count // seen

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        limits: TransferLimits,
        wanted: MessageFilter = ALL_MESSAGES,
    ) -> RawGet:
        """A pull's records. Looks at one queue file, as Java's `getMessage` does by default."""
        maximum = self.maximum(topic, queue_id)
        if maximum == 0:
            return RawGet(GetStatus.NO_MESSAGE_IN_QUEUE, 0, self.minimum(topic, queue_id), 0)
        if offset == maximum:  # by far the most frequent pull: nothing has come
            status, minimum = GetStatus.OFFSET_OVERFLOW_ONE, self.minimum(topic, queue_id)
            return RawGet(status, offset, minimum, maximum, behind_bytes=0)
        return self._look(
            topic, queue_id, lambda: self._get(topic, queue_id, offset, maximum, max_messages, limits, wanted)
        )

    def _get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        maximum: int,
        max_messages: int,
        limits: TransferLimits,
        wanted: MessageFilter,
    ) -> RawGet:
        minimum = self._minimum(topic, queue_id)
        if offset < minimum:
            return RawGet(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset > maximum:
            return RawGet(GetStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
        queue = self._queues.get_or_make(topic, queue_id)
        count = min(maximum - offset, entries_looked_at(max_messages, limits))
        span = self._span()
        entries = self._entries_for(queue, offset, count, max_messages, limits, span, wanted)
        if not len(entries):
            file_entries = max(1, queue.file_size_bytes // ENTRY_SIZE)
            return RawGet(GetStatus.OFFSET_FOUND_NULL, (offset // file_entries + 1) * file_entries, minimum, maximum)
        codes, by_bits = by_units(self._queues, queue, entries, wanted.bits)
        seen = candidates(entries, codes, wanted.tags_codes, span, by_bits)
        taken = seen.passes & seen.is_there
        stop = stop_of(seen, taken, max_messages, limits, span)
        if wanted.accepts is not None:
            true_rows = partial(self._true_rows, queue, entries, offset)
            stop = self._accept(seen, taken, max_messages, limits, span, wanted.accepts, true_rows)
        rows = np.flatnonzero(taken[:stop])
        body = self._records(seen.places[rows], seen.sizes[rows])
        rows, body = self._true_rows(queue, entries, offset, rows, body)
        behind = span.written_end - int(seen.places[stop - 1])
        is_behind = behind > limits.memory_bytes
        if not len(rows):
            status = status_of_nothing(seen, stop, span)
            return RawGet(status, offset + stop, minimum, maximum, is_behind=is_behind, behind_bytes=behind)
        time_ms = _store_time_at(body, len(body) - int(seen.sizes[rows[-1]]))
        return RawGet(GetStatus.FOUND, offset + stop, minimum, maximum, body, len(rows), is_behind, time_ms, behind)

    @staticmethod
    def _entries_for(
        queue: ConsumeQueue,
        offset: int,
        count: int,
        max_messages: int,
        limits: TransferLimits,
        span: LogSpan,
        wanted: MessageFilter,
    ) -> np.ndarray:
        """The entries that a pull may look at: a few if it wants all messages and the log holds them, else `count`."""
        few = max(1, min(max_messages, limits.in_memory_count)) + 1
        if wanted is ALL_MESSAGES and few < count:
            entries = decode_entries(queue.bytes_from(offset, few))
            if len(entries) == few and int(entries["commitlog_offset"][0]) >= span.minimum:
                ends = entries["commitlog_offset"] + entries["size_bytes"]
                if not is_pre_blank(entries).any() and int(ends[-1]) <= span.end:
                    return entries
        return decode_entries(queue.bytes_from(offset, count))

    def _accept(
        self,
        seen: Candidates,
        taken: np.ndarray,
        max_messages: int,
        limits: TransferLimits,
        span: LogSpan,
        accepts: Callable[[bytes], bool],
        true_rows: Callable[[np.ndarray, bytes], tuple[np.ndarray, bytes]],
    ) -> int:
        """Remove from `taken` records that the properties exclude, and invalid ones; returns the row where the pull is full."""
        judged = np.zeros(len(taken), bool)
        while True:
            stop = stop_of(seen, taken, max_messages, limits, span)
            rows = np.flatnonzero(taken[:stop] & ~judged[:stop])
            if not len(rows):
                return stop
            taken[rows], judged[rows] = False, True
            rows, body = true_rows(rows, self._records(seen.places[rows], seen.sizes[rows]))
            starts = np.cumsum(seen.sizes[rows]) - seen.sizes[rows]
            records = Records(np.frombuffer(body, np.uint8), starts)
            is_whole = records.is_whole  # in other records the lengths may point anywhere
            properties = records.take(is_whole).raw_properties().to_pylist()
            taken[rows[is_whole]] = list(map(accepts, properties))

    def _true_rows(
        self, queue: ConsumeQueue, entries: np.ndarray, offset: int, rows: np.ndarray, body: bytes
    ) -> tuple[np.ndarray, bytes]:
        """The rows whose records are as the entries say, and these records. `body` is shorter if a file ends."""
        sizes = entries["size_bytes"][rows].astype(np.int64)
        ends = np.cumsum(sizes)
        if not len(rows) or len(body) < int(ends[-1]) or int(sizes.min()) < MINIMUM_RECORD_SIZE:
            is_true = np.zeros(len(rows), bool)
        else:
            heads = view_at(np.frombuffer(body, np.uint8), ends - sizes, _HEADER)
            is_true = (heads["size_bytes"] == sizes) & (heads["queue_offset"] == rows + offset)
            is_true &= heads["commitlog_offset"] == entries["commitlog_offset"][rows]
        if is_true.all():
            return rows, body
        sound = valid_entries(entries[rows], queue.topic, queue.queue_id, self._log, self._ends.dispatched_end)
        kept = rows[sound]
        places = entries["commitlog_offset"][kept].astype(np.int64)
        return kept, self._records(places, entries["size_bytes"][kept].astype(np.int64))

    def _records(self, places: np.ndarray, sizes: np.ndarray) -> bytes:
        """Records, concatenated; neighbours in the log are one piece."""
        if not len(places):
            return b""
        log = self._log
        ends = places + sizes
        if len(places) == 1 or (places[1:] == ends[:-1]).all():
            return log.bytes_at(int(places[0]), int(ends[-1] - places[0]))
        first = np.concatenate(([0], np.flatnonzero(places[1:] != ends[:-1]) + 1))
        starts = places[first].tolist()
        stops = ends[np.append(first[1:] - 1, len(ends) - 1)].tolist()
        pieces = []
        for start, stop in zip(starts, stops, strict=True):
            file = log.files[log.file_index(start)]
            pieces.append(log.open_file(file).view(start - file.start, stop - start).data)
        return b"".join(pieces)

    # Seeing what the writer did

    def _look(self, topic: str, queue_id: int, read: Callable[[], _T]) -> _T:
        """Read from one queue; repeat it if files expired meanwhile."""
        with self._lock:
            for left in reversed(range(_LOOKS)):
                with self._outliving_expiry(topic, queue_id, is_last=not left):
                    self._see_queue(topic, queue_id)
                    return read()
        raise AssertionError("the last look returns or raises")

    @contextmanager
    def _outliving_expiry(self, topic: str, queue_id: int, *, is_last: bool) -> Iterator[None]:
        try:
            yield
        except OffsetOutOfRangeError:
            if is_last:
                raise
            self._log.list_files()
            if (queue := self._queues.get(topic, queue_id)) is not None:
                queue.list_files()

    def _see_queue(self, topic: str, queue_id: int) -> None:
        maximum = self.maximum(topic, queue_id)
        if maximum:
            queue = self._queues.get_or_make(topic, queue_id)
            if queue.last_file_end_offset < maximum:
                queue.list_files()
        self._log.see(self._ends.dispatched_end)

    def _span(self) -> LogSpan:
        log = self._log
        return LogSpan(log.minimum, self._ends.dispatched_end, self._writer.log_end, log.file_size_bytes or 0)


def _store_time_at(body: bytes, start: int) -> int:
    sys_flag = int.from_bytes(body[start + SYS_FLAG_POSITION : start + SYS_FLAG_POSITION + 4], "big")
    at = start + STORE_TIME_POSITION[sys_flag & BORN_HOST_V6]
    return int.from_bytes(body[at : at + 8], "big")


class ServedEntry(NamedTuple):
    """An entry of a queue, its extension unit if it names one, and whether it passes a filter."""

    commitlog_offset: int
    size_bytes: int
    tags_code: int
    unit: ExtUnit | None
    passes: bool


def by_units(
    queues: ConsumeQueueStore, queue: ConsumeQueue, entries: np.ndarray, wanted: BitTest | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The entries' tags codes, and which pass by bit maps (None = all); for entries with extension units, by their units."""
    codes = entries["tags_code"]
    if not is_ext_address(codes).any():
        return codes, None
    ext = queues.ext(queue.topic, queue.queue_id)
    try:
        return ext.tags_codes(codes), None if wanted is None else ext.passes(codes, wanted)
    finally:
        ext.close()


def served_entries(
    queues: ConsumeQueueStore, queue: ConsumeQueue, start: int, end: int, wanted: MessageFilter
) -> list[ServedEntry]:
    """The entries from one queue offset to another."""
    entries = queue.entries(start, end)
    codes, by_bits = by_units(queues, queue, entries, wanted.bits)
    passes = pass_by_entry(codes, wanted.tags_codes, by_bits).tolist()
    named = is_ext_address(entries["tags_code"]).tolist()
    ext = queues.ext(queue.topic, queue.queue_id)
    try:
        units = [ext.unit(row[2]) if is_named else None for row, is_named in zip(entries.tolist(), named, strict=True)]
    finally:
        ext.close()
    return [ServedEntry(*row, *more) for row, *more in zip(entries.tolist(), units, passes, strict=True)]


class LookUps:
    """Look-ups in the written part of an open store, one at a time. Thread-safe."""

    def __init__(self, store: MessageStore, written_end: Callable[[], int]) -> None:
        """`written_end` gives the end of whole records in the log's files; puts may go on meanwhile."""
        self._log: CommitLog = store.layout.commit_log(store.writer.file_system)
        self._index = store.new_index()
        self._written_end = written_end
        self._lock = threading.Lock()

    def message_at(self, commitlog_offset: int) -> Message:
        """The message whose record begins there. Raises OffsetOutOfRangeError, CorruptRecordError if none does."""
        with self._lock:
            end = self._see_end()
            return self._log.message_at(commitlog_offset, end)

    def messages_by_key(self, topic: str, key: str, max_count: int) -> list[Message]:
        """The newest `max_count` messages with that key or unique key, by log offset.

        Raises IndexGeometryUnknownError, IndexElsewhereError.
        """
        with self._lock:
            found = messages_with_key(self._index, self._log, self._see_end(), topic, key)
            return sorted(islice(found, max_count), key=lambda message: message.commitlog_offset)

    def close(self) -> None:
        """Close the files. A later read opens them again."""
        with self._lock:
            self._log.close()
            self._index.close()

    def _see_end(self) -> int:
        """The log's present end; its files are listed again if it is beyond the known ones."""
        end = self._written_end()
        self._log.see(end)
        return end
