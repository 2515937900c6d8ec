"""We carry on from the Apache broker's store: our duties deliver, ask back and bury what it was stopped, or killed, in the middle of.

A real broker, a transaction producer that answers nothing and a consumer that always fails leave the store; our functions bring it to
its end; a broker serves it once more. What became of each message is read from Apache's own store classes and consumer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from storage import Message, MessageStore, open_store
from storage.delay.schedule import deliver_due
from storage.rules.half_messages import TransactionState
from storage.rules.response_codes import ResponseCode
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import DELAYS_FILE, DelayOffsets
from storage.transaction.check import CheckReport
from tests.support.broker_handlers import Returner, back_request
from tests.support.clock import Clock
from tests.support.held_check import check_half_messages
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]

SCHEDULE, HALF = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
CONSUMERS = "CarryConsumers"
RETRY, DEAD = f"%RETRY%{CONSUMERS}", f"%DLQ%{CONSUMERS}"
MAX_RECONSUME_TIMES = 3
WORKS = 5
DELAYS = 9
"""Messages in turns delivered by the broker, pending, and pending for hours."""
PLANS = ("commit", "rollback", "laterCommit", "laterRollback", "never", "commit", "laterCommit", "rollback")
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    # The second try of a message (level 3) comes soon, the third (level 4) not before the broker ends.
    "messageDelayLevel": "1s 5m 1s 5m 1s 1s 1s 1s 9s 10s 20s 30s 1m 2m 5m 10m 1h 9h",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 500,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
}
KEPT = ("flag", "sysFlag", "bornTimestamp", "bornHost", "bodySha256", "preparedTransactionOffset")
"""Fields that a message has wherever it goes."""
SETTINGS_OF: dict[str, dict[str, Any]] = {
    "stopped": SETTINGS,
    "killed": {**SETTINGS, "transactionOpBatchInterval": 3_600_000},
}
"""By how the broker ends that leaves the store; the killed one has told nobody what is ended: no op message of it is written."""
AHEAD_MS = 10 * 60_000
"""Our clock is ahead by so much: what was pending is due, but for the last level."""


@dataclass(slots=True)
class Carried:
    """What became of a broker's store."""

    ending: str
    left: list[Line]
    """Apache's dump of the store as the broker left it."""
    delay_offsets: DelayOffsets
    """How far it wrote down to have delivered."""
    dump: list[Line] = field(default_factory=list)
    """The same when we were through with it, and another broker had served it."""
    served: list[Line] = field(default_factory=list)
    """What that broker's consumer got."""
    check: CheckReport | None = None
    asked: Counter[str] = field(default_factory=Counter)
    """Bodies of the halves that our check asked for."""

    def delivered_unnoticed(self, topic: str) -> set[int]:
        """Numbers of a topic's messages that the broker delivered without writing it down; it would deliver them again, too."""
        delivered = {
            line["properties"]["n"] for line in messages(self.left, topic) if "REAL_TOPIC" in line["properties"]
        }
        return {
            int(line["properties"]["n"])
            for line in messages(self.left, SCHEDULE)
            if line["properties"]["REAL_TOPIC"] == topic and line["properties"]["n"] in delivered
            if line["reconsumeTimes"] < 2 and line["queueOffset"] >= (self.delay_offsets.get(line["queueId"] + 1) or 0)
        }


