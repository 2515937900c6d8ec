"""Messages to concurrent listeners, and what becomes of those that failed.

    SUCCESS ─▶ done
    LATER   ─▶ sent back (36) ─▶ done: the broker delivers it again, or keeps it as a dead letter
               else sent as a new message to the group's retry topic ─▶ done
               else here once more after 5 s

The offset stored is that of the first message that is not done. Broadcast messages that failed are dropped.

Java: ConsumeMessageConcurrentlyService. Owned by the event loop's thread; the threads of the pool call the listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_mq.client.errors import ClientError
from spark_mq.client.group_brokers import GroupBrokers
from spark_mq.client.listener_pool import ListenerPool
from spark_mq.client.listeners import ConcurrentContext, ConcurrentListener, ConsumeStatus, answer_of
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue, batches
from spark_mq.client.retry_messages import origin_topic, retry_message
from storage.errors import CorruptMessageError

LOCAL_RETRY_MS = 5_000
OVERDUE_LIMIT = 16
"""So many overdue messages of a queue are sent back at a time."""
OVERDUE_LEVEL = 3

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConcurrentRules:
    """How a group consumes."""

    group: str
    batch_size: int = 1
    max_reconsume_times: int = 16
    consume_timeout_ms: int = 15 * 60_000
    is_broadcasting: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """Messages of one call of the listener."""

    messages: Sequence[MessageExt]
    queue: MessageQueue
    process_queue: ProcessQueue
    context: ConcurrentContext


class ConcurrentService:
    """Listener calls of one consumer, any number at a time."""

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        listener: ConcurrentListener,
        pool: ListenerPool,
        rules: ConcurrentRules,
        clock_ms: Callable[[], int],
    ) -> None:
        self._brokers = brokers
        self._offsets = offsets
        self._listener = listener
        self._pool = pool
        self._rules = rules
        self._clock_ms = clock_ms
        self._failing: set[asyncio.Task[None]] = set()
        self._retrying: set[asyncio.Task[None]] = set()

    def arrived(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Take in what a pull brought, and give it to listeners."""
        process_queue.put(messages)
        self._submit(messages, queue, process_queue)

    def _submit(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        for batch in batches(messages, self._rules.batch_size):
            call = _Call(batch, queue, process_queue, ConcurrentContext(queue))
            self._pool.submit(partial(self._listen, call), partial(self._answered, call))

    def _listen(self, call: _Call) -> ConsumeStatus | None:
        """In a thread: the listener's answer; None where the queue was given up before."""
        if call.process_queue.is_dropped:
            return None
        call.process_queue.start(call.messages, self._clock_ms())
        return answer_of(self._listener, call.messages, call.context, self._rules.group)

    def _answered(self, call: _Call, status: ConsumeStatus | None) -> None:
        """On the loop. What a queue that was given up meanwhile held comes again, to whoever has it now."""
        if status is None or call.process_queue.is_dropped:
            return
        failed = call.messages[consumed_count(status, call.context.acknowledged, len(call.messages)) :]
        if failed and self._rules.is_broadcasting:
            _LOG.warning("%d broadcast message(s) of %s failed and are dropped", len(failed), call.queue)
        if not failed or self._rules.is_broadcasting:
            self._finish(call.messages, call.queue, call.process_queue)
        else:
            self._keep(self._fail(call, failed), self._failing)

    def _finish(self, messages: Iterable[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        offset = process_queue.remove(messages, self._clock_ms())
        if offset is not None and not process_queue.is_dropped:
            self._offsets.update(queue, offset, only_forward=True)

    async def _fail(self, call: _Call, failed: Sequence[MessageExt]) -> None:
        """Send failed ones back; what cannot be sent is tried here again, after a while."""
        left = []
        for message in failed:
            if call.process_queue.holds(message) and not await self.send_back(message, call.context.delay_level):
                left.append(message.failed_once_more())
        offsets_left = {message.queue_offset for message in left}
        done = [message for message in call.messages if message.queue_offset not in offsets_left]
        if not call.process_queue.is_dropped:
            call.process_queue.replace(left)
            self._finish(done, call.queue, call.process_queue)
        if left:
            self._keep(self._again(left, call), self._retrying)

    async def _again(self, messages: Sequence[MessageExt], call: _Call) -> None:
        await asyncio.sleep(LOCAL_RETRY_MS / 1000)
        if not call.process_queue.is_dropped:
            self._submit(messages, call.queue, call.process_queue)

    async def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """Whether the cluster has taken the message over. Java: DefaultMQPushConsumerImpl.sendMessageBack."""
        topic, rules = origin_topic(message.record), self._rules
        try:
            await self._brokers.send_back(message, topic, delay_level, rules.max_reconsume_times)
            return True
        except ClientError as error:
            _LOG.warning("%s was not sent back; it is sent as a new message: %s", message.queue, error)
        try:
            await self._brokers.send_as_new(retry_message(message, rules.group, topic, rules.max_reconsume_times))
            return True
        except (ClientError, CorruptMessageError) as error:
            _LOG.warning("a failed message of %s is tried again here: %s", message.queue, error)
            return False

    async def send_overdue_back(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Give up waiting for listeners that have had the queue's first messages for too long. Java: cleanExpiredMsg.

        A listener's later answer about such a message does not count.
        """
        for _ in range(OVERDUE_LIMIT):
            message = process_queue.overdue(self._clock_ms(), self._rules.consume_timeout_ms)
            if message is None or process_queue.is_dropped or not await self.send_back(message, OVERDUE_LEVEL):
                return
            _LOG.warning("offset %d of %s was too long in work and was sent back", message.queue_offset, queue)
            if process_queue.holds(message):
                self._finish([message], queue, process_queue)

    def _keep(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def close(self, timeout_ms: int) -> None:
        """Wait until what failed is sent back; what would be tried here again is left to the queue's next consumer."""
        for task in self._retrying:
            task.cancel()
        if self._failing:
            await asyncio.wait(self._failing, timeout=timeout_ms / 1000)
        for task in self._failing | self._retrying:
            task.cancel()


def consumed_count(status: ConsumeStatus, acknowledged: int | None, count: int) -> int:
    """How many messages of a call are consumed. COMMIT counts as SUCCESS, ROLLBACK as LATER. Java: ackIndex + 1."""
    if status in (ConsumeStatus.LATER, ConsumeStatus.ROLLBACK):
        return 0
    return count if acknowledged is None else max(0, min(acknowledged, count))
