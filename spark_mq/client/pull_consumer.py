"""PullConsumer: the program polls for messages, and says when they are consumed.

    with PullConsumer(ClientSettings(name_servers=("host:9876",)), "group") as consumer:
        consumer.subscribe("topic")                    # queues are shared with the group's other clients, or
        consumer.assign(consumer.queues("topic"))      # … the program names its queues
        for message in consumer:                       # for ever; or poll(), which gives what there is
            …
        consumer.commit()

Messages of a `poll` count as consumed at the next `poll` or `commit`, or when the `with` block ends without an error and
`auto_commit` is on. So a message may come more than once, and none is lost.

Java: DefaultLitePullConsumer. Departure: Java's poll itself advances the offset; here a batch without a later call of the program is
delivered again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from spark_mq.client.consumer_calls import ConsumerMember
from spark_mq.client.errors import ClientClosedError, ClientSettingError
from spark_mq.client.event_loop import ListenerPool, run
from spark_mq.client.hooks import OF_CONSUMERS, ConsumeHooks, Hook, checked_hooks
from spark_mq.client.instance import ClientInstance
from spark_mq.client.listeners import QueueListener, tell_share
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.offset_stores import offset_store_of
from spark_mq.client.pull_engine import PullEngine
from spark_mq.client.pulls import ExpressionType, Subscription, subscription
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings, PullSettings, check_kind, with_namespace, without_namespace
from spark_mq.client.trace import Tracer
from spark_mq.remoting.consumers import ConsumerRunningInfo, ConsumeType
from storage.epoch_times import current_time_ms, other_unit_rule, steady_time_ms
from storage.names import validate_group, validate_topic

T = TypeVar("T")
POLL_TIMEOUT_MS = 5_000
_MARGIN_MS = 15_000


class PullConsumer:
    """A pull consumer of one group; any thread may call it, one at a time. Starts when it is made or by `with`."""

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        options: PullSettings | None = None,
        *,
        queue_listener: QueueListener | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Raises NameIllegalError, and ClientError where there is no name server, or the group is taken in this client.

        `queue_listener` is called when other queues of a subscribed topic are read, and when an assigned one's topic has other queues.
        """
        check_kind("settings", settings, ClientSettings)
        check_kind("options", options, PullSettings)
        self._hooks = checked_hooks(hooks, OF_CONSUMERS)
        self._queue_listener = queue_listener
        self.group = validate_group(group)
        self._settings = settings
        self._pull = options or PullSettings()
        self._lock = threading.RLock()
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._given: list[MessageExt] = []
        self._ahead: deque[MessageExt] = deque()
        self._instance = ClientInstance.of(settings)
        try:
            self._at_work: _AtWork | None = run(self._started())
        except BaseException:
            self._instance.release()
            raise

    async def _started(self) -> _AtWork:
        at_work = _AtWork(self, self._instance)
        await at_work.start()
        return at_work

    # Which queues.

    def subscribe(self, topic: str, expression: str | None = "*", *, expression_type: ExpressionType = "TAG") -> None:
        """Share a topic with the group's other clients, as PushConsumer.subscribe. Raises ClientSettingError after `assign`."""
        name = self._wire_topic(validate_topic(topic))
        wanted = subscription(name, expression, current_time_ms(), expression_type)
        self._run(self._running().subscribe(wanted.topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Read the topic no more."""
        self._run(self._running().subscribe(self._wire_topic(topic), None))

    def assign(
        self, queues: Iterable[MessageQueue], expression: str | None = "*", *, expression_type: ExpressionType = "TAG"
    ) -> None:
        """Read these queues and no others, even if other clients read them too. Raises ClientSettingError after `subscribe`.

        `expression` counts for all of them.
        """
        named = [self._wire(queue) for queue in queues]
        wanted = {
            queue.topic: subscription(queue.topic, expression, current_time_ms(), expression_type) for queue in named
        }
        self._run(self._running().assign(named, wanted))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return [self._own(queue) for queue in self._run(_called(self._running().engine.assignment))]

    def queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic. Raises TopicRouteNotFoundError, MessageQueueNotFoundError."""
        return [self._own(queue) for queue in self._run(self._running().calls.queues(self._wire_topic(topic)))]

    # Messages.

    def poll(self, timeout_ms: int = POLL_TIMEOUT_MS, limit: int | None = None) -> list[MessageExt]:
        """The next messages, at most `limit`, waited for; empty after the time. What was given before is consumed now."""
        with self._lock:
            most = self._pull.poll_limit if limit is None else limit
            if not self._ahead:
                self._ahead.extend(self._taken(most, timeout_ms))
            given = [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
            self._given += given
            at_work = self._at_work
            if at_work is not None:
                at_work.hooks.polled(given)
            return given

    def _taken(self, limit: int, timeout_ms: int) -> list[MessageExt]:
        done, self._given = self._given, []
        call = self._running().engine.take(done, limit, timeout_ms)
        return run(call, timeout_ms + _MARGIN_MS, f"a poll of group {self.group}")

    def __iter__(self) -> Iterator[MessageExt]:
        """All messages, until another thread closes the consumer. A message counts as consumed when the program takes the next."""
        while self._at_work is not None:
            try:
                yield from self.poll(limit=1)
            except ClientClosedError:
                return

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of these queues; what was pulled is still given out."""
        named = [self._wire(queue) for queue in queues]
        self._run(_called(self._running().engine.pause, named))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull them again."""
        named = [self._wire(queue) for queue in queues]
        self._run(_called(self._running().engine.resume, named))

    # Positions.

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue that is read. Raises SeekError where it lies outside, MessageQueueNotFoundError."""
        with self._lock:
            named = self._wire(queue)
            self._run(self._running().engine.seek(named, offset))
            self._ahead = deque(message for message in self._ahead if message.queue != named)
            self._given = [message for message in self._given if message.queue != named]

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message."""
        self.seek(queue, self.begin_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what is sent from now on."""
        self.seek(queue, self.end_offset(queue))

    def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Go on with the first message stored at a time or later. Raises ClientSettingError for seconds or nanoseconds."""
        rule = other_unit_rule(time_ms)
        if rule is not None:
            raise ClientSettingError("time_ms", time_ms, rule)
        self.seek(queue, self._run(self._running().calls.offset_at(self._wire(queue), time_ms)))

    def begin_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset."""
        return self._run(self._running().calls.begin_offset(self._wire(queue)))

    def end_offset(self, queue: MessageQueue) -> int:
        """The queue's end: the offset of its next message."""
        return self._run(self._running().calls.end_offset(self._wire(queue)))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store what is consumed: all that `poll` and the iteration have given. Or, of queues that are read, these offsets."""
        with self._lock:
            if offsets is None:
                done, self._given = self._given, []
                self._run(self._running().engine.commit(done))
                return
            for queue, offset in offsets.items():
                self._run(self._running().engine.commit_offset(self._wire(queue), offset))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset; None if nothing is stored."""
        return self._run(self._running().engine.committed(self._wire(queue)))

    def close(self) -> None:
        """Leave. What was given and not consumed by now is given again, to this group's next consumer.

        A poll that waits in another thread ends with no messages.
        """
        with self._closing:  # not the lock that a poll holds while it waits
            at_work, self._at_work = self._at_work, None
        if at_work is not None and self._pid == os.getpid():
            try:
                self._run(at_work.close())
            finally:
                self._instance.release()

    def __enter__(self) -> PullConsumer:
        self._running()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._pull.auto_commit and self._at_work is not None:
                self.commit()
        finally:
            self.close()

    @property
    def client_id(self) -> str:
        """This client among the group's."""
        return self._instance.client_id

    def _running(self) -> _AtWork:
        if self._at_work is None or self._pid != os.getpid():  # after a fork it is the parent's
            raise ClientClosedError(f"the consumer of group {self.group}", "it is closed")
        return self._at_work

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run(call, self._settings.question_timeout_ms + _MARGIN_MS, f"a call of the consumer of {self.group}")

    def _wire_topic(self, topic: str) -> str:
        return with_namespace(self._settings.namespace, topic)

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._wire_topic(queue.topic))

    def _own(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=without_namespace(self._settings.namespace, queue.topic))


async def _called(method: Any, *arguments: Any) -> Any:
    return method(*arguments)


class _AtWork(ConsumerMember):
    """A pull consumer between start and close."""

    engine: PullEngine

    def __init__(self, consumer: PullConsumer, instance: ClientInstance) -> None:
        settings, pull = consumer._settings, consumer._pull
        group = with_namespace(settings.namespace, consumer.group)
        super().__init__(instance, group, pull, ConsumeType.CONSUME_ACTIVELY)
        self._tracer = Tracer(instance, consumer.group, "CONSUME") if settings.enable_trace else None
        tracing = () if self._tracer is None else (self._tracer.hook,)
        self.hooks = ConsumeHooks((*consumer._hooks, *tracing), consumer.group, settings.namespace)
        self._queue_listener = consumer._queue_listener
        self._pool = ListenerPool(f"queues-{consumer.group[:100]}", 1)
        self._queues: dict[str, frozenset[MessageQueue]] = {}
        self.engine = PullEngine(
            self.calls,
            offset_store_of(pull.model, self.calls, pull.offset_directory, instance.client_id, group),
            pull,
            steady_time_ms,
            namespace=settings.namespace,
            write_interval_ms=settings.persist_consumer_offset_interval_ms,
            filtered=self.hooks.filters,
            on_share=self._share_changed,
        )
        self._way: str | None = None
        self._start_time_ms = current_time_ms()

    async def subscribe(self, topic: str, wanted: Subscription | None) -> None:
        """Subscribe, or with None unsubscribe."""
        self._refuse_other_than("subscribe")
        if wanted is None:
            self.engine.subscriptions.pop(topic, None)
        else:
            await self.calls.check(wanted)
            self._go("subscribe")
            self.engine.subscriptions[topic] = wanted.in_place_of(self.engine.subscriptions.get(topic))
        await self.subscriptions_changed()

    async def assign(self, queues: Collection[MessageQueue], wanted: dict[str, Subscription]) -> None:
        self._refuse_other_than("assign")
        for topic, of_topic in wanted.items():
            await self.calls.check(of_topic)
            self._queues[topic] = frozenset((await self.instance.route(topic)).subscribe_queues)
        self._go("assign")
        self.engine.expressions = wanted
        self.engine.assign(queues)
        await self.instance.send_heartbeat()

    def _go(self, way: str) -> None:
        """From here on the consumer has used it: not before the brokers have let it."""
        self._refuse_other_than(way)
        self._way = way

    def _refuse_other_than(self, way: str) -> None:
        if self._way not in (None, way):
            rule = f"this consumer has used {self._way}: a consumer subscribes or assigns, not both"
            raise ClientSettingError(way, "called", rule)

    def on_route(self, route: TopicRoute) -> None:
        super().on_route(route)
        queues = frozenset(route.subscribe_queues)
        if route.topic in self.engine.expressions and self._queues.get(route.topic) != queues:
            self._queues[route.topic] = queues
            own = [queue for queue in self.engine.assignment() if queue.topic == route.topic]
            self._share_changed(route.topic, list(route.subscribe_queues), own)

    def _share_changed(self, topic: str, all_queues: list[MessageQueue], own: list[MessageQueue]) -> None:
        if self._queue_listener is not None:
            namespace = self.instance.settings.namespace
            tell_share(self._pool, self._queue_listener, namespace, topic, all_queues, own)

    async def close(self) -> None:
        try:
            await self.engine.close()
        finally:
            self.hooks.close()
            await self._pool.close(0)
            if self._tracer is not None:
                await self._tracer.close()
            await self.leave()

    def topics(self) -> Collection[str]:
        return (*self.engine.subscriptions, *self.engine.expressions)

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        queues = self.engine.process_queues()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self.instance.settings.name_servers),
                "PROP_CONSUME_TYPE": self.consume_type.value,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._start_time_ms),
            },
            subscriptions=tuple(wanted.wire_form() for wanted in self.engine.subscriptions.values()),
            queue_table={queue: found.info(offset) for queue, (found, offset) in sorted(queues.items())},
        )
