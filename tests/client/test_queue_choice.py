"""Which queue a message goes to: turns, bans and selectors. Java: TopicPublishInfo, MQFaultStrategy, SelectMessageQueueBy…"""

from __future__ import annotations

import time

import pytest

from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import by_hash, by_machine_room, by_random, java_hash
from spark_mq.client.sender import LatencyFaults, QueueTurns, ban_ms
from tests.client.java_vectors import java_says
from tests.support.clock import Clock

QUEUES = tuple(MessageQueue("T", broker, queue_id) for broker in ("a", "b", "c") for queue_id in range(4))
MESSAGE = Message("T", b"body")


def test_the_only_broker_is_tried_again_though_it_has_just_failed() -> None:
    assert QueueTurns().choose(QUEUES[:4], "a", None).broker_name == "a"


def test_a_slow_broker_is_left_out_until_its_ban_ends() -> None:
    clock = Clock(1_000_000)
    faults, turns = LatencyFaults(clock), QueueTurns()
    faults.note("a", 600)
    assert {turns.choose(QUEUES, None, faults).broker_name for _ in range(40)} == {"b", "c"}
    clock.now_ms += 2_000
    assert {turns.choose(QUEUES, None, faults).broker_name for _ in range(40)} == {"a", "b", "c"}


def test_a_clock_that_was_set_back_makes_no_ban_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = LatencyFaults()
    passed_ns = 0
    started_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: started_ns + passed_ns)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns + passed_ns - 3_600 * 10**9 * (passed_ns > 0))
    faults.note("a", 600)
    assert not faults.is_available("a")
    passed_ns = 2 * 10**9
    assert faults.is_available("a")


def test_where_all_are_banned_one_that_was_reached_is_taken_and_then_any() -> None:
    faults, turns = LatencyFaults(Clock(1_000_000)), QueueTurns()
    for broker in ("a", "b", "c"):
        faults.note(broker, 10, has_failed=True, is_reachable=broker == "b")
    assert {turns.choose(QUEUES, None, faults).broker_name for _ in range(40)} == {"b"}
    faults.note("b", 10, has_failed=True, is_reachable=False)
    assert {turns.choose(QUEUES, None, faults).broker_name for _ in range(40)} == {"a", "b", "c"}


def test_a_quick_answer_does_not_shorten_a_ban() -> None:
    clock = Clock(1_000_000)
    faults = LatencyFaults(clock)
    faults.note("a", 0, has_failed=True)
    faults.note("a", 1)
    assert faults.is_reachable("a")
    assert not faults.is_available("a")
    clock.now_ms += 10_000
    assert faults.is_available("a")


def test_bans_are_java_s() -> None:
    said = {line["latency"]: line["duration"] for line in java_says("ban")}
    assert {latency: ban_ms(latency) for latency in said} == said


def test_a_hash_selects_the_queue_that_java_selects() -> None:
    lines = java_says("hash")
    assert {line["kind"] for line in lines} == {"String", "Integer", "Long", "Boolean"}
    for line in lines:
        queues = [MessageQueue("T", "b", queue_id) for queue_id in range(line["queues"])]
        assert by_hash(queues, MESSAGE, line["arg"]).queue_id == line["queue"], line


def test_a_random_selector_takes_every_queue_at_times() -> None:
    assert {by_random(QUEUES, MESSAGE, None) for _ in range(1_000)} == set(QUEUES)


@pytest.mark.parametrize("value", [1.5, None, 1 << 63, b"bytes"])
def test_nothing_is_selected_by_what_java_would_hash_otherwise(value: object) -> None:
    with pytest.raises(TypeError, match="a queue is selected by"):
        java_hash(value)


def test_a_machine_room_gets_its_own_queues_and_any_where_it_has_none() -> None:
    selected = by_machine_room(lambda queue: "room-1" if queue.broker_name == "b" else "room-2")
    assert {selected(QUEUES, MESSAGE, "room-1").broker_name for _ in range(40)} == {"b"}
    assert {selected(QUEUES, MESSAGE, "room-2").broker_name for _ in range(60)} == {"a", "c"}
    assert {selected(QUEUES, MESSAGE, "room-3").broker_name for _ in range(60)} == {"a", "b", "c"}
