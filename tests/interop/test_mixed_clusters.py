"""Servers of both kinds in one cluster, with Java's clients: Apache's name server and our broker; both name servers and both
brokers.

Our name server with Apache's broker is test_our_name_server.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from tests.support.java_broker import Oracle, RunningBroker, wait_until
from tests.support.waiting import await_route

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
APACHES, OURS = "broker-apaches", "broker-ours"
COUNT = 240
LISTED = re.compile(r"^LabCluster +(\S+) +0 +(\S+) +(V\S+)", re.MULTILINE)


class Mixed(NamedTuple):
    """One cluster: a broker of each kind, registered with a name server of each kind."""

    apaches: RunningBroker
    ours: RunningBroker
    name_servers: tuple[str, str]

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings(self.name_servers)

    @property
    def as_one(self) -> RunningBroker:
        """What Java's programs are told: all name servers."""
        return self.apaches


@pytest.fixture(scope="module")
def mixed(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    directory = tmp_path_factory.mktemp("mixed-")
    ours = Oracle(directory, is_ours=True)
    with ExitStack() as stack:
        addresses = stack.enter_context(oracle.namesrv()), stack.enter_context(ours.namesrv())
        told = ";".join(addresses)
        brokers = [
            stack.enter_context(servers.broker(directory / name, told, brokerName=name))
            for servers, name in ((oracle, APACHES), (ours, OURS))
        ]
        for address in addresses:
            with Admin(ClientSettings((address,))) as admin:
                wait_until(
                    lambda admin=admin: len(admin.cluster_info().broker_address_table) == 2, "both are registered"
                )  # type: ignore[misc]
        yield Mixed(brokers[0], brokers[1], addresses)


def make_topic(cluster: Mixed, topic: str, queues: int = 2) -> None:
    """At both brokers, and known to both name servers."""
    with Admin(cluster.settings) as admin:
        admin.create_topic(NewTopic(topic, queues, queues))
    for address in cluster.name_servers:
        with Admin(ClientSettings((address,))) as admin:
            await_route(admin, topic, 2 * queues)


def at_brokers(lines: list[dict[str, Any]], cluster: Mixed) -> Counter[str]:
    """How many messages lie at each broker, as the ids that brokers give say."""
    ports = {int(broker.address.rpartition(":")[2]): broker.address for broker in (cluster.apaches, cluster.ours)}
    return Counter(ports[int(line["offsetMsgId"][8:16], 16)] for line in lines)


def test_a_java_client_meets_our_broker_by_apaches_name_server(oracle: Oracle, tmp_path: Path) -> None:
    ours = Oracle(tmp_path, is_ours=True)
    with oracle.namesrv() as name_server, ours.broker(tmp_path / "store", name_server) as broker:
        sent = ours.send(tmp_path / "sent.jsonl", broker, "T", queues=3, count=60)
        with ours.client("Consume", tmp_path / "got.jsonl", broker, group="G", topics="T") as client:
            got = client.until(lambda lines: len(lines) >= 60, "message")
        assert Counter(line["msgId"] for line in got) == Counter(line["msgId"] for line in sent)
        listed = LISTED.findall(oracle.java(MQADMIN, "clusterList", "-n", name_server))
        assert listed == [("broker-lab", broker.address, ours.version_name)]
        assert "success" in oracle.java(MQADMIN, "updateTopic", "-n", name_server, "-c", "LabCluster", "-t", "Made")
        with Admin(ClientSettings((name_server,))) as admin:
            await_route(admin, "Made", 8)


def test_both_name_servers_tell_of_both_brokers(oracle: Oracle, mixed: Mixed, tmp_path: Path) -> None:
    of_ours = Oracle(tmp_path, is_ours=True).version_name
    for address in mixed.name_servers:
        listed = LISTED.findall(oracle.java(MQADMIN, "clusterList", "-n", address))
        brokers = {(APACHES, mixed.apaches.address, oracle.version_name), (OURS, mixed.ours.address, of_ours)}
        assert set(listed) == brokers


def test_javas_producer_and_consumers_share_queues_of_both_brokers(
    oracle: Oracle, mixed: Mixed, tmp_path: Path
) -> None:
    make_topic(mixed, "Shared")
    sent = oracle.send(tmp_path / "sent.jsonl", mixed.as_one, "Shared", count=COUNT)
    assert at_brokers(sent, mixed) == dict.fromkeys((mixed.apaches.address, mixed.ours.address), COUNT // 2)
    both = {}
    with ExitStack() as stack:
        for name in ("one", "two"):
            out = tmp_path / f"{name}.jsonl"
            both[name] = stack.enter_context(
                oracle.client("Consume", out, mixed.as_one, group="GShared", topics="Shared")
            )
        wait_until(lambda: sum(len(client.lines("message")) for client in both.values()) >= COUNT, "all are consumed")
        taken = sum(len(client.lines("message")) for client in both.values())
        wait_until(lambda: all(len(owned) == 2 for owned in owners(mixed, "GShared", "Shared").values()), "two each")
        before = {name: len(client.lines("message")) for name, client in both.items()}
        more = oracle.send(tmp_path / "more.jsonl", mixed.as_one, "Shared", count=COUNT, seed=2)
        wait_until(lambda: sum(len(client.lines("message")) for client in both.values()) >= taken + COUNT, "the rest")
        for name, client in both.items():
            assert len(client.lines("message")) - before[name] == COUNT // 2
        got = [line for client in both.values() for line in client.lines("message")]
    assert {line["msgId"] for line in got} == {line["msgId"] for line in [*sent, *more]}
    with Admin(mixed.settings) as admin:
        stats = admin.topic_stats("Shared")
        assert {(queue.broker_name, found.max_offset) for queue, found in stats.items()} == {
            (APACHES, COUNT // 2),
            (OURS, COUNT // 2),
        }


def owners(cluster: Mixed, group: str, topic: str) -> dict[str, set[Any]]:
    """Which client says that it has which queues."""
    with Admin(cluster.settings) as admin:
        ids = admin.consumer_ids(group, topic)
        tables = {client_id: admin.running_info(group, client_id).queue_table for client_id in ids}
    return {client_id: {queue for queue in table if queue.topic == topic} for client_id, table in tables.items()}


def test_an_orderly_java_consumer_has_locks_at_both_brokers(oracle: Oracle, mixed: Mixed, tmp_path: Path) -> None:
    make_topic(mixed, "Ordered")
    sent = oracle.send(tmp_path / "sent.jsonl", mixed.as_one, "Ordered", count=80)
    with oracle.client(
        "Consume", tmp_path / "got.jsonl", mixed.as_one, group="GOrdered", topics="Ordered", orderly="true"
    ) as client:
        got = client.until(lambda lines: len(lines) >= 80, "message")
    by_queue: dict[tuple[str, int], list[int]] = {}
    for line in got:
        by_queue.setdefault((line["offsetMsgId"][8:16], line["queueId"]), []).append(line["queueOffset"])
    assert len(by_queue) == 4
    assert all(offsets == list(range(20)) for offsets in by_queue.values())
    assert {line["msgId"] for line in got} == {line["msgId"] for line in sent}


def test_transactions_end_at_the_broker_that_has_their_half(oracle: Oracle, mixed: Mixed, tmp_path: Path) -> None:
    make_topic(mixed, "Ended")
    plans = [plan for plan in ("commit", "rollback", "checkCommit", "checkRollback") for _ in range(4)]  # one a queue
    given = {"group": "GEnded", "topic": "Ended", "plans": ",".join(plans)}
    with oracle.client("TransactionSide", tmp_path / "side.jsonl", mixed.as_one, **given) as side:
        side.until(lambda lines: len(lines) >= 16, "sent")
        halves = side.lines("sent")
        with oracle.client("Consume", tmp_path / "got.jsonl", mixed.as_one, group="GSeen", topics="Ended") as client:
            got = client.until(lambda lines: len(lines) >= 8, "message")
        side.until(lambda lines: sum(line["plan"] == "checkRollback" for line in lines) >= 4, "checked")
    ended = {line["msgId"] for line in halves if line["plan"] in ("commit", "checkCommit")}
    assert {line["msgId"] for line in got} == ended
    assert len(got) == 8
    assert at_brokers(got, mixed) == {mixed.apaches.address: 4, mixed.ours.address: 4}


def test_our_clients_go_round_both_brokers(mixed: Mixed) -> None:
    make_topic(mixed, "Ours")
    got: Counter[bytes] = Counter()
    failed: set[bytes] = set()

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        for message in messages:
            got[message.body] += 1
            if message.body.endswith(b"7") and message.body not in failed:
                failed.add(message.body)
                return ConsumeStatus.LATER
        return ConsumeStatus.SUCCESS

    bodies = [b"%d" % number for number in range(80)]
    push = PushSettings(consume_from=ConsumeFrom.FIRST)
    consumer = PushConsumer(mixed.settings, "GOurs", options=push, listener=listen)
    consumer.subscribe("Ours")
    with Producer(mixed.settings, "GOursProducer") as producer, consumer:
        results = [producer.send(Message("Ours", body)) for body in bodies]
        assert Counter(result.queue.broker_name for result in results) == {APACHES: 40, OURS: 40}
        wait_until(lambda: sum(got.values()) >= 88, "each once, and those that failed again")
    assert got == Counter({body: 2 if body.endswith(b"7") else 1 for body in bodies})
