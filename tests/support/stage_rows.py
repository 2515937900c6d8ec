"""Staged segments as a sink's tasks leave them, for tests of what a commit makes of them.

A row's body says where it belongs, `SINK/BATCH/PARTITION/NUMBER`, its topic and key follow from its number. So a test can tell from the
log alone which rows are there, how often, and in which order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa

from storage import StoreConfig
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedSegment, sink_digest
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import RecordBlock, UnjoinedBlock
from storage.put.settings import put_settings
from storage.rules.message_rows import MessageRows
from storage.rules.row_rules import MessageRules

BORN_MS = 1_700_000_000_000


class StagedRow(NamedTuple):
    """One row as it is to be found in the store; its key is its body."""

    topic: str
    body: str
    key: str


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch: so many in each of its partitions, taking turns among the topics."""

    batch: Batch
    counts: tuple[int, ...]
    topics: tuple[str, ...] = ("orders",)

    def of_partition(self, partition: int) -> list[StagedRow]:
        name = f"{self.batch.sink_id}/{self.batch.batch_id}/{partition}"
        return [
            StagedRow(self.topics[number % len(self.topics)], f"{name}/{number}", f"{name}/{number}")
            for number in range(self.counts[partition])
        ]

    @property
    def rows(self) -> list[StagedRow]:
        return [row for partition in range(len(self.counts)) for row in self.of_partition(partition)]


def stage_partition(
    file_system: LocalFileSystem,
    root: str,
    config: StoreConfig,
    rows: BatchRows,
    partition: int,
    *,
    queue_count: int = 4,
) -> StagedSegment:
    """One attempt of one task: its rows, durably staged. The same rows get the same unique keys and queues each time."""
    writer = _attempt(file_system, root, rows, partition)
    try:
        for block in unjoined_blocks(file_system, root, config, rows, partition, queue_count=queue_count):
            writer.append(block)
        segment = writer.finish()
    except BaseException:  # as a sink's task does
        writer.discard()
        raise
    assert segment is not None, "a partition has rows"
    return segment


def leave_half_staged(
    file_system: LocalFileSystem, root: str, config: StoreConfig, rows: BatchRows, partition: int
) -> SegmentWriter:
    """An attempt that nobody waits for any more: some of its rows are written, it may go on, and it is never reported."""
    writer = _attempt(file_system, root, rows, partition)
    writer.append(next(unjoined_blocks(file_system, root, config, rows, partition)))
    return writer


def _attempt(file_system: LocalFileSystem, root: str, rows: BatchRows, partition: int) -> SegmentWriter:
    directory = sink_digest(rows.batch.sink_id, rows.batch.query_id).hex()
    return SegmentWriter(file_system, root, directory, f"{rows.batch.batch_id}-{partition}-{uuid4()}")


def blocks(
    file_system: LocalFileSystem,
    root: str,
    config: StoreConfig,
    rows: BatchRows,
    partition: int,
    *,
    queue_count: int = 4,
    block_rows: int = 16,
) -> Iterator[RecordBlock]:
    """A partition's rows as records that a writer can append."""
    made = unjoined_blocks(file_system, root, config, rows, partition, queue_count=queue_count, block_rows=block_rows)
    return (RecordBlock(block.columns, block.parts.joined()) for block in made)


def unjoined_blocks(
    file_system: LocalFileSystem,
    root: str,
    config: StoreConfig,
    rows: BatchRows,
    partition: int,
    *,
    queue_count: int = 4,
    block_rows: int = 16,
) -> Iterator[UnjoinedBlock]:
    """A partition's rows as records that can be staged."""
    settings = put_settings(root, config, file_system)
    rules = MessageRules(
        topics=settings.topics.topics,
        queue_count=queue_count,
        broker_name=settings.broker_name,
        log_file_size=settings.log_file_size_bytes,
        appends_crc=settings.appends_crc,
    )
    digest = sink_digest(rows.batch.sink_id, rows.batch.query_id)
    key_prefix = digest[:4] + partition.to_bytes(2, "big") + rows.batch.batch_id.to_bytes(4, "big")
    messages = MessageRows(rules, key_prefix)
    staged = rows.of_partition(partition)
    for start in range(0, len(staged), block_rows):
        prepared = messages.prepare(_table(staged[start : start + block_rows]), BORN_MS)
        assert prepared.rejected == ()
        yield settings.encode_parts(prepared.messages)


def stage(
    file_system: LocalFileSystem, root: str, config: StoreConfig, rows: BatchRows, *, queue_count: int = 4
) -> list[StagedSegment]:
    """One attempt at every partition of the batch."""
    partitions = range(len(rows.counts))
    return [
        stage_partition(file_system, root, config, rows, partition, queue_count=queue_count) for partition in partitions
    ]


def _table(rows: Sequence[StagedRow]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "body": pa.array([row.body.encode() for row in rows]),
            "topic": pa.array([row.topic for row in rows]),
            "keys": pa.array([row.key for row in rows]),
            "tags": pa.array(["a" if number % 2 else "b" for number in range(len(rows))]),
        }
    )
