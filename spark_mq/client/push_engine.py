"""A push consumer without sockets: its parts, a pull loop for each queue, and periodic duties.

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
from typing import NamedTuple

from spark_mq.client.consumer_calls import GroupBrokers
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.event_loop import ListenerPool
from spark_mq.client.listeners import (
    ConcurrentListener,
    ConcurrentService,
    OrderlyListener,
    OrderlyService,
    QueueListener,
    named_queues,
    tell_share,
)
from spark_mq.client.message import MessageExt, MessageQueue, origin_topic
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue
from spark_mq.client.pulls import (
    BROKER_BUSY_MS,
    FAILED_MS,
    FULL_MS,
    Filtered,
    Pull,
    PullResult,
    PullStatus,
    Subscription,
    pulled_messages,
)
from spark_mq.client.rebalance import (
    FIRST_LOCK_MS,
    LOCK_INTERVAL_MS,
    REBALANCE_INTERVAL_MS,
    UNBALANCED_INTERVAL_MS,
    Rebalancer,
)
from spark_mq.client.settings import ClientSettings, PushSettings, without_namespace
from spark_mq.remoting.consumers import MessageModel, ProcessQueueInfo
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.names import RETRY_PREFIX
from storage.rules.response_codes import ResponseCode

FIRST_WRITE_MS = 10_000
_LOG = logging.getLogger(__name__)
PAUSED_MS = 1_000


class Listeners(NamedTuple):
    """The program's functions: `concurrent` or `orderly`, `of_queues` for notices of its share, `filtered` for what was pulled."""

    concurrent: ConcurrentListener | None = None
    orderly: OrderlyListener | None = None
    of_queues: QueueListener | None = None
    filtered: Filtered | None = None


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
        self.brokers = brokers
        self.stored_offsets = offsets
        self.settings = settings
        self.clock_ms = clock_ms
        self.is_paused = False
        self._pool = pool
        self._client = client
        self._queue_listener = listeners.of_queues
        self.filtered = listeners.filtered
        self.is_broadcasting = settings.model is MessageModel.BROADCASTING
        is_orderly = listeners.orderly is not None
        self.flow = settings.flow_limits(is_orderly=is_orderly)
        self.rebalancer = Rebalancer(
            brokers, offsets, self.subscriptions, settings, self, clock_ms, is_orderly=is_orderly
        )
        self._concurrent: ConcurrentService | None = None
        if listeners.concurrent is not None:
            self._concurrent = ConcurrentService(
                brokers, offsets, listeners.concurrent, pool, group, settings, clock_ms
            )
            self.service: ConcurrentService | OrderlyService = self._concurrent
        elif listeners.orderly is not None:
            lock = self.rebalancer.lock
            self.service = OrderlyService(brokers, offsets, lock, listeners.orderly, pool, group, settings, clock_ms)
        else:
            raise ValueError("a push consumer needs a listener or an orderly listener")
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
        await self.stored_offsets.load()
        duties: list[Awaitable[None]] = [
            self._rebalance_for_ever(),
            self._each(FIRST_WRITE_MS, self._client.persist_consumer_offset_interval_ms, self.write_offsets),
        ]
        if self.rebalancer.locks:
            duties.append(self._each(FIRST_LOCK_MS, LOCK_INTERVAL_MS, self.rebalancer.lock_all))
        if self._concurrent is not None and not self.is_broadcasting:
            timeout_ms = self.settings.consume_timeout_ms
            duties.append(self._each(timeout_ms, timeout_ms, self._send_overdue_back))
        self._duties = [asyncio.ensure_future(duty) for duty in duties]

    def rebalance_soon(self) -> None:
        """The group or the topics have changed, or a queue must be taken anew."""
        self._woken.set()

    async def _rebalance_for_ever(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            is_balanced = True
            if not self.is_paused:
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
        await self.stored_offsets.write(self.rebalancer.owned())

    async def _send_overdue_back(self) -> None:
        if self._concurrent is not None:
            for queue, process_queue in list(self.rebalancer.table.items()):
                await self._concurrent.send_overdue_back(queue, process_queue)

    # What the rebalancer asks for.

    def begin(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        """Pull from the offset on."""
        reader = QueueReader(self, queue, process_queue, offset)
        self._readers[queue] = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader: QueueReader) -> None:
        while True:
            try:
                return await reader.run()
            except Exception:  # a queue without pulls would wait two minutes for a rebalance
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
            tell_share(self._pool, self._queue_listener, self._client.namespace, topic, all_queues, own)

    # What the program and brokers ask for.

    def pause(self) -> None:
        """Pull nothing new; what was pulled is consumed."""
        self.is_paused = True

    def resume(self) -> None:
        """Pull again."""
        self.is_paused = False
        self.rebalance_soon()

    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads, as the program names them."""
        return named_queues(self._client.namespace, self.rebalancer.owned())

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """This consumer's offsets in a topic (221)."""
        return self.stored_offsets.snapshot(topic)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in the queues of a topic that are read here (220). Java: MQClientInstance.resetOffset.

        Departure: Java waits ten seconds for its listeners; here what they answer later does not count.
        """
        for queue in self.rebalancer.owned(topic):
            if queue in offsets:
                self.stored_offsets.freeze(queue, offsets[queue])
                self.rebalancer.drop(queue)
        self.rebalance_soon()

    def running_info(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Each queue's entry in the answer to 307."""
        return {
            queue: process_queue.info(self.stored_offsets.known(queue) or 0)
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
        await self.service.close(timeout_ms if are_done else 0)
        await self.stored_offsets.write(self.rebalancer.owned(), wait=True)
        await self.rebalancer.give_up_all()
        return are_done


class QueueReader:
    """The pull loop of one queue, from when it is taken until it is dropped: pulls on, waits where it must, hands on what came.

    after a pull                      after
    messages, none new or matched     at once
    OFFSET_ILLEGAL                    the broker's offset is stored, the queue is dropped and taken anew
    the broker is over its limit      20 ms
    any other failure                 1 s
    before a pull
    the consumer is paused            1 s
    too much waits for listeners      50 ms
    the lock is not this client's     1 s

    Java: DefaultMQPushConsumerImpl.pullMessage and its callback.
    """

    def __init__(self, engine: PushEngine, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        self._engine = engine
        self._queue = queue
        self._process_queue = process_queue
        self._next_offset = offset
        self._broker_id = 0
        self._was_locked = False
        self._is_failing = False

    async def run(self) -> None:
        """Pull until the queue is dropped."""
        while not self._process_queue.is_dropped:
            pause_ms = await self._once()
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)

    async def _once(self) -> int:
        """One pull, or what keeps from it; how many ms to wait then."""
        engine = self._engine
        self._process_queue.last_pull_ms = engine.clock_ms()
        if engine.is_paused:
            return PAUSED_MS
        if self._process_queue.is_full(engine.flow):
            return FULL_MS
        wanted = engine.subscriptions.get(self._queue.topic)
        if wanted is None:
            return FAILED_MS
        try:
            if engine.rebalancer.locks and not await self._begins_under_lock():
                return FAILED_MS
            result = await engine.brokers.pull(self._pull(wanted), self._broker_id)
            messages = pulled_messages(result, self._queue, wanted, engine.topic_of)
            if engine.filtered is not None:
                messages = await engine.filtered(messages, self._queue)
        except (ClientError, CorruptRecordError) as error:
            return self._failed(error)
        return 0 if self._process_queue.is_dropped else self._pulled(result, messages)

    async def _begins_under_lock(self) -> bool:
        """Whether the queue is locked; with its first lock it begins where the client before has stopped."""
        if not self._process_queue.is_locked:
            return False
        if not self._was_locked:
            self._next_offset = await self._engine.rebalancer.first_offset(self._queue)
            self._was_locked = True
        return True

    def _pull(self, wanted: Subscription) -> Pull:
        settings = self._engine.settings
        known = None if self._engine.is_broadcasting else self._engine.stored_offsets.known(self._queue)
        return Pull(
            self._queue,
            self._next_offset,
            wanted,
            settings.pull_limit,
            limit_bytes=settings.pull_limit_bytes,
            committed_offset=known or None,
            sends_subscription=settings.sends_subscription,
        )

    def _pulled(self, result: PullResult, messages: list[MessageExt]) -> int:
        self._is_failing = False
        self._broker_id = result.suggested_broker_id
        self._next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._begin_anew()
            return 0
        if messages:
            self._engine.service.arrived(messages, self._queue, self._process_queue)
            return self._engine.settings.pull_interval_ms
        if self._process_queue.count == 0:  # nothing unfinished before what the broker left out
            self._engine.stored_offsets.update(self._queue, self._next_offset, only_forward=True)
        return 0

    def _begin_anew(self) -> None:
        """The offset is not in the queue (too small, too large, or reset): go on where the broker says, with nothing of before."""
        _LOG.warning("the next offset of %s is not in the queue; going on at %d", self._queue, self._next_offset)
        self._engine.stored_offsets.freeze(self._queue, self._next_offset)
        self._engine.rebalancer.drop(self._queue)
        self._engine.rebalance_soon()

    def _failed(self, error: Exception) -> int:
        is_known = self._is_failing or self._queue.topic.startswith(RETRY_PREFIX)
        level, self._is_failing = logging.DEBUG if is_known else logging.WARNING, True
        _LOG.log(level, "pulls of %s fail at offset %d: %s", self._queue, self._next_offset, error)
        is_busy = isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL
        return BROKER_BUSY_MS if is_busy else FAILED_MS
