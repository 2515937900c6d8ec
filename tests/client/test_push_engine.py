"""A push consumer's duties over a cluster in memory, in virtual time; and where a group begins (computePullFromWhereWithException)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from spark_mq.client.message import MessageQueue
from spark_mq.client.pulls import subscription
from spark_mq.client.rebalance import Lookup, first_offset
from spark_mq.client.settings import ConsumeFrom
from spark_mq.remoting.consumers import MessageModel
from tests.client.fake_cluster import FIRST, Consumer, FakeCluster, ManualPool, queue

RETRY = MessageQueue("%RETRY%G", "broker-a", 0)


async def test_a_consumer_alone_reads_all_queues_and_stores_where_it_is() -> None:
    cluster = FakeCluster(T=4)
    for number in range(4):
        cluster.put("T", 50, number)
    consumer = await Consumer(cluster).begun(16)
    assert consumer.engine.assignment() == [RETRY, *map(queue, range(4))]
    assert sorted(consumer.got) == [(number, offset) for number in range(4) for offset in range(50)]
    assert {each: cluster.offsets[each] for each in map(queue, range(4))} == dict.fromkeys(map(queue, range(4)), 50)


async def test_two_consumers_share_and_one_takes_over_what_the_other_leaves() -> None:
    cluster = FakeCluster(T=4)
    first, second = Consumer(cluster), Consumer(cluster, client_id="c2")
    for consumer in (first, second):
        await consumer.engine.start()
    await asyncio.sleep(5)
    assert first.engine.rebalancer.owned("T") == [queue(0), queue(1)]
    assert second.engine.rebalancer.owned("T") == [queue(2), queue(3)]
    cluster.put("T", 3, 3)
    await asyncio.sleep(1)
    await second.close()
    cluster.put("T", 2, 3)
    await asyncio.sleep(5)
    assert first.engine.rebalancer.owned("T") == [queue(number) for number in range(4)]
    assert (first.got, second.got) == ([(3, 3), (3, 4)], [(3, 0), (3, 1), (3, 2)])


async def test_the_group_is_shared_anew_each_20_seconds_without_a_notice() -> None:
    cluster = FakeCluster(T=2)
    consumer = await Consumer(cluster).begun(2)
    cluster.queues["T"] = [*cluster.queues["T"], queue(2)]
    cluster.logs[queue(2)] = []
    await asyncio.sleep(17)
    assert len(consumer.engine.rebalancer.owned("T")) == 2
    await asyncio.sleep(2)
    assert len(consumer.engine.rebalancer.owned("T")) == 3


@pytest.mark.parametrize("call", ["client_ids", "stored_offset"])
async def test_a_broker_that_does_not_answer_is_asked_again_each_second(call: str) -> None:
    cluster = FakeCluster(T=2)
    consumer = Consumer(cluster)
    consumer.brokers.failing = {call}
    await consumer.begun(3)
    assert consumer.engine.assignment() == []
    consumer.brokers.failing = set()
    await asyncio.sleep(1.1)
    assert len(consumer.engine.rebalancer.owned("T")) == 2


async def test_the_next_pull_goes_to_the_broker_that_was_suggested() -> None:
    cluster = FakeCluster(T=1).put("T", 40)
    cluster.suggested_broker_id = 1
    consumer = Consumer(cluster)
    del consumer.engine.subscriptions["%RETRY%G"]
    await consumer.begun(1)
    assert consumer.brokers.pulled_from == [0, 1, 1]


async def test_the_program_is_told_when_other_queues_are_read() -> None:
    told: list[tuple[str, int, int]] = []

    cluster = FakeCluster(T=4)
    await Consumer(cluster, queue_listener=lambda topic, every, own: told.append((topic, len(every), len(own)))).begun(
        2
    )
    await Consumer(cluster, client_id="c2").begun(3)
    assert [each for each in told if each[0] == "T"] == [("T", 4, 4), ("T", 4, 2)]


async def test_a_pull_that_fails_is_tried_again_after_a_second() -> None:
    cluster = FakeCluster(T=1)
    consumer = Consumer(cluster)
    consumer.brokers.failing = {"pull"}
    await consumer.engine.start()
    cluster.put("T", 1)
    await asyncio.sleep(2.5)
    consumer.brokers.failing = set()
    await asyncio.sleep(1)
    assert consumer.got == [(0, 0)]


async def test_a_new_subscription_version_is_told_before_the_first_pull() -> None:
    cluster = FakeCluster(T=1)
    consumer = await Consumer(cluster).begun(1)
    assert consumer.brokers.pulls[0].subscription.version == consumer.engine.subscriptions["T"].version > 1


async def test_pulls_carry_the_offset_once_there_is_one() -> None:
    cluster = FakeCluster(T=1).put("T", 40)
    consumer = await Consumer(cluster).begun(17)
    of_topic = [pull for pull in consumer.brokers.pulls if pull.queue == queue()]
    assert [(pull.offset, pull.committed_offset) for pull in of_topic][:2] == [(0, None), (32, None)]
    assert (of_topic[-1].offset, of_topic[-1].committed_offset) == (40, 40)


async def test_an_offset_outside_the_queue_is_replaced_by_the_brokers_and_the_queue_read_on() -> None:
    cluster = FakeCluster(T=1).put("T", 10)
    cluster.first_offsets[queue()] = 7
    consumer = await Consumer(cluster).begun(5)
    assert consumer.got == [(0, 7), (0, 8), (0, 9)]


async def test_the_offset_moves_over_what_the_brokers_filter_leaves_out() -> None:
    cluster = FakeCluster(T=1).put("T", 5, TAGS="A")
    consumer = Consumer(cluster)
    consumer.engine.subscriptions["T"] = subscription("T", "B", 1)
    await consumer.begun(16)
    assert consumer.got == []
    assert cluster.offsets[queue()] == 5


async def test_too_many_unfinished_messages_stop_the_pulls_until_listeners_answer() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 500), ManualPool()
    await Consumer(cluster, settings=replace(FIRST, queue_limit=100), pool=pool).begun(10)
    assert len(pool.held) == 128
    for answer in pool.begin():
        answer()
    await asyncio.sleep(1)
    assert len(pool.held) == 128


async def test_a_paused_consumer_pulls_nothing_until_it_is_resumed() -> None:
    cluster = FakeCluster(T=1)
    consumer = await Consumer(cluster).begun(16)
    consumer.engine.pause()
    await asyncio.sleep(16)
    cluster.put("T", 1)
    await asyncio.sleep(60)
    assert consumer.got == []
    consumer.engine.resume()
    await asyncio.sleep(2)
    assert consumer.got == [(0, 0)]


async def test_unsubscribing_gives_the_topics_queues_up() -> None:
    cluster = FakeCluster(T=2)
    consumer = await Consumer(cluster).begun(2)
    del consumer.engine.subscriptions["T"]
    consumer.engine.rebalance_soon()
    await asyncio.sleep(2)
    assert consumer.engine.assignment() == [RETRY]


async def test_a_reset_goes_on_elsewhere_whatever_listeners_at_work_say() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 10), ManualPool()
    consumer = await Consumer(cluster, pool=pool).begun(1)
    answers = pool.begin()
    await consumer.engine.reset_offsets("T", {queue(): 4})
    for answer in answers:
        answer()
    await asyncio.sleep(3)
    pool.begin()
    assert [offset for _, offset in consumer.got[10:]] == [4, 5, 6, 7, 8, 9]


async def test_closing_stores_what_is_done_and_leaves_the_rest_to_the_next_consumer() -> None:
    cluster, pool = FakeCluster(T=1).put("T", 10), ManualPool()
    consumer = await Consumer(cluster, pool=pool).begun(1)
    for answer in pool.begin()[:4]:
        answer()
    await consumer.close()
    assert cluster.offsets[queue()] == 4
    second = await Consumer(cluster, client_id="c2").begun(1)
    assert [offset for _, offset in second.got] == [4, 5, 6, 7, 8, 9]


async def test_every_client_of_a_broadcast_gets_everything() -> None:
    cluster = FakeCluster(T=2)
    settings = replace(FIRST, model=MessageModel.BROADCASTING)
    consumers = [Consumer(cluster, client_id=client_id, settings=settings) for client_id in ("c1", "c2")]
    for consumer in consumers:
        await consumer.engine.start()
    cluster.put("T", 3, 1)
    await asyncio.sleep(5)
    assert [consumer.got for consumer in consumers] == [[(1, 0), (1, 1), (1, 2)]] * 2
    assert not any(pull.sys_flag(at_master=True) & 1 for pull in consumers[0].brokers.pulls)


@pytest.mark.parametrize("where", ConsumeFrom)
@pytest.mark.parametrize("is_retry_topic", [False, True])
@pytest.mark.parametrize("stored", [0, 7])
def test_a_stored_offset_wins(where: ConsumeFrom, is_retry_topic: bool, stored: int) -> None:
    assert first_offset(stored, where, is_retry_topic=is_retry_topic) == stored


@pytest.mark.parametrize(
    ("where", "of_topic", "of_retry_topic"),
    [
        (ConsumeFrom.LAST, Lookup.END, 0),
        (ConsumeFrom.FIRST, 0, 0),
        (ConsumeFrom.TIMESTAMP, Lookup.TIME, Lookup.END),
    ],
)
def test_a_new_group_begins_where_it_asks_to(
    where: ConsumeFrom, of_topic: int | Lookup, of_retry_topic: int | Lookup
) -> None:
    assert first_offset(None, where, is_retry_topic=False) == of_topic
    assert first_offset(None, where, is_retry_topic=True) == of_retry_topic
