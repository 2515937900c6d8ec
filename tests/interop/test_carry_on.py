"""The Apache broker carries on from our store: it delivers what is delayed, asks back what is undecided, buries what keeps failing.

Our functions leave a store in the middle of everything; a real broker with a real transaction producer and a real push consumer
takes it from there, and is killed. What became of each message is read from Apache's own store classes.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.end_transaction import end_transaction, request_for
from spark_mq.broker.response_codes import ResponseCode
from spark_mq.broker.send import SendMessageHandler
from spark_mq.broker.send_back import SendBackHandler, SendBackRequest
from spark_mq.broker.send_request import SendRequest
from storage import MessageStore, open_store
from storage.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.consumer_offsets import ConsumerOffsets
from storage.delay.schedule import DeliveryReport, deliver_due
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.topics import TopicConfig
from storage.transaction.check import check_half_messages
from storage.transaction.half_messages import TransactionState
from tests.support.java_broker import Oracle, free_ports

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]

SCHEDULE, HALF, OP = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PRODUCERS, CONSUMERS, VIEWERS = "CarryProducers", "CarryConsumers", "CarryViewers"
RETRY, DEAD = f"%RETRY%{CONSUMERS}", f"%DLQ%{CONSUMERS}"
MAX_RECONSUME_TIMES = 2
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    # Levels 1 to 5 are short, 2 long enough to be left pending; 18 stays pending for the whole test.
    "messageDelayLevel": "1s 4s 1s 1s 1s 1s 1s 1s 9s 10s 20s 30s 1m 2m 5m 10m 1h 2h",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 500,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


class Clock:
    """The time that our store is told."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.now_ms


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


# Ours


EARLY, DUE, SOON, FAR = ([f"{word}-{n}" for n in range(4)] for word in ("early", "due", "soon", "far"))
"""Delayed messages: delivered by us, due, due soon, and due in two hours."""
TOLD = {"told-commit": "commit", "told-rollback": "rollback"}
LATE = {"late-commit": "checkCommit", "late-rollback": "checkRollback"}
ASKED = {"commit-a": "checkCommit", "commit-b": "checkCommit", "roll-a": "checkRollback", "roll-b": "checkRollback"}
FRESH = {"commit-c": "checkCommit", "roll-c": "checkRollback"}
NEVER = {"never-a": "unknown"}
"""Transactions by whom the producer tells their end: us, us after a check, the broker after our check, the broker, nobody."""
DEAD_LETTERS = ["work-dead", "work-delayed", "work-delivered", "work-untouched"]
"""Failed messages: dead, between two tries, in the retry topic, never consumed."""


