"""PushConsumer: passes a group's messages to a listener in its own threads.

    def listen(messages, context):
        for message in messages:
            print(message.topic, message.body)
        return ConsumeStatus.SUCCESS

    with PushConsumer(ClientSettings(name_servers=("host:9876",)), "group", listen) as consumer:
        consumer.subscribe("topic", "TagA || TagB")
        …

The group's clients, Java's included, share the queues. A message without SUCCESS is delivered again, up to `max_reconsume_times`,
and then becomes a dead letter (`%DLQ%group`). A message may come more than once: after a crash, and when queues move to another client.

Java: DefaultMQPushConsumer, DefaultMQPushConsumerImpl. Not supported: POP consumption (clientRebalance=false), class filters.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from spark_mq.client.consumer_calls import ConsumerMember
from spark_mq.client.errors import ClientClosedError, ClientSettingError
from spark_mq.client.event_loop import ListenerPool, run
from spark_mq.client.hooks import OF_CONSUMERS, ConsumeHooks, Hook, checked_hooks
from spark_mq.client.instance import ClientInstance
from spark_mq.client.listeners import (
    ConcurrentContext,
    ConcurrentListener,
    ConsumeStatus,
    OrderlyContext,
    OrderlyListener,
    QueueListener,
)
from spark_mq.client.message import MessageExt, MessageQueue, decode_records
from spark_mq.client.offset_stores import offset_store_of
from spark_mq.client.pulls import ExpressionType, Subscription, subscription
from spark_mq.client.push_engine import Listeners, PushEngine
from spark_mq.client.settings import ClientSettings, PushSettings, check_kind, with_namespace
from spark_mq.client.trace import Tracer
from spark_mq.remoting.consumers import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumeType, MessageModel
from spark_mq.remoting.consumers import (
    ConsumeStatus as TopicConsumeStatus,
)
from storage.epoch_times import current_time_ms, shown_time_ms, steady_time_ms
from storage.names import RETRY_PREFIX, retry_topic, validate_group, validate_topic

T = TypeVar("T")
CLOSE_TIMEOUT_MS = 30_000
_MARGIN_MS = 15_000
_DIRECTLY = {
    ConsumeStatus.SUCCESS: "CR_SUCCESS",
    ConsumeStatus.LATER: "CR_LATER",
    ConsumeStatus.COMMIT: "CR_COMMIT",
    ConsumeStatus.ROLLBACK: "CR_ROLLBACK",
}


class PushConsumer:
    """A consumer of one group; safe for threads. Nothing is sent before `start`, which `with` calls."""

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        listener: ConcurrentListener | None = None,
        *,
        orderly_listener: OrderlyListener | None = None,
        options: PushSettings | None = None,
        queue_listener: QueueListener | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Give a `listener`, which many threads call at once, or an `orderly_listener`, called for a queue once at a time.

        `queue_listener` is called when other queues are read. Raises NameIllegalError, ClientSettingError.
        """
        self._hooks = checked_hooks(hooks, OF_CONSUMERS)
        if (listener is None) == (orderly_listener is None):
            raise ClientSettingError("listener", listener, "give either listener or orderly_listener")
        called: tuple[tuple[str, object], ...] = (("listener", listener), ("orderly_listener", orderly_listener))
        for name, given in called:
            if given is not None and not callable(given):
                rule = "it must be a function; settings of the consumer go to options=PushSettings(…)"
                raise ClientSettingError(name, given, rule)
        check_kind("settings", settings, ClientSettings)
        check_kind("options", options, PushSettings)
        self.group = validate_group(group)
        self._settings = settings
        self._push = options or PushSettings()
        self._listener = listener
        self._orderly_listener = orderly_listener
        self._queue_listener = queue_listener
        self._wanted: dict[str, Subscription] = {}
        self._at_work: _AtWork | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = threading.RLock()

    # Before and after the start.

    def subscribe(self, topic: str, expression: str | None = "*", *, expression_type: ExpressionType = "TAG") -> None:
        """Consume a topic: all of it, tags (`A || B`), or by an SQL92 expression. In place of an earlier subscription of the topic.

        All clients of the group must subscribe alike. Raises NameIllegalError, ValueError; after the start ClientError where the
        brokers refuse the expression.
        """
        wire_topic = with_namespace(self._settings.namespace, validate_topic(topic))
        wanted = subscription(wire_topic, expression, current_time_ms(), expression_type)
        with self._lock:
            self._check_open()
            self._wanted[wire_topic] = wanted
            if self._at_work is not None:
                self._run(self._at_work.subscribe(wanted))

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more; its queues are given up."""
        wire_topic = with_namespace(self._settings.namespace, topic)
        with self._lock:
            self._wanted.pop(wire_topic, None)
            if self._at_work is not None:
                self._run(self._at_work.unsubscribe(wire_topic))

    def start(self) -> None:
        """Join the group and begin. Raises ClientError: no name server, no rights, an SQL92 expression refused, the group taken."""
        with self._lock:
            self._check_open()
            if self._at_work is not None:
                return
            self._pid = os.getpid()
            instance = ClientInstance.of(self._settings)
            try:
                self._at_work = run(self._started(instance))
            except BaseException:
                instance.release()
                raise

    async def _started(self, instance: ClientInstance) -> _AtWork:
        at_work = _AtWork(self, instance)
        await at_work.start()
        return at_work

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> bool:
        """Leave: pulls end, listeners that run are waited for, offsets are stored, locks given back, the group left.

        False where a listener still ran after the time; what it works on is delivered again. A listener that calls it waits for itself.
        """
        with self._lock:
            self._is_closed = True
            at_work, self._at_work = self._at_work, None
        if at_work is None or self._pid != os.getpid():  # after a fork it is the parent's
            return True
        try:
            return run(at_work.close(timeout_ms), 2 * timeout_ms + _MARGIN_MS, f"closing the consumer of {self.group}")
        finally:
            at_work.instance.release()

    def __enter__(self) -> PushConsumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # While it runs.

    def pause(self) -> None:
        """Pull nothing new until `resume`. Java: suspend."""
        self._run(self._call(PushEngine.pause))

    def resume(self) -> None:
        """Pull again."""
        self._run(self._call(PushEngine.resume))

    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._run(self._call(PushEngine.assignment))

    @property
    def client_id(self) -> str:
        """This client among the group's. Raises ClientClosedError before the start."""
        return self._running().instance.client_id

    async def _call(self, method: Any) -> Any:
        return method(self._running().engine)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run(call, self._settings.question_timeout_ms + _MARGIN_MS, f"a call of the consumer of {self.group}")

    def _running(self) -> _AtWork:
        if self._at_work is None or self._pid != os.getpid():
            reason = "it is closed" if self._is_closed else "it was not started in this process"
            error = ClientClosedError(f"the consumer of group {self.group}", reason)
            if not self._is_closed and self._at_work is None:
                error.hint = "Call start(), which `with` does"
            raise error
        return self._at_work

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(f"the consumer of group {self.group}", "it is closed")


