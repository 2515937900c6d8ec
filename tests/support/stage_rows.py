"""Staged segments as a sink's tasks leave them, for tests of what a commit makes of them.

A row's body says where it belongs, `SINK/BATCH/PARTITION/NUMBER`, its topic and key follow from its number. So a test can tell from the
log alone which rows are there, how often, and in which order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from storage import StoreConfig
from storage.batch_ledger import Batch
from storage.files.file_system import LocalFileSystem
from storage.format.record_block import encode_block
from storage.message_rows import MessageRows
from storage.message_rules import MessageRules
from storage.put_settings import put_settings
from storage.staged_segment import SegmentWriter, StagedSegment, sink_digest

BORN_MS = 1_700_000_000_000
_attempts = itertools.count()


class StagedRow(NamedTuple):
    """One row as it is to be found in the store."""

    topic: str
    body: str
    key: str


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch: so many in each of its partitions, taking turns among the topics."""

    batch: Batch
    counts: tuple[int, ...]
    topics: tuple[str, ...] = ("orders",)
    padding: int = 0
    """Bytes that each body is longer."""

    def of_partition(self, partition: int) -> list[StagedRow]:
        name = f"{self.batch.sink_id}/{self.batch.batch_id}/{partition}"
        return [
            StagedRow(self.topics[number % len(self.topics)], f"{name}/{number}{'.' * self.padding}", f"{name}/{number}")
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
    block_rows: int = 16,
    finish: bool = True,
) -> StagedSegment:
    """One attempt of one task: its rows, durably staged. The same rows get the same unique keys and queues each time.

    Without `finish` the attempt dies before it has written its last block; what it returns is of no use then.
    """
    settings = put_settings(root, config, file_system)
    rules = MessageRules(
        topics=settings.topics.topics,
        queue_count=queue_count,
        broker_name=settings.broker_name,
        log_file_size=settings.log_file_size_bytes,
    )
    batch = rows.batch
    digest = sink_digest(batch.sink_id, batch.query_id)
    name = f"{batch.batch_id}-{partition}-{next(_attempts)}"
    writer = SegmentWriter(file_system, root, digest.hex(), name)
    messages = MessageRows(rules, digest[:4] + partition.to_bytes(2, "big") + batch.batch_id.to_bytes(4, "big"))
    staged = rows.of_partition(partition)
    for start in range(0, len(staged), block_rows):
        block = _table(staged[start : start + block_rows])
        prepared = messages.prepare(block, BORN_MS)
        assert prepared.rejected == ()
        writer.append(encode_block(prepared.messages, settings.host))
    if not finish:
        return StagedSegment(writer.path, 0, 0, 0, 0, 0, "", "")
    segment = writer.finish()
    assert segment is not None, "a partition has rows"
    return segment


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
