"""From log records to derived data: queue entries and index keys. Java: CommitLogDispatcher, DispatchRequest.

`dispatch` turns a window of records into columns; `queue_entries` and `index_keys` extract the data for queues and index. Pure.

A follower appends the bytes of its master's log as they come; the whole records among them are found here:

    append_raw(bytes)* ─▶ whole_records: sizes, place, checksums ─▶ enter_raw: synced under SYNC_FLUSH, queues, index, readable

No record is acknowledged before its checksums were verified. Invalid bytes are cut, and so is an incomplete record when the follower
connects again. Java: DefaultMessageStore.appendToCommitLog, which checks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import CorruptRecordError, StoreRefusedError
from storage.format.arrays import sorted_by_code, string_hash, string_hashes
from storage.format.consume_queue import ENTRY
from storage.format.delay import SCHEDULE_TOPIC, due_codes
from storage.format.keys import (
    NO_KEY,
    HashedTexts,
    hashes_behind,
    index_hashes,
    message_keys,
    tag_hashes,
    with_tag_hashes,
)
from storage.format.properties import PropertyMaps, RegularProperties
from storage.format.record import (
    BLANK,
    BLANK_SIZE,
    INNER_BATCH,
    MAGIC_BLANK,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from storage.format.record_batch import Records
from storage.format.window_decoder import Decoded, Wanted
from storage.log.commit_log import CommitLog, RecordIdentity
from storage.names import can_be_path_element
from storage.settings.load import BATCHES_RULE, BY_APACHE

Properties: TypeAlias = PropertyMaps | RegularProperties | Decoded
DISPATCHED = Wanted(
    fields=frozenset({"queue_id", "queue_offset", "size_bytes", "store_time_ms", "sys_flag"}),
    properties=frozenset({"TAGS", "DELAY", "UNIQ_KEY", "KEYS"}),
    topics=True,
)
"""The columns that queues and index need."""


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """The data of n records, in log order, for queues and index. Topics are dictionary-encoded."""

    topics: tuple[str, ...]  # distinct
    topic_codes: np.ndarray  # into `topics`
    queue_ids: np.ndarray
    queue_offsets: np.ndarray
    commitlog_offsets: np.ndarray
    sizes_bytes: np.ndarray
    tags_codes: np.ndarray
    store_times_ms: np.ndarray
    sys_flags: np.ndarray
    properties: Properties

    def __len__(self) -> int:
        return len(self.commitlog_offsets)

    @property
    def is_queued(self) -> np.ndarray:
        """Which records have a queue entry: prepared and rolled-back ones have none."""
        transaction = self.sys_flags & TRANSACTION_MASK
        return np.asarray((transaction != TRANSACTION_PREPARED) & (transaction != TRANSACTION_ROLLBACK))

    @property
    def queue_codes(self) -> np.ndarray:
        """For each record a number of its queue; `queue_name` gives the queue."""
        return self.topic_codes.astype(np.int64) << 32 | self.queue_ids.astype(np.uint32)

    def queue_name(self, code: int) -> tuple[str, int]:
        """The topic and the queue id of a code."""
        queue_id = code & 0xFFFFFFFF
        return self.topics[code >> 32], queue_id - (queue_id >> 31 << 32)


class QueueEntries(NamedTuple):
    """Entries for one queue, with the queue offsets that their records name, in log order."""

    topic: str
    queue_id: int
    queue_offsets: np.ndarray
    entries: np.ndarray
    store_times_ms: np.ndarray
    bit_maps: np.ndarray | None = None
    """For their extension units, a row of bytes each."""

    def rows(self, rows: np.ndarray | slice) -> QueueEntries:
        """Some of them, by a mask or a range."""
        return QueueEntries(
            self.topic,
            self.queue_id,
            self.queue_offsets[rows],
            self.entries[rows],
            self.store_times_ms[rows],
            None if self.bit_maps is None else self.bit_maps[rows],
        )


class IndexKeys(NamedTuple):
    """Keys to enter, in log order; the columns are of equal length."""

    key_hashes: np.ndarray
    commitlog_offsets: np.ndarray
    store_times_ms: np.ndarray


def dispatch(commitlog_offsets: np.ndarray, records: Records, delays_ms: tuple[int, ...]) -> DispatchBatch:
    """The dispatch columns of whole records; DISPATCHED may be decoded already."""
    topics, codes = records.numbered_topics()
    names = tuple(topic.decode(errors="replace") for topic in topics)
    properties = records.single_properties(DISPATCHED.properties)
    store_times = records.column("store_time_ms")
    return DispatchBatch(
        names,
        codes,
        records.column("queue_id"),
        records.column("queue_offset"),
        commitlog_offsets,
        records.column("size_bytes"),
        tags_codes(names, codes, properties, store_times, delays_ms),
        store_times,
        records.column("sys_flag"),
        properties,
    )


def tags_codes(
    topics: tuple[str, ...],
    topic_codes: np.ndarray,
    properties: Properties,
    store_times_ms: np.ndarray,
    delays_ms: tuple[int, ...],
) -> np.ndarray:
    """The tags code of each message, int64: the hash of its tags; in the schedule topic its delivery time."""
    codes = string_hashes(properties.values_of("TAGS")).astype(np.int64)
    if SCHEDULE_TOPIC in topics:
        delayed = np.flatnonzero(topic_codes == topics.index(SCHEDULE_TOPIC))
        _set_deliver_times(codes, delayed, properties, store_times_ms, delays_ms)
    return codes


def _set_deliver_times(
    tags_codes: np.ndarray,
    rows: np.ndarray,
    properties: Properties,
    store_times_ms: np.ndarray,
    delays_ms: tuple[int, ...],
) -> None:
    """In the schedule topic the tags code is the delivery time. Java: CommitLog.checkMessageAndReturnSize."""
    texts = properties.values_of("DELAY").take(pa.array(rows)).fill_null("0")
    texts = pc.replace_substring_regex(texts, r"^\+?0*([0-9])", r"\1")  # as Integer.parseInt reads it
    is_positive = pc.match_substring_regex(texts, r"^[0-9]{1,10}$")
    levels = pc.cast(pc.if_else(is_positive, texts, "0"), pa.int64()).to_numpy()
    due = levels > 0
    tags_codes[rows[due]] = due_codes(levels[due], store_times_ms[rows[due]], delays_ms)


def queue_entries(batch: DispatchBatch, wanted: np.ndarray | None = None) -> Iterator[QueueEntries]:
    """The entries by queue, only of the `wanted` records (a mask); prepared and rolled-back records have none."""
    rows = np.flatnonzero(batch.is_queued if wanted is None else batch.is_queued & wanted)
    used, codes = np.unique(batch.queue_codes[rows], return_inverse=True)
    yield from entries_by_queue(
        [batch.queue_name(code) for code in used.tolist()],
        codes,
        batch.commitlog_offsets[rows],
        batch.sizes_bytes[rows],
        batch.tags_codes[rows],
        batch.queue_offsets[rows],
        batch.store_times_ms[rows],
    )


def entries_by_queue(
    queues: Sequence[tuple[str, int]],
    codes: np.ndarray,
    commitlog_offsets: np.ndarray,
    sizes_bytes: np.ndarray,
    tags_codes: np.ndarray,
    queue_offsets: np.ndarray,
    store_times_ms: np.ndarray,
) -> Iterator[QueueEntries]:
    """The entries of records, one queue at a time; `codes` gives each record's queue.

    Used both for records read from the log and for those being appended. Java: ReputMessageService,
    ConsumeQueue.putMessagePositionInfo.
    """
    ends = np.cumsum(np.bincount(codes, minlength=len(queues)))
    order = sorted_by_code(codes, len(queues))
    start = 0
    for (topic, queue_id), end in zip(queues, ends.tolist(), strict=True):
        if end > start:
            rows = order[start:end]
            entries = entries_of(commitlog_offsets[rows], sizes_bytes[rows], tags_codes[rows])
            yield QueueEntries(topic, queue_id, queue_offsets[rows], entries, store_times_ms[rows])
        start = end


def entries_of(commitlog_offsets: np.ndarray, sizes_bytes: np.ndarray, tags_codes: np.ndarray) -> np.ndarray:
    """Queue entries with these values."""
    entries = np.empty(len(commitlog_offsets), ENTRY)
    entries["commitlog_offset"] = commitlog_offsets
    entries["size_bytes"] = sizes_bytes
    entries["tags_code"] = tags_codes
    return entries


def index_keys(batch: DispatchBatch, start: int = 0, *, indexes_tags: bool = False) -> IndexKeys:
    """The index keys of the records at or after log offset `start`, each key of a record once; with `indexes_tags` also their tags.

    Java enters a repeated key of a message twice; we do not. Rolled-back records are not indexed, prepared ones are.
    """
    rows, taken, prefixes = _indexed(batch, start)
    unique, keys = (
        batch.properties.values_of(name).take(taken).cast(pa.large_string()) for name in ("UNIQ_KEY", "KEYS")
    )
    has_unique = pc.fill_null(pc.greater(pc.binary_length(unique), 0), False).to_numpy(zero_copy_only=False)
    unique_hashes = np.where(has_unique, index_hashes(hashes_behind(prefixes, unique.fill_null(""))), NO_KEY)
    counts, hashes = message_keys(prefixes, unique_hashes.astype(np.int32), HashedTexts.of_keys(keys))
    if indexes_tags:
        tags = batch.properties.values_of("TAGS").take(taken).cast(pa.large_string())
        counts, hashes = with_tag_hashes(counts, hashes, tag_hashes(prefixes, tags))
    return IndexKeys(
        hashes, np.repeat(batch.commitlog_offsets[rows], counts), np.repeat(batch.store_times_ms[rows], counts)
    )


def tag_keys(batch: DispatchBatch) -> IndexKeys:
    """The items that a broker since 5.4 has for the records' tags, one each."""
    rows, taken, prefixes = _indexed(batch)
    hashes = tag_hashes(prefixes, batch.properties.values_of("TAGS").take(taken).cast(pa.large_string()))
    rows, hashes = rows[hashes != NO_KEY], hashes[hashes != NO_KEY]
    return IndexKeys(hashes, batch.commitlog_offsets[rows], batch.store_times_ms[rows])


