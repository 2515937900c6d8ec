"""How far halves and op messages are processed: two entries of `config/consumerOffset.json`, and the counts of
`config/transactionMetrics`.

Both offsets are changed in one write and never decrease, except to the end of a queue that lost its tail. Java:
TransactionalMessageBridge.fetchConsumeOffset, updateConsumeOffset; TransactionMetrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from storage.rules.half_messages import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE_ID
from storage.store import MessageStore
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, CountedTopics

METRICS_FILE = "transactionMetrics"


class TransactionProgress(NamedTuple):
    """The next offsets. Halves before the first are ended, put back or given up; op messages before the second have been applied."""

    half_offset: int
    op_offset: int


def read_progress(store: MessageStore) -> TransactionProgress:
    """The file's offsets if the queues have them, else the queue's nearer end; of a store open for reading or writing.

    Raises StateFileError if the file is unreadable and has no backup.
    """
    table = _consumer_offsets(store)
    return TransactionProgress(_position(store, table, HALF_TOPIC), _position(store, table, OP_TOPIC))


def has_progress(store: MessageStore) -> bool:
    """Whether the file names the offset of the half queue. Raises StateFileError."""
    return _consumer_offsets(store).get(HALF_TOPIC, GROUP, QUEUE_ID) is not None


def save_progress(store: MessageStore, progress: TransactionProgress, *, now_ms: int) -> None:
    """Save both, in one write; neither goes below the start that `read_progress` would give.

    Nothing is written if nothing changes, nor for an unknown queue without progress.
    """
    with store.tables_lock:  # a broker saves its groups' offsets in the same file
        known, table = read_progress(store), _consumer_offsets(store)
        offsets = {}
        for topic, old, new in zip((HALF_TOPIC, OP_TOPIC), known, progress, strict=True):
            if new > old or table.get(topic, GROUP, QUEUE_ID) is not None:
                offsets[topic, QUEUE_ID] = max(old, new)
        changed = table.with_offsets(GROUP, offsets, now_ms=now_ms)
        if changed is not table:
            store.save_state(OFFSETS_FILE, changed.to_text())


def _position(store: MessageStore, table: ConsumerOffsets, topic: str) -> int:
    offset = table.get(topic, GROUP, QUEUE_ID)
    minimum, maximum = store.min_offset(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
    return minimum if offset is None else min(max(offset, minimum), maximum)


def _consumer_offsets(store: MessageStore) -> ConsumerOffsets:
    """The table. Raises StateFileError, where a broker starts with an empty one and loses all groups' progress."""
    return store.state(OFFSETS_FILE, ConsumerOffsets.load) or ConsumerOffsets()


class TransactionCounts(CountedTopics):
    """Waiting halves, as brokers count them: one more when prepared, one less when ended or given up."""

    __slots__ = ()
    table = "transactionCount"


def save_counts(store: MessageStore, changes: Mapping[str, int], *, now_ms: int) -> None:
    """Add to the counts of the file; a change of a half without a topic is not counted. Thread-safe."""
    changes = {topic: change for topic, change in changes.items() if topic}
    with store.tables_lock:
        counts = store.state(METRICS_FILE, TransactionCounts.load) or TransactionCounts()
        changed = counts.with_changes(changes, now_ms=now_ms)
        if changed is not counts:
            store.save_state(METRICS_FILE, changed.to_text())
