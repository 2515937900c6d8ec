"""A request on its way through a handler, and its answers. Java: RemotingCommand.createResponseCommand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_mq.broker.connections import ClientConnection, Outcome
from spark_mq.remoting import Header, RemotingCommand, WireBody, make_response, write_body, write_header
from storage.rules.response_codes import ResponseCode

UNSET = "not set any response code"
"""The remark of an answer whose handler sets the code alone."""
NO_FIELDS: Mapping[str, str] = {}
"""extFields of an answer whose header has no fields; None of one without a header."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: who asks, what, and when. `header` is the typed one of its code."""

    connection: ClientConnection
    command: RemotingCommand
    header: Any
    now_ms: int

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        header: Header | Mapping[str, str] | None = None,
        body: WireBody | bytes = b"",
    ) -> RemotingCommand:
        """The answer: a typed header or its extFields, a typed body or its bytes."""
        fields = write_header(header) if isinstance(header, Header) else header
        raw = write_body(body) if isinstance(body, WireBody) else body
        return make_response(self.command, code, remark, fields, raw)

    @property
    def body(self) -> bytes:
        """The request's body."""
        return bytes(self.command.body)


Handler = Callable[[Asked], Outcome]
