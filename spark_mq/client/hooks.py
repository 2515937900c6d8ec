"""Hooks: a program's functions around sends, ends of transactions, pulls, and calls of a listener.

    class Audit(SendMessageHook):
        def send_message_after(self, context):
            print(context.queue, context.result or context.error)

    Producer(settings, "orders-writer", hooks=[Audit()])

    hook                 in                    called                                                        what it raises
    CheckForbiddenHook   producers             before each try of a send; an error forbids the try           ends the try
    SendMessageHook      producers             before each try, and behind it with its result or error       is logged
    EndTransactionHook   transaction producer  before the end of a transaction is sent                       is logged
    FilterMessageHook    consumers             behind a pull; it may take messages out of the list           is logged
    ConsumeMessageHook   consumers             around each call of the listener; when `poll` gives messages  is logged

One class may be several of them. Hooks of sends and of pulls run in threads of their own, never on the client's loop; hooks around the
end of a transaction and a listener's call run in the thread of the caller or listener. A send waits for its hooks, so a slow hook makes
sends slow: one that uses up the send's time before it leaves fails the send with RequestTimeoutError, and a result does not wait for
hooks behind it beyond that time. Hooks before sends run in one thread for each producer, in the order of the sends.

Java: org.apache.rocketmq.client.hook. Departures: the hook behind an asynchronous send is called once, with its result, and not also
before there is one; a FilterMessageHook can only take messages out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from spark_mq.client.errors import ClientClosedError, ClientSettingError, SendForbiddenError
from spark_mq.client.event_loop import ListenerPool
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.outgoing_messages import OutgoingMessage
from spark_mq.client.send_results import SendMode, SendResult
from storage.epoch_times import steady_time_ms
from storage.format.record import TRANSACTION_PREPARED
from storage.rules.half_messages import TransactionState

HOOK_THREADS, HOOK_THREAD_NAME = 4, "spark-mq-hooks"
_LOG = logging.getLogger(__name__)
H = TypeVar("H")


class MessageType(Enum):
    """What a sent message is. The values are those of Java's enum, as traces hold them. Java: MessageType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ReturnType(Enum):
    """How a listener's call ended. The values are those of Java's enum, as traces hold them. Java: ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    """It took longer than `consume_timeout_ms`, whatever it answered."""
    EXCEPTION = 2
    RETURNED_NONE = 3
    FAILED = 4


@dataclass(slots=True)
class SendMessageContext:
    """One try of a send."""

    producer_group: str
    message: Message
    """As the program gave it; of a batch a message whose body is the batch."""
    queue: MessageQueue
    """With the topic as brokers know it."""
    broker_address: str
    mode: SendMode
    message_type: MessageType
    body_size_bytes: int
    """As sent, compressed where it is."""
    namespace: str | None = None
    result: SendResult | None = None
    """Behind the try; None of a one-way send, and where it failed."""
    error: Exception | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """A hook's own, from before the try to behind it. Java: props."""


@dataclass(slots=True)
class EndTransactionContext:
    """How a transaction ended here."""

    producer_group: str
    message: Message | MessageExt
    """As the program gave it; with `from_check` the half message as the broker sent it."""
    broker_address: str
    message_id: str
    transaction_id: str | None
    state: TransactionState
    from_check: bool


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of a listener, or the messages of a queue that a `poll` gives."""

    consumer_group: str
    messages: Sequence[MessageExt]
    queue: MessageQueue
    """With the topic as brokers know it."""
    namespace: str | None = None
    success: bool = False
    status: str | None = None
    """The name of the listener's ConsumeStatus; LATER where it gave none."""
    return_type: ReturnType | None = None
    """None of a `poll`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """A hook's own."""


@dataclass(slots=True)
class FilterMessageContext:
    """The messages of a pull, before the consumer counts them in."""

    consumer_group: str
    messages: list[MessageExt]
    """A hook takes those out that the program shall not get. They count as consumed."""
    queue: MessageQueue


class CheckForbiddenHook:
    """Forbids sends. Java: CheckForbiddenHook."""

    def check_forbidden(self, context: SendMessageContext) -> None:
        """Raise an error to forbid the try. A send that is waited for is then tried on another broker, if tries are left."""


