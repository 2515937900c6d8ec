"""What name servers are told of a broker: itself and all its topics, at its start, each 30 s, and at once when topics change.

Java: BrokerController.registerBrokerAll, BrokerOuterAPI.registerBrokerAll.
"""

from __future__ import annotations

import logging
import threading
import zlib

from spark_mq.broker.entries import wire_topics, wire_version
from spark_mq.broker.parts import BrokerParts
from spark_mq.client.calls import read_answer_body
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_body, write_header
from spark_mq.remoting.route_bodies import KvTable, RegisterBrokerBody, TopicConfigTable
from spark_mq.remoting.route_headers import BrokerAddressRequest, RegisterBrokerRequest
from storage.errors import StorageError

MASTER_ID = 0
_PERIOD_LEAST_MS, _PERIOD_MOST_MS = 10_000, 60_000
_CRC_BITS = 0x7FFFFFFF
_LEAVING_MS = 3_000
_LOG = logging.getLogger(__name__)


def registration(parts: BrokerParts, ha_port: int) -> RemotingCommand:
    """The request 103 that says all."""
    settings = parts.service.settings
    table = TopicConfigTable(
        topic_config_table=wire_topics(dict(parts.topics)),
        data_version=wire_version(settings.topics.version),
        mapping_data_version=wire_version(parts.mappings_version),
        topic_queue_mapping_info_map={},
    )
    body = write_body(RegisterBrokerBody(topic_config_table=table))
    header = RegisterBrokerRequest(
        broker_name=parts.broker_name,
        broker_address=parts.address,
        cluster_name=settings.cluster,
        ha_server_address=f"{parts.ip}:{ha_port}",
        broker_id=MASTER_ID,
        body_crc32=zlib.crc32(body) & _CRC_BITS,
    )
    return make_request(RequestCode.REGISTER_BROKER, write_header(header), body)


def departure(parts: BrokerParts) -> RemotingCommand:
    """The request 104 of a broker that ends."""
    header = BrokerAddressRequest(
        broker_name=parts.broker_name,
        broker_address=parts.address,
        cluster_name=parts.service.settings.cluster,
        broker_id=MASTER_ID,
    )
    return make_request(RequestCode.UNREGISTER_BROKER, write_header(header))


class Registration:
    """Tells name servers, in a thread of its own. One that is not reached is told again at the next turn."""

    def __init__(
        self, parts: BrokerParts, client: ClientSettings | None, ha_port: int, period_ms: int, timeout_ms: int
    ) -> None:
        """`client` says where name servers are, and how they are spoken to; None = there are none."""
        self._parts = parts
        self._name_servers = () if client is None else client.name_servers
        self._ha_port = ha_port
        self._period_s = min(max(period_ms, _PERIOD_LEAST_MS), _PERIOD_MOST_MS) / 1_000
        self._timeout_ms = timeout_ms
        self._client = None if client is None else RemotingClient(client)
        self._due = threading.Event()
        self._is_closed = False
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="registration", daemon=True)

    def start(self) -> None:
        """Registers, and goes on to. Returns when every name server was told, or could not be."""
        if self._client is not None:
            self._register()
            self._thread.start()

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
            self._thread.join()
        for address in sorted(self._told):
            self._ask(self._client, address, departure(self._parts), _LEAVING_MS)
        run(self._client.close())

    def _work(self) -> None:
        while not self._is_closed:
            self._due.wait(self._period_s)
            self._due.clear()
            if not self._is_closed:
                self._register()

    def _register(self) -> None:
        assert self._client is not None
        for address in self._name_servers:
            answer = self._ask(self._client, address, registration(self._parts, self._ha_port), self._timeout_ms)
            if answer is None:
                continue
            self._told.add(address)
            try:
                self._heed_order(answer, address)
            except (ClientError, StorageError, OSError):
                _LOG.exception("what name server %s says of ordered topics is not kept", address)

    def _ask(
        self, client: RemotingClient, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand | None:
        try:
            return run(client.ask(address, command, timeout_ms))
        except ClientError as error:
            _LOG.warning("name server %s: request %d failed: %s", address, command.code, error.describe())
            return None

    def _heed_order(self, answer: RemotingCommand, address: str) -> None:
        """A topic that a name server calls ordered is ordered from now on. Java: TopicConfigManager.updateOrderTopicConfig."""
        if not answer.body:
            return
        ordered = read_answer_body(KvTable, answer, address, RequestCode.REGISTER_BROKER).table.keys()
        topics = self._parts.topics
        for name in ordered & topics.keys():
            if not topics[name].order:
                self._parts.change_topic(name, order=True)
