"""Spark queries over running brokers: restarts on both sides, access control, and secrets that are shown nowhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_mq.conditions import ConvertedError
from tests.interop.test_live_source import Stream as ReaderStream
from tests.interop.test_live_source import batch, sorted_rows
from tests.interop.test_live_stream import UNHURRIED, Producers, Stream, add_queues, answered, by_queue
from tests.support.driver_process import Driver, Query
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SECRET = "s3cr3t-of-nobody"
BROKER = "broker-lab"
AUTHENTICATION = {
    "authenticationEnabled": "true",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
    "authorizationEnabled": "true",
    "authorizationMetadataProvider": "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
}


class LiveStream(Stream):
    """A Spark query on one checkpoint, over the name server."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, checkpoint: Path, **options: str) -> None:
        super().__init__(spark, broker, checkpoint)
        self._options = {"nameServer": broker.name_server, "subscribePattern": "Live.*", "startingOffsets": "earliest"}
        self._options |= {"maxOffsetsPerTrigger": "150", **options}


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_beside_a_broker_that_is_killed_and_stopped_sees_every_message_once_and_in_order(
    spark: SparkSession, oracle: Oracle, tmp_path: Path
) -> None:
    with ExitStack() as running:
        name_server = running.enter_context(oracle.namesrv())
        port, answers = free_ports(), []
        stream: LiveStream | None = None
        for number in range(3):
            with ExitStack() as life:
                broker = life.enter_context(oracle.broker(tmp_path / "store", name_server, port=port, **UNHURRIED))
                stream = stream or LiveStream(spark, broker, tmp_path / "checkpoint")
                producers = Producers(oracle, broker, tmp_path / f"life-{number}", life)
                (tmp_path / f"life-{number}").mkdir()
                producers.start("LiveA", queues=2 + number, count=300, interval=4, seed=number)
                with stream.running():
                    wait_until(lambda: not producers.are_sending(), "all is sent", 120)  # noqa: B023
                    assert producers.succeeded(), producers.output()
                answers += producers.answers()
                query = life.enter_context(stream.running())  # goes on while the broker goes
                if number == 0:
                    broker.kill()
            assert query is None
        with oracle.broker(tmp_path / "store", name_server, port=port, **UNHURRIED), stream.running():
            stream.wait_until(lambda: stream.count >= len(answers))
    expected = by_queue(((line["topic"], line["queueId"]), answered(line)) for line in answers)
    assert stream.received() == expected
    for messages in expected.values():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))


@pytest.mark.long
def test_a_running_stream_outlives_its_broker(oracle: Oracle, tmp_path: Path) -> None:
    """The broker is killed, comes back, is stopped, and comes back: no query fails, and no message comes twice."""
    seen = []
    with oracle.namesrv() as name_server:
        port = free_ports()
        stream: ReaderStream | None = None
        for number in range(3):
            with oracle.broker(tmp_path / "store", name_server, port=port) as broker:
                oracle.send(tmp_path / f"{number}.jsonl", broker, "LiveLong", queues=2, count=40, seed=number)
                options = {"nameServer": name_server, "topic": "LiveLong", "startingOffsets": "earliest"}
                stream = stream or ReaderStream({**options, "pullTimeout": "60s"})
                seen += stream.until(40)
                if number == 0:
                    broker.kill()
            for _ in range(5):
                assert stream.batch() == []
                time.sleep(0.2)
    places = [(row["queue_id"], row["queue_offset"]) for row in seen]
    assert sorted(places) == [(queue_id, offset) for queue_id in (0, 1) for offset in range(60)]


