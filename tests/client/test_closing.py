"""A consumer that is closed while queues change hands: nothing consumed comes again, no lock stays, the group is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.errors import GroupTakenError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.pull_engine import PullEngine
from spark_mq.client.pulls import subscription
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.push_engine import PushEngine
from tests.client.fake_cluster import FIRST, Consumer, FakeBrokers, FakeCluster, ManualPool, queue
from tests.client.test_consumers import NOBODY, listen
from tests.client.test_pull_engine import brokers_of, engine_of

OPENERS: list[Callable[[str], PushConsumer | PullConsumer]] = [
    lambda group: PushConsumer(NOBODY, group, listen).__enter__(),
    lambda group: PullConsumer(NOBODY, group),
]


def delay(brokers: FakeBrokers, call: str) -> None:
    """200 ms lie between what this call does to the brokers and its answer; an offset is stored after them."""
    real = getattr(brokers, call)

    async def late(*arguments: Any, **named: Any) -> Any:
        if call == "store_offset":
            await asyncio.sleep(0.2)
            return await real(*arguments, **named)
        answer = await real(*arguments, **named)
        await asyncio.sleep(0.2)
        return answer

    setattr(brokers, call, late)


@pytest.mark.parametrize("other", ["c2", "c0"], ids=["half", "all"])  # what the other client takes over
@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
async def test_a_push_consumer_that_is_closed_during_a_hand_over_ends_it(is_orderly: bool, other: str) -> None:
    cluster = FakeCluster(T=2 if other == "c2" else 1)
    consumer = Consumer(cluster, is_orderly=is_orderly)
    delay(consumer.brokers, "store_offset")
    await consumer.begun(3)
    for each in cluster.queues["T"]:
        cluster.put("T", 5, each.queue_id)
    await asyncio.sleep(1)
    cluster.join(other)
    await asyncio.sleep(0.1)
    assert any(found.is_dropped for found in consumer.engine.rebalancer.table.values())
    await consumer.engine.close(1_000)
    assert {each: cluster.offsets[each] for each in cluster.queues["T"]} == dict.fromkeys(cluster.queues["T"], 5)
    assert cluster.locks == {}
    assert consumer.engine.rebalancer.table == {}


async def test_a_pull_consumer_that_is_closed_during_a_hand_over_ends_it() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    engine = await engine_of(cluster)
    delay(brokers_of(cluster), "store_offset")
    engine.subscriptions["T"] = subscription("T", "*", 1)
    engine.rebalance_soon()
    taken = await engine.take([], 99, 2_000)
    await engine.take(taken, 99, 2_000)
    cluster.join("c0")
    await asyncio.sleep(0.1)
    assert engine.rebalancer.table[queue()].is_dropped
    await engine.close()
    assert cluster.offsets[queue()] == 5


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
async def test_the_last_writing_of_a_push_consumer_waits_for_its_answer(is_orderly: bool) -> None:
    """The connection goes then, and what was sent one-way may go with it."""

    cluster = FakeCluster(T=2)
    consumer = Consumer(cluster, is_orderly=is_orderly)
    for each in cluster.queues["T"]:
        cluster.put("T", 5, each.queue_id)
    consumer.brokers.loses_one_way = True
    await consumer.begun(3)
    await consumer.engine.close(1_000)
    assert {each: cluster.offsets.get(each) for each in cluster.queues["T"]} == dict.fromkeys(cluster.queues["T"], 5)


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
async def test_a_message_that_is_being_given_away_is_so_before_a_consumer_is_closed(is_orderly: bool) -> None:
    cluster = FakeCluster(T=1)
    settings = replace(FIRST, max_reconsume_times=0)
    consumer = Consumer(cluster, lambda *_: ConsumeStatus.LATER, settings=settings, is_orderly=is_orderly)
    for call in ("send_back", "send_as_new"):
        setattr(consumer.brokers, call, slowly(getattr(consumer.brokers, call)))
    await consumer.begun(3)
    cluster.put("T", 1)
    await asyncio.sleep(0.1)
    assert consumer.got == [(0, 0)]
    await consumer.engine.close(1_000)
    assert len(consumer.brokers.sent) + len(consumer.brokers.sent_back) == 1
    assert cluster.offsets[queue()] == 1


def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
    """It is done half a second later."""

    async def late(*arguments: Any) -> Any:
        await asyncio.sleep(0.5)
        return await call(*arguments)

    return late


class Finishing(ManualPool):
    """Its listeners answer while it is closed, as those of threads do."""

    async def close(self, timeout_ms: int) -> bool:
        for answer in self.begin():
            answer()
        return True


async def test_the_last_writing_says_what_listeners_have_done_while_the_consumer_was_closed() -> None:
    cluster = FakeCluster(T=1).put("T", 5)
    consumer = Consumer(cluster, pool=Finishing())
    consumer.brokers.loses_one_way = True
    await consumer.begun(3)
    assert consumer.got == []
    await consumer.engine.close(1_000)
    assert len(consumer.got) == cluster.offsets.get(queue()) == 5


async def test_an_orderly_queue_goes_to_the_next_consumer_only_with_its_offset() -> None:
    """Its order would be broken: the next one would begin before what this one has done."""

    cluster = FakeCluster(T=1)
    first = Consumer(cluster, is_orderly=True)
    cluster.put("T", 5)
    first.brokers.loses_one_way = True
    await first.begun(3)
    second = Consumer(cluster, client_id="c0", is_orderly=True)  # it is before the other, and takes the queue
    await second.begun(30)
    cluster.put("T", 1)
    await asyncio.sleep(1)
    assert (first.got, second.got) == ([(0, offset) for offset in range(5)], [(0, 5)])


@pytest.mark.parametrize("how", ["close", "commit", "commit_offset", "assign"])
async def test_what_a_pull_consumer_stores_for_good_waits_for_its_answer(how: str) -> None:
    cluster = FakeCluster(T=2).put("T", 5)
    engine = await engine_of(cluster)
    brokers_of(cluster).loses_one_way = True
    engine.assign([queue(0)])
    taken = await engine.take([], 99, 1_000)
    if how == "commit":
        await engine.commit(taken)
    elif how == "commit_offset":
        await engine.commit_offset(queue(0), 5)
    else:
        engine.finish(taken)
        engine.assign([queue(1)] if how == "assign" else [queue(0)])
        await asyncio.sleep(1)
        if how == "close":
            await engine.close()
    assert cluster.offsets == {queue(0): 5}


@pytest.mark.parametrize("call", ["lock", "stored_offset"])
async def test_an_orderly_consumer_that_is_closed_while_it_takes_queues_leaves_no_lock(call: str) -> None:
    cluster = FakeCluster(T=2)
    consumer = Consumer(cluster, is_orderly=True)
    delay(consumer.brokers, call)
    await consumer.begun(0.1)
    assert cluster.locks != {}
    await consumer.engine.close(1_000)
    assert cluster.locks == {}


async def test_the_lock_of_a_queue_that_cannot_be_taken_is_given_back() -> None:
    cluster = FakeCluster(T=2)
    consumer = Consumer(cluster, is_orderly=True)
    consumer.brokers.failing = {"stored_offset"}
    await consumer.begun(0.5)
    assert cluster.locks == {}
    consumer.brokers.failing = set()
    await asyncio.sleep(1)
    assert consumer.engine.rebalancer.owned("T") == [queue(0), queue(1)]


@pytest.mark.parametrize("opened", OPENERS, ids=["push", "pull"])
def test_a_consumer_whose_end_fails_leaves_its_group_all_the_same(
    opened: Callable[[str], PushConsumer | PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any) -> bool:
        raise RuntimeError("the test says so")

    with PullConsumer(NOBODY, "other"):
        consumer = opened("g")
        with monkeypatch.context() as patched:
            patched.setattr(PushEngine, "close", fail)
            patched.setattr(PullEngine, "close", fail)
            with pytest.raises(RuntimeError, match="the test says so"):
                consumer.close()
        opened("g").close()


@pytest.mark.parametrize("opened", OPENERS, ids=["push", "pull"])
def test_a_consumer_whose_start_fails_is_no_member(
    opened: Callable[[str], PushConsumer | PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any) -> None:
        raise RuntimeError("the test says so")

    with PullConsumer(NOBODY, "other"):
        with monkeypatch.context() as patched:
            patched.setattr(ClientInstance, "send_heartbeat", fail)
            with pytest.raises(RuntimeError, match="the test says so"):
                opened("g")
        opened("g").close()


@pytest.mark.parametrize("opened", OPENERS, ids=["push", "pull"])
def test_a_refused_consumer_does_not_put_the_groups_first_one_out(
    opened: Callable[[str], PushConsumer | PullConsumer],
) -> None:
    with PullConsumer(NOBODY, "g"):
        for _ in range(2):
            with pytest.raises(GroupTakenError):
                opened("g")


def test_closing_from_another_thread_ends_a_poll_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, given = threading.Event(), list[Any]()
    take = PullEngine.take

    async def noted(self: PullEngine, *arguments: Any) -> Any:
        waits.set()
        return await take(self, *arguments)

    monkeypatch.setattr(PullEngine, "take", noted)
    consumer = PullConsumer(NOBODY, "g")
    poll = threading.Thread(target=lambda: given.append(consumer.poll(120_000)), daemon=True)
    poll.start()
    assert waits.wait(10)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    for thread in (closing, poll):
        thread.join(10)
    assert (closing.is_alive(), poll.is_alive(), given) == (False, False, [[]])
