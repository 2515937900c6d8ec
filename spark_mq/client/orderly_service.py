"""Messages to orderly listeners: of one queue one call at a time, in the queue's order, under the broker's lock.

    SUCCESS  ─▶ done, the next ones at once
    LATER    ─▶ the queue waits a moment, then the same messages again, without limit unless the group has one;
                then to the group's retry topic as a new message, of which the broker makes a dead letter
    without auto_commit: SUCCESS ─▶ the next ones, stored by the next COMMIT; ROLLBACK ─▶ all since then again

Java: ConsumeMessageOrderlyService. Owned by the event loop's thread. Departures: a queue's turn does not end after a
minute, because every call queues up for a thread anew; of several messages in a call only those go to the retry topic
again that failed too often, each once; what a listener did while its queue was handed over is stored before the lock is
given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_mq.client.errors import ClientError
from spark_mq.client.group_brokers import GroupBrokers
from spark_mq.client.listener_pool import ListenerPool
from spark_mq.client.listeners import ConsumeStatus, OrderlyContext, OrderlyListener, answer_of
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue
from spark_mq.client.retry_messages import origin_topic, retry_message
from storage.errors import CorruptMessageError

SUSPEND_LEAST_MS, SUSPEND_MOST_MS = 10, 30_000
_LOCK_AGAIN_MS = 3_000
"""The pause after a lock that another client has."""
_SOON_MS = 10

_LOG = logging.getLogger(__name__)


class Locks(Protocol):
    """Who locks queues at their brokers."""

    async def lock(self, queue: MessageQueue) -> bool:
        """Lock one queue; whether this client has it now."""


@dataclass(frozen=True, slots=True)
class OrderlyRules:
    """How a group consumes."""

    group: str
    batch_size: int = 1
    max_reconsume_times: int | None = None
    suspend_ms: int = 1_000
    locks: bool = True
    """Whether a queue's lock must be alive; not when broadcasting."""


class OrderlyService:
    """Listener calls of one consumer, one at a time for each queue."""

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        locks: Locks,
        listener: OrderlyListener,
        pool: ListenerPool,
        rules: OrderlyRules,
        clock_ms: Callable[[], int],
    ) -> None:
        self._brokers = brokers
        self._offsets = offsets
        self._locks = locks
        self._listener = listener
        self._pool = pool
        self._rules = rules
        self._clock_ms = clock_ms
        self._serving: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def arrived(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Take in what a pull brought, and see that somebody takes it."""
        if process_queue.put(messages):
            task = asyncio.get_running_loop().create_task(self._serve(queue, process_queue))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Give the queue's messages to the listener until none is left, or it is dropped."""
        while not (process_queue.is_dropped or self._is_closed):
            try:
                pause_ms = await self._turn(queue, process_queue)
            except Exception:  # the next turn may work; without any the queue stands still
                _LOG.exception("a turn of %s failed; its messages come again", queue)
                process_queue.roll_back()
                pause_ms = self._pause_ms(OrderlyContext(queue))
            if pause_ms is None:
                return
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)

    async def _turn(self, queue: MessageQueue, process_queue: ProcessQueue) -> int | None:
        """Give the next messages to the listener; how many ms to wait then, None where there were no messages."""
        if self._rules.locks and not process_queue.has_live_lock(self._clock_ms()):
            return _SOON_MS if await self._locks.lock(queue) else _LOCK_AGAIN_MS
        messages = process_queue.take(self._rules.batch_size, self._clock_ms())
        if not messages:
            return None
        process_queue.is_in_use = True
        try:
            return await self._consume(messages, queue, process_queue)
        finally:
            process_queue.is_in_use = False

    async def _consume(self, messages: list[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> int:
        """One call of the listener and what follows from its answer; how many ms the queue waits before the next."""
        context = OrderlyContext(queue)
        status: ConsumeStatus | None = await self._pool.call(
            lambda: answer_of(self._listener, messages, context, self._rules.group)
        )
        if status is None or process_queue.is_handed_over:  # the consumer is being closed, or it took too long
            return 0
        if status is ConsumeStatus.LATER:
            again = [message for message in messages if not await self._is_given_away(message)]
            process_queue.again([message.failed_once_more() for message in again])
            if context.auto_commit:
                self._commit(queue, process_queue)
            return self._pause_ms(context) if again else 0
        if status is ConsumeStatus.ROLLBACK and not context.auto_commit:
            process_queue.roll_back()
            return self._pause_ms(context)
        if status is ConsumeStatus.COMMIT or context.auto_commit:
            self._commit(queue, process_queue)
        return 0

    def _commit(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        offset = process_queue.commit()
        if offset is not None and not process_queue.is_handed_over:
            self._offsets.update(queue, offset, only_forward=False)

    def _pause_ms(self, context: OrderlyContext) -> int:
        asked_ms = self._rules.suspend_ms if context.suspend_ms is None else context.suspend_ms
        return max(SUSPEND_LEAST_MS, min(asked_ms, SUSPEND_MOST_MS))

    async def _is_given_away(self, message: MessageExt) -> bool:
        """Whether it failed too often, and the cluster has taken it over."""
        rules = self._rules
        if rules.max_reconsume_times is None or message.reconsume_times < rules.max_reconsume_times:
            return False
        made = retry_message(message, rules.group, origin_topic(message.record), rules.max_reconsume_times)
        try:
            await self._brokers.send_as_new(made)
        except (ClientError, CorruptMessageError) as error:
            _LOG.warning("a message of %s that failed too often is tried again here: %s", message.queue, error)
            return False
        return True

    async def close(self, timeout_ms: int) -> None:
        """Begin no more calls, and wait for those that run."""
        self._is_closed = True
        if self._serving:
            await asyncio.wait(self._serving, timeout=timeout_ms / 1000)
        for task in self._serving:
            task.cancel()
