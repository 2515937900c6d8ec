"""Which tables are tables of messages: what is let through can be put, what cannot is refused by its column's name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_mq.source.rows import COLUMN_NAMES, CORRUPT_COLUMN, EARLIER_PLACE_COLUMN_NAMES
from storage.errors import ColumnIllegalError
from storage.rules.message_rows import MessageRows
from storage.rules.row_columns import COLUMNS, LEFT_COLUMNS, check_columns
from storage.rules.row_rules import MessageRules

NOW_MS = 1_700_000_000_000
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.null()]
INTEGERS = [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64(), pa.null()]
BODIES = [
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.dictionary(pa.int8(), pa.binary()), pa.dictionary(pa.int8(), pa.string())),
]
TIMES = [*(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")), pa.timestamp("us"), pa.int64(), pa.null()]
MAP = pa.map_(pa.string(), pa.string())


def schema_of(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(({"body": pa.binary()} | columns).items()))


ACCEPTED: list[tuple[str, pa.DataType, Any]] = [
    *(("body", kind, b"abc") for kind in BODIES),
    *((name, kind, "abc") for name in ("topic", "tags", "keys", "sharding_key", "unique_key") for kind in TEXTS),
    *(("keys", kind(text), ["a", "b"]) for kind in (pa.list_, pa.large_list) for text in TEXTS),
    *((name, kind, 1) for name in ("flag", "queue_id") for kind in INTEGERS),
    *(("born_timestamp", kind, 1_000) for kind in TIMES),
    *(("properties", pa.map_(kind, kind), [("a", "b")]) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    ("properties", pa.null(), None),
]


@pytest.mark.parametrize(("name", "kind", "value"), ACCEPTED, ids=lambda value: str(value))
def test_every_type_that_is_let_through_makes_messages(name: str, kind: pa.DataType, value: object) -> None:
    check_columns(schema_of(**{name: kind}))
    is_nothing = pa.types.is_null(kind)
    columns = {"body": pa.array([b"abc"], pa.binary())}
    if isinstance(value, list) and not is_nothing and pa.types.is_null(getattr(kind, "value_type", None) or pa.int8()):
        value = [None]
    columns[name] = pa.nulls(1) if is_nothing else array_of(value, kind)
    rows = MessageRows(MessageRules(topic="T", keep_unique_key=True), bytes(10))
    for batch in (pa.record_batch(columns), pa.record_batch(columns).slice(0, 0)):
        prepared = rows.prepare(batch, NOW_MS)
        assert not prepared.rejected
        assert prepared.messages.bodies.cast(pa.large_binary()).to_pylist() == [b"abc"] * len(batch)


def array_of(value: object, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array([value], kind.value_type).dictionary_encode()
    if pa.types.is_string_view(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = value.decode() if isinstance(value, bytes) else value
        return pa.array([text], kind)
    return pa.array([value], kind)


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("body", pa.int64(), "it is int64, expected binary or string"),
        ("body", pa.list_(pa.binary()), "expected binary or string"),
        ("topic", pa.binary(), "it is binary, expected string"),
        ("tags", pa.list_(pa.string()), "expected string"),
        ("tags", pa.dictionary(pa.int8(), pa.int8()), "expected string"),
        ("keys", pa.list_(pa.int64()), "expected string or list<string>"),
        ("properties", pa.struct([("a", pa.string())]), "expected map<string, string>"),
        ("properties", pa.map_(pa.string(), pa.int64()), "expected map<string, string>"),
        ("properties", pa.list_(MAP), "expected map<string, string>"),
        ("queue_id", pa.float64(), "it is double, expected a whole number"),
        ("flag", pa.bool_(), "it is bool, expected a whole number"),
        ("flag", pa.string(), "expected a whole number"),
        ("born_timestamp", pa.float64(), "expected timestamp, or whole milliseconds"),
        ("born_timestamp", pa.date32(), "expected timestamp"),
        ("sharding_key", pa.int32(), "it is int32, expected string"),
        ("unique_key", pa.binary(16), "expected string"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_by_the_columns_name(name: str, kind: pa.DataType, rule: str) -> None:
    with pytest.raises(ColumnIllegalError) as caught:
        check_columns(schema_of(**{name: kind}))
    assert caught.value.column == name
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("tag", "; did you mean tags?"),
        ("Topic", "; did you mean topic?"),
        ("queueId", "; did you mean queue_id?"),
        ("zzz", "; drop it, or put it into the column properties"),
    ],
)
def test_an_unknown_column_is_refused_with_the_nearest_known_one(name: str, rest: str) -> None:
    with pytest.raises(ColumnIllegalError, match=f"^column {name}: no message has such a column") as caught:
        check_columns(schema_of(**{name: pa.string()}))
    assert str(caught.value).endswith(f"such a column{rest}")


def test_a_body_is_needed_and_no_column_may_be_there_twice() -> None:
    for schema, found in ((pa.schema([("topic", pa.string())]), "topic"), (pa.schema([]), "no columns")):
        with pytest.raises(ColumnIllegalError, match=f"column body: it is missing; there are {found}"):
            check_columns(schema)
    with pytest.raises(ColumnIllegalError, match="column tags: it is there twice"):
        check_columns(pa.schema([("body", pa.binary()), ("tags", pa.string()), ("tags", pa.string())]))


def test_the_sources_columns_are_taken_or_left_and_these_are_all() -> None:
    assert not set(COLUMNS) & set(LEFT_COLUMNS)
    assert set(LEFT_COLUMNS) == {*COLUMN_NAMES, *EARLIER_PLACE_COLUMN_NAMES, CORRUPT_COLUMN} - set(COLUMNS)
    check_columns(schema_of(**dict.fromkeys(LEFT_COLUMNS, pa.float32())))
