"""Spark's partitions: splits that say themselves how they are read, from files or from brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_mq.source.garbage import leave_modules_alone
from spark_mq.source.offsets import QueueId
from spark_mq.source.ranges import MOST_PARTITIONS, pack

BATCH_BYTES = 2 << 20
"""What the JVM takes at a time: such a batch is still in the processor's cache when rows are made of it."""
ROWS_A_COLUMN = 256
"""A batch has so many rows for each of its columns at least, where there are so many: each column costs a few calls on both sides."""


class Split(Protocol):
    """Ranges [start, end) of offsets of one queue, ascending, with all that a task must know to read them. It is pickled."""

    @property
    def queue(self) -> QueueId: ...

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]: ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order. Raises the named conditions."""
        ...


class QueuePartition(InputPartition):
    """Splits as one of Spark's partitions: nearly always one; of very many queues several small ones, read one after the other."""

    def __init__(self, *splits: Split) -> None:
        super().__init__(splits)
        self.splits = splits


def into_partitions(
    splits: Sequence[Split], min_partitions: int | None = None, max_records_per_partition: int | None = None
) -> list[QueuePartition]:
    """The splits in order, as partitions of which Spark can plan a batch (`pack`)."""
    most = max(MOST_PARTITIONS, min_partitions or 0)
    sizes = [sum(end - start for start, end in split.ranges) for split in splits]
    return [QueuePartition(*splits[start:end]) for start, end in pack(sizes, most, max_records_per_partition)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of all its splits, one after the other; nothing of another's partition."""
    leave_modules_alone()
    if isinstance(partition, QueuePartition):
        for split in partition.splits:
            for batch in split.read():
                yield from for_jvm(batch)


def for_jvm(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about BATCH_BYTES, or of more where they have many columns. Nothing is copied."""
    rows = max(ROWS_A_COLUMN * batch.num_columns, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
