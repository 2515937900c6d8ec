"""The columns that the sink takes, by the DataFrame's schema alone: this package's, or Kafka's if there is `value` and no `body`.

The source's other columns are accepted and ignored, so that its rows go straight into the sink.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_mq.conditions import (
    OptionError,
    SinkModeError,
    SinkSchemaError,
    WritesOwnSourceError,
    names,
)
from spark_mq.sink.options import LiveSinkOptions, RowOptions, SinkOptions
from spark_mq.spark_api import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from storage.errors import ColumnIllegalError
from storage.rules.message_rows import KAFKA_COLUMNS, is_kafka
from storage.rules.retry_rows import NEEDED_COLUMNS
from storage.rules.row_columns import LEFT_COLUMNS, check_names


class SinkColumn(NamedTuple):
    """A column that a row may have; one line of a table in docs/writing.md."""

    name: str
    sql_type: str
    fits: Callable[[DataType], bool]
    meaning: str


class InputColumns(NamedTuple):
    """The columns to take of each batch, in the frame's order, whose names they have, and where their rows may not go."""

    names: tuple[str, ...]
    kafka: bool = False
    own_topics: frozenset[str] = frozenset()
    """Topics that the query reads where it writes (`own_source.py`)."""

    def refuse_own(self, topics: Collection[str]) -> None:
        """Raises WritesOwnSourceError where rows go to a topic that the query reads."""
        for topic in sorted(self.own_topics.intersection(topics)):
            raise WritesOwnSourceError(topic)


def _is_text(found: DataType) -> bool:
    return isinstance(found, StringType)


def _is_bytes_or_text(found: DataType) -> bool:
    return isinstance(found, BinaryType | StringType)


def _is_integer(found: DataType) -> bool:
    return isinstance(found, IntegralType)


def _is_time(found: DataType) -> bool:
    return isinstance(found, TimestampType)


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
        SinkColumn("body", "BINARY or STRING", _is_bytes_or_text, "the body; required, not null"),
        SinkColumn("topic", "STRING", _is_text, "topic; ignored if option topic is given"),
        SinkColumn("tags", "STRING", _is_text, "property TAGS"),
        SinkColumn("keys", "STRING or ARRAY<STRING>", _is_keys, "property KEYS; a string holds several keys, separated by spaces"),
        SinkColumn("properties", "MAP<STRING, STRING>", _is_text_map, "the other properties; see below for reserved names"),
        SinkColumn("flag", "INT", _is_integer, "the client's flag; null = 0"),
        SinkColumn("born_timestamp", "TIMESTAMP", _is_time, "creation time of the message; null = now"),
        SinkColumn("queue_id", "INT", _is_integer, "the queue; null = by sharding_key, else in turn"),
        SinkColumn("sharding_key", "STRING", _is_text, "rows with equal keys go to one queue, as with Java's SelectMessageQueueByHash"),
        SinkColumn("unique_key", "STRING", _is_text, "the id that clients show; ignored without keepUniqueKey"),
        SinkColumn("delay_level", "INT", _is_integer,
                   "deliver it later, by this level of messageDelayLevel; null or 0 = immediately, above the last = the "
                   "last"),
        SinkColumn("deliver_at", "TIMESTAMP", _is_time,
                   "deliver it at this time, at most timerMaxDelaySec ahead; null = immediately, a past time = when the "
                   "timer runs next; not together with delay_level"),
        SinkColumn("retry_group", "STRING", _is_text,
                   "send the row to this consumer group's retry topic at delay_level (null = 3 + reconsume_times), or "
                   "to its dead letters if reconsume_times exceeds the maximum; null = to its topic"),
        SinkColumn("reconsume_times", "INT", _is_integer,
                   "how often consumption has failed; only with retry_group or sendBack"),
        SinkColumn("origin_msg_id", "STRING", _is_text, "the id before its first retry; only with retry_group"),
        SinkColumn("transaction_state", "STRING", _is_text,
                   "with transactional: commit (or null), rollback or unknown (the broker checks with the producer); "
                   "such a row cannot be delayed"),
        SinkColumn("producer_group", "STRING", _is_text,
                   "with transactional: the producer group for transaction checks; ignored if option producerGroup is "
                   "given"),
    )
}  # fmt: skip