class SendMessageHook:
    """Sees each try of a send. Java: SendMessageHook."""

    def send_message_before(self, context: SendMessageContext) -> None:
        """The try begins."""

    def send_message_after(self, context: SendMessageContext) -> None:
        """It has ended, with `result` or `error`."""


class EndTransactionHook:
    """Sees how transactions end. Java: EndTransactionHook."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """The end is about to be sent, behind the local transaction or a broker's check."""


class ConsumeMessageHook:
    """Sees each call of a listener. Java: ConsumeMessageHook."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """The listener is about to be called."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """It has answered."""


class FilterMessageHook:
    """Takes messages out of what was pulled. Java: FilterMessageHook."""

    def filter_message(self, context: FilterMessageContext) -> None:
        """Remove from `context.messages` what the program shall not get."""


Hook = CheckForbiddenHook | SendMessageHook | EndTransactionHook | ConsumeMessageHook | FilterMessageHook
OF_PRODUCERS = (CheckForbiddenHook, SendMessageHook)
OF_TRANSACTION_PRODUCERS = (*OF_PRODUCERS, EndTransactionHook)
OF_CONSUMERS = (ConsumeMessageHook, FilterMessageHook)


def checked_hooks(hooks: Iterable[Hook], kinds: tuple[type, ...]) -> tuple[Hook, ...]:
    """The hooks. Raises ClientSettingError for one that nothing here would call."""
    listed = tuple(hooks)
    for hook in listed:
        if isinstance(hook, type) or not isinstance(hook, kinds):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ClientSettingError("hooks", hook, f"it would never be called: give objects of {names}")
    return listed


def call_each(hooks: Iterable[H], call: Callable[[H], object]) -> None:
    """Call all of them; what one raises is logged."""
    for hook in hooks:
        try:
            call(hook)
        except Exception:
            _LOG.exception("hook %s raised", type(hook).__name__)


def of_kind(hooks: Iterable[object], kind: type[H]) -> tuple[H, ...]:
    """Those of the kind."""
    return tuple(hook for hook in hooks if isinstance(hook, kind))


class HookThreads:
    """The threads in which the hooks of one producer or consumer are called; made when the first is. On the loop's thread."""

    def __init__(self, count: int = HOOK_THREADS) -> None:
        self._count = count
        self._pool: ListenerPool | None = None

    async def call(self, call: Callable[[], None]) -> None:
        """Call it in a thread, and wait. Raises what it raises, ClientClosedError where it did not come to an end."""

        def work() -> tuple[Exception | None]:
            try:
                call()
            except Exception as error:
                return (error,)
            return (None,)

        if self._pool is None:
            self._pool = ListenerPool(HOOK_THREAD_NAME, self._count)
        ended = await self._pool.call(work)
        if ended is None:
            raise ClientClosedError("the hooks' threads", "they are closed, or a hook ended its thread")
        if ended[0] is not None:
            raise ended[0]

    def close(self) -> None:
        """Begin no more calls."""
        if self._pool is not None:
            self._pool.stop()


class SendHooks:
    """The hooks around a producer's sends. On the loop's thread."""

    def __init__(
        self, hooks: Iterable[Hook], group: str, namespace: str | None, tracing: SendMessageHook | None
    ) -> None:
        """`group` as the program names it. `tracing` waits for nothing and is called at once."""
        self._forbidding = of_kind(hooks, CheckForbiddenHook)
        self._watching = of_kind(hooks, SendMessageHook)
        self._group = group
        self._namespace = namespace
        self._tracing = () if tracing is None else (tracing,)
        self._before_thread = HookThreads(1)  # one, so that sends keep their order
        self._after_threads = HookThreads()

    def context(
        self, message: OutgoingMessage, queue: MessageQueue, address: str, mode: SendMode
    ) -> SendMessageContext:
        """A try, before it begins."""
        given = message.origin or Message(message.topic, message.body)
        is_half = bool(message.sys_flag & TRANSACTION_PREPARED)
        kind = MessageType.TRANSACTION_HALF if is_half else MessageType.NORMAL
        if given.delay_level and not is_half:
            kind = MessageType.DELAY
        size = len(message.body)
        return SendMessageContext(self._group, given, queue, address, mode, kind, size, self._namespace)

    async def before(self, context: SendMessageContext) -> None:
        """Raises SendForbiddenError; no hook hears of the try then."""
        if self._forbidding or self._watching:
            await self._before_thread.call(lambda: self._before(context))
        call_each(self._tracing, lambda hook: hook.send_message_before(context))

    def _before(self, context: SendMessageContext) -> None:
        for hook in self._forbidding:
            try:
                hook.check_forbidden(context)
            except Exception as error:
                reason = str(error) or type(error).__name__
                raise SendForbiddenError(context.message.topic, type(hook).__name__, reason) from error
        call_each(self._watching, lambda hook: hook.send_message_before(context))

    async def after(self, context: SendMessageContext, outcome: SendResult | Exception | None) -> None:
        """The try has ended."""
        if isinstance(outcome, Exception):
            context.error = outcome
        else:
            context.result = outcome
        call_each(self._tracing, lambda hook: hook.send_message_after(context))
        if self._watching:
            each: Callable[[SendMessageHook], None] = lambda hook: hook.send_message_after(context)  # noqa: E731
            await self._after_threads.call(lambda: call_each(self._watching, each))

    def close(self) -> None:
        """Call none any more."""
        self._before_thread.close()
        self._after_threads.close()


