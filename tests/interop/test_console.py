"""The console over Apache's broker: every page, with messages, a transaction, delays, a group and dead letters of its own making."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from starlette.testclient import TestClient

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.command_options import Connection
from spark_mq.remoting import MessageQueue
from storage.rules.half_messages import TransactionState
from tests.console.opened import opened_console
from tests.console.structure import Structure
from tests.support.java_broker import RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

COUNT = 60


class Undecided:
    """A listener that never knows."""

    def execute(self, message: object, transaction_id: str, arg: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: object) -> TransactionState:
        return TransactionState.UNKNOWN


class Made(NamedTuple):
    """The console, and what was sent."""

    client: TestClient
    half_key: str
    group_key: str


def fall_behind(settings: ClientSettings) -> None:
    """The group billing has read a few messages of Orders."""
    pull = PullSettings(consume_from=ConsumeFrom.FIRST, auto_commit=False)
    with PullConsumer(settings, "billing", pull) as consumer:
        consumer.subscribe("Orders", "*")
        while not consumer.poll(1_000, 10):
            pass
        consumer.commit()


@pytest.fixture(scope="module")
def made(broker: RunningBroker) -> Iterator[Made]:
    settings = ClientSettings((broker.name_server,), enable_trace=True)
    with Admin(settings) as admin:
        for topic, queues in (("Orders", 1), ("%DLQ%billing", 1), ("Paid", 1)):
            admin.create_topic(NewTopic(topic, queues, queues), address=broker.address)
        wait_until(lambda: "Paid" in admin.topics(), "topics")
        (name,) = admin.cluster_info().broker_address_table
    with Producer(settings, "Makers") as producer:
        sent = [producer.send(Message("Orders", b"order %d" % number, keys=[f"k-{number}"])) for number in range(COUNT)]
        letter = Message("%DLQ%billing", b"dead", properties={"RETRY_TOPIC": "Orders"})
        producer.hand_on(letter, MessageQueue(letter.topic, name, 0))
        producer.send(Message("Orders", b"late", delay_level=18))
    fall_behind(settings)
    with TransactionProducer(settings, "Payers", Undecided()) as producer:
        half = producer.send_in_transaction(Message("Paid", b"half")).sent
        connection = Connection(name_server=broker.name_server, request_timeout="10s")
        with opened_console(connection=connection, allows_changes=True) as client:
            yield Made(client, half.message_id, sent[3].message_id)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/", "log ends at"),
        ("/topics", "Orders"),
        ("/topics?all=1", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("/topic?name=Orders", "order 59"),
        ("/topic?name=Orders&queue=0&offset=10", "order 10"),
        ("/topic?name=Orders&key=k-17", "order 17"),
        ("/topic?name=Orders&time=-1h", "order 0"),
        ("/message?topic=Orders&broker=BROKER&queue=0&offset=3&as=hex", "order 3"),
        ("/groups", "billing"),
        ("/group?name=billing", "Orders"),
        ("/dead-letters?group=billing", "1 message in %DLQ%billing"),
        ("/timers", "18"),
        ("/transactions", "THE KEY"),
        ("/sinks", "path of a local store"),
    ],
)
def test_a_page_shows_what_apaches_broker_has(address: str, said: str, made: Made) -> None:
    overview = Structure(made.client.get("/topic?name=Orders").text)
    (name,) = {re.findall(r"broker=([^&]+)", each)[0] for each in overview.links if "broker=" in each}
    deadline = time.monotonic() + 60  # a broker writes and tells some of it after seconds
    while True:
        answer = made.client.get(address.replace("BROKER", name))
        assert answer.status_code == 200, answer.text
        text = Structure(answer.text).text
        if said.replace("THE KEY", made.half_key) in text or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert said.replace("THE KEY", made.half_key) in text


def test_the_trace_of_a_message_is_shown(made: Made) -> None:
    found = Structure(made.client.get(f"/topic?name=Orders&unique={made.group_key}").text)
    (link,) = {each for each in found.links if each.startswith("/message")}
    deadline = time.monotonic() + 60
    while "SubBefore" not in (text := made.client.get(link.replace("/message", "/message/related", 1)).text):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for kind in ("Pub", "Makers"):
        assert kind in text
