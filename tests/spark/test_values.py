"""Bodies as typed values: what does not parse has its reason beside it, and is counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_mq.conditions import OptionError
from spark_mq.values import (
    ValueSchema,
    avro_schema,
    count_values,
    json_schema,
    parse_confluent,
    parse_values,
    protobuf_schema,
    split_values,
    value_fields,
)
from tests.support.python_script import run_script

SCHEMA = {
    "type": "object",
    "required": ["order"],
    "properties": {
        "order": {"type": "integer"},
        "amount": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
}


@pytest.fixture
def schema(tmp_path: Path) -> ValueSchema:
    (tmp_path / "orders.schema.json").write_text(json.dumps(SCHEMA))
    return json_schema(tmp_path / "orders.schema.json")


def test_a_json_schema_becomes_columns(schema: ValueSchema) -> None:
    assert (
        schema.struct.simpleString()
        == "struct<order:bigint,amount:double,at:timestamp,lines:array<struct<sku:string>>>"
    )
    assert schema.required == ("order",)


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ({"type": "string"}, "the schema's type must be object"),
        ({"type": "object", "properties": {"a": {"oneOf": []}}}, "field a has no single type"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "field a has no single type"),
        (
            {"type": "object", "properties": {"a": {"type": "object"}}},
            "field a is object, which no column of a table can be",
        ),
    ],
)
def test_a_schema_that_no_table_can_have_is_refused(tree: dict[str, Any], rule: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(tree))
    with pytest.raises(OptionError, match=rule):
        json_schema(tmp_path / "s.json")


def test_a_text_that_is_no_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    for read in (json_schema, avro_schema):
        with pytest.raises(OptionError, match="is no JSON"):
            read(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("content", "message", "rule"),
    [
        (
            b'syntax = "proto3"; message Order {}',
            "shop.Order",
            "has no descriptor of a message shop.Order: make it with protoc",
        ),
        (b"\x0a\x07\x12\x05Order", "shop.Refund", "has no descriptor of a message shop.Refund"),
        (b"\x0a\x07\x12\x05Order", "", "which of its messages"),
        (b"", "Order", "has no descriptor"),
    ],
)
def test_a_file_that_has_not_the_message_is_refused(content: bytes, message: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "orders.desc").write_bytes(content)
    with pytest.raises(OptionError, match=rule):
        protobuf_schema(tmp_path / "orders.desc", message)


BODIES = {
    '{"order": 1, "amount": 2.5, "lines": [{"sku": "a"}]}': None,
    '{"order": 2, "amount": null}': None,
    '{"order": 3, "amount": "12.50"}': "amount is not DOUBLE",
    '{"order": 4, "coupon": "SPRING"}': "it also has coupon",
    '{"amount": 5.0}': "it has no order",
    '{"order": "six", "at": "never"}': "order is not BIGINT, at is not TIMESTAMP",
    "order 7": "it is no JSON object",
    '{"order": 8, "lines": [{"sku": 1}]}': None,  # a number is a text to Spark, and its digits are not lost
    '{"order": 9': "it is no JSON object",
}


@pytest.mark.spark
def test_each_body_has_a_value_or_a_reason(spark: SparkSession, schema: ValueSchema) -> None:
    messages = spark.createDataFrame([(bytes(body, "utf-8"), body) for body in BODIES], "body BINARY, text STRING")
    parsed = parse_values(messages, schema)
    assert parsed.columns == ["body", "text", "value_error", "value"]
    rows = {row.text: row for row in parsed.collect()}
    assert {body: row.value_error for body, row in rows.items()} == BODIES
    assert all((row.value is None) == (row.value_error is not None) for row in rows.values())
    assert rows['{"order": 1, "amount": 2.5, "lines": [{"sku": "a"}]}'].value.amount == 2.5
    whole, failed = split_values(count_values(parsed))
    assert whole.count() + failed.count() == len(BODIES)
    assert failed.count() == sum(reason is not None for reason in BODIES.values())


@pytest.mark.spark
def test_bodies_of_confluents_wire_format_name_their_schema(spark: SparkSession) -> None:
    old, new = ValueSchema("json", "order BIGINT"), ValueSchema("json", "order BIGINT, coupon STRING")
    bodies = [
        b"\0\0\0\0\x01" + b'{"order": 1}',
        b"\0\0\0\0\x02" + b'{"order": 2, "coupon": "x"}',
        b"\0\0\0\x01\x02" + b'{"order": 3}',
        b'{"order": 4}',
        b"\0",
        b"\0\xff\xff\xff\xff{}",
    ]
    rows = parse_confluent(
        spark.createDataFrame([(body,) for body in bodies], "body BINARY"), {1: old, 2: new}
    ).collect()
    assert [row.value_error for row in rows] == [
        None,
        None,
        "schema id 258 is not known",
        "it does not begin with a zero byte and a schema id",
        "it does not begin with a zero byte and a schema id",
        "schema id 4294967295 is not known",
    ]
    assert [tuple(row.value) for row in rows[:2]] == [(1, None), (2, "x")]


AVRO = """
import json
from spark_mq import build_session
from spark_mq.values import ValueSchema, parse_confluent, parse_values
fields = [{"name": "order", "type": "long"}, {"name": "coupon", "type": ["null", "string"], "default": None}]
old, new = ({"type": "record", "name": "Order", "fields": some} for some in (fields[:1], fields))
spark = build_session("test", master="local[1]")
frame = lambda *bodies: spark.createDataFrame([(body,) for body in bodies], "body BINARY")
schema = ValueSchema("avro", json.dumps(new))
rows = parse_values(frame(b"\\x02\\x00", b"\\x04\\x02\\x02x", b"\\x04\\x02\\x50x", b""), schema).collect()
print("ROWS", [(row.value and tuple(row.value), row.value_error) for row in rows])
registry = {7: ValueSchema("avro", json.dumps(old)), 9: schema}
framed = frame(b"\\0\\0\\0\\0\\x07\\x02", b"\\0\\0\\0\\0\\x09\\x04\\x02\\x02x", b"\\0\\0\\0\\0\\x08\\x02")
rows = parse_confluent(framed, registry).collect()
print("ROWS", [(row.value and tuple(row.value), row.value_error) for row in rows])
"""


@pytest.mark.spark
@pytest.mark.network
@pytest.mark.long
def test_avro_is_read_by_its_own_schema_and_shown_by_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages org.apache.spark:spark-avro_2.13:4.2.0 pyspark-shell")
    ran = run_script(AVRO, tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [line for line in ran.stdout.splitlines() if line.startswith("ROWS")] == [
        "ROWS [((1, None), None), ((2, 'x'), None), (None, 'it is not of the Avro schema'), (None, 'it is not of the Avro schema')]",
        "ROWS [((1, None), None), ((2, 'x'), None), (None, 'schema id 8 is not known')]",
    ]


JARS = os.environ.get("SPARK_MQ_PROTOBUF_JARS")
"""Jars of Spark's parser of Protobuf, with commas between them, for where Maven Central has not this release's package."""
PROTOBUF_PARSER = f"--jars {JARS}" if JARS else f"--packages org.apache.spark:spark-protobuf_2.13:{pyspark.__version__}"
PROTOBUF = """
from google.protobuf import descriptor_pb2
from spark_mq import build_session
from spark_mq.values import parse_confluent, parse_values, protobuf_schema, value_fields
def made(*names):
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="orders.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, name in enumerate(names, start=1):
        order.field.add(name=name, number=number, label=3 if name == "lines" else 1, type=9 if number > 1 else 3)
    with open("orders.desc", "wb") as to:
        to.write(found.SerializeToString())
    return protobuf_schema("orders.desc", "shop.Order")
