"""The interface of a program's listener, the threads that call it, and the handling of failed messages.

    concurrent   SUCCESS ─▶ done
                 LATER   ─▶ sent back (36) ─▶ done: the broker delivers it again, or keeps it as a dead letter
                            else sent as a new message to the group's retry topic ─▶ done
                            else here once more after 5 s
    orderly      SUCCESS ─▶ done, the next ones at once
                 LATER   ─▶ the queue waits a moment, then the same messages again, without limit unless the group has one;
                            then to the group's retry topic as a new message: the broker makes a dead letter of it
                 without auto_commit: SUCCESS ─▶ the next ones, stored by the next COMMIT; ROLLBACK ─▶ all since then again

A listener runs in a thread of the consumer. Its answer holds for all messages of the call. An exception and a missing answer count
as `LATER`: a message is done only when its listener says so. Everything else runs on the event loop's thread.

Java: MessageListenerConcurrently, MessageListenerOrderly, ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from operator import index
from typing import Any, TypeAlias, TypeVar

from spark_mq.client.consumer_calls import GroupBrokers
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import ListenerPool
from spark_mq.client.failure_log import FailureLog
from spark_mq.client.message import MessageExt, MessageQueue, origin_topic, retry_message
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue, batches
from spark_mq.client.routes import LOGICAL_PREFIX
from spark_mq.client.settings import MAX_RECONSUME_TIMES, PushSettings, without_namespace
from spark_mq.remoting.consumers import MessageModel
from storage.errors import CorruptMessageError

_LOG = logging.getLogger(__name__)
LOCAL_RETRY_MS = 5_000
OVERDUE_LIMIT = 16
"""So many overdue messages of a queue are sent back at a time."""
OVERDUE_LEVEL = 3
SUSPEND_LEAST_MS, SUSPEND_MOST_MS = 10, 30_000
_LOCK_AGAIN_MS = 3_000
"""The pause after a lock that another client has."""
_SOON_MS = 10


class ConsumeStatus(Enum):
    """A listener's answer."""

    SUCCESS = "consumed"
    LATER = "failed: again later"
    """Concurrent: sent back, the broker delivers it again after a while. Orderly: the queue waits a moment, then again."""
    COMMIT = "all until now consumed"
    """Orderly without `auto_commit`: store what was answered with SUCCESS since the last commit, this call's too."""
    ROLLBACK = "all since the last commit failed: again later"
    """Orderly without `auto_commit`."""


@dataclass(slots=True)
class ConcurrentContext:
    """The context of a concurrent listener; it may change it before it answers."""

    queue: MessageQueue
    acknowledged: int | None = None
    """With SUCCESS: so many messages from the first on are consumed, the others failed; None: all."""
    delay_level: int = 0
    """For failed ones: the broker's delay level for the next try; 0 leaves it to the broker, −1 makes dead letters."""


@dataclass(slots=True)
class OrderlyContext:
    """The context of an orderly listener; it may change it before it answers."""

    queue: MessageQueue
    auto_commit: bool = True
    """Whether SUCCESS stores at once; else only COMMIT does."""
    suspend_ms: int | None = None
    """The queue's wait after LATER or ROLLBACK, 10 ms to 30 s; None: the consumer's setting."""


ConcurrentListener: TypeAlias = Callable[[Sequence[MessageExt], ConcurrentContext], ConsumeStatus]
OrderlyListener: TypeAlias = Callable[[Sequence[MessageExt], OrderlyContext], ConsumeStatus]
Context = TypeVar("Context", ConcurrentContext, OrderlyContext)


def answer_of(
    listener: Callable[[Sequence[MessageExt], Context], object],
    messages: Sequence[MessageExt],
    context: Context,
    group: str,
    failures: FailureLog,
) -> ConsumeStatus:
    """The listener's answer; LATER, and noted, if it raises or returns anything else. Raises nothing.

    It is LATER too where the context holds what is no value of its field; the field has its default then.
    """
    try:
        answer = listener(messages, context)
    except BaseException as error:  # it may even exit the thread: that consumes nothing
        text = f"the listener of group {group} failed on {_named(messages)}"
        failures.note(type(error).__name__, text, error)
        return ConsumeStatus.LATER
    wrong = _put_right(context)
    if wrong:
        what = f"set {' and '.join(wrong)} for {_named(messages)}, which counts as LATER"
        failures.note("context", f"the listener of group {group} {what}")
        return ConsumeStatus.LATER
    if isinstance(answer, ConsumeStatus):
        return answer
    what = f"returned {answer!r} for {_named(messages)}, which counts as LATER: return ConsumeStatus.SUCCESS"
    failures.note("answer", f"the listener of group {group} {what}")
    return ConsumeStatus.LATER


