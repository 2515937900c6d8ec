"""What a name server answers: request code → handler. No sockets, no clock, no files of its own.

    server = NameServer(configuration, started_ms=now_ms)
    answer = server.answer(request, Caller(channel, "127.0.0.1"), now_ms)
    notices = server.settle()        # after each of: answer, close_channel, scan

A request that cannot be read, or that is refused, is answered with the reason; nothing is raised. Departures wait for `settle`, so that
those of one moment are one batch, as in Java. Not for several threads at once.

Java: NamesrvController, BatchUnregistrationService. Departures: what operators change is answered to this host alone, and to others
where it is signed (`remoting_server/administration.py`); brokers register from named networks, where any are named. A text or a setting
that cannot be written to its file is not taken, and the answer says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping

from spark_mq.namesrv.broker_requests import BROKER_REQUESTS, REGISTRATION_CODES
from spark_mq.namesrv.departure import Expired, departure_of, expired, registered_over, unregister
from spark_mq.namesrv.kv_config import KvConfig
from spark_mq.namesrv.operator_requests import ADMIN_CODES, OPERATOR_REQUESTS
from spark_mq.namesrv.route_requests import ROUTE_REQUESTS
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.state import Ask, Handler, State
from spark_mq.namesrv.tables import BrokerAddress, MinBrokerIdNotice
from spark_mq.remoting import (
    REQUEST_HEADERS,
    RemotingCommand,
    read_header,
)
from spark_mq.remoting_server.administration import check_may_administer
from spark_mq.remoting_server.peer import Caller
from spark_mq.remoting_server.refusals import answered, not_supported
from storage.rules.response_codes import RequestRefusedError, ResponseCode

HANDLERS: Mapping[int, Handler] = {**BROKER_REQUESTS, **ROUTE_REQUESTS, **OPERATOR_REQUESTS}
"""Who answers which request; all others are not supported."""
CLIENT_POOL = "Client"
DEFAULT_POOL = "Default"
"""The queues of requests, as Java's watermarks name them: of those for routes, and of all others."""
_LOG = logging.getLogger(__name__)


class NameServer:
    """One name server. `save_texts` keeps a file's content, `save_settings` changes one's lines; OSError where they cannot."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        started_ms: int,
        kv_config: KvConfig | None = None,
        save_texts: Callable[[str], None] = lambda text: None,
        save_settings: Callable[[Mapping[str, str]], None] = lambda changes: None,
    ) -> None:
        self.state = State(configuration, started_ms, kv_config or KvConfig(), save_texts, save_settings)

    def answer(self, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        """The answer to any request of anybody, whatever it is."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            return not_supported(request)
        return answered(request, lambda: self._done(handler, request, caller, now_ms))

    def _done(self, handler: Handler, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        if request.code in ADMIN_CODES:
            administrator = self.state.configuration.name_server.administrator
            check_may_administer(request, caller.host, administrator)
        if request.code in REGISTRATION_CODES:
            self._check_may_register(caller.host)
        header = read_header(REQUEST_HEADERS[request.code], request)
        return handler(self.state, Ask(request, header, caller.channel, now_ms, caller.host))

    def _check_may_register(self, host: str) -> None:
        """Raises RequestRefusedError for who is in none of the named networks."""
        if not self.state.configuration.name_server.may_register(host):
            remark = f"{host} is in none of the networks from which brokers register here (registrationNetworks)"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def close_channel(self, channel: Hashable) -> None:
        """A connection is gone: the brokers that had registered over it leave."""
        self._leave(registered_over(self.state.tables, channel))

    def scan(self, now_ms: int) -> list[Expired]:
        """Brokers that were silent for too long leave; their connections are to be closed."""
        found = expired(self.state.tables, now_ms)
        self._leave([one.who for one in found])
        return found

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits for `settle`."""
        return not self.state.departures and not self.state.notices

    def settle(self) -> list[MinBrokerIdNotice]:
        """Takes out the brokers that have left since the last call; what others are to hear."""
        state = self.state
        departures, state.departures = state.departures, []
        if departures:
            for header in departures:
                _LOG.info("broker %s (%s) leaves", header.broker_name, header.broker_address)
            notifies = state.configuration.name_server.notifies_min_id
            state.notices += unregister(state.tables, departures, notifies_min_id=notifies)
        notices, state.notices = state.notices, []
        return notices

    def _leave(self, brokers: list[BrokerAddress]) -> None:
        found = [departure_of(self.state.tables, who) for who in brokers]
        self.state.departures += [header for header in found if header is not None]
