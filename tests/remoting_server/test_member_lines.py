"""The lines between members of a DLedger group: what is asked is answered once, and silence is an answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from spark_mq.dledger.messages import (
    AppendEntryRequest,
    DLedgerMessage,
    DLedgerRequestCode,
    HeartBeatRequest,
    MetadataRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from spark_mq.remoting_server.member_lines import MemberLines
from spark_mq.remoting_server.pools import Processors
from spark_mq.remoting_server.server import RemotingServer
from spark_mq.remoting_server.settings import ServerSettings, TlsServerSettings
from spark_mq.testing.ports import free_ports
from spark_mq.testing.servers import on_own_loop

VOTE = VoteResponse(group="g", term=7, vote_result=VoteResult.ACCEPT)


class Asked:
    """A member that answers votes alone."""

    def __init__(self) -> None:
        self.requests: list[DLedgerMessage] = []

    def handle(self, request: DLedgerMessage) -> Future[DLedgerMessage]:
        self.requests.append(request)
        answer: Future[DLedgerMessage] = Future()
        if isinstance(request, VoteRequest):
            answer.set_result(VOTE)
        if isinstance(request, MetadataRequest):
            answer.set_exception(RuntimeError("it has ended"))
        return answer


@pytest.fixture
def member() -> Iterator[tuple[Asked, MemberLines]]:
    """A member that listens, and the lines of another one to it, and to one that is not there."""
    asked = Asked()
    port = free_ports()
    lines = MemberLines({"n0": f"127.0.0.1:{port}", "n1": f"127.0.0.1:{free_ports()}"})

    async def start() -> RemotingServer:
        server = RemotingServer(ServerSettings(), TlsServerSettings())
        await server.listen("127.0.0.1", port, Processors(lines.processors(asked.handle)))
        return server

    with on_own_loop(start, "member"):
        yield asked, lines
        lines.close().result(10)


def test_a_request_is_answered_by_the_member(member: tuple[Asked, MemberLines]) -> None:
    asked, lines = member
    request = VoteRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=7)
    assert lines.ask("n0", DLedgerRequestCode.VOTE, request, 3_000).result(10) == VOTE
    assert asked.requests == [request]


def test_silence_a_broken_line_and_a_request_that_is_not_served_are_no_answer(
    member: tuple[Asked, MemberLines],
) -> None:
    asked, lines = member
    none = (
        lines.ask("n0", DLedgerRequestCode.HEART_BEAT, HeartBeatRequest(group="g"), 300),
        lines.ask("n0", DLedgerRequestCode.METADATA, MetadataRequest(group="g"), 300),
        lines.ask("n1", DLedgerRequestCode.VOTE, VoteRequest(group="g"), 300),
        lines.ask("n0", DLedgerRequestCode.APPEND, AppendEntryRequest(group="g", body=b"x"), 3_000),
    )
    assert [each.result(10) for each in none] == [None] * 4
    assert {type(each) for each in asked.requests} == {HeartBeatRequest, MetadataRequest}, "no client appends"
