"""A store goes from our broker to Apache's and back, in the middle of everything: what one has begun the other ends, once.

Java's clients are on both sides: delayed and timed messages, transactions that nobody has ended, retries under way, groups'
offsets. Afterwards Apache's store classes list the store (strict), and ours open it. test_carry_on*.py have the same for stores
that our functions leave.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage import open_store
from tests.support.java_broker import JavaClient, Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

Line = dict[str, Any]

SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 256 << 10,
    "consume_queue_file_size_bytes": 6_000,
    "messageDelayLevel": "1s 25s 40s 4s 5s 6s 7s 8s 9s 10s",
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 1_024,
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 6_000,
    "transactionOpBatchInterval": 100,
    "transactionCheckMax": 1_000,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
}
PLANS = ["commit", "rollback", *(["checkCommit-20s"] * 3)]  # nobody is asked in the first 20 s
WORKS, PARKED, TIMED = 6, 12, 10
LONG_MS = 25_000


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("order", ["ours-apaches-ours", "apaches-ours-apaches"])
def test_what_one_broker_has_begun_the_other_ends(oracle: Oracle, tmp_path: Path, order: str, is_killed: bool) -> None:
    ours = Oracle(tmp_path, is_ours=True)
    first, second, third = ({"ours": ours, "apaches": oracle}[name] for name in order.split("-"))
    store, port = tmp_path / "store", free_ports()

    with first.namesrv() as name_server, first.broker(store, name_server, port=port, **SETTINGS) as broker:
        begun_ms = time.time_ns() // 1_000_000
        parked = sent_by(first, tmp_path / "parked.jsonl", broker, "Parked", count=PARKED, delayLevels="2,3")
        timed = sent_by(first, tmp_path / "timed.jsonl", broker, "Timed", count=TIMED, delaysMs=f"{LONG_MS},0")
        plain = sent_by(first, tmp_path / "plain.jsonl", broker, "Plain", count=40)
        work = sent_by(first, tmp_path / "work.jsonl", broker, "Work", count=WORKS)
        halves = begun_transactions(first, broker, tmp_path)
        with first.client("Consume", tmp_path / "plain-got.jsonl", broker, group="GPlain", topics="Plain") as client:
            before = client.until(lambda lines: len(lines) >= 40, "message")
            wait_until(lambda: offsets_of(broker, "GPlain") == 40, "the group's offsets")
        with failing(first, broker, tmp_path / "failed-1.jsonl") as client:
            client.until(lambda lines: len(lines) >= WORKS, "consumed")
            wait_until(
                lambda: sum(broker.consumer_offset("Work", "GWork", q) or 0 for q in range(2)) == WORKS, "sent back"
            )
            failed = client.lines("consumed")
        leave(broker, is_killed=is_killed)

    with (
        second.namesrv() as name_server,
        second.broker(store, name_server, port=port, **SETTINGS) as broker,
        ExitStack() as stack,
    ):
        assert time.time_ns() // 1_000_000 - begun_ms < LONG_MS * 4, "the second broker was to come in time"
        more = sent_by(second, tmp_path / "more.jsonl", broker, "Plain", count=10, seed=2)
        # One process after the other: Java's clients give up where a busy machine is slow to start them.
        views = stack.enter_context(consumer(second, broker, tmp_path / "views.jsonl", "GViews", "Parked,Timed,Ended"))
        plains = stack.enter_context(consumer(second, broker, tmp_path / "plains.jsonl", "GPlain", "Plain"))
        side = stack.enter_context(
            second.client("TransactionSide", tmp_path / "checks.jsonl", broker, group="GTx", topic="Ended")
        )
        worker = stack.enter_context(failing(second, broker, tmp_path / "failed-2.jsonl"))
        plains.until(lambda lines: len(lines) >= len(more), "message", 120)
        wanted = {line["msgId"] for line in halves if line["plan"] != "rollback"}
        side.until(lambda lines: {line["uniqKey"] for line in lines} >= wanted - {halves[0]["msgId"]}, "checked", 120)
        seen = Counter(line["msgId"] for line in [*parked, *timed]) + Counter(wanted)
        views.until(lambda lines: Counter(ids(lines)) >= seen, "message", 120)
        worker.until(lambda lines: bool(lines) and lines[-1]["count"] >= WORKS, "dead", 120)
        time.sleep(8)  # what is doubled would come now, or at the next look for half messages
        assert Counter(ids(views.lines("message"))) == seen
        assert Counter(ids(plains.lines("message"))) == Counter(line["msgId"] for line in more)
        retried = [*failed, *worker.lines("consumed")]
        leave(broker, is_killed=is_killed)

    tries = Counter((line["uniqKey"], line["reconsumeTimes"]) for line in retried)
    expected = {(line["msgId"], times) for line in work for times in range(3)}
    assert set(tries) == expected
    assert set(tries.values()) == {1}
    assert len(before) == len(plain) == 40

    with third.namesrv() as name_server, third.broker(store, name_server, port=port, **SETTINGS) as broker:
        last = sent_by(third, tmp_path / "last.jsonl", broker, "Plain", count=4, seed=3)
        with consumer(third, broker, tmp_path / "last-got.jsonl", "GPlain", "Plain") as client:
            client.until(lambda lines: len(lines) >= 4, "message")
            time.sleep(2)
            assert Counter(ids(client.lines("message"))) == Counter(line["msgId"] for line in last)
        conf = broker.conf

    messages = [line for line in oracle.dump(store, conf) if line["type"] == "message"]
    held = Counter(line["cqTopic"] for line in messages)
    topics = {"Parked": PARKED, "Timed": TIMED, "Plain": 54, "Ended": 4, "Work": WORKS, "%DLQ%GWork": WORKS}
    assert {topic: held[topic] for topic in topics} == topics
    with open_store(store, config=str(conf)) as opened:
        found = {topic: sum(opened.max_offset(topic, queue) for queue in range(8)) for topic in topics}
    assert found == topics


def sent_by(servers: Oracle, out: Path, broker: RunningBroker, topic: str, **options: str | int) -> list[Line]:
    """What Java's producer was answered."""
    lines = servers.send(out, broker, topic, queues=2, **options)
    assert {line["status"] for line in lines} == {"SEND_OK"}
    return lines


def begun_transactions(servers: Oracle, broker: RunningBroker, directory: Path) -> list[Line]:
    """Halves, two of them ended; the producer that would know of the others is gone."""
    given = {"group": "GTx", "topic": "Ended", "plans": ",".join(PLANS), "queues": 2}
    with servers.client("TransactionSide", directory / "halves.jsonl", broker, **given) as side:
        return side.until(lambda lines: len(lines) >= len(PLANS), "sent")


@contextmanager
def consumer(servers: Oracle, broker: RunningBroker, out: Path, group: str, topics: str) -> Iterator[JavaClient]:
    """A consumer that has started."""
    with servers.client("Consume", out, broker, group=group, topics=topics) as client:
        client.until(bool, "ready")
        yield client


def failing(servers: Oracle, broker: RunningBroker, out: Path) -> Any:
    """A consumer that fails each message, three times in all."""
    return servers.client("FailingConsumer", out, broker, group="GWork", topics="Work", max=2)


def offsets_of(broker: RunningBroker, group: str) -> int:
    return sum(broker.consumer_offset("Plain", group, queue_id) or 0 for queue_id in range(2))


def leave(broker: RunningBroker, *, is_killed: bool) -> None:
    """The next one finds the store as a crash leaves it, or as a clean end."""
    if is_killed:
        broker.kill()


def ids(lines: list[Line]) -> list[str]:
    return [line["msgId"] for line in lines]