@pytest.fixture(scope="module", params=[pytest.param("stopped", marks=pytest.mark.long), "killed"])
def carried(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    ending, settings = request.param, SETTINGS_OF[request.param]
    directory = tmp_path_factory.mktemp("carried-here-")
    store, port = directory / "store", free_ports()
    with oracle.namesrv() as name_server:
        with oracle.broker(store, name_server, port=port, **settings) as broker:
            leave_the_store(oracle, broker, directory)
            if ending == "killed":
                broker.kill()
        saved = store / "config" / DELAYS_FILE  # none before ten seconds have passed
        offsets = DelayOffsets.load(saved.read_text("utf-8")) if saved.exists() else DelayOffsets()
        carried = Carried(ending, oracle.dump(store, broker.conf), offsets)
        carry_on(store, broker.conf, carried)
        with oracle.broker(store, name_server, port=port, **settings) as broker:
            topics = ["Delay", "Tx", DEAD]
            carried.served = oracle.consume_all(directory / "served", broker, topics, lookUps=0)
            broker.kill()
        carried.dump = oracle.dump(store, broker.conf)
    return carried


def leave_the_store(oracle: Oracle, broker: RunningBroker, directory: Path) -> None:
    with (
        oracle.client("TransactionSide", directory / "tx", broker, group="Tx", topic="Tx", plans=",".join(PLANS)) as tx,
        oracle.client(
            "FailingConsumer", directory / "failures", broker, group=CONSUMERS, topics="Work", max=MAX_RECONSUME_TIMES
        ) as consumer,
        oracle.client(
            "Send", directory / "delays", broker, topic="Delay", queues=2, count=DELAYS, delayLevels="1,2,18"
        ) as delays,
        oracle.client("Send", directory / "works", broker, topic="Work", queues=1, count=WORKS) as works,
    ):
        assert (delays.process.wait(60), works.process.wait(60)) == (0, 0)
        undecided = {f"transaction {n}" for n, plan in enumerate(PLANS) if plan.startswith(("later", "never"))}
        tx.until(lambda lines: {line["body"] for line in lines} >= undecided, "checked")
        consumer.until(lambda lines: sum(line["reconsumeTimes"] == 1 for line in lines) >= WORKS, "consumed")
        wait_until(lambda: broker.consumer_offset("Work", CONSUMERS) == WORKS, "the messages are consumed")
        wait_until(lambda: broker.consumer_offset(RETRY, CONSUMERS) == WORKS, "their retries are consumed")


# Ours


def carry_on(root: Path, conf: Path, carried: Carried) -> None:
    """Until nothing is left but what nobody answers for and what is due in hours."""
    clock = Clock(time.time_ns() // 1_000_000 + AHEAD_MS)

    def checker(half: Message) -> TransactionState:
        carried.asked[half.body.decode()] += 1
        plan = half.properties["plan"].removeprefix("later").lower()
        return TransactionState.UNKNOWN if plan == "never" else TransactionState(plan)

    with open_store(root, config=str(conf), read_only=False, clock=clock) as store:
        deliver_due(store, clock())
        carried.check = check_half_messages(store, checker, clock())
        backs = Returner(store, clock=clock)
        while fail_on_retries(store, backs, clock):
            clock.now_ms += AHEAD_MS
            deliver_due(store, clock())
        store.release()


def fail_on_retries(store: MessageStore, backs: Returner, clock: Clock) -> int:
    """Consume what the group has not consumed of its retry topic, and fail; returns how much that was."""
    offsets = store.state(OFFSETS_FILE, ConsumerOffsets.load)
    assert offsets is not None
    at = offsets.get(RETRY, CONSUMERS, 0)
    assert at is not None
    failed = store.get(RETRY, 0, at, 32).messages
    for message in failed:
        request = back_request(
            commitlog_offset=message.commitlog_offset, group=CONSUMERS, max_reconsume_times=MAX_RECONSUME_TIMES
        )
        assert backs.send_back(request).code == ResponseCode.SUCCESS
    if failed:
        offsets = offsets.with_offsets(CONSUMERS, {(RETRY, 0): at + len(failed)}, now_ms=clock())
        store.save_state(OFFSETS_FILE, offsets.to_text())
    return len(failed)


# What became of it


def messages(lines: Sequence[Line], topic: str) -> list[Line]:
    return [line for line in lines if line["type"] == "message" and line["topic"] == topic]


def test_each_delayed_message_is_delivered_when_it_is_due(carried: Carried) -> None:
    """Once, or once more where a killed broker had not written down that it did (ScheduleMessageService.persist)."""
    by_broker = {int(line["properties"]["n"]) for line in messages(carried.left, "Delay")}
    assert by_broker <= {n for n in range(DELAYS) if n % 3 == 0}
    again = carried.delivered_unnoticed("Delay")
    assert again <= (by_broker if carried.ending == "killed" else set())
    expected = Counter(n for n in range(DELAYS) if n % 3 != 2) + Counter(again)
    assert Counter(int(line["properties"]["n"]) for line in messages(carried.dump, "Delay")) == expected
    waiting = [int(line["properties"]["n"]) for line in messages(carried.dump, SCHEDULE) if line["queueId"] == 17]
    assert waiting == [n for n in range(DELAYS) if n % 3 == 2]


def test_a_delivered_message_holds_what_the_brokers_own_deliveries_hold(carried: Carried) -> None:
    """Java: ScheduleMessageService.messageTimeUp."""
    parked = {
        (line["properties"]["n"]): line
        for line in messages(carried.left, SCHEDULE)
        if line["properties"]["REAL_TOPIC"] == "Delay"
    }
    for line in messages(carried.dump, "Delay"):
        before = parked[line["properties"]["n"]]
        assert line["properties"] == before["properties"]
        assert line["reconsumeTimes"] == 0
        assert [line[name] for name in KEPT] == [before[name] for name in KEPT]
        assert line["queueId"] == int(before["properties"]["REAL_QID"])


def test_each_transaction_is_seen_once_if_it_was_committed_and_never_otherwise(carried: Carried) -> None:
    """Java: EndTransactionProcessor.processRequest; unlike a broker we look for a commit's record before we ask again."""
    committed = Counter(f"key{n}" for n, plan in enumerate(PLANS) if plan in ("commit", "laterCommit"))
    assert Counter(line["properties"]["KEYS"] for line in messages(carried.dump, "Tx")) == committed
    assert Counter(line["keys"] for line in messages(carried.served, "Tx")) == committed


def test_nobody_is_asked_for_a_transaction_that_the_log_shows_to_be_ended(carried: Carried) -> None:
    """A rollback that no op message tells of cannot be known, to a broker neither."""
    ended = {"stopped": ("later", "never"), "killed": ("later", "never", "rollback")}[carried.ending]
    assert carried.asked == Counter(f"transaction {n}" for n, plan in enumerate(PLANS) if plan.startswith(ended))
    assert carried.check is not None
    rolled_back = sum(plan.startswith(ended) and "ollback" in plan for plan in PLANS)
    assert (carried.check.committed, carried.check.rolled_back, carried.check.put_back) == (2, rolled_back, 1)


def test_what_keeps_failing_ends_as_the_dead_letter_that_a_broker_would_make(carried: Carried) -> None:
    """Java: AbstractSendMessageProcessor.consumerSendMsgBack."""
    letters = messages(carried.dump, DEAD)
    expected = Counter(range(WORKS)) + Counter(carried.delivered_unnoticed(RETRY))
    assert Counter(int(line["properties"]["n"]) for line in letters) == expected
    works = {line["properties"]["n"]: line for line in messages(carried.left, "Work")}
    for line in letters:
        work = works[line["properties"]["n"]]
        made = {
            "RETRY_TOPIC": "Work",
            "ORIGIN_MESSAGE_ID": work["msgId"],
            "DELAY": "0",
            "WAIT": "false",
            "REAL_TOPIC": RETRY,
            "REAL_QID": "0",
        }
        assert line["properties"] == {**work["properties"], **made}
        assert line["reconsumeTimes"] == MAX_RECONSUME_TIMES + 1
        assert [line[name] for name in KEPT] == [work[name] for name in KEPT]


def test_a_broker_that_comes_after_us_delivers_nothing_again(carried: Carried) -> None:
    """Java: ScheduleMessageService.load goes on behind our delayOffset.json. What its consumer gets is what stands in the log."""
    for topic in ("Delay", DEAD):
        served = Counter(line["commitLogOffset"] for line in messages(carried.served, topic))
        assert served == Counter(line["physicalOffset"] for line in messages(carried.dump, topic))
        assert set(served.values()) == {1}
