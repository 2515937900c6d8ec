"""Tables of clients: producers and consumers of each group, and the client that has locked a queue."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_mq.broker.consumer_filters import ConsumerFilters
from spark_mq.broker.held_pulls import HeldPull
from spark_mq.broker.requests import BrokerEvent, ClientConnection, RegisterTopics, RunAgain, Tell
from spark_mq.remoting import HeaderEncoding, MessageQueue, ProtocolVersion, RequestCode, make_request, write_header
from spark_mq.remoting.consumers import ConsumerData, ConsumerGroupRequest, MessageModel, SubscriptionData
from storage.names import host_of
from storage.settings.load import StoreConfig
from storage.settings.nouns import ClientsConfig

PRODUCER_EXPIRES_MS = 120_000

_SLAVE_HOSTS_KEPT = 64


@dataclass(slots=True)
class KnownClient:
    """A client of a group, on one connection. Java: ClientChannelInfo."""

    connection: ClientConnection
    client_id: str
    language: str
    version: int
    seen_ms: int


class ProducerTable:
    """All groups of producers: whom a transaction check or a reply goes to. For one thread at a time.

    Times are ms of a monotonic clock. Java: ProducerManager. Departure: a client that leaves a group, or whose old connection
    ends, is found by its id while it is in another group or has another connection. Java forgets the id then, and replies to the
    client fail.
    """

    def __init__(self) -> None:
        self.groups: dict[str, dict[ClientConnection, KnownClient]] = {}
        self._by_client_id: dict[str, ClientConnection] = {}
        self._turn = itertools.count(1)

    def register(self, group: str, client: KnownClient) -> None:
        """A client is there, or there still."""
        known = self.groups.setdefault(group, {}).get(client.connection)
        if known is None:
            self.groups[group][client.connection] = client
            self._by_client_id[client.client_id] = client.connection
        else:
            known.seen_ms = client.seen_ms

    def unregister(self, group: str, connection: ClientConnection, client_id: str) -> None:
        """A client leaves one group."""
        clients = self.groups.get(group)
        if not clients:
            return
        clients.pop(connection, None)
        if not clients:
            del self.groups[group]
        self._left(connection, client_id)

    def closed(self, connection: ClientConnection) -> None:
        """A connection is gone: its client leaves all groups."""
        for group, clients in list(self.groups.items()):
            if (client := clients.pop(connection, None)) is not None:
                if not clients:
                    del self.groups[group]
                self._left(connection, client.client_id)

    def expire(self, now_ms: int) -> list[ClientConnection]:
        """Drop the clients that were silent for 120 s; their connections, to be closed."""
        silent = []
        for group, clients in list(self.groups.items()):
            for connection, client in list(clients.items()):
                if now_ms - client.seen_ms > PRODUCER_EXPIRES_MS:
                    del clients[connection]
                    self._left(connection, client.client_id)
                    silent.append(connection)
            if not clients:
                del self.groups[group]
        return silent

    def _left(self, connection: ClientConnection, client_id: str) -> None:
        """A client has left a group on this connection."""
        is_known = self._by_client_id.get(client_id) is connection
        if is_known and not any(connection in clients for clients in self.groups.values()):
            del self._by_client_id[client_id]

    def any_of(self, group: str) -> ClientConnection | None:
        """A client of the group, by turns. Java: getAvailableChannel."""
        connections = list(self.groups.get(group, ()))
        return connections[next(self._turn) % len(connections)] if connections else None

    def of_client(self, client_id: str) -> ClientConnection | None:
        """The connection of a client by its id."""
        return self._by_client_id.get(client_id)


@dataclass(slots=True)
class ConsumerGroup:
    """One group: its clients and subscriptions, as the last heartbeat said."""

    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    clients: dict[ClientConnection, KnownClient] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        """Whether each client gets all messages; then no client is notified of changes."""
        return self.message_model == MessageModel.BROADCASTING

    def client(self, client_id: str) -> KnownClient | None:
        """The client of that id."""
        return next((client for client in self.clients.values() if client.client_id == client_id), None)


class Change(NamedTuple):
    """A group whose clients changed, and the connections to notify."""

    group: str
    connections: tuple[ClientConnection, ...]


class ConsumerTable:
    """All groups of consumers that are online, and what each subscribes to; it tells which clients are to hear of a change.

    For one thread at a time. Times are ms of a monotonic clock. Java: ConsumerManager, ConsumerGroupInfo. A newer version
    replaces a subscription silently; topics that come or go and new connections are changes.
    """

    def __init__(self, *, expires_ms: int = 120_000, subscription_expires_ms: int = 600_000) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._pulled_at_ms: dict[tuple[str, str], int] = {}
        self._pulled: dict[str, ConsumerGroup] = {}
        """Subscriptions that pulls carried. Java: consumerCompensationTable."""
        self.expires_ms = expires_ms
        self.subscription_expires_ms = subscription_expires_ms

    def client_ids(self, name: str) -> tuple[str, ...]:
        """The ids of a group's clients, in no order; none of a group that is not online."""
        group = self.groups.get(name)
        return () if group is None else tuple(client.client_id for client in group.clients.values())

    def register(
        self, data: ConsumerData, client: KnownClient, *, notifies: bool, with_subscriptions: bool = True
    ) -> Change | None:
        """Note a client's heartbeat; returns the change, if other clients must be notified."""
        group = self.groups.setdefault(data.group_name, ConsumerGroup())
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.clients.get(client.connection)
        is_changed = known is None
        if known is None or known.client_id != client.client_id:
            group.clients[client.connection] = client
        else:
            known.seen_ms = client.seen_ms
        if with_subscriptions:
            is_changed |= _subscribe(group.subscriptions, data.subscriptions)
        return self._change(data.group_name, group) if is_changed and notifies else None

    def unregister(self, name: str, connection: ClientConnection, *, notifies: bool) -> tuple[bool, Change | None]:
        """A client leaves one group: whether the group is gone, and the change for those that stay."""
        group = self.groups.get(name)
        if group is None:
            return False, None
        group.clients.pop(connection, None)
        is_gone = self._drop_if_empty(name, group)
        return is_gone, self._change(name, group) if notifies else None

    def closed(self, connection: ClientConnection) -> tuple[list[str], list[Change]]:
        """A connection is gone: the groups that are gone with it, and the changes."""
        gone, changes = [], []
        for name, group in list(self.groups.items()):
            if group.clients.pop(connection, None) is None:
                continue
            if self._drop_if_empty(name, group):
                gone.append(name)
            if (change := self._change(name, group)) is not None:
                changes.append(change)
        return gone, changes

    def expire(self, now_ms: int) -> list[ClientConnection]:
        """Drop clients that were silent for too long; returns their connections, for closing. No client is notified, as in Java."""
        silent = []
        for name, group in list(self.groups.items()):
            for connection, client in list(group.clients.items()):
                if now_ms - client.seen_ms > self.expires_ms:
                    del group.clients[connection]
                    silent.append(connection)
            if not group.clients:
                del self.groups[name]
        for name, group in list(self._pulled.items()):
            for topic in list(group.subscriptions):
                if now_ms - self._pulled_at_ms[name, topic] > self.subscription_expires_ms:
                    del group.subscriptions[topic], self._pulled_at_ms[name, topic]
                    if not group.subscriptions:
                        del self._pulled[name]
        return silent

    def tell(self, name: str, subscription: SubscriptionData, now_ms: int) -> None:
        """Note the subscription that a pull carries. Java: compensateSubscribeData, which lets it expire by its version."""
        self._pulled_at_ms[name, subscription.topic] = now_ms
        self._pulled.setdefault(name, ConsumerGroup()).subscriptions[subscription.topic] = subscription

    def subscription(self, name: str, topic: str) -> SubscriptionData | None:
        """A group's subscription of a topic, as its heartbeat or else its pulls say. Java: findSubscriptionData."""
        for table in (self.groups, self._pulled):
            if (group := table.get(name)) is not None and (found := group.subscriptions.get(topic)) is not None:
                return found
        return None

    def subscriptions(self, name: str) -> Mapping[str, SubscriptionData]:
        """By topic, what a group subscribes to, as its heartbeat or else its pulls say. Java: getConsumerGroupInfo(group, true)."""
        group = self.groups.get(name) or self._pulled.get(name)
        return {} if group is None else group.subscriptions

    def subscription_count(self, name: str) -> int:
        """Number of topics that the group subscribes to by heartbeat."""
        group = self.groups.get(name)
        return 0 if group is None else len(group.subscriptions)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that subscribe to a topic, as of 5.4.0. Departure from 5.3.3, which says the topic's own name."""
        return {name for name, group in self.groups.items() if topic in group.subscriptions}

    def find(self, name: str, client_id: str) -> KnownClient | None:
        """A client of a group by its id."""
        group = self.groups.get(name)
        return None if group is None else group.client(client_id)

    def _change(self, name: str, group: ConsumerGroup) -> Change | None:
        return None if group.is_broadcasting else Change(name, tuple(group.clients))

    def _drop_if_empty(self, name: str, group: ConsumerGroup) -> bool:
        if group.clients:
            return False
        return self.groups.pop(name, None) is not None


