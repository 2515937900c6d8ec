"""What becomes of messages that a concurrent listener failed, as in Java's ConsumeMessageConcurrentlyService."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus, consumed_count
from spark_mq.client.message import MessageExt, retry_message
from spark_mq.remoting.consumers import MessageModel
from tests.client.fake_cluster import FIRST, Consumer, FakeCluster, ManualPool, queue, received


def failing(*offsets: int) -> Any:
    """A listener that fails messages at these offsets."""

    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        failed = any(message.queue_offset in offsets for message in messages)
        return ConsumeStatus.LATER if failed else ConsumeStatus.SUCCESS

    return listen


def raising(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
    raise SystemExit("a listener")


def silent(messages: Sequence[MessageExt], context: ConcurrentContext) -> Any:
    return None


async def consumed(listener: Any, count: int = 3, *, seconds: float = 2, **properties: str) -> Consumer:
    cluster = FakeCluster(T=1).put("T", count, **properties)
    consumer = await Consumer(cluster, listener).begun()
    await asyncio.sleep(seconds)
    return consumer


async def test_a_failed_message_is_sent_back_and_counts_as_done() -> None:
    consumer = await consumed(failing(1), seconds=11)
    assert [(message.queue_offset, *rest) for message, *rest in consumer.brokers.sent_back] == [(1, "T", 0, 16)]
    assert consumer.cluster.offsets[queue()] == 3


@pytest.mark.parametrize(
    ("says", "delay_level"),
    [({"acknowledged": "2"}, 0), ({"acknowledged": 1.5}, 0), ({"acknowledged": "1", "delay_level": 3}, 3)]
    + [({"delay_level": wrong}, 0) for wrong in (None, "3", 2**40)],
)
async def test_a_context_with_wrong_values_counts_as_a_failure(says: dict[str, Any], delay_level: int) -> None:
    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        for name, value in says.items():
            setattr(context, name, value)
        return ConsumeStatus.SUCCESS

    consumer = await consumed(listen, 1)
    assert [level for _, _, level, _ in consumer.brokers.sent_back] == [delay_level]


@pytest.mark.parametrize("listener", [raising, silent])
async def test_an_exception_and_no_answer_count_as_failures(listener: Any) -> None:
    consumer = await consumed(listener)
    assert [message.queue_offset for message, *_ in consumer.brokers.sent_back] == [0, 1, 2]


async def test_the_listener_may_choose_the_delay_and_how_many_it_consumed() -> None:
    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        context.acknowledged, context.delay_level = 1, 5
        return ConsumeStatus.SUCCESS

    cluster = FakeCluster(T=1).put("T", 3)
    consumer = await Consumer(cluster, listen, settings=replace(FIRST, batch_size=3)).begun(1)
    assert [(message.queue_offset, level) for message, _, level, _ in consumer.brokers.sent_back] == [
        (1, 5),
        (2, 5),
    ]


@pytest.mark.parametrize(
    ("status", "acknowledged", "consumed"),
    [
        (ConsumeStatus.SUCCESS, None, 4),
        (ConsumeStatus.SUCCESS, 2, 2),
        (ConsumeStatus.SUCCESS, 9, 4),
        (ConsumeStatus.SUCCESS, -1, 0),
        (ConsumeStatus.LATER, 3, 0),
        (ConsumeStatus.COMMIT, None, 4),
        (ConsumeStatus.ROLLBACK, None, 0),
    ],
)
def test_how_many_of_four_are_consumed(status: ConsumeStatus, acknowledged: int | None, consumed: int) -> None:
    assert consumed_count(status, acknowledged, 4) == consumed


async def test_what_cannot_be_sent_back_is_sent_as_a_new_message() -> None:
    cluster = FakeCluster(T=1).put("T", 2, TAGS="A")
    consumer = Consumer(cluster, failing(0))
    consumer.brokers.failing = {"send_back"}
    await consumer.begun(11)
    (made,) = consumer.brokers.sent
    assert (made.topic, made.properties["RECONSUME_TIME"], made.properties["DELAY"]) == ("%RETRY%G", "1", "3")
    assert cluster.offsets[queue()] == 2


async def test_what_cannot_be_sent_at_all_is_tried_here_again_after_five_seconds_and_holds_the_offset() -> None:
    seen = []

    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        seen.append((messages[0].queue_offset, messages[0].reconsume_times))
        return ConsumeStatus.SUCCESS if messages[0].queue_offset or len(seen) > 4 else ConsumeStatus.LATER

    cluster = FakeCluster(T=1).put("T", 3)
    consumer = Consumer(cluster, listen)
    consumer.brokers.failing = {"send_back", "send_as_new"}
    await consumer.begun(4)
    assert seen == [(0, 0), (1, 0), (2, 0)]
    await asyncio.sleep(5)
    assert seen[3:] == [(0, 1)]
    await consumer.engine.write_offsets()
    assert cluster.offsets[queue()] == 0
    await asyncio.sleep(5)
    await consumer.engine.write_offsets()
    assert seen[4:] == [(0, 2)]
    assert cluster.offsets[queue()] == 3


async def test_a_message_that_failed_here_before_it_was_too_long_in_work_is_sent_back_with_its_count() -> None:
    """Else it would begin its tries anew, and never become a dead letter."""

    cluster, pool = FakeCluster(T=1).put("T", 1), ManualPool()
    consumer = await Consumer(cluster, failing(0), pool=pool).begun(1)
    consumer.brokers.failing = {"send_back", "send_as_new"}
    (failed,) = pool.begin()
    failed()
    await asyncio.sleep(6)
    pool.begin()  # again, and this time it never answers
    consumer.brokers.failing = set()
    await asyncio.sleep(31 * 60)
    assert [message.reconsume_times for message, *_ in consumer.brokers.sent_back] == [1]


async def test_a_message_too_long_in_work_is_sent_back_and_its_late_answer_changes_nothing() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 2), ManualPool()
    consumer = await Consumer(cluster, failing(0), pool=pool).begun(1)
    late, prompt = pool.begin()
    prompt()
    await asyncio.sleep(29 * 60)
    assert consumer.brokers.sent_back == []
    await asyncio.sleep(2 * 60)
    assert [(message.queue_offset, level) for message, _, level, _ in consumer.brokers.sent_back] == [(0, 3)]
    late()
    await asyncio.sleep(6)
    assert len(consumer.brokers.sent_back) == 1
    assert cluster.offsets[queue()] == 2


async def test_an_answer_for_a_queue_that_was_given_up_changes_nothing() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 2), ManualPool()
    consumer = await Consumer(cluster, failing(0), pool=pool).begun(1)
    answers = pool.begin()
    consumer.engine.rebalancer.drop(queue())
    for answer in answers:
        answer()
    await asyncio.sleep(0)
    assert consumer.brokers.sent_back == []
    assert queue() not in cluster.offsets


async def test_a_broadcast_message_that_failed_is_dropped() -> None:
    cluster = FakeCluster(T=1).put("T", 2)
    consumer = await Consumer(cluster, failing(0), settings=replace(FIRST, model=MessageModel.BROADCASTING)).begun(11)
    assert consumer.brokers.sent_back == []
    assert consumer.engine.offsets("T") == {queue(): 2}


async def test_a_retried_message_shows_the_topic_of_its_first_try() -> None:
    seen: list[MessageExt] = []

    def listen(messages: Sequence[MessageExt], context: ConcurrentContext) -> ConsumeStatus:
        seen.extend(messages)
        return ConsumeStatus.LATER

    cluster = FakeCluster(T=1).put("%RETRY%G", 1, RETRY_TOPIC="T")
    consumer = await Consumer(cluster, listen).begun(1)
    assert (seen[0].topic, seen[0].queue.topic) == ("T", "%RETRY%G")
    assert [topic for _, topic, *_ in consumer.brokers.sent_back] == ["T"]


def test_the_new_message_says_where_it_comes_from_and_how_often_it_failed() -> None:
    failed = received(5, reconsume_times=2, TAGS="A", UNIQ_KEY="id", TRAN_MSG="true", own="x")
    made = retry_message(failed, "G", "ns%T", 16)
    assert (made.topic, made.body) == ("%RETRY%G", b"body")
    assert made.properties == {
        "TAGS": "A",
        "UNIQ_KEY": "id",
        "own": "x",
        "ORIGIN_MESSAGE_ID": "id",
        "RETRY_TOPIC": "ns%T",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "5",
    }


def test_the_first_id_is_kept_over_many_tries() -> None:
    failed = received(5, UNIQ_KEY="second", ORIGIN_MESSAGE_ID="first")
    assert retry_message(failed, "G", "T", 1).properties["ORIGIN_MESSAGE_ID"] == "first"
