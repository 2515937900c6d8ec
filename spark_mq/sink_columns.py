"""Which columns of a row the sink takes, by the DataFrame's schema alone: ours, or Kafka's where `value` is there and `body` is not.

The source's other columns are accepted and left, so that its rows go straight into the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from spark_mq.option_values import nearest
from spark_mq.options import COLUMN_NAMES, KAFKA_COLUMN_NAMES, KAFKA_HEADERS
from spark_mq.sink_options import SinkOptions


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
    present = {field.name for field in schema}
    kafka = "value" in present and "body" not in present
    taken = KAFKA_SINK_COLUMNS if kafka else SINK_COLUMNS
    left = {*KAFKA_COLUMN_NAMES, KAFKA_HEADERS} if kafka else set(COLUMN_NAMES)
    names = []
    for field in schema:
        if field.name in taken:
            column = taken[field.name]
            if not column.fits(field.dataType):
                raise SinkSchemaError(
                    field.name, f"it is {field.dataType.simpleString().upper()}, expected {column.sql_type}"
                )
            names.append(field.name)
        elif field.name not in left:
            raise _unknown(field.name, {**dict.fromkeys(left), **taken})
    if len(set(names)) != len(names):
        raise SinkSchemaError(next(name for name in names if names.count(name) > 1), "it is there twice")
    required = "value" if kafka else "body"
    if required not in names:
        raise SinkSchemaError("body", f"it is missing; the frame has {', '.join(schema.names) or 'no columns'}")
    if not options.keep_unique_key:
        names = [name for name in names if name != "unique_key"]
    return InputColumns(tuple(names), kafka)


def _unknown(name: str, known: Mapping[str, object]) -> SinkSchemaError:
    like = nearest(name, known)
    return SinkSchemaError(name, "the sink takes no such column" + ("" if like is None else f"; did you mean {like}?"))
