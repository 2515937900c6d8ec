"""Static topics that Apache's mqadmin makes and moves over two brokers, one of each kind and both of ours, while Java's clients and ours
send and consume: what was acknowledged is consumed, and brokers, tools and clients count alike.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.consumer_calls import QueueCalls
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from spark_mq.remoting import MessageQueue
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
ONE, TWO = "broker-one", "broker-two"
TOPIC, QUEUES = "Static", 4
STATUS = re.compile(r"^(\S+) +(\d+) +(\d+) +(\d+)", re.MULTILINE)
PROGRESS = re.compile(r"^Static +(\S+) +(\d+) +(-?\d+) +(-?\d+) +(-?\d+)", re.MULTILINE)


class Pair(NamedTuple):
    """Two brokers of one cluster; `clients` runs Java's programs."""

    clients: Oracle
    one: RunningBroker
    two: RunningBroker
    name_server: str

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings((self.name_server,), poll_name_server_interval_ms=1_000)

    def mqadmin(self, *words: str) -> str:
        said = self.clients.java(MQADMIN, words[0], "-n", self.name_server, *words[1:])
        assert "Exception" not in said, said
        return said


@pytest.fixture(scope="module", params=["one of each", "both ours"])
def pair(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("static-")
    ours = Oracle(directory, is_ours=True)
    first, servers = (oracle, oracle) if request.param == "one of each" else (ours, ours)
    with ExitStack() as stack:
        name_server = stack.enter_context(servers.namesrv())
        one, two = (
            stack.enter_context(kind.broker(directory / name, name_server, brokerName=name))
            for kind, name in ((first, ONE), (ours, TWO))
        )
        with Admin(ClientSettings((name_server,))) as admin:
            wait_until(lambda: len(admin.cluster_info().broker_address_table) == 2, "both are registered")
        yield Pair(oracle, one, two, name_server)


class OurLoad:
    """Our producer and our consumer beside the test."""

    def __init__(self, settings: ClientSettings) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: Counter[str] = Counter()
        self.got: Counter[bytes] = Counter()
        self._settings = settings
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.consumer = PushConsumer(
            settings, "GOurs", options=PushSettings(consume_from=ConsumeFrom.FIRST), listener=self._listen
        )

    def _send(self) -> None:
        with Producer(self._settings, "POurs") as producer:
            number = 0
            while not self._is_over.is_set():
                body = b"ours %d" % number
                number += 1
                try:
                    producer.send(Message(TOPIC, body))
                except ClientError as error:
                    self.failures[type(error).__name__] += 1
                    continue
                self.acknowledged.append(body)
                time.sleep(0.002)

    def _listen(self, messages: Any, context: Any) -> ConsumeStatus:
        for message in messages:
            self.got[message.body] += 1
        return ConsumeStatus.SUCCESS

    def __enter__(self) -> OurLoad:
        self.consumer.subscribe(TOPIC, "*")
        self.consumer.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.consumer.close()


def leaders(settings: ClientSettings) -> dict[int, str]:
    with Admin(settings) as admin:
        try:
            return {queue.queue_id: name for queue, name in admin.route(TOPIC).leaders.items()}
        except ClientError:
            return {}


def test_nothing_is_lost_while_a_static_topic_moves(pair: Pair, tmp_path: Path) -> None:
    pair.mqadmin("updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", f"{ONE},{TWO}")
    wait_until(lambda: len(leaders(pair.settings)) == QUEUES, "the route has all logical queues")
    assert Counter(leaders(pair.settings).values()) == {ONE: 2, TWO: 2}
    sent_file, stop = tmp_path / "sent.jsonl", tmp_path / "stop"
    with ExitStack() as stack:
        load = stack.enter_context(OurLoad(pair.settings))
        java = stack.enter_context(
            pair.clients.client("Consume", tmp_path / "got.jsonl", pair.one, group="GJava", topics=TOPIC)
        )
        sending = stack.enter_context(
            pair.clients.java_running("SendOn", sent_file, f"topic={TOPIC}", f"ns={pair.name_server}", f"stop={stop}")
        )
        for target in (TWO, ONE, f"{ONE},{TWO}"):
            time.sleep(4)
            pair.mqadmin("remappingStaticTopic", "-t", TOPIC, "-b", target)
            wait_until(lambda target=target: set(leaders(pair.settings).values()) == set(target.split(",")), target)  # type: ignore[misc]
        time.sleep(4)
        load.stop()
        stop.touch()
        sending.wait(60)
        lines = [json.loads(line) for line in sent_file.read_text("utf-8").splitlines()]
        acknowledged = {line["msgId"] for line in lines if line.get("status") == "SEND_OK"}
        errors = Counter(line["error"][:60] for line in lines if "error" in line)
        ours = set(load.acknowledged)
        assert min(len(acknowledged), len(ours)) > 100

        def read_by_java() -> Counter[str]:
            return Counter(line["msgId"] for line in java.lines("message"))

        wait_until(lambda: acknowledged <= read_by_java().keys(), "Java's consumer has all of Java's")
        wait_until(lambda: ours <= load.got.keys(), "our consumer has all of ours")
        by_java = read_by_java()
        print(
            f"acknowledged {len(acknowledged)} of Java's producer, {len(ours)} of ours; refused {dict(errors)}, {dict(load.failures)}; "
            f"consumed by Java {len(by_java)}, twice {sum(n > 1 for n in by_java.values())}; "
            f"by ours {len(load.got)}, twice {sum(n > 1 for n in load.got.values())}"
        )
        assert len(load.got) >= len(acknowledged) + len(ours)
        assert len(by_java) >= len(acknowledged) + len(ours)
        check_offsets(pair)


def check_offsets(pair: Pair) -> None:
    """What mqadmin makes of the brokers' figures is what they tell clients."""
    status = {
        int(queue): (int(least), int(most))
        for name, queue, least, most in STATUS.findall(pair.mqadmin("topicStatus", "-t", TOPIC))
        if name.startswith("__syslo__")
    }
    assert status.keys() == set(range(QUEUES))
    instance = ClientInstance.of(pair.settings)
    try:
        calls = QueueCalls(instance)
        run(instance.route(TOPIC, refresh=True))
        for queue_id, (least, most) in status.items():
            queue = MessageQueue(TOPIC, "__syslo__global__", queue_id)
            assert run(calls.min_offset(queue)) == least
            assert run(calls.max_offset(queue)) == most
            for group in ("GOurs", "GJava"):
                wait_until(lambda: run(calls.group_offset(group, queue)) == most, f"{group} has stored all of {queue}")  # noqa: B023
            assert run(calls.search_offset(queue, 0)) == least
            late = run(calls.search_offset(queue, int(time.time() * 1000) + 60_000))
            assert late == most
    finally:
        instance.release()
    said = pair.mqadmin("consumerProgress", "-g", "GOurs")
    progress = {int(queue): int(most) for _, queue, most, _, _ in PROGRESS.findall(said)}
    assert progress == {queue_id: most for queue_id, (_, most) in status.items()}, said
