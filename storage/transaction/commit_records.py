"""Whether a half is committed already: its commit record stands in the queue that it was sent to.

The commit record is written before the op message, and a broker keeps op messages in memory for seconds; so a half without an op
message may be committed. A broker of 5.3 does not look and commits again. Exact, by reading the real queue's entries behind the
half: a commit record names the half's place in the log, or, where another copy of the half was committed, has its unique key.

Java: EndTransactionProcessor (setPreparedTransactionOffset), which writes what is looked for here.
"""

from __future__ import annotations

import numpy as np

from storage.errors import IndexGeometryUnknownError
from storage.format.properties import decode_property_maps
from storage.format.record_batch import Records
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.messages.half_messages import UNIQUE_KEY
from storage.queues.scan import scan_queue
from storage.store_reader import StoreReader
from storage.transaction.half_queue import Halves


def committed(store: StoreReader, halves: Halves, began_at: np.ndarray) -> np.ndarray:
    """Which of the halves have a commit record, bool. `began_at` is where in the log the first half of each transaction lies.

    Reads the entries and headers of each real queue from the earliest of its transactions on; for one half the index is asked first.
    """
    if halves.row_count == 1 and (key := halves.keys[0].as_py()) is not None:
        topic = halves.real_topics[0].as_py()
        if _is_in_index(store, topic, key, int(began_at[0])):
            return np.ones(1, bool)
    result = np.zeros(halves.row_count, bool)
    topics = halves.real_topics.dictionary_encode()
    queues = topics.indices.to_numpy().astype(np.int64) << 32 | halves.real_queue_ids
    for code in np.unique(queues[halves.real_queue_ids >= 0]).tolist():
        rows = np.flatnonzero(queues == code)
        name = topics.dictionary[code >> 32].as_py(), code & 0xFFFFFFFF
        result[rows] = _committed_in(store, name, halves.take(rows), began_at[rows])
    return result


def _committed_in(store: StoreReader, name: tuple[str, int], halves: Halves, began_at: np.ndarray) -> np.ndarray:
    queue = store.queues.get(*name)
    if queue is None:
        return np.zeros(halves.row_count, bool)
    end = store.max_offset(*name)
    start = max(store.min_offset(*name), queue.first_offset_at(int(began_at.min()), end))
    codes = halves.key_codes()
    last_of_key = np.full(int(codes.max()) + 1, -1, np.int64)
    named = [np.empty(0, np.int64)]
    for _, records in scan_queue(queue, store.log, store.log_end, start, end):
        commits = _commits(records)
        if len(commits):
            named.append(commits.column("prepared_transaction_offset").astype(np.int64))
            keys = decode_property_maps(commits.raw_properties()).values_of(UNIQUE_KEY)
            found = halves.key_codes(keys)
            places = commits.column("commitlog_offset").astype(np.int64)
            np.maximum.at(last_of_key, found[found >= 0], places[found >= 0])
    by_key = np.zeros(halves.row_count, bool)
    by_key[codes >= 0] = last_of_key[codes[codes >= 0]] > began_at[codes >= 0]
    return by_key | np.isin(halves.commitlog_offsets, np.concatenate(named))


def _is_in_index(store: StoreReader, topic: str, key: str, began_at: int) -> bool:
    """Whether the index knows a commit record of that key behind a place in the log. A no says nothing: an index may have gaps."""
    try:
        found = store.messages_by_key(topic, key)
    except IndexGeometryUnknownError:
        return False
    return any(
        message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        and message.commitlog_offset > began_at
        and message.unique_key == key
        for message in found
    )


def _commits(records: Records) -> Records:
    return records.take(records.column("sys_flag") & TRANSACTION_MASK == TRANSACTION_COMMIT)