def _indexed(batch: DispatchBatch, start: int = 0) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """The rows that are indexed, the same as Arrow's, and the hash of what precedes each row's keys."""
    is_rolled_back = batch.sys_flags & TRANSACTION_MASK == TRANSACTION_ROLLBACK
    rows = np.flatnonzero((batch.commitlog_offsets >= start) & ~is_rolled_back)
    prefixes = np.array([string_hash(f"{topic}#") & 0xFFFFFFFF for topic in batch.topics], np.uint32)
    return rows, pa.array(rows), prefixes[batch.topic_codes[rows]]


def refuse_inner_batches(batch: DispatchBatch, root: str) -> None:
    """Raises StoreRefusedError for a record that holds messages of its own: it has its entry in a batch queue."""
    for row in np.flatnonzero(batch.sys_flags & INNER_BATCH)[:1].tolist():
        topic, queue_id = batch.queue_name(int(batch.queue_codes[row]))
        place, offset = int(batch.commitlog_offsets[row]), int(batch.queue_offsets[row])
        what = f"the record at {place} of the log is a batch, at offset {offset} of queue {queue_id} of topic {topic}"
        raise StoreRefusedError(root, f"{what}, which has {BATCHES_RULE}", BY_APACHE)


class RawRecords(NamedTuple):
    """Consecutive whole records, and the log offset after them, or after the filler that follows them."""

    end: int
    last_record: RecordIdentity | None
    batches: Sequence[DispatchBatch]