class ConsumeHooks:
    """The hooks of one consumer."""

    def __init__(self, hooks: Iterable[object], group: str, namespace: str | None) -> None:
        """`group` as the program names it."""
        self._watching = of_kind(hooks, ConsumeMessageHook)
        self._filtering = of_kind(hooks, FilterMessageHook)
        self._group = group
        self._namespace = namespace
        self._threads = HookThreads()

    def around(self, listener: Callable[[Sequence[MessageExt], Any], Any] | None, timeout_ms: int) -> Any:
        """The listener with the hooks around it; as it is where there are none."""
        if listener is None or not self._watching:
            return listener

        def hooked(messages: Sequence[MessageExt], given: Any) -> object:
            context = ConsumeMessageContext(self._group, messages, given.queue, self._namespace)
            call_each(self._watching, lambda hook: hook.consume_message_before(context))
            began_ms, return_type, answer = steady_time_ms(), ReturnType.EXCEPTION, None
            try:
                answer = listener(messages, given)
                return_type = _return_type(answer, steady_time_ms() - began_ms >= timeout_ms)
                return answer
            finally:
                context.return_type = return_type
                context.status = answer.name if isinstance(answer, Enum) else "LATER"
                context.success = context.status in ("SUCCESS", "COMMIT")
                call_each(self._watching, lambda hook: hook.consume_message_after(context))

        return hooked

    def polled(self, messages: Iterable[MessageExt]) -> None:
        """A poll gives these messages: they count as consumed, queue by queue, before the program has them, as in Java."""
        if not self._watching:
            return
        by_queue: dict[MessageQueue, list[MessageExt]] = {}
        for message in messages:
            by_queue.setdefault(message.queue, []).append(message)
        for queue, of_queue in by_queue.items():
            context = ConsumeMessageContext(self._group, of_queue, queue, self._namespace)
            call_each(self._watching, lambda hook, context=context: hook.consume_message_before(context))  # type: ignore[misc]
            context.status, context.success = "SUCCESS", True
            call_each(self._watching, lambda hook, context=context: hook.consume_message_after(context))  # type: ignore[misc]

    @property
    def filters(self) -> Callable[[list[MessageExt], MessageQueue], Awaitable[list[MessageExt]]] | None:
        """`filtered`; None where it would do nothing."""
        return self.filtered if self._filtering else None

    async def filtered(self, messages: list[MessageExt], queue: MessageQueue) -> list[MessageExt]:
        """Those that no hook takes out."""
        if not messages:
            return messages
        context = FilterMessageContext(self._group, list(messages), queue)
        await self._threads.call(lambda: call_each(self._filtering, lambda hook: hook.filter_message(context)))
        kept = {message.queue_offset for message in context.messages}
        return [message for message in messages if message.queue_offset in kept]

    def close(self) -> None:
        """Call no filter any more."""
        self._threads.close()


def _return_type(answer: object, is_late: bool) -> ReturnType:
    if not isinstance(answer, Enum):
        return ReturnType.RETURNED_NONE
    if is_late:
        return ReturnType.TIME_OUT
    return ReturnType.FAILED if answer.name == "LATER" else ReturnType.SUCCESS
