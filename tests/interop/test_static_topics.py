"""Static topics that Apache's mqadmin makes and moves over two brokers, while clients send and consume: what was acknowledged is
consumed, and brokers, tools and clients count alike.

    one of each    our broker and Apache's, Apache's name server, our clients
    both ours      our name server, Java's clients and ours
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
    """Two brokers of one cluster; `clients` runs Java's programs, and its clients where `has_java`."""

    clients: Oracle
    one: RunningBroker
    two: RunningBroker
    name_server: str
    has_java: bool

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
        yield Pair(oracle, one, two, name_server, request.param == "both ours")


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


class JavaLoad:
    """Java's producer and consumer beside the test; none of them where there are to be none."""

    def __init__(self, pair: Pair, directory: Path, stack: ExitStack) -> None:
        self._sent, self._stop = directory / "sent.jsonl", directory / "stop"
        self.is_there = pair.has_java
        if not pair.has_java:
            return
        out, words = directory / "got.jsonl", (f"topic={TOPIC}", f"ns={pair.name_server}", f"stop={self._stop}")
        self._consumer = stack.enter_context(pair.clients.client("Consume", out, pair.one, group="GJava", topics=TOPIC))
        self._sending = stack.enter_context(pair.clients.java_running("SendOn", self._sent, *words))

    def stop(self) -> tuple[set[str], Counter[str]]:
        """Ids of the acknowledged messages, and the refusals."""
        if not self.is_there:
            return set(), Counter()
        self._stop.touch()
        self._sending.wait(60)
        lines = [json.loads(line) for line in self._sent.read_text("utf-8").splitlines()]
        acknowledged = {line["msgId"] for line in lines if line.get("status") == "SEND_OK"}
        return acknowledged, Counter(line["error"].partition("For more")[0] for line in lines if "error" in line)

    def got(self) -> Counter[str]:
        return Counter(line["msgId"] for line in self._consumer.lines("message")) if self.is_there else Counter()


def test_nothing_is_lost_while_a_static_topic_moves(pair: Pair, tmp_path: Path) -> None:
    pair.mqadmin("updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", f"{ONE},{TWO}")
    wait_until(lambda: len(leaders(pair.settings)) == QUEUES, "the route has all logical queues")
    assert Counter(leaders(pair.settings).values()) == {ONE: 2, TWO: 2}
    with ExitStack() as stack:
        load = stack.enter_context(OurLoad(pair.settings))
        java = JavaLoad(pair, tmp_path, stack)
        for target in (TWO, ONE, f"{ONE},{TWO}"):
            time.sleep(4)
            pair.mqadmin("remappingStaticTopic", "-t", TOPIC, "-b", target)
            wait_until(lambda target=target: set(leaders(pair.settings).values()) == set(target.split(",")), target)  # type: ignore[misc]
        time.sleep(4)
        load.stop()
        by_java, refused = java.stop()
        ours = set(load.acknowledged)
        assert len(ours) > 1_000
        wait_until(lambda: ours <= load.got.keys(), "our consumer has all of ours")
        total = len(by_java) + len(ours)
        wait_until(lambda: len(load.got) >= total, "our consumer has all of Java's too")
        if java.is_there:
            assert len(by_java) > 1_000
            wait_until(lambda: by_java <= java.got().keys(), "Java's consumer has all of Java's")
            wait_until(lambda: len(java.got()) >= total, "Java's consumer has all of ours too")
        got = java.got()
        print(
            f"acknowledged {len(ours)} of our producer's, {len(by_java)} of Java's; refused {dict(load.failures)}, {dict(refused)}; "
            f"consumed by ours {len(load.got)}, twice {sum(count > 1 for count in load.got.values())}; "
            f"by Java {len(got)}, twice {sum(count > 1 for count in got.values())}"
        )
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
            for group in ("GOurs", "GJava")[: 1 + pair.has_java]:
                wait_until(lambda: run(calls.group_offset(group, queue)) == most, f"{group} has stored all of {queue}")  # noqa: B023
            assert run(calls.search_offset(queue, 0)) == least
            if pair.has_java or instance.broker_name_of(queue) == TWO:  # Apache's broker takes the first link's end
                assert run(calls.search_offset(queue, int(time.time() * 1000) + 60_000)) == most
    finally:
        instance.release()
    said = pair.mqadmin("consumerProgress", "-g", "GOurs")
    progress = {int(queue): int(most) for _, queue, most, _, _ in PROGRESS.findall(said)}
    assert progress == {queue_id: most for queue_id, (_, most) in status.items()}, said
