"""A slave in its master's place puts what is due into the log of another master; the master that comes back delivers none of it again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_mq.broker_server.server import RunningBroker
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.remoting import MessageQueue
from storage.epoch_times import current_time_ms
from storage.format.record import Message as StoredMessage
from storage.rules.half_messages import HALF_TOPIC, TransactionState
from tests.broker_server.test_acting_master import ACTING
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

ESCAPES = (
    f"{ACTING}enableRemoteEscape=true\nmessageDelayLevel=6s 8s\ntransactionTimeOut=5000\ntransactionCheckInterval=500\n"
)
SLAVE = f"brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\n{ESCAPES}"


TOPICS = "Levels", "Timed", "Halves"


class Undecided:
    """No transaction ends."""

    def execute(self, *_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, *_: object) -> TransactionState:
        return TransactionState.UNKNOWN


def messages(broker: RunningBroker, topic: str, queues: int = 4) -> list[StoredMessage]:
    """All messages of a topic that the broker's queues have."""
    with broker.broker.parts.store.service.exclusive() as store:
        return [each for queue_id in range(queues) for each in store.get(topic, queue_id, 0).messages]


def bodies(broker: RunningBroker, topic: str) -> list[bytes]:
    """Their bodies, sorted."""
    return sorted(each.body for each in messages(broker, topic))


def follows_whole(slave: RunningBroker, master: RunningBroker) -> bool:
    """Whether the slave has the master's log."""
    end = master.broker.parts.store.service.log_end
    return slave.broker.parts.store.service.dispatched_end == end


@pytest.mark.slow
def test_what_is_due_goes_to_another_master_and_is_delivered_once(tmp_path: Path) -> None:
    ports = free_ports(), free_ports(), free_ports()
    with our_name_server(tmp_path, supportActingMaster="true") as names, ExitStack() as later:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=300)
        other = later.enter_context(running(tmp_path / "c", ports[2], names.address, f"brokerName=c\n{ESCAPES}"))
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:
            with Admin(settings) as admin:
                for topic, broker in ((topic, broker) for topic in TOPICS for broker in (master, other)):
                    if (topic, broker) != ("Halves", other):
                        admin.create_topic(NewTopic(topic, 4, 4), address="{}:{}".format(*broker.address))
            slave = later.enter_context(running(tmp_path / "s", ports[1], names.address, SLAVE))
            with Producer(settings, "P") as producer:
                due_ms = current_time_ms() + 7_000
                for number in range(10):
                    text = str(number).encode()
                    producer.send(
                        Message("Levels", text, tags="t", delay_level=1 + number % 2), MessageQueue("Levels", "b", 1)
                    )
                    producer.send(Message("Timed", text, deliver_time_ms=due_ms), MessageQueue("Timed", "b", 2))
            half = Message("Halves", b"half", properties={"own": "1"})
            with TransactionProducer(settings, "T", Undecided()) as producer:
                producer.send_in_transaction(half)
            with Admin(settings) as admin:
                admin.create_topic(NewTopic("Halves", 4, 4), address="{}:{}".format(*other.address))
            wait_until(lambda: follows_whole(slave, master), "the slave has all", 20)
        wait_until(lambda: slave._stands_in, "it stands in", 20)
        expected = sorted(str(number).encode() for number in range(10))
        wait_until(lambda: bodies(other, "Levels") == expected, "the levels are delivered", 30)
        wait_until(lambda: bodies(other, "Timed") == expected, "the timer has delivered", 30)
        wait_until(lambda: bool(messages(other, HALF_TOPIC, 1)), "the other broker has the half", 30)
        assert not bodies(slave, "Levels") and not bodies(slave, "Timed")
        for each in messages(other, "Levels"):
            assert (
                each.properties["TAGS"] == "t" and "DELAY" not in each.properties and each.properties["WAIT"] == "true"
            )
        escaped = messages(other, HALF_TOPIC, 1)[0]
        assert (escaped.properties["REAL_TOPIC"], escaped.properties["PGROUP"], escaped.properties["own"]) == (
            "Halves",
            "T",
            "1",
        )
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:
            wait_until(lambda: not slave._stands_in, "it stands in no more", 20)
            time.sleep(3)
            assert {each.properties["UNIQ_KEY"] for each in messages(other, HALF_TOPIC, 1)} == {
                escaped.properties["UNIQ_KEY"]
            }
            assert len(messages(master, HALF_TOPIC, 1)) == 1, "it asks no producer about it"
            assert not bodies(master, "Levels") and not bodies(master, "Timed")
            assert bodies(other, "Levels") == expected and bodies(other, "Timed") == expected
