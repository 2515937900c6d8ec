"""The pull loop of one queue: pulls on, waits where it must, hands on what came.

    after a pull                      after
    messages, none new or matched     at once
    OFFSET_ILLEGAL                    the broker's offset is stored, the queue is dropped and taken anew
    the broker is over its limit      20 ms
    any other failure                 1 s
    before a pull
    the consumer is paused            1 s
    too much waits for listeners      50 ms
    the lock is not this client's     1 s

Java: DefaultMQPushConsumerImpl.pullMessage and its callback. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.group_brokers import GroupBrokers
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import FlowLimits, ProcessQueue
from spark_mq.client.pulls import Pull, PullResult, PullStatus, pulled_messages
from spark_mq.client.subscriptions import Subscription
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.names import RETRY_PREFIX
from storage.rules.response_codes import ResponseCode

PAUSED_MS = 1_000
FULL_MS = 50
FAILED_MS = 1_000
BROKER_BUSY_MS = 20

_LOG = logging.getLogger(__name__)


class Service(Protocol):
    """Who gives messages to listeners."""

    def arrived(self, messages: list[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Take in what a pull brought."""


class Owner(Protocol):
    """Who has the queues."""

    async def first_offset(self, queue: MessageQueue) -> int:
        """Where to begin in a queue. Raises ClientError."""

    def drop(self, queue: MessageQueue) -> None:
        """Read it no more, and hand it over."""


@dataclass(frozen=True, slots=True)
class ReadRules:
    """How one consumer pulls."""

    limit: int = 32
    limit_bytes: int = 262_144
    interval_ms: int = 0
    """A pause after each pull that brought messages."""
    suspend_ms: int = 15_000
    flow: FlowLimits = field(default_factory=FlowLimits)
    commits: bool = True
    """Whether pulls carry the group's offset; not when broadcasting."""
    locks: bool = False
    sends_subscription: bool = False


@dataclass(slots=True)
class Reading:
    """What all readers of a consumer share."""

    brokers: GroupBrokers
    offsets: OffsetStore
    owner: Owner
    service: Service
    subscriptions: Mapping[str, Subscription]
    rules: ReadRules
    topic_of: Callable[[Record], str]
    clock_ms: Callable[[], int]
    rebalance_soon: Callable[[], None]
    is_paused: bool = False


class QueueReader:
    """Pulls of one queue, from when it is taken until it is dropped."""

    def __init__(self, reading: Reading, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        self._reading = reading
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
        reading = self._reading
        self._process_queue.last_pull_ms = reading.clock_ms()
        if reading.is_paused:
            return PAUSED_MS
        if self._process_queue.is_full(reading.rules.flow):
            return FULL_MS
        wanted = reading.subscriptions.get(self._queue.topic)
        if wanted is None:
            return FAILED_MS
        try:
            if reading.rules.locks and not await self._begins_under_lock():
                return FAILED_MS
            result = await reading.brokers.pull(self._pull(wanted), self._broker_id)
            messages = pulled_messages(result, self._queue, wanted, reading.topic_of)
        except (ClientError, CorruptRecordError) as error:
            return self._failed(error)
        return 0 if self._process_queue.is_dropped else self._pulled(result, messages)

    async def _begins_under_lock(self) -> bool:
        """Whether the queue is locked; with its first lock it begins where the client before has stopped."""
        if not self._process_queue.is_locked:
            return False
        if not self._was_locked:
            self._next_offset = await self._reading.owner.first_offset(self._queue)
            self._was_locked = True
        return True

    def _pull(self, wanted: Subscription) -> Pull:
        rules = self._reading.rules
        known = self._reading.offsets.known(self._queue) if rules.commits else None
        return Pull(
            self._queue,
            self._next_offset,
            wanted,
            rules.limit,
            rules.suspend_ms,
            rules.limit_bytes,
            committed_offset=known or None,
            sends_subscription=rules.sends_subscription,
        )

    def _pulled(self, result: PullResult, messages: list[MessageExt]) -> int:
        self._is_failing = False
        self._broker_id = result.suggested_broker_id
        self._next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._begin_anew()
            return 0
        if messages:
            self._reading.service.arrived(messages, self._queue, self._process_queue)
            return self._reading.rules.interval_ms
        if self._process_queue.count == 0:  # nothing unfinished before what the broker left out
            self._reading.offsets.update(self._queue, self._next_offset, only_forward=True)
        return 0

    def _begin_anew(self) -> None:
        """The offset is not in the queue (too small, too large, or reset): go on where the broker says, with nothing of before."""
        _LOG.warning("the next offset of %s is not in the queue; going on at %d", self._queue, self._next_offset)
        self._reading.offsets.freeze(self._queue, self._next_offset)
        self._reading.owner.drop(self._queue)
        self._reading.rebalance_soon()

    def _failed(self, error: Exception) -> int:
        is_told = self._is_failing or self._queue.topic.startswith(RETRY_PREFIX)
        level, self._is_failing = logging.DEBUG if is_told else logging.WARNING, True
        _LOG.log(level, "pulls of %s fail at offset %d: %s", self._queue, self._next_offset, error)
        is_busy = isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL
        return BROKER_BUSY_MS if is_busy else FAILED_MS
