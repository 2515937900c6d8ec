"""What a server notes of its answers for figures: since when a request is there, and whether it was suspended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting.command import ONEWAY_FLAG
from spark_mq.remoting_server.channel import Channel
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import PoolSettings
from tests.remoting_server.echo import Client, Running, echo, request, running

_MANY = 5_000


def noted(server: Running) -> list[tuple[str, bool]]:
    """The result of each answer from now on, and whether its request was suspended."""
    found: list[tuple[str, bool]] = []

    def note(code: int, answer: int, result: str, seconds: float, times: int, was_suspended: bool) -> None:
        found.append((result, was_suspended))

    server.server._shared.on_answered = note
    return found


def test_an_answer_that_comes_later_is_not_taken_for_that_of_a_suspended_request() -> None:
    """Java: RemotingCommand.isSuspended, which PullRequestHoldService sets; not an answer of a forwarded request."""

    def later(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        if asked.opaque == 3:
            return echo(asked, peer)
        peer.respond(asked, make_response(asked, 0), was_suspended=asked.opaque == 2)
        return None

    with running(later) as server:
        found = noted(server)
        with Client(server) as client:
            for number in (1, 2, 3):
                client.ask(request(number))
    assert found == [("success", False), ("success", True), ("success", False)]


def test_one_way_requests_take_no_arrival_from_a_request_that_is_parked() -> None:
    parked: list[tuple[RemotingCommand, Peer]] = []

    def park(asked: RemotingCommand, peer: Peer) -> None:
        if not asked.is_oneway:
            parked.append((asked, peer))

    with running(park) as server:
        found = noted(server)
        with Client(server) as client:
            client.send(request(1))
            client.send(*(request(number + 2, flag=ONEWAY_FLAG) for number in range(_MANY)))
            server.until(lambda: server.server._shared.ended_count == _MANY + 1, "all have run")
            (asked, peer) = parked[0]
            peer.respond(asked, make_response(asked, 0), was_suspended=True)
            client.receive()
    assert found == [("success", True)]


def test_a_request_that_waits_for_room_has_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java: RemotingCommand.processTimer, which begins where the request is decoded."""
    may_end, came = threading.Event(), Counter[int]()
    note: Callable[[Channel, int], None] = Channel._note_arrival

    def note_arrival(channel: Channel, opaque: int) -> None:
        came[opaque] += 1
        note(channel, opaque)

    def slow(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        assert may_end.wait(30)
        return echo(asked, peer)

    monkeypatch.setattr(Channel, "_note_arrival", note_arrival)
    with running(slow, PoolSettings("Echo", 1, thread_count=1)) as server:
        noted(server)
        with Client(server) as client:
            client.send(*(request(number, flag=ONEWAY_FLAG) for number in range(4)))
            server.until(lambda: len(server.server._shared.behind) == 1, "some wait for room")
            time.sleep(0.1)  # it is looked at again meanwhile
            may_end.set()
            server.until(lambda: server.server._shared.ended_count == 4, "all have run")
    assert came == Counter(range(4))