SEND_BACK_COLUMNS: dict[str, SinkColumn] = {
    column.name: column
    for column in (
        SinkColumn("topic", "STRING", _is_text, "the topic it was consumed from; becomes RETRY_TOPIC"),
        SinkColumn("msg_id", "STRING", _is_text, "becomes ORIGIN_MESSAGE_ID"),
        SinkColumn("properties", "MAP<STRING, STRING>", _is_text_map, "all its properties; they are kept"),
        SinkColumn("body", "BINARY or STRING", _is_bytes_or_text, "the uncompressed body"),
        SinkColumn("reconsume_times", "INT", _is_integer, "how often consumption has failed; null = 0"),
        SinkColumn("delay_level", "INT", _is_integer, "delay of the retry; null or 0 = level 3 + reconsume_times, negative = never"),
        SinkColumn("born_timestamp", "TIMESTAMP", _is_time, "creation time of the message; null = now"),
        SinkColumn("born_host", "STRING", _is_text, "address:port of its producer; default: the store's"),
        SinkColumn("flag", "INT", _is_integer, "the client's flag; null = 0"),
        SinkColumn("sys_flag", "INT", _is_integer, "only the bits for tags and commit are kept"),
    )
}  # fmt: skip
"""Columns with sendBack; the first four are needed."""

LIVE_SEND_BACK_COLUMNS: dict[str, SinkColumn] = {
    column.name: column
    for column in (
        SinkColumn("topic", "STRING", _is_text, "the topic it was consumed from"),
        SinkColumn("msg_id", "STRING", _is_text, "its broker's address and log offset, as in the source's column"),
        SinkColumn("broker_name", "STRING", _is_text,
                   "the broker with that log; default: the broker at the address in msg_id"),
        SinkColumn("delay_level", "INT", _is_integer,
                   "delay of the retry; null or 0 = level 3 + its reconsume times, negative = never"),
    )
}  # fmt: skip
"""Columns with sendBack for rows of a running broker; the first two are needed."""

KAFKA_SINK_COLUMNS: dict[str, SinkColumn] = {
    column.name: column
    for column in (
        SinkColumn("key", "BINARY or STRING", _is_bytes_or_text, "the sharding key, and property KEYS"),
        SinkColumn("value", "BINARY or STRING", _is_bytes_or_text, "the body; required, not null"),
        SinkColumn("topic", "STRING", _is_text, "topic; ignored if option topic is given"),
        SinkColumn("partition", "INT", _is_integer, "the queue; null = by key, else in turn"),
        SinkColumn("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", _is_headers, "properties"),
    )
}


def columns_to_write(schema: StructType, options: SinkOptions, *, mode: str) -> InputColumns:
    """What a store takes of a frame's rows. Raises SinkModeError for a mode but append, SinkSchemaError for a column that does not
    exist, whose type does not fit, or that needs another option.
    """
    if mode != "append":
        raise SinkModeError(mode)
    if not options.send_back:
        return _columns_of_messages(schema, options)
    if "body" not in schema.names:
        raise SinkSchemaError("body", f"it is missing; sendBack=true takes {', '.join(SEND_BACK_COLUMNS)}")
    return _columns_sent_back(schema, SEND_BACK_COLUMNS, NEEDED_COLUMNS)


def columns_to_send(schema: StructType, options: LiveSinkOptions, *, mode: str) -> InputColumns:
    """The columns for running brokers. Raises as `columns_to_write`."""
    if mode != "append":
        raise SinkModeError(mode)
    for name in ("transaction_state", "producer_group") if options.is_exact else ():
        if name in schema.names:
            raise SinkSchemaError(name, _HALVES_ARE_NOT_SEEN)
    if options.send_back:
        return _columns_sent_back(schema, LIVE_SEND_BACK_COLUMNS, ("topic", "msg_id"))
    # A message is born when it is sent, as with Java's producer.
    return _columns_of_messages(schema, options, not_taken=("born_timestamp",))