@dataclass(frozen=True, slots=True)
class RawCheck:
    """Checks records of another log."""

    log: CommitLog
    delays_ms: tuple[int, ...]
    check_crc: bool = True
    root: str = ""
    """Of the store that the records enter."""

    def whole_records(self, start: int, end: int) -> RawRecords:
        """The whole records from `start`, where one begins, up to `end`, the end of the present bytes.

        Raises CorruptRecordError for bytes that cannot be a record, and StoreRefusedError for a record of a batch queue.
        """
        batches: list[DispatchBatch] = []
        last = None
        while start < end:
            walk = self.log.walk(start, check_crc=self.check_crc, wanted=DISPATCHED, limit=end)
            for offsets, records in walk:
                named = records.column("commitlog_offset")
                if (named != offsets).any():
                    row = int((named != offsets).argmax())
                    raise CorruptRecordError("physical offset", 0, int(offsets[row]), int(named[row]))
                batch = dispatch(offsets, records, self.delays_ms)
                refuse_inner_batches(batch, self.root)
                illegal = [topic for topic in batch.topics if not can_be_path_element(topic)]
                if illegal:
                    raise CorruptRecordError("topic", 0, "a name that a directory can have", illegal[0])
                batches.append(batch)
                last = RecordIdentity(int(offsets[-1]), int(batch.store_times_ms[-1]))
            if walk.failure is not None:
                raise walk.failure
            start = walk.end
            behind = self._behind_filler(start, end)
            if behind is None:
                break
            start = behind
        return RawRecords(start, last, batches)

    def _behind_filler(self, place: int, end: int) -> int | None:
        """The log offset after the filler at `place`; None without a complete one."""
        if place + BLANK_SIZE > end:
            return None
        file = self.log.files[self.log.file_index(place)]
        size, magic = BLANK.unpack(self.log.bytes_at(place, BLANK_SIZE))
        if magic == 0 and size == 0:
            raise CorruptRecordError("magic", place - file.start, "a record", "zeros", file=file.path)
        if magic != MAGIC_BLANK:
            return None
        if size != file.end - place:
            raise CorruptRecordError("blank filler", place - file.start, file.end - place, size, file=file.path)
        return file.end if file.end <= end else None
