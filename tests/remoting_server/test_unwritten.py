"""Answers that wait to be written: a client that does not read gets few made, and others are answered as ever."""

from __future__ import annotations

import time

import pytest

from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting_server import peer
from spark_mq.remoting_server.channel import OVERLOADED
from spark_mq.remoting_server.peer import Peer, Unwritten, UnwrittenOfAll
from storage.rules.response_codes import ResponseCode
from tests.remoting_server.echo import Client, request, running

LARGE = bytes(256 << 10)
COUNT = 400


def test_a_client_that_does_not_read_is_refused_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "OF_ONE_BYTES", 1 << 20)
    made: list[str] = []

    def large(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        made.append(peer.address)
        return make_response(asked, 0, None, None, LARGE)

    with running(large, serverSocketSndBufSize="65536") as server, Client(server) as lazy:
        lazy.send(*(request(number) for number in range(COUNT)))
        server.until(lambda: not server.pool.is_busy, "all are answered or refused")
        assert len(made) < COUNT // 2
        with Client(server) as other:
            assert all(bytes(other.ask(request(number)).body) == LARGE for number in range(20))
        answers = [lazy.receive() for _ in range(COUNT)]
        refused = [each for each in answers if each.code != 0]
        assert {each.opaque for each in answers} == set(range(COUNT))
        assert {(each.code, each.remark) for each in refused} == {(ResponseCode.SYSTEM_BUSY, OVERLOADED)}
        assert len(refused) + made.count(made[0]) == COUNT
        assert lazy.ask(request(COUNT)).code == 0  # it has read, and is as any other
        of_all = server.server._shared.unwritten
        server.until(lambda: of_all.size_bytes < 2 * len(LARGE), "what has left does not count")
    assert _falls_to_nothing(of_all)


def _falls_to_nothing(of_all: UnwrittenOfAll) -> bool:
    end = time.monotonic() + 10
    while of_all.size_bytes and time.monotonic() < end:
        time.sleep(0.01)
    return of_all.size_bytes == 0


def test_when_all_have_much_waiting_only_those_with_little_are_answered() -> None:
    of_all = UnwrittenOfAll()
    ones = [Unwritten(of_all) for _ in range(20)]
    for one in ones:
        one.change(peer.OF_ALL_BYTES // len(ones) + 1)
    little = Unwritten(of_all)
    little.change(1)
    assert all(one.is_too_much for one in ones)
    assert not little.is_too_much
    for one in ones[10:]:
        one.change(-one.size_bytes)
    assert not ones[0].is_too_much
    ones[0].change(peer.OF_ONE_BYTES)
    assert ones[0].is_too_much
