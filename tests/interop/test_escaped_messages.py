"""A slave in its master's place and the master of another name, one ours and one Apache's: what each puts at the other.

Java: EscapeBridge.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.remoting import MessageQueue
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.format.record import Message as StoredMessage
from storage.rules.half_messages import CHECK_TIMES, HALF_TOPIC, TransactionState
from tests.support.java_broker import RELEASE, Oracle, RunningBroker, wait_until
from tests.support.own_servers import our_name_server

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": 2,
    "brokerNotActiveTimeoutMillis": 3_000,
    "messageDelayLevel": "12s 14s",
    "timerWheelEnable": "true",
    "transactionTimeOut": 6_000,
    "rocketmqVersion": RELEASE,
}
COUNT = 12


class Decided:
    """The transaction is committed when a broker asks."""

    def execute(self, *_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, *_: object) -> TransactionState:
        return TransactionState.COMMIT


def escaped(home: Path, own: Oracle, other: Oracle) -> dict[str, list[StoredMessage]]:
    """Messages by topic at a master of `other`, once a slave of `own` has put there what its master left due."""
    with (
        our_name_server(home, supportActingMaster="true", notifyMinBrokerIdChanged="true") as names,
        ExitStack() as later,
    ):
        settings = ClientSettings(
            (names.address,), poll_name_server_interval_ms=300, heartbeat_broker_interval_ms=1_000
        )
        admin = later.enter_context(Admin(settings))
        there = later.enter_context(other.broker(home / "there", names.address, brokerName="there", **SETTINGS))
        master = ExitStack()
        with master:
            here = master.enter_context(own.broker(home / "here", names.address, brokerName="here", **SETTINGS))
            slave = later.enter_context(
                own.broker(home / "slave", names.address, brokerName="here", brokerId=1, brokerRole="SLAVE", **SETTINGS)
            )
            for topic in ("Levels", "Timed"):
                for broker in (here, there):
                    admin.create_topic(NewTopic(topic, 2, 2), address=broker.address)
            admin.create_topic(NewTopic("Halves", 2, 2), address=here.address)
            with Producer(settings, "P") as producer:
                due_ms = current_time_ms() + 14_000
                for number in range(COUNT):
                    text = str(number).encode()
                    levels = Message("Levels", text, tags="t", keys=("k",), delay_level=1 + number % 2)
                    producer.send(levels, MessageQueue("Levels", "here", 1))
                    timed = Message("Timed", text, tags="t", deliver_time_ms=due_ms)
                    producer.send(timed, MessageQueue("Timed", "here", 1))
            ending = later.enter_context(TransactionProducer(settings, "T", Decided()))
            ending.send_in_transaction(Message("Halves", b"half", properties={"own": "1"}))
            admin.create_topic(NewTopic("Halves", 2, 2), address=there.address)
            wait_until(lambda: log_end(admin, slave) == log_end(admin, here), "the slave has all", 30)
        for topic, count in (("Levels", COUNT), ("Timed", COUNT), ("Halves", 1)):
            wait_until(
                lambda topic=topic, count=count: (
                    sum(  # type: ignore[misc]
                        admin.max_offset(MessageQueue(topic, "there", queue_id)) for queue_id in range(2)
                    )
                    >= count
                ),
                f"{topic} are there",
                90,
            )
    with open_store(home / "there", config=str(there.conf)) as store:
        return {
            topic: [each for queue_id in store.queue_ids(topic) for each in store.get(topic, queue_id, 0).messages]
            for topic in ("Levels", "Timed", "Halves", HALF_TOPIC)
        }


def log_end(admin: Admin, broker: RunningBroker) -> int:
    return int(admin.runtime_info(broker.address)["commitLogMaxOffset"])


@pytest.mark.long
def test_ours_puts_at_apaches_what_apaches_puts_at_ours(oracle: Oracle, tmp_path: Path) -> None:
    ours = Oracle(tmp_path / "ours", is_ours=True)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    by_ours = escaped(tmp_path / "1", ours, oracle)
    by_apaches = escaped(tmp_path / "2", oracle, ours)
    expected = sorted(str(number).encode() for number in range(COUNT))
    for found in (by_ours, by_apaches):
        assert sorted(each.body for each in found["Levels"]) == expected
        assert sorted(each.body for each in found["Timed"]) == expected
        sent = [each.body for each in found[HALF_TOPIC] if CHECK_TIMES not in each.properties]
        assert sent == [b"half"], found[HALF_TOPIC]
    assert [each.body for each in by_apaches["Halves"]] == [b"half"]
    # Apache's master commits once more where its next check comes before the op message of the first (apache/rocketmq#5574).
    assert {each.body for each in by_ours["Halves"]} == {b"half"}
    for topic in ("Levels", "Timed", "Halves"):
        ours_as, apaches_as = (described(found[topic][0]) for found in (by_ours, by_apaches))
        assert (ours_as.pop("WAIT"), apaches_as.pop("WAIT")) == ("true", "false")
        assert ours_as == apaches_as


def described(message: StoredMessage) -> dict[str, object]:
    """Its fields and properties, without the texts that no two messages share, and without how often a broker had to ask."""
    own = {"UNIQ_KEY", "__transactionId__", "REAL_QID", CHECK_TIMES}
    properties = {
        name: "" if name in own or name.startswith("TIMER_") else text for name, text in message.properties.items()
    }
    fields = {"sys_flag": message.sys_flag, "flag": message.flag, "reconsume_times": message.reconsume_times}
    return {**fields, **properties}
