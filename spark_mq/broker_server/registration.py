"""What name servers are told of a broker: itself and all its topics, at its start, each 30 s, and at once when topics change.

A name server that has not taken the last registration is tried again after 1, 2, 4, 8 s, then each 10 s: it may start later than the
broker. So is each one from which a slave has not heard yet where its master is.
Java: BrokerController.registerBrokerAll, BrokerOuterAPI.registerBrokerAll. Departure: Java waits for the period.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from spark_mq.broker.entries import wire_mapping, wire_topics, wire_version
from spark_mq.broker.parts import BrokerParts
from spark_mq.broker_server.settings import ProcessSettings
from spark_mq.client.calls import read_answer_body, read_answer_header
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_body, write_header
from spark_mq.remoting.route_bodies import KvTable, RegisterBrokerBody, TopicConfigData, TopicConfigTable
from spark_mq.remoting.route_headers import BrokerAddressRequest, RegisterBrokerAnswer, RegisterBrokerRequest
from storage.errors import StorageError
from storage.names import MASTER_ID
from storage.tables.topics import PERM_READ, PERM_WRITE

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
    acts = parts.config.replication.enable_slave_acting_master
    settings = parts.service.settings
    version = parts.topics_version
    table = TopicConfigTable(
        topic_config_table=_topics(parts),
        data_version=wire_version(replace(version, state_version=epoch) if epoch else version),
        mapping_data_version=wire_version(parts.mappings_version),
        topic_queue_mapping_info_map={
            topic: wire_mapping(mapping) for topic, mapping in parts.mappings.mappings.items()
        },
    )
    body = write_body(RegisterBrokerBody(topic_config_table=table))
    header = RegisterBrokerRequest(
        broker_name=parts.broker_name,
        broker_address=parts.address,
        cluster_name=settings.cluster,
        ha_server_address=parts.ha_address or "",
        broker_id=broker_id,
        body_crc32=zlib.crc32(body) & _CRC_BITS,
        enable_acting_master=True if acts else None,
        heartbeat_timeout_ms=parts.config.replication.broker_not_active_timeout_millis if acts else None,
    )
    return make_request(RequestCode.REGISTER_BROKER, write_header(header), body)


def _topics(parts: BrokerParts) -> dict[str, TopicConfigData]:
    """Where the broker may not be read or written, nor may its topics; as in Java their entries say less then.

    Departure: that is so, too, while its store takes nothing (`BrokerParts.permission`). Java's clients send on to it, in vain.
    """
    found, permission = wire_topics(dict(parts.topics)), parts.permission
    if permission & _READ_AND_WRITE == _READ_AND_WRITE:
        return found
    return {
        name: TopicConfigData(
            topic_name=topic.topic_name,
            read_queue_count=topic.read_queue_count,
            write_queue_count=topic.write_queue_count,
            perm=topic.perm & permission,
        )
        for name, topic in found.items()
    }


def departure(parts: BrokerParts, broker_id: int = MASTER_ID) -> RemotingCommand:
    """The request 104 of a broker that ends."""
    header = BrokerAddressRequest(
        broker_name=parts.broker_name,
        broker_address=parts.address,
        cluster_name=parts.service.settings.cluster,
        broker_id=broker_id,
    )
    return make_request(RequestCode.UNREGISTER_BROKER, write_header(header))


class Registration:
    """Tells name servers, in a thread of its own. One that is not reached is tried again soon, alone."""

    def __init__(
        self,
        parts: BrokerParts,
        client: ClientSettings | None,
        process: ProcessSettings,
        *,
        broker_id: int = MASTER_ID,
        epoch: int = 0,
        heed_master: Callable[[str, str], None] | None = None,
    ) -> None:
        """`client` says where name servers are, and how they are spoken to; None = there are none.

        `heed_master` hears where a slave's master is, and where that serves its log.
        """
        self._parts = parts
        self._name_servers = () if client is None else client.name_servers
        self._period_s = min(max(process.register_period_ms, _PERIOD_LEAST_MS), _PERIOD_MOST_MS) / 1_000
        self._timeout_ms = process.register_timeout_ms
        self._broker_id = broker_id
        self._epoch = epoch
        self._heed_master = heed_master
        self._client = None if client is None else RemotingClient(client)
        self._due = threading.Event()
        self._is_closed = False
        self._told: set[str] = set()
        self._missing: dict[str, type[ClientError]] = {}
        """Name servers that have not taken the last registration, and what kind of trouble was said of each."""
        self._troubles: dict[str, ClientError] = {}
        self._lacks_master = heed_master is not None
        self._thread = threading.Thread(target=self._work, name="registration", daemon=True)

    def start(self, *, waits: bool = True) -> None:
        """Registers, and goes on to. Returns when every name server was told, or could not be; at once if it does not wait."""
        if self._client is None:
            return
        if waits:
            self._register(self._name_servers, self._timeout_ms)
        else:
            self._due.set()
        self._thread.start()

    @property
    def missing(self) -> tuple[str, ...]:
        """The name servers that do not know this broker, as far as it knows."""
        return tuple(self._missing)

    def soon(self) -> None:
        """Topics have changed: name servers are told now. From any thread."""
        self._due.set()

    def close(self) -> None:
        """Tells the name servers that know this broker that it leaves; no others, as they may know another one at its address."""
        self._is_closed = True
        self._due.set()
        if self._client is None:
            return
        if self._thread.ident is not None:
            self._thread.join(_LEAVING_MS / 1_000)  # it may be telling one that does not answer
        self._ask(dict.fromkeys(sorted(self._told), departure(self._parts, self._broker_id)), _LEAVING_MS)
        run(self._client.close())

    def _work(self) -> None:
        full_at, retry_s = time.monotonic() + self._period_s, _LEAST_RETRY_S
        while not self._is_closed:
            behind = self._behind()
            rest_s = max(0.0, full_at - time.monotonic())
            is_due = self._due.wait(min(rest_s, retry_s) if behind else rest_s) or time.monotonic() >= full_at
            self._due.clear()
            if is_due:
                full_at = time.monotonic() + self._period_s
            if not self._is_closed:
                try:
                    if is_due:
                        self._register(self._name_servers, self._timeout_ms)
                    else:
                        self._register(behind, min(self._timeout_ms, _RETRY_TIMEOUT_MS))
                except Exception:  # whatever it is, the next turn is made
                    _LOG.exception("name servers are not told; it is tried again")
            is_same = self._behind() == behind
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S) if is_same else _LEAST_RETRY_S

    def _behind(self) -> tuple[str, ...]:
        """Which are tried again before the period is over."""
        return self._name_servers if self._lacks_master else self.missing

    def _register(self, addresses: Iterable[str], timeout_ms: int) -> None:
        command = registration(self._parts, self._broker_id, self._epoch)
        answers = self._ask(dict.fromkeys(addresses, command), timeout_ms)
        for address in addresses:
            self._note(address, is_told=address in answers)
        for address, answer in answers.items():
            self._told.add(address)
            try:
                self._heed_place(answer, address)
                self._heed_order(answer, address)
            except (ClientError, StorageError, OSError):
                _LOG.exception("what name server %s says of ordered topics is not kept", address)

    def _note(self, address: str, *, is_told: bool) -> None:
        """Says what is missing once for each kind of trouble, as texts hold time-outs that differ; and when it is there."""
        if is_told:
            if self._missing.pop(address, None) is not None:
                _LOG.warning("name server %s knows this broker now", address)
            return
        trouble = self._troubles[address]
        if self._missing.get(address) is not type(trouble):
            self._missing[address] = type(trouble)
            what = "was not told this time" if address in self._told else "does not know this broker yet"
            _LOG.warning("name server %s %s: %s; it is tried again", address, what, trouble.describe())

    def _ask(self, commands: Mapping[str, RemotingCommand], timeout_ms: int) -> dict[str, RemotingCommand]:
        """All at the same time; the answers of those that have answered."""
        found = run(self._answers(commands, timeout_ms))
        for address, error in found.items():
            if isinstance(error, ClientError):
                self._troubles[address] = error
                _LOG.info("name server %s: request %d failed: %s", address, commands[address].code, error.describe())
        return {address: answer for address, answer in found.items() if isinstance(answer, RemotingCommand)}

    async def _answers(
        self, commands: Mapping[str, RemotingCommand], timeout_ms: int
    ) -> dict[str, RemotingCommand | ClientError]:
        client = self._client
        assert client is not None

        async def ask(address: str) -> RemotingCommand | ClientError:
            try:
                return await client.ask(address, commands[address], timeout_ms)
            except ClientError as error:
                return error

        return dict(zip(commands, await asyncio.gather(*map(ask, commands)), strict=True))

    def _heed_place(self, answer: RemotingCommand, address: str) -> None:
        told = read_answer_header(RegisterBrokerAnswer, answer, address, RequestCode.REGISTER_BROKER)
        if self._heed_master is not None and told.master_address and told.ha_server_address:
            self._heed_master(told.master_address, told.ha_server_address)
            self._lacks_master = False

    def _heed_order(self, answer: RemotingCommand, address: str) -> None:
        """A topic that a name server calls ordered is ordered from now on. Java: TopicConfigManager.updateOrderTopicConfig."""
        if not answer.body:
            return
        ordered = read_answer_body(KvTable, answer, address, RequestCode.REGISTER_BROKER).table.keys()
        topics = self._parts.topics
        for name in ordered & topics.keys():
            if not topics[name].order:
                self._parts.change_topic(name, order=True)
