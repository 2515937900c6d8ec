"""The ceiling of sinks: a Python data sink that takes Arrow batches and counts their rows.

What it loses against a sink in the JVM is what Spark's Python data sources cost; what another Python sink loses
against it is that sink's own work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class CountingSink(DataSource):
    """Leaves the number of rows in the file that option `counted` names, as decimal digits."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchCounter(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamCounter(self.options)


@dataclass
class Count(WriterCommitMessage):
    rows: int


class BatchCounter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.counted = Path(options["counted"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Count:
        return Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _leave(self.counted, messages)


class StreamCounter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.counted = Path(options["counted"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Count:
        return Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _leave(self.counted, messages)


def _leave(counted: Path, messages: Iterable[WriterCommitMessage | None]) -> None:
    counted.write_text(str(sum(message.rows for message in messages if isinstance(message, Count))))
