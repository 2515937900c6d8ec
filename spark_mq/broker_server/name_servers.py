"""A broker's requests to its name servers, and to the brokers that these name: registration, the queues of its clients' topics, and
what it forwards.

    Registration       103: the broker and all its topics, at the start, every 30 s, and at once when topics change
    SubscribedQueues   105: the queues of a topic at all brokers, for queues that a broker assigns
    OtherBrokers       106: the master of another broker name, and its answer to a forwarded request

Java: BrokerController, BrokerOuterAPI, TopicRouteInfoManager.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_mq.broker.broker import BrokerParts
from spark_mq.broker.entries import wire_mapping
from spark_mq.broker.requests import AskBroker, Turns
from spark_mq.broker_server.settings import ProcessSettings
from spark_mq.client.calls import read_answer_body, read_answer_header
from spark_mq.client.errors import ClientError, NameServerUnreachableError, TopicRouteNotFoundError
from spark_mq.client.event_loop import run, spawn
from spark_mq.client.remoting_client import NameServers, RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import (
    MessageQueue,
    RemotingCommand,
    RequestCode,
    make_request,
    make_response,
    write_body,
    write_header,
)
from spark_mq.remoting.routes import (
    BrokerAddressRequest,
    KvTable,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfigTable,
)
from storage.epoch_times import is_time, steady_time_ms
from storage.errors import StorageError
from storage.format.typed_json import TopicConfig
from storage.names import MASTER_ID, RETRY_PREFIX
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import PERM_READ, PERM_WRITE

# A name server that has not taken the last registration is tried again after 1, 2, 4, 8 s, then each 10 s: it may start later than the
# broker. So is each one from which a slave has not heard yet where its master is. Departure: Java waits for the period.


_READ_AND_WRITE = PERM_READ | PERM_WRITE
_PERIOD_LEAST_MS, _PERIOD_MOST_MS = 10_000, 60_000
_CRC_BITS = 0x7FFFFFFF
_LEAVING_MS = 3_000
_LEAST_RETRY_S, _LONGEST_RETRY_S = 1.0, 10.0
_RETRY_TIMEOUT_MS = 5_000
"""A name server that hangs must not keep another one from being tried; the turns of the period have more patience."""
_LOG = logging.getLogger(__name__)


def registration(parts: BrokerParts, broker_id: int = MASTER_ID, epoch: int = 0) -> RemotingCommand:
    """The request 103 that says all. Of two masters name servers believe the one of the later epoch.

    With enableSlaveActingMaster a broker that is silent for `brokerNotActiveTimeoutMillis` counts as gone.
    """
    acts = parts.store.config.replication.enable_slave_acting_master
    settings = parts.store.service.settings
    version = parts.store.topics_version
    table = TopicConfigTable(
        topic_config_table=_topics(parts),
        data_version=replace(version, state_version=epoch) if epoch else version,
        mapping_data_version=parts.store.mappings_version,
        topic_queue_mapping_info_map={
            topic: wire_mapping(mapping) for topic, mapping in parts.store.mappings.mappings.items()
        },
    )
    body = write_body(RegisterBrokerBody(topic_config_table=table))
    header = RegisterBrokerRequest(
        broker_name=parts.store.broker_name,
        broker_address=parts.store.address,
        cluster_name=settings.cluster,
        ha_server_address=parts.server.ha_address or "",
        broker_id=broker_id,
        body_crc32=zlib.crc32(body) & _CRC_BITS,
        enable_acting_master=True if acts else None,
        heartbeat_timeout_ms=parts.store.config.replication.broker_not_active_timeout_millis if acts else None,
    )
    return make_request(RequestCode.REGISTER_BROKER, write_header(header), body)


def _topics(parts: BrokerParts) -> dict[str, TopicConfig]:
    """The topics to register. If the broker is not readable or not writable, neither are its topics, as in Java.

    Departure: nor are they writable while its store refuses puts (`BrokerStore.permission`). Java's clients keep sending, in vain.
    """
    found, permission = dict(parts.store.topics), parts.store.permission
    if permission & _READ_AND_WRITE == _READ_AND_WRITE:
        return found
    return {
        name: TopicConfig(
            topic=topic.topic,
            read_queue_count=topic.read_queue_count,
            write_queue_count=topic.write_queue_count,
            perm=topic.perm & permission,
        )
        for name, topic in found.items()
    }


def departure(parts: BrokerParts, broker_id: int = MASTER_ID) -> RemotingCommand:
    """The request 104 of a broker that ends."""
    header = BrokerAddressRequest(
        broker_name=parts.store.broker_name,
        broker_address=parts.store.address,
        cluster_name=parts.store.service.settings.cluster,
        broker_id=broker_id,
    )
    return make_request(RequestCode.UNREGISTER_BROKER, write_header(header))


class _NameServer:
    """One name server, as the registration knows it."""

    def __init__(self) -> None:
        self.tried = (-1, -1)
        """Counters of topics and static topics of the last registration that was answered or has failed."""
        self.is_open = False
        """Whether a registration is under way: one at a time."""
        self.is_due = False
        """Whether another one follows it, as topics have changed since."""
        self.is_silent = False
        """Whether a change of topics was answered without it, and it has answered nothing since."""

    def has_tried(self, topics: int, mappings: int) -> bool:
        """Whether it was registered at with these topics or later ones, be it in vain."""
        return self.tried[0] >= topics and self.tried[1] >= mappings


class Registration:
    """Registers at name servers, in its own thread. Each has its own requests: one that does not answer holds up no other one, and one
    that is not reached is tried again soon, alone.
    """

    def __init__(
        self,
        parts: BrokerParts,
        client: ClientSettings | None,
        process: ProcessSettings,
        *,
        broker_id: int = MASTER_ID,
        epoch: int = 0,
        on_master: Callable[[str, str], None] | None = None,
    ) -> None:
        """`client` says where name servers are, and how they are spoken to; None = there are none.

        `on_master` hears where a slave's master is, and where that serves its log.
        """
        self._parts = parts
        self._servers = {address: _NameServer() for address in (() if client is None else client.name_servers)}
        self._period_s = min(max(process.register_period_ms, _PERIOD_LEAST_MS), _PERIOD_MOST_MS) / 1_000
        self._timeout_ms = process.register_timeout_ms
        self._broker_id = broker_id
        self._epoch = epoch
        self._on_master = on_master
        self._client = None if client is None else RemotingClient(client)
        self._changed = threading.Condition()
        """Guards the name servers, what they have answered, and the two flags below."""
        self._is_due = False
        self._is_closed = False
        self._registered_at: set[str] = set()
        self._answered: list[tuple[str, RemotingCommand | Exception]] = []
        """Answers and errors that the thread has not looked at yet."""
        self._missing: dict[str, type[Exception]] = {}
        """Name servers that have not taken the last registration, and what kind of trouble was said of each."""
        self._lacks_master = on_master is not None
        self._thread = threading.Thread(target=self._work, name="registration", daemon=True)

    def start(self, *, waits: bool = True) -> None:
        """Register now and periodically. Returns after a try at every name server; at once without `waits`."""
        if self._client is None:
            return
        if waits:
            self._register(self._servers, self._timeout_ms)
        else:
            self.soon()
        self._thread.start()

    @property
    def missing(self) -> tuple[str, ...]:
        """The name servers that do not know this broker, as far as it knows."""
        return tuple(self._missing)

    def soon(self) -> None:
        """Register now, because topics have changed. From any thread."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def wait_for_topics(self, timeout_s: float) -> None:
        """Wait until each name server has the topics as they are now, or could not be reached; at most so long. After `soon`.

        One that lets this time pass is not waited for again until it answers.
        """
        counters = self._counters()
        with self._changed:
            awaited = [server for server in self._servers.values() if not server.is_silent]
            self._changed.wait_for(
                lambda: self._is_closed or all(server.has_tried(*counters) for server in awaited), timeout_s
            )
            for server in awaited:
                server.is_silent = server.is_silent or not server.has_tried(*counters)

    def close(self) -> None:
        """Unregister at the name servers that know this broker; no others, as they may know another broker at its address."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._client is None:
            return
        if self._thread.ident is not None:
            self._thread.join(_LEAVING_MS / 1_000)
        with self._changed:  # a registration must not come to a name server behind the farewell
            self._changed.wait_for(lambda: not self._open, _LEAVING_MS / 1_000)
        self._leave(departure(self._parts, self._broker_id))
        run(self._client.close())

    def _work(self) -> None:
        full_at, retry_s = time.monotonic() + self._period_s, _LEAST_RETRY_S
        retry_at = time.monotonic() + retry_s
        while True:
            with self._changed:
                wakes_at = min(full_at, retry_at) if self._idle(self._behind()) else full_at
                self._changed.wait_for(self._has_work, max(0.0, wakes_at - time.monotonic()))
                if self._is_closed:
                    return
                is_due, self._is_due = self._is_due, False
                answered, self._answered = self._answered, []
                late = [address for address, server in self._servers.items() if server.is_due and not server.is_open]
            try:
                behind = self._behind()
                self._take(answered)
                now = time.monotonic()
                if answered:
                    retry_s = retry_s if self._behind() == behind else _LEAST_RETRY_S
                    retry_at = now + retry_s
                if is_due or now >= full_at:
                    full_at = now + self._period_s
                    self._begin(self._servers, self._timeout_ms)
                elif late:
                    self._begin(late, self._timeout_ms)
                elif now >= retry_at:
                    retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
                    retry_at = now + retry_s
                    self._begin(self._idle(self._behind()), min(self._timeout_ms, _RETRY_TIMEOUT_MS))
            except Exception:  # whatever it is, the next turn is made
                _LOG.exception("the registration at name servers failed; it is tried again")
                retry_at = time.monotonic() + retry_s
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _LEAST_RETRY_S)

    def _has_work(self) -> bool:
        is_late = any(server.is_due and not server.is_open for server in self._servers.values())
        return self._is_closed or self._is_due or is_late or bool(self._answered)

    @property
    def _open(self) -> list[str]:
        """Name servers from which an answer is still to come."""
        return [address for address, server in self._servers.items() if server.is_open]

    def _behind(self) -> tuple[str, ...]:
        """Which are tried again before the period is over."""
        return tuple(self._servers) if self._lacks_master else self.missing

    def _idle(self, addresses: Iterable[str]) -> list[str]:
        return [address for address in addresses if not self._servers[address].is_open]

    def _counters(self) -> tuple[int, int]:
        store = self._parts.store
        return store.topics_version.counter, store.mappings_version.counter

    def _register(self, addresses: Iterable[str], timeout_ms: int) -> None:
        """Returns after a try at each of them."""
        self._begin(addresses, timeout_ms)
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
            answered, self._answered = self._answered, []
        self._take(answered)

    def _begin(self, addresses: Iterable[str], timeout_ms: int) -> None:
        """Send the registration to each of them now, or as soon as the one before it is over."""
        with self._changed:
            idle = self._idle(addresses)
            for address in addresses:
                self._servers[address].is_due = address not in idle
        if not idle:
            return
        counters = self._counters()  # before the topics themselves
        command = registration(self._parts, self._broker_id, self._epoch)
        for address in idle:
            self._servers[address].is_open = True
            spawn(self._ask(address, command, counters, timeout_ms))

    async def _ask(self, address: str, command: RemotingCommand, counters: tuple[int, int], timeout_ms: int) -> None:
        assert self._client is not None
        found: RemotingCommand | Exception
        try:
            found = await self._client.ask(address, command, timeout_ms)
        except Exception as error:  # whatever it is, it is tried again
            found = error
        server = self._servers[address]
        with self._changed:
            server.is_open, server.tried = False, counters
            if isinstance(found, RemotingCommand):
                server.is_silent = False
                self._registered_at.add(address)
            self._answered.append((address, found))
            self._changed.notify_all()

    def _take(self, answered: Iterable[tuple[str, RemotingCommand | Exception]]) -> None:
        for address, found in answered:
            if isinstance(found, Exception):
                self._note(address, found)
                continue
            self._note(address, None)
            try:
                self._on_place(found, address)
                self._on_order(found, address)
            except (ClientError, StorageError, OSError):
                _LOG.exception("what name server %s says of ordered topics is not kept", address)

    def _note(self, address: str, trouble: Exception | None) -> None:
        """Log a failure once for each kind of error, as texts contain time-outs that differ; and log the next success."""
        if trouble is None:
            if self._missing.pop(address, None) is not None:
                _LOG.warning("name server %s knows this broker now", address)
            return
        text = trouble.describe() if isinstance(trouble, ClientError) else f"{type(trouble).__name__}: {trouble}"
        _LOG.info("name server %s: the registration failed: %s", address, text)
        if self._missing.get(address) is not type(trouble):
            self._missing[address] = type(trouble)
            what = "was not reached this time" if address in self._registered_at else "does not know this broker yet"
            _LOG.warning("name server %s %s: %s; it is tried again", address, what, text)

    def _leave(self, command: RemotingCommand) -> None:
        """Say farewell, to all at the same time."""
        client = self._client
        assert client is not None

        async def ask(address: str) -> None:
            try:
                await client.ask(address, command, _LEAVING_MS)
            except ClientError as error:
                _LOG.info("name server %s: request %d failed: %s", address, command.code, error.describe())

        async def ask_all() -> None:
            await asyncio.gather(*map(ask, sorted(self._registered_at)))

        run(ask_all())

    def _on_place(self, answer: RemotingCommand, address: str) -> None:
        place = read_answer_header(RegisterBrokerAnswer, answer, address, RequestCode.REGISTER_BROKER)
        if self._on_master is not None and place.master_address and place.ha_server_address:
            self._on_master(place.master_address, place.ha_server_address)
            self._lacks_master = False

    def _on_order(self, answer: RemotingCommand, address: str) -> None:
        """A topic that a name server calls ordered is ordered from now on. Java: TopicConfigManager.updateOrderTopicConfig."""
        if not answer.body:
            return
        ordered = read_answer_body(KvTable, answer, address, RequestCode.REGISTER_BROKER).table.keys()
        topics = self._parts.store.topics
        for name in ordered & topics.keys():
            if not topics[name].order:
                self._parts.store.change_topic(name, order=True)


# The queues of topics at all brokers, from a name server, cached for a while. A broker divides them among a group's clients.
# Departure: only topics that clients still request are queried again; Java queries all topics that were ever requested.


_ROUTE_TIMEOUT_MS = 3_000
_KEPT_MOST = 10_000
_SILENCE_MS = 1_000
"""Pause after a query that no name server has answered: each query takes a thread for seconds."""


class _Kept(NamedTuple):
    queues: Sequence[MessageQueue]
    requested_at_ms: int


class SubscribedQueues:
    """Thread-safe: those who ask for one topic wait for one answer."""

    def __init__(
        self, client: ClientSettings, poll_ms: Callable[[], int], *, steady: Callable[[], int] = steady_time_ms
    ) -> None:
        """`poll_ms`: so long an answer counts."""
        self._client = RemotingClient(client)
        self._name_servers = NameServers(self._client, client)
        self._poll_ms = poll_ms
        self._steady = steady
        self._turns = Turns()
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._silent_ms: int | None = None
        """When the last question was given up that no name server had answered."""

    def of(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues that can be read; None where no name server has the topic, or none has ever answered. It may wait."""
        if (kept := self._fresh(topic)) is not None:
            return kept.queues
        with self._turns.of(topic):
            if (kept := self._fresh(topic)) is not None:
                return kept.queues
            return self._fetched(topic)

    def close(self) -> None:
        """Hangs up."""
        run(self._client.close())

    def _fresh(self, topic: str) -> _Kept | None:
        """The cached queues, unless they are old or none."""
        kept = self._kept.get(topic)
        if kept is None or not kept.queues or is_time(self._steady(), kept.requested_at_ms, self._poll_ms()):
            return None
        return kept

    def _fetched(self, topic: str) -> Sequence[MessageQueue] | None:
        before = self._kept.get(topic)
        if self._silent_ms is not None and not is_time(self._steady(), self._silent_ms, _SILENCE_MS):
            return None if before is None else before.queues
        try:
            queues: Sequence[MessageQueue] = run(self._name_servers.route(topic, _ROUTE_TIMEOUT_MS)).subscribe_queues
        except TopicRouteNotFoundError:
            if before is None or not topic.startswith(RETRY_PREFIX):
                with self._lock:
                    self._kept.pop(topic, None)
                return None
            queues = before.queues
        except ClientError as error:  # keep the old queues, and query again after another interval
            _LOG.warning("no name server says where the queues of topic %s are: %s", topic, error.describe())
            if isinstance(error, NameServerUnreachableError):
                self._silent_ms = self._steady()
            if before is None:
                return None
            queues = before.queues
        with self._lock:
            self._kept.pop(topic, None)
            self._kept[topic] = _Kept(queues, self._steady())
            if len(self._kept) > _KEPT_MOST:
                del self._kept[next(iter(self._kept))]
        return queues


