"""The ceiling: a Python data source that does nothing but yield Arrow batches it already has.

What it loses against a source in the JVM is what Spark's Python data source costs; what another Python
source loses against it is that source's own work. The batch is a sample of the source that it is compared
with, so that schema and data are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

BATCH_ROWS = {"kafka": 2_048, "all": 10_000}
"""The best sizes found, by columns: 10,000 rows of Kafka's columns are up to a seventh slower, 2,048 of all columns by a fourteenth."""


class PrebuiltSource(DataSource):
    """`batch` (an Arrow file with one batch), `rows` (in all), `partitions`; the schema is the user's."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return PrebuiltReader(options["batch"], int(options["rows"]), int(options["partitions"]))


class Share(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class PrebuiltReader(DataSourceReader):
    def __init__(self, path: str, rows: int, partitions: int) -> None:
        self.path = path
        self.rows = rows
        self.count = partitions

    def partitions(self) -> list[InputPartition]:
        ends = [self.rows * i // self.count for i in range(self.count + 1)]
        return [Share(end - start) for start, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        with pa.memory_map(self.path) as file, pa.ipc.open_file(file) as batches:
            batch = batches.get_batch(0)
            for _ in range(partition.rows // batch.num_rows):
                yield batch
            if rest := partition.rows % batch.num_rows:
                yield batch.slice(0, rest)


def read_prebuilt(like: DataFrame, path: Path, *, batch_rows: int, rows: int, partitions: int) -> DataFrame:
    """`rows` rows with the schema of `like`: its first `batch_rows`, kept at `path`, again and again."""
    spark = like.sparkSession
    schema = to_arrow_schema(like.schema, timezone="UTC")  # what Spark compares a batch's schema with
    sample = like.limit(batch_rows).toArrow().cast(schema).combine_chunks()
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(path, schema) as file:
        file.write_table(sample)
    spark.dataSource.register(PrebuiltSource)
    return (
        spark.read.format("prebuilt")
        .schema(like.schema)
        .options(batch=str(path.resolve()), rows=rows, partitions=partitions)
        .load()
    )
