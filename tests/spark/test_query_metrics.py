"""Figures of a session's queries: as a DataFrame, and as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_mq
from tests.support.metric_pages import MetricPage
from tests.support.store_builder import StoreBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def builder(tmp_path: Path) -> StoreBuilder:
    made = StoreBuilder(tmp_path / "broker-a")
    made.send_many("Topic", 40)
    return made


@pytest.fixture
def start(spark: SparkSession, builder: StoreBuilder, tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """`start(name, …)`: a query over the store, whose batches a function gets; stopped after the test."""
    started: list[StreamingQuery] = []

    def begin(
        name: str, batch: Callable[..., object] = lambda frame, number: frame.count(), **options: str
    ) -> StreamingQuery:
        options = {"path": str(builder.root), "topic": "Topic", "startingOffsets": "earliest", **options}
        writer = spark.readStream.format("spark_mq").options(**options).load().writeStream.foreachBatch(batch)
        query = writer.queryName(name).option("checkpointLocation", str(tmp_path / name)).start()
        started.append(query)
        return query

    yield begin
    (tmp_path / "gate").touch()  # or a batch that hangs would keep its query from stopping
    for query in started:
        query.stop()


def row_of(spark: SparkSession, name: str) -> Row | None:
    return next((row for row in spark_mq.metrics(spark).collect() if row.name == name), None)


def wait_for(spark: SparkSession, name: str, met: Callable[[Row], bool]) -> Row:
    """Listeners are called some time after the batch."""
    deadline = time.monotonic() + 60
    while (row := row_of(spark, name)) is None or not met(row):
        assert time.monotonic() < deadline, row
        time.sleep(0.1)
    return row


def test_a_query_that_has_read_all_has_rates_and_no_lag(
    spark: SparkSession, start: Callable[..., StreamingQuery]
) -> None:
    spark_mq.metrics(spark)
    query = start("reads")
    row = wait_for(spark, "reads", lambda row: row.batch_id == 0)
    assert (row.query_id, row.run_id, row.is_active) == (str(query.id), str(query.runId), True)
    assert (row.lag_rows, row.lag_bytes, row.oldest_unread_ms) == (0, 0, 0)
    assert row.num_input_rows == 40
    assert row.last_error is None
    assert row.failures == 0


def test_what_comes_while_a_batch_hangs_is_seen_in_rows_bytes_and_age(
    spark: SparkSession, builder: StoreBuilder, start: Callable[..., StreamingQuery], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def hang(frame: object, number: int) -> None:
        while number == 1 and not gate.exists():
            time.sleep(0.05)

    spark_mq.metrics(spark)
    start("hangs", hang)
    wait_for(spark, "hangs", lambda row: row.batch_id == 0 and row.lag_rows == 0)
    builder.send_many("Topic", 7)
    row = wait_for(spark, "hangs", lambda row: row.lag_rows == 7)
    assert row.lag_bytes > 7 * 80
    assert row.oldest_unread_ms is not None
    gate.touch()
    row = wait_for(spark, "hangs", lambda row: row.batch_id == 1)
    assert row.lag_rows == 0


def test_a_query_that_failed_keeps_its_error_and_counts_it(
    spark: SparkSession, start: Callable[..., StreamingQuery]
) -> None:
    def fail(frame: object, number: int) -> None:
        raise ValueError("the sink is full")

    spark_mq.metrics(spark)
    query = start("fails", fail)
    with pytest.raises(Exception, match="the sink is full"):
        query.awaitTermination(60)
    row = wait_for(spark, "fails", lambda row: not row.is_active)
    assert "the sink is full" in row.last_error
    assert row.failures == 1
    assert (row.input_rows_per_second or 0, row.processed_rows_per_second or 0) == (0, 0)


def test_a_query_that_was_there_before_the_first_call_is_shown(
    spark: SparkSession,
    builder: StoreBuilder,
    start: Callable[..., StreamingQuery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = start("older")
    query.processAllAvailable()
    builder.send_many("Topic", 10)
    query.processAllAvailable()
    monkeypatch.setattr("spark_mq.source.query_metrics._OF_SESSION", WeakKeyDictionary())
    row = row_of(spark, "older")
    assert row is not None
    assert (row.batch_id, row.num_input_rows, row.lag_rows) == (1, 10, 0)
    assert row.processed_bytes_per_second > 0


def test_prometheus_reads_the_same(spark: SparkSession, start: Callable[..., StreamingQuery]) -> None:
    start("served")
    wait_for(spark, "served", lambda row: row.batch_id == 0)
    with spark_mq.serve_metrics(spark, port=0) as served:
        page = MetricPage.at("{}:{}".format(*served.address))
    assert page.value("spark_mq_query_active", query="served") == 1
    assert page.value("spark_mq_query_batch_id", query="served") == 0
    assert page.value("spark_mq_query_lag_rows", query="served") == 0
    assert page.value("spark_mq_query_oldest_unread_seconds", query="served") == 0
    assert page.value("spark_mq_query_processed_rows_per_second", query="served") is not None


def test_a_query_over_another_source_has_rates_and_no_lag(spark: SparkSession, tmp_path: Path) -> None:
    spark_mq.metrics(spark)
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName("another")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        row = wait_for(spark, "another", lambda row: row.batch_id is not None)
        assert (row.lag_rows, row.lag_bytes, row.oldest_unread_ms) == (None, None, None)
    finally:
        query.stop()
