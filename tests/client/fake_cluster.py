"""A cluster in memory for tests of consumers: queues with messages, groups with offsets, locks and clients; and consumers of it.

`FakeCluster` is what the brokers hold; `clients[client_id]` is one client's sight of it, which can be made to fail.
Listeners are called by `InlinePool` on the loop's thread, or when the test says so (`ManualPool`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_mq.client.errors import BrokerUnreachableError, TopicRouteNotFoundError
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.offset_stores import RemoteOffsetStore
from spark_mq.client.pulls import MAY_SUSPEND, Pull, PullResult, PullStatus, subscription
from spark_mq.client.push_engine import Listeners, PushEngine
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from storage.format.record import encode_record
from storage.names import retry_topic
from tests.client.virtual_time import clock_ms
from tests.support.message_builder import make_message

GROUP = "G"
FIRST = PushSettings(consume_from=ConsumeFrom.FIRST)
Listener = Callable[[Sequence[MessageExt], Any], ConsumeStatus]


class FakeCluster:
    """One broker, `broker-a`, with one group's state."""

    def __init__(self, **queue_counts: int) -> None:
        self.queues = {
            topic: [MessageQueue(topic, "broker-a", n) for n in range(count)] for topic, count in queue_counts.items()
        }
        self.queues[retry_topic(GROUP)] = [MessageQueue(retry_topic(GROUP), "broker-a", 0)]
        self.logs: dict[MessageQueue, list[bytes]] = {queue: [] for each in self.queues.values() for queue in each}
        self.first_offsets: dict[MessageQueue, int] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.locks: dict[MessageQueue, str] = {}
        self.clients: dict[str, FakeBrokers] = {}
        self.events: list[tuple[Any, ...]] = []
        self.arrived = asyncio.Event()
        self.suggested_broker_id = 0

    def put(self, topic: str, count: int, queue_id: int = 0, **properties: str) -> FakeCluster:
        """The cluster, with messages of the bodies 0, 1, 2 … in a queue."""
        queue = self.queues[topic][queue_id]
        log = self.logs[queue]
        for _ in range(count):
            body = str(len(log)).encode()
            log.append(encode_record(make_message(topic, queue_id, len(log), 0, body=body, properties=properties)))
        self.arrived.set()
        self.arrived = asyncio.Event()
        return self

    def join(self, client_id: str, on_change: Callable[[], None] = lambda: None) -> FakeBrokers:
        """A client of the group; the others are told."""
        for other in self.clients.values():
            other.on_change()
        self.clients[client_id] = FakeBrokers(self, client_id, on_change)
        return self.clients[client_id]

    def leave(self, client_id: str) -> None:
        """As a broker sees 35, or a closed connection."""
        del self.clients[client_id]
        for other in self.clients.values():
            other.on_change()