@pytest.mark.long
def test_ten_restarts_of_the_driver_and_two_of_the_broker_lose_and_repeat_nothing(
    oracle: Oracle, tmp_path: Path
) -> None:
    """From a cluster to which a Java producer keeps sending into a store, in drivers of their own; half of them are killed."""
    query = Query("", str(tmp_path / "sink"), "LiveKilled", str(tmp_path / "checkpoint"), rows_a_batch=200)
    answers, order = [], random.Random(16)
    with oracle.namesrv() as name_server:
        query = dataclasses.replace(query, source_options={"nameServer": name_server, "pullTimeout": "2m"})
        port = free_ports()
        for life in range(3):
            with ExitStack() as living:
                broker = living.enter_context(oracle.broker(tmp_path / "store", name_server, port=port, **UNHURRIED))
                (tmp_path / f"life-{life}").mkdir()
                producers = Producers(oracle, broker, tmp_path / f"life-{life}", living)
                producers.start("LiveKilled", queues=2, count=800, interval=10, seed=life)
                wait_until(lambda: len(producers.answers()) > 10, "a first message")  # noqa: B023
                if life == 1:
                    add_queues(oracle, broker, "LiveKilled", 4)
                for number in range(4 if life == 1 else 3):
                    is_killed = number % 2 == 0
                    trigger = "200 milliseconds" if is_killed else "availableNow"
                    running = Driver(dataclasses.replace(query, trigger=trigger), tmp_path / f"driver-{life}-{number}")
                    with running as driver:
                        driver.begin()
                        if is_killed:
                            assert driver.wait(order.uniform(2, 12)) is None, driver.output
                            driver.kill()
                        else:
                            assert driver.wait_for_end() == 0, driver.output
                wait_until(lambda: not producers.are_sending(), "all is sent", 120)  # noqa: B023
                assert producers.succeeded(), producers.output()
                answers += producers.answers()
                if life == 0:
                    broker.kill()
                if life == 2:
                    with Driver(query, tmp_path / "driver-last") as driver:
                        driver.begin()
                        assert driver.wait_for_end() == 0, driver.output
    columns = {"path": query.sink, "topic": "LiveKilled", "columns": "queue_id,queue_offset,body"}
    received: dict[int, list[str]] = {}
    for row in sorted(batch(columns), key=lambda row: (row["queue_id"], row["queue_offset"])):
        received.setdefault(row["queue_id"], []).append(hashlib.sha256(row["body"]).hexdigest())
    expected: dict[int, list[str]] = {}
    for line in sorted(answers, key=lambda line: (line["queueId"], line["queueOffset"])):
        expected.setdefault(line["queueId"], []).append(line["bodySha256"])
    assert received == expected
    assert sum(map(len, expected.values())) == 2_400


@pytest.mark.long
def test_executors_pull_from_brokers(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "store", name_server) as broker:
        oracle.send(tmp_path / "sent.jsonl", broker, "LiveSpread", queues=4, count=400)
        query = Query("", str(tmp_path / "sink"), "LiveSpread", str(tmp_path / "checkpoint"), rows_a_batch=300)
        spread = dataclasses.replace(
            query, master="local-cluster[2,1,1024]", source_options={"nameServer": name_server, "minPartitions": "4"}
        )
        with Driver(spread, tmp_path / "driver") as driver:
            driver.begin()
            assert driver.wait_for_end() == 0, driver.output
        columns = {"topic": "LiveSpread", "columns": "queue_id,queue_offset,body"}
        rows = batch({"path": query.sink, **columns})
        assert sorted_rows(rows) == sorted_rows(batch({"nameServer": name_server, **columns}))
        assert len(rows) == 400


@pytest.mark.long
def test_a_broker_that_stays_away_is_an_error_and_no_loss(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server:
        with oracle.broker(tmp_path / "store", name_server) as broker:
            oracle.send(tmp_path / "sent.jsonl", broker, "LiveGone", queues=1, count=10)
            options = {"nameServer": name_server, "topic": "LiveGone", "startingOffsets": "earliest"}
            stream = ReaderStream({**options, "pullTimeout": "2s"})
            end = stream.reader.latestOffset(stream.position, stream.reader.getDefaultReadLimit())
            parts = stream.reader.partitions(stream.position, end)
        with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_UNREACHABLE\] .*Connection refused"):
            [*parts[0].splits[0].read()]
        with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_UNREACHABLE\]"):
            wait_until(
                lambda: stream.reader.latestOffset(end, stream.reader.getDefaultReadLimit()) != end, "an error", 30
            )
        with pytest.raises(ConvertedError, match=r"(?s)\[SPARK_MQ_BROKER_UNREACHABLE\] .*No message is lost") as caught:
            ReaderStream({**options, "pullTimeout": "1s"}, end).batch()
        assert "DATA_LOSS" not in str(caught.value)


