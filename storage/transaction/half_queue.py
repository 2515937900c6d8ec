"""The half topic as columns: which transactions wait, since when, and which of its messages belong to the same transaction.

A half that is put back is again at the queue's end, so one transaction may have several halves. They share key and time of birth.

    K K' K' K K'     each K that a producer has sent starts a transaction, K' are copies of the one before them
    └─────┘ └──┘

So a message that is sent again with its key is a transaction of its own, whether the one before has ended or not.
Java: TransactionalMessageServiceImpl.getHalfMsg, which identifies halves by their places only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.properties import decode_property_maps
from storage.format.record import Message
from storage.format.record_batch import Records
from storage.queues.scan import SLICE_ROWS, QueueSlice, scan_queue
from storage.rules.delays import REAL_QUEUE_ID, REAL_TOPIC
from storage.rules.half_messages import (
    CHECK_TIMES,
    FIRST_OFFSET,
    HALF_TOPIC,
    IMMUNITY,
    QUEUE_ID,
    UNIQUE_KEY,
    integers,
    real_queues,
)
from storage.rules.inner_messages import InnerMessages
from storage.store import MessageStore

MALFORMED = -1
"""The value for text that is no number, as Java's getInt and getLong have one."""
ABSENT = -2
NO_PLACE = int(np.iinfo(np.int64).max)
"""A log offset after all others."""