def _subscribe(known: dict[str, SubscriptionData], subscriptions: Iterable[SubscriptionData]) -> bool:
    """Take over subscriptions; whether topics came or went. Java: ConsumerGroupInfo.updateSubscription."""
    is_changed = False
    topics = set()
    for sub in subscriptions:
        topics.add(sub.topic)
        old = known.get(sub.topic)
        is_changed |= old is None
        if old is None or sub.sub_version > old.sub_version:
            known[sub.topic] = sub
    gone = known.keys() - topics
    for topic in gone:
        del known[topic]
    return is_changed or bool(gone)


def subscriptions_by_topic(group: ConsumerGroup) -> Mapping[str, SubscriptionData]:
    """A copy, as bodies hold it."""
    return dict(group.subscriptions)


def too_old_to_ask(client: KnownClient) -> str | None:
    """Why a client cannot take requests about its offsets; None if it can. Java: Broker2Client."""
    if client.version < ProtocolVersion.V3_0_7_SNAPSHOT:
        return f"the client does not support this feature. version={client.version}"
    return None


LOCK_LIVES_MS = 60_000
"""Java: rocketmq.broker.rebalance.lockMaxLiveTime."""


class _Lock(NamedTuple):
    client_id: str
    locked_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return now_ms - self.locked_ms > LOCK_LIVES_MS


