"""Orderly consumption: one call at a time for a queue, in order, under the broker's lock, also over a hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.listeners import ConsumeStatus, OrderlyContext
from spark_mq.client.message import MessageExt
from tests.client.fake_cluster import FIRST, Consumer, FakeCluster, InlinePool, ManualPool, queue

SUCCESS, LATER, COMMIT, ROLLBACK = ConsumeStatus


def answering(*answers: ConsumeStatus, **context_says: Any) -> Any:
    """A listener that gives these answers, then SUCCESS."""
    left = list(answers)

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeStatus:
        for name, value in context_says.items():
            setattr(context, name, value)
        return left.pop(0) if left else SUCCESS

    return listen


async def orderly(
    cluster: FakeCluster,
    listener: Any = None,
    client_id: str = "c1",
    *,
    pool: InlinePool | None = None,
    seconds: float = 0,
    **settings: Any,
) -> Consumer:
    consumer = Consumer(cluster, listener, client_id, replace(FIRST, **settings), is_orderly=True, pool=pool)
    return await consumer.begun(seconds)


def offsets_of(consumer: Consumer) -> list[int]:
    return [offset for _, offset in consumer.got]


async def test_a_failed_message_holds_its_queue_back_and_no_other() -> None:
    cluster = FakeCluster(T=2).put("T", 3, 0)
    cluster.put("T", 3, 1)
    consumer = await orderly(cluster, answering(LATER), seconds=0.5)
    first = consumer.got[0][0]
    assert consumer.got[1:] == [(1 - first, offset) for offset in range(3)]
    await asyncio.sleep(1)
    assert consumer.got[4:] == [(first, offset) for offset in range(3)]
    await consumer.close()
    assert (cluster.offsets[queue(0)], cluster.offsets[queue(1)]) == (3, 3)


@pytest.mark.parametrize(("asked_ms", "pause_ms"), [(None, 1_000), (1, 10), (99_999, 30_000), (500, 500)])
async def test_a_queue_waits_as_long_as_asked_within_limits(asked_ms: int | None, pause_ms: int) -> None:
    cluster = FakeCluster(T=1).put("T", 1)
    consumer = await orderly(cluster, answering(LATER, suspend_ms=asked_ms))
    await asyncio.sleep((pause_ms - 5) / 1000)
    assert offsets_of(consumer) == [0]
    await asyncio.sleep(0.01)
    assert offsets_of(consumer) == [0, 0]


async def test_the_failures_are_counted_and_the_last_goes_to_the_retry_topic() -> None:
    times = []

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeStatus:
        times.append((messages[0].queue_offset, messages[0].reconsume_times))
        return SUCCESS if messages[0].queue_offset else LATER

    cluster = FakeCluster(T=1).put("T", 2)
    consumer = await orderly(cluster, listen, max_reconsume_times=2, seconds=5)
    assert times == [(0, 0), (0, 1), (0, 2), (1, 0)]
    (dead,) = consumer.brokers.sent
    assert (dead.properties["RECONSUME_TIME"], dead.properties["MAX_RECONSUME_TIMES"]) == ("3", "2")


async def test_of_a_call_only_those_that_failed_too_often_go_away() -> None:
    cluster = FakeCluster(T=1).put("T", 2)
    consumer = await orderly(cluster, answering(LATER), batch_size=2, max_reconsume_times=0)
    consumer.brokers.failing = {"send_as_new"}
    await asyncio.sleep(0.5)
    consumer.brokers.failing = set()
    await asyncio.sleep(1)
    assert offsets_of(consumer) == [0, 1, 0, 1]
    assert consumer.engine.offsets("T") == {queue(): 2}


async def test_without_auto_commit_only_a_commit_stores() -> None:
    cluster = FakeCluster(T=1).put("T", 3)
    consumer = await orderly(cluster, answering(SUCCESS, SUCCESS, SUCCESS, COMMIT, auto_commit=False), seconds=1)
    assert consumer.engine.offsets("T") == {}
    cluster.put("T", 1)
    await asyncio.sleep(1)
    assert consumer.engine.offsets("T") == {queue(): 4}


async def test_a_rollback_gives_everything_since_the_last_commit_again() -> None:
    cluster = FakeCluster(T=1).put("T", 3)
    consumer = await orderly(cluster, answering(COMMIT, SUCCESS, ROLLBACK, auto_commit=False), seconds=3)
    assert offsets_of(consumer) == [0, 1, 2, 1, 2]
    assert consumer.engine.offsets("T") == {queue(): 1}


async def test_a_queue_is_not_taken_while_another_client_has_its_lock() -> None:
    cluster = FakeCluster(T=1).put("T", 1)
    cluster.locks[queue()] = "somebody"
    consumer = await orderly(cluster, seconds=5)
    assert consumer.got == []
    del cluster.locks[queue()]
    await asyncio.sleep(1.1)
    assert offsets_of(consumer) == [0]


async def test_locks_are_renewed_each_20_seconds_and_a_lost_one_stops_the_listener() -> None:
    cluster = FakeCluster(T=1)
    consumer = await orderly(cluster, seconds=30)
    cluster.locks[queue()] = "somebody"
    cluster.put("T", 1)
    await asyncio.sleep(12)
    assert offsets_of(consumer) == [0]  # the lock still counted when it came
    cluster.put("T", 1)
    await asyncio.sleep(30)
    assert offsets_of(consumer) == [0]
    cluster.locks[queue()] = "c1"
    await asyncio.sleep(21)
    assert offsets_of(consumer) == [0, 1]


async def test_a_hand_over_waits_for_the_listener_then_stores_the_offset_and_only_then_unlocks() -> None:
    cluster, pool = FakeCluster(T=2).put("T", 2, 1), ManualPool()
    first = await orderly(cluster, pool=pool, seconds=1)
    (answer,) = pool.begin()  # a listener is at work on message 0 of queue 1
    second = await orderly(cluster, client_id="c2", seconds=3)
    assert first.engine.rebalancer.owned("T") == [queue(0)]
    assert second.got == []
    cluster.events.clear()
    answer()
    await asyncio.sleep(2)
    assert cluster.events[:2] == [("store", "c1", queue(1), 1), ("unlock", "c1", queue(1))]
    assert (first.got, second.got) == ([(1, 0)], [(1, 1)])


async def test_a_listener_that_never_ends_holds_a_hand_over_for_20_seconds() -> None:
    cluster, pool = FakeCluster(T=2).put("T", 2, 1), ManualPool()
    await orderly(cluster, pool=pool, seconds=2)
    pool.begin()
    second = await orderly(cluster, client_id="c2", seconds=15)
    assert second.got == []
    await asyncio.sleep(10)
    assert offsets_of(second) == [0, 1]


async def test_order_holds_over_hand_overs_there_and_back() -> None:
    cluster = FakeCluster(T=2)
    consumed: list[tuple[int, int]] = []

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeStatus:
        consumed.extend((message.queue_id, message.queue_offset) for message in messages)
        return LATER if len(consumed) % 7 == 0 else SUCCESS

    first = await orderly(cluster, listen, suspend_ms=50)
    for _ in range(3):
        second = await orderly(cluster, listen, client_id="c2", suspend_ms=50)
        for _ in range(4):
            cluster.put("T", 5, 0)
            cluster.put("T", 5, 1)
            await asyncio.sleep(0.7)
        await second.close()
        await asyncio.sleep(2)
    await asyncio.sleep(5)
    for number in range(2):
        in_order = list(dict.fromkeys(offset for queue_id, offset in consumed if queue_id == number))
        assert in_order == list(range(60))
    await first.close()
    assert [cluster.offsets[queue(number)] for number in range(2)] == [60, 60]
    assert cluster.locks == {}


async def test_a_context_with_a_wrong_value_counts_as_a_failure_and_the_queue_goes_on() -> None:
    cluster = FakeCluster(T=1).put("T", 2)
    listener = answering(LATER, suspend_ms="500")
    consumer = await orderly(cluster, lambda messages, context: listener(messages, context), seconds=0.9)
    assert offsets_of(consumer) == [0]
    consumer.listener = answering()
    await asyncio.sleep(0.5)
    assert offsets_of(consumer) == [0, 0, 1]


async def test_a_turn_that_fails_is_followed_by_the_next() -> None:
    cluster = FakeCluster(T=1).put("T", 2)
    consumer = await orderly(cluster, answering(LATER), max_reconsume_times=0)

    async def fail(message: object) -> None:
        raise RuntimeError("the test says so")

    consumer.brokers.send_as_new = fail  # type: ignore[method-assign]
    await asyncio.sleep(2)
    assert offsets_of(consumer) == [0, 0, 1]
    assert consumer.engine.offsets("T") == {queue(): 2}


async def test_what_a_listener_does_that_was_at_work_does_not_undo_a_reset() -> None:
    """The hand-over waits for it, and stores what the operator has said."""

    cluster, pool = FakeCluster(T=1).put("T", 101), ManualPool()
    cluster.offsets[queue()] = 100
    consumer = await orderly(cluster, pool=pool, seconds=2)
    (answer,) = pool.begin()  # a listener is at work on message 100
    await consumer.engine.reset_offsets("T", {queue(): 10})
    answer()
    await asyncio.sleep(1)
    assert cluster.offsets[queue()] == 10


async def test_what_a_listener_does_after_a_forced_hand_over_does_not_undo_a_reset() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 101), ManualPool()
    cluster.offsets[queue()] = 100
    consumer = await orderly(cluster, pool=pool, seconds=2)
    (answer,) = pool.begin()  # a listener is at work on message 100
    await consumer.engine.reset_offsets("T", {queue(): 10})
    await asyncio.sleep(45)
    assert cluster.offsets[queue()] == 10
    answer()
    await asyncio.sleep(12)
    await consumer.engine.close(0)
    assert cluster.offsets[queue()] == 10


@pytest.mark.parametrize("status", [SUCCESS, LATER])
async def test_what_a_listener_says_of_a_queue_that_was_handed_over_by_force_does_not_count(
    status: ConsumeStatus,
) -> None:
    """The next consumer has its messages: they are neither stored as done, nor sent to the retry topic."""

    cluster, pool = FakeCluster(T=2).put("T", 2, 1), ManualPool()
    first = await orderly(cluster, answering(status), pool=pool, max_reconsume_times=0, seconds=2)
    (late,) = pool.begin()
    await orderly(cluster, client_id="c2", seconds=25)
    late()
    await asyncio.sleep(1)
    assert first.brokers.sent == []
    assert queue(1) not in first.engine.offsets("T")