def _put_right(context: ConcurrentContext | OrderlyContext) -> list[str]:
    """Give fields their defaults that hold no value of theirs; which these are, and what type they held."""
    wrong = []
    for each in fields(context):
        value = getattr(context, each.name)
        if each.name not in _VALUES or (value is None and each.default is None):
            continue
        try:
            setattr(context, each.name, _VALUES[each.name](value))
        except Exception:
            wrong.append(f"the context's {each.name} to a value of type {type(value).__name__} that does not fit")
            setattr(context, each.name, each.default)
    return wrong


def _int32(value: Any) -> int:
    """The number, as a request's header takes it. Raises TypeError, ValueError."""
    number = index(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is no int of Java's")
    return number


_VALUES: dict[str, Callable[[Any], object]] = {
    "acknowledged": index,
    "delay_level": _int32,
    "auto_commit": bool,
    "suspend_ms": index,
}
"""Converts a field's value to its type, or raises."""


def _named(messages: Sequence[MessageExt]) -> str:
    first = messages[0]
    return f"{len(messages)} message(s) from offset {first.queue_offset} of {first.queue}"


QueueListener = Callable[[str, list[MessageQueue], list[MessageQueue]], object]
"""Called with a topic, all its queues and those of this consumer, when the share has changed. Java: MessageQueueListener."""


def tell_share(
    pool: ListenerPool,
    listener: QueueListener,
    namespace: str | None,
    topic: str,
    all_queues: Iterable[MessageQueue],
    own: Iterable[MessageQueue],
) -> None:
    """Tell the program which queues of a topic it reads, in a thread, with names as it knows them."""
    names = [named_queues(namespace, queues) for queues in (all_queues, own)]
    pool.submit(partial(_told, partial(listener, without_namespace(namespace, topic), *names)), lambda _: None)


def named_queues(namespace: str | None, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues with their topics as the program knows them."""
    return [queue._replace(topic=without_namespace(namespace, queue.topic)) for queue in queues]


def _told(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # as in `answer_of`
        _LOG.exception("the program's queue listener failed")


@dataclass(frozen=True, slots=True)
class _Call:
    """Messages of one call of the listener."""

    messages: Sequence[MessageExt]
    queue: MessageQueue
    process_queue: ProcessQueue
    context: ConcurrentContext


class ConcurrentService:
    """Listener calls of one consumer, any number at a time. Java: ConsumeMessageConcurrentlyService.

    The offset stored is that of the first message that is not done. Broadcast messages that failed are dropped.
    """

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        listener: ConcurrentListener,
        pool: ListenerPool,
        group: str,
        settings: PushSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self._brokers = brokers
        self._offsets = offsets
        self._listener = listener
        self._pool = pool
        self._group = group
        self._settings = settings
        self._is_broadcasting = settings.model is MessageModel.BROADCASTING
        tries = settings.max_reconsume_times
        self._max_reconsume_times = MAX_RECONSUME_TIMES if tries is None else tries
        self._clock_ms = clock_ms
        self._failures = FailureLog(_LOG)
        self._failing: set[asyncio.Task[None]] = set()
        self._retrying: set[asyncio.Task[None]] = set()

    def arrived(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Take in what a pull brought, and give it to listeners."""
        process_queue.put(messages)
        self._submit(messages, queue, process_queue)

    def _submit(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        for batch in batches(messages, self._settings.batch_size):
            call = _Call(batch, queue, process_queue, ConcurrentContext(queue))
            self._pool.submit(partial(self._listen, call), partial(self._answered, call))

    def _listen(self, call: _Call) -> ConsumeStatus | None:
        """In a thread: the listener's answer; None where the queue was given up before."""
        if call.process_queue.is_dropped:
            return None
        call.process_queue.start(call.messages, self._clock_ms())
        return answer_of(self._listener, call.messages, call.context, self._group, self._failures)

    def _answered(self, call: _Call, status: ConsumeStatus | None) -> None:
        """On the loop. What a queue held that was given up meanwhile comes again, to its next consumer."""
        if status is None or call.process_queue.is_dropped:
            return
        failed = call.messages[consumed_count(status, call.context.acknowledged, len(call.messages)) :]
        if failed and self._is_broadcasting:
            _LOG.warning("%d broadcast message(s) of %s failed and are dropped", len(failed), call.queue)
        if not failed or self._is_broadcasting:
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
        """Whether the cluster has taken the message over. Java: DefaultMQPushConsumerImpl.sendMessageBack.

        A message of a static topic is sent as a new one: which broker has it is not known.
        """
        topic, tries = origin_topic(message.record), self._max_reconsume_times
        if not message.broker_name.startswith(LOGICAL_PREFIX):
            try:
                await self._brokers.send_back(message, topic, delay_level, tries)
                return True
            except ClientError as error:
                _LOG.warning("%s was not sent back; it is sent as a new message: %s", message.queue, error)
        try:
            await self._brokers.send_as_new(retry_message(message, self._group, topic, tries))
            return True
        except (ClientError, CorruptMessageError) as error:
            _LOG.warning("a failed message of %s is tried again here: %s", message.queue, error)
            return False

    async def send_overdue_back(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Give up waiting for listeners that have had the queue's first messages for too long. Java: cleanExpiredMsg.

        A listener's later answer about such a message does not count.
        """
        for _ in range(OVERDUE_LIMIT):
            message = process_queue.overdue(self._clock_ms(), self._settings.consume_timeout_ms)
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
        self._failures.close()
        for task in self._failing | self._retrying:
            task.cancel()


def consumed_count(status: ConsumeStatus, acknowledged: int | None, count: int) -> int:
    """Number of messages of a call that are consumed. COMMIT counts as SUCCESS, ROLLBACK as LATER. Java: ackIndex + 1."""
    if status in (ConsumeStatus.LATER, ConsumeStatus.ROLLBACK):
        return 0
    return count if acknowledged is None else max(0, min(acknowledged, count))


class OrderlyService:
    """Listener calls of one consumer, one at a time for each queue, in its order, under the broker's lock.

    Java: ConsumeMessageOrderlyService. Departures: a queue's turn does not end after a minute, because every call queues up for a
    thread anew; of several messages in a call only those go to the retry topic again that failed too often, each once; what a listener
    did while its queue was handed over is stored before the lock is given back.
    """

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        lock: Callable[[MessageQueue], Awaitable[bool]],
        listener: OrderlyListener,
        pool: ListenerPool,
        group: str,
        settings: PushSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self._brokers = brokers
        self._offsets = offsets
        self._lock = lock
        self._listener = listener
        self._pool = pool
        self._group = group
        self._settings = settings
        self._needs_lock = settings.model is MessageModel.CLUSTERING
        self._clock_ms = clock_ms
        self._failures = FailureLog(_LOG)
        self._serving: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def arrived(self, messages: Sequence[MessageExt], queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Add the messages of a pull, and start a taker if none runs."""
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
        if self._needs_lock and not process_queue.has_live_lock(self._clock_ms()):
            return _SOON_MS if await self._lock(queue) else _LOCK_AGAIN_MS
        messages = process_queue.take(self._settings.batch_size, self._clock_ms())
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
            lambda: answer_of(self._listener, messages, context, self._group, self._failures)
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
        wanted_ms = self._settings.suspend_ms if context.suspend_ms is None else context.suspend_ms
        return max(SUSPEND_LEAST_MS, min(wanted_ms, SUSPEND_MOST_MS))

    async def _is_given_away(self, message: MessageExt) -> bool:
        """Whether it failed too often, and the cluster has taken it over."""
        tries = self._settings.max_reconsume_times
        if tries is None or message.reconsume_times < tries:
            return False
        made = retry_message(message, self._group, origin_topic(message.record), tries)
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
        self._failures.close()
        for task in self._serving:
            task.cancel()