class Halves(NamedTuple):
    """n half messages in queue order; columns of equal length."""

    queue_offsets: np.ndarray
    """int64."""
    commitlog_offsets: np.ndarray
    """int64."""
    sizes_bytes: np.ndarray
    """int64, of the whole records."""
    born_times_ms: np.ndarray
    store_times_ms: np.ndarray
    keys: pa.StringArray
    """Unique keys, which name transactions; null where a message has none."""
    real_topics: pa.StringArray
    """"" if a message has none."""
    real_queue_ids: np.ndarray
    """int64; −1 if a message has none."""
    check_times: np.ndarray
    """int64: how often it was checked, MALFORMED or ABSENT."""
    immunities_s: np.ndarray
    """int64: seconds since birth in which it is not checked, MALFORMED or ABSENT."""
    first_offsets: np.ndarray
    """int64: queue offset of the first half of one that was put back unchecked, MALFORMED or ABSENT."""

    @property
    def row_count(self) -> int:
        """How many halves; `len` counts columns, as of any tuple."""
        return len(self.queue_offsets)

    @property
    def is_copy(self) -> np.ndarray:
        """Which were put back, so that their transaction started with an earlier message."""
        return (self.check_times != ABSENT) | (self.first_offsets != ABSENT)

    def take(self, rows: np.ndarray) -> Halves:
        """Some of them, by row numbers or by a mask."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        taken = pa.array(rows)
        return Halves._make(column[rows] if isinstance(column, np.ndarray) else column.take(taken) for column in self)

    @property
    def names(self) -> pa.StringArray:
        """The name that all messages of a transaction share; null without a unique key."""
        return transaction_names(self.keys, self.born_times_ms)

    def name_codes(self, names: pa.Array | None = None) -> np.ndarray:
        """For each of `names` (None = the own ones) a number, equal for equal names of these halves; −1 for null and for others."""
        own = self.names
        known = own.drop_null().unique()
        return pc.index_in(own if names is None else names, known, skip_nulls=True).fill_null(-1).to_numpy()


def transaction_names(keys: pa.Array, born_times_ms: np.ndarray) -> pa.StringArray:
    """Transaction names of halves or commit records with these unique keys and times of birth; null without a key."""
    return pc.binary_join_element_wise(keys, pa.array(born_times_ms).cast(pa.string()), "\x01")


def halves_of(queue_offsets: np.ndarray, records: Records) -> Halves:
    """The columns of half messages in records."""
    properties = decode_property_maps(records.raw_properties())
    topics, queue_ids = real_queues(properties.values_of(REAL_TOPIC), properties.values_of(REAL_QUEUE_ID))
    return Halves(
        queue_offsets.astype(np.int64),
        records.column("commitlog_offset").astype(np.int64),
        records.column("size_bytes").astype(np.int64),
        records.column("born_time_ms").astype(np.int64),
        records.column("store_time_ms").astype(np.int64),
        properties.values_of(UNIQUE_KEY),
        topics,
        queue_ids,
        _numbers(properties.values_of(CHECK_TIMES), digits=9),
        _numbers(properties.values_of(IMMUNITY), digits=15),
        _numbers(properties.values_of(FIRST_OFFSET), digits=18),
    )


def read_halves(store: MessageStore, start: int, end: int, *, topic: str = HALF_TOPIC) -> Halves:
    """The half messages at queue offsets [start, end) of the half topic, or of the topic for discarded halves."""
    return _joined([halves_of(offsets, records) for offsets, records in scan_topic(store, topic, start, end)])


def scan_topic(store: MessageStore, topic: str, start: int, end: int) -> Iterator[QueueSlice]:
    """The messages of queue 0 of one of the transaction topics at queue offsets [start, end), as far as the queue has them."""
    queue = store.queues.get(topic, QUEUE_ID)
    if queue is not None:
        start, end = max(start, store.min_offset(topic, QUEUE_ID)), min(end, store.max_offset(topic, QUEUE_ID))
        yield from scan_queue(queue, store.log, store.log_end, start, end)


def half_at(store: MessageStore, half: Message) -> Halves:
    """The columns of one half message."""
    places, sizes = np.array([half.commitlog_offset]), np.array([half.size_bytes])
    (_, records), *_ = store.log.records(places, sizes)
    return halves_of(np.array([half.queue_offset]), records)


def messages_of(store: MessageStore, halves: Halves) -> Iterator[tuple[slice, InnerMessages]]:
    """The complete halves with bodies, a log file at a time: which rows, and the messages."""
    for rows, records in store.log.records(halves.commitlog_offsets, halves.sizes_bytes):
        yield rows, InnerMessages.of_records(records)


class Copies(NamedTuple):
    """The messages of the half queue that belong to the transactions of n halves, including the halves."""

    transactions: np.ndarray
    """int64, n of them: the number of each half's transaction; −1 if the queue has nothing of it."""
    members: np.ndarray
    """int64: for each message the number of its transaction; some belong to none of these halves."""
    queue_offsets: np.ndarray
    """int64, of each message in the half queue."""
    places: np.ndarray
    """int64, of each message in the log."""
    started_at: np.ndarray
    """int64, n of them: log offset of each transaction's first half; 0 if it has expired."""
    next_at: np.ndarray
    """int64, n of them: log offset of the next transaction with the same name; later messages are not this one's copies."""

    def of(self, row: int) -> np.ndarray:
        """Which messages are of one half's transaction."""
        return (self.members == self.transactions[row]) & (self.members >= 0)

    def any_of(self, is_it: np.ndarray) -> np.ndarray:
        """For each half, whether `is_it` holds for some message of its transaction."""
        found = np.zeros(int(self.members.max(initial=-1)) + 2, bool)  # the last one is for "none"
        found[self.members[is_it]] = True
        return found[self.transactions]


def copies_of(store: MessageStore, halves: Halves) -> Copies:
    """The messages of these halves' transactions in the half queue, as far as their names show it.

    The queue is read from the first half to its end and, for those that were put back, backwards until each start is known.
    """
    codes = halves.name_codes()
    is_open = halves.is_copy & (codes >= 0)
    first_begins = np.full(int(codes.max(initial=-1)) + 1, NO_PLACE)
    found = [np.empty((4, 0), np.int64)]
    start = int(halves.queue_offsets.min(initial=store.max_offset(HALF_TOPIC, QUEUE_ID)))
    for first, last in _blocks(store, start) if (codes >= 0).any() else ():
        if first < start and not is_open.any():
            break
        block = read_halves(store, first, last)
        block_codes, begins = halves.name_codes(block.names), ~block.is_copy
        columns = np.stack((block_codes, block.commitlog_offsets, block.queue_offsets, begins))
        found.append(columns[:, block_codes >= 0])
        begins &= block_codes >= 0
        np.minimum.at(first_begins, block_codes[begins], block.commitlog_offsets[begins])
        is_open[is_open] = first_begins[codes[is_open]] > halves.commitlog_offsets[is_open]
    return _copies(halves, codes, *np.concatenate(found, axis=1))


