"""Topics of a running broker are archived while it deletes its oldest log files: by name server and by path, with archivers killed."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random, randrange
from typing import Any

import pytest

from spark_mq.client.calls import make_call
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode
from spark_mq.source.cluster_questions import ClusterQuestions
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from tests.archive.archived import archived, by_queue, rows_of
from tests.archive.kill_hunt import hunt
from tests.spark.in_process import bodies, next_batch
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OLD_S = 1_000_000_000
KEPT_FILES = 4
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    "cleanResourceInterval": 500,
    "deleteCommitLogFilesInterval": 10,
    "deleteConsumeQueueFilesInterval": 10,
    "autoCreateTopicEnable": "true",
}


class BrokerWorld:
    """The topic of a running broker, whose retention is asked to work."""

    def __init__(self, broker: RunningBroker, producer: Producer, *, by_path: bool = False) -> None:
        self._broker, self._producer = broker, producer
        self._questions = ClusterQuestions(ClientSettings((broker.name_server,)))
        self.source = {"path": str(broker.store)} if by_path else {"nameServer": broker.name_server}
        self.sent: dict[tuple[int, int], str] = {}
        self._asked_at = 0.0
        self.kept_files = KEPT_FILES

    def turn(self, random: Random) -> None:
        for _ in range(random.randrange(1, 40)):
            self.send(f"{len(self.sent)}/" + "x" * random.randrange(200))
        if time.monotonic() - self._asked_at > 0.5:
            self.expire()

    def send(self, body: str) -> None:
        sent = self._producer.send(Message("Topic", body.encode()))
        self.sent[sent.queue.queue_id, sent.queue_offset] = body

    @property
    def log_files(self) -> list[Path]:
        return sorted((self._broker.store / "commitlog").iterdir())

    def expire(self) -> None:
        """The broker's retention goes by the time of a file's last change; request 329 has it work at once."""
        self._asked_at = time.monotonic()
        for file in self.log_files[: -self.kept_files]:
            os.utime(file, (OLD_S, OLD_S))
        (answer,) = self._questions.ask(self._broker.address, [make_call(RequestCode.DELETE_EXPIRED_COMMITLOG)])
        answer.expect()

    def until_expired(self) -> None:
        for _ in range(250):  # Java's first turn is a minute after its start
            if len(self.log_files) <= KEPT_FILES + 1:
                return
            self.expire()
            time.sleep(0.5)
        raise AssertionError("the broker deletes nothing")


@pytest.fixture(params=[pytest.param("ours", marks=pytest.mark.long), "apache"])
def broker_world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes the world of one broker: ours, and Apache's."""
    is_ours = request.param == "ours"
    oracle = Oracle(tmp_path / "servers", is_ours=True) if is_ours else request.getfixturevalue("oracle")
    with (
        oracle.namesrv() as name_server,
        oracle.broker(tmp_path / "broker" / "store", name_server, **SETTINGS) as broker,
        Producer(ClientSettings((name_server,)), "G") as producer,
    ):
        broker.make_topic("Topic", 3)
        yield lambda **how: BrokerWorld(broker, producer, **how)


World = Callable[..., BrokerWorld]


@pytest.mark.long
@pytest.mark.parametrize("by_path", [pytest.param(False, id="nameServer"), pytest.param(True, id="path")])
def test_a_query_goes_on_in_the_archive_of_a_broker_that_deletes(
    broker_world: World, by_path: bool, tmp_path: Path
) -> None:
    world, table = broker_world(by_path=by_path), str(tmp_path / "archive")
    options = {**world.source, "topic": "Topic", "archive": table}
    for number in range(300):
        world.send(f"early {number} " + "x" * 500)
    stopped = StreamReader(parsed := SourceOptions.parse({**world.source, "topic": "Topic", "startingOffsets": "earliest",
                                                          "maxOffsetsPerTrigger": "50"}, "streaming"), parsed.column_names)  # fmt: skip
    position, seen = next_batch(stopped, stopped.initialOffset())
    archived(table, topic="Topic", **world.source)
    for number in range(600):
        world.send(f"later {number} " + "x" * 500)
    archived(table, topic="Topic", **world.source)
    world.until_expired()
    for number in range(20):
        world.send(f"last {number}")
    expected = [world.sent[place] for place in sorted(world.sent)]
    with warnings.catch_warnings():  # Java deletes files of the log before it moves a queue's minimum
        warnings.simplefilter("ignore")
        plain = rows_of(**world.source, topic="Topic", failOnDataLoss="false")
    assert len(plain) < len(expected) - 300, "what was archived first has expired"
    assert bodies(by_queue(rows_of(**options))) == expected
    again = SourceOptions.parse({**options, "maxOffsetsPerTrigger": "200"}, "streaming")
    reader = StreamReader(again, again.column_names)
    while True:
        end, rows = next_batch(reader, position)
        seen += rows
        if end == position:
            break
        position = end
    assert bodies(by_queue(seen)) == expected, "a stream that was stopped for longer than retention"


@pytest.mark.long
def test_killed_archivers_beside_a_broker_that_deletes_leave_every_message_once(
    broker_world: World, tmp_path: Path
) -> None:
    seed = randrange(1 << 30)
    print(f"seed {seed}")
    world = broker_world()
    for number in range(900):
        world.send(f"{number} " + "x" * 500)
    world.until_expired()
    world.kept_files = 20
    found = hunt(tmp_path / "hunt", int(os.environ.get("KILLS", "12")), seed, world=world)
    print(found)
    assert found.wrong == []
    assert found.archived > 0
