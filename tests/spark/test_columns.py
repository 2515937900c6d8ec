"""The columns: every field of every message as Apache's own classes tell it, and Kafka's columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_mq.conditions import ConvertedError, OptionError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.source import rows
from storage.format.record import COMPRESSED
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .golden_rows import golden_rows, hashed
from .in_process import plan_batch, read_batch, rows_of

PristineStore = Callable[[str], Fixture]
ALL = {"subscribePattern": ".*", "includeSystemTopics": "true"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "topics"), [pytest.param("ipv6", (), marks=pytest.mark.slow), ("clean", ("TopicBig", "TopicTx"))]
)
def test_spark_sees_every_field_of_every_message(
    name: str, topics: tuple[str, ...], read_store: ReadStore, pristine_store: PristineStore
) -> None:
    store = pristine_store(name)
    table = read_store(store.root, **({"subscribe": ",".join(topics)} if topics else ALL)).toArrow()
    assert hashed(table.to_pylist()) == golden_rows(store, *topics)


@pytest.mark.parametrize(
    "name", ["clean", "ext", "syncflush", "roll", "ipv6", "expired", "preblank", "recovered"]
)  # stores whose recovery adds nothing to what a read-only open shows
def test_tasks_yield_every_field_of_every_message(name: str, pristine_store: PristineStore) -> None:
    store = pristine_store(name)
    assert hashed(read_batch(store.root, **ALL)) == golden_rows(store)


@pytest.mark.spark
def test_the_schema_is_the_documented_one(read_store: ReadStore, pristine_store: PristineStore) -> None:
    fields = [
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in read_store(pristine_store("roll").root, topic="TopicOne").schema
    ]
    assert fields == [
        "topic string not null",
        "broker_name string not null",
        "queue_id int not null",
        "queue_offset bigint not null",
        "msg_id string not null",
        "unique_key string",
        "tags string",
        "keys string",
        "body binary not null",
        "properties map<string,string> not null",
        "born_timestamp timestamp not null",
        "store_timestamp timestamp not null",
        "born_host string not null",
        "store_host string not null",
        "flag int not null",
        "sys_flag int not null",
        "reconsume_times int not null",
        "body_crc int not null",
        "prepared_transaction_offset bigint not null",
        "commitlog_offset bigint not null",
        "store_size int not null",
    ]


@pytest.mark.spark
def test_option_columns_gives_these_columns_in_this_order(read_store: ReadStore, pristine_store: PristineStore) -> None:
    store = pristine_store("roll")
    table = read_store(store.root, topic="TopicOne", columns="queue_offset, msg_id,queue_id").toArrow()
    assert table.column_names == ["queue_offset", "msg_id", "queue_id"]
    expected = {(row["queue_offset"], row["msg_id"], row["queue_id"]) for row in golden_rows(store, "TopicOne")}
    assert {tuple(row.values()) for row in table.to_pylist()} == expected


@pytest.mark.spark
def test_a_given_schema_gives_its_columns_in_its_order(spark: SparkSession, pristine_store: PristineStore) -> None:
    store = pristine_store("roll")
    reader = spark.read.format("spark_mq").option("topic", "TopicOne")
    table = reader.schema("tags STRING, commitlog_offset BIGINT").load(str(store.root)).toArrow()
    expected = [(row["tags"], row["commitlog_offset"]) for row in golden_rows(store, "TopicOne")]
    assert table.column_names == ["tags", "commitlog_offset"]
    assert {tuple(row.values()) for row in table.to_pylist()} == set(expected)
    assert table.num_rows == len(expected)


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        (StructType(), "it has no column"),
        (StructType([StructField("nonsense", StringType())]), "there is no column 'nonsense'"),
        (StructType([StructField("tags", StringType(), nullable=False)]), "column tags can be null"),
    ],
)
def test_a_given_schema_that_cannot_be_met_is_refused(
    schema: StructType, rule: str, pristine_store: PristineStore
) -> None:
    source = SparkMqDataSource({"path": str(pristine_store("roll").root), "topic": "TopicOne"})
    text = rf"\[SPARK_MQ_INVALID_OPTION\] option schema: {rule}"
    with pytest.raises(OptionError, match=text):
        source.reader(schema)
    with pytest.raises(OptionError, match=text):  # Spark drops what `streamReader` raises
        source.streamReader(schema).initialOffset()


def test_bodies_are_as_stored_without_decompression(pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    stored = {
        line["physicalOffset"]: line["bodySha256"]
        for line in golden_lines(store.golden, "message")
        if line["topic"] == "TopicBig"
    }
    rows = read_batch(store.root, topic="TopicBig", decompress="false", columns="commitlog_offset,body")
    assert {row["commitlog_offset"]: hashlib.sha256(row["body"]).hexdigest() for row in rows} == stored


def test_bodies_that_grow_come_in_several_batches(
    pristine_store: PristineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pristine_store("clean")
    splits = plan_batch(store.root, topic="TopicBig")
    whole = [batch.num_rows for split in splits for batch in split.read()]
    monkeypatch.setattr(rows, "PLAIN_BYTES", 1)
    batches = [batch for split in splits for batch in split.read()]
    compressed = [row for row in golden_rows(store, "TopicBig") if row["sys_flag"] & COMPRESSED]
    assert len(whole) < len(compressed) <= len(batches)
    assert hashed(rows_of(splits)) == golden_rows(store, "TopicBig")


@pytest.mark.slow
@pytest.mark.spark
def test_kafka_columns_have_the_schema_of_sparks_kafka_source(
    read_store: ReadStore, pristine_store: PristineStore
) -> None:
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    kafka = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    root = pristine_store("roll").root
    # A Kafka job's client options stay where they are.
    options = {"subscribe": "TopicOne", "columns": "kafka", "kafka.bootstrap.servers": "localhost:9092"}
    assert read_store(root, **options).schema == StructType(kafka)
    with_headers = read_store(root, **options, includeHeaders="true")
    assert with_headers.schema == StructType([*kafka, StructField("headers", headers)])
    assert with_headers.where("size(headers) > 0").count() == 250


def test_kafka_columns_hold_the_message(pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    rows = read_batch(store.root, subscribe="TopicOrder,TopicA", columns="kafka", includeHeaders="true")
    found = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
    expected = golden_rows(store, "TopicOrder", "TopicA")
    assert len(found) == len(rows) == len(expected)
    keys = set()
    for golden in expected:
        row = found[golden["topic"], golden["queue_id"], golden["queue_offset"]]
        key = golden["properties"].get("__SHARDINGKEY", golden["keys"])
        keys.add(None if key is None else "sharding" if key != golden["keys"] else "keys")
        assert row["key"] == (None if key is None else key.encode())
        assert hashlib.sha256(row["value"]).hexdigest() == golden["body"]
        assert (row["timestamp"], row["timestampType"]) == (golden["store_timestamp"], 1)
        assert {h["key"]: h["value"].decode() for h in row["headers"]} == golden["properties"]
    assert {None, "keys"} <= keys, "the fixture holds messages with keys and without"


def test_the_key_is_the_sharding_key_before_keys(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send("Topic", "both", keys="k", properties={"__SHARDINGKEY": "s"})
    store.send("Topic", "keys", keys="k l")
    store.send("Topic", "none")
    rows = read_batch(store.root, subscribe="Topic", columns="kafka")
    assert [(row["value"], row["key"]) for row in rows] == [(b"both", b"s"), (b"keys", b"k l"), (b"none", None)]


def test_kafkas_partition_counts_from_the_brokers_rank(tmp_path: Path) -> None:
    for name in ("broker-b", "broker-a", "broker-c"):
        store = StoreBuilder(tmp_path / name)
        store.send("Topic", name, queue_id=0)
        store.send("Topic", name, queue_id=3)
    rows = read_batch(tmp_path, subscribe="Topic", columns="kafka")
    assert sorted((row["partition"], row["value"].decode()) for row in rows) == [
        (0, "broker-a"),
        (3, "broker-a"),
        (65_536, "broker-b"),
        (65_539, "broker-b"),
        (131_072, "broker-c"),
        (131_075, "broker-c"),
    ]


def test_verify_crc_finds_a_changed_body(fixture_store: Callable[[str], Fixture]) -> None:
    store = fixture_store("roll")
    victim = golden_rows(store, "TopicOne")[0]
    path = store.root / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        assert victim["commitlog_offset"] + victim["store_size"] < path.stat().st_size
        file.seek(victim["commitlog_offset"] + 88)  # the body's first byte
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0xFF]))
    assert len(read_batch(store.root, topic="TopicOne")) == 250
    with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_CORRUPT_RECORD\].*topic TopicOne, queue.*body CRC"):
        read_batch(store.root, topic="TopicOne", verifyCrc="true")
