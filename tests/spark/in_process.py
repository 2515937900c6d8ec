"""The source's readers, driven in this process in the way that Spark drives them in its own: cheap, and open to view."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq.source.batch_reader import BatchReader
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import QueuePartition
from spark_mq.source.query_cluster import Split
from spark_mq.source.queue_split import QueueSplit
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_api import Filter

Position = dict[str, Any]


Paths = Path | str | list[Path]


def plan_batch(path: Paths, *, filters: Sequence[Filter] = (), **options: str) -> list[QueueSplit]:
    """The splits of a batch read, with these filters pushed."""
    parsed = SourceOptions.parse({**_where(path), "pushDown": "true", **options}, "batch")
    reader = BatchReader(parsed, parsed.column_names)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark evaluates every filter again"
    splits = [split for part in reader.partitions() if isinstance(part, QueuePartition) for split in part.splits]
    return [split for split in splits if isinstance(split, QueueSplit)]


def rows_of(splits: Sequence[Split]) -> list[dict[str, Any]]:
    """What the tasks of these splits yield."""
    return [row for split in splits for batch in split.read() for row in _rows(batch)]


def read_batch(path: Paths, *, filters: Sequence[Filter] = (), **options: str) -> list[dict[str, Any]]:
    return rows_of(plan_batch(path, filters=filters, **options))


def planned_size(splits: Sequence[Split]) -> int:
    """How many queue offsets the splits look at."""
    return sum(end - start for split in splits for start, end in split.ranges)


def open_stream(path: Paths, **options: str) -> StreamReader:
    parsed = SourceOptions.parse(_where(path) | options, "streaming")
    return StreamReader(parsed, parsed.column_names)


def next_batch(reader: StreamReader, start: Position) -> tuple[Position, list[dict[str, Any]]]:
    """One micro-batch: where it ends, and its rows. Without news the end is the start, and Spark runs no batch."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, [] if end == start else rows_between(reader, start, end)


def rows_between(reader: StreamReader, start: Position, end: Position) -> list[dict[str, Any]]:
    parts = [part for part in reader.partitions(start, end) if isinstance(part, QueuePartition)]
    splits = [split for part in parts for split in part.splits]
    return rows_of(splits)


def until(happens: Callable[[], bool]) -> None:
    """Try again until it happens, or raises. Deleted queues are looked for once in a while only."""
    for _ in range(1_000):
        if happens():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def bodies(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["body"].decode() for row in rows]


def _where(path: Paths) -> dict[str, str]:
    if isinstance(path, list):
        return {"paths": json.dumps([str(one) for one in path])}
    return {"path": str(path)}


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows
