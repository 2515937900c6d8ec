"""A slave that stands in for a master that is gone: it is found and read as the master was; what it is told then counts later."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_mq.broker_server.member_group import Group, Member
from spark_mq.broker_server.server import RunningBroker
from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

ACTING = "enableSlaveActingMaster=true\ntotalReplicas=2\nbrokerNotActiveTimeoutMillis=3000\n"
SLAVE = f"brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\n{ACTING}"


def test_who_stands_in() -> None:
    own = Member("c", "b", 0, "h:1")
    assert [Group(found).stands_in(1) for found in ({}, {1: "a"}, {0: "a", 1: "b"}, {1: "a", 2: "b"}, {2: "a"})] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert not Group({0: "a"}).stands_in(0)
    assert [Group(found).alive_with(1) for found in ({}, {0: "a"}, {0: "a", 1: "b"})] == [1, 2, 2]
    assert Group({0: "h:1", 2: "h:3", 1: "h:2", 3: "h:1"}).slaves_of(own) == ["h:2", "h:3"]


def offset_of(broker: RunningBroker, queue: MessageQueue) -> int:
    return broker.broker.parts.offsets.offset("G", queue.topic, queue.queue_id)


def read(consumer: PullConsumer, queue: MessageQueue, offset: int) -> list[bytes]:
    try:
        consumer.seek(queue, offset)
        return [each.body for each in consumer.poll(1_000)]
    except ClientError:
        return []


def test_a_master_that_comes_back_hears_what_its_slave_was_told(tmp_path: Path) -> None:
    with our_name_server(tmp_path, supportActingMaster="true") as names:
        ports = free_ports(), free_ports()
        queue = MessageQueue("Topic", "b", 3)
        with running(tmp_path / "slave", ports[1], names.address, SLAVE) as slave:
            slave.broker.parts.offsets.commit("G", queue.topic, queue.queue_id, 2, 1_000)
            wait_until(lambda: slave._stands_in, "it stands in", 10)
            with running(tmp_path / "master", ports[0], names.address, ACTING) as master:
                assert offset_of(master, queue) == 2
                wait_until(lambda: master.broker.parts.store.service.acks.alive == 2, "both are known", 10)
                wait_until(lambda: not slave._stands_in, "it stands in no more", 10)


def is_sent(producer: Producer, queue: MessageQueue) -> bool:
    try:
        return producer.send(Message("Topic", b"three"), queue).status.name == "SEND_OK"
    except ClientError:
        return False


@pytest.mark.slow
def test_consumers_read_on_at_the_slave_and_their_offsets_come_back(tmp_path: Path) -> None:
    supports = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
    with our_name_server(tmp_path, **supports) as names, ExitStack() as later:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=300)
        ports = free_ports(), free_ports()
        consumer = later.enter_context(PullConsumer(settings, "G"))
        with (
            running(tmp_path / "master", ports[0], names.address, ACTING) as master,
            Producer(settings, "P") as producer,
        ):
            queue = producer.send(Message("Topic", b"one")).queue
            producer.send(Message("Topic", b"two"), queue)
            slave = later.enter_context(running(tmp_path / "slave", ports[1], names.address, SLAVE))
            wait_until(lambda: master.broker.parts.store.service.acks.alive == 2, "both are known", 20)
            wait_until(lambda: "Topic" in slave.broker.parts.store.topics, "the slave knows the topic", 90)
            end = master.broker.parts.store.service.log_end
            wait_until(lambda: slave.broker.parts.store.service.dispatched_end == end, "it has both", 20)
            consumer.assign([queue])
            assert read(consumer, queue, 0) == [b"one", b"two"]
        wait_until(lambda: read(consumer, queue, 1) == [b"two"], "the slave is read in the master's place", 20)
        consumer.commit({queue: 2})
        assert offset_of(slave, queue) == 2
        with Producer(settings, "P") as producer, pytest.raises(ClientError):
            producer.send(Message("Topic", b"refused"), queue)
        with running(tmp_path / "master", ports[0], names.address, ACTING) as master:
            assert offset_of(master, queue) == 2
            with Producer(settings, "P") as producer:
                wait_until(lambda: is_sent(producer, queue), "it can be written again", 20)
            end = master.broker.parts.store.service.log_end
            wait_until(lambda: slave.broker.parts.store.service.dispatched_end == end, "the slave follows again", 40)