def _copies(
    halves: Halves, codes: np.ndarray, names: np.ndarray, places: np.ndarray, offsets: np.ndarray, begins: np.ndarray
) -> Copies:
    """Messages with the halves' names, in any order: a transaction starts with a message that a producer sent, under a name."""
    own, nothing = halves.commitlog_offsets, np.full(halves.row_count, -1)
    if not len(names):
        return Copies(nothing, names, offsets, places, np.where(halves.is_copy, 0, own), np.full(len(own), NO_PLACE))
    order = np.lexsort((places, names))
    names, places, offsets, is_begin = names[order], places[order], offsets[order], begins[order] == 1
    is_first = is_begin.copy()
    is_first[0] = True
    is_first[1:] |= np.diff(names) != 0
    members, firsts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
    at = last_before(names, places, codes, own)
    has_before = (at >= 0) & (names[at] == codes)
    at = np.minimum(np.where(has_before, at, at + 1), len(names) - 1)
    is_known = (codes >= 0) & (names[at] == codes)
    near = members[at]
    begin = firsts[near]
    is_behind = is_begin[begin] & (places[begin] > own)  # another transaction's, as nothing of this one is left
    following = np.where(is_behind, near, near + 1)
    next_firsts = firsts[np.minimum(following, len(firsts) - 1)]
    has_next = is_known & (following < len(firsts)) & (names[next_firsts] == codes)
    is_started = is_known & is_begin[begin] & ~is_behind
    is_own = is_known & ~is_behind & (halves.is_copy | (places[begin] == own))
    return Copies(
        np.where(is_own, near, -1),
        members,
        offsets,
        places,
        # The commit record may name a half that has expired.
        np.where(halves.is_copy, np.where(is_started, places[begin], 0), own),
        np.where(has_next, places[next_firsts], NO_PLACE),
    )


def last_before(names: np.ndarray, places: np.ndarray, wanted: np.ndarray, until: np.ndarray) -> np.ndarray:
    """The last of ascending pairs up to each (wanted, until); −1 if there is none."""
    ascending = np.sort(places)
    ranks, wanted_ranks = (np.searchsorted(ascending, found, side="right") for found in (places, until))
    width = len(places) + 1
    return np.searchsorted(names * width + ranks, wanted * width + wanted_ranks, side="right") - 1


def transaction_codes(halves: Halves) -> np.ndarray:
    """For each half a number, equal within one transaction; −1 without a unique key."""
    codes = halves.name_codes()
    order = np.lexsort((halves.queue_offsets, codes))
    begins = ~halves.is_copy[order]
    begins[1:] |= np.diff(codes[order]) != 0
    found = np.empty(halves.row_count, np.int64)
    found[order] = np.cumsum(begins)
    found[codes < 0] = -1
    return found


def _blocks(store: MessageStore, start: int) -> Iterator[tuple[int, int]]:
    """Ranges of the half queue from an offset to the end, then backwards to the beginning."""
    minimum, maximum = store.min_offset(HALF_TOPIC, QUEUE_ID), store.max_offset(HALF_TOPIC, QUEUE_ID)
    start = max(start, minimum)
    for first in range(start, maximum, SLICE_ROWS):
        yield first, min(first + SLICE_ROWS, maximum)
    for last in range(start, minimum, -SLICE_ROWS):
        yield max(minimum, last - SLICE_ROWS), last


def _numbers(texts: pa.Array, digits: int) -> np.ndarray:
    numbers = integers(texts, MALFORMED, digits)
    numbers[texts.is_null().to_numpy(zero_copy_only=False)] = ABSENT
    return numbers


def _joined(parts: list[Halves]) -> Halves:
    if not parts:
        texts, numbers = pa.array([], pa.string()), np.empty(0, np.int64)
        return Halves(numbers, numbers, numbers, numbers, numbers, texts, texts, numbers, numbers, numbers, numbers)
    if len(parts) == 1:
        return parts[0]
    return Halves._make(
        np.concatenate(columns) if isinstance(columns[0], np.ndarray) else pa.concat_arrays(columns)
        for columns in zip(*parts, strict=True)
    )
