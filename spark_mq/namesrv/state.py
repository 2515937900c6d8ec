"""What a name server knows while it runs, and one request as its handlers see it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from spark_mq.namesrv.kv_config import KvConfig
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import MinBrokerIdNotice, RouteTables
from spark_mq.remoting import Header, RemotingCommand, WireBody, make_response, write_body, write_header
from spark_mq.remoting.route_headers import BrokerAddressRequest
from storage.rules.response_codes import ResponseCode


@dataclass(slots=True)
class State:
    """Tables, texts and settings. `save_texts` and `save_settings` write their files, and raise OSError where that fails."""

    configuration: Configuration
    started_ms: int
    kv_config: KvConfig
    save_texts: Callable[[str], None]
    save_settings: Callable[[Mapping[str, str]], None]
    tables: RouteTables = field(default_factory=RouteTables)
    departures: list[BrokerAddressRequest] = field(default_factory=list)
    """Brokers that have left, until the next batch."""
    notices: list[MinBrokerIdNotice] = field(default_factory=list)
    """What brokers are to hear, until somebody takes it."""


class Ask(NamedTuple):
    """A request whose header was read."""

    request: RemotingCommand
    header: Any
    channel: Hashable
    now_ms: int
    host: str = ""
    """The IP address of who asks."""

    def answer(self, header: Header | None = None, body: WireBody | None = None) -> RemotingCommand:
        """SUCCESS. Without a header there are no extFields, as in Java."""
        fields = None if header is None else write_header(header)
        content = b"" if body is None else write_body(body)
        return make_response(self.request, ResponseCode.SUCCESS, None, fields, content)

    @property
    def ext_fields(self) -> Mapping[str, str]:
        """All fields of the request, the untyped ones too."""
        return self.request.ext_fields or {}


Handler: TypeAlias = Callable[[State, Ask], RemotingCommand]
"""Who answers one kind of request. It may raise RequestRefusedError, HeaderError, BodyError, ConfigurationError and OSError."""
