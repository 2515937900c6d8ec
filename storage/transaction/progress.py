"""How far halves and op messages are dealt with: two entries of `config/consumerOffset.json`, and the counts of
`config/transactionMetrics`.

Both offsets are changed in one write and never go back, but to the end of a queue that lost its tail. Java:
TransactionalMessageBridge.fetchConsumeOffset, updateConsumeOffset; TransactionMetrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from storage.files.atomic_file import read_table
from storage.rules.half_messages import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE_ID
from storage.store import MessageStore
from storage.tables.consumer_groups import OFFSETS_FILE, ConsumerOffsets
from storage.tables.document import CountedTopics

METRICS_FILE = "transactionMetrics"


class TransactionProgress(NamedTuple):
    """The next offsets: halves before the first are ended, put back or given up, op messages before the second have been applied."""

    half_offset: int
    op_offset: int


def read_progress(store: MessageStore) -> TransactionProgress:
    """Where to go on: what the file says, if the queue has such an offset, else the queue's nearer end.

    Raises StateFileError where the file is unreadable and has no backup.
    """
    table = _consumer_offsets(store)
    return TransactionProgress(_position(store, table, HALF_TOPIC), _position(store, table, OP_TOPIC))


def save_progress(store: MessageStore, progress: TransactionProgress, *, now_ms: int) -> None:
    """Enter both, in one write; neither goes back behind where `read_progress` would begin.

    Nothing is written where nothing changes, nor for a queue of which nothing is known and nothing was dealt with.
    """
    with store.tables_lock:  # a broker saves its groups' offsets into the same file
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
    """A broker begins with an empty table where the file is bad and has no backup; that would end all other groups' progress."""
    path, files = f"{store.root}/config/{OFFSETS_FILE}", store.writer.file_system
    return read_table(path, ConsumerOffsets.load, files.read_file) or ConsumerOffsets()


class TransactionCounts(CountedTopics):
    """Halves that wait, as brokers count: one more when prepared, one less when ended or given up."""

    __slots__ = ()
    table = "transactionCount"


def save_counts(store: MessageStore, changes: Mapping[str, int], *, now_ms: int) -> None:
    """Add to the counts of the file; what a half without a topic changes counts nowhere. Thread-safe."""
    changes = {topic: change for topic, change in changes.items() if topic}
    with store.tables_lock:
        counts = store.state(METRICS_FILE, TransactionCounts.load) or TransactionCounts()
        changed = counts.with_changes(changes, now_ms=now_ms)
        if changed is not counts:
            store.save_state(METRICS_FILE, changed.to_text())
