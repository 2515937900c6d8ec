"""Wrong usages, each with what the first line of its answer must name: the cause and the cure.

The tables are `reading.py`, `writing.py`, `clients.py`, `commands.py` and, with a session, `by_spark.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink.commit import StoreSink
from spark_mq.sink.partition_writer import stage_rows
from spark_mq.sink.writers import BatchWriter


@dataclass(frozen=True)
class Places:
    """What wrong usages are done to."""

    root: Path
    name_server: str
    """Of a name server that knows no broker."""
    closed: str
    """An address of this machine at which nothing listens."""

    @property
    def store(self) -> str:
        """Topic `orders` with four queues and five messages in the first; `payments` with none; group `billing` has no offsets."""
        return str(self.root / "store")

    def file(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def directory(self, name: str) -> str:
        path = self.root / name
        path.mkdir(exist_ok=True)
        return str(path)


class Wrong(NamedTuple):
    """One wrong usage. `cause` and `cure` stand in the first line of what it is answered."""

    what: str
    do: Callable[[Places], object]
    cause: str
    cure: str


def first_line(do: Callable[[Places], object], places: Places) -> str:
    """Of the error's text. AssertionError where there is no error."""
    try:
        do(places)
    except Exception as error:
        return str(error).partition("\n")[0]
    raise AssertionError("it was taken")


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def source_of(options: Mapping[str, str]) -> SparkMqDataSource:
    """As Spark makes it: names of options in lower case."""
    return SparkMqDataSource({name.lower(): text for name, text in options.items()})


def read(schema: StructType | None = None, **options: str) -> None:
    """`spark.read…load()` and its tasks, without Spark."""
    source = source_of(options)
    if schema is None:
        source.schema()
    reader = source.reader(schema or schema_of(**{_body(options): BinaryType()}))
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def stream(start: dict[str, Any] | None = None, **options: str) -> None:
    """`spark.readStream…load()` up to its first batch, of a new query or from a checkpoint's position."""
    source = source_of(options)
    source.schema()
    reader = source.streamReader(schema_of(**{_body(options): BinaryType()}))
    try:
        limit = reader.getDefaultReadLimit()
        reader.latestOffset(start if start is not None else reader.initialOffset(), limit)  # type: ignore[call-arg]
    finally:
        reader.stop()


def write(
    rows: Mapping[str, Any] | None = None, schema: StructType | None = None, *, overwrite: bool = False, **options: str
) -> None:
    """`df.write…save()` with its task and its commit, without Spark."""
    writer = source_of(options).writer(schema or schema_of(body=StringType()), overwrite)
    assert isinstance(writer, BatchWriter)
    sink = writer.sink
    assert isinstance(sink, StoreSink)
    frame = pa.record_batch(dict(rows or {"body": ["one"]}))
    writer.commit(
        [stage_rows(sink.options, sink.columns, writer.batch, 0, 0, _one(frame), is_only=True, seen=sink.seen)]
    )


def plan_write(
    schema: StructType | None = None, *, overwrite: bool = False, streaming: bool = False, **options: str
) -> None:
    """What Spark asks before a task starts."""
    source = source_of(options)
    if streaming:
        source.streamWriter(schema or schema_of(body=StringType()), overwrite)
    else:
        source.writer(schema or schema_of(body=StringType()), overwrite)


def _body(options: Mapping[str, str]) -> str:
    return "value" if options.get("columns") == "kafka" else "body"


def _one(frame: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield frame
