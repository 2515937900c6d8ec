"""Rows under Kafka's names mean what they mean to Spark's Kafka sink, and our own source's rows under these names what they were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_mq.source.rows import HEADERS, KAFKA_COLUMNS
from storage.rules.message_rows import from_kafka_columns, is_kafka

TYPES = {name: column.arrow_type for name, column in KAFKA_COLUMNS.items()}


def converted(rows: list[dict[str, Any]], **types: pa.DataType) -> list[dict[str, Any]]:
    """The rows under our names; headers are given as pairs."""
    names = [name for name in TYPES if any(name in row for row in rows)]
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "headers":
            values = [value and [{"key": key, "value": text} for key, text in value] for value in values]
        columns.append(pa.array(values, types.get(name, TYPES[name])))
    return from_kafka_columns(pa.RecordBatch.from_arrays(columns, names=names)).to_pylist()


@pytest.mark.parametrize(
    ("names", "expected"), [(["key", "value"], True), (["value", "body"], False), (["body"], False), (["key"], False)]
)
def test_kafkas_names_are_known_by_a_value_without_a_body(names: list[str], expected: bool) -> None:
    assert is_kafka(names) is expected


def test_each_column_becomes_ours_and_the_positions_are_left_out() -> None:
    rows = [
        {"key": b"k", "value": b"v", "topic": "T", "partition": 3, "offset": 9, "timestamp": 5, "timestampType": 1},
        {"key": None, "value": b"", "topic": None, "partition": None},
    ]
    assert converted(rows) == [
        {"body": b"v", "topic": "T", "queue_id": 3, "sharding_key": "k", "keys": "k"},
        {"body": b"", "topic": None, "queue_id": None, "sharding_key": None, "keys": None},
    ]
    assert converted([{"value": "v"}], value=pa.string()) == [{"body": "v"}]


def test_headers_become_properties_in_order() -> None:
    rows = [
        {"value": b"0", "headers": [("b", b"1"), ("a", "ü".encode())]},
        {"value": b"1", "headers": None},
        {"value": b"2", "headers": []},
        {"value": b"3", "headers": [("n", None), ("b", b"2"), ("b", b"3")]},
        {"value": b"4", "headers": [(None, b"x")]},
    ]
    expected = [[("b", "1"), ("a", "ü")], None, [], [("n", None), ("b", "2"), ("b", "3")], [("", "x")]]
    assert [row["properties"] for row in converted(rows)] == expected


def test_headers_of_a_slice_are_those_of_its_rows() -> None:
    headers = [[{"key": f"h{number}", "value": b"v"}] * number for number in range(5)]
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"] * 5), pa.array(headers, HEADERS)], names=["value", "headers"])
    found = from_kafka_columns(batch.slice(2, 2)).to_pylist()
    assert [row["properties"] for row in found] == [[("h2", "v")] * 2, [("h3", "v")] * 3]


def test_tags_and_keys_among_the_headers_become_columns() -> None:
    rows = [
        {"value": b"0", "key": b"user-1", "headers": [("TAGS", b"t"), ("KEYS", b"a"), ("KEYS", b"a b")]},
        {"value": b"1", "key": b"user-2", "headers": [("p", b"1")]},
    ]
    found = [(row["sharding_key"], row["keys"], row["tags"]) for row in converted(rows)]
    assert found == [("user-1", "a b", "t"), ("user-2", "user-2", None)]
    assert "tags" not in converted(rows[1:])[0]


def test_bytes_of_a_key_are_not_judged_here() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"\xff"])], names=["value", "key"])
    assert from_kafka_columns(batch).column("keys").cast(pa.large_binary()).to_pylist() == [b"\xff"]
