"""The state of transactions in the store: committed, rolled back, or still open.

Committed: a commit record names one of its halves. Rolled back: an op message ends one of its halves and there is
no commit record. That holds for the transaction, not for one copy of its half (`half_queue.py` finds the copies): a producer that
answers for the first half after a check has put it back has answered for both. A broker of 5.3 checks on, and commits again.

The commit record is written before the op message, and a broker keeps op messages in memory for seconds; so a half without an op
message may be committed. A broker of 5.3 does not look and commits again. `committed` is exact: it reads the real queue's entries
after the half, where a commit record names the log offset of the half, or of another copy of it.

One transaction is found by keys in the index (`find_transaction`), without reading what follows its half:

    half ─▶ its copies: messages of the half topic with its unique key (`half_queue.py`) ─▶ where it started
         ─▶ a commit record that names one of them: in the topic that the half was sent to, or in a delay or timer topic
         ─▶ an op message: as remembered (`known_ends.py`)

The index is known to be complete from some log offset on (`StoreEnds.indexed_from`). For a transaction that started before it, or whose
half has no unique key, it gives no answer: `outcomes_of` reads.

Java: TransactionalMessageServiceImpl.fillOpRemoveMap, EndTransactionProcessor, which reads none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from storage.errors import IndexElsewhereError, IndexGeometryUnknownError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.properties import decode_property_maps
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Message
from storage.format.record_batch import Records
from storage.queues.scan import scan_queue
from storage.rules.delays import REAL_TOPIC, TIMER_TOPIC
from storage.rules.half_messages import (
    CHECK_TIMES,
    FIRST_OFFSET,
    HALF_TOPIC,
    OP_TOPIC,
    QUEUE_ID,
    UNIQUE_KEY,
    EndedHalves,
    ended_halves,
)
from storage.store import MessageStore
from storage.transaction.half_queue import (
    NO_PLACE,
    Copies,
    Halves,
    copies_of,
    last_before,
    scan_topic,
    transaction_names,
)


def read_ended(store: MessageStore, start: int, end: int) -> EndedHalves:
    """The halves that op messages [start, end) end."""
    nothing = np.empty(0, np.int64)
    parts = [EndedHalves(nothing, nothing)]
    parts += [ended_halves(offsets, records) for offsets, records in scan_topic(store, OP_TOPIC, start, end)]
    return EndedHalves(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def read_ended_since(store: MessageStore, commitlog_offset: int) -> np.ndarray:
    """The queue offsets of halves that op messages after a log offset end, ascending."""
    queue = store.queues.get(OP_TOPIC, QUEUE_ID)
    if queue is None:
        return np.empty(0, np.int64)
    end = store.max_offset(OP_TOPIC, QUEUE_ID)
    return np.unique(read_ended(store, queue.first_offset_at(commitlog_offset, end), end).half_offsets)


def committed(store: MessageStore, halves: Halves, copies: Copies) -> np.ndarray:
    """Which of the halves have a commit record, bool. `copies` are the messages of their transactions.

    Reads the entries and headers of each real queue from the earliest of its transactions on; for one half the index is tried first.
    """
    if halves.row_count == 1 and (key := halves.keys[0].as_py()) is not None:
        topic = halves.real_topics[0].as_py()
        if _is_in_index(store, topic, key, halves, copies):
            return np.ones(1, bool)
    result = np.zeros(halves.row_count, bool)
    topics = halves.real_topics.dictionary_encode()
    queues = topics.indices.to_numpy().astype(np.int64) << 32 | halves.real_queue_ids
    for code in np.unique(queues[halves.real_queue_ids >= 0]).tolist():
        rows = np.flatnonzero(queues == code)
        name = topics.dictionary[code >> 32].as_py(), code & 0xFFFFFFFF
        result[rows] = _committed_in(store, name, halves.take(rows), copies.started_at[rows], copies.next_at[rows])
    return result


def _committed_in(
    store: MessageStore, name: tuple[str, int], halves: Halves, started_at: np.ndarray, next_at: np.ndarray
) -> np.ndarray:
    queue = store.queues.get(*name)
    result = np.zeros(halves.row_count, bool)
    if queue is None:
        return result
    end = store.max_offset(*name)
    start = max(store.min_offset(*name), queue.first_offset_at(int(started_at.min()), end))
    codes = halves.name_codes()
    found = [np.empty((2, 0), np.int64)]
    for _, records in scan_queue(queue, store.log, store.log_end, start, end):
        commits = _commits(records)
        if len(commits):
            named = commits.column("prepared_transaction_offset").astype(np.int64)
            keys = decode_property_maps(commits.raw_properties()).values_of(UNIQUE_KEY)
            names = transaction_names(keys, commits.column("born_time_ms").astype(np.int64))
            found.append(np.stack((halves.name_codes(names), named)))
    names, named = np.concatenate(found, axis=1)
    result |= np.isin(halves.commitlog_offsets, named)
    order = np.lexsort((named, names))[np.count_nonzero(names < 0) :]
    names, named = names[order], named[order]
    counts = [last_before(names, named, codes, until - 1) for until in (started_at, next_at)]
    return result | ((codes >= 0) & (counts[1] > counts[0]))


def _is_in_index(store: MessageStore, topic: str, key: str, halves: Halves, copies: Copies) -> bool:
    """Whether the index has a commit record of one transaction. False proves nothing: an index may have gaps."""
    try:
        found = store.messages_by_key(topic, key)
    except (IndexElsewhereError, IndexGeometryUnknownError):
        return False
    started_at, next_at, born_ms = int(copies.started_at[0]), int(copies.next_at[0]), int(halves.born_times_ms[0])
    return any(is_commit_of(message, key, born_ms, started_at, next_at) for message in found)


def is_commit_of(message: Message, key: str, born_time_ms: int, started_at: int, next_at: int) -> bool:
    """Whether a message is the commit record of a transaction of that name with halves from `started_at` to before `next_at`."""
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    is_of_name = message.unique_key == key and message.born_time_ms == born_time_ms
    return is_commit and is_of_name and started_at <= message.prepared_transaction_offset < next_at


def _commits(records: Records) -> Records:
    return records.take(records.column("sys_flag") & TRANSACTION_MASK == TRANSACTION_COMMIT)


class Outcomes(NamedTuple):
    """The outcomes of n halves."""

    is_committed: np.ndarray
    has_op: np.ndarray
    """An op message names this very half."""
    is_ended: np.ndarray
    """Committed, or an op message names one of the transaction's halves."""
    copies: Copies
    ended_offsets: np.ndarray
    """Queue offsets, ascending, of all halves that op messages have named since the first of these transactions started."""

    @property
    def is_rolled_back(self) -> np.ndarray:
        return self.is_ended & ~self.is_committed

    def without_op(self, row: int, queue_offset: int) -> np.ndarray:
        """The queue offsets of a transaction's halves, from the one at `queue_offset` on, that no op message names."""
        same = self.copies.queue_offsets[self.copies.of(row)]
        return np.setdiff1d(np.append(same[same >= queue_offset], queue_offset), self.ended_offsets)


