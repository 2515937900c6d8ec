"""The Apache broker carries on from our store: it delivers what is delayed, asks back what is undecided, buries what keeps failing.

Our functions leave a store in the middle of everything; a real broker with a real transaction producer and a real push consumer
takes it from there, and is killed. What became of each message is read from Apache's own store classes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.java_broker import Oracle, free_ports
from tests.support.left_stores import (
    ASKED,
    CONSUMERS,
    DEAD,
    DEAD_LETTERS,
    DELAY_LEVELS,
    DUE,
    EARLY,
    FAR,
    FLAG,
    FRESH,
    MAX_RECONSUME_TIMES,
    NEVER,
    PRODUCERS,
    SOON,
    leave_a_store,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
VIEWERS = "CarryViewers"
COMMITTED = ["told-commit", "late-commit", "commit-a", "commit-b", "commit-c"]
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    "messageDelayLevel": DELAY_LEVELS,
    "transactionTimeOut": 1_000,
    # A broker that asks again before an answer's op message is written commits a second time.
    "transactionCheckInterval": 8_000,
    "transactionOpBatchInterval": 100,
    "transactionCheckMax": 1_000,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
}


@dataclass(frozen=True, slots=True)
class CarriedOn:
    """What the broker made of our store."""

    dump: list[Line]
    checked: list[Line]
    """The checks that the producer answered."""
    consumed: list[Line]
    """What the failing consumer was given."""
    viewed: list[Line]
    """What a plain consumer was given."""

    def names(self, topic: str) -> Counter[str]:
        """How often each of our messages stands in a topic's queues."""
        return Counter(line["properties"]["KEYS"] for line in self.messages(topic))

    def seen(self, topic: str) -> Counter[str]:
        """How often a plain consumer was given each."""
        return Counter(line["properties"]["KEYS"] for line in self.viewed if line["topic"] == topic)

    def messages(self, topic: str) -> list[Line]:
        return [line for line in self.dump if line["type"] == "message" and line["topic"] == topic]


@pytest.fixture(scope="module", params=["calls", pytest.param("rows", marks=pytest.mark.long)])
def carried_on(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> CarriedOn:
    directory = tmp_path_factory.mktemp("carried-on-")
    store, conf, port = directory / "store", directory / "broker.conf", free_ports()
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(store, name_server, port, **SETTINGS), "utf-8")
        leave_a_store(store, conf, request.param)
        with (
            oracle.broker(store, name_server, port=port, **SETTINGS) as broker,
            oracle.client("TransactionSide", directory / "checks", broker, group=PRODUCERS, topic="Tx") as producer,
            oracle.client(
                "FailingConsumer",
                directory / "failures",
                broker,
                group=CONSUMERS,
                topics="Work",
                max=MAX_RECONSUME_TIMES,
            ) as consumer,
            oracle.client(
                "FailingConsumer", directory / "views", broker, group=VIEWERS, topics="Delay,Tx", succeedAt=0
            ) as viewer,
        ):
            asked = {*ASKED, *FRESH, *NEVER}
            checked = producer.until(lambda lines: {line["body"] for line in lines} >= asked, "checked")
            seen = {*EARLY, *DUE, *SOON, *COMMITTED}
            viewer.until(lambda lines: {line["properties"]["KEYS"] for line in lines} >= seen, "consumed")
            consumer.until(lambda lines: lines[-1:] and lines[-1]["count"] >= len(DEAD_LETTERS), "dead")
            # What was answered is not asked again once the broker has written that down; the undecided one is asked for ever.
            producer.until(lambda lines: sum(line["body"] in NEVER for line in lines) > 1, "checked")
            checked, consumed, viewed = producer.lines("checked"), consumer.lines("consumed"), viewer.lines("consumed")
            broker.kill()
        return CarriedOn(oracle.dump(store, conf), checked, consumed, viewed)


def test_each_delayed_message_is_delivered_once_when_it_is_due(carried_on: CarriedOn) -> None:
    """Java: ScheduleMessageService.load goes on behind our delayOffset.json, executeOnTimeUp delivers."""
    assert carried_on.names("Delay") == Counter([*EARLY, *DUE, *SOON])
    assert carried_on.names(SCHEDULE) >= Counter(FAR)
    assert carried_on.seen("Delay") == Counter([*EARLY, *DUE, *SOON])
    assert [line["properties"]["REAL_TOPIC"] for line in carried_on.messages("Delay")] == ["Delay"] * 12


def test_each_transaction_ends_as_its_producer_says(carried_on: CarriedOn) -> None:
    """Java: TransactionalMessageServiceImpl.check asks for what we left open, EndTransactionProcessor ends it."""
    assert carried_on.names("Tx") == carried_on.seen("Tx") == Counter(COMMITTED)
    assert {
        line["flag"] for line in carried_on.messages("Tx") if "TRANSACTION_CHECK_TIMES" not in line["properties"]
    } == {FLAG}


def test_only_what_we_left_open_is_asked_for(carried_on: CarriedOn) -> None:
    """Java: TransactionalMessageServiceImpl.fillOpRemoveMap reads our op messages; needDiscard counts on from our checks."""
    asked = Counter(line["body"] for line in carried_on.checked)
    assert set(asked) == {*ASKED, *FRESH, *NEVER}
    for line in carried_on.checked:
        checks_of_ours = 0 if line["body"] in FRESH else 1
        assert int(line["checkTimes"]) > checks_of_ours


def test_what_keeps_failing_ends_as_a_dead_letter_wherever_we_left_it(carried_on: CarriedOn) -> None:
    """Java: AbstractSendMessageProcessor.consumerSendMsgBack counts on from our retries."""
    assert carried_on.names(DEAD) == Counter(DEAD_LETTERS)
    ours, *theirs = carried_on.messages(DEAD)
    assert ours["properties"]["KEYS"] == "work-dead"
    works = {line["properties"]["KEYS"]: line for line in carried_on.messages("Work")}
    for line in [ours, *theirs]:
        properties = line["properties"]
        assert properties.keys() == ours["properties"].keys()
        assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["WAIT"]) == ("Work", "0", "false")
        work = works[properties["KEYS"]]
        assert properties["ORIGIN_MESSAGE_ID"] == work["msgId"]
        assert (line["flag"], line["bornHost"], line["bornTimestamp"]) == (
            FLAG,
            work["bornHost"],
            work["bornTimestamp"],
        )
        assert line["reconsumeTimes"] == MAX_RECONSUME_TIMES + 1


def test_no_failed_message_is_tried_more_often_than_it_may_be(carried_on: CarriedOn) -> None:
    """Each try of each message once, by us or by the broker. Java: DefaultMQPushConsumerImpl.sendMessageBack."""
    tries = Counter((line["properties"]["KEYS"], line["reconsumeTimes"]) for line in carried_on.consumed)
    expected = [
        ("work-delayed", 2),
        ("work-delivered", 1),
        ("work-delivered", 2),
        *(("work-untouched", n) for n in range(3)),
    ]
    assert tries == Counter(expected)