class QueueLocks:
    """Locks of queues for orderly consumption: one client of a group for each queue, for a minute. For one thread at a time.

    Java: RebalanceLockManager. Not supported: `lockInStrictMode`, which asks the other replicas.
    The last request decides: a lock outlives its client's connection, and a lock request after an unlock or after the client left the
    group succeeds, as in Java.
    Times are ms of a monotonic clock: if a clock were set forward, two clients would own one queue. Java: currentTimeMillis.
    Expired locks are dropped once in LOCK_LIVES_MS; Java keeps every lock.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._looked_ms = 0

    @property
    def count(self) -> int:
        """Number of locks in the table."""
        return sum(map(len, self._groups.values()))

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int) -> tuple[MessageQueue, ...]:
        """Those of the queues that the client has now: they were free, its own, or another's whose lock has expired."""
        if abs(now_ms - self._looked_ms) > LOCK_LIVES_MS:
            self._looked_ms = now_ms
            self._forget_expired(now_ms)
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or lock.is_expired(now_ms):
                locks[queue] = _Lock(client_id, now_ms)
                granted.append(queue)
        return tuple(granted)

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """The client's own locks of these queues end."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if (lock := locks.get(queue)) is not None and lock.client_id == client_id:
                del locks[queue]

    def _forget_expired(self, now_ms: int) -> None:
        for group, locks in list(self._groups.items()):
            kept = {queue: lock for queue, lock in locks.items() if not lock.is_expired(now_ms)}
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any lock of the group has not expired. Java: isLockAllExpired."""
        return any(not lock.is_expired(now_ms) for lock in self._groups.get(group, {}).values())


class Clients:
    """The clients of one broker, and the events for them.

    `lock` guards the parts that are not thread-safe, the groups' offsets and the figures of `Traffic`.
    """

    def __init__(
        self,
        config: ClientsConfig,
        filters: ConsumerFilters,
        *,
        clock: Callable[[], int],
        steady: Callable[[], int],
        encoding: HeaderEncoding = HeaderEncoding.JSON,
    ) -> None:
        """`clock` is the machine's, ms."""
        self.lock = threading.RLock()
        self.consumers = ConsumerTable(
            expires_ms=config.channel_expired_timeout, subscription_expires_ms=config.subscription_expired_timeout
        )
        self.producers = ProducerTable()
        self.locks = QueueLocks()
        self.filters = filters
        self.fingerprints: dict[str, int] = {}
        """Digests of the subscriptions in the last heartbeat of each group."""
        self.slave_hosts: dict[str, None] = {}
        """The last hosts that sent a request that only slaves send; with access control they have signed it."""
        self.events: deque[BrokerEvent] = deque()
        self.steady = steady
        """Monotonic clock for the time that a client is silent, or waits."""
        self.encoding = encoding
        self._clock = clock
        self._config = config

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        with self.lock:
            self._config = config.clients
            self.consumers.expires_ms = config.clients.channel_expired_timeout
            self.consumers.subscription_expires_ms = config.clients.subscription_expired_timeout

    def note_slave(self, connection: ClientConnection) -> None:
        """Note that this connection sent a request that only slaves send."""
        host = host_of(connection.address)
        with self.lock:
            self.slave_hosts.pop(host, None)
            self.slave_hosts[host] = None
            if len(self.slave_hosts) > _SLAVE_HOSTS_KEPT:
                del self.slave_hosts[next(iter(self.slave_hosts))]

    def shown_ms(self, steady_ms: int) -> int:
        """When a moment of the steady clock was, by the machine's, as it is set now."""
        return self._clock() - (self.steady() - steady_ms)

    # Events

    def tell(
        self, connection: ClientConnection, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> None:
        """A one-way request to a client."""
        command = make_request(code, fields, body, is_oneway=True, encoding=self.encoding)
        self.events.append(Tell(connection, command))

    def tell_of(self, change: Change | None) -> None:
        """Notify all clients of a group that others came or went, if the broker is configured to."""
        if change is None or not self._config.notify_consumer_ids_changed_enable:
            return
        fields = write_header(ConsumerGroupRequest(consumer_group=change.group))
        for connection in change.connections:
            self.tell(connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)

    def run_again(self, pulls: Iterable[HeldPull]) -> None:
        """Answer pulls now that have waited."""
        self.events.extend(RunAgain(pull.connection, pull.command) for pull in pulls)

    def register_topics(self, *topics: str) -> None:
        """Register these topics at name servers now."""
        self.events.append(RegisterTopics(topics))
