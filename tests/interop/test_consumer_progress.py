"""The real mqadmin shows a query's progress: Spark writes it while the broker is down, the broker loads it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from spark_mq.source.lag import skipped_commits
from storage import open_store
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

TOPIC = "TopicProgress"
GROUP = "GroupSpark"
PATIENCE_SECONDS = 90  # for a loaded machine; nothing waits longer than it has to


class Progress(NamedTuple):
    """One queue in mqadmin's table."""

    broker_offset: int
    consumer_offset: int
    diff: int


def consumer_progress(oracle: Oracle, broker: RunningBroker, group: str) -> dict[tuple[str, int], Progress]:
    """`mqadmin consumerProgress -g GROUP`, by (topic, queue id)."""
    mqadmin = "org.apache.rocketmq.tools.command.MQAdminStartup"
    deadline = time.monotonic() + PATIENCE_SECONDS
    table: list[list[str]] = []
    output = ""
    while not table and time.monotonic() < deadline:  # a broker is up before the name server knows its topics
        output = oracle.java(mqadmin, "consumerProgress", "-n", broker.name_server, "-g", group)
        table = [line.split() for line in output.splitlines() if line.startswith(("#Topic", TOPIC, "%RETRY%"))]
    assert table, output
    header, *rows = table
    columns = ["#Topic", "#Broker", "Name", "#QID", "#Broker", "Offset", "#Consumer", "Offset", "#Diff"]
    assert header[: len(columns)] == columns
    return {(row[0], int(row[2])): Progress(int(row[3]), int(row[4]), int(row[5])) for row in rows}


def run(spark: SparkSession, store: Path, checkpoint: Path) -> list[Any]:
    """A run of AvailableNow over the topic to its end; its progresses."""
    options = {"path": str(store), "topic": TOPIC, "startingOffsets": "earliest", "brokerName": "broker-lab"}
    stream = spark.readStream.format("spark_mq").options(**options, consumerGroup=GROUP, commitOffsets="true")
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    return list(query.recentProgress)


def ends_of(store: Path) -> dict[int, int]:
    with open_store(store) as opened:
        return {queue_id: opened.max_offset(TOPIC, queue_id) for queue_id in opened.queue_ids(TOPIC)}


@pytest.mark.long
def test_mqadmin_shows_the_group_where_the_query_stands(oracle: Oracle, spark: SparkSession, tmp_path: Path) -> None:
    store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    with oracle.namesrv() as name_server:
        with oracle.broker(store, name_server) as broker:
            oracle.send(tmp_path / "one.jsonl", broker, TOPIC, queues=2, count=30)
            # A broker that runs has the lock: the query reads, and says that it did not store.
            (beside,) = run(spark, store, tmp_path / "beside")
            assert beside.numInputRows == 30
            assert list(skipped_commits(beside)) == ["broker-lab"]
        (only,) = run(spark, store, checkpoint)
        assert skipped_commits(only) == {}
        read = ends_of(store)
        assert sum(read.values()) == 30
        assert not (store / "abort").exists()
        with oracle.broker(store, name_server) as broker:
            sent = oracle.send(tmp_path / "two.jsonl", broker, TOPIC, queues=2, count=10)
            behind = {queue_id: sum(line["queueId"] == queue_id for line in sent) for queue_id in read}
            shown = consumer_progress(oracle, broker, GROUP)
            assert {queue: progress for queue, progress in shown.items() if queue[0] == TOPIC} == {
                (TOPIC, queue_id): Progress(end + behind[queue_id], end, behind[queue_id])
                for queue_id, end in read.items()
            }
        run(spark, store, checkpoint)
        with oracle.broker(store, name_server) as broker:
            shown = consumer_progress(oracle, broker, GROUP)
            assert {progress.diff for queue, progress in shown.items() if queue[0] == TOPIC} == {0}
            assert {queue[1]: p.consumer_offset for queue, p in shown.items() if queue[0] == TOPIC} == ends_of(store)
