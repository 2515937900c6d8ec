"""The shipped listener in a running session, against what Apache's store classes say of the same store."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

import spark_mq
from spark_mq.source.lag import QueueLag, queue_lags
from spark_mq.source.listener import LagReport, log_lag
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.store_builder import StoreBuilder

pytestmark = pytest.mark.slow

TOPICS = ("TopicOne", "TopicTwo", "TopicThree")


class Golden:
    """Sizes and store times of every message of a fixture, by (topic, queue id), in queue order from offset 0."""

    def __init__(self, store: Fixture) -> None:
        self.messages: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for line in golden_lines(store.golden, "message"):
            queue = self.messages.setdefault((line["cqTopic"], line["cqQueueId"]), [])
            assert line["cqOffset"] == len(queue)
            queue.append((line["storeSize"], line["storeTimestamp"]))

    def lag(self, topic: str, queue_id: int, next_offset: int) -> QueueLag:
        """The lag of one who reads on at `next_offset`, of which at least one message was read."""
        messages = self.messages[topic, queue_id]
        unread = messages[next_offset:]
        waiting_ms = messages[-1][1] - messages[next_offset - 1][1]
        return QueueLag(topic, "broker-lab", queue_id, len(unread), sum(size for size, _ in unread), waiting_ms)


@pytest.fixture
def reports(spark: SparkSession) -> Iterator[list[LagReport]]:
    """What a listener hands over while the test runs."""
    handed: list[LagReport] = []
    listener = spark_mq.LagListener(handed.append)
    spark.streams.addListener(listener)
    yield handed
    spark.streams.removeListener(listener)


def run(spark: SparkSession, store: Fixture, checkpoint: Path, **options: str) -> list[Any]:
    """A run of AvailableNow to its end; its progresses."""
    stream = spark.readStream.format("spark_mq").options(path=str(store.root), subscribe=",".join(TOPICS), **options)
    query = (
        stream.load()
        .writeStream.format("noop")
        .queryName("lagging")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return list(query.recentProgress)


def wait_for(reports: list[LagReport], count: int) -> None:
    """Listeners are called some time after the batch."""
    deadline = time.monotonic() + 30
    while len(reports) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(reports) >= count


@pytest.mark.spark
def test_lag_by_rows_bytes_and_time_is_what_the_golden_store_holds_behind_each_batch(
    spark: SparkSession, reports: list[LagReport], pristine_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    store = pristine_store("roll")
    golden = Golden(store)
    progresses = run(spark, store, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="300")
    assert len(progresses) > 2
    wait_for(reports, len(progresses))
    for progress, report in zip(progresses, reports, strict=True):
        ends = json.loads(progress.sources[0].endOffset)
        assert report.lags == [
            golden.lag(topic, int(queue_id), position["next"])
            for topic in sorted(TOPICS)
            for queue_id, position in ends[topic]["broker-lab"].items()
        ]
        assert (report.query_name, report.batch_id, report.query_id) == ("lagging", progress.batchId, progress.id)
    assert all(lag.rows and lag.bytes and lag.time_ms for lag in reports[0].lags)
    assert all(lag[3:] == (0, 0, 0) for lag in reports[-1].lags)


@pytest.mark.spark
def test_a_query_without_limits_is_caught_up_after_one_batch(
    spark: SparkSession, pristine_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    (only,) = run(spark, pristine_store("roll"), tmp_path, startingOffsets="earliest")
    assert [lag[3:] for lag in queue_lags(only)] == [(0, 0, 0)] * 9


@pytest.mark.spark
def test_a_batch_that_is_repeated_after_a_restart_has_its_lag_too(
    spark: SparkSession, reports: list[LagReport], tmp_path: Path
) -> None:
    """Spark asks for no latest offset then. The query crashed behind the batch, and messages came before it was started again."""
    builder = StoreBuilder(tmp_path / "broker-a")
    builder.send_many("Topic", 5)
    checkpoint = tmp_path / "checkpoint"

    def run_again() -> list[Any]:
        stream = spark.readStream.format("spark_mq").options(path=str(builder.root), topic="Topic")
        writer = stream.option("startingOffsets", "earliest").load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return list(query.recentProgress)

    assert len(run_again()) == 1
    for path in (checkpoint / "commits").glob("*0*"):
        path.unlink()
    builder.send_many("Topic", 3)
    repeated, *_ = run_again()
    assert (repeated.batchId, repeated.sources[0].latestOffset) == (0, "null")
    wait_for(reports, 2)
    assert [(lag.rows, lag.bytes is not None and lag.bytes > 0, lag.time_ms) for lag in reports[1].lags] == [
        (3, True, 3_000)
    ]
    assert reports[1].metrics == dict.fromkeys(("minOffsetsBehindLatest", "maxOffsetsBehindLatest"), "3") | {
        "avgOffsetsBehindLatest": "3.0"
    }


@pytest.mark.spark
def test_this_pyspark_takes_no_metrics_from_a_python_source(spark: SparkSession) -> None:
    """When this fails, `sources[].metrics` of a progress can be filled as Kafka's source fills it."""
    named = spark._jvm.java.lang.Class.forName
    reports_metrics = named("org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics")
    package = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream"
    for suffix in ("", "Base", "WithAdmissionControl", "WithTriggerAvailableNow"):
        assert not reports_metrics.isAssignableFrom(named(package + suffix))


@pytest.mark.spark
def test_queries_over_other_sources_are_passed_over(
    spark: SparkSession, reports: list[LagReport], pristine_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("a line\n", "utf-8")
    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    writer = lines.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    other = writer.trigger(availableNow=True).start()
    other.awaitTermination(120)
    assert other.lastProgress is not None
    run(spark, pristine_store("roll"), tmp_path / "ours", startingOffsets="earliest")
    wait_for(reports, 1)
    assert [report.query_name for report in reports] == ["lagging"]


@pytest.mark.spark
def test_a_listener_keeps_the_last_report(
    spark: SparkSession, pristine_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    handed: list[LagReport] = []
    listener = spark_mq.LagListener(handed.append)
    spark.streams.addListener(listener)
    try:
        run(spark, pristine_store("roll"), tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="500")
        wait_for(handed, 2)
    finally:
        spark.streams.removeListener(listener)
    assert listener.lags == handed[-1].lags
    assert listener.reports == {handed[-1].query_id: handed[-1]}


def test_a_report_is_logged_with_its_unknowns_and_its_skipped_commits(caplog: pytest.LogCaptureFixture) -> None:
    lags = [QueueLag("T", "b", 0, 5, None, 70), QueueLag("T", "b", 1, 2, 10, 90)]
    query_id = UUID("8c57e1ec-94b5-4c99-b100-f694162df0b9")
    with caplog.at_level(logging.DEBUG, logger="spark_mq.source.listener"):
        log_lag(LagReport(query_id, "orders", 3, "2026-01-01T00:00:00.000Z", lags, {"b": "locked"}))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "query orders, batch 3: 7 rows, None bytes, 90 ms behind in 2 queues"),
        ("DEBUG", "query orders, queue T/b/0: 5 rows, None bytes, 70 ms"),
        ("DEBUG", "query orders, queue T/b/1: 2 rows, 10 bytes, 90 ms"),
        ("WARNING", "query orders, broker b: commitOffsets skipped: locked"),
    ]
