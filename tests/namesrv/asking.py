"""A name server without sockets, and short ways to ask it."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from typing import Any

from spark_mq.namesrv.name_server import NameServer
from spark_mq.namesrv.settings import Configuration
from spark_mq.remoting import (
    Header,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_request,
    read_body,
    write_body,
    write_header,
)
from spark_mq.remoting.routes import (
    BrokerAddressRequest,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RouteRequest,
    TopicConfigTable,
    TopicRouteData,
)
from spark_mq.remoting_server.peer import Caller
from storage.format.typed_json import DataVersion, TopicConfig

START_MS = 1_700_000_000_000
CLUSTER = "C"


class Asked:
    """A name server at a moment. `now_ms` is set by the test; each request settles what it left, as the server does."""

    def __init__(self, kept: dict[str, str] | None = None, **settings: str) -> None:
        self.kept = {} if kept is None else kept
        self.server = NameServer(
            Configuration.of(settings),
            started_ms=START_MS,
            save_texts=lambda text: self.kept.update(texts=text),
            save_settings=lambda changes: self.kept.update(settings=dict(changes)),
        )
        self.now_ms = START_MS
        self.notices: list[Any] = []

    def ask(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: WireBody | bytes = b"",
        *,
        host: str = "127.0.0.1",
        channel: Hashable = "channel",
        **given: Any,
    ) -> RemotingCommand:
        """The answer; `given` replaces fields of the command."""
        fields = write_header(header) if isinstance(header, Header) else header
        content = body if isinstance(body, bytes) else write_body(body)
        request = make_request(code, fields, content)._replace(**given)
        answer = self.server.answer(request, Caller(channel, host), self.now_ms)
        self.settle()
        return answer

    def settle(self) -> None:
        """As the server does after each event."""
        self.notices += self.server.settle()

    def register(
        self, broker_id: int = 0, *, topics: tuple[str, ...] = ("T", "U"), version: int = 1, **given: Any
    ) -> RemotingCommand:
        """A registration of broker b at the address of its id; `given` are fields of the header, `perm`, `state` or `channel`."""
        perm, state = given.pop("perm", 6), given.pop("state", 0)
        channel, fields = given.pop("channel", f"channel {broker_id}"), given.pop("fields", {})
        body = write_body(registered(topics, version, perm, state))
        header = RegisterBrokerRequest(
            **{
                "broker_name": "b",
                "broker_address": f"h:{broker_id}",
                "cluster_name": CLUSTER,
                "ha_server_address": f"ha:{broker_id}",
                "broker_id": broker_id,
                "body_crc32": zlib.crc32(body) & 0x7FFF_FFFF,
                **given,
            }
        )
        return self.ask(RequestCode.REGISTER_BROKER, {**write_header(header), **fields}, body, channel=channel)

    def leave(self, broker_id: int = 0, address: str | None = None, name: str = "b") -> RemotingCommand:
        """104."""
        header = BrokerAddressRequest(
            broker_name=name, broker_address=address or f"h:{broker_id}", cluster_name=CLUSTER, broker_id=broker_id
        )
        return self.ask(RequestCode.UNREGISTER_BROKER, header)

    def route(self, topic: str = "T", **fields: str) -> TopicRouteData | None:
        """105 of a client of today; None for 17."""
        header = {**write_header(RouteRequest(topic=topic)), **fields}
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == 17:
            return None
        assert answer.code == 0, answer
        return read_body(TopicRouteData, answer.body)

    def addresses(self, topic: str = "T") -> dict[int, str] | None:
        """The addresses of broker b in a topic's route; None without a route."""
        found = self.route(topic)
        return None if found is None else dict(found.broker_datas[0].broker_addresses)

    def perm(self, topic: str = "T") -> int | None:
        """What broker b lets clients do with a topic."""
        found = self.route(topic)
        return None if found is None else found.queue_datas[0].perm


def registered(topics: tuple[str, ...], version: int = 1, perm: int = 6, state: int = 0) -> RegisterBrokerBody:
    """A registration's body."""
    table = {topic: TopicConfig(topic=topic, perm=perm) for topic in topics}
    data_version = DataVersion(counter=version, state_version=state, timestamp_ms=START_MS)
    return RegisterBrokerBody(topic_config_table=TopicConfigTable(topic_config_table=table, data_version=data_version))
