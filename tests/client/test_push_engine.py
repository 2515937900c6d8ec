"""A push consumer's duties over a cluster in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import RemoteOffsetStore
from spark_mq.client.pulls import subscription
from spark_mq.client.push_engine import Listeners, PushEngine
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from spark_mq.remoting.client_bodies import MessageModel
from tests.client.fake_cluster import GROUP, FakeCluster, InlinePool, ManualPool
from tests.client.virtual_time import clock_ms, play

Listener = Callable[[Sequence[MessageExt], Any], ConsumeStatus]
FIRST = PushSettings(consume_from=ConsumeFrom.FIRST)
RETRY = MessageQueue("%RETRY%G", "broker-a", 0)


class Consumer:
    """An engine, what its listener got, and the client that it is in the cluster."""

    def __init__(
        self,
        cluster: FakeCluster,
        listener: Listener | None = None,
        client_id: str = "c1",
        settings: PushSettings = FIRST,
        *,
        is_orderly: bool = False,
        pool: InlinePool | None = None,
        queue_listener: Any = None,
    ) -> None:
        self.got: list[tuple[int, int]] = []
        self.cluster = cluster
        self.client_id = client_id
        self.brokers = cluster.join(client_id, lambda: self.engine.rebalance_soon())
        self.listener = listener or (lambda messages, context: ConsumeStatus.SUCCESS)
        given = (None, self.listen) if is_orderly else (self.listen, None)
        listeners = Listeners(*given, queue_listener)
        offsets = RemoteOffsetStore(self.brokers)
        self.engine = PushEngine(
            self.brokers,
            offsets,
            pool or InlinePool(),
            GROUP,
            listeners,
            settings,
            ClientSettings("127.0.0.1:9876"),
            clock_ms,
        )
        for topic in ("T", "%RETRY%G"):
            self.engine.subscriptions[topic] = subscription(topic, "*", 1)

    def listen(self, messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        self.got += [(message.queue_id, message.queue_offset) for message in messages]
        return self.listener(messages, context)

    async def close(self) -> None:
        await self.engine.close(1_000)
        self.cluster.leave(self.client_id)


def queue(number: int = 0) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


def test_a_consumer_alone_reads_all_queues_and_stores_where_it_is() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=4)
        for number in range(4):
            cluster.put("T", 50, number)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(16)
        assert consumer.engine.assignment() == [RETRY, *map(queue, range(4))]
        assert sorted(consumer.got) == [(number, offset) for number in range(4) for offset in range(50)]
        assert {each: cluster.offsets[each] for each in map(queue, range(4))} == dict.fromkeys(map(queue, range(4)), 50)

    play(story())


def test_two_consumers_share_and_one_takes_over_what_the_other_leaves() -> None:
    async def story() -> None:
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

    play(story())


def test_the_group_is_shared_anew_each_20_seconds_without_a_notice() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=2)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(2)
        cluster.queues["T"] = [*cluster.queues["T"], queue(2)]
        cluster.logs[queue(2)] = []
        await asyncio.sleep(17)
        assert len(consumer.engine.rebalancer.owned("T")) == 2
        await asyncio.sleep(2)
        assert len(consumer.engine.rebalancer.owned("T")) == 3

    play(story())


@pytest.mark.parametrize("call", ["client_ids", "stored_offset"])
def test_a_broker_that_does_not_answer_is_asked_again_each_second(call: str) -> None:
    async def story() -> None:
        cluster = FakeCluster(T=2)
        consumer = Consumer(cluster)
        consumer.brokers.failing = {call}
        await consumer.engine.start()
        await asyncio.sleep(3)
        assert consumer.engine.assignment() == []
        consumer.brokers.failing = set()
        await asyncio.sleep(1.1)
        assert len(consumer.engine.rebalancer.owned("T")) == 2

    play(story())


def test_the_next_pull_goes_to_the_broker_that_was_suggested() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        cluster.put("T", 40)
        cluster.suggested_broker_id = 1
        consumer = Consumer(cluster)
        del consumer.engine.subscriptions["%RETRY%G"]
        await consumer.engine.start()
        await asyncio.sleep(1)
        assert consumer.brokers.pulled_from == [0, 1, 1]

    play(story())


def test_the_program_is_told_when_other_queues_are_read() -> None:
    told: list[tuple[str, int, int]] = []

    async def story() -> None:
        cluster = FakeCluster(T=4)
        first = Consumer(cluster, queue_listener=lambda topic, every, own: told.append((topic, len(every), len(own))))
        await first.engine.start()
        await asyncio.sleep(2)
        second = Consumer(cluster, client_id="c2")
        await second.engine.start()
        await asyncio.sleep(3)
        assert [each for each in told if each[0] == "T"] == [("T", 4, 4), ("T", 4, 2)]

    play(story())


def test_a_pull_that_fails_is_tried_again_after_a_second() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        consumer = Consumer(cluster)
        consumer.brokers.failing = {"pull"}
        await consumer.engine.start()
        cluster.put("T", 1)
        await asyncio.sleep(2.5)
        consumer.brokers.failing = set()
        await asyncio.sleep(1)
        assert consumer.got == [(0, 0)]

    play(story())


def test_a_new_subscription_version_is_told_before_the_first_pull() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(1)
        assert consumer.brokers.pulls[0].subscription.version == consumer.engine.subscriptions["T"].version > 1

    play(story())


def test_pulls_carry_the_offset_once_there_is_one() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        cluster.put("T", 40)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(17)
        of_topic = [pull for pull in consumer.brokers.pulls if pull.queue == queue()]
        assert [(pull.offset, pull.committed_offset) for pull in of_topic][:2] == [(0, None), (32, None)]
        assert (of_topic[-1].offset, of_topic[-1].committed_offset) == (40, 40)

    play(story())


def test_an_offset_outside_the_queue_is_replaced_by_the_brokers_and_the_queue_read_on() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        cluster.put("T", 10)
        cluster.first_offsets[queue()] = 7
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(5)
        assert consumer.got == [(0, 7), (0, 8), (0, 9)]

    play(story())


def test_the_offset_moves_over_what_the_brokers_filter_leaves_out() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        cluster.put("T", 5, TAGS="A")
        consumer = Consumer(cluster)
        consumer.engine.subscriptions["T"] = subscription("T", "B", 1)
        await consumer.engine.start()
        await asyncio.sleep(16)
        assert consumer.got == []
        assert cluster.offsets[queue()] == 5

    play(story())


def test_too_many_unfinished_messages_stop_the_pulls_until_listeners_answer() -> None:
    async def story() -> None:
        cluster, pool = FakeCluster(T=1), ManualPool()
        cluster.put("T", 500)
        consumer = Consumer(cluster, settings=replace(FIRST, queue_limit=100), pool=pool)
        await consumer.engine.start()
        await asyncio.sleep(10)
        assert len(pool.held) == 128
        for answer in pool.begin():
            answer()
        await asyncio.sleep(1)
        assert len(pool.held) == 128

    play(story())


def test_a_paused_consumer_pulls_nothing_until_it_is_resumed() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=1)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(16)
        consumer.engine.pause()
        await asyncio.sleep(16)
        cluster.put("T", 1)
        await asyncio.sleep(60)
        assert consumer.got == []
        consumer.engine.resume()
        await asyncio.sleep(2)
        assert consumer.got == [(0, 0)]

    play(story())


def test_unsubscribing_gives_the_topics_queues_up() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=2)
        consumer = Consumer(cluster)
        await consumer.engine.start()
        await asyncio.sleep(2)
        del consumer.engine.subscriptions["T"]
        consumer.engine.rebalance_soon()
        await asyncio.sleep(2)
        assert consumer.engine.assignment() == [RETRY]

    play(story())


def test_a_reset_goes_on_elsewhere_whatever_listeners_at_work_say() -> None:
    async def story() -> None:
        cluster, pool = FakeCluster(T=1), ManualPool()
        cluster.put("T", 10)
        consumer = Consumer(cluster, pool=pool)
        await consumer.engine.start()
        await asyncio.sleep(1)
        answers = pool.begin()
        await consumer.engine.reset_offsets("T", {queue(): 4})
        for answer in answers:
            answer()
        await asyncio.sleep(3)
        pool.begin()
        assert [offset for _, offset in consumer.got[10:]] == [4, 5, 6, 7, 8, 9]

    play(story())


def test_closing_stores_what_is_done_and_leaves_the_rest_to_the_next_consumer() -> None:
    async def story() -> None:
        cluster, pool = FakeCluster(T=1), ManualPool()
        cluster.put("T", 10)
        consumer = Consumer(cluster, pool=pool)
        await consumer.engine.start()
        await asyncio.sleep(1)
        for answer in pool.begin()[:4]:
            answer()
        await consumer.close()
        assert cluster.offsets[queue()] == 4
        second = Consumer(cluster, client_id="c2")
        await second.engine.start()
        await asyncio.sleep(1)
        assert [offset for _, offset in second.got] == [4, 5, 6, 7, 8, 9]

    play(story())


def test_every_client_of_a_broadcast_gets_everything() -> None:
    async def story() -> None:
        cluster = FakeCluster(T=2)
        settings = replace(FIRST, model=MessageModel.BROADCASTING)
        consumers = [Consumer(cluster, client_id=client_id, settings=settings) for client_id in ("c1", "c2")]
        for consumer in consumers:
            await consumer.engine.start()
        cluster.put("T", 3, 1)
        await asyncio.sleep(5)
        assert [consumer.got for consumer in consumers] == [[(1, 0), (1, 1), (1, 2)]] * 2
        assert not any(pull.sys_flag(at_master=True) & 1 for pull in consumers[0].brokers.pulls)

    play(story())
