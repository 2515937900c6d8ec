"""A process queue answers step by step as Java's does, and says which offset may be stored."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq.client.message import MessageExt
from spark_mq.client.process_queue import ProcessQueue, batches
from spark_mq.client.settings import FlowLimits
from tests.client.fake_cluster import received
from tests.client.java_vectors import java_says


def of_java(offset: int) -> MessageExt:
    return received(offset, body=bytes(offset * 7 % 50))


def play(queue: ProcessQueue, step: dict[str, Any]) -> Any:
    """One step's answer, in Java's terms: −1 for nothing to store."""
    messages = [of_java(offset) for offset in step.get("offsets", [])]
    if step["do"] == "put":
        return queue.put(messages)
    if step["do"] == "take":
        return [message.queue_offset for message in queue.take(step["limit"], 0)]
    if step["do"] in ("remove", "commit"):
        answer = queue.remove(messages, 0) if step["do"] == "remove" else queue.commit()
        return -1 if answer is None else answer
    if step["do"] == "again":
        queue.again(messages)
    else:
        queue.roll_back()
    return None


@pytest.mark.parametrize("walk", range(6))
def test_every_step_of_a_random_walk_ends_as_in_java(walk: int) -> None:
    queue = ProcessQueue(0)
    for step in java_says("processQueue")[walk]["steps"]:
        assert play(queue, step) == step.get("answer"), step
        assert [*queue.waiting] == step["cached"], step
        assert [*queue.taken] == step["taken"], step
        assert (queue.count, queue.size_bytes, queue.span) == (step["count"], step["size"], step["span"]), step


@pytest.mark.parametrize(
    ("offsets", "body", "is_full"),
    [
        (range(1000), b"x", False),
        (range(1001), b"x", True),
        ((0, 2000), b"x", False),
        ((0, 2001), b"x", True),
        (range(101), bytes(1 << 20), True),
        (range(100), bytes(1 << 20), False),
    ],
)
def test_pulling_pauses_above_the_limits(offsets: range, body: bytes, is_full: bool) -> None:
    queue = ProcessQueue(0)
    queue.put([received(offset, body=body) for offset in offsets])
    assert queue.is_full(FlowLimits()) is is_full


def test_an_orderly_queue_has_no_limit_of_span() -> None:
    queue = ProcessQueue(0)
    queue.put([received(0), received(9999)])
    assert not queue.is_full(FlowLimits(span=None))


def test_only_the_first_message_is_overdue_and_only_when_a_listener_has_had_it_too_long() -> None:
    queue, messages = ProcessQueue(0), [received(1), received(2)]
    queue.put(messages)
    queue.start([messages[1]], 0)
    assert queue.overdue(901_000, 900_000) is None
    queue.start([messages[0]], 1_000)
    assert queue.overdue(901_000, 900_000) is None
    assert queue.overdue(901_001, 900_000) == messages[0]


def test_a_lock_counts_for_half_a_minute_after_it_was_given() -> None:
    queue = ProcessQueue(1_000)
    assert queue.has_live_lock(31_000)
    assert not queue.has_live_lock(31_001)
    queue.set_locked(31_001)
    assert queue.has_live_lock(61_001)
    queue.is_locked = False
    assert not queue.has_live_lock(31_002)


def test_a_message_that_failed_here_is_taken_again_with_its_count() -> None:
    queue = ProcessQueue(0)
    queue.put([received(1)])
    queue.again([message.failed_once_more() for message in queue.take(1, 0)])
    assert [message.reconsume_times for message in queue.take(1, 0)] == [1]


def test_messages_go_to_listeners_in_batches_of_the_size_asked_for() -> None:
    messages = [received(offset) for offset in range(5)]
    assert [len(batch) for batch in batches(messages, 2)] == [2, 2, 1]


def test_what_is_put_back_before_others_that_are_done_holds_the_offset() -> None:
    """Of a call of several messages some went to the retry topic, and the first one is to be tried here again."""
    queue, messages = ProcessQueue(0), [received(offset) for offset in (10, 11, 12)]
    queue.put(messages)
    queue.take(3, 0)
    queue.again(messages[:1])
    assert queue.commit() == 10
    assert (queue.count, queue.size_bytes) == (1, len(messages[0].record.body))
    queue.take(3, 0)
    assert queue.commit() == 11


def test_a_message_that_is_done_and_comes_again_is_not_overdue_before_a_listener_has_it() -> None:
    queue, message = ProcessQueue(0), received(1)
    queue.put([message])
    queue.start([message], 0)
    queue.remove([message], 10)
    queue.put([message])
    assert queue.overdue(1_000_000, 900_000) is None


def test_a_queue_that_forgets_its_messages_commits_nothing_of_them() -> None:
    queue, messages = ProcessQueue(0), [received(offset) for offset in (10, 11)]
    queue.put(messages)
    queue.start(messages, 0)
    queue.take(1, 0)
    queue.clear()
    assert [*queue.waiting, *queue.taken, queue.count, queue.size_bytes] == [0] * 8
    assert queue.commit() is None
    queue.put([received(5)])
    assert queue.remove([received(5)], 0) == 6, "it begins anew, before what there was"


def test_a_queue_that_was_not_pulled_for_two_minutes_is_given_up() -> None:
    queue = ProcessQueue(1_000)
    assert [queue.is_pull_expired(now_ms) for now_ms in (121_000, 121_001)] == [False, True]
    queue.last_pull_ms = 5_000
    assert not queue.is_pull_expired(121_001)