class Ours:
    """Our broker's side: the handlers and duties of a store, at a time that it is told."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._sends = SendMessageHandler(store, clock=clock)
        self._backs = SendBackHandler(store, store.config, clock=clock)

    def send(self, name: str, topic: str, queue_id: int = 0, *, sys_flag: int = 0, **properties: str) -> int:
        """Send a message whose keys and body are its name; returns where it lies in the log."""
        request = SendRequest(
            topic=topic,
            queue_id=queue_id,
            body=name.encode(),
            properties={"TAGS": "TagA", "KEYS": name, "UNIQ_KEY": name.encode().hex().upper().zfill(32), **properties},
            flag=7,
            sys_flag=sys_flag,
            born_time_ms=self.clock(),
            born_host=bytes([127, 0, 0, 1]) + (40_000).to_bytes(4, "big"),
        )
        end = self.store.log_end
        response = self._sends.send(request)
        assert response.code == ResponseCode.SUCCESS, response
        return end

    def send_half(self, name: str, plan: str) -> int:
        return self.send(name, "Tx", sys_flag=TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP=PRODUCERS, plan=plan)

    def end_transaction(self, commitlog_offset: int, state: int) -> None:
        """What the producer of the half there says of it."""
        half = self.store.message_by_commitlog_offset(commitlog_offset)
        response = end_transaction(self.store, request_for(half, state), self.clock())
        assert response is not None
        assert response.code == ResponseCode.SUCCESS, response

    def send_back(self, commitlog_offset: int) -> None:
        request = SendBackRequest(
            commitlog_offset=commitlog_offset, group=CONSUMERS, max_reconsume_times=MAX_RECONSUME_TIMES
        )
        response = self._backs.send_back(request)
        assert response.code == ResponseCode.SUCCESS, response

    def deliver(self) -> DeliveryReport:
        """What is due in two seconds."""
        self.clock.now_ms += 2_000
        return deliver_due(self.store, self.clock())

    def retries(self) -> list[int]:
        """Where the messages of the retry topic lie, in the order of its queue."""
        found = self.store.get(RETRY, 0, 0, 32)
        return [message.commitlog_offset for message in found.messages]


def leave_a_store(root: Path, conf: Path) -> None:
    clock = Clock()
    end_ms = clock()
    clock.now_ms -= 60_000
    with open_store(root, config=str(conf), read_only=False, create=True, clock=clock) as store:
        for topic, queues in (("Delay", 2), ("Tx", 2), ("Work", 1)):
            store.save_topic(TopicConfig(topic, queues, queues))
        ours = Ours(store, clock)
        leave_retries(ours)
        leave_halves(ours)
        leave_delays(ours)
        clock.now_ms = end_ms
        for n, name in enumerate(SOON):
            ours.send(name, "Delay", n % 2, DELAY="2")
        store.release()


def leave_retries(ours: Ours) -> None:
    dead, delayed, delivered, _ = [ours.send(name, "Work") for name in DEAD_LETTERS]
    ours.send_back(dead)
    ours.deliver()
    ours.send_back(ours.retries()[0])
    ours.deliver()
    ours.send_back(ours.retries()[1])
    ours.send_back(delayed)
    ours.send_back(delivered)
    assert ours.deliver().delivered_count == 2
    ours.send_back(ours.retries()[2])
    offsets = ours.store.state(OFFSETS_FILE, ConsumerOffsets.load) or ConsumerOffsets()
    offsets = offsets.with_offsets(CONSUMERS, {("Work", 0): 3, (RETRY, 0): 3}, now_ms=ours.clock())
    ours.store.save_state(OFFSETS_FILE, offsets.to_text())


def leave_halves(ours: Ours) -> None:
    """Ended at once, ended after a check has put them back, only put back, and new."""
    told = {name: ours.send_half(name, plan) for name, plan in TOLD.items()}
    late = {name: ours.send_half(name, plan) for name, plan in LATE.items()}
    for name, plan in {**ASKED, **NEVER}.items():
        ours.send_half(name, plan)
    ours.end_transaction(told["told-commit"], TRANSACTION_COMMIT)
    ours.end_transaction(told["told-rollback"], TRANSACTION_ROLLBACK)
    ours.clock.now_ms += 2_000
    report = check_half_messages(ours.store, lambda half: TransactionState.UNKNOWN, ours.clock())
    assert report.put_back == len({**LATE, **ASKED, **NEVER})
    ours.end_transaction(late["late-commit"], TRANSACTION_COMMIT)
    ours.end_transaction(late["late-rollback"], TRANSACTION_ROLLBACK)
    for name, plan in FRESH.items():
        ours.send_half(name, plan)


def leave_delays(ours: Ours) -> None:
    for n, name in enumerate(EARLY):
        ours.send(name, "Delay", n % 2, DELAY="1")
    assert ours.deliver().delivered[1] == len(EARLY)
    for n, name in enumerate(DUE):
        ours.send(name, "Delay", n % 2, DELAY="1")
    for n, name in enumerate(FAR):
        ours.send(name, "Delay", n % 2, DELAY="18")


# What the broker made of it


@pytest.fixture(scope="module")
def carried_on(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> CarriedOn:
    directory = tmp_path_factory.mktemp("carried-on-")
    store, conf, port = directory / "store", directory / "broker.conf", free_ports()
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(store, name_server, port, **SETTINGS), "utf-8")
        leave_a_store(store, conf)
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
            seen = {*EARLY, *DUE, *SOON, "told-commit", "late-commit", "commit-a", "commit-b", "commit-c"}
            viewer.until(lambda lines: {line["properties"]["KEYS"] for line in lines} >= seen, "consumed")
            consumer.until(lambda lines: lines[-1:] and lines[-1]["count"] >= len(DEAD_LETTERS), "dead")
            # What was answered is not asked again once the broker has written that down; the undecided one is asked for ever.
            producer.until(lambda lines: sum(line["body"] in NEVER for line in lines) > 2, "checked")
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
    committed = ["told-commit", "late-commit", "commit-a", "commit-b", "commit-c"]
    assert carried_on.names("Tx") == carried_on.seen("Tx") == Counter(committed)
    assert {line["flag"] for line in carried_on.messages("Tx") if line["properties"]["KEYS"] == "told-commit"} == {7}


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
    works = {line["properties"]["KEYS"]: line["msgId"] for line in carried_on.messages("Work")}
    for line in [ours, *theirs]:
        properties = line["properties"]
        assert properties.keys() == ours["properties"].keys()
        assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["WAIT"]) == ("Work", "0", "false")
        assert properties["ORIGIN_MESSAGE_ID"] == works[properties["KEYS"]]
        assert (line["reconsumeTimes"], line["flag"], line["bornHost"]) == (3, 7, "127.0.0.1:40000")


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
