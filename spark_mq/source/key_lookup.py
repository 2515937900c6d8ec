"""Queue offsets of the messages that may have a key: through the index where it covers the log, by scan where not.

A superset of the messages with the key: rows are compared afterwards. Index files cover the log from their first record to
their last; a missing, deleted or lagging index leaves stretches of the log that only a scan can answer for.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_mq.source.ranges import QueueRange
from storage import MessageStore
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.index import index_key
from storage.format.java_hash import index_key_hash


def offsets_with_key(store: MessageStore, piece: QueueRange, key: str) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of the piece's offsets, ascending and apart, outside which no message has the key."""
    found = [(offset, offset + 1) for offset in _indexed_offsets(store, piece, key)]
    yield from _merged(sorted(found + list(_uncovered_ranges(store, piece))))


def _indexed_offsets(store: MessageStore, piece: QueueRange, key: str) -> Iterator[int]:
    topic, _, queue_id = piece.queue
    queue = store.queues.get(topic, queue_id)
    for hit in store.index.lookup(index_key_hash(index_key(topic, key)), 0, 2**63 - 1):
        try:
            message = store.message_by_commitlog_offset(hit.commitlog_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            continue
        if message.topic != topic or message.queue_id != queue_id or queue is None:
            continue
        offset = queue.first_offset_at(hit.commitlog_offset, piece.end)
        if piece.start <= offset < piece.end:
            yield offset


def _uncovered_ranges(store: MessageStore, piece: QueueRange) -> Iterator[tuple[int, int]]:
    """Ranges of queue offsets whose records lie in no index file's stretch of the log."""
    queue = store.queues.get(piece.queue.topic, piece.queue.queue_id)
    if queue is None:
        return
    covered_to = 0
    stretches = [
        (header.begin_commitlog_offset, header.end_commitlog_offset)
        for header in (file.header() for file in store.index.files())
        if header.index_count > 1
    ]
    for begin, end in [*stretches, (store.log_end, store.log_end)]:
        if begin > covered_to:
            start = max(piece.start, queue.first_offset_at(covered_to, piece.end))
            stop = min(piece.end, queue.first_offset_at(begin, piece.end))
            if start < stop:
                yield start, stop
        covered_to = max(covered_to, end + 1)


def _merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Overlapping and touching ranges as one; `ranges` are sorted."""
    start = end = -1
    for low, high in ranges:
        if low > end:
            if end > start:
                yield start, end
            start, end = low, high
        end = max(end, high)
    if end > start:
        yield start, end
