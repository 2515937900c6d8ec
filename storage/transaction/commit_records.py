"""Whether a half is committed already: its commit record stands in the queue that it was sent to.

The commit record is written before the op message, and a broker keeps op messages in memory for seconds; so a half without an op
message may be committed. A broker of 5.3 does not look and commits again. Exact, by reading the real queue's entries behind the
half: a commit record names the place in the log of the half, or of another copy of it.

Java: EndTransactionProcessor (setPreparedTransactionOffset), which writes what is looked for here.
"""

from __future__ import annotations

import numpy as np

from storage.errors import IndexGeometryUnknownError
from storage.format.properties import decode_property_maps
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Message
from storage.format.record_batch import Records
from storage.queues.scan import scan_queue
from storage.rules.half_messages import UNIQUE_KEY
from storage.store_reader import StoreReader
from storage.transaction.half_queue import Copies, Halves, last_before, transaction_names


def committed(store: StoreReader, halves: Halves, copies: Copies) -> np.ndarray:
    """Which of the halves have a commit record, bool. `copies` are the messages of their transactions.

    Reads the entries and headers of each real queue from the earliest of its transactions on; for one half the index is asked first.
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
        result[rows] = _committed_in(store, name, halves.take(rows), copies.began_at[rows], copies.next_at[rows])
    return result


def _committed_in(
    store: StoreReader, name: tuple[str, int], halves: Halves, began_at: np.ndarray, next_at: np.ndarray
) -> np.ndarray:
    queue = store.queues.get(*name)
    result = np.zeros(halves.row_count, bool)
    if queue is None:
        return result
    end = store.max_offset(*name)
    start = max(store.min_offset(*name), queue.first_offset_at(int(began_at.min()), end))
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
    counts = [last_before(names, named, codes, until - 1) for until in (began_at, next_at)]
    return result | ((codes >= 0) & (counts[1] > counts[0]))


def _is_in_index(store: StoreReader, topic: str, key: str, halves: Halves, copies: Copies) -> bool:
    """Whether the index knows a commit record of one transaction. A no says nothing: an index may have gaps."""
    try:
        found = store.messages_by_key(topic, key)
    except IndexGeometryUnknownError:
        return False
    began_at, next_at, born_ms = int(copies.began_at[0]), int(copies.next_at[0]), int(halves.born_times_ms[0])
    return any(is_commit_of(message, key, born_ms, began_at, next_at) for message in found)


def is_commit_of(message: Message, key: str, born_time_ms: int, began_at: int, next_at: int) -> bool:
    """Whether a message is the commit record of a transaction of that name whose halves lie from `began_at` to before `next_at`."""
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    is_of_name = message.unique_key == key and message.born_time_ms == born_time_ms
    return is_commit and is_of_name and began_at <= message.prepared_transaction_offset < next_at


def _commits(records: Records) -> Records:
    return records.take(records.column("sys_flag") & TRANSACTION_MASK == TRANSACTION_COMMIT)