old, new = made("order"), made("order", "coupon")
spark = build_session("test", master="local[1]")
frame = lambda *bodies: spark.createDataFrame([(body,) for body in bodies], "body BINARY")
show = lambda rows: print("ROWS", [(row.value and tuple(row.value), row.value_error) for row in rows.collect()])
print("ROWS", value_fields(spark, new).simpleString())
show(parse_values(frame(b"\\x08\\x01", b"\\x08\\x02\\x12\\x01x", b"\\x08", b"\\x52\\x01x", b""), new))
framed = [b"\\0\\0\\0\\0\\x07\\0\\x08\\x01", b"\\0\\0\\0\\0\\x09\\0\\x08\\x02\\x12\\x01x"]
framed += [b"\\0\\0\\0\\0\\x08\\0\\x08\\x01", b"\\0\\0\\0\\0\\x09\\x02\\x02\\x08\\x01"]
show(parse_confluent(frame(*framed), {7: old, 9: new}))
with_list = made("order", "lines")
show(parse_values(frame(b"\\x08\\x01\\x12\\x01x", b"\\x12\\x01x", b"\\x52\\x01x", b""), with_list))
"""


@pytest.mark.spark
@pytest.mark.network
@pytest.mark.long
def test_protobuf_is_read_by_its_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{PROTOBUF_PARSER} pyspark-shell")
    ran = run_script(PROTOBUF, tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [line for line in ran.stdout.splitlines() if line.startswith("ROWS")] == [
        "ROWS struct<order:bigint,coupon:string>",
        "ROWS [((1, None), None), ((2, 'x'), None), (None, 'it is not of the Protobuf message shop.Order'), "
        "(None, 'it has no field of the Protobuf message shop.Order'), ((None, None), None)]",
        "ROWS [((1, None), None), ((2, 'x'), None), (None, 'schema id 8 is not known'), "
        "(None, 'its message is not the first of its schema')]",
        "ROWS [((1, ['x']), None), ((None, ['x']), None), (None, 'it has no field of the Protobuf message shop.Order'), "
        "((None, []), None)]",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_session_without_the_parsers_package_says_what_to_add(kind: str, spark: SparkSession) -> None:
    text = '{"type": "record", "name": "Order", "fields": [{"name": "order", "type": "long"}]}'
    schema = ValueSchema("avro", text) if kind == "avro" else ValueSchema("protobuf", "Order", descriptors=b"\x0a")
    with pytest.raises(OptionError, match=rf"spark.jars.packages=org.apache.spark:spark-{kind}_2.13:"):
        value_fields(spark, schema)
