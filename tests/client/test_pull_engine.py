"""A pull consumer over a cluster in memory, in virtual time: what it gives, what it counts as consumed, where it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.errors import MessageQueueNotFoundError, SeekError
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import RemoteOffsetStore
from spark_mq.client.pull_engine import PullEngine
from spark_mq.client.pulls import subscription
from spark_mq.client.settings import ConsumeFrom, PullSettings
from tests.client.fake_cluster import FakeBrokers, FakeCluster, queue
from tests.client.virtual_time import clock_ms

FIRST = PullSettings(consume_from=ConsumeFrom.FIRST)


async def engine_of(
    cluster: FakeCluster,
    client_id: str = "c1",
    settings: PullSettings = FIRST,
    *,
    assigned: Sequence[int] = (),
    **given: Any,
) -> PullEngine:
    engines: list[PullEngine] = []
    brokers = cluster.join(client_id, lambda: engines[0].rebalance_soon())
    engines.append(PullEngine(brokers, RemoteOffsetStore(brokers), settings, clock_ms, **given))
    await engines[0].start()
    if assigned:
        engines[0].assign([queue(number) for number in assigned])
    return engines[0]


def brokers_of(cluster: FakeCluster, client_id: str = "c1") -> FakeBrokers:
    return cluster.clients[client_id]


def offsets_of(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


async def test_what_was_given_is_consumed_when_the_program_comes_back_and_stored_when_it_is_time() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    engine = await engine_of(cluster, assigned=[0])
    first = await engine.take([], 3, 1_000)
    assert offsets_of(first) == [0, 1, 2]
    await asyncio.sleep(11)
    assert cluster.offsets == {}
    second = await engine.take(first, 3, 1_000)  # at 11 s; the next writing is at 15 s
    assert offsets_of(second) == [3, 4]
    await asyncio.sleep(4.5)
    assert cluster.offsets[queue()] == 3
    assert await engine.take(second, 3, 0) == []
    await asyncio.sleep(5)
    assert cluster.offsets[queue()] == 3  # 5 s have not passed since the last time
    await engine.take([], 3, 0)
    await asyncio.sleep(5)
    assert cluster.offsets[queue()] == 5


async def test_a_clock_that_was_set_back_does_not_keep_what_is_consumed_from_being_stored() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    back_ms = 0
    brokers = cluster.join("c1", lambda: None)
    engine = PullEngine(brokers, RemoteOffsetStore(brokers), FIRST, lambda: clock_ms() - back_ms)
    await engine.start()
    engine.assign([queue()])
    taken = await engine.take([], 3, 1_000)
    back_ms = 3_600_000
    await asyncio.sleep(6)
    await engine.take(taken, 3, 0)
    await asyncio.sleep(6)
    assert cluster.offsets[queue()] == 3
    await engine.close()


async def test_without_auto_commit_only_a_commit_stores() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    engine = await engine_of(cluster, settings=replace(FIRST, auto_commit=False), assigned=[0])
    taken = await engine.take([], 5, 1_000)
    await engine.take(taken, 5, 30_000)
    assert cluster.offsets == {}
    await engine.commit([])
    assert cluster.offsets[queue()] == 5
    await engine.commit_offset(queue(), 2)
    assert cluster.offsets[queue()] == 2
    assert await engine.committed(queue()) == 2


async def test_what_was_given_and_never_consumed_comes_again() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    first = await engine_of(cluster, assigned=[0])
    done = await first.take([], 2, 1_000)
    await first.commit(done)
    assert offsets_of(await first.take([], 2, 1_000)) == [2, 3]
    await first.close()
    cluster.leave("c1")
    second = await engine_of(cluster, "c2", assigned=[0])
    assert offsets_of(await second.take([], 9, 1_000)) == [2, 3, 4]


async def test_a_take_waits_for_messages_and_no_longer_than_asked() -> None:
    cluster = FakeCluster(T=1)
    engine = await engine_of(cluster, assigned=[0])
    begun = clock_ms()
    assert await engine.take([], 5, 2_000) == []
    assert clock_ms() - begun == 2_000
    asyncio.get_running_loop().call_later(3, cluster.put, "T", 1)
    assert offsets_of(await engine.take([], 5, 60_000)) == [0]
    assert clock_ms() - begun == 5_000


async def test_a_seek_forgets_what_is_buffered_and_goes_on_there() -> None:
    cluster = FakeCluster(T=1).put("T", 50)
    engine = await engine_of(cluster, assigned=[0])
    done = await engine.take([], 10, 1_000)
    await engine.seek(queue(), 45)
    assert offsets_of(await engine.take(done, 100, 1_000)) == [45, 46, 47, 48, 49]
    await engine.seek(queue(), 3)
    await engine.commit([])
    assert cluster.offsets[queue()] == 3
    assert offsets_of(await engine.take([], 2, 1_000)) == [3, 4]


async def test_seeks_outside_of_the_queue_and_of_other_queues_are_refused() -> None:
    cluster = FakeCluster(T=2).put("T", 50)
    cluster.first_offsets[queue()] = 10
    engine = await engine_of(cluster, assigned=[0])
    for offset in (9, 51):
        with pytest.raises(SeekError, match="outside"):
            await engine.seek(queue(), offset)
    with pytest.raises(MessageQueueNotFoundError, match="not assigned"):
        await engine.seek(queue(1), 0)


async def test_a_paused_queue_is_not_pulled_until_it_is_resumed() -> None:
    cluster = FakeCluster(T=2)
    engine = await engine_of(cluster, assigned=[0, 1])
    engine.pause([queue(0)])
    await asyncio.sleep(30)
    cluster.put("T", 1, 0)
    cluster.put("T", 1, 1)
    assert [message.queue_id for message in await engine.take([], 9, 60_000)] == [1]
    engine.resume([queue(0)])
    assert [message.queue_id for message in await engine.take([], 9, 1_000)] == [0]


async def test_pulling_pauses_when_too_much_is_buffered() -> None:
    cluster = FakeCluster(T=4)
    for number in range(4):
        cluster.put("T", 500, number)
    engine = await engine_of(cluster, settings=replace(FIRST, buffer_limit=300))
    engine.assign([queue(number) for number in range(4)])
    await asyncio.sleep(10)
    assert len(await engine.take([], 9_999, 0)) <= 300 + 4 * 32


async def test_an_offset_outside_the_queue_is_replaced_by_the_brokers() -> None:
    cluster = FakeCluster(T=1).put("T", 10)
    cluster.first_offsets[queue()] = 7
    engine = await engine_of(cluster, assigned=[0])
    assert offsets_of(await engine.take([], 9, 1_000)) == [7, 8, 9]


async def test_assigning_others_gives_up_those_before() -> None:
    cluster = FakeCluster(T=2)
    engine = await engine_of(cluster, assigned=[0])
    engine.assign([queue(1)])
    cluster.put("T", 1, 0)
    cluster.put("T", 1, 1)
    await asyncio.sleep(30)
    assert engine.assignment() == [queue(1)]
    assert [message.queue_id for message in await engine.take([], 9, 1_000)] == [1]


async def test_what_was_consumed_of_a_queue_that_is_assigned_no_more_is_stored() -> None:
    cluster = FakeCluster(T=2).put("T", 5)
    engine = await engine_of(cluster, assigned=[0])
    taken = await engine.take([], 99, 1_000)
    await engine.take(taken, 99, 0)
    engine.assign([queue(1)])
    await asyncio.sleep(1)
    assert (cluster.offsets[queue(0)], engine.offsets("T")) == (5, {})
    await engine.close()


@pytest.mark.parametrize("then", ["closed", "assigned again"])
async def test_what_is_still_being_stored_is_waited_for(then: str) -> None:
    cluster = FakeCluster(T=2).put("T", 5)
    engine = await engine_of(cluster)
    brokers = brokers_of(cluster)
    store = brokers.store_offset

    async def slowly(*arguments: Any, **named: Any) -> None:
        await asyncio.sleep(0.5)
        await store(*arguments, **named)

    brokers.store_offset = slowly  # type: ignore[method-assign]
    engine.assign([queue(0)])
    taken = await engine.take([], 99, 1_000)
    await engine.take(taken, 99, 0)
    engine.assign([])
    await asyncio.sleep(0)
    if then == "closed":
        await engine.close()
        assert cluster.offsets[queue(0)] == 5
    else:
        engine.assign([queue(0)])
        assert await engine.take([], 99, 5_000) == []


async def test_a_failure_that_nobody_expected_ends_neither_pulls_nor_writings() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    engine = await engine_of(cluster)
    brokers = brokers_of(cluster)
    pull, store = brokers.pull, brokers.store_offset

    async def fail(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("the test says so")

    brokers.pull = brokers.store_offset = fail  # type: ignore[method-assign]
    engine.assign([queue()])
    await asyncio.sleep(0.5)
    brokers.pull = pull  # type: ignore[method-assign]
    taken = await engine.take([], 99, 3_000)
    assert offsets_of(taken) == [0, 1, 2, 3, 4]
    await asyncio.sleep(5)
    await engine.take(taken, 99, 0)
    await asyncio.sleep(5)
    brokers.store_offset = store  # type: ignore[method-assign]
    await asyncio.sleep(5)
    assert cluster.offsets[queue()] == 5


async def test_two_subscribers_share_and_the_offset_goes_with_the_queue() -> None:
    cluster = FakeCluster(T=2).put("T", 4, 0)
    cluster.put("T", 4, 1)
    first = await engine_of(cluster)
    first.subscriptions["T"] = subscription("T", "*", 1)
    first.rebalance_soon()
    taken = await first.take([], 99, 2_000)
    taken += await first.take([], 99, 100)
    assert len(taken) == 8
    await first.commit(taken)
    second = await engine_of(cluster, "c2")
    second.subscriptions["T"] = subscription("T", "*", 1)
    second.rebalance_soon()
    await asyncio.sleep(5)
    assert (first.assignment(), second.assignment()) == ([queue(0)], [queue(1)])
    cluster.put("T", 1, 1)
    assert offsets_of(await second.take([], 99, 30_000)) == [4]


async def test_the_program_hears_which_queues_of_a_topic_are_its_own() -> None:
    cluster, heard = FakeCluster(T=2), list[tuple[Any, ...]]()
    first = await engine_of(cluster, on_share=lambda *share: heard.append(share))
    first.subscriptions["T"] = subscription("T", "*", 1)
    first.rebalance_soon()
    await asyncio.sleep(2)
    assert heard == [("T", [queue(0), queue(1)], [queue(0), queue(1)])]
    second = await engine_of(cluster, "c2")
    second.subscriptions["T"] = subscription("T", "*", 1)
    await asyncio.sleep(2)
    assert heard[1:] == [("T", [queue(0), queue(1)], [queue(0)])]


async def test_what_a_filter_takes_out_is_not_polled_and_counts_as_consumed() -> None:
    async def none_of(messages: list[MessageExt], where: MessageQueue) -> list[MessageExt]:
        return [message for message in messages if message.queue_offset == 1]

    cluster = FakeCluster(T=1).put("T", 4)
    engine = await engine_of(cluster, assigned=[0], filtered=none_of)
    taken = await engine.take([], 99, 2_000)
    assert offsets_of(taken) == [1]
    await engine.commit(taken)
    await asyncio.sleep(25)  # until the next pull has found nothing
    await engine.commit([])
    assert cluster.offsets[queue(0)] == 4


async def test_lite_pulls_carry_the_subscription_and_no_offset() -> None:
    cluster = FakeCluster(T=1)
    engine = await engine_of(cluster)
    engine.expressions = {"T": subscription("T", "A", 7)}
    engine.assign([queue()])
    await asyncio.sleep(1)
    (pull,) = brokers_of(cluster).pulls
    assert (pull.sys_flag(at_master=True), pull.subscription.expression, pull.suspend_ms) == (22, "A", 20_000)


async def test_nothing_more_comes_of_a_topic_that_is_subscribed_to_no_more() -> None:
    """Above all nothing that was never subscribed to, in the second before the next rebalance gives the queues up."""

    cluster = FakeCluster(T=1)
    engine = await engine_of(cluster)
    engine.subscriptions["T"] = subscription("T", "A", 1)
    engine.rebalance_soon()
    cluster.put("T", 1, TAGS="A")
    taken = await engine.take([], 9, 500)
    assert offsets_of(taken) == [0]
    del engine.subscriptions["T"]
    engine.rebalance_soon()
    for _ in range(3):
        cluster.put("T", 1, TAGS="B")
        await asyncio.sleep(0.1)
    assert await engine.take(taken, 9, 0) == []
    await asyncio.sleep(5)
    assert engine.assignment() == []
    assert cluster.offsets.get(queue()) == 1
    await engine.close()