_HALVES_ARE_NOT_SEEN = (
    "a half message lies in a system topic, where exactlyOnce does not look for it; say guarantee=atLeastOnce"
)


def _columns_of_messages(schema: StructType, options: RowOptions, *, not_taken: Sequence[str] = ()) -> InputColumns:
    kafka = is_kafka(schema.names)
    known = KAFKA_SINK_COLUMNS if kafka else SINK_COLUMNS
    taken = {name: column for name, column in known.items() if name not in not_taken}
    left = KAFKA_COLUMNS if kafka else (*LEFT_COLUMNS, *not_taken)
    _check_types(schema, taken, left, needed="value" if kafka else "body")
    names = _names_to_take(schema.names, taken, options)
    # What is tried again has its group's topic.
    if options.topic is None and "topic" not in names and "retry_group" not in names:
        raise SinkSchemaError("topic", "it is missing, and so is the option topic; give one of them")
    return InputColumns(names, kafka)


def _names_to_take(given: Sequence[str], taken: Collection[str], options: RowOptions) -> tuple[str, ...]:
    """Which of the known columns are taken, in the frame's order. Raises SinkSchemaError for a column that needs another option, and
    OptionError for an option that needs a column.
    """
    names = [name for name in given if name in taken]
    if not options.keep_unique_key:
        names = [name for name in names if name != "unique_key"]
    if "retry_group" not in names:
        names = [name for name in names if name not in ("reconsume_times", "origin_msg_id")]
        if options.max_reconsume_times is not None:
            raise OptionError("maxReconsumeTimes", "belongs to sendBack=true, or to the column retry_group")
    elif options.transactional:
        raise SinkSchemaError("retry_group", "it is not for transactional=true: what is tried again is no transaction")
    for name in ("transaction_state", "producer_group"):
        if name in names and not options.transactional:
            raise SinkSchemaError(name, "it needs the option transactional=true")
    return tuple(names)


OPTION_OF = {"topic": "topic", "producer_group": "producerGroup"}
"""By column, the option that says the same of all rows. It comes before the column; no other option says what a column says."""


def warn_of_overruled(tasks: Iterable[Mapping[str, str]]) -> None:
    """Say, once in a process, that rows name something else than an option says of all rows. Java: no counterpart; Spark's Kafka sink
    says nothing.
    """
    for column, option in OPTION_OF.items():
        if others := sorted({task[column] for task in tasks if column in task}):
            text = f"rows name {names(others)} in column {column}: all rows are written as option {option} says"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _columns_sent_back(schema: StructType, taken: Mapping[str, SinkColumn], needed: Sequence[str]) -> InputColumns:
    """The columns of rows that consumers failed on. Raises SinkSchemaError."""
    left = [name for name in (*LEFT_COLUMNS, *SINK_COLUMNS) if name not in (*taken, *_NOT_SENT_BACK)]
    for name in _NOT_SENT_BACK:
        if name in schema.names:
            raise SinkSchemaError(
                name, "it has no meaning with sendBack=true; there is delay_level, and the option consumerGroup"
            )
    for one in needed:
        _check_types(schema, taken, left, needed=one)
    return InputColumns(tuple(name for name in schema.names if name in taken))


def _check_types(schema: StructType, taken: Mapping[str, SinkColumn], left: Sequence[str], *, needed: str) -> None:
    """Raises SinkSchemaError for a column neither taken nor left, for one whose type does not fit, and without the needed one."""
    try:
        check_names(schema.names, taken, left, needed=needed)
    except ColumnIllegalError as error:
        raise SinkSchemaError(error.column, error.rule) from error
    for field in schema:
        if field.name in taken and not taken[field.name].fits(field.dataType):
            found, expected = field.dataType.simpleString().upper(), taken[field.name].sql_type
            is_nested = isinstance(field.dataType, StructType | MapType | ArrayType) and "STRING" in expected
            cure = f"write to_json({field.name})" if is_nested and field.name in ("body", "value") else "cast it"
            raise SinkSchemaError(field.name, f"it is {found}, expected {expected}: {cure}")


_NOT_SENT_BACK = ("deliver_at", "retry_group", "transaction_state", "producer_group")
