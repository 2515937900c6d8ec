"""A producer: sends messages and waits, in the background, one-way or in batches. Java: DefaultMQProducer.

    with Producer(ClientSettings("ns1:9876;ns2:9876"), "orders-writer") as producer:
        result = producer.send(Message("orders", b"...", tags="new", keys="order-17"))
        future = producer.send_async(Message("orders", b"..."))
        producer.send(Message("orders", b"..."), selector=by_hash, arg="order-17")   # equal keys keep their order
        print(result.message_id, future.result().queue)

Thread-safe. Messages are checked, encoded and compressed in the caller's thread; one event loop per process does the rest. A
message that a program may not send raises MessageRefusedError before anything is sent; every other error is a ClientError, too.

Requests and replies: `request_reply.py`. Hooks: `hooks.py`. Traces: `trace.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import (
    ClientClosedError,
    ClientSettingError,
    MessageRefusedError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from spark_mq.client.event_loop import HandOver, event_loop, is_loop_thread, run, when_forked
from spark_mq.client.hooks import OF_PRODUCERS, EndTransactionHook, Hook, SendHooks, checked_hooks, of_kind
from spark_mq.client.instance import ClientInstance
from spark_mq.client.members import Member
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.outgoing_messages import MessageMaker, OutgoingMessage, UniqueIds
from spark_mq.client.request_reply import (
    CORRELATION_ID,
    REPLY_TO_CLIENT,
    TTL,
    Asked,
    PendingRequests,
    reply_topic_of,
)
from spark_mq.client.routes import LOGICAL_PREFIX, TopicRoute
from spark_mq.client.send_results import SendMode, SendResult
from spark_mq.client.sender import Sender, Sending
from spark_mq.client.settings import ClientSettings, ProducerSettings, check_kind, with_namespace
from spark_mq.client.trace import Tracer
from spark_mq.remoting import RequestCode
from spark_mq.remoting.messages import RecallHandle, RecallMessageAnswer, RecallMessageRequest, ReplyMessageRequest
from storage.errors import NameIllegalError
from storage.format.arrays import queue_of_hash, string_hash
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, validate_group

T = TypeVar("T")
CALLBACK_THREADS = 4
_GRACE_SECONDS = 2.0
_NOT_FROM_THE_LOOP = "the client's own thread cannot wait for itself: send from another thread"
_LOG = logging.getLogger(__name__)
QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""Gives one of the topic's writable queues, by the message and the argument of the send. It runs in the caller's thread."""


