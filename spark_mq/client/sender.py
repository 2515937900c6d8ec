"""Running sends: a queue and a request for each try, and the reaction to its answer. Everything runs on the loop's thread.

    begin ─▶ the topic's queues ─▶ a queue whose turn it is ─▶ request ─▶ stored: the result
                                             ▲                         └─▶ failed: `send_retries` decides
                                             └──── again, not that broker ◀──┘

A send has one deadline for all its tries, and ends with a result or an error by then. A task is created only if a route, a broker's
address or a connection is missing.

Java: DefaultMQProducerImpl.sendDefaultImpl and sendKernelImpl, MQClientAPIImpl.sendMessageAsync. Departure: Java's retry after an
asynchronous failure sends the same header to another broker, with queue id and broker name of the first. Here each try has a
header of its own, made for its queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from spark_mq.client.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    ClientError,
    RequestTimeoutError,
    ResponseError,
    SendFailedError,
    SendForbiddenError,
    request_text,
)
from spark_mq.client.event_loop import event_loop
from spark_mq.client.hooks import SendHooks, SendMessageContext
from spark_mq.client.instance import ClientInstance
from spark_mq.client.outgoing_messages import OutgoingMessage
from spark_mq.client.routes import TopicRoute, vip_address
from spark_mq.client.send_results import (
    SendMode,
    SendResult,
    SendStatus,
    goes_again,
    is_network_failure,
    read_send_answer,
)
from spark_mq.client.settings import ProducerSettings
from spark_mq.client.transport import Promise
from spark_mq.remoting import HeaderTemplate, MessageQueue, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.messages import SendMessageRequest
from storage.epoch_times import current_time_ms, steady_time_ms
from storage.names import MASTER_ID
from storage.rules.response_codes import ResponseCode

T = TypeVar("T")

FAILED_COUNTS_AS_MS = 10_000
_BANS_MS = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
_TEMPLATES_KEPT = 4_096
_VARYING = ("sys_flag", "born_time_ms", "flag", "properties")
_LOG = logging.getLogger(__name__)


class Sending:
    """One send, from its beginning to its end.

    `outcome` gets the SendResult (None of a one-way send that left) or a ClientError, on the loop's thread. `queue`: where to, with the
    topic as brokers know it; None: whose turn it is.
    """

    __slots__ = (
        "deadline",
        "failures",
        "last_broker",
        "message",
        "mode",
        "outcome",
        "queue",
        "stored",
        "timeout_ms",
        "tries_left",
    )

    def __init__(
        self,
        message: OutgoingMessage,
        mode: SendMode,
        outcome: Promise,
        deadline: float,
        timeout_ms: int,
        queue: MessageQueue | None = None,
    ) -> None:
        self.message = message
        self.mode = mode
        self.outcome = outcome
        self.deadline = deadline
        self.timeout_ms = timeout_ms
        self.queue = queue
        self.tries_left = 0
        self.failures: list[tuple[str, ClientError]] = []
        self.last_broker: str | None = None
        """The broker of the try before, whether that failed or was stored less safely than the producer wants."""
        self.stored: SendResult | None = None


class _Try:
    """One try of a send; what its answer goes to (`transport.Promise`)."""

    __slots__ = ("_sender", "address", "context", "is_done", "queue", "sending", "started_at")

    def __init__(
        self,
        sender: Sender,
        sending: Sending,
        queue: MessageQueue,
        address: str,
        started_at: float,
        context: SendMessageContext | None = None,
    ) -> None:
        self._sender = sender
        self.sending = sending
        self.queue = queue
        self.address = address
        self.started_at = started_at
        self.context = context
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, answer: RemotingCommand) -> None:
        self.is_done = True
        self._sender.hear(self, answer)

    def set_exception(self, error: Exception) -> None:
        self.is_done = True
        self._sender.tried(self, error)


class _Topic:
    """The queues of one topic, and whose turn it is."""

    __slots__ = ("queues", "turns")

    def __init__(self, queues: tuple[MessageQueue, ...]) -> None:
        self.queues = queues
        self.turns = QueueTurns()


class Sender:
    """The sends of one producer group. `ended` is called for each sending when it has ended."""

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        group: str,
        ended: Callable[[Sending], object] = lambda sending: None,
        hooks: SendHooks | None = None,
    ) -> None:
        """`group` as brokers know it."""
        self._hooks = hooks
        self._instance = instance
        self._settings = settings
        self._requests = SendRequests(group, settings)
        self._ended = ended
        self._namespace = instance.settings.namespace
        self._is_vip = instance.settings.vip_channel_enabled
        self._loop = event_loop()
        self._faults = LatencyFaults() if settings.avoids_slow_brokers else None
        self._topics: dict[str, _Topic] = {}
        self._refreshing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[Sending] = set()
        self._closed: ClientClosedError | None = None

    def topics(self) -> list[str]:
        """Topics that were sent to, as brokers know them."""
        return list(self._topics)

    def known_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The known queues of a topic, from any thread; None if no send has looked them up."""
        found = self._topics.get(topic)
        return None if found is None else found.queues

    def on_route(self, route: TopicRoute) -> None:
        """A topic's route has changed. A topic without queues keeps those before: a send to them says why they do not take it."""
        found = self._topics.get(route.topic)
        if found is not None and route.publish_queues:
            found.queues = route.publish_queues

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's writable queues; of one that is not there those that it will get.

        Raises TopicRouteNotFoundError, MessageQueueNotFoundError, NameServerUnreachableError.
        """
        count = self._settings.default_queue_count
        queues = await self._instance.publish_queues(topic, default_queue_count=count)
        found = self._topics.setdefault(topic, _Topic(queues))
        found.queues = queues
        return queues

    async def send(self, message: OutgoingMessage, timeout_ms: int) -> SendResult:
        """Send and wait, for a caller on the loop."""
        outcome: asyncio.Future[SendResult] = self._loop.create_future()
        self.begin(Sending(message, SendMode.WAITING, outcome, self._loop.time() + timeout_ms / 1000, timeout_ms))
        return await outcome

    def begin(self, sending: Sending) -> None:
        """Begin a send. Nothing is raised: what fails goes to its outcome."""
        retries = {SendMode.WAITING: self._settings.retries, SendMode.ASYNC: self._settings.async_retries}
        sending.tries_left = retries.get(sending.mode, 0)
        if sending.queue is not None and sending.mode is SendMode.WAITING:
            sending.tries_left = 0  # as in Java: a caller that names the queue decides what to do
        self._under_way.add(sending)
        self._next_try(sending)

    def close(self, error: ClientClosedError) -> None:
        """End all sends that are under way with the error, and take no more."""
        self._closed = error
        for task in self._tasks:
            task.cancel()
        for sending in list(self._under_way):
            self._end(sending, None, error)
        if self._hooks is not None:
            self._hooks.close()

    # A try.

    def _next_try(self, sending: Sending) -> None:
        try:
            self._try(sending)
        except Exception as error:
            self._fail(sending, error)

    def _try(self, sending: Sending) -> None:
        if self._closed is not None:
            raise self._closed
        started_at = self._loop.time()
        if started_at >= sending.deadline:
            raise self._too_late(sending)
        topic = self._topics.get(sending.message.topic)
        if topic is None:
            self._keep(self._with_route(sending))
            return
        queue = sending.queue
        if queue is None:
            queue = topic.turns.choose(topic.queues, sending.last_broker, self._faults)
        address = self._instance.broker_addresses(self._instance.broker_name_of(queue)).get(MASTER_ID)
        if address is None:
            self._keep(self._with_address(sending, queue))
            return
        self._request(sending, queue, address, started_at)

    def _request(self, sending: Sending, queue: MessageQueue, address: str, started_at: float) -> None:
        if self._is_vip:
            address = vip_address(address)
        if self._hooks is None:
            self._send(sending, queue, address, started_at, None)
        else:
            self._keep(self._send_hooked(self._hooks, sending, queue, address))

    def _send(
        self,
        sending: Sending,
        queue: MessageQueue,
        address: str,
        started_at: float,
        context: SendMessageContext | None,
    ) -> None:
        command = self._requests.make(sending.message, queue)
        if sending.mode is SendMode.ONEWAY:
            self._keep(self._send_oneway(sending, address, command, context))
            return
        # Not from `started_at`: looking for the address may have taken long.
        left = sending.deadline - self._loop.time()
        left_ms = max(ceil(left * 1000), 1)  # up, so that no moment is left for a try that is in vain
        most_ms = self._settings.max_try_timeout_ms
        if most_ms is not None and sending.tries_left:
            left_ms = min(left_ms, most_ms)
        tried = _Try(self, sending, queue, address, started_at, context)
        self._instance.remoting.invoke_for(tried, address, command, left_ms)

    def hear(self, tried: _Try, answer: RemotingCommand) -> None:
        """The answer to a try has come."""
        sending = tried.sending
        code = send_code(sending.message)
        broker_name = tried.queue.broker_name
        topic, message_id = sending.message.topic, sending.message.message_id
        result = read_send_answer(answer, code, tried.address, broker_name, topic, message_id, self._namespace)
        self.tried(tried, result)

    def tried(self, tried: _Try, outcome: SendResult | Exception) -> None:
        """A try has its result, or an error: hooks hear of it first. Their time is not the broker's."""
        if self._faults is not None and isinstance(outcome, SendResult):
            self._faults.note(tried.queue.broker_name, self._since_ms(tried.started_at))
        if self._hooks is None or tried.context is None:
            self._judge(tried, outcome)
        else:
            self._keep(self._judge_hooked(self._hooks, tried, tried.context, outcome))

    def _judge(self, tried: _Try, result: SendResult | Exception) -> None:
        sending, broker_name = tried.sending, tried.queue.broker_name
        if not isinstance(result, SendResult):
            self.fail_try(sending, tried.queue, result, tried.started_at)
            return
        is_enough = result.status is SendStatus.SEND_OK or not self._settings.retries_unless_ok
        if is_enough or sending.mode is not SendMode.WAITING or not sending.tries_left:
            self._end(sending, result, None)
            return
        sending.stored, sending.last_broker = result, broker_name
        sending.tries_left -= 1
        self._next_try(sending)

    def fail_try(self, sending: Sending, queue: MessageQueue, error: Exception, started_at: float) -> None:
        """A try has failed: the next one, or the end."""
        if not isinstance(error, ClientError):
            self._end(sending, None, error)
            return
        is_waiting = sending.mode is SendMode.WAITING
        if self._faults is not None and not isinstance(error, SendForbiddenError):
            is_reachable = not (is_waiting and isinstance(error, ResponseError))  # as in Java, strange as it is
            self._faults.note(queue.broker_name, self._since_ms(started_at), has_failed=True, is_reachable=is_reachable)
        sending.failures.append((queue.broker_name, error))
        sending.last_broker = queue.broker_name
        code = getattr(error, "code", None)
        if is_network_failure(error) or code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NOT_LEADER_FOR_QUEUE):
            self._refresh(sending.message.topic)
        again = goes_again(error, is_waited_for=is_waiting, retried_codes=self._settings.retried_codes)
        if again and sending.tries_left and self._loop.time() < sending.deadline:
            sending.tries_left -= 1
            if code == ResponseCode.NOT_LEADER_FOR_QUEUE:  # the queue has moved: the next try needs the new route
                self._keep(self._when_refreshed(sending))
            else:
                self._next_try(sending)
            return
        self._end(sending, None, self._summed_up(sending))

    # What takes a task.

    async def _when_refreshed(self, sending: Sending) -> None:
        try:
            await self._in_time(
                sending, self._refresh_route(sending.message.topic), "the route of a topic whose queue has moved"
            )
        except Exception as error:
            self._fail(sending, error)
        else:
            self._next_try(sending)

    async def _with_route(self, sending: Sending) -> None:
        try:
            what = f"the route of topic {sending.message.topic}"
            await self._in_time(sending, self.queues(sending.message.topic), what)
        except Exception as error:
            self._fail(sending, error)
        else:
            self._next_try(sending)

    async def _with_address(self, sending: Sending, queue: MessageQueue) -> None:
        started_at = self._loop.time()
        try:
            found = self._instance.queue_address(queue)
            address = await self._in_time(sending, found, f"the address of broker {queue.broker_name}")
            self._request(sending, queue, address, started_at)
        except BrokerNotFoundError as error:
            self.fail_try(sending, queue, error, started_at)
        except Exception as error:
            self._fail(sending, error)

    async def _in_time(self, sending: Sending, call: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `call`. Raises RequestTimeoutError at the send's deadline."""
        try:
            return await asyncio.wait_for(call, max(sending.deadline - self._loop.time(), 0))
        except TimeoutError:
            raise RequestTimeoutError(what, sending.timeout_ms) from None

    async def _send_oneway(
        self, sending: Sending, address: str, command: RemotingCommand, context: SendMessageContext | None
    ) -> None:
        left_ms = max(int((sending.deadline - self._loop.time()) * 1000), 1)
        failure = None
        try:
            await self._instance.remoting.invoke_oneway(address, command, left_ms)
        except Exception as error:
            failure = error
        if self._hooks is not None and context is not None:
            await self._tell_hooks(self._hooks, sending, context, failure)
        self._end(sending, None, failure)

    async def _send_hooked(self, hooks: SendHooks, sending: Sending, queue: MessageQueue, address: str) -> None:
        """A send that hooks hold up ends at its deadline, and leaves only before it."""
        context = hooks.context(sending.message, queue, address, sending.mode)
        overdue = self._loop.call_at(sending.deadline, lambda: self._fail(sending, self._too_late(sending)))
        started_at = self._loop.time()
        try:
            try:
                await hooks.before(context)
            finally:
                overdue.cancel()
            started_at = self._loop.time()
            if sending in self._under_way and started_at < sending.deadline:
                self._send(sending, queue, address, started_at, context)
                return
            error = self._too_late(sending)
            self._fail(sending, error)
            await hooks.after(context, error)
        except SendForbiddenError as error:
            self.fail_try(sending, queue, error, started_at)
        except Exception as error:
            self._fail(sending, error)

    async def _judge_hooked(
        self, hooks: SendHooks, tried: _Try, context: SendMessageContext, outcome: SendResult | Exception
    ) -> None:
        await self._tell_hooks(hooks, tried.sending, context, outcome)
        self._judge(tried, outcome)

    async def _tell_hooks(
        self, hooks: SendHooks, sending: Sending, context: SendMessageContext, outcome: SendResult | Exception | None
    ) -> None:
        """Call the hooks behind a try, and wait for them until the deadline: a slow one must not turn a result into a time-out."""
        told = self._keep(hooks.after(context, outcome))
        await asyncio.wait({told}, timeout=max(sending.deadline - self._loop.time(), 0))

    def _refresh(self, topic: str) -> None:
        """Query the topic's route now, beside the sends; `on_route` is called after a change."""
        if topic in self._topics and topic not in self._refreshing:
            self._refreshing.add(topic)
            self._keep(self._refresh_route(topic))

    async def _refresh_route(self, topic: str) -> None:
        try:
            self.on_route(await self._instance.route(topic, refresh=True))
        except ClientError as error:
            _LOG.debug("the query for the route of topic %s after a failed send failed: %s", topic, error.describe())
        finally:
            self._refreshing.discard(topic)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The end.

    def _fail(self, sending: Sending, error: Exception) -> None:
        """End a send for a reason that another try would not mend."""
        if not isinstance(error, ClientError):
            _LOG.error("a send failed unexpectedly", exc_info=error)
        self._end(sending, None, error)

    def _end(self, sending: Sending, result: SendResult | None, error: Exception | None) -> None:
        if sending not in self._under_way:
            return
        self._under_way.discard(sending)
        self._ended(sending)
        if sending.outcome.done():  # the caller has gone
            return
        if error is None:
            sending.outcome.set_result(result)
        elif sending.stored is not None:
            sending.outcome.set_result(sending.stored)
        else:
            sending.outcome.set_exception(error)

    def _summed_up(self, sending: Sending) -> ClientError:
        """The error of the only try, or all of them."""
        if len(sending.failures) == 1:
            return sending.failures[0][1]
        return SendFailedError(sending.message.topic, sending.failures)

    def _too_late(self, sending: Sending) -> ClientError:
        if sending.failures:
            return self._summed_up(sending)
        return RequestTimeoutError(request_text(send_code(sending.message)), sending.timeout_ms)

    def _since_ms(self, started_at: float) -> int:
        return int((self._loop.time() - started_at) * 1000)


@dataclass(slots=True)
class _Fault:
    is_reachable: bool = True
    available_from_ms: int = 0


class LatencyFaults:
    """The results of the tries so far, by broker name.

    Brokers that were slow or failed are left out for a while, where the producer asks for that (`avoids_slow_brokers`).

        a try took at least   0   50  100   550   1,800   3,000    5,000   15,000 ms
        left out for          0    0    0  2,000   5,000   6,000   10,000   30,000 ms      a failed try counts as 10,000

    Java: MQFaultStrategy, LatencyFaultToleranceImpl, by the machine's clock: one that is set back makes its bans longer. Owned by one
    thread. Not supported: the detector (startDetectorEnable, off by default), which looks whether a broker that could not be reached
    is there again.
    """

    def __init__(self, clock: Callable[[], int] = steady_time_ms) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}

    def note(self, broker_name: str, latency_ms: int, *, has_failed: bool = False, is_reachable: bool = True) -> None:
        """A try ended. A ban that is under way is never shortened."""
        fault = self._faults.setdefault(broker_name, _Fault())
        fault.is_reachable = is_reachable
        ban = ban_ms(FAILED_COUNTS_AS_MS if has_failed else latency_ms)
        if ban:
            fault.available_from_ms = max(fault.available_from_ms, self._clock() + ban)

    def is_available(self, broker_name: str) -> bool:
        """Whether it is not banned now."""
        fault = self._faults.get(broker_name)
        return fault is None or self._clock() >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Whether the last try reached it."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.is_reachable


