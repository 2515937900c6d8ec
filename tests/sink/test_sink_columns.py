"""Which columns the sink takes of a frame, and which it refuses, from the schema alone."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_mq.conditions import OptionError, SinkModeError, SinkSchemaError
from spark_mq.sink.columns import (
    KAFKA_SINK_COLUMNS,
    SEND_BACK_COLUMNS,
    SINK_COLUMNS,
    InputColumns,
    columns_to_write,
)
from spark_mq.sink.options import SinkOptions
from storage.rules import row_columns as message_columns
from storage.rules.message_rows import KAFKA_COLUMNS
from storage.rules.retry_rows import SENT_BACK_COLUMNS

OPTIONS = SinkOptions(path="/store", topic="T")
TEXT_MAP = MapType(StringType(), StringType())
LATER_COLUMNS = {"delay_level", "deliver_at", "retry_group", "reconsume_times", "origin_msg_id"}
TRANSACTION_COLUMNS = {"transaction_state", "producer_group"}
SEND_BACK = SinkOptions(path="/store", send_back=True, consumer_group="g")
SOURCE_ROW: dict[str, DataType] = {
    **dict.fromkeys(("topic", "broker_name", "msg_id", "unique_key", "tags", "keys"), StringType()),
    **dict.fromkeys(("queue_offset", "prepared_transaction_offset", "commitlog_offset"), LongType()),
    **dict.fromkeys(("queue_id", "flag", "sys_flag", "reconsume_times", "body_crc", "store_size"), IntegerType()),
    **dict.fromkeys(("born_timestamp", "store_timestamp"), TimestampType()),
    **dict.fromkeys(("born_host", "store_host"), StringType()),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
}
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


def take(*, options: SinkOptions = OPTIONS, mode: str = "append", **columns: DataType) -> InputColumns:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return columns_to_write(schema, options, mode=mode)


def test_all_columns_that_messages_are_made_of_can_be_given_and_no_other_is_promised() -> None:
    assert set(SINK_COLUMNS) == set(message_columns.COLUMNS)
    assert set(KAFKA_SINK_COLUMNS) <= set(KAFKA_COLUMNS)


def test_columns_are_taken_in_the_frames_order() -> None:
    assert take(tags=StringType(), body=BinaryType()) == InputColumns(("tags", "body"), kafka=False)
    assert take(value=StringType(), topic=StringType()) == InputColumns(("value", "topic"), kafka=True)


def test_the_sources_columns_go_straight_into_the_sink() -> None:
    taken = take(**SOURCE_ROW)
    own = {"sharding_key", "unique_key", *LATER_COLUMNS, *TRANSACTION_COLUMNS}
    assert set(taken.names) == set(SINK_COLUMNS) - own
    assert not taken.kafka


def test_kafkas_rows_go_straight_into_the_sink() -> None:
    taken = take(
        key=BinaryType(),
        value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
        timestampType=IntegerType(),
        headers=HEADERS,
    )
    assert taken == InputColumns(("key", "value", "topic", "partition", "headers"), kafka=True)


def test_a_unique_key_is_taken_only_where_it_is_to_be_kept() -> None:
    columns = {"body": BinaryType(), "unique_key": StringType()}
    assert take(**columns).names == ("body",)
    assert take(options=SinkOptions(path="/s", topic="T", keep_unique_key=True), **columns).names == (
        "body",
        "unique_key",
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("body", (BinaryType(), StringType())),
        ("keys", (StringType(), ArrayType(StringType()))),
        ("flag", (IntegerType(), ShortType(), LongType())),
        ("queue_id", (IntegerType(), LongType())),
        ("properties", (TEXT_MAP,)),
        ("born_timestamp", (TimestampType(),)),
        ("sharding_key", (StringType(),)),
        ("delay_level", (IntegerType(), ShortType(), LongType())),
        ("deliver_at", (TimestampType(),)),
        ("retry_group", (StringType(),)),
    ],
)
def test_types_that_fit(name: str, kinds: tuple[DataType, ...]) -> None:
    for kind in kinds:
        assert name in take(**{"body": BinaryType(), name: kind}).names


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("body", IntegerType(), "it is INT, expected BINARY or STRING"),
        ("topic", BinaryType(), "expected STRING"),
        ("keys", ArrayType(IntegerType()), "expected STRING or ARRAY<STRING>"),
        ("properties", MapType(StringType(), BinaryType()), "expected MAP<STRING, STRING>"),
        ("properties", StringType(), "expected MAP<STRING, STRING>"),
        ("flag", DoubleType(), "expected INT"),
        ("queue_id", BooleanType(), "expected INT"),
        ("born_timestamp", TimestampNTZType(), "expected TIMESTAMP"),
        ("born_timestamp", LongType(), "expected TIMESTAMP"),
        ("delay_level", StringType(), "expected INT"),
        ("deliver_at", LongType(), "expected TIMESTAMP"),
        ("deliver_at", TimestampNTZType(), "expected TIMESTAMP"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_by_the_columns_name(name: str, kind: DataType, rule: str) -> None:
    with pytest.raises(SinkSchemaError, match=f"column {name}: ") as caught:
        take(**{"body": BinaryType(), name: kind})
    assert rule in str(caught.value)


def test_headers_are_kafkas_or_refused() -> None:
    other = ArrayType(StructType().add("value", BinaryType()).add("key", StringType()))
    for kind in (TEXT_MAP, other, ArrayType(StringType())):
        with pytest.raises(SinkSchemaError, match="column headers: "):
            take(value=BinaryType(), headers=kind)


@pytest.mark.parametrize(
    ("name", "nearest"), [("tag", "tags"), ("Body2", "body"), ("shardingkey", "sharding_key"), ("zzz", None)]
)
def test_an_unknown_column_is_refused_with_the_nearest_known_one(name: str, nearest: str | None) -> None:
    with pytest.raises(SinkSchemaError, match="no message has such a column") as caught:
        take(**{"body": BinaryType(), name: StringType()})
    assert caught.value.column == name
    assert ("did you mean" in str(caught.value)) == (nearest is not None)
    if nearest is not None:
        assert str(caught.value).endswith(f"did you mean {nearest}?")


def test_ours_and_kafkas_names_are_not_mixed() -> None:
    with pytest.raises(SinkSchemaError, match="column value: "):
        take(body=BinaryType(), value=BinaryType())
    with pytest.raises(SinkSchemaError, match="column tags: "):
        take(value=BinaryType(), tags=StringType())


def test_rows_without_a_topic_are_refused_before_a_task_sees_them() -> None:
    nowhere = SinkOptions(path="/s")
    for column in ("body", "value"):
        with pytest.raises(
            SinkSchemaError, match="column topic: it is missing, and so is the option topic; give one of them"
        ):
            take(options=nowhere, **{column: BinaryType()})
    assert take(options=nowhere, body=BinaryType(), topic=StringType()).names == ("body", "topic")
    assert take(options=nowhere, body=BinaryType(), retry_group=StringType()).names == ("body", "retry_group")


def test_a_body_is_needed() -> None:
    with pytest.raises(SinkSchemaError, match="column body: it is missing; there are topic"):
        take(topic=StringType())


def test_modes_but_append_are_refused_by_name() -> None:
    for mode in ("overwrite", "complete"):
        with pytest.raises(SinkModeError, match=mode):
            take(mode=mode, body=BinaryType())


def test_times_and_the_id_of_earlier_tries_are_left_unless_a_row_is_tried_again() -> None:
    columns = {"body": BinaryType(), "reconsume_times": IntegerType(), "origin_msg_id": StringType()}
    assert take(**columns).names == ("body",)
    assert set(take(**columns, retry_group=StringType()).names) == {*columns, "retry_group"}


@pytest.mark.parametrize("name", sorted(TRANSACTION_COLUMNS))
def test_columns_of_transactions_need_their_option(name: str) -> None:
    columns = {"body": BinaryType(), name: StringType()}
    with pytest.raises(SinkSchemaError, match=f"column {name}: it needs the option transactional=true"):
        take(**columns)
    assert take(options=SinkOptions(path="/s", topic="T", transactional=True), **columns).names == ("body", name)


def test_a_transaction_is_not_tried_again() -> None:
    with pytest.raises(SinkSchemaError, match="column retry_group: it is not for transactional=true"):
        take(options=SinkOptions(path="/s", topic="T", transactional=True), body=BinaryType(), retry_group=StringType())


def test_a_number_of_tries_needs_rows_that_are_tried_again() -> None:
    options = SinkOptions(path="/s", topic="T", max_reconsume_times=3)
    with pytest.raises(OptionError, match="option maxReconsumeTimes: belongs to sendBack=true, or to the column"):
        take(options=options, body=BinaryType())
    assert "retry_group" in take(options=options, body=BinaryType(), retry_group=StringType()).names


def test_the_sources_rows_go_back_as_they_are() -> None:
    taken = take(options=SEND_BACK, **SOURCE_ROW)
    assert set(taken.names) == set(SEND_BACK_COLUMNS) - {"delay_level"}
    assert "delay_level" in take(options=SEND_BACK, **SOURCE_ROW, delay_level=IntegerType()).names


def test_what_is_taken_of_rows_that_go_back_is_what_is_read_of_them() -> None:
    assert set(SEND_BACK_COLUMNS) == set(SENT_BACK_COLUMNS)


@pytest.mark.parametrize("name", ["topic", "msg_id", "properties", "body"])
def test_rows_that_go_back_must_say_what_they_were(name: str) -> None:
    with pytest.raises(SinkSchemaError, match=f"column {name}: it is missing"):
        take(options=SEND_BACK, **{column: kind for column, kind in SOURCE_ROW.items() if column != name})


@pytest.mark.parametrize("name", ["deliver_at", "retry_group", "transaction_state", "producer_group"])
def test_rows_that_go_back_cannot_ask_for_something_else(name: str) -> None:
    with pytest.raises(SinkSchemaError, match=f"column {name}: it has no meaning with sendBack=true"):
        take(options=SEND_BACK, **SOURCE_ROW, **{name: StringType()})
    with pytest.raises(SinkSchemaError, match="column zzz: no message has such a column"):
        take(options=SEND_BACK, **SOURCE_ROW, zzz=StringType())
    with pytest.raises(SinkSchemaError, match="column body: it is missing"):
        take(options=SEND_BACK, value=BinaryType())
