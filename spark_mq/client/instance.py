"""One client of a cluster in a process: connections, routes, heartbeats; shared by all producers and consumers of equal settings.

    instance = ClientInstance.of(settings)      # counted
    instance.release()                          # the last one closes it

A route is queried at its first use, and then every 30 s for the topics of the members. Heartbeats go to all brokers of the known
routes every 30 s, and at once over a new connection; heartbeats to slaves name consumers only. After a fork the child makes its own
instances; the parent's instances raise ClientClosedError in the child.

Java: MQClientInstance, MQClientManager. Departures: clients share an instance by equal settings, not by client id; a client without
members sends no heartbeats; `refresh` raises an error if the name server knows no route, where Java returns the last known one.
Members keep the last known route, as in Java: a name server that was just started knows no topic for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_mq.client.address_server import FETCH_INTERVAL_MS, FIRST_FETCH_AGAIN_MS
from spark_mq.client.calls import make_call
from spark_mq.client.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    ClientError,
    GroupTakenError,
    MessageQueueNotFoundError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import event_loop, run, when_forked
from spark_mq.client.members import BrokerRequests, Kind, Member
from spark_mq.client.remoting_client import NameServers, RemotingClient
from spark_mq.client.routes import LOGICAL_PREFIX, TopicRoute, default_route, subscribe_address
from spark_mq.client.settings import ClientSettings, split_address
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.consumers import HeartbeatData, ProducerData, UnregisterClientRequest
from storage.names import MASTER_ID, RETRY_PREFIX, same_address
from storage.rules.response_codes import ResponseCode
from storage.rules.topics import AUTO_CREATE_TOPIC

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
_FIRST_HEARTBEAT_MS = 1_000
_POLLS = 3
"""After so many polls a route that was not given again is out of date."""
_LOG = logging.getLogger(__name__)


class ClientInstance:
    """The shared parts of the producers, consumers and admin of one client. Async calls run on the loop's thread."""

    def __init__(self, settings: ClientSettings, client_id: str) -> None:
        self.settings = settings
        self.client_id = client_id
        self.remoting = RemotingClient(settings)
        self.name_servers = NameServers(self.remoting, settings)
        self._loop = event_loop()
        self._users = 0
        self._closed: ClientClosedError | None = None
        self._members: dict[tuple[Kind, str], Member] = {}
        self._routes = KeptRoutes(settings.poll_name_server_interval_ms)
        self._defaults: dict[str, KeptRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._duties: list[asyncio.Task[None]] = []
        self._beats: set[asyncio.Task[None]] = set()
        self._beating: set[str] = set()  # addresses that a heartbeat is on its way to
        self.remoting.on_connected = self._beat_over_new_connection
        BrokerRequests(lambda kind, group: self._members.get((kind, group)), self._producers).listen(self.remoting)

    # Made and closed.

    @classmethod
    def of(cls, settings: ClientSettings) -> ClientInstance:
        """The process's instance of these settings, made if there is none; the caller must `release` it once."""
        client_id = None
        while True:
            with _registry.lock:  # the loop takes it too: nothing may wait for a network in here
                instance = _registry.instances.get(settings)
                if instance is None and client_id is not None:
                    instance = _registry.instances[settings] = cls(settings, client_id)
                    instance._loop.call_soon_threadsafe(instance._start)
                if instance is not None:
                    instance._users += 1
                    return instance
            client_id = make_client_id(settings)  # may ask a slow name service

    def release(self) -> None:
        """Give it back from a thread that is not the loop's. The last one closes it and waits for that."""
        if self._give_back():
            run(self._close(), 2 * self.settings.request_timeout_ms + 2_000, f"closing client {self.client_id}")

    async def release_async(self) -> None:
        """The same on the loop."""
        if self._give_back():
            await self._close()

    def _give_back(self) -> bool:
        with _registry.lock:
            self._users -= 1
            if self._users > 0 or self._closed is not None:
                return False
            if _registry.instances.get(self.settings) is self:
                del _registry.instances[self.settings]
            return True

    def _start(self) -> None:
        duties = [self._poll_routes(), self._send_heartbeats()]
        if self.name_servers.are_looked_up:
            duties.append(self._look_up_name_servers())
        self._duties = [self._loop.create_task(duty) for duty in duties]

    async def _close(self) -> None:
        for member in list(self._members.values()):
            await self.remove_member(member)
        self._closed = ClientClosedError(f"client {self.client_id}", "it is closed")
        for task in [*self._duties, *self._asking.values(), *self._beats]:
            task.cancel()
        await self.remoting.close()

    def _forget(self) -> None:
        self._closed = ClientClosedError(f"client {self.client_id}", "it was made before a fork, by the parent process")

    @property
    def is_on_its_loop(self) -> bool:
        """Whether the caller, a coroutine, runs on the event loop of the client."""
        return asyncio.get_running_loop() is self._loop

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # Requests.

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
        """As RemotingClient.invoke."""
        self._check_open()
        return await self.remoting.invoke(address, command, timeout_ms)

    async def ask(
        self,
        address: str,
        command: RemotingCommand,
        *,
        topic: str | None = None,
        group: str | None = None,
        accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeouts: int = 1,
    ) -> RemotingCommand:
        """As RemotingClient.ask, within so many time-outs of a question."""
        self._check_open()
        timeout_ms = timeouts * self.settings.question_timeout_ms
        return await self.remoting.ask(address, command, timeout_ms, topic=topic, group=group, accepted=accepted)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> None:
        """As RemotingClient.invoke_oneway."""
        self._check_open()
        await self.remoting.invoke_oneway(address, command, timeout_ms)

    # Routes.

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The topic's route, not older than the poll interval; with `refresh` queried now.

        While no name server answers, the last known one. Raises TopicRouteNotFoundError, NameServerUnreachableError; the
        former leaves the route of a member's topic as it was.
        """
        self._check_open()
        kept = self._routes.get(topic)
        if kept is not None and not refresh and self._is_fresh(kept):
            return kept.route
        try:
            return await asyncio.shield(self._route_query(topic))
        except asyncio.CancelledError:
            self._check_open()  # the question was cancelled, not the caller
            raise
        except TopicRouteNotFoundError:
            if kept is not None and not refresh:
                return kept.route
            # Members keep the last known route: the name server may just have started.
            if topic not in self._wanted_topics():
                self._routes.forget(topic)
            raise
        except ClientError as error:
            if kept is None:
                raise
            _LOG.warning("the route of topic %s is the one before: %s", topic, error.describe())
            return kept.route

    def known_route(self, topic: str) -> TopicRoute | None:
        """The last known route, without asking."""
        kept = self._routes.get(topic)
        return None if kept is None else kept.route

    async def publish_queues(self, topic: str, *, default_queue_count: int | None = None) -> tuple[MessageQueue, ...]:
        """The queues to send to. With `default_queue_count`, for a topic without a route those it will get: TBW102's.

        Raises MessageQueueNotFoundError where none can be written, TopicRouteNotFoundError.
        """
        try:
            route = await self.route(topic)
        except TopicRouteNotFoundError:
            if default_queue_count is None:
                raise
            route = await self._default_route(topic, default_queue_count)
        if not route.publish_queues:
            raise MessageQueueNotFoundError(topic, "no queue of it can be written now")
        return route.publish_queues

    async def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read, sorted. Raises MessageQueueNotFoundError where none can be read, TopicRouteNotFoundError."""
        route = await self.route(topic)
        if not route.subscribe_queues:
            raise MessageQueueNotFoundError(topic, "no queue of it can be read now")
        return route.subscribe_queues

    def broker_addresses(self, broker_name: str) -> Mapping[int, str]:
        """The broker's addresses by id, as the known routes say; empty where none does."""
        return self._brokers.get(broker_name, {})

    def broker_name_at(self, address: str) -> str:
        """The name of the broker at an address, as the known routes say; "" where none does."""
        names = (
            name
            for name, addresses in self._brokers.items()
            if any(same_address(address, each) for each in addresses.values())
        )
        return next(names, "")

    def broker_name_of(self, queue: MessageQueue) -> str:
        """The broker to ask about a queue, as the known route says: of a logical queue of a static topic its leader."""
        if not queue.broker_name.startswith(LOGICAL_PREFIX) or (route := self.known_route(queue.topic)) is None:
            return queue.broker_name
        return route.broker_name_of(queue)

    async def queue_address(self, queue: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str:
        """Like `broker_address`, for the broker to ask about a queue."""
        try:
            return await self.broker_address(self.broker_name_of(queue), broker_id, only_this=only_this)
        except BrokerNotFoundError:
            if not queue.broker_name.startswith(LOGICAL_PREFIX):
                raise
        await self.route(queue.topic, refresh=True)  # it may have another leader
        return await self.broker_address(self.broker_name_of(queue), broker_id, only_this=only_this)

    async def broker_address(self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = True) -> str:
        """The address of the broker with that id; without `only_this`, another broker of its name if that one is away.

        Raises BrokerNotFoundError, after a new query of the routes that named the broker.
        """
        self._check_open()
        for is_last in (False, True):
            addresses = self.broker_addresses(broker_name)
            found = addresses.get(broker_id) if only_this else subscribe_address(addresses, broker_id, only_this=False)
            if found is not None:
                return found
            if not is_last:
                await self._refresh_routes_of(broker_name)
        raise BrokerNotFoundError(broker_name, broker_id)

    def _is_fresh(self, kept: KeptRoute) -> bool:
        return self._loop.time() - kept.at < self.settings.poll_name_server_interval_ms / 1000

    def _route_query(self, topic: str) -> asyncio.Task[TopicRoute]:
        """The running query for that route, which callers share."""
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = self._loop.create_task(self._ask_for(topic))
            task.add_done_callback(lambda done: self._asking.pop(topic, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may have gone
        return task

    async def _ask_for(self, topic: str) -> TopicRoute:
        route, is_new = self._routes.keep(await self.name_servers.route(topic), self._loop.time())
        self._defaults.pop(topic, None)
        self._brokers.update(route.brokers)
        if is_new:
            self._tell_members(route)
        return route

    def _tell_members(self, route: TopicRoute) -> None:
        for member in list(self._members.values()):
            try:
                if route.topic in member.topics():
                    member.on_route(route)
            except Exception:
                _LOG.exception("%s %s did not take the route of topic %s", member.kind, member.group, route.topic)

    async def _default_route(self, topic: str, queue_count: int) -> TopicRoute:
        kept = self._defaults.get(topic)
        if kept is None or not self._is_fresh(kept):
            route = default_route(topic, await self.route(AUTO_CREATE_TOPIC), queue_count)
            kept = self._defaults[topic] = KeptRoute(route, self._loop.time())
        return kept.route

    async def _refresh_routes_of(self, broker_name: str) -> None:
        topics = self._routes.topics_at(broker_name)
        await asyncio.gather(*(self.route(topic, refresh=True) for topic in topics), return_exceptions=True)

    def _wanted_topics(self) -> set[str]:
        return {topic for member in self._members.values() for topic in member.topics()}

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_name_server_interval_ms / 1000)
            try:
                topics = sorted(self._wanted_topics())
                outcomes = await asyncio.gather(*map(self._route_query, topics), return_exceptions=True)
                for topic, outcome in zip(topics, outcomes, strict=True):
                    if isinstance(outcome, Exception) and not topic.startswith(RETRY_PREFIX):  # made when it is needed
                        _LOG.warning("the route of topic %s is the one before: %s", topic, outcome)
                self._brokers = self._routes.brokers(self._wanted_topics())
            except Exception:
                _LOG.exception("the query for the routes of client %s failed", self.client_id)

    async def _look_up_name_servers(self) -> None:
        pause_ms = FIRST_FETCH_AGAIN_MS
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = FETCH_INTERVAL_MS
            try:
                await self.name_servers.look_up()
            except ClientError as error:
                _LOG.warning("the name servers are those before: %s", error.describe())

    # Members and heartbeats.

    async def add_member(self, member: Member) -> None:
        """Add a producer or consumer: query the routes of its topics, and send a heartbeat to all brokers.

        Raises GroupTakenError where the instance has one of that kind and group. A broker that cannot be
        reached now hears of it with the next heartbeat.
        """
        self._check_open()
        place = (member.kind, member.group)
        if self._members.setdefault(place, member) is not member:
            raise GroupTakenError(member.group, member.kind, self.client_id)
        await asyncio.gather(*(self.route(topic) for topic in member.topics()), return_exceptions=True)
        await self.send_heartbeat()

    async def remove_member(self, member: Member) -> None:
        """Let it go, if it is here, and tell all brokers so (35); those that cannot be reached find out by themselves."""
        addresses = self._heard_addresses() & set(self.remoting.addresses)
        place = (member.kind, member.group)
        if self._members.get(place) is not member:  # never taken in, or gone
            return
        del self._members[place]
        if self._closed is not None:
            return
        is_producer = member.kind == "producer"
        header = UnregisterClientRequest(
            client_id=self.client_id,
            producer_group=member.group if is_producer else None,
            consumer_group=None if is_producer else member.group,
        )
        command = make_call(RequestCode.UNREGISTER_CLIENT, header)
        calls = [self.remoting.ask(address, command) for address in sorted(addresses)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Exception):
                _LOG.warning("a broker was not notified that %s leaves: %s", member.group, outcome)

    async def send_heartbeat(self) -> None:
        """Send the heartbeat to all brokers of the known routes, now. What fails is logged: the next one may succeed."""
        body = self._heartbeat_data()
        if body is not None:
            await asyncio.gather(*(self._beat(address, body) for address in sorted(self._heard_addresses())))

    def _heartbeat_data(self) -> HeartbeatData | None:
        if not self._members:
            return None
        producers = [group for kind, group in self._members if kind == "producer"]
        consumers = (member.consumer_data() for (kind, _), member in self._members.items() if kind == "consumer")
        return HeartbeatData(
            client_id=self.client_id,
            producers=tuple(ProducerData(group_name=group) for group in [*producers, INNER_PRODUCER_GROUP]),
            consumers=tuple(data for data in consumers if data is not None),
        )

    def _heard_addresses(self) -> set[str]:
        """Addresses for this client's heartbeats: all masters, and slaves if it consumes."""
        consumes = any(kind == "consumer" for kind, _ in self._members)
        return {
            address
            for addresses in self._brokers.values()
            for broker_id, address in addresses.items()
            if consumes or broker_id == MASTER_ID
        }

    async def _beat(self, address: str, body: HeartbeatData) -> None:
        self._beating.add(address)
        try:
            await self.remoting.ask(address, make_call(RequestCode.HEART_BEAT, None, body))
        except ClientError as error:
            _LOG.warning("the heartbeat of client %s failed: %s", self.client_id, error.describe())
        finally:
            self._beating.discard(address)

    def _beat_over_new_connection(self, address: str) -> None:
        body = None if address in self._beating else self._heartbeat_data()
        if body is not None and address in self._heard_addresses():
            task = self._loop.create_task(self._beat(address, body))
            self._beats.add(task)
            task.add_done_callback(self._beats.discard)

    async def _send_heartbeats(self) -> None:
        await asyncio.sleep(_FIRST_HEARTBEAT_MS / 1000)
        while True:
            try:
                await self.send_heartbeat()
            except Exception:
                _LOG.exception("a heartbeat of client %s could not be made", self.client_id)
            await asyncio.sleep(self.settings.heartbeat_broker_interval_ms / 1000)

    def _producers(self) -> list[Member]:
        return [member for (kind, _), member in self._members.items() if kind == "producer"]


class _Registry:
    """The instances of this process by their settings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.instances: dict[ClientSettings, ClientInstance] = {}


_registry = _Registry()


def _forget_the_parents_instances() -> None:
    global _registry
    before, _registry = _registry, _Registry()
    for instance in before.instances.values():
        instance._forget()


when_forked(_forget_the_parents_instances)


class KeptRoute(NamedTuple):
    """A route and when it was given (seconds of the loop's clock)."""

    route: TopicRoute
    at: float


class KeptRoutes:
    """The last route of each topic that name servers have given, and the brokers that they name. Not for several threads at once.

    If two routes name the same broker, the newer one counts: a broker may come back with another address, and not every topic is
    queried again. A route that some polls did not renew, while they renewed others, names no broker, unless it is wanted.

    Java: MQClientInstance (topicRouteTable, brokerAddrTable, cleanOfflineBroker). Departure: in Java every route counts for ever. So
    Java never forgets a stopped broker if a route that names it is not queried again.
    """

    def __init__(self, poll_interval_ms: int) -> None:
        self._patience = _POLLS * poll_interval_ms / 1000
        self._kept: dict[str, KeptRoute] = {}

    def get(self, topic: str) -> KeptRoute | None:
        """The last route of the topic."""
        return self._kept.get(topic)

    def keep(self, route: TopicRoute, at: float) -> tuple[TopicRoute, bool]:
        """The topic's route from now on (the one before, where both say the same), and whether it says something new."""
        before = self._kept.get(route.topic)
        is_new = before is None or before.route.data != route.data
        if before is not None and not is_new:
            route = before.route
        self._kept[route.topic] = KeptRoute(route, at)
        return route, is_new

    def forget(self, topic: str) -> None:
        """The topic has gone."""
        self._kept.pop(topic, None)

    def topics_at(self, broker_name: str) -> list[str]:
        """The topics whose routes name the broker, those that are out of date too."""
        return [topic for topic, kept in self._kept.items() if broker_name in kept.route.brokers]

    def brokers(self, wanted: Collection[str]) -> dict[str, Mapping[int, str]]:
        """Each broker's addresses by id. The routes of `wanted` topics are never out of date."""
        in_order = sorted(self._kept.items(), key=lambda item: item[1].at)
        oldest = in_order[-1][1].at - self._patience if in_order else 0.0
        named: dict[str, Mapping[int, str]] = {}
        for topic, kept in in_order:
            if kept.at >= oldest or topic in wanted:
                named.update(kept.route.brokers)
        return {name: addresses for name, addresses in named.items() if addresses}


def make_client_id(settings: ClientSettings) -> str:
    """An id that no other living client has: IP@PID#nanoseconds, or IP@name where the settings name the instance, then @unit.

    Java: ClientConfig.buildMQClientId.
    """
    name = settings.instance_name if settings.has_own_name else f"{os.getpid()}#{time.monotonic_ns()}"
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    servers = settings.name_servers
    if settings.namesrv_domain is not None:
        servers = (settings.namesrv_domain if ":" in settings.namesrv_domain else f"{settings.namesrv_domain}:8080",)
    return f"{settings.client_ip or local_ip(servers)}@{name}{unit}"


def local_ip(name_servers: tuple[str, ...]) -> str:
    """The address of this machine on the way to the first name server that has one; nothing is sent."""
    for address in name_servers:
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, port))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"
