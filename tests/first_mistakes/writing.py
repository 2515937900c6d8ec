"""Wrong ways to write."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
)

from spark_mq.conditions import named_for_spark
from spark_mq.sink.direct_writer import send_rows
from spark_mq.sink.live_sink import LiveSink
from storage import open_store
from tests.first_mistakes.usages import Places, Wrong, plan_write, schema_of, source_of, write


def _planned(schema: StructType | None = None, **options: str):  # type: ignore[no-untyped-def]
    """A write to a new store that is refused before a task starts."""
    given = {"topic": "orders", **options}
    return lambda places: plan_write(schema, path=str(places.root / "new"), **given)


def _row(schema: StructType | None = None, /, **columns: Any):  # type: ignore[no-untyped-def]
    """A row that a task refuses."""
    rows = {"body": ["one"], **columns}
    kinds: dict[str, DataType] = {
        **dict.fromkeys(("body", "topic", "tags"), StringType()),
        **dict.fromkeys(("queue_id", "delay_level", "flag"), IntegerType()),
        "keys": ArrayType(StringType()),
        "properties": MapType(StringType(), StringType()),
    }
    made = schema or schema_of(**{name: kinds[name] for name in rows})
    named = {} if "topic" in rows else {"topic": "orders"}
    return lambda places: write(rows, made, path=str(places.root / "rows"), **named)


def _held(places: Places) -> None:
    with ExitStack() as held:
        held.enter_context(open_store(places.root / "held", read_only=False, create=True))
        write(path=str(places.root / "held"), topic="orders", lockTimeout="0ms")


def _live(schema: StructType | None = None, **options: str):  # type: ignore[no-untyped-def]
    given = {"nameServer": "127.0.0.1:1", "topic": "orders", **options}
    return lambda places: plan_write(schema, **given)


OPTIONS = (
    Wrong(
        "no options",
        lambda places: plan_write(),
        "no option is given",
        "give path (a store) or nameServer (a running cluster), and topic",
    ),
    Wrong("no place", lambda places: plan_write(topic="orders"), "option path", "nameServer"),
    Wrong("path and nameServer", _live(path="/store"), "option path", "one of path and nameServer"),
    Wrong(
        "kafka.bootstrap.servers",
        _planned(**{"kafka.bootstrap.servers": "a:9092"}),
        "no option kafka.bootstrap.servers",
        "nameServer",
    ),
    Wrong("kafka.acks of a cluster", _live(**{"kafka.acks": "all"}), "no option kafka.acks", "did you mean acks?"),
    Wrong(
        "includeHeaders", _planned(includeHeaders="true"), "option includeHeaders: it is for reading", "column headers"
    ),
    Wrong("a misspelt option", _planned(queuNum="4"), "no option queunum", "did you mean queueNum?"),
    Wrong(
        "a source's option in the sink",
        _planned(startingOffsets="earliest"),
        "option startingOffsets: it is for reading",
        "spark.read",
    ),
    Wrong("subscribe for topic", _planned(subscribe="orders"), "option subscribe: it is for reading", "spark.read"),
    Wrong("a cluster's option with path", _planned(acks="all"), "option acks", "nameServer"),
    Wrong("a store's option with nameServer", _live(queueNum="4"), "option queueNum", "mqadmin updateTopic"),
    Wrong(
        "mode overwrite",
        lambda places: plan_write(overwrite=True, path="/s", topic="t"),
        "overwrite would replace",
        "write in mode append",
    ),
    Wrong(
        "output mode complete",
        lambda places: plan_write(overwrite=True, streaming=True, path="/s", topic="t"),
        "complete would replace",
        "write in mode append",
    ),
    Wrong("a topic with a slash", _planned(topic="a/b"), "option topic", "none of %|a-zA-Z0-9_-"),
    Wrong(
        "a system topic",
        lambda places: write(path=str(places.root / "rows"), topic="TBW102"),
        "it is a system topic, which a broker keeps for itself",
        "correct or filter",
    ),
    Wrong(
        "writeId in a stream",
        lambda places: plan_write(streaming=True, path="/s", topic="t", writeId="w"),
        "option writeId",
        "is for batch queries only",
    ),
    Wrong(
        "a dead letter path alone",
        _planned(deadLetterPath="/d"),
        "option deadLetterPath",
        "belongs to onInvalidRow=deadLetter",
    ),
    Wrong("onInvalidRow=drop", _planned(onInvalidRow="drop"), "option onInvalidRow", "expected fail or deadLetter"),
    Wrong("acks=1", _live(acks="1"), "option acks", "expected stored or all"),
    Wrong(
        "exactlyOnce without a name",
        _live(guarantee="exactlyOnce", stagingPath="/staging"),
        "option writeId",
        "exactlyOnce needs it",
    ),
    Wrong("too large a batch", _live(batchBytes="16m"), "option batchBytes", "up to 4m"),
    Wrong(
        "a stream to a cluster without a checkpoint",
        lambda places: plan_write(streaming=True, nameServer="a:1", topic="t"),
        "option stagingPath",
        "guarantee=atLeastOnce",
    ),
)

PLACES = (
    Wrong(
        "an object store",
        lambda places: plan_write(path="s3://bucket/store", topic="t"),
        "s3://bucket/store",
        "only a local or mounted directory",
    ),
    Wrong(
        "a directory of other things",
        lambda places: write(path=_others(places), topic="t"),
        "is not empty and holds no store",
        "give an empty or new directory",
    ),
    Wrong(
        "the address of a name server",
        lambda places: plan_write(path="localhost:9876", topic="t"),
        "looks like a name server",
        "option nameServer",
    ),
    Wrong("a store that another process writes", _held, "held", "stop the broker or wait"),
    Wrong(
        "a name server where none runs",
        lambda places: _send(places.closed),
        "no name server answers",
        "check the option nameServer",
    ),
)

COLUMNS = (
    Wrong("no topic", lambda places: plan_write(path="/s"), "column topic: it is missing", "option topic"),
    Wrong(
        "no topic, to a cluster",
        lambda places: plan_write(nameServer="a:1"),
        "column topic: it is missing",
        "option topic",
    ),
    Wrong(
        "no topic, Kafka's columns",
        lambda places: plan_write(schema_of(value=BinaryType()), path="/s"),
        "column topic: it is missing",
        "option topic",
    ),
    Wrong("no body", _planned(schema_of(message=StringType())), "column body: it is missing", "there are message"),
    Wrong(
        "a body that is a struct",
        _planned(schema_of(body=schema_of(a=LongType()))),
        "it is STRUCT<A:BIGINT>",
        "write to_json(body)",
    ),
    Wrong(
        "a body that is a number",
        _planned(schema_of(body=IntegerType())),
        "column body: it is INT",
        "expected BINARY or STRING",
    ),
    Wrong("column tag", _planned(schema_of(body=StringType(), tag=StringType())), "column tag", "did you mean tags?"),
    Wrong(
        "a column like no other",
        _planned(schema_of(body=StringType(), customer=StringType())),
        "column customer",
        "properties",
    ),
    Wrong(
        "keys of numbers",
        _planned(schema_of(body=StringType(), keys=ArrayType(LongType()))),
        "column keys: it is ARRAY<BIGINT>",
        "expected STRING or ARRAY<STRING>",
    ),
    Wrong(
        "properties of numbers",
        _planned(schema_of(body=StringType(), properties=MapType(StringType(), LongType()))),
        "column properties",
        "expected MAP<STRING, STRING>",
    ),
    Wrong(
        "a time without a zone",
        _planned(schema_of(body=StringType(), deliver_at=TimestampNTZType())),
        "column deliver_at",
        "expected TIMESTAMP",
    ),
    Wrong(
        "transaction_state without its option",
        _planned(schema_of(body=StringType(), transaction_state=StringType())),
        "column transaction_state",
        "transactional=true",
    ),
    Wrong(
        "transactions exactly once",
        _live(
            schema_of(body=StringType()),
            guarantee="exactlyOnce",
            stagingPath="/s",
            writeId="w",
            transactional="true",
        ),
        "transactional",
        "guarantee=atLeastOnce",
    ),
)

ROWS = (
    Wrong(
        "a null body",
        _row(body=pa.array([None], pa.string())),
        "row 0, column body: it is null",
        "correct or filter such rows",
    ),
    Wrong("a null topic", _row(topic=pa.array([None], pa.string())), "row 0, column topic: it is null", "option topic"),
    Wrong("a body of 5 MB", _row(body=["x" * (5 << 20)]), "column body", "maxMessageSize"),
    Wrong(
        "a tag with a separator",
        _row(tags=["a\x01b"]),
        "column tags: it holds a control character",
        "correct or filter such rows",
    ),
    Wrong(
        "a key with a blank",
        _row(keys=pa.array([["a b"]], pa.list_(pa.string()))),
        "a key of the list holds a blank",
        "correct or filter",
    ),
    Wrong("a queue that is not there", _row(queue_id=pa.array([5000], pa.int32())), "5000 is no queue", "queueNum"),
    Wrong("a negative delay level", _row(delay_level=pa.array([-1], pa.int32())), "column delay_level", "0"),
    Wrong(
        "a property of a broker's",
        _row(properties=pa.array([[("a\x02", "b")]], pa.map_(pa.string(), pa.string()))),
        "column properties",
        "0x02",
    ),
)


def _others(places: Places) -> str:
    directory = places.directory("others")
    places.file("others/notes.txt", "x")
    return directory


def _send(address: str) -> None:
    writer = source_of({"nameServer": address, "topic": "orders", "retryTimeout": "1s"}).writer(
        schema_of(body=StringType()), False
    )
    assert isinstance(writer.sink, LiveSink)
    frames = iter([pa.record_batch({"body": ["one"]})])
    with named_for_spark():
        send_rows(writer.sink.options, writer.sink.columns, 0, bytes(8), frames)


USAGES = (*OPTIONS, *PLACES, *COLUMNS, *ROWS)