class _AtWork(ConsumerMember):
    """A push consumer between start and close."""

    engine: PushEngine

    def __init__(self, consumer: PushConsumer, instance: ClientInstance) -> None:
        settings, push = consumer._settings, consumer._push
        group = with_namespace(settings.namespace, consumer.group)
        super().__init__(instance, group, push, ConsumeType.CONSUME_PASSIVELY)
        self._listener = consumer._listener
        self._orderly_listener = consumer._orderly_listener
        self._pool = ListenerPool(f"consume-{consumer.group[:100]}", push.thread_count)
        self._tracer = Tracer(instance, consumer.group, "CONSUME") if settings.enable_trace else None
        tracing = () if self._tracer is None else (self._tracer.hook,)
        self._hooks = ConsumeHooks((*consumer._hooks, *tracing), consumer.group, settings.namespace)
        concurrent, orderly = (
            self._hooks.around(listener, push.consume_timeout_ms)
            for listener in (consumer._listener, consumer._orderly_listener)
        )
        self.engine = PushEngine(
            self.calls,
            offset_store_of(push.model, self.calls, push.offset_directory, instance.client_id, group),
            self._pool,
            group,
            Listeners(concurrent, orderly, consumer._queue_listener, self._hooks.filters),
            push,
            settings,
            steady_time_ms,
        )
        self.engine.subscriptions.update(consumer._wanted)
        if push.model is MessageModel.CLUSTERING:
            topic = retry_topic(group)
            self.engine.subscriptions[topic] = subscription(topic, "*", current_time_ms())

    async def start(self) -> None:
        for wanted in list(self.engine.subscriptions.values()):
            if not wanted.topic.startswith(RETRY_PREFIX):  # which the first heartbeat makes
                await self.calls.check(wanted)
        await super().start()

    async def subscribe(self, wanted: Subscription) -> None:
        await self.calls.check(wanted)
        self.engine.subscriptions[wanted.topic] = wanted.in_place_of(self.engine.subscriptions.get(wanted.topic))
        await self.subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        self.engine.subscriptions.pop(topic, None)
        await self.subscriptions_changed()

    async def close(self, timeout_ms: int) -> bool:
        try:
            return await self.engine.close(timeout_ms)
        finally:
            self._hooks.close()
            if self._tracer is not None:
                await self._tracer.close()
            await self.leave()

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        says = {each.name: str(getattr(self.settings, each.name)) for each in fields(self.settings)}
        says |= {
            "PROP_NAMESERVER_ADDR": ";".join(self.instance.settings.name_servers),
            "PROP_CONSUME_TYPE": self.consume_type.value,
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": str(self._orderly_listener is not None).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(self._pool.thread_count),
            "PROP_CONSUMER_START_TIMESTAMP": str(shown_time_ms(self.engine.start_time_ms)),
        }
        wanted = sorted(self.engine.subscriptions.values(), key=lambda each: each.topic)
        return ConsumerRunningInfo(
            properties=says,
            subscriptions=tuple(each.wire_form() for each in wanted),
            queue_table=dict(sorted(self.engine.running_info().items())),
            status_table={each.topic: TopicConsumeStatus() for each in wanted},
            jstack=_stacks() if with_stacks else None,
        )

    async def consume_directly(self, record: bytes, broker_name: str) -> ConsumeDirectlyResult:
        found = decode_records(record)
        messages = [replace(MessageExt.of(each, broker_name), topic=self.engine.topic_of(each)) for each in found]
        started_ms = steady_time_ms()
        result, remark, auto_commit = await self._pool.call(partial(self._consume_one, messages)) or (None, None, True)
        return ConsumeDirectlyResult(
            is_order=self._orderly_listener is not None,
            auto_commit=auto_commit,
            consume_result=result or "CR_RETURN_NULL",
            remark=remark,
            spent_time_ms=steady_time_ms() - started_ms,
        )

    def _consume_one(self, messages: list[MessageExt]) -> tuple[str, str | None, bool]:
        """In a thread: what the listener says, why it fails, and whether it leaves commits to the consumer."""
        orderly, concurrent = OrderlyContext(messages[0].queue), ConcurrentContext(messages[0].queue)
        try:
            if self._orderly_listener is not None:
                answer: object = self._orderly_listener(messages, orderly)
            else:
                assert self._listener is not None  # one of the two is given
                answer = self._listener(messages, concurrent)
        except BaseException as error:  # as in `listeners.answer_of`; here the operator gets it
            return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}", orderly.auto_commit
        known = _DIRECTLY[answer] if isinstance(answer, ConsumeStatus) else "CR_RETURN_NULL"
        return known, None, orderly.auto_commit


def _stacks() -> str:
    """The stacks of all threads of the process. Java: UtilAll.jstack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    )