class Producer:
    """A producer group's member in this process; open from the beginning until `close`.

    Routes of `topics` are queried at once, so that their brokers know the producer before it sends.
    """

    _HOOK_KINDS: ClassVar[tuple[type, ...]] = OF_PRODUCERS

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        options: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Raises GroupTakenError where this process has one of that group and settings, ClientSettingError."""
        check_kind("settings", settings, ClientSettings)
        check_kind("options", options, ProducerSettings)
        try:
            validate_group(group)
        except NameIllegalError as error:
            raise ClientSettingError("group", group, error.rule) from None
        listed = checked_hooks(hooks, self._HOOK_KINDS)
        self.settings = settings
        self.options = options or ProducerSettings()
        self.group = group
        self._pid = os.getpid()
        self._closed: ClientClosedError | None = None
        self._closing = threading.Lock()
        self._in_flight = InFlight(self.options.max_in_flight, self.options.max_in_flight_bytes)
        self._instance = ClientInstance.of(settings)
        named = with_namespace(settings.namespace, group)
        ids = UniqueIds(self._instance.client_id.partition("@")[0])
        self._maker = MessageMaker(self.options, ids.make, named, settings.namespace)
        self._loop = event_loop()
        self._tracer = Tracer(self._instance, group, "PRODUCE") if settings.enable_trace else None
        tracing = None if self._tracer is None else self._tracer.hook
        self._end_hooks = of_kind((*listed, tracing), EndTransactionHook)
        has_hooks = tracing is not None or any(isinstance(hook, OF_PRODUCERS) for hook in listed)
        watching = SendHooks(listed, group, settings.namespace, tracing) if has_hooks else None
        self._sender = Sender(self._instance, self.options, named, self._has_ended, watching)
        self._requests = PendingRequests(settings.namespace)
        self._announced: set[str] = set()
        self._hand_over: HandOver[Sending] = HandOver(self._loop, self._sender.begin)
        self._member = self._make_member(named)
        try:
            known = [self._maker.topic(topic) for topic in topics]
            self._run(self._begin(known))
        except BaseException:
            self._instance.release()
            raise

    @property
    def client_id(self) -> str:
        """The client's id in lists of brokers."""
        return self._instance.client_id

    @property
    def in_flight_count(self) -> int:
        """Number of messages without an answer yet; a batch counts as one."""
        return self._in_flight.count

    def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait. Without `queue` and `selector` the topic's queues take turns.

        A refusal or a network failure is tried again on another broker (`ProducerSettings.retries`), not where the queue is chosen by
        the caller. Raises SendFailedError where several tries failed, else the error of the only one.
        """
        started_at = self._begin_send()
        made = self._maker.message(message)
        return self._send(made, self._place(message, queue, selector, arg), timeout_ms, started_at)

    def hand_on(self, message: Message, queue: MessageQueue) -> SendResult:
        """Send a copy of a message that was received, to that queue: its properties stand as they are, UNIQ_KEY, tags and keys among
        them. They are not held to the rules of a program's own. Tried once.
        """
        started_at = self._begin_send()
        return self._send(self._maker.handed_on(message), queue, None, started_at)

    def send_async(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> SendFuture[SendResult]:
        """Send in the background; the future ends within the time-out. Network failures are tried again, refusals are not.

        Where too much is in flight it waits for room, or raises TooManyInFlightError (`ProducerSettings.when_full`). Callbacks of the
        future run in threads of their own.
        """
        started_at = self._begin_send()
        made = self._maker.message(message)
        return self._send_async(made, self._place(message, queue, selector, arg), timeout_ms, started_at)

    def send_oneway(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None:
        """Send without an answer: it returns when the request was given to a connection, and what becomes of it is not known."""
        started_at = self._begin_send()
        made = self._maker.message(message)
        self._wait(made, SendMode.ONEWAY, self._place(message, queue, selector, arg), None, started_at)

    def send_batch(
        self, messages: Iterable[Message], queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue, where they stand one behind the other. All are stored or none."""
        started_at = self._begin_send()
        made, place = self._batch(messages, queue)
        return self._send(made, place, timeout_ms, started_at)

    def send_batch_async(
        self, messages: Iterable[Message], queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendFuture[SendResult]:
        """`send_batch` in the background, as `send_async`."""
        started_at = self._begin_send()
        made, place = self._batch(messages, queue)
        return self._send_async(made, place, timeout_ms, started_at)

    def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> MessageExt:
        """Send a message and wait for a consumer's reply to it. `timeout_ms` (a send's, by default) is for both together.

        Raises ReplyTimeoutError where the message is stored and no reply came, else what `send_async` ends with. Other network
        failures than that are tried again, so a consumer may see a request twice.
        """
        if is_loop_thread():
            raise RuntimeError(_NOT_FROM_THE_LOOP)
        patience_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        reply = self._ask(message, queue, selector, arg, patience_ms, waits=True)
        try:
            return reply.result(patience_ms / 1000 + _GRACE_SECONDS)
        except TimeoutError:
            raise RequestTimeoutError(f"a request to topic {message.topic}", patience_ms) from None

    def request_async(
        self,
        message: Message,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> SendFuture[MessageExt]:
        """`request` in the background; the future ends with the reply or an error within the time-out.

        The first request to a topic looks for its brokers, and waits for that.
        """
        patience_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        return self._ask(message, queue, selector, arg, patience_ms, waits=False)

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Reply to a request that a consumer was given. It returns when the one who asked has the reply. Tried once.

        Raises MessageRefusedError where the message is no request, and ResponseError (SYSTEM_ERROR) where the one who asked has
        gone: the broker may have stored the reply all the same.
        """
        started_at = self._begin_send()
        topic, added = reply_topic_of(request)
        made = self._maker.reply(Message(topic, body, tags, keys, properties or {}), added)
        queues = self._sender.known_queues(topic) or self._run(self._sender.queues(topic))
        name = request.broker_name
        if name.startswith(LOGICAL_PREFIX):  # a static topic's queue is no broker's; the message is
            name = self._run(self._broker_name_at(request.store_host))
        there = [queue for queue in queues if queue.broker_name == name]
        return self._send(made, random.choice(there or queues), timeout_ms, started_at)

    def recall(self, topic: str, recall_handle: str, timeout_ms: int | None = None) -> str:
        """Call a timed message back that is not due yet; `recall_handle` is that of its SendResult. Returns its `message_id`.

        Raises ResponseError where the broker does not do it: without `recallMessageEnable=true`, of another topic, or too late.
        """
        self._check_open()
        handle = RecallHandle.read(recall_handle)
        if handle is None:
            rule = "it is no handle: give the recall_handle of a timed message's SendResult"
            raise ClientSettingError("recall_handle", recall_handle, rule)
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise ClientSettingError("topic", topic, "messages of retry topics and dead letters cannot be recalled")
        header = RecallMessageRequest(
            producer_group=self._member.group,
            topic=self._maker.topic(topic),
            recall_handle=recall_handle,
            broker_name=handle.broker_name,
        )
        patience_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        return self._run(self._recall(header, handle.broker_name, patience_ms))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that a message to the topic may go to: what selectors choose from.

        Raises TopicRouteNotFoundError, MessageQueueNotFoundError, NameServerUnreachableError.
        """
        self._check_open()
        named = self._maker.topic(topic)
        known = self._sender.known_queues(named)
        if known is None:
            known = self._run(self._sender.queues(named))
        return known if named == topic else tuple(queue._replace(topic=topic) for queue in known)

    def close(self, timeout_ms: int | None = None) -> None:
        """Wait for what is in flight, at most for `timeout_ms` (else a send's time-out), then leave the brokers.

        What has not ended by then ends with ClientClosedError, and so do requests that still wait for replies. A second call does
        nothing.
        """
        with self._closing:
            if self._closed is not None:
                return
            self._closed = ClientClosedError(f"producer {self.group}", "it is closed")
        if os.getpid() != self._pid:
            return  # its connections are the parent's
        seconds = (self.options.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        self._in_flight.wait_for_none(seconds)
        try:
            self._run(self._end(self._closed, int(seconds * 1000)))
        finally:
            self._instance.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For a transaction producer.

    def _make_member(self, group: str) -> ProducerMember:
        return ProducerMember(group, self._sender, self._requests)

    # Sending.

    def _send(
        self, made: OutgoingMessage, place: MessageQueue | None, timeout_ms: int | None, started_at: float
    ) -> SendResult:
        result = self._wait(made, SendMode.WAITING, place, timeout_ms, started_at)
        assert result is not None
        return result

    def _wait(
        self,
        made: OutgoingMessage,
        mode: SendMode,
        place: MessageQueue | None,
        timeout_ms: int | None,
        started_at: float,
    ) -> SendResult | None:
        if is_loop_thread():
            raise RuntimeError(_NOT_FROM_THE_LOOP)
        self._in_flight.add(len(made.body))
        future, timeout = self._submit(made, mode, place, timeout_ms, started_at)
        try:
            return future.result(timeout / 1000 + _GRACE_SECONDS)
        except TimeoutError:
            raise RequestTimeoutError(f"a send to topic {made.topic}", timeout) from None

    def _send_async(
        self, made: OutgoingMessage, place: MessageQueue | None, timeout_ms: int | None, started_at: float
    ) -> SendFuture[SendResult]:
        patience_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        blocks = self.options.when_full == "block"
        self._in_flight.take(len(made.body), patience_ms / 1000 if blocks else 0)
        return self._submit(made, SendMode.ASYNC, place, timeout_ms, started_at)[0]

    def _submit(
        self,
        made: OutgoingMessage,
        mode: SendMode,
        place: MessageQueue | None,
        timeout_ms: int | None,
        started_at: float,
    ) -> tuple[SendFuture[Any], int]:
        timeout = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        future: SendFuture[Any] = SendFuture()
        self._hand_over.put(Sending(made, mode, future, started_at + timeout / 1000, timeout, place))
        return future, timeout

    def _ask(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: object,
        timeout_ms: int,
        *,
        waits: bool,
    ) -> SendFuture[MessageExt]:
        """Begin a request. The topic's brokers get a heartbeat before its first one: they must know where to push the reply to."""
        started_at = self._begin_send()
        deadline = started_at + timeout_ms / 1000
        correlation_id = str(uuid.uuid4())
        added = {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: self.client_id, TTL: str(timeout_ms)}
        made = self._maker.request(message, added)
        place = self._place(message, queue, selector, arg)
        if made.topic not in self._announced:
            self._run(self._announce(made.topic, deadline, timeout_ms))
        if waits:
            self._in_flight.add(len(made.body))
        else:
            blocks = self.options.when_full == "block"
            self._in_flight.take(len(made.body), max(deadline - time.monotonic(), 0) if blocks else 0)
        reply: SendFuture[MessageExt] = SendFuture()
        asked = Asked(self._requests, correlation_id, message.topic, timeout_ms, reply)
        sending = Sending(made, SendMode.ASYNC, asked, deadline, timeout_ms, place)
        self._loop.call_soon_threadsafe(self._begin_request, asked, sending)
        return reply

    def _begin_request(self, asked: Asked, sending: Sending) -> None:
        self._requests.begin(asked, sending.deadline)
        self._sender.begin(sending)

    async def _announce(self, topic: str, deadline: float, timeout_ms: int) -> None:
        try:
            await asyncio.wait_for(self._sender.queues(topic), max(deadline - self._loop.time(), 0))
        except TimeoutError:
            raise RequestTimeoutError(f"the route of topic {topic}", timeout_ms) from None
        beat = self._loop.create_task(self._instance.send_heartbeat())
        await asyncio.wait({beat}, timeout=max(deadline - self._loop.time(), 0) / 2)  # one broker may be away
        self._announced.add(topic)

    async def _broker_name_at(self, address: str) -> str:
        return self._instance.broker_name_at(address)

    async def _recall(self, header: RecallMessageRequest, broker_name: str, timeout_ms: int) -> str:
        await self._instance.route(header.topic)
        address = await self._instance.broker_address(broker_name)
        code = RequestCode.RECALL_MESSAGE
        answer = await self._instance.remoting.ask(address, make_call(code, header), timeout_ms, topic=header.topic)
        return read_answer_header(RecallMessageAnswer, answer, address, code).message_id

    def _has_ended(self, sending: Sending) -> None:
        self._in_flight.release(len(sending.message.body))

    def _begin_send(self) -> float:
        """When the send begins, by the loop's clock. Raises ClientClosedError."""
        self._check_open()
        return time.monotonic()

    def _batch(
        self, messages: Iterable[Message], queue: MessageQueue | None
    ) -> tuple[OutgoingMessage, MessageQueue | None]:
        listed: Sequence[Message] = list(messages)
        made = self._maker.batch(listed)
        return made, self._place(listed[0], queue, None, None)

    def _place(
        self, message: Message, queue: MessageQueue | None, selector: QueueSelector | None, arg: object
    ) -> MessageQueue | None:
        """The queue that the caller chose, with the topic as brokers know it."""
        if selector is not None:
            if queue is not None:
                raise MessageRefusedError(message.topic, "queue", "give a queue or a selector, not both")
            queue = selector(self.queues(message.topic), message, arg)
            if not isinstance(queue, MessageQueue):
                raise MessageRefusedError(message.topic, "selector", f"it selected {queue!r:.80}, which is no queue")
        if queue is None:
            return None
        if queue.topic != message.topic:
            rule = f"{queue.topic!r} is another topic than the message's"
            raise MessageRefusedError(message.topic, "queue", rule)
        return queue._replace(topic=self._maker.topic(queue.topic))

    # Opening and closing.

    async def _begin(self, topics: Sequence[str]) -> None:
        for topic in topics:
            await self._sender.queues(topic)
        try:
            await self._instance.add_member(self._member)
        except BaseException:  # broken off: the client, which others may share, would keep the group
            await self._instance.remove_member(self._member)
            raise

    async def _end(self, reason: ClientClosedError, timeout_ms: int) -> None:
        await self._member.close(timeout_ms)
        self._requests.close(reason)
        self._sender.close(reason)
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.remove_member(self._member)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed
        if os.getpid() != self._pid:
            raise ClientClosedError(f"producer {self.group}", "it was made before a fork, by the parent process")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run(call)


class ProducerMember(Member):
    """The producer among the instance's members."""

    def __init__(self, group: str, sender: Sender, requests: PendingRequests) -> None:
        super().__init__(group)
        self._sender = sender
        self._requests = requests

    def topics(self) -> Sequence[str]:
        """Topics of its sends."""
        return self._sender.topics()

    def on_route(self, route: TopicRoute) -> None:
        """The sender's queues follow."""
        self._sender.on_route(route)

    def receive_reply(self, header: ReplyMessageRequest, body: bytes) -> bool:
        """The request gets it that waits for it."""
        return self._requests.receive(header, body)

    async def close(self, timeout_ms: int) -> None:
        """Nothing to wait for."""


class SendFuture(concurrent.futures.Future[T]):
    """The future of a send. Its callbacks run in threads of their own, never on the client's loop.

    What is on its way cannot be called back: `cancel` does nothing.
    """

    def cancel(self) -> bool:
        """False: the message may be at the broker already."""
        return False

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call `fn` with this future in another thread when it has ended. What it raises is logged."""
        super().add_done_callback(lambda ended: _callbacks.submit(_Call(fn, ended)))


class _Call:
    """A callback with its future, as a call that raises nothing."""

    def __init__(
        self, fn: Callable[[concurrent.futures.Future[T]], object], ended: concurrent.futures.Future[T]
    ) -> None:
        self._fn = fn
        self._ended = ended

    def __call__(self) -> None:
        try:
            self._fn(self._ended)
        except Exception:
            _LOG.exception("a callback of a send raised")


class _Callbacks:
    """The threads of the process, made when a callback is first wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(CALLBACK_THREADS, "spark-mq-callbacks")
            pool = self._pool
        pool.submit(call)


_callbacks = _Callbacks()


def _forget_the_parents_threads() -> None:
    global _callbacks
    _callbacks = _Callbacks()


when_forked(_forget_the_parents_threads)


class InFlight:
    """Messages and bytes under way, at most `max_count` and `max_bytes`. One message alone always fits.

    For threads that send and the loop that hears the answers. Java: DefaultMQProducerImpl.executeAsyncMessageSend with
    enableBackpressureForAsyncMode.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._count = 0
        self._bytes = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def count(self) -> int:
        """Messages under way."""
        return self._count

    def add(self, size_bytes: int) -> None:
        """Count one in, whether there is room or not: a thread that waits for its answer is its own bound."""
        with self._changed:
            self._count += 1
            self._bytes += size_bytes

    def take(self, size_bytes: int, timeout_seconds: float) -> None:
        """Count one in as soon as there is room. Raises TooManyInFlightError after the time (0: at once)."""
        with self._changed:
            if not self._has_room(size_bytes):
                self._waiting += 1
                try:
                    if not self._changed.wait_for(lambda: self._has_room(size_bytes), timeout_seconds):
                        raise TooManyInFlightError(self._count, self._bytes)
                finally:
                    self._waiting -= 1
            self._count += 1
            self._bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count one out."""
        with self._changed:
            self._count -= 1
            self._bytes -= size_bytes
            if self._waiting or not self._count:
                self._changed.notify_all()

    def wait_for_none(self, timeout_seconds: float) -> bool:
        """Wait until nothing is under way; False where the time was too short."""
        end = time.monotonic() + timeout_seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, max(end - time.monotonic(), 0))

    def _has_room(self, size_bytes: int) -> bool:
        return not self._count or (self._count < self._max_count and self._bytes + size_bytes <= self._max_bytes)


def by_hash(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """By Java's hash of the argument: equal arguments go to one queue, the same one that a Java producer takes.

    Java: SelectMessageQueueByHash.
    """
    return queues[queue_of_hash(java_hash(arg), len(queues))]


def by_random(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """Any of them. Java: SelectMessageQueueByRandom."""
    return random.choice(queues)


def by_machine_room(room_of: Callable[[MessageQueue], object]) -> QueueSelector:
    """A selector of queues in one machine room: `room_of` says the room of a queue, the send's `arg` the one that is wanted.

        producer.send(message, selector=by_machine_room(lambda queue: rooms[queue.broker_name]), arg="room-1")

    Any queue there; any at all where no queue of the room can be written. Java: SelectMessageQueueByMachineRoom, which selects nothing.
    """

    def selected(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        there = [queue for queue in queues if room_of(queue) == arg]
        return random.choice(there or queues)

    return selected


def java_hash(value: object) -> int:
    """`hashCode` of a String, an Integer (within 32 bits), a Long (beyond) or a Boolean. Raises TypeError for anything else."""
    if isinstance(value, str):
        return string_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        if -(1 << 31) <= value < 1 << 31:
            return value
        folded = (value ^ value >> 32) & 0xFFFFFFFF
        return folded - (1 << 32) if folded >= 1 << 31 else folded
    raise TypeError(f"a queue is selected by a str, a bool or an int of 64 bits, not by {value!r:.80}")
