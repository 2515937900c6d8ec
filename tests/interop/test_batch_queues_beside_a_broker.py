"""Beside a running Apache broker whose topic has batch queues: what its own client is served is what is read, in each way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_mq.cli.message_lines import dump_queue
from storage import open_store
from tests.spark.in_process import next_batch, open_stream, read_batch
from tests.storage.queues.test_batch_queue import Line, as_served, in_order
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
TOPIC = "Batched"
SMALL: dict[str, Any] = {"commitlog_file_size_bytes": 65_536, "mapperFileSizeBatchConsumeQueue": 460}
"""Files of the queues hold ten units."""


def served(oracle: Oracle, broker: RunningBroker, out: Path) -> list[Line]:
    return [line for line in oracle.consume_all(out, broker, [TOPIC], lookUps=0) if line["type"] == "message"]


class Stream:
    """It stops amid records and queues, and goes on as another process would."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._options = {"topic": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "13"}
        self._position = open_stream(root, **self._options).initialOffset()
        self.rows: list[dict[str, Any]] = []

    def take(self, batches: int | None = None) -> None:
        """So many micro-batches, each in a process of its own; without a number all that are there."""
        while batches is None or batches > 0:
            reader = open_stream(self._root, **self._options)
            end, found = next_batch(reader, json.loads(json.dumps(self._position)))
            if end == self._position:
                assert batches is None
                return
            assert 0 < len(found) <= 13
            self.rows, self._position = self.rows + found, end
            batches = None if batches is None else batches - 1


def dumped(root: Path, broker: RunningBroker) -> list[tuple[Any, ...]]:
    with open_store(root, config=str(broker.conf)) as store:
        lines = [line for queue_id in store.queue_ids(TOPIC) for line in dump_queue(store, TOPIC, queue_id)]
    return sorted((line["cqQueueId"], line["cqOffset"], line["bodySha256"]) for line in lines)


def assert_same(root: Path, oracle: Oracle, broker: RunningBroker, out: Path) -> int:
    expected = served(oracle, broker, out)
    assert in_order(as_served(read_batch(root, topic=TOPIC, verifyCrc="true"))) == in_order(expected)
    assert dumped(root, broker) == sorted(
        (line["queueId"], line["queueOffset"], line["bodySha256"]) for line in expected
    )
    return len(expected)


@pytest.mark.long
def test_batches_that_a_running_broker_takes_are_read_beside_it(oracle: Oracle, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with oracle.namesrv() as name_server:
        with oracle.broker(root, name_server, **SMALL) as broker:
            to = "-n", name_server, "-b", broker.address
            oracle.java(MQADMIN, "updateTopic", *to, "-t", TOPIC, "-r", 2, "-w", 2, "-a", "+queue.type=BatchCQ")
            oracle.send(tmp_path / "first.jsonl", broker, TOPIC, count=63, batch=5, maxBody=90)
            oracle.send(tmp_path / "single.jsonl", broker, TOPIC, count=6, seed=2)
            assert assert_same(root, oracle, broker, tmp_path / "served.jsonl") == 69
            stream = Stream(root)
            stream.take(3)
            assert len(stream.rows) < 69
            oracle.send(tmp_path / "second.jsonl", broker, TOPIC, count=140, batch=7, maxBody=90, seed=3)
            stream.take(4)
            assert assert_same(root, oracle, broker, tmp_path / "served-again.jsonl") == 209
            stream.take()
            assert in_order(as_served(stream.rows)) == in_order(served(oracle, broker, tmp_path / "streamed.jsonl"))
            broker.kill()
        before = as_served(read_batch(root, topic=TOPIC))
        assert in_order(before) == in_order(as_served(stream.rows))
        with oracle.broker(root, name_server, **SMALL) as broker:
            oracle.send(tmp_path / "third.jsonl", broker, TOPIC, count=35, batch=7, maxBody=90, seed=4)
            assert assert_same(root, oracle, broker, tmp_path / "served-at-last.jsonl") == 244
            stream.take()
    assert in_order(as_served(stream.rows)) == in_order(as_served(read_batch(root, topic=TOPIC)))
    assert len(stream.rows) == 244