@pytest.mark.long
def test_requests_are_signed_and_refusals_are_named(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server:
        with oracle.broker(tmp_path / "store", name_server) as broker:
            oracle.send(tmp_path / "sent.jsonl", broker, "LiveSigned", queues=2, count=30)
        with oracle.broker(tmp_path / "store", name_server, **AUTHENTICATION) as broker:
            options = {"nameServer": name_server, "topic": "LiveSigned", "columns": "queue_id,queue_offset"}
            assert len(batch({**options, "accessKey": "admin", "secretKey": SECRET})) == 30
            signed = {**options, "accessKey": "admin", "secretKey": SECRET, "startingOffsets": "earliest"}
            stream = ReaderStream({**signed, "consumerGroup": "GroupSigned", "commitOffsets": "true"})
            assert len(stream.until(30)) == 30
            with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_ACCESS_DENIED\].*16") as caught:
                batch({**options, "accessKey": "admin", "secretKey": "wrong-" + SECRET})
            assert SECRET not in str(caught.value)
            with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_ACCESS_DENIED\]"):
                batch(options)


@pytest.mark.spark
@pytest.mark.long
def test_no_secret_is_shown_by_a_query(
    spark: SparkSession,
    oracle: Oracle,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "store", name_server) as broker:
        oracle.send(tmp_path / "sent.jsonl", broker, "LiveHidden", queues=2, count=30)
        options = {"nameServer": name_server, "topic": "LiveHidden", "accessKey": "me"}
        options |= {"secretKey": SECRET, "securityToken": f"token-{SECRET}"}
        frame = spark.read.format("spark_mq").options(**options).load()
        assert frame.count() == 30
        frame.explain(True)
        frame.createOrReplaceTempView("hidden")
        spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM hidden").show(1, truncate=False)
        loaded = spark.readStream.format("spark_mq").options(**options, startingOffsets="earliest").load()
        writer = loaded.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        query.explain(True)
        progress = json.dumps([one.json for one in query.recentProgress])
        assert sum(one.numInputRows for one in query.recentProgress) == 30
    texts = [progress, str(query.lastProgress), repr(frame), frame._jdf.queryExecution().toString()]
    failing = spark.read.format("spark_mq").options(**{**options, "topic": "LiveNot", "pullTimeout": "1s"}).load()
    with pytest.raises(Exception, match="SPARK_MQ_") as caught:
        failing.count()
    texts += [str(caught.value), caplog.text, *capfd.readouterr()]
    texts += [path.read_bytes().decode("latin-1") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert [text for text in texts if SECRET in text] == []


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.7", "5.1.4"])
def test_brokers_of_other_releases_are_read_as_their_stores(oracle: Oracle, tmp_path: Path, version: str) -> None:
    other = oracle.release(version)
    with oracle.namesrv() as name_server, other.broker(tmp_path / "store", name_server) as broker:
        other.send(tmp_path / "sent.jsonl", broker, "LiveOld", queues=3, count=400, maxBody=5_000)
        live = {"nameServer": name_server, "topic": "LiveOld"}
        stored = {"path": str(broker.store), "conf": str(broker.conf), "topic": "LiveOld"}
        assert batch(live) == batch(stored) != []
        assert batch({**live, "tags": "TagA"}) == batch({**stored, "tags": "TagA"}) != []
        times = sorted({int(row["store_timestamp"].timestamp() * 1000) for row in batch(stored)})
        for time_ms in (times[0], times[len(times) // 2], times[len(times) // 2] + 1):
            cut = {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
            assert batch({**live, **cut}) == batch({**stored, **cut}), time_ms
        group = {"startingOffsets": "earliest", "consumerGroup": "GroupOld", "commitOffsets": "true"}
        stream = ReaderStream({**live, **group})
        assert len(stream.until(400)) == 400
        # mqadmin of 5.3.3 asks brokers for what 4.9 does not know (351), so the broker's own table is the judge
        ends = {int(queue_id): one["next"] for queue_id, one in stream.position["LiveOld"][BROKER].items()}
        assert sum(ends.values()) == 400

        def stored() -> dict[int, int | None]:
            return {queue_id: broker.consumer_offset("LiveOld", "GroupOld", queue_id) for queue_id in ends}

        wait_until(lambda: stream.batch() == [] and stored() == ends, "offsets are stored", 90)
        assert stream.reader.reportLatestOffset()["commitOffsets"]["skipped"] == {}