def ban_ms(latency_ms: int) -> int:
    """For how long a broker is left out after a try that took so long. Java: computeNotAvailableDuration."""
    return next((ban for least, ban in _BANS_MS if latency_ms >= least), 0)


class QueueTurns:
    """The turns of one topic, beginning with any queue: round robin, without the broker of the try before and those that are banned.

    Java: TopicPublishInfo.selectOneMessageQueue, MQFaultStrategy.selectOneMessageQueue. Owned by one thread; Java counts in each
    thread of its own.
    """

    def __init__(self) -> None:
        self._turn = random.getrandbits(31)

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The next queue; `queues` is not empty."""
        self._turn += 1
        return queues[self._turn % len(queues)]

    def next_of(self, queues: Sequence[MessageQueue], admits: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """The next queue that is admitted; None where none is."""
        for _ in queues:
            queue = self.next(queues)
            if admits(queue):
                return queue
        return None

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, faults: LatencyFaults | None
    ) -> MessageQueue:
        """The queue of the next try: of an available broker, else of one that was reached, else of any."""
        if last_broker is None and faults is None:
            return self.next(queues)
        if faults is None:
            found = self.next_of(queues, lambda queue: queue.broker_name != last_broker)
            return found or self.next(queues)
        for admits in (faults.is_available, faults.is_reachable):
            found = self.next_of(
                queues,
                lambda queue, admits=admits: admits(queue.broker_name) and queue.broker_name != last_broker,  # type: ignore[misc]
            )
            if found is not None:
                return found
        return self.next(queues)


def send_code(message: OutgoingMessage) -> int:
    """The code of its request: 310, of a batch 320, of a reply 325."""
    if message.is_reply:
        return RequestCode.SEND_REPLY_MESSAGE_V2
    return RequestCode.SEND_BATCH_MESSAGE if message.is_batch else RequestCode.SEND_MESSAGE_V2


class SendRequests:
    """The requests of one producer group, one for each try; what is the same for all messages of a queue is written once.

    Java: SendMessageRequestHeaderV2, MQClientAPIImpl.sendMessage.
    """

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        """`group` as brokers know it."""
        self._group = group
        self._settings = settings
        self._templates: dict[tuple[MessageQueue, int], HeaderTemplate] = {}

    def make(self, message: OutgoingMessage, queue: MessageQueue) -> RemotingCommand:
        """The request that puts the message into that queue, born now."""
        code = send_code(message)
        if message.reconsume_times or message.max_reconsume_times is not None:
            return make_request(code, write_header(self._header(message, queue), code), message.body)
        template = self._templates.get((queue, code))
        if template is None:
            if len(self._templates) >= _TEMPLATES_KEPT:
                self._templates.clear()  # somebody names queues that are none
            template = HeaderTemplate(self._header(message, queue), code, _VARYING)
            self._templates[queue, code] = template
        fields = template.fill(str(message.sys_flag), str(current_time_ms()), str(message.flag), message.properties)
        return make_request(code, fields, message.body)

    def _header(self, message: OutgoingMessage, queue: MessageQueue) -> SendMessageRequest:
        return SendMessageRequest(
            producer_group=self._group,
            topic=message.topic,
            default_topic=self._settings.template_topic,
            default_topic_queue_count=self._settings.default_queue_count,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_time_ms=current_time_ms(),
            flag=message.flag,
            properties=message.properties,
            reconsume_times=message.reconsume_times,
            unit_mode=self._settings.unit_mode,
            max_reconsume_times=message.max_reconsume_times,
            is_batch=message.is_batch,
            broker_name=queue.broker_name,
        )
