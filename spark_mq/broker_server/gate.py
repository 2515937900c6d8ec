"""Every request passes here before a broker sees it: who asks, and may he?

    request ─▶ signed by a user? ─▶ allowed to him? ─▶ broker          with access control
    request ─▶ from this host, if it is an operator's? ─▶ broker       without

Java: AuthenticationPipeline, AuthorizationPipeline. Departures, where requests must be allowed: one that names nothing, or no message
that is there, is for SUPER users, but for producers' heartbeats and farewells; one without a proven user is refused, whatever name it
gives. Where they need not be: what operators ask is answered to this host alone.
"""

from __future__ import annotations

import logging

from spark_mq.access.authorization import check_allowed, demands_of
from spark_mq.access.resources import BODY, Demand
from spark_mq.access.users import User, authenticate, refused
from spark_mq.broker.named_messages import named_topic
from spark_mq.broker.parts import BrokerParts
from spark_mq.broker.request_table import ADMINISTRATIVE, REQUEST_TABLE
from spark_mq.remoting import (
    REQUEST_BODIES,
    BodyError,
    HeaderError,
    RemotingCommand,
    RequestCode,
    read_body,
    read_header,
)
from spark_mq.remoting_server.peer import is_this_host
from storage.rules.response_codes import RequestRefusedError

_LOG = logging.getLogger(__name__)
_OF_PRODUCERS_TOO = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})


class Gate:
    """Lets requests of one broker's clients pass, or refuses them. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._rules = parts.access.rules

    @property
    def lets_all_send(self) -> bool:
        """Whether sends pass, whatever they name."""
        return not self._rules.authenticates and not self._rules.authorizes

    def check(self, command: RemotingCommand, host: str) -> None:
        """Raises RequestRefusedError unless whoever asks from that address may. The code must have a row."""
        rules = self._rules
        try:
            user = self._user(command) if rules.authenticates else None
            if rules.authorizes and command.code not in rules.free_codes:
                self._authorize(user, command, host)
            elif command.code in ADMINISTRATIVE and not is_this_host(host):
                raise refused(f"request {command.code} is answered to this host alone")
        except RequestRefusedError as refusal:
            _LOG.info("request %d from %s is refused: %s", command.code, host, refusal.remark)
            raise

    def _user(self, command: RemotingCommand) -> User | None:
        try:
            return authenticate(self._parts.access.users, command)
        except RequestRefusedError:
            if command.code in self._rules.unsigned_codes:
                return None
            raise

    def _authorize(self, user: User | None, command: RemotingCommand, host: str) -> None:
        if user is None:
            raise refused("Authorization failed. Please verify your access rights and try again.")
        if user.is_super:
            return
        asked = f"{user.subject} has no permission for request {command.code} from {host}"
        demands = self._demands(command, f"{asked}, the message that it names is not there.")
        if not demands and command.code not in _OF_PRODUCERS_TOO:
            raise refused(f"{asked}, it names nothing.")
        check_allowed(user.subject, self._parts.access.acls.acls.get(user.subject, {}), demands, host)

    def _demands(self, command: RemotingCommand, no_message: str) -> tuple[Demand, ...]:
        row, parts = REQUEST_TABLE[command.code], self._parts
        try:
            header = read_header(row.header, command)
            is_in_body = any(need.field == BODY for need in row.needs)
            body = read_body(REQUEST_BODIES[command.code], command.body) if is_in_body else None
        except (HeaderError, BodyError):
            raise refused("parse authorization context error.") from None

        def message_topic() -> str:
            topic = named_topic(parts, header)
            if topic is None:
                raise refused(no_message)
            return topic

        return demands_of(row.needs, header, body, parts.service.settings.cluster, message_topic)
