"""Which columns of a row the sink takes, by the DataFrame's schema alone: ours, or Kafka's where `value` is there and `body` is not.

The source's other columns are accepted and left, so that its rows go straight into the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_mq.conditions import SinkModeError, SinkSchemaError
from spark_mq.sink_options import SinkOptions
from storage import kafka_rows
from storage.errors import ColumnIllegalError
from storage.message_schema import LEFT_COLUMNS, check_names


class SinkColumn(NamedTuple):
    """A column that a row may have; one line of the README's table."""

    name: str
    sql_type: str
    fits: Callable[[DataType], bool]
    meaning: str


class InputColumns(NamedTuple):
    """The columns to take of each batch, in the frame's order, and whose names they have."""

    names: tuple[str, ...]
    kafka: bool


def _is_text(found: DataType) -> bool:
    return isinstance(found, StringType)


def _is_bytes_or_text(found: DataType) -> bool:
    return isinstance(found, BinaryType | StringType)


def _is_integer(found: DataType) -> bool:
    return isinstance(found, IntegralType)


def _is_keys(found: DataType) -> bool:
    return _is_text(found) or (isinstance(found, ArrayType) and _is_text(found.elementType))


def _is_text_map(found: DataType) -> bool:
    return isinstance(found, MapType) and _is_text(found.keyType) and _is_text(found.valueType)


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].dataType)
        and isinstance(fields[1].dataType, BinaryType)
    )


SINK_COLUMNS: dict[str, SinkColumn] = {
    column.name: column
    for column in (
        SinkColumn("body", "BINARY or STRING", _is_bytes_or_text, "the body; must be there, and not null"),
        SinkColumn("topic", "STRING", _is_text, "topic; null = option topic"),
        SinkColumn("tags", "STRING", _is_text, "property TAGS"),
        SinkColumn("keys", "STRING or ARRAY<STRING>", _is_keys, "property KEYS; a string holds several separated by a space"),
        SinkColumn("properties", "MAP<STRING, STRING>", _is_text_map, "the other properties; see below for reserved names"),
        SinkColumn("flag", "INT", _is_integer, "the client's flag; null = 0"),
        SinkColumn("born_timestamp", "TIMESTAMP", lambda found: isinstance(found, TimestampType),
                   "when the message came to be; null = now"),
        SinkColumn("queue_id", "INT", _is_integer, "the queue; null = by sharding_key, else in turn"),
        SinkColumn("sharding_key", "STRING", _is_text, "rows of one key go to one queue, the one of Java's SelectMessageQueueByHash"),
        SinkColumn("unique_key", "STRING", _is_text, "the id that clients show, with keepUniqueKey; else left"),
    )
}  # fmt: skip

KAFKA_SINK_COLUMNS: dict[str, SinkColumn] = {
    column.name: column
    for column in (
        SinkColumn("key", "BINARY or STRING", _is_bytes_or_text, "the sharding key, and property KEYS"),
        SinkColumn("value", "BINARY or STRING", _is_bytes_or_text, "the body; must be there, and not null"),
        SinkColumn("topic", "STRING", _is_text, "topic; null = option topic"),
        SinkColumn("partition", "INT", _is_integer, "the queue; null = by key, else in turn"),
        SinkColumn("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", _is_headers, "properties"),
    )
}


def columns_to_write(schema: StructType, options: SinkOptions, *, mode: str) -> InputColumns:
    """What to take of a frame's rows. Raises SinkModeError for a mode but append, SinkSchemaError for a column that nobody knows or
    whose type does not fit.
    """
    if mode != "append":
        raise SinkModeError(mode)
    kafka = kafka_rows.is_kafka(schema.names)
    taken = KAFKA_SINK_COLUMNS if kafka else SINK_COLUMNS
    left = kafka_rows.COLUMNS if kafka else LEFT_COLUMNS
    try:
        check_names(schema.names, taken, left, needed="value" if kafka else "body")
    except ColumnIllegalError as error:
        raise SinkSchemaError(error.column, error.rule) from error
    for field in schema:
        if field.name in taken and not taken[field.name].fits(field.dataType):
            found, expected = field.dataType.simpleString().upper(), taken[field.name].sql_type
            raise SinkSchemaError(field.name, f"it is {found}, expected {expected}")
    names = [name for name in schema.names if name in taken]
    if not options.keep_unique_key:
        names = [name for name in names if name != "unique_key"]
    return InputColumns(tuple(names), kafka)
