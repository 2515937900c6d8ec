"""A stream beside a running Apache broker: what the broker acknowledged arrives once and in order.

The producer's answers and Apache's own dump of the store at the end are the judges.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.java_broker import Oracle, RunningBroker, send_arguments

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 180  # for a loaded machine; nothing waits longer than it has to
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
LOG_FILE_BYTES = 256 << 10
QUEUE_FILE_BYTES = 2_000
INDEX_ITEMS = 500

UNHURRIED: dict[str, str | int] = {"syncFlushTimeout": 60_000}
"""A disk on a loaded machine takes long."""

Queue = tuple[str, int]


class Received(NamedTuple):
    """A message as a query's batch held it, and as a producer's answer or Apache's dump tells it."""

    queue_offset: int
    unique_key: str
    msg_id: str
    body_sha256: str


@pytest.fixture(scope="module")
def name_server(oracle: Oracle) -> Iterator[str]:
    with oracle.namesrv() as address:
        yield address


def test_a_stream_beside_a_broker_sees_every_message_once_and_in_order(
    spark: SparkSession, oracle: Oracle, name_server: str, tmp_path: Path
) -> None:
    with ExitStack() as running:
        broker = start_broker(running, oracle, name_server, tmp_path)
        producers = Producers(oracle, broker, tmp_path, running)
        stream = Stream(spark, broker, tmp_path / "checkpoint")

        producers.start("LiveA", queues=2, count=900, interval=8)
        wait_until(lambda: len(producers.answers()) > 50)
        with stream.running():
            stream.wait_until(lambda: stream.count > 200)
        with stream.running():
            add_queues(oracle, broker, "LiveA", 4)
            producers.start("LiveA", queues=4, count=250, interval=5, seed=2)
            stream.wait_until(lambda: ("LiveA", 3) in stream.received())
        with stream.running():
            producers.start("LiveB", queues=2, count=250, interval=5, seed=3)
            stream.wait_until(lambda: ("LiveB", 1) in stream.received())
        answers = receive_the_rest(stream, producers)

    expected = by_queue(((line["topic"], line["queueId"]), answered(line)) for line in answers)
    assert stream.received() == expected
    assert set(expected) == {("LiveA", 0), ("LiveA", 1), ("LiveA", 2), ("LiveA", 3), ("LiveB", 0), ("LiveB", 1)}
    for messages in expected.values():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))

    dumped = [line for line in oracle.dump(broker.store, broker.conf) if line["type"] == "message"]
    assert expected == by_queue(
        ((line["cqTopic"], line["cqQueueId"]), stored(line)) for line in dumped if line["topic"].startswith("Live")
    )
    for rolled in ("commitlog", "consumequeue/LiveA/0", "index"):
        assert len(list((broker.store / rolled).iterdir())) > 2, f"{rolled} was to roll"


@pytest.mark.long
def test_so_does_a_stream_beside_a_broker_that_syncs_each_message(
    spark: SparkSession, oracle: Oracle, name_server: str, tmp_path: Path
) -> None:
    with ExitStack() as running:
        broker = start_broker(
            running, oracle, name_server, tmp_path, flushDiskType="SYNC_FLUSH", brokerName="broker-sync"
        )
        producers = Producers(oracle, broker, tmp_path, running)
        stream = Stream(spark, broker, tmp_path / "checkpoint")
        producers.start("LiveSync", queues=2, count=500, interval=4)
        wait_until(lambda: len(producers.answers()) > 50)
        answers = receive_the_rest(stream, producers)
    assert stream.received() == by_queue(((line["topic"], line["queueId"]), answered(line)) for line in answers)
    assert stream.count == 500


def start_broker(
    running: ExitStack, oracle: Oracle, name_server: str, directory: Path, **settings: str
) -> RunningBroker:
    return running.enter_context(
        oracle.broker(
            directory / "store",
            name_server,
            commitlog_file_size_bytes=LOG_FILE_BYTES,
            consume_queue_file_size_bytes=QUEUE_FILE_BYTES,
            **{"maxIndexNum": INDEX_ITEMS, **UNHURRIED, **settings},
        )
    )


