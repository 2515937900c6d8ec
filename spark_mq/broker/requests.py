"""A request on its way through a handler, the connection that it came by, and what a broker wants done with connections. No sockets.

The server numbers what it sends (`remoting.Connection`), and reports a connection's end by `Broker.closed`.
Java: RemotingCommand.createResponseCommand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from spark_mq.remoting import Header, RemotingCommand, WireBody, make_request, make_response, write_body, write_header
from storage.epoch_times import steady_time_ms
from storage.rules.response_codes import RequestRefusedError, ResponseCode

UNSET = "not set any response code"
"""The remark of an answer whose handler sets the code alone."""
NO_FIELDS: Mapping[str, str] = {}
"""extFields of an answer whose header has no fields; None of one without a header."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientConnection:
    """One connection of a client. Two are the same only if they are one object. Java: Channel."""

    host: bytes
    """The client's 4 or 16 bytes of address, 4 of port: what its messages say of where they were born."""
    address: str
    """The same as `address:port`."""


class Waiting(Enum):
    """Outcomes of requests that are not answered now."""

    PARKED = "a pull that waits for messages; `Broker` says when to run it again"


@dataclass(frozen=True, slots=True)
class AskClients:
    """Requests that the broker sends to clients before it answers its own request; it waits for their answers for the given time.

    `answer` makes the final answer from theirs, in order; None stands for a client that did not answer in time or is not reachable.
    """

    questions: tuple[tuple[ClientConnection, RemotingCommand], ...]
    timeout_ms: int
    answer: Callable[[tuple[RemotingCommand | None, ...]], RemotingCommand]


@dataclass(frozen=True, slots=True)
class AskBroker:
    """A request that the broker forwards to the master of another broker name before it answers its own; no thread waits for it.

    `settle` makes the outcome from its answer, which may be another such request. Who is not reached answers SYSTEM_ERROR.
    """

    broker_name: str
    command: RemotingCommand
    settle: Callable[[RemotingCommand], Outcome]


def ask_broker(
    broker_name: str,
    code: int,
    header: Header,
    settle: Callable[[RemotingCommand], Outcome],
    *,
    accepted: Collection[int] = (ResponseCode.SUCCESS,),
) -> AskBroker:
    """The request with that header; an answer of another code becomes SYSTEM_ERROR. Java: RpcClientImpl."""

    def settled(answer: RemotingCommand) -> Outcome:
        if answer.code not in accepted:
            remark = (
                f"broker {broker_name} answers the forwarded request {int(code)} with {answer.code}: {answer.remark}"
            )
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        return settle(answer)

    return AskBroker(broker_name, make_request(code, write_header(header)), settled)


Outcome: TypeAlias = "RemotingCommand | Waiting | AskClients | AskBroker | None"
"""An answer; a pull that waits; questions to clients, or to another broker, first; None = never an answer."""


class Verdict(NamedTuple):
    """The answer that a rule decides on."""

    code: int
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
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

    @property
    def is_heard(self) -> bool:
        """Whether the client hears the answer. False: the request is one-way, or its client has gone; so it is not refused because the
        store is busy: its put waits.
        """
        return not self.command.is_oneway

    def like(self, header: Header, body: bytes) -> Request:
        """Another request of the same client at the same moment."""
        return Request(self.connection, self.command._replace(body=body), header, self.now_ms)


Handler: TypeAlias = Callable[[Request], Outcome]


def timed(handler: Handler, note: Callable[[Request, int, bool], None]) -> Handler:
    """The handler. `note` is called with each request, its duration in ms, and whether SUCCESS was answered."""

    def answer(request: Request) -> Outcome:
        began_ms, is_done = steady_time_ms(), False
        try:
            outcome = handler(request)
            is_done = isinstance(outcome, RemotingCommand) and outcome.code == ResponseCode.SUCCESS
            return outcome
        finally:
            note(request, steady_time_ms() - began_ms, is_done)

    return answer


class Tell(NamedTuple):
    """A one-way request to a client."""

    connection: ClientConnection
    command: RemotingCommand


class Close(NamedTuple):
    """A client that was silent for too long: its connection is of no use."""

    connection: ClientConnection


class RunAgain(NamedTuple):
    """A pull that waited must be answered now: `Broker.answer_again`, in the pool of its row."""

    connection: ClientConnection
    command: RemotingCommand


class RegisterTopics(NamedTuple):
    """Topics are new or changed: register them at name servers now. No names = all topics, as after a change of permissions."""

    topics: tuple[str, ...]


BrokerEvent: TypeAlias = Tell | Close | RunAgain | RegisterTopics


class Turns:
    """A lock for each key: one thread at a time holds a key; keys do not wait for each other. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Hold the key, as soon as it is free."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._taken)
            self._taken.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(key)
                self._changed.notify_all()
