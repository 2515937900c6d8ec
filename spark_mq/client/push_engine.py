"""A push consumer without sockets: its parts put together, and its duties by the clock.

    each 20 s, and when the group changes   rebalance
    each 5 s                                offsets written
    each 20 s (orderly)                     locks renewed
    each 15 min (concurrent)                overdue messages sent back

Java: DefaultMQPushConsumerImpl, MQClientInstance's scheduled tasks, RebalanceService. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from spark_mq.client.concurrent_service import ConcurrentRules, ConcurrentService
from spark_mq.client.consumer_settings import MAX_RECONSUME_TIMES, PushSettings
from spark_mq.client.group_brokers import GroupBrokers
from spark_mq.client.listener_pool import ListenerPool
from spark_mq.client.listeners import ConcurrentListener, OrderlyListener
from spark_mq.client.message import MessageQueue
from spark_mq.client.namespaces import without_namespace
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.orderly_service import OrderlyRules, OrderlyService
from spark_mq.client.process_queue import ProcessQueue
from spark_mq.client.queue_reader import QueueReader, Reading, ReadRules
from spark_mq.client.rebalance import (
    FIRST_LOCK_MS,
    LOCK_INTERVAL_MS,
    REBALANCE_INTERVAL_MS,
    UNBALANCED_INTERVAL_MS,
    Rebalancer,
    RebalanceRules,
)
from spark_mq.client.retry_messages import origin_topic
from spark_mq.client.settings import ClientSettings
from spark_mq.client.subscriptions import Subscription
from spark_mq.remoting.consumers import MessageModel, ProcessQueueInfo
from storage.format.record import Message as Record

FIRST_WRITE_MS = 10_000
_LOG = logging.getLogger(__name__)

QueueListener = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Called with a topic, all its queues and those of this consumer, when the share has changed. Java: MessageQueueListener."""


class Listeners(NamedTuple):
    """What a program is called with: `concurrent` or `orderly`, and `of_queues` if it wants to know its share."""

    concurrent: ConcurrentListener | None = None
    orderly: OrderlyListener | None = None
    of_queues: QueueListener | None = None