def outcomes_of(store: MessageStore, halves: Halves) -> Outcomes:
    """The present outcomes of these halves. The cost is proportional to what was written since they started."""
    copies = copies_of(store, halves)
    ended = read_ended_since(store, int(copies.started_at.min(initial=store.log_end)))
    has_op = np.isin(halves.queue_offsets, ended)
    is_ended = has_op | np.isin(halves.first_offsets, ended) | copies.any_of(np.isin(copies.queue_offsets, ended))
    is_committed = committed(store, halves, copies)
    return Outcomes(is_committed, has_op, is_ended | is_committed, copies, ended)


_ALL = 1 << 30


class ByKey(Protocol):
    """Finds messages by key: a `MessageStore` or a `PutService`."""

    def messages_by_key(self, topic: str, key: str, max_count: int = 32) -> list[Message]: ...


class KeyedTransaction(NamedTuple):
    """One transaction as the index shows it."""

    started_at: int
    """Log offset of its first half."""
    half_offsets: tuple[int, ...]
    """Queue offsets of its halves, ascending."""
    half_places: tuple[int, ...]
    """Log offsets of its halves."""
    is_committed: bool

    def is_ended(self, is_op: Callable[[int], bool]) -> bool:
        """Whether it has ended; `is_op` says whether an op message names a half."""
        return self.is_committed or any(map(is_op, self.half_offsets))

    def without_op(self, half_offset: int, is_op: Callable[[int], bool]) -> list[int]:
        """The halves from the one at `half_offset` on that no op message names."""
        return [offset for offset in self.half_offsets if offset >= half_offset and not is_op(offset)]


def find_transaction(store: ByKey, half: Message, indexed_from: int) -> KeyedTransaction | None:
    """A half's transaction as the index shows it; None if the index may not have all of it."""
    key = half.unique_key
    if not key or half.commitlog_offset < indexed_from:
        return None
    try:
        halves = [copy for copy in _with_key(store, HALF_TOPIC, key) if copy.born_time_ms == half.born_time_ms]
        if half.commitlog_offset not in [copy.commitlog_offset for copy in halves]:
            return None
        begins = [copy.commitlog_offset for copy in halves if _is_first(copy)]
        started_at = max((place for place in begins if place <= half.commitlog_offset), default=-1)
        if started_at < indexed_from:  # −1: its start is unknown
            return None
        next_at = min((place for place in begins if place > half.commitlog_offset), default=NO_PLACE)
        halves = [copy for copy in halves if started_at <= copy.commitlog_offset < next_at]
        topics = (half.properties.get(REAL_TOPIC, ""), SCHEDULE_TOPIC, TIMER_TOPIC)
        is_committed = any(
            is_commit_of(message, key, half.born_time_ms, started_at, next_at)
            for topic in topics
            for message in _with_key(store, topic, key)
        )
    except (IndexElsewhereError, IndexGeometryUnknownError):
        return None
    offsets, places = (tuple(getattr(copy, name) for copy in halves) for name in ("queue_offset", "commitlog_offset"))
    return KeyedTransaction(started_at, offsets, places, is_committed)


def _with_key(store: ByKey, topic: str, key: str) -> Sequence[Message]:
    return [message for message in store.messages_by_key(topic, key, _ALL) if message.unique_key == key]


def _is_first(half: Message) -> bool:
    """Whether a producer has sent it; else it was put back."""
    return {CHECK_TIMES, FIRST_OFFSET}.isdisjoint(half.properties)
