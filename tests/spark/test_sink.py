"""Rows written by Spark, batch and streaming, read back with our source: what was asked for, each message once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .golden_rows import golden_rows, hashed
from .streams import needs_limits

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a store will be."""
    return tmp_path / "target"


class SinkQuery:
    """A streaming query from one store into another that can be run again on one checkpoint."""

    def __init__(self, spark: SparkSession, source: Path, target: Path, checkpoint: Path, **options: str) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.checkpoint = checkpoint
        self.options = options
        self.read = {"topic": "Topic", "startingOffsets": "earliest"}

    def run(self, shape: Callable[[DataFrame], DataFrame] = lambda rows: rows, mode: str = "append") -> StreamingQuery:
        """Write what is there and end. Raises what the query raised."""
        rows = shape(self.spark.readStream.format("spark_mq").options(**self.read).load(str(self.source)))
        writer = rows.writeStream.format("spark_mq").outputMode(mode).options(**self.options)
        query = (
            writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start(str(self.target))
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return query

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died between the sink's commit and Spark's."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    @property
    def query_id(self) -> str:
        found: str = json.loads((self.checkpoint / "metadata").read_text("utf-8"))["id"]
        return found


@pytest.fixture
def make_query(spark: SparkSession, tmp_path: Path, target: Path) -> Callable[..., SinkQuery]:
    """`make_query(source, …options)`: a query with a checkpoint of its own."""
    made: list[SinkQuery] = []

    def make(source: Path, **options: str) -> SinkQuery:
        made.append(SinkQuery(spark, source, target, tmp_path / f"checkpoint-{len(made)}", **options))
        return made[-1]

    return make


def write(frame: DataFrame, target: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("spark_mq").mode(mode).options(**options).save(str(target))


def texts(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_a_frame_is_appended_and_read_back(spark: SparkSession, target: Path, read_store: ReadStore) -> None:
    frame = spark.createDataFrame(
        [("one", "red", "k1 k2", {"a": "1"}, 7), ("two", None, None, None, None), ("", "green", "k3", {}, 0)],
        "body string, tags string, keys string, properties map<string,string>, flag int",
    )
    write(frame, target, topic="Topic", queueNum="2")
    stored = read_store(target, topic="Topic")
    sent = frame.selectExpr("cast(body AS binary) AS body", "tags", "keys", "coalesce(flag, 0) AS flag")
    assert_df_equality(stored.select(sent.columns), sent, ignore_row_order=True, ignore_nullable=True)
    rows = stored.orderBy("body").collect()
    assert {row.queue_id for row in rows} <= {0, 1}
    assert {row.store_host for row in rows} == {"127.0.0.1:10911"}
    own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster", "WAIT": "true"}
    assert rows[1].properties == {**own, "UNIQ_KEY": rows[1].unique_key, "TAGS": "red", "KEYS": "k1 k2", "a": "1"}
    assert len({row.unique_key for row in rows}) == 3
    assert [bytes(row.body) for row in read_store(target, topic="Topic", key="k2").collect()] == [b"one"]
    write(frame, target, topic="Topic")
    assert read_store(target, topic="Topic").count() == 6


@pytest.mark.slow
def test_a_named_write_is_done_once_and_an_unnamed_one_each_time(
    spark: SparkSession, target: Path, read_store: ReadStore
) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) as body").repartition(2)
    for _ in range(2):
        write(frame, target, topic="Topic", writeId="load-1")
    assert read_store(target, topic="Topic").count() == 10
    write(frame, target, topic="Topic", writeId="load-2")
    write(frame, target, topic="Topic")
    rows = read_store(target, topic="Topic").select("unique_key").collect()
    assert len(rows) == len({row.unique_key for row in rows}) == 30


@pytest.mark.slow
def test_queues_are_chosen_by_number_by_key_or_in_turn(
    spark: SparkSession, target: Path, read_store: ReadStore
) -> None:
    # Java: "hello".hashCode() is 99162322, "polygenelubricants".hashCode() is Integer.MIN_VALUE, and
    # SelectMessageQueueByHash takes |hash % 5|.
    rows = [
        ("a", 4, None),
        ("b", 1, "hello"),
        ("c", None, "hello"),
        ("d", None, "polygenelubricants"),
        ("e", None, None),
    ]
    frame = spark.createDataFrame(rows, "body string, queue_id int, sharding_key string").coalesce(1)
    write(frame, target, topic="Topic", queueNum="5")
    found = {bytes(row.body).decode(): row.queue_id for row in read_store(target, topic="Topic").collect()}
    assert (found["a"], found["b"], found["c"], found["d"]) == (4, 1, 2, 3)


@pytest.mark.slow
def test_rows_under_kafkas_names_are_taken_and_given(spark: SparkSession, target: Path, read_store: ReadStore) -> None:
    frame = spark.createDataFrame(
        [("Topic", b"k", b"one", 1, [("h", b"v")]), ("Topic", None, b"two", None, None)],
        "topic string, key binary, value binary, partition int, headers array<struct<key:string,value:binary>>",
    )
    write(frame, target)
    kafka = read_store(target, topic="Topic", columns="kafka", includeHeaders="true").orderBy("value").collect()
    assert [bytes(row.value) for row in kafka] == [b"one", b"two"]
    assert (bytes(kafka[0].key), kafka[0].partition, kafka[1].key) == (b"k", 1, None)
    assert ("h", b"v") in [(header.key, bytes(header.value)) for header in kafka[0].headers]

    again = read_store(target, topic="Topic", columns="kafka")
    write(again.drop("partition"), target.with_name("other"))
    copied = read_store(target.with_name("other"), topic="Topic", columns="kafka")
    assert_df_equality(copied.select("key", "value"), again.select("key", "value"), ignore_row_order=True)


@pytest.mark.slow
def test_what_apaches_broker_wrote_goes_through_the_sink_unchanged(
    pristine_store: Callable[[str], Fixture], target: Path, read_store: ReadStore
) -> None:
    fixture = pristine_store("clean")
    golden = [
        row for row in golden_rows(fixture) if not row["topic"].startswith(("%", "rmq_sys", "RMQ_SYS", "SCHEDULE"))
    ]
    topics = sorted({row["topic"] for row in golden})
    source = read_store(fixture.root, subscribe=",".join(topics), brokerName="broker-lab")
    write(source, target, queueNum="16", keepUniqueKey="true")
    found = hashed(row.asDict() for row in read_store(target, subscribe=",".join(topics)).collect())
    same = ("topic", "queue_id", "unique_key", "tags", "keys", "body", "flag")

    def kept(row: dict[str, Any]) -> list[str]:
        return [*(str(row[name]) for name in same), str(row["born_timestamp"].astimezone(UTC))]

    assert len(golden) > 100
    assert sorted(map(kept, found)) == sorted(map(kept, golden))


@pytest.mark.parametrize("mode", ["overwrite", "error", "ignore"])
def test_batch_modes_but_append_are_refused_by_name(spark: SparkSession, target: Path, mode: str) -> None:
    with pytest.raises(PySparkException, match=rf"SPARK_MQ_SINK_MODE\].*{mode}|UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        write(spark.range(1).selectExpr("'x' as body"), target, mode, topic="Topic")
    assert not target.exists()


@pytest.mark.slow
def test_streaming_modes_but_append_are_refused_by_name(tmp_path: Path, make_query: Callable[..., SinkQuery]) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    source.send("Topic", "a")
    query = make_query(source.root, topic="Copy")
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        query.run(lambda rows: rows.select("body"), "update")
    query = make_query(source.root, topic="Copy")
    with pytest.raises(StreamingQueryException, match=r"SPARK_MQ_SINK_MODE\].*complete"):
        query.run(lambda rows: rows.groupBy("body").count().select("body"), "complete")
    assert not query.target.exists()


@pytest.mark.slow
def test_an_invalid_row_fails_the_write_by_name_and_nothing_is_written(
    spark: SparkSession, target: Path, read_store: ReadStore
) -> None:
    frame = spark.range(20).selectExpr("if(id = 13, null, cast(id as string)) as body").repartition(2)
    with pytest.raises(
        PySparkException, match=r"\[SPARK_MQ_INVALID_ROW\] partition \d: row \d+, column body: it is null"
    ):
        write(frame, target, topic="Topic")
    assert not (target / "commitlog").exists()
    dead = target.with_name("dead")
    write(frame, target, topic="Topic", onInvalidRow="deadLetter", deadLetterPath=str(dead))
    assert read_store(target, topic="Topic").count() == 19
    letters = spark.read.parquet(str(dead)).collect()
    assert [(row.body, row.error_column, row.error_rule) for row in letters] == [(None, "body", "it is null")]


@needs_limits
def test_a_stream_goes_on_from_its_checkpoint_and_a_replayed_batch_is_written_once(
    tmp_path: Path, make_query: Callable[..., SinkQuery], read_store: ReadStore
) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    sent = source.send_many("Topic", 20) + source.send_many("Topic", 10, queue_id=1)
    query = make_query(source.root)
    query.read["maxOffsetsPerTrigger"] = "12"
    query.run()
    assert texts(read_store(query.target, topic="Topic")) == sorted(sent)
    with open_store(query.target) as store:
        assert "rmq_sys_spark_mq_ledger" in store.topics()
    group = f"rmq_sys_spark_mq_ledger@CID_RMQ_SYS_SPARK_{query.query_id}"
    offsets = json.loads((query.target / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert offsets[group] == {"0": 3}, "the next batch"

    query.forget_commit(2)
    sent += source.send_many("Topic", 5)
    query.run()
    query.run()
    rows = read_store(query.target, topic="Topic")
    assert texts(rows) == sorted(sent)
    assert len({row.unique_key for row in rows.collect()}) == len(sent)


@pytest.mark.slow
def test_an_empty_first_batch_makes_no_store(tmp_path: Path, make_query: Callable[..., SinkQuery]) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    source.send("Topic", "old")
    query = make_query(source.root)
    query.read["startingOffsets"] = "latest"
    query.run()
    assert (query.checkpoint / "commits" / "0").exists()
    assert not query.target.exists()


@pytest.mark.slow
def test_two_queries_write_into_one_store(
    tmp_path: Path, make_query: Callable[..., SinkQuery], read_store: ReadStore
) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    sent = source.send_many("Topic", 5)
    one, two = make_query(source.root), make_query(source.root)
    one.run()
    two.run()
    more = source.send_many("Topic", 2)
    two.run()
    one.run()
    assert texts(read_store(one.target, topic="Topic")) == sorted(2 * (sent + more))


@pytest.mark.slow
def test_a_lost_checkpoint_is_noticed_under_a_sink_id_and_may_be_taken_over(
    tmp_path: Path, make_query: Callable[..., SinkQuery], read_store: ReadStore
) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    sent = source.send_many("Topic", 5)
    first = make_query(source.root, sinkId="copy")
    first.run()
    second = make_query(source.root, sinkId="copy")
    with pytest.raises(StreamingQueryException, match=r"\[SPARK_MQ_SINK_TAKEN\]") as caught:
        second.run()
    assert first.query_id in str(caught.value)
    assert second.query_id in str(caught.value)
    assert texts(read_store(first.target, topic="Topic")) == sorted(sent)
    second.options["sinkTakeover"] = "true"
    second.run()
    assert texts(read_store(first.target, topic="Topic")) == sorted(2 * sent)


@pytest.mark.slow
def test_a_failed_batch_of_a_stream_is_written_once_when_the_cause_is_gone(
    tmp_path: Path, make_query: Callable[..., SinkQuery], read_store: ReadStore
) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    sent = source.send_many("Topic", 5)
    query = make_query(source.root, lockTimeout="1ms")
    query.run()
    sent += source.send_many("Topic", 5)
    with (
        LocalFileSystem().locked(f"{query.target}/lock"),
        pytest.raises(StreamingQueryException, match="SPARK_MQ_STORE_LOCKED"),
    ):
        query.run()
    assert read_store(query.target, topic="Topic").count() == 5
    query.run()
    assert texts(read_store(query.target, topic="Topic")) == sorted(sent)


@pytest.mark.slow
def test_a_bounded_query_writes_only_where_the_options_say(spark: SparkSession, target: Path) -> None:
    schema = StructType().add("body", "string")
    frame = spark.createDataFrame([Row(body="x")], schema)
    with pytest.raises(PySparkException, match=r"\[SPARK_MQ_SINK_SCHEMA\] column topic: it is missing"):
        write(frame, target)
    assert os.listdir(target.parent) == [] or not (target / "commitlog").exists()


@pytest.mark.slow
def test_a_stream_goes_to_the_options_topic_and_never_back_into_its_own(
    spark: SparkSession, tmp_path: Path, target: Path, make_query: Callable[..., SinkQuery]
) -> None:
    """As with Spark's Kafka sink: what the column topic of the source's rows says has no effect."""
    store = StoreBuilder(target)
    sent = store.send_many("MA", 20)
    moved, circle, by_row = make_query(target, topic="MD"), make_query(target, topic="MA"), make_query(target)
    for query in (moved, circle, by_row):
        query.read = {"topic": "MA", "startingOffsets": "earliest", "columns": "kafka"}
    for _ in range(2):
        moved.run()
    for query in (circle, by_row):
        with pytest.raises(StreamingQueryException, match=r"SPARK_MQ_WRITES_OWN_SOURCE.*\n?.*reads topic MA"):
            query.run()
    with open_store(target) as opened:
        counts = {
            topic: sum(opened.max_offset(topic, queue_id) for queue_id in opened.queue_ids(topic))
            for topic in ("MA", "MD")
        }
    assert counts == {"MA": len(sent), "MD": len(sent)}
    circle.options["writeToSource"] = "true"
    circle.run()
    with open_store(target) as opened:
        assert sum(opened.max_offset("MA", queue_id) for queue_id in opened.queue_ids("MA")) == 2 * len(sent)