class PushEngine:
    """One consumer of one group at work, between `start` and `close`."""

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        pool: ListenerPool,
        group: str,
        listeners: Listeners,
        settings: PushSettings,
        client: ClientSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self._brokers = brokers
        self._offsets = offsets
        self._pool = pool
        self._settings = settings
        self._clock_ms = clock_ms
        self._client = client
        self._queue_listener = listeners.of_queues
        self._is_broadcasting = settings.model is MessageModel.BROADCASTING
        rules = RebalanceRules(
            settings.allocation,
            settings.model,
            settings.consume_from,
            settings.consume_time_ms,
            is_orderly=listeners.orderly is not None,
        )
        self.rebalancer = Rebalancer(brokers, offsets, self.subscriptions, rules, self, clock_ms)
        self._concurrent: ConcurrentService | None = None
        if listeners.concurrent is not None:
            concurrent = ConcurrentRules(
                group,
                settings.batch_size,
                MAX_RECONSUME_TIMES if settings.max_reconsume_times is None else settings.max_reconsume_times,
                settings.consume_timeout_ms,
                self._is_broadcasting,
            )
            self._concurrent = ConcurrentService(brokers, offsets, listeners.concurrent, pool, concurrent, clock_ms)
            self._service: ConcurrentService | OrderlyService = self._concurrent
        elif listeners.orderly is not None:
            orderly = OrderlyRules(
                group, settings.batch_size, settings.max_reconsume_times, settings.suspend_ms, rules.locks
            )
            self._service = OrderlyService(
                brokers, offsets, self.rebalancer, listeners.orderly, pool, orderly, clock_ms
            )
        else:
            raise ValueError("a push consumer needs a listener or an orderly listener")
        self._locks = rules.locks
        self._reading = Reading(
            brokers,
            offsets,
            self.rebalancer,
            self._service,
            self.subscriptions,
            ReadRules(
                settings.pull_limit,
                settings.pull_limit_bytes,
                settings.pull_interval_ms,
                flow=settings.flow_limits(is_orderly=listeners.orderly is not None),
                commits=not self._is_broadcasting,
                locks=rules.locks,
                sends_subscription=settings.sends_subscription,
            ),
            self.topic_of,
            clock_ms,
            self.rebalance_soon,
        )
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._duties: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._is_closed = False
        self.start_time_ms = clock_ms()

    def topic_of(self, record: Record) -> str:
        """The topic under which the program subscribed to the message."""
        return without_namespace(self._client.namespace, origin_topic(record))

    # Duties.

    async def start(self) -> None:
        """Begin. The first rebalance comes at once."""
        await self._offsets.load()
        duties: list[Awaitable[None]] = [
            self._rebalance_for_ever(),
            self._each(FIRST_WRITE_MS, self._client.persist_consumer_offset_interval_ms, self.write_offsets),
        ]
        if self._locks:
            duties.append(self._each(FIRST_LOCK_MS, LOCK_INTERVAL_MS, self.rebalancer.lock_all))
        if self._concurrent is not None and not self._is_broadcasting:
            timeout_ms = self._settings.consume_timeout_ms
            duties.append(self._each(timeout_ms, timeout_ms, self._send_overdue_back))
        self._duties = [asyncio.ensure_future(duty) for duty in duties]

    def rebalance_soon(self) -> None:
        """The group or the topics have changed, or a queue must be taken anew."""
        self._woken.set()

    async def _rebalance_for_ever(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            is_balanced = True
            if not self._reading.is_paused:
                try:
                    is_balanced = await self.rebalancer.rebalance()
                except Exception:  # the next one may work; without any the consumer stands still
                    _LOG.exception("a rebalance failed")
                    is_balanced = False
            await asyncio.sleep(UNBALANCED_INTERVAL_MS / 1000)
            if is_balanced:
                left_ms = REBALANCE_INTERVAL_MS - UNBALANCED_INTERVAL_MS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), left_ms / 1000)

    async def _each(self, first_ms: int, interval_ms: int, duty: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first_ms / 1000)
        while not self._is_closed:
            try:
                await duty()
            except Exception:  # it comes round again
                _LOG.exception("a duty of the consumer failed")
            await asyncio.sleep(interval_ms / 1000)

    async def write_offsets(self) -> None:
        """Store the offsets of all queues that are read."""
        await self._offsets.write(self.rebalancer.owned())

    async def _send_overdue_back(self) -> None:
        if self._concurrent is not None:
            for queue, process_queue in list(self.rebalancer.table.items()):
                await self._concurrent.send_overdue_back(queue, process_queue)

    # What the rebalancer asks for.

    def begin(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        """Pull from the offset on."""
        reader = QueueReader(self._reading, queue, process_queue, offset)
        self._readers[queue] = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader: QueueReader) -> None:
        while True:
            try:
                return await reader.run()
            except Exception:  # a queue that nobody pulls would wait two minutes for a rebalance
                _LOG.exception("a queue's pull loop failed; it goes on")
                await asyncio.sleep(UNBALANCED_INTERVAL_MS / 1000)

    def end(self, queue: MessageQueue) -> None:
        """Pull no more; a pull under way is given up."""
        reader = self._readers.pop(queue, None)
        if reader is not None and reader is not asyncio.current_task():  # which ends by itself
            reader.cancel()

    def share_changed(self, topic: str, all_queues: list[MessageQueue], own: list[MessageQueue]) -> None:
        """Tell the program, in a thread."""
        if self._queue_listener is not None:
            names = [self._named(queues) for queues in (all_queues, own)]
            told = partial(self._queue_listener, without_namespace(self._client.namespace, topic), *names)
            self._pool.submit(partial(_called, told), lambda _: None)

    def _named(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        return [queue._replace(topic=without_namespace(self._client.namespace, queue.topic)) for queue in queues]

    # What the program and brokers ask for.

    def pause(self) -> None:
        """Pull nothing new; what was pulled is consumed."""
        self._reading.is_paused = True

    def resume(self) -> None:
        """Pull again."""
        self._reading.is_paused = False
        self.rebalance_soon()

    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads, as the program names them."""
        return self._named(self.rebalancer.owned())

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Where this consumer is in a topic (221)."""
        return self._offsets.snapshot(topic)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in the queues of a topic that are read here (220). Java: MQClientInstance.resetOffset.

        Departure: Java waits ten seconds for its listeners; here what they answer later does not count.
        """
        for queue in self.rebalancer.owned(topic):
            if queue in offsets:
                self._offsets.freeze(queue, offsets[queue])
                self.rebalancer.drop(queue)
        self.rebalance_soon()

    def running_info(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """What each queue says in the answer to 307."""
        return {
            queue: process_queue.info(self._offsets.known(queue) or 0)
            for queue, process_queue in self.rebalancer.table.items()
        }

    async def close(self, timeout_ms: int) -> bool:
        """Pull no more, wait for listeners that run, store offsets, give locks back; False where a listener still runs.

        What was pulled and not yet given to a listener is left to the next consumer.
        """
        self._is_closed = True  # a cancellation may come too late to be seen
        self.pause()
        for task in [*self._duties, *self._readers.values()]:
            task.cancel()
        if self._duties:  # the first is the rebalance: one under way gives back what it was about to take
            await asyncio.wait(self._duties[:1], timeout=timeout_ms / 1000)
        are_done = await self._pool.close(timeout_ms)
        await self._service.close(timeout_ms if are_done else 0)
        await self._offsets.write(self.rebalancer.owned(), wait=True)
        await self.rebalancer.give_up_all()
        return are_done


def _called(told: Callable[[], object]) -> None:
    try:
        told()
    except BaseException:  # as in `listeners.answer_of`
        _LOG.exception("the program's queue listener failed")