class FakeBrokers:
    """One client's sight of the cluster. A call whose name is in `failing` raises."""

    def __init__(self, cluster: FakeCluster, client_id: str, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self.client_id = client_id
        self.on_change = on_change
        self.failing: set[str] = set()
        self.loses_one_way = False
        """What is sent without waiting for an answer does not arrive: its connection is gone before it is read."""
        self.pulls: list[Pull] = []
        self.pulled_from: list[int] = []
        self.sent_back: list[tuple[MessageExt, str, int, int]] = []
        self.sent: list[Message] = []

    def _check(self, call: str) -> None:
        if call in self.failing:
            raise BrokerUnreachableError("broker-a:10911", "the test says so")

    async def queues(self, topic: str) -> list[MessageQueue]:
        self._check("queues")
        if topic not in self._cluster.queues:
            raise TopicRouteNotFoundError(topic, "ns:9876", None)
        return self._cluster.queues[topic]

    async def client_ids(self, topic: str) -> list[str]:
        self._check("client_ids")
        return list(self._cluster.clients)

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        self._check("stored_offset")
        self._cluster.events.append(("ask offset", self.client_id, queue))
        return self._cluster.offsets.get(queue)

    async def store_offset(self, queue: MessageQueue, offset: int, *, wait: bool = False) -> None:
        self._check("store_offset")
        if wait or not self.loses_one_way:
            self._cluster.events.append(("store", self.client_id, queue, offset))
            self._cluster.offsets[queue] = offset

    async def begin_offset(self, queue: MessageQueue) -> int:
        return self._cluster.first_offsets.get(queue, 0)

    async def end_offset(self, queue: MessageQueue) -> int:
        self._check("end_offset")
        return len(self._cluster.logs[queue])

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return min(time_ms, len(self._cluster.logs[queue]))

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        self._check("lock")
        locks = self._cluster.locks
        got = {queue for queue in queues if locks.get(queue, self.client_id) == self.client_id}
        for queue in got:
            locks[queue] = self.client_id
        return got

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        self._check("unlock")
        for queue in queues:
            self._cluster.events.append(("unlock", self.client_id, queue))
            if self._cluster.locks.get(queue) == self.client_id:
                del self._cluster.locks[queue]

    async def pull(self, pull: Pull, broker_id: int) -> PullResult:
        self._check("pull")
        self.pulls.append(pull)
        self.pulled_from.append(broker_id)
        if pull.sys_flag(at_master=True) & 1:
            self._cluster.offsets[pull.queue] = pull.committed_offset or 0
        log, first = self._cluster.logs[pull.queue], self._cluster.first_offsets.get(pull.queue, 0)
        if pull.offset < first or pull.offset > len(log):
            return PullResult(PullStatus.OFFSET_ILLEGAL, max(first, min(pull.offset, len(log))), first, len(log))
        if pull.offset == len(log) and pull.sys_flag(at_master=True) & MAY_SUSPEND:
            arrived = self._cluster.arrived
            try:
                await asyncio.wait_for(arrived.wait(), pull.suspend_ms / 1000)
            except TimeoutError:
                return PullResult(PullStatus.NO_NEW_MESSAGE, pull.offset, first, len(log))
            return await self.pull(replace(pull, suspend_ms=0), broker_id)
        if pull.offset == len(log):
            return PullResult(PullStatus.NO_NEW_MESSAGE, pull.offset, first, len(log))
        found = log[pull.offset : pull.offset + pull.limit]
        suggested = self._cluster.suggested_broker_id
        return PullResult(PullStatus.FOUND, pull.offset + len(found), first, len(log), suggested, 0, b"".join(found))

    async def send_back(
        self, message: MessageExt, origin_topic: str, delay_level: int, max_reconsume_times: int
    ) -> None:
        self._check("send_back")
        self.sent_back.append((message, origin_topic, delay_level, max_reconsume_times))

    async def send_as_new(self, message: Message) -> None:
        self._check("send_as_new")
        self.sent.append(message)

    async def announce(self) -> None:
        self._check("announce")


class InlinePool:
    """Listeners are called on the loop's thread, one after the other."""

    thread_count = 1

    def __init__(self) -> None:
        self.is_closed = False

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(lambda: done(None if self.is_closed else work()))

    async def call(self, work: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(work, future.set_result)
        return await future

    async def close(self, timeout_ms: int) -> bool:
        self.is_closed = True
        return True


class ManualPool(InlinePool):
    """A listener's answer stays with the pool until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.held.append((work, done))

    def begin(self) -> list[Callable[[], None]]:
        """Call all listeners that wait; each element, called, hands its answer on."""
        held, self.held = self.held, []
        return [partial(done, work()) for work, done in held]


class Consumer:
    """An engine, what its listener got, and the client that it is in the cluster."""

    def __init__(
        self,
        cluster: FakeCluster,
        listener: Listener | None = None,
        client_id: str = "c1",
        settings: PushSettings = FIRST,
        *,
        is_orderly: bool = False,
        pool: InlinePool | None = None,
        queue_listener: Any = None,
    ) -> None:
        self.got: list[tuple[int, int]] = []
        self.cluster = cluster
        self.client_id = client_id
        self.brokers = cluster.join(client_id, lambda: self.engine.rebalance_soon())
        self.listener = listener or (lambda messages, context: ConsumeStatus.SUCCESS)
        given = (None, self.listen) if is_orderly else (self.listen, None)
        listeners = Listeners(*given, queue_listener)
        offsets = RemoteOffsetStore(self.brokers)
        self.engine = PushEngine(
            self.brokers,
            offsets,
            pool or InlinePool(),
            GROUP,
            listeners,
            settings,
            ClientSettings("127.0.0.1:9876"),
            clock_ms,
        )
        for topic in ("T", "%RETRY%G"):
            self.engine.subscriptions[topic] = subscription(topic, "*", 1)

    def listen(self, messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        self.got += [(message.queue_id, message.queue_offset) for message in messages]
        return self.listener(messages, context)

    async def begun(self, seconds: float = 0) -> Consumer:
        """At work for so long."""
        await self.engine.start()
        await asyncio.sleep(seconds)
        return self

    async def close(self) -> None:
        await self.engine.close(1_000)
        self.cluster.leave(self.client_id)


def queue(number: int = 0) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


def received(
    queue_offset: int,
    *,
    topic: str = "TopicA",
    queue_id: int = 0,
    body: bytes = b"body",
    reconsume_times: int = 0,
    **properties: str,
) -> MessageExt:
    """A message as a pull gives it."""
    record = make_message(topic, queue_id, queue_offset, 1000 * queue_offset, body=body, properties=properties)
    return MessageExt.of(replace(record, properties=properties, reconsume_times=reconsume_times), "broker-a")
