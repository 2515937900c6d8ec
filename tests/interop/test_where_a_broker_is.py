"""Brokers at IPv6 addresses, and brokers that have moved: Apache's clients at ours, our clients at Apache's."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from storage.names import split_address
from tests.broker_server.test_places import need_ipv6_loopback
from tests.support.java_broker import Oracle, RunningBroker, free_ports

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Placed"
NAMED = {"brokerName": "broker-placed"}


@pytest.fixture(params=["ours", pytest.param("apaches", marks=pytest.mark.long)])
def servers(request: pytest.FixtureRequest, oracle: Oracle, tmp_path: Path) -> Oracle:
    return Oracle(tmp_path, is_ours=request.param == "ours")


def sent_and_consumed(servers: Oracle, broker: RunningBroker, directory: Path, count: int, known: int = 0) -> list[Any]:
    """What Java's producer sends, and its consumer of a new group gets: that, and `known` messages from before."""
    directory.mkdir()
    sent = servers.send(directory / "sent.jsonl", broker, TOPIC, queues=2, count=count)
    assert {line["status"] for line in sent} == {"SEND_OK"}
    with servers.client("Consume", directory / "got.jsonl", broker, group=directory.name, topics=TOPIC) as client:
        got = client.until(lambda lines: len(lines) >= known + count, "message")
    assert len({line["msgId"] for line in got}) == known + count
    assert {line["msgId"] for line in sent} <= {line["msgId"] for line in got}
    return got


def test_javas_and_our_clients_reach_a_broker_at_an_ipv6_address(servers: Oracle, tmp_path: Path) -> None:
    need_ipv6_loopback()
    here = {**NAMED, "brokerIP1": "::1", "brokerIP2": "::1", "bindAddress": "::1"}
    with servers.namesrv() as name_server, servers.broker(tmp_path / "store", name_server, **here) as broker:
        sent_and_consumed(servers, broker, tmp_path / "java", 20)
        settings = ClientSettings((name_server,), vip_channel_enabled=True)
        with Producer(settings, "G") as producer:
            result = producer.send(Message(TOPIC, b"ours", keys=("k",)))
        with Admin(settings) as admin:
            (registered,) = admin.cluster_info().broker_address_table["broker-placed"].broker_addresses.values()
            assert split_address(registered) == split_address(broker.address)
            found = admin.view_message(result.offset_message_id, TOPIC)
            assert found.body == b"ours"
            assert found.broker_name == "broker-placed"
        assert found.record.store_host[:16] == socket.inet_pton(socket.AF_INET6, "::1")
        with PullConsumer(settings, "lookers") as consumer:
            assert sum(consumer.end_offset(queue) for queue in consumer.queues(TOPIC)) == 21


def test_a_broker_goes_on_with_its_store_at_another_port_and_address(servers: Oracle, tmp_path: Path) -> None:
    """New records have the new address, and old ones keep theirs."""
    store, places = tmp_path / "store", ("127.0.0.1", "127.0.0.2")
    with servers.namesrv() as name_server:
        got: list[Any] = []
        for number, host in enumerate(places):
            here = {**NAMED, "brokerIP1": host, "bindAddress": host}
            with servers.broker(store, name_server, port=free_ports(), **here) as broker:
                got = sent_and_consumed(servers, broker, tmp_path / f"at-{number}", 20, known=20 * number)
        assert len(got) == 40