# Requests to the masters of other broker names. Java: BrokerOuterAPI.getRpcClient, ClientMetadata; refreshMetadata each 5 s.


_ADDRESSES_S = 5.0


class OtherBrokers:
    """Forwards requests; answers come on the client's thread. Any thread may ask."""

    def __init__(self, client: ClientSettings | None, timeout_ms: int) -> None:
        """`client` says where name servers are; None = there are none, and no other broker is known. `timeout_ms`: forwardTimeout."""
        self._client = None if client is None else RemotingClient(client)
        self._name_servers = None if client is None or self._client is None else NameServers(self._client, client)
        self._timeout_ms = timeout_ms
        self._addresses: dict[str, str] = {}
        self._known_until = 0.0
        self._looking: asyncio.Task[None] | None = None

    def ask(self, asked: AskBroker, heard: Callable[[RemotingCommand], None]) -> None:
        """Send a request to a broker's master; `heard` gets its answer, or SYSTEM_ERROR with the reason why there is none."""

        async def ask() -> None:
            answer = await self._answer(asked)
            try:
                heard(answer)
            except Exception:  # whatever it is, the others are answered
                _LOG.exception("what broker %s answers is not passed on", asked.broker_name)

        spawn(ask())

    def answer(self, asked: AskBroker) -> RemotingCommand:
        """The answer, for a thread that waits."""
        return run(self._answer(asked))

    def leaders(self, topic: str) -> dict[int, str]:
        """The broker that leads each logical queue of a static topic, for a thread that waits. Raises ClientError."""
        if self._name_servers is None:
            return {}
        route = run(self._name_servers.route(topic, _ROUTE_TIMEOUT_MS))
        return {queue.queue_id: name for queue, name in route.leaders.items()}

    def close(self) -> None:
        """Hangs up."""
        if self._client is not None:
            run(self._client.close())

    async def _answer(self, asked: AskBroker) -> RemotingCommand:
        command, name = asked.command, asked.broker_name
        if self._client is None:
            remark = f"broker {name} is not known: namesrvAddr names no name server"
            return make_response(command, ResponseCode.SYSTEM_ERROR, remark)
        try:
            address = await self._address(name)
            if address is None:
                remark = f"no name server knows a master of broker {name}"
                return make_response(command, ResponseCode.SYSTEM_ERROR, remark)
            return await self._client.invoke(address, command, self._timeout_ms)
        except ClientError as error:
            self._known_until = 0.0  # it may have come back elsewhere
            remark = f"broker {name} does not answer the forwarded request {command.code}: {error.describe()}"
            return make_response(command, ResponseCode.SYSTEM_ERROR, remark)
        except Exception as error:  # whatever it is, who waits is answered
            _LOG.exception("request %d is not forwarded to broker %s", command.code, name)
            remark = f"request {command.code} is not forwarded to broker {name}: {type(error).__name__}, {error}"
            return make_response(command, ResponseCode.SYSTEM_ERROR, remark)

    async def _address(self, broker_name: str) -> str | None:
        loop = asyncio.get_running_loop()
        if broker_name not in self._addresses or loop.time() >= self._known_until:
            if self._looking is None:
                self._looking = loop.create_task(self._look())
                self._looking.add_done_callback(self._looked)
            try:
                await asyncio.shield(self._looking)
            except ClientError:
                if broker_name not in self._addresses:
                    raise
        return self._addresses.get(broker_name)

    def _looked(self, done: asyncio.Task[None]) -> None:
        self._looking = None
        if not done.cancelled():
            done.exception()  # those who waited have it

    async def _look(self) -> None:
        assert self._name_servers is not None, "there is a client"
        found = (await self._name_servers.cluster_info()).broker_address_table
        self._addresses |= {
            name: data.broker_addresses[MASTER_ID] for name, data in found.items() if MASTER_ID in data.broker_addresses
        }
        self._known_until = asyncio.get_running_loop().time() + _ADDRESSES_S
