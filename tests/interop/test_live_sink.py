"""The sink that sends to running brokers, counted by Apache's consumer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_mq
from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import BatchInDoubtError, InvalidRowError
from spark_mq.remoting import MessageQueue, RequestCode
from spark_mq.remoting.consumers import HeartbeatData, ProducerData
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import SentRows, send_rows
from spark_mq.sink.live_brokers import LiveBrokers
from spark_mq.sink.live_routes import live_routes
from spark_mq.sink.live_sink import commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from storage.format.typed_json import SubscriptionGroupConfig
from tests.support.java_broker import RELEASE, Oracle, OracleError, RunningBroker, wait_until
from tests.support.live_writer import QUERY
from tests.support.live_writer import main as send_batch
from tests.support.places import PROJECT
from tests.support.rows_that_wait import write_through_deaths

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

COUNT = 3_000


def consumed(directory: Path, broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    """What Apache's consumer pulls of the topic, from the beginning to the end."""
    out = directory / f"{topic}.jsonl"
    lines = Oracle(directory).consume_all(out, broker, [topic], lookUps=0)
    return [line for line in lines if line["type"] == "message"]


def test_rows_written_at_least_once_are_a_java_consumers_messages(
    spark: SparkSession, live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkRows", 3)
    rows = spark.range(COUNT, numPartitions=2).select(
        F.format_string("body-%05d", "id").alias("body"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.format_string("key-%d", "id").alias("keys"),
        F.when(F.col("id") % 3 == 0, F.lit(1)).alias("queue_id"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
    )
    rows.write.format("spark_mq").mode("append").option("nameServer", live_broker.name_server).option(
        "topic", "SinkRows"
    ).option("batchBytes", "16k").save()
    messages = consumed(tmp_path, live_broker, "SinkRows")
    by_number = {int(line["keys"].removeprefix("key-")): line for line in messages}
    assert len(messages) == COUNT
    assert set(by_number) == set(range(COUNT))
    for number, line in by_number.items():
        assert line["bodySha256"] == hashlib.sha256(b"body-%05d" % number).hexdigest()
        assert line["tags"] == ("even" if number % 2 == 0 else None)
        assert number % 3 or line["queueId"] == 1
    assert len({line["uniqKey"] for line in messages}) == COUNT, "each row has an id of its own"
    by_queue = defaultdict(list)
    for number, line in by_number.items():
        by_queue[line["queueId"], number >= COUNT // 2].append((line["queueOffset"], number))
    for places in by_queue.values():
        assert sorted(places) == sorted(places, key=lambda place: place[1]), "rows of a task and queue keep their order"


class QueryOnBrokers:
    """A stream from Parquet files to a topic, exactly once, with its staging directory beside the checkpoint."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, directory: Path, topic: str) -> None:
        self.spark = spark
        self.broker = broker
        self.files = directory / "files"
        self.checkpoint = directory / "checkpoint"
        self.topic = topic
        self.count = 0

    def add_rows(self, count: int) -> None:
        rows = self.spark.range(self.count, self.count + count, numPartitions=2)
        columns = F.format_string("key-%d", "id").alias("keys"), F.format_string("body-%05d", "id").alias("body")
        rows.select(*columns).write.mode("append").parquet(str(self.files))
        self.count += count

    def run(self) -> None:
        """All that there is, as micro-batches."""
        stream = self.spark.readStream.schema("keys STRING, body STRING").parquet(str(self.files))
        sink = stream.writeStream.format("spark_mq").option("nameServer", self.broker.name_server)
        sink = (
            sink.option("topic", self.topic)
            .option("checkpointLocation", str(self.checkpoint))
            .option("batchBytes", "8k")
        )
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    def forget_last_commit(self) -> None:
        """As a driver that was killed after the sink's commit and before Spark's."""
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        for checksum in (self.checkpoint / "commits").glob(f".{commits[-1].name}.*"):
            checksum.unlink()

    def staged(self) -> list[str]:
        return sorted(
            path.name for path in self.checkpoint.with_name("checkpoint.spark_mq").rglob("*") if path.is_file()
        )


def test_a_stream_sends_each_row_once_also_where_spark_repeats_a_batch(
    spark: SparkSession, live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkStream", 4)
    query = QueryOnBrokers(spark, live_broker, tmp_path, "SinkStream")
    query.add_rows(1_000)
    query.run()
    query.forget_last_commit()
    query.run()
    query.add_rows(500)
    query.run()
    messages = consumed(tmp_path, live_broker, "SinkStream")
    assert sorted(line["keys"] for line in messages) == sorted(f"key-{number}" for number in range(1_500))
    assert query.staged() == ["done.json", "lock"], "nothing that was staged is left"


def test_a_named_write_is_sent_once(spark: SparkSession, live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("SinkNamed", 2)
    waits = F.when(F.col("id") % 2 == 0, 1).alias("delay_level")
    rows = spark.range(100).select(F.format_string("key-%d", "id").alias("keys"), F.lit("b").alias("body"), waits)
    for _ in range(2):
        write = rows.write.format("spark_mq").mode("append").option("nameServer", live_broker.name_server)
        write.option("topic", "SinkNamed").option("stagingPath", str(tmp_path / "s")).option("writeId", "once").save()
    with Admin(ClientSettings((live_broker.name_server,))) as admin:
        wait_until(lambda: sum(admin.max_offsets("SinkNamed").values()) >= 100, "the delayed rows are delivered")
    assert {line["keys"] for line in consumed(tmp_path, live_broker, "SinkNamed")} == {
        f"key-{row}" for row in range(100)
    }
    assert len(consumed(tmp_path, live_broker, "SinkNamed")) == 100


def test_rows_that_wait_arrive_when_their_broker_delivers_them(live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("SinkDelays", 2)
    options = LiveSinkOptions.parse({"nameServer": live_broker.name_server, "topic": "SinkDelays"}, "batch")
    rows = pa.record_batch({"body": [b"now", b"later", b"now too"], "delay_level": [None, 1, 0]})
    sent = send_rows(options, InputColumns(("body", "delay_level")), 0, bytes(8), iter([rows]))
    assert sent == SentRows(3, {0: 3})
    with Admin(ClientSettings((live_broker.name_server,))) as admin:
        wait_until(lambda: sum(admin.max_offsets("SinkDelays").values()) == 3, "the delayed row is delivered")
    found = {line["bodySha256"] for line in consumed(tmp_path, live_broker, "SinkDelays")}
    assert found == {hashlib.sha256(body).hexdigest() for body in (b"now", b"later", b"now too")}


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def send_task(
    broker: RunningBroker, frame: dict[str, Any] | Iterator[pa.RecordBatch], columns: Sequence[str], **given: str
) -> SentRows:
    """Rows as one task sends them at least once."""
    options = LiveSinkOptions.parse({"nameServer": broker.name_server, "guarantee": "atLeastOnce", **given}, "batch")
    frames = iter([pa.record_batch(frame)]) if isinstance(frame, dict) else frame
    return send_rows(options, InputColumns(tuple(columns)), 0, os.urandom(8), frames)


def test_rows_that_are_tried_again_and_sent_back_reach_a_java_consumer_of_the_group(
    oracle: Oracle, live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkRetries", 2)
    group, topic = "SinkRetryGroup", {"topic": "SinkRetries"}
    assert send_task(live_broker, {"body": [b"failed", b"other"]}, ["body"], **topic) == SentRows(2, {0: 2})
    lines = consumed(tmp_path, live_broker, "SinkRetries")
    (failed,) = (line["offsetMsgId"] for line in lines if line["bodySha256"] == digest(b"failed"))
    gone = failed[:16] + f"{1 << 40:016X}"
    back = {"topic": ["SinkRetries"] * 2, "msg_id": [failed, gone], "delay_level": pa.array([1, 1], pa.int32())}
    returns = {"sendBack": "true", "consumerGroup": group}
    with pytest.raises(InvalidRowError, match=r"row 1, column msg_id: .*look message by offset failed"):
        send_task(live_broker, back, back, **returns)
    again = {
        "body": [b"tried", b"dead"],
        "retry_group": [group] * 2,
        "reconsume_times": pa.array([1, 4], pa.int32()),
        "delay_level": pa.array([1, 1], pa.int32()),
    }
    assert send_task(live_broker, again, again, maxReconsumeTimes="3", **topic) == SentRows(2, {0: 2})
    options = {"group": group, "topics": "SinkRetries", "succeedAt": 0}
    with oracle.client("FailingConsumer", tmp_path / "got.jsonl", live_broker, **options) as consumer:
        consumer.until(bool, "dead")
        got = consumer.until(lambda lines: len(lines) >= 4, "consumed")
    by_body = {(line["bodySha256"], line["reconsumeTimes"]): line["properties"] for line in got}
    expected = {(b"failed", 0), (b"other", 0), (b"failed", 1), (b"tried", 1)}
    assert set(by_body) == {(digest(body), times) for body, times in expected}
    assert by_body[digest(b"failed"), 1]["ORIGIN_MESSAGE_ID"] == failed
    assert by_body[digest(b"tried"), 1]["RETRY_TOPIC"] == "SinkRetries"
    (dead,) = consumed(tmp_path, live_broker, f"%DLQ%{group}")
    assert dead["bodySha256"] == digest(b"dead")


def test_a_group_without_retry_queues_gets_nothing_sent_back(live_broker: RunningBroker, tmp_path: Path) -> None:
    """The broker answers SUCCESS and forgets the message."""
    live_broker.make_topic("SinkNoRetries", 1)
    group = "SinkNoRetriesGroup"
    with Admin(ClientSettings((live_broker.name_server,))) as admin:
        admin.create_group(SubscriptionGroupConfig(group=group, retry_queue_count=0), address=live_broker.address)
    assert send_task(live_broker, {"body": [b"failed"]}, ["body"], topic="SinkNoRetries") == SentRows(1, {0: 1})
    (line,) = consumed(tmp_path, live_broker, "SinkNoRetries")
    back = {"topic": ["SinkNoRetries"], "msg_id": [line["offsetMsgId"]]}
    with pytest.raises(InvalidRowError, match=rf"group {group} takes no retries \(retryQueueNums 0\)"):
        send_task(live_broker, back, back, sendBack="true", consumerGroup=group)


def test_a_java_consumer_sees_what_a_task_has_committed_and_nothing_of_one_that_failed(
    live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkHalves", 2)
    given = {"topic": "SinkHalves", "transactional": "true", "producerGroup": "SinkHalvesGroup"}
    states = ["commit", "rollback", "unknown", None]
    rows = {"body": [b"%d" % row for row in range(200)], "transaction_state": [states[row % 4] for row in range(200)]}

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch(rows)
        raise RuntimeError("no more rows come")

    with pytest.raises(RuntimeError, match="no more rows come"):
        send_task(live_broker, failing(), list(rows), **given)
    assert send_task(live_broker, rows, list(rows), **given) == SentRows(200, {0: 200})
    messages = consumed(tmp_path, live_broker, "SinkHalves")
    assert len(messages) == 100
    seen = {line["bodySha256"]: line for line in messages}
    assert set(seen) == {digest(b"%d" % row) for row in range(200) if row % 4 in (0, 3)}
    for queue_id in (0, 1):
        places = [seen[digest(b"%d" % row)] for row in range(200) if row % 4 in (0, 3)]
        offsets = [line["queueOffset"] for line in places if line["queueId"] == queue_id]
        assert offsets == sorted(offsets), "committed rows of a queue keep their order"


def test_spark_puts_invalid_rows_aside_and_sends_what_it_reads_from_a_cluster_back(
    spark: SparkSession, live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkAside", 2)
    body = F.when(F.col("id") % 10 != 3, F.format_string("body-%d", "id"))
    rows = spark.range(100, numPartitions=2).select("id", body.alias("body")).withColumnRenamed("id", "flag")
    write = rows.write.format("spark_mq").mode("append").option("nameServer", live_broker.name_server)
    aside = tmp_path / "aside"
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        write.option("topic", "SinkAside").option("onInvalidRow", "deadLetter").option(
            "deadLetterPath", str(aside)
        ).save()
        told = [row.msg for row in spark.tvf.python_worker_logs().collect() if row.logger == "spark_mq.sink"]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert told == ["batch 0: 90 rows sent (SEND_OK 90)"]
    letters = spark.read.parquet(str(aside)).collect()
    assert sorted(row.flag for row in letters) == list(range(3, 100, 10))
    assert {(row.error_column, row.error_rule) for row in letters} == {("body", "it is null")}
    assert len(consumed(tmp_path, live_broker, "SinkAside")) == 90
    read = spark.read.format("spark_mq").option("nameServer", live_broker.name_server).option("topic", "SinkAside")
    failed = read.load().where("flag < 20")
    assert spark_mq.send_back(failed, nameServer=live_broker.name_server, consumer_group="SinkAsideGroup") is None
    with Admin(ClientSettings((live_broker.name_server,))) as admin:
        retries = "%RETRY%SinkAsideGroup"
        wait_until(lambda: retries in admin.topics(), "the retry topic is there")
        wait_until(lambda: sum(admin.max_offsets(retries).values()) == 18, "the retries are delivered")
    bodies = {line["bodySha256"] for line in consumed(tmp_path, live_broker, retries)}
    assert bodies == {digest(b"body-%d" % row) for row in range(20) if row % 10 != 3}


def test_a_fence_waits_until_the_broker_has_read_a_dead_attempts_connection_to_its_end(
    live_broker: RunningBroker,
) -> None:
    live_broker.make_topic("SinkFence", 1)
    given = {"nameServer": live_broker.name_server, "topic": "SinkFence", "guarantee": "atLeastOnce"}
    options = LiveSinkOptions.parse({**given, "fenceTimeout": "1s"}, "batch")
    queue = MessageQueue("SinkFence", "broker-lab", 0)
    data = HeartbeatData(client_id="dead", producers=(ProducerData(group_name="SPARK_MQ_dead_attempt"),))
    with live_routes(options) as routes:
        brokers = LiveBrokers(options, routes, "batch 0 of sink s")
        brokers.prepare([queue])
        connection = BlockingConnection[None](live_broker.address, options.client_settings())
        connection.send([(make_call(RequestCode.HEART_BEAT, body=data), None)])
        assert connection.receive()[0][1].code == 0
        with pytest.raises(BatchInDoubtError, match="still has a connection of an earlier attempt"):
            brokers.fence([queue], ["SPARK_MQ_never", "SPARK_MQ_dead_attempt"])
        connection.close()
        brokers.fence([queue], ["SPARK_MQ_never", "SPARK_MQ_dead_attempt"])


def test_a_batch_whose_staging_directory_is_lost_is_found_by_the_sinks_topic(
    live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("SinkLost", 2)
    given = {"name_server": live_broker.name_server, "topic": "SinkLost", "rows": 50}
    for staging, batch_id in (("a", 0), ("b", 0), ("b", 1), ("c", 1), ("c", 2)):
        assert send_batch({**given, "staging": str(tmp_path / staging), "batch_id": batch_id}) == 0
        with Admin(ClientSettings((live_broker.name_server,))) as admin:
            key = sink_digest(QUERY, QUERY).hex()
            told = (batch_id + 1,)
            wait_until(lambda: len(admin.query_by_key("SPARK_MQ_SINK", key).messages) >= told[0], "the topic tells")  # noqa: B023
    messages = consumed(tmp_path, live_broker, "SinkLost")
    assert len(messages) == len({line["keys"] for line in messages}) == 3 * 2 * 50
    assert send_batch({**given, "staging": str(tmp_path / "d"), "batch_id": 1}) == 3, "the query has gone back"


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.7", "5.1.4"])
def test_a_batch_whose_writer_died_is_finished_on_an_older_broker(oracle: Oracle, tmp_path: Path, version: str) -> None:
    """A 4.9 broker keeps the names of producer groups whose connections have ended."""
    with ExitStack() as running:
        name_server = running.enter_context(oracle.namesrv())
        older = oracle.release(version).broker(tmp_path / "store", name_server, commitlog_file_size_bytes=8 << 20)
        broker = running.enter_context(older)
        broker.make_topic("SinkOlder", 2)
        given = {"name_server": name_server, "topic": "SinkOlder", "staging": str(tmp_path / "s"), "rows": 100}
        command = [sys.executable, "-m", "tests.support.live_writer", json.dumps({**given, "batch_id": 0})]
        dying = {**os.environ, "SPARK_MQ_FAILPOINT": "live-amid-send:3"}
        assert subprocess.run(command, cwd=PROJECT, env=dying, check=False).returncode == -signal.SIGKILL
        assert subprocess.run(command, cwd=PROJECT, check=False).returncode == 0
        messages = consumed(tmp_path, broker, "SinkOlder")
    assert len(messages) == len({line["keys"] for line in messages}) == 2 * 100


@pytest.mark.parametrize("version", [RELEASE, "4.9.7"])
@pytest.mark.long
def test_rows_that_wait_are_delivered_once_wherever_the_commit_dies(
    version: str, oracle: Oracle, tmp_path: Path
) -> None:
    """With a delay level, a deliver time, a retry group: found where Apache's broker has put them, delivered or not."""
    timer = {"timerWheelEnable": "true", "mappedFileSizeTimerLog": 10_400} if version.startswith("5.") else {}
    try:
        own = oracle.release(version)
    except OracleError as error:
        pytest.skip(f"RocketMQ {version} could not be had from Maven: {str(error).strip().splitlines()[-1]}")
    with oracle.namesrv() as name_server, own.broker(tmp_path / "store", name_server, **timer) as broker:
        for is_delivered in (False, True):
            prefix, make = "SinkDelivered" if is_delivered else "SinkWaits", broker.make_topic
            write_through_deaths(name_server, tmp_path / prefix, prefix, make, is_delivered=is_delivered)


def test_a_commit_waits_for_a_broker_that_is_frozen(live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("SinkFrozen", 2)
    times = {"sendTimeout": "500ms", "retryTimeout": "60s", "writeId": "frozen", "stagingPath": str(tmp_path)}
    options = LiveSinkOptions.parse({"nameServer": live_broker.name_server, "topic": "SinkFrozen", **times}, "batch")
    rows = pa.record_batch({"body": [b"%d" % row for row in range(10)]})
    columns, batch = InputColumns(("body",)), Batch("frozen", "frozen", 0)
    staged = [stage_for_brokers(options, columns, batch, 0, 0, iter([rows]))]
    os.kill(live_broker.pid, signal.SIGSTOP)
    thaw = threading.Timer(3.0, os.kill, (live_broker.pid, signal.SIGCONT))
    thaw.start()
    try:
        commit_to_brokers(options, staged, 0)
    finally:
        thaw.join()
    found = [line["bodySha256"] for line in consumed(tmp_path, live_broker, "SinkFrozen")]
    assert sorted(found) == sorted(digest(b"%d" % row) for row in range(10))
