"""The op queue read as columns: which halves are ended, and how far its messages are dealt with.

Java: TransactionalMessageServiceImpl.fillOpRemoveMap, calculateOpOffset.
"""

from __future__ import annotations

import numpy as np

from storage.rules.half_messages import OP_TOPIC, QUEUE_ID, EndedHalves, ended_halves
from storage.store_reader import StoreReader
from storage.transaction.half_queue import scan_topic


def read_ended(store: StoreReader, start: int, end: int) -> EndedHalves:
    """What op messages [start, end) say."""
    nothing = np.empty(0, np.int64)
    parts = [EndedHalves(nothing, nothing)]
    parts += [ended_halves(offsets, records) for offsets, records in scan_topic(store, OP_TOPIC, start, end)]
    return EndedHalves(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def read_ended_since(store: StoreReader, commitlog_offset: int) -> np.ndarray:
    """The queue offsets of halves that op messages behind a place in the log end, ascending."""
    queue = store.queues.get(OP_TOPIC, QUEUE_ID)
    if queue is None:
        return np.empty(0, np.int64)
    end = store.max_offset(OP_TOPIC, QUEUE_ID)
    return np.unique(read_ended(store, queue.first_offset_at(commitlog_offset, end), end).half_offsets)
