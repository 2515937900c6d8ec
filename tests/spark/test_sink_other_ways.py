"""Delayed rows, transactions and rows that are sent back, written by Spark and read back with our source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_mq
from storage import open_store
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HALF, OP, SCHEDULE = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    builder = StoreBuilder(tmp_path / "source")
    for number in range(6):
        builder.send("Topic", f"m{number}", unique_key=f"U{number}", keys=f"k{number}")
    return builder.root


def run(rows: DataFrame, target: Path, checkpoint: Path, **options: str) -> None:
    """One streaming query, until it has written what is there."""
    writer = rows.writeStream.format("spark_mq").options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(target))
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_a_query_writes_transactions_and_a_replayed_batch_is_known(
    spark: SparkSession, source: Path, tmp_path: Path, read_store: ReadStore
) -> None:
    """Rows come straight from the source; the batch is brought again, as if the driver had died before Spark's commit."""
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    stream = spark.readStream.format("spark_mq").option("topic", "Topic").option("startingOffsets", "earliest")
    state = f.expr("CASE right(keys, 1) WHEN '1' THEN 'rollback' WHEN '2' THEN 'unknown' ELSE 'commit' END")
    rows = stream.load(str(source)).withColumn("transaction_state", state)
    for _ in range(2):
        run(rows, target, checkpoint, transactional="true", producerGroup="group")
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
    assert bodies(read_store(target, topic="Topic")) == ["m0", "m3", "m4", "m5"]
    halves = read_store(target, topic=HALF).collect()
    assert len(halves) == 6
    places = {row.commitlog_offset: bytes(row.body) for row in halves}
    commits = read_store(target, topic="Topic").collect()
    assert all(places[row.prepared_transaction_offset] == bytes(row.body) for row in commits)
    ops = ",".join(bytes(row.body).decode() for row in read_store(target, topic=OP).collect())
    unknown = {row.queue_offset for row in halves if bytes(row.body) == b"m2"}
    assert {int(part) for part in ops.split(",") if part} == set(range(6)) - unknown
    assert {row.properties["PGROUP"] for row in halves} == {"group"}


def test_failed_rows_are_sent_back_by_batch_and_by_query(
    spark: SparkSession, source: Path, tmp_path: Path, read_store: ReadStore
) -> None:
    """`spark_mq.send_back`, straight from the source, into the store that they came from and into another."""
    frame = read_store(source, topic="Topic").where("keys = 'k1' OR keys = 'k2'")
    assert spark_mq.send_back(frame, path=str(source), consumer_group="group", maxReconsumeTimes=1) is None
    waiting = read_store(source, topic=SCHEDULE).collect()
    assert [(row.reconsume_times, row.properties["DELAY"]) for row in waiting] == [(1, "3"), (1, "3")]
    by_id = {row.msg_id: bytes(row.body) for row in read_store(source, topic="Topic").collect()}
    assert (
        {by_id[row.properties["ORIGIN_MESSAGE_ID"]] for row in waiting}
        == {b"m1", b"m2"}
        == {bytes(r.body) for r in waiting}
    )
    assert {row.unique_key for row in waiting} == {"U1", "U2"}

    target = tmp_path / "target"
    open_store(target, read_only=False, create=True).close()
    stream = (
        spark.readStream.format("spark_mq")
        .option("topic", "Topic")
        .option("startingOffsets", "earliest")
        .load(str(source))
    )
    writer = spark_mq.send_back(stream, path=str(target), consumer_group="group", maxReconsumeTimes=0)
    assert writer is not None
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    dead = read_store(target, topic="%DLQ%group").collect()
    assert sorted(bytes(row.body).decode() for row in dead) == [f"m{number}" for number in range(6)]
    assert {(row.reconsume_times, row.properties["DELAY"], row.properties["RETRY_TOPIC"]) for row in dead} == {
        (1, "0", "Topic")
    }


@pytest.mark.long
def test_delayed_rows_wait_and_rows_that_no_broker_would_deliver_are_put_aside(
    spark: SparkSession, tmp_path: Path, read_store: ReadStore
) -> None:
    target, dead = tmp_path / "target", tmp_path / "dead"
    rows = [("a", 2, None), ("b", None, 60), ("c", -1, None), ("d", 1, 60), ("e", None, -60)]
    frame = spark.createDataFrame(rows, "body string, delay_level int, seconds int").selectExpr(
        "body", "delay_level", "timestamp_seconds(unix_timestamp() + seconds) AS deliver_at"
    )
    options = {"topic": "Topic", "onInvalidRow": "deadLetter", "deadLetterPath": str(dead)}
    frame.write.format("spark_mq").mode("append").options(**options).save(str(target))
    assert bodies(read_store(target, topic=SCHEDULE)) == ["a"]
    assert bodies(read_store(target, topic="rmq_sys_wheel_timer")) == ["b", "e"]
    assert not (target / "consumequeue" / "Topic").exists()
    refused = {row.body: row.error_column for row in spark.read.parquet(str(dead)).collect()}
    assert refused == {"c": "delay_level", "d": "deliver_at"}
