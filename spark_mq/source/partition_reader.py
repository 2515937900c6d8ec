"""Spark's partitions: splits that know how they are read, from files or from brokers; and Python's garbage collection meanwhile.

A plan over many queues makes hundreds of thousands of objects, none of them in a cycle. Garbage collection during the plan takes longer
than the plan itself (`collected_later`). A Spark worker runs a full collection after each task: 50 ms with Arrow and Numba loaded,
spent on objects of modules, which stay anyway (`leave_modules_alone`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_mq.source.ranges import MOST_PARTITIONS, pack
from spark_mq.spark_api import InputPartition, TaskContext

if TYPE_CHECKING:  # a task needs no planning
    from spark_mq.source.query_cluster import Split

BATCH_BYTES = 2 << 20
"""Bytes of a batch for the JVM: small enough to stay in the processor's cache until the JVM makes rows of it."""
ROWS_A_COLUMN = 256
"""A batch has so many rows for each of its columns at least, where there are so many: each column costs a few calls on both sides."""


class QueuePartition(InputPartition):
    """Splits as one of Spark's partitions: nearly always one; of very many queues several small ones, read one after the other."""

    def __init__(self, *splits: Split) -> None:
        super().__init__(splits)
        self.splits = splits


def into_partitions(
    splits: Sequence[Split], min_partitions: int | None = None, max_records_per_partition: int | None = None
) -> list[QueuePartition]:
    """The splits in order, as no more partitions than Spark can plan (`pack`)."""
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


_seen_modules = 0


@contextmanager
def collected_later() -> Iterator[None]:
    """No search as long as this lasts; also a decorator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_modules_alone() -> None:
    """For a task's beginning: what is there by now is searched no more, if modules were loaded since this was last said.

    Objects are freed as before when nothing names them; only a cycle that a frozen object is in stays until the worker ends. In a
    worker that runs a user's functions too, those are also cycles of theirs that are there at that moment: few, because Spark
    searches after each task. Outside of a worker it does nothing: there other people's objects are many.
    """
    global _seen_modules
    if TaskContext.get() is not None and len(sys.modules) > _seen_modules:
        _seen_modules = len(sys.modules)
        gc.freeze()
