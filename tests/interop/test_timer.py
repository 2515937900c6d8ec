"""Timer stores go back and forth: Apache's timer goes on where ours stopped, and ours where Apache's stopped or was killed.

Who delivered what is read from the records in the messages' own topic: each body stands there as often as it was delivered.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.delay.timer_store import deliver_timed
from storage.rules.delays import TIMER_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import TOPIC_AND_KEY
from storage.tables.topics import TopicConfig
from tests.support.java_broker import Oracle, RunningBroker, free_ports, send_arguments
from tests.support.releases import CHOSEN
from tests.support.served import served

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Timed"
DELETION_KEY = f"{TOPIC}+deleted" if CHOSEN.timer_deletion_keys == (TOPIC_AND_KEY,) else "deleted"
TIMER_SETTINGS: dict[str, Any] = {
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 512,  # 9 units a file
    "timerRollWindowSlot": 3,
    "commitlog_file_size_bytes": 65_536,
    "consume_queue_file_size_bytes": 2_000,
}


def timed(name: str, out_ms: int | str, **properties: str) -> InnerMessage:
    """A message as the put path parks it."""
    rest = {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": TOPIC, "REAL_QID": "1"}
    return InnerMessage(
        topic=TIMER_TOPIC, queue_id=0, body=name.encode(), properties={"UNIQ_KEY": name, **properties, **rest}
    )


def bodies(store: MessageStore) -> Counter[str]:
    return Counter(message.body.decode() for message in served(store, TOPIC))


def await_bodies(root: Path, conf: Path, enough: Callable[[Counter[str]], bool], seconds: float = 60) -> Counter[str]:
    """The bodies in the topic once they are enough, or as they are when time is over: the test says what is missing."""
    deadline = time.monotonic() + seconds
    with open_store(root, config=str(conf)) as store:
        while not enough(found := bodies(store)) and time.monotonic() < deadline:
            time.sleep(0.3)
            store.refresh()
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_timed(oracle: Oracle, out: Path, broker: RunningBroker, *steps: str) -> list[dict[str, Any]]:
    arguments = [f"{name}={value}" for name, value in send_arguments(broker, TOPIC).items()]
    oracle.java("SendTimer", out, *arguments, *steps)
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def test_a_broker_delivers_exactly_what_our_timer_has_left(oracle: Oracle, tmp_path: Path) -> None:
    """TimerMessageStore.recover, dequeue: nothing of ours twice, nothing lost, deletions and rolled messages known, no standstill."""
    root, conf, port = tmp_path / "store", tmp_path / "broker.conf", free_ports()
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(root, name_server, port, **TIMER_SETTINGS), "utf-8")
        ours = open_store(root, config=str(conf), read_only=False, create=True)
        ours.save_topic(TopicConfig(TOPIC, read_queue_count=2, write_queue_count=2))
        now = now_ms() // 1_000 * 1_000
        ours.put_inner(
            [
                *(timed(f"due-{number}", now - 3_000 + 500 * number) for number in range(6)),
                *(timed(f"soon-{number}", now + 3_000 + 1_000 * (number % 3)) for number in range(20)),
                timed("kept", now + 2_000),
                timed("deleted", now + 2_000),
                timed("deleter", now + 2_000, TIMER_DEL_UNIQKEY=DELETION_KEY),
                *(timed(f"rolled-{number}", now + 8_000) for number in range(3)),
                timed("unreadable", "soon"),
            ]
        )
        report = deliver_timed(ours, now)
        assert (report.delivered, report.undeliverable_count, report.cancelled) == (6, 1, 0)
        assert bodies(ours) == Counter(f"due-{number}" for number in range(6))
        ours.close()
        with oracle.broker(root, name_server, port=port, **TIMER_SETTINGS) as broker:
            new = send_timed(oracle, tmp_path / "sent.jsonl", broker, "ms:2000:3")
            everything = [f"due-{number}" for number in range(6)] + [f"soon-{number}" for number in range(20)]
            everything += ["kept", *(f"rolled-{number}" for number in range(3)), *(line["body"] for line in new)]
            found = await_bodies(root, conf, lambda found: found.keys() >= set(everything))
            broker.kill()
    assert found == Counter(everything)
    lines = oracle.dump(root, conf)
    delivered = [line for line in lines if line["type"] == "message" and line["cqTopic"] == TOPIC]
    assert len(delivered) == len(everything)


@pytest.mark.long
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_our_timer_delivers_exactly_what_a_broker_has_left(end: str, oracle: Oracle, tmp_path: Path) -> None:
    """TimerMessageStore.shutdown, or none: each message that was acknowledged is delivered once by one of us, deleted ones by none.

    Also what a killed broker put or rolled behind its last checkpoint (timerFlushIntervalMs = 1000).
    """
    root, conf, port = tmp_path / "store", tmp_path / "broker.conf", free_ports()
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(root, name_server, port, **TIMER_SETTINGS), "utf-8")
        with oracle.broker(root, name_server, port=port, **TIMER_SETTINGS) as broker:
            steps = ["ms:1500:5", "deliver:20000:5", "cancel:6", "sec:600:4", "wait:7000", "ms:5000:6", "sec:30:3"]
            sent = send_timed(oracle, tmp_path / "sent.jsonl", broker, *steps)
            if end == "killed":
                broker.kill()
    ours = open_store(root, config=str(conf), read_only=False, lock_timeout_ms=30_000)
    before = bodies(ours)
    assert before.keys() >= {line["body"] for line in sent[:5]}
    expected = Counter(line["body"] for line in sent if line["kind"] != "cancel" and line["n"] != 6)
    assert bodies_after(ours, now_ms()).keys() < expected.keys()
    for later_ms in (12_000, 25_000, 40_000, 700_000):
        found = bodies_after(ours, now_ms() + later_ms)
    assert found == expected
    ours.close()


def bodies_after(store: MessageStore, at_ms: int) -> Counter[str]:
    deliver_timed(store, at_ms)
    return bodies(store)
