"""An archive made in this process, by the code that Spark's tasks run; and reads of it as Spark drives them.

Without Spark an archive is made all the same; a test that reads it as Spark does is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_mq.archive.archiver import ArchiveReport, ArchiveTask, TaskResult, archive_once, write_task
from spark_mq.archive.commits import open_or_make
from spark_mq.source.archive_table import ArchiveTable, Place
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import Split
from spark_mq.source.rows import COLUMN_NAMES

if TYPE_CHECKING:
    from spark_mq.source.batch_reader import BatchReader
    from spark_mq.source.partition_reader import QueuePartition

ALL = {"subscribePattern": ".*", "allowEmpty": "true"}


def in_process(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
    return [write_task(task) for task in tasks]


def archived(
    table: Path | str, run_tasks: Any = in_process, *, more: dict[str, Any] | None = None, **source: str
) -> ArchiveReport:
    """One run of the archiver; a new look at the table."""
    options = SourceOptions.parse({**source} if "topic" in source else {**ALL, **source}, "batch")
    return archive_once(options, open_or_make(Place.of(str(table))), run_tasks, **(more or {}))


def opened(table: Path | str) -> ArchiveTable:
    return ArchiveTable.open(Place.of(str(table)))


def _partitions(options: dict[str, str]) -> Iterator[tuple[BatchReader, QueuePartition]]:
    """Each partition of a batch query, with its reader."""
    pytest.importorskip("pyspark", reason="reads as Spark does")
    from spark_mq.source.batch_reader import BatchReader
    from spark_mq.source.partition_reader import QueuePartition

    parsed = SourceOptions.parse(options, "batch")
    reader = BatchReader(parsed, parsed.column_names)
    for part in reader.partitions():
        if isinstance(part, QueuePartition):
            yield reader, part


def splits_of(**options: str) -> list[Split]:
    return [split for _, part in _partitions(options) for split in part.splits]


def rows_of(**options: str) -> list[dict[str, Any]]:
    """The rows of a batch read with these options, queue by queue."""
    batches = [batch for reader, part in _partitions(options) for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def by_queue(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["broker_name"], row["queue_id"], row["queue_offset"]))


def table_rows(table: Path | str) -> list[dict[str, Any]]:
    """The messages of the table as a reader of Delta that is not ours has them (delta-rs with Arrow), with the log's columns."""
    found = opened(table).delta.to_pyarrow_table().to_pylist()
    return by_queue(
        [{name: row[name] for name in (*COLUMN_NAMES, "incarnation")} for row in found if row["gap_end"] is None]
    )