def receive_the_rest(stream: Stream, producers: Producers) -> list[dict[str, Any]]:
    """Restart the query again and again until all is sent and received; returns what was answered."""
    while producers.are_sending():
        before = stream.count
        with stream.running():
            stream.wait_until(lambda: stream.count > before or not producers.are_sending())  # noqa: B023
    assert producers.succeeded(), producers.output()
    answers = producers.answers()
    with stream.running():
        stream.wait_until(lambda: stream.count >= len(answers))
    return answers


def add_queues(oracle: Oracle, broker: RunningBroker, topic: str, queues: int) -> None:
    to = "-n", broker.name_server, "-b", broker.address
    oracle.java(MQADMIN, "updateTopic", *to, "-t", topic, "-r", queues, "-w", queues)


class Producers:
    """Plain producers beside the test, each with a file of what it was answered."""

    def __init__(self, oracle: Oracle, broker: RunningBroker, directory: Path, running: ExitStack) -> None:
        self._oracle = oracle
        self._broker = broker
        self._directory = directory
        self._running = running
        self._processes: list[Any] = []

    def start(self, topic: str, **settings: int) -> None:
        """Settings as in Send.java."""
        out = self._directory / f"sent-{len(self._processes)}.jsonl"
        arguments = {**send_arguments(self._broker, topic), **settings}
        pairs = [f"{name}={value}" for name, value in arguments.items()]
        self._processes.append(self._running.enter_context(self._oracle.java_running("Send", out, *pairs)))

    def are_sending(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def succeeded(self) -> bool:
        return all(process.poll() == 0 for process in self._processes)

    def output(self) -> str:
        return "".join(log.read_text("utf-8") for log in self._oracle.directory.glob("Send-*.log"))

    def answers(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for out in sorted(self._directory.glob("sent-*.jsonl")):
            whole, _, _ = out.read_text("utf-8").rpartition("\n")
            lines += [json.loads(line) for line in whole.splitlines()]
        return lines


class Stream:
    """A query on one checkpoint that is stopped in the middle of things and started again."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, checkpoint: Path) -> None:
        self._spark = spark
        self._options = {"path": str(broker.store), "conf": str(broker.conf), "subscribePattern": "Live.*"}
        self._options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._batches: dict[int, list[tuple[Queue, Received]]] = {}

    @property
    def count(self) -> int:
        return sum(len(rows) for rows in self._batches.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the query; stop it in the end, whatever it is doing."""
        loaded = self._spark.readStream.format("spark_mq").options(**self._options).load()
        wanted = loaded.select("topic", "queue_id", "queue_offset", "unique_key", "msg_id", "body")
        writer = wanted.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        self._query = writer.start()
        try:
            yield
        finally:
            self._query.stop()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Raises what the query failed with, if it does."""
        query = self._query
        assert query is not None
        wait_until(lambda: holds() or not query.isActive)
        failure = query.exception()
        if failure is not None:
            raise failure

    def received(self) -> dict[Queue, list[Received]]:
        """By queue, in the order of batches and of rows in them."""
        return by_order(row for batch_id in sorted(self._batches) for row in self._batches[batch_id])

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        rows = [
            (
                (row.topic, row.queue_id),
                Received(row.queue_offset, row.unique_key, row.msg_id, hashlib.sha256(row.body).hexdigest()),
            )
            for row in frame.collect()
        ]
        # A batch that was stopped before its commit is run again, and must hold the same.
        assert self._batches.get(batch_id, rows) == rows
        self._batches[batch_id] = rows


def answered(line: dict[str, Any]) -> Received:
    return Received(line["queueOffset"], line["msgId"], line["offsetMsgId"], line["bodySha256"])


def stored(line: dict[str, Any]) -> Received:
    return Received(line["queueOffset"], line["properties"]["UNIQ_KEY"], line["msgId"], line["bodySha256"])


def by_order(messages: Iterator[tuple[Queue, Received]]) -> dict[Queue, list[Received]]:
    queues = defaultdict(list)
    for queue, message in messages:
        queues[queue].append(message)
    return dict(queues)


def by_queue(messages: Iterator[tuple[Queue, Received]]) -> dict[Queue, list[Received]]:
    return {queue: sorted(found) for queue, found in by_order(messages).items()}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s in vain"
        time.sleep(0.05)
