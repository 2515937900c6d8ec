"""The lines between the members of a DLedger group: their requests come to a server of ours, this member's own go out by a client.

    lines = MemberLines(peers)
    await server.listen(host, port, Processors(lines.processors(handle)))
    answer = lines.ask("n1", DLedgerRequestCode.VOTE, request, 3_000)

A command has a member's message as its body, and no header; the command that answers has the code 200. What cannot be read is not
answered, as in Java. Java: DLedgerRpcNettyService. Departure: a client's APPEND is not served: all members would apply what it says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from spark_mq.client.event_loop import HandOver, event_loop, spawn
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.dledger.messages import CONVERSATIONS, DLedgerCode, DLedgerMessage, DLedgerRequestCode
from spark_mq.remoting import BodyError, RemotingCommand, make_request, make_response, read_body, write_body
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import PoolSettings, Processor, RequestPool

SERVED = (
    DLedgerRequestCode.METADATA,
    DLedgerRequestCode.GET,
    DLedgerRequestCode.VOTE,
    DLedgerRequestCode.HEART_BEAT,
    DLedgerRequestCode.PUSH,
    DLedgerRequestCode.LEADERSHIP_TRANSFER,
)
_POOL = PoolSettings("DLedger", 10_000)
_LOG = logging.getLogger(__name__)

Handle: TypeAlias = Callable[[DLedgerMessage], "Future[DLedgerMessage]"]
"""A member's answer to a request, when it has one."""


class _Asked(NamedTuple):
    """A request to another member."""

    address: str
    command: RemotingCommand
    timeout_ms: int
    promise: _Promise


class MemberLines:
    """One member's lines. `ask` is for any thread."""

    def __init__(self, peers: Mapping[str, str]) -> None:
        self._peers = peers
        self._client = RemotingClient(ClientSettings(tuple(peers.values())))
        self._out: HandOver[_Asked] = HandOver(event_loop(), self._send)

    def close(self) -> Future[None]:
        """Hangs up."""
        return spawn(self._client.close())

    def processors(self, handle: Handle) -> dict[int, Processor]:
        """Who answers the other members' requests, by code; on the loop, without waiting."""

        def answer(request: RemotingCommand, peer: Peer) -> None:
            try:
                asked = read_body(CONVERSATIONS[DLedgerRequestCode(request.code)].request, request.body)
            except BodyError as error:
                _LOG.warning("request %d of %s is not answered: %s", request.code, peer.address, error.describe())
                return
            handle(asked).add_done_callback(lambda done: _respond(request, peer, done))

        processor = Processor(answer, RequestPool(_POOL))
        return dict.fromkeys(map(int, SERVED), processor)

    def ask(
        self, peer: str, code: DLedgerRequestCode, request: DLedgerMessage, timeout_ms: int
    ) -> Future[DLedgerMessage | None]:
        """A member's answer; None if it does not come in time, or the line is broken. Requests to one member keep their order."""
        promise = _Promise(CONVERSATIONS[code].answer)
        self._out.put(_Asked(self._peers[peer], make_request(code, None, write_body(request)), timeout_ms, promise))
        return promise.answer

    def _send(self, asked: _Asked) -> None:
        try:
            self._client.invoke_for(asked.promise, asked.address, asked.command, asked.timeout_ms)
        except Exception as error:
            asked.promise.set_exception(error)


class _Promise:
    """What a client gives its answer to."""

    def __init__(self, answer_class: type[DLedgerMessage]) -> None:
        self._class = answer_class
        self.answer: Future[DLedgerMessage | None] = Future()

    def done(self) -> bool:
        """Whether there is an answer."""
        return self.answer.done()

    def set_result(self, answer: Any, /) -> None:
        """The command that answers."""
        try:
            self.answer.set_result(read_body(self._class, answer.body) if answer.code == DLedgerCode.SUCCESS else None)
        except BodyError as error:
            _LOG.warning("an answer is dropped: %s", error.describe())
            self.answer.set_result(None)

    def set_exception(self, error: Exception, /) -> None:
        """None has come."""
        _LOG.debug("a member does not answer: %s", error)
        self.answer.set_result(None)


def _respond(request: RemotingCommand, peer: Peer, done: Future[DLedgerMessage]) -> None:
    if not done.cancelled() and done.exception() is None:
        peer.respond(request, make_response(request, DLedgerCode.SUCCESS, None, None, write_body(done.result())))
