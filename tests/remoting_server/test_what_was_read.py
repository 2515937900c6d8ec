"""What was read is done, whatever becomes of its connection and of its answer; and each connection has a bounded share."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting_server import channel as channel_module
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import PendingAnswer, PoolSettings
from storage.pending import Pending
from tests.remoting_server.echo import LIMIT_SECONDS, Client, Running, echo, frame, request, running

ONE_THREAD = PoolSettings("Send", 100_000, thread_count=1)
LARGE = bytes(8 << 20)


class Gated:
    """Answers requests, each when the gate is open; `done` are the numbers of those that were answered."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.done: list[int] = []

    def __call__(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        assert self.gate.wait(LIMIT_SECONDS)
        self.done.append(asked.opaque)
        return echo(asked, peer)


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.gate.set()


def left_by(server: Running, count: int, *commands: RemotingCommand) -> None:
    """So many connections send these requests each, and hang up; all of it is known to the server when this returns."""
    gone = len(server.gone)
    for _ in range(count):
        with Client(server) as client:
            client.send(*commands)
    server.until(lambda: len({*server.gone}) >= gone + count, "all have hung up")


# What was read is done.


@pytest.mark.parametrize("flag", [2, 0], ids=["one-way", "not waited for"])
def test_requests_of_peers_that_have_gone_are_done(gated: Gated, flag: int) -> None:
    with running(gated, ONE_THREAD) as server:
        left_by(server, 20, *(request(number, flag=flag) for number in range(20)))
        assert gated.done == []
        gated.gate.set()
        server.until(lambda: len(gated.done) == 400, "all 400 are done")


def test_what_a_peer_sent_before_what_is_no_frame_is_done(gated: Gated) -> None:
    with running(gated, ONE_THREAD) as server, Client(server) as client:
        client.sock.sendall(b"".join(frame(request(number)) for number in range(50)) + struct.pack(">i", -1))
        assert client.ended()
        gated.gate.set()
        server.until(lambda: gated.done == list(range(50)), "those before it are done")


def test_what_was_read_is_done_before_the_server_ends(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_UNANSWERED_MOST", 10)
    with running(gated, ONE_THREAD) as server, Client(server) as client:
        with Client(server) as other:
            other.send(*(request(number, flag=2) for number in range(100)))
        client.send(*(request(number, flag=2) for number in range(100)))
        server.until(lambda: len(server.server._shared.behind) == 2, "both wait for their share")
        ending = threading.Thread(target=server.close)
        ending.start()
        server.until(lambda: server.server._shared.is_ending, "it ends")
        gated.gate.set()
        ending.join(LIMIT_SECONDS)
        assert len(gated.done) == 200


def test_a_server_that_ends_waits_for_what_no_pool_has_yet(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_LOOK_SECONDS", 0.5)
    with running(gated, PoolSettings("Send", 2, thread_count=1)) as server, Client(server) as client:
        client.send(*(request(number, flag=2) for number in range(6)))
        server.until(lambda: len(server.server._shared.behind) == 1, "some wait for room")
        gated.gate.set()
        server.until(lambda: not server.pool.is_busy, "the pool has nothing")
        server.close()
        assert gated.done == list(range(6))


def test_a_server_that_ends_reads_nothing_more_and_waits_as_long_as_requests_end() -> None:
    entered, gate = threading.Event(), threading.Event()

    def slow(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        entered.set()
        assert gate.wait(LIMIT_SECONDS)
        return echo(asked, peer)

    with running(slow, ONE_THREAD) as server, Client(server) as client:
        client.send(request(1))
        assert entered.wait(LIMIT_SECONDS)
        ending = threading.Thread(target=server.close)
        ending.start()
        server.until(lambda: server.server._shared.is_ending, "it ends")
        client.send(request(2))
        (channel,) = server.server._shared.channels
        server.until(lambda: channel._is_paused, "nothing is read")
        gate.set()
        assert client.receive().opaque == 1
        ending.join(LIMIT_SECONDS)
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()


def test_who_asks_a_peer_while_the_server_ends_hears_its_answer() -> None:
    asked: list[Peer] = []

    def ask(command: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        asked.append(peer)
        found = peer.request(request(40, code=40), LIMIT_SECONDS * 1_000).result(LIMIT_SECONDS)
        return make_response(command, 0, found.remark)

    with running(ask, ONE_THREAD) as server, Client(server) as client:
        client.send(request(1))
        question = client.receive()
        ending = threading.Thread(target=server.close)
        ending.start()
        server.until(lambda: server.server._shared.is_ending, "it ends")
        client.send(make_response(question, 0, "heard"))
        assert client.receive().remark == "heard"
        ending.join(LIMIT_SECONDS)


def test_when_a_connection_breaks_under_an_answer_what_had_come_is_done() -> None:
    done: list[int] = []

    def answer(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        done.append(asked.opaque)
        return make_response(asked, 0, None, None, LARGE)

    with running(answer, serverSocketSndBufSize="4096") as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: any(not peer.is_writable for peer in server.server.peers), "the answer does not leave")
        client.send(*(request(number, flag=2) for number in range(1, 51)))
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
        server.until(lambda: bool(server.gone), "it is gone")
        server.until(lambda: done == list(range(51)), "all is done")


# Refusals are for those who hear them.


def test_only_who_hears_of_it_is_refused_for_being_late(gated: Gated) -> None:
    pool = PoolSettings("Send", 100, thread_count=1, wait_limit_ms=50)
    with running(gated, pool) as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        left_by(server, 1, request(10))
        client.send(request(1, flag=2), request(2), request(3, flag=2))
        refused = client.receive()
        assert (refused.opaque, (refused.remark or "")[:21]) == (2, "[TIMEOUT_CLEAN_QUEUE]")
        gated.gate.set()
        assert client.receive().opaque == 0
        server.until(lambda: gated.done == [0, 10, 1, 3], "all others are done, in their order")


def test_a_queue_that_is_emptied_keeps_what_nobody_would_hear_of(gated: Gated) -> None:
    with running(gated, ONE_THREAD) as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        client.send(request(1, flag=2), request(2), request(3, flag=2))
        server.until(lambda: server.pool.size == 3, "three wait")
        assert server.pool.refuse_all(lambda waited, size: "cleaned") == 1
        assert (client.receive().opaque, server.pool.size) == (2, 2)
        gated.gate.set()
        server.until(lambda: gated.done == [0, 1, 3], "the others are done")


@pytest.mark.parametrize("full", ["queue", "memory"])
def test_one_way_requests_wait_where_there_is_no_room(gated: Gated, full: str) -> None:
    pool = PoolSettings("Send", 2 if full == "queue" else 1_000, thread_count=1)
    most = "1000000" if full == "queue" else "1000"
    with running(gated, pool, serverMaxRequestBytes=most) as server, Client(server) as client:
        client.send(request(0, flag=2))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        for _ in range(3):
            with Client(server) as other:
                other.send(*(request(number, flag=2) for number in range(20)))
        client.send(*(request(number, flag=2) for number in range(20)))
        server.until(lambda: len(server.server._shared.behind) == 4, "they wait")
        with Client(server) as other:
            assert (other.ask(request(1)).remark or "").startswith("[OVERLOAD]")
        gated.gate.set()
        server.until(lambda: len(gated.done) == 81, "all are done")


def test_a_one_way_request_larger_than_the_servers_memory_runs_alone(gated: Gated) -> None:
    with running(gated, ONE_THREAD, serverMaxRequestBytes="5000") as server, Client(server) as client:
        client.send(request(0), request(1, flag=2, body=bytes(6_000)))
        server.until(lambda: len(server.server._shared.behind) == 1, "there is no room beside another")
        gated.gate.set()
        server.until(lambda: gated.done == [0, 1] and not server.pool.is_busy, "both are done")
        server.until(lambda: server.server._shared.request_count == 0, "both have ended")
        assert client.receive().opaque == 0
        assert client.ask(request(2)).opaque == 2


def test_who_answers_is_told_that_nobody_hears(gated: Gated) -> None:
    heard: list[bool] = []

    def note(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        answer = gated(asked, peer)
        heard.append(not asked.is_oneway)
        return answer

    with running(note, ONE_THREAD) as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        left_by(server, 1, request(1))
        client.send(request(2), request(3, flag=2))
        server.until(lambda: server.pool.size == 3, "three wait")
        gated.gate.set()
        server.until(lambda: len(heard) == 4, "all are done")
    assert heard == [True, False, True, False]


def test_a_processor_that_rejects_takes_what_nobody_would_hear_of() -> None:
    done: list[int] = []

    def note(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        done.append(asked.opaque)
        return echo(asked, peer)

    with running(note, rejects=lambda: True) as server, Client(server) as client:
        client.send(request(1, flag=2), request(2))
        assert (client.receive().opaque, done) == (2, [1])


def test_who_is_to_go_away_has_its_one_way_requests_done() -> None:
    done: list[int] = []

    def note(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        done.append(asked.opaque)
        return echo(asked, peer)

    with running(note, enableShutdownGracefully="true", shutdownWaitTimeSeconds="1") as server, Client(server) as one:
        ending = threading.Thread(target=server.close)
        ending.start()
        server.until(lambda: server.server._shared.is_going_away, "it is going away")
        one.send(request(1, flag=2, version=479), request(2, version=479))
        assert one.receive().code == 1_500
        assert done == [1]
        ending.join(LIMIT_SECONDS)


def test_what_connections_leave_has_a_limit(gated: Gated, caplog: pytest.LogCaptureFixture) -> None:
    pool = PoolSettings("Send", 1, thread_count=1)
    with running(gated, pool, serverMaxUnfinishedBytes="10000") as server, ExitStack() as opened:
        for client in [opened.enter_context(Client(server)) for _ in range(3)]:
            client.send(*(request(number, flag=2) for number in range(50)))
        server.until(lambda: len(server.server._shared.behind) == 3, "they wait")
        with caplog.at_level(logging.ERROR):
            server.call(lambda: [peer.close("it is silent") for peer in server.server.peers])
        assert [" are dropped: too much is left" in record.message for record in caplog.records].count(True) == 2
        gated.gate.set()
        server.until(lambda: not server.server._shared.request_count and not server.server._shared.behind, "done")
        assert 50 <= len(gated.done) < 150
        assert server.call(lambda: server.server._shared._unfinished_bytes) == 0


# Who has gone, and is known no more.


def test_its_end_is_heard_of_at_once_and_again_when_its_last_request_is_done(gated: Gated) -> None:
    with running(gated, ONE_THREAD) as server:
        left_by(server, 1, *(request(number) for number in range(3)))
        assert len(server.gone) == 1
        gated.gate.set()
        server.until(lambda: len(server.gone) == 2, "it is heard of again")
        assert (len({*server.gone}), gated.done) == (1, [0, 1, 2])


def test_an_answer_that_waits_for_others_outlives_its_peer_too() -> None:
    over = threading.Event()
    answered: list[int] = []

    def later(asked: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        def answer() -> RemotingCommand | None:
            answered.append(asked.opaque)
            return echo(asked, peer)

        return Pending(answer, lambda call: None if over.is_set() else 0.02)

    with running(later, ONE_THREAD) as server:
        left_by(server, 1, request(1))
        assert answered == []
        over.set()
        server.until(lambda: answered == [1], "it is answered to nobody")
        server.until(lambda: len(server.gone) == 2, "its peer is forgotten again")


# A share.


def test_no_connection_waits_for_all_that_another_has_sent() -> None:
    done: list[int] = []

    def note(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        done.append(asked.opaque)
        return echo(asked, peer)

    with running(note, PoolSettings("Echo", 100_000)) as server, ExitStack() as opened:
        many = [opened.enter_context(Client(server)) for _ in range(20)]
        one = opened.enter_context(Client(server))
        for client in (*many, one):
            client.ask(request(9))
        sent, looks = threading.Event(), threading.Event()

        def hold() -> None:
            looks.set()
            assert sent.wait(LIMIT_SECONDS)

        server.loop.call_soon_threadsafe(hold)
        assert looks.wait(LIMIT_SECONDS)
        for client in many:
            client.send(*(request(1) for _ in range(1_000)))
        one.send(request(7))
        done.clear()
        sent.set()
        server.until(lambda: len(done) == 20_001, "all are done")
        assert done.index(7) <= 1_000


def test_of_one_connection_so_many_wait_and_the_rest_stays_in_its_socket(gated: Gated) -> None:
    count = 20_000
    with running(gated, ONE_THREAD, serverSocketRcvBufSize="65536") as server, Client(server) as client:
        sending = threading.Thread(target=client.send, args=[request(number) for number in range(count)])
        sending.start()
        shared = server.server._shared
        server.until(lambda: shared.request_count == 1_024, "as many wait as may")
        (channel,) = shared.channels
        server.until(lambda: channel._is_paused, "nothing more is read")
        with Client(server) as other:
            other.send(request(-1, flag=2))
            server.until(lambda: shared.request_count == 1_025, "others' are taken")
        assert channel._connection.unread_bytes <= 1 << 18
        gated.gate.set()
        assert [client.receive().opaque for _ in range(count)] == list(range(count))
        sending.join(LIMIT_SECONDS)
        assert sorted(gated.done) == list(range(-1, count))


def test_of_one_connection_so_many_bytes_wait(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_UNANSWERED_BYTES_MOST", 1 << 20)
    with running(gated, ONE_THREAD) as server, Client(server) as client:
        named = [request(number)._replace(ext_fields={"n": "x" * 100_000}) for number in range(40)]
        sending = threading.Thread(target=client.send, args=named)
        sending.start()
        shared = server.server._shared
        server.until(lambda: shared._request_bytes > 1 << 20, "much waits")
        (channel,) = shared.channels
        server.until(lambda: channel._is_paused, "nothing more is read")
        assert shared._request_bytes < (1 << 20) + 200_000
        gated.gate.set()
        assert [client.receive().opaque for _ in range(40)] == list(range(40))
        sending.join(LIMIT_SECONDS)


def test_requests_of_a_peer_that_does_not_read_its_answers_wait_in_its_socket() -> None:
    done: list[int] = []

    def large(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        done.append(asked.opaque)
        return make_response(asked, 0, None, None, bytes(64 << 10))

    with running(large, serverSocketSndBufSize="65536") as server, Client(server) as lazy:
        lazy.send(*(request(number) for number in range(1_500)))
        server.until(lambda: any(not peer.is_writable for peer in server.server.peers), "its answers do not leave")
        (channel,) = server.server._shared.channels
        server.until(lambda: not server.server._shared.request_count, "what has begun is answered")
        assert 0 < len(done) < 1_000
        assert channel.unwritten.size_bytes < 40 << 20
        assert channel._connection.unread_bytes > 0
        refused = [answer for answer in (lazy.receive() for _ in range(1_500)) if answer.code != 0]
        assert len(done) + len(refused) == 1_500
        assert {answer.remark for answer in refused} <= {channel_module.OVERLOADED}


def test_pieces_are_little_while_many_connections_are_behind(gated: Gated) -> None:
    with running(gated, PoolSettings("Send", 64, thread_count=1)) as server, ExitStack() as opened:
        clients = [opened.enter_context(Client(server)) for _ in range(70)]
        shared = server.server._shared
        assert len(shared.piece()) == 256 << 10
        for client in clients:
            client.send(*(request(number, flag=2) for number in range(20)))
        server.until(lambda: len(shared.behind) >= 64, "many are behind")
        assert len(shared.piece()) == 16 << 10
        gated.gate.set()
        server.until(lambda: len(gated.done) == 70 * 20, "all is done")
        assert len(shared.piece()) == 256 << 10


def test_a_peer_that_has_gone_leaves_nothing_behind_in_the_server() -> None:
    with running() as server:
        left_by(server, 5, *(request(number) for number in range(2_000)))
        shared = server.server._shared
        server.until(lambda: not shared.behind and not shared.request_count, "all is done")
        end = time.monotonic() + LIMIT_SECONDS
        while shared.unwritten.size_bytes and time.monotonic() < end:
            time.sleep(0.01)
        assert (shared._request_bytes, shared._unfinished_bytes, shared.unwritten.size_bytes) == (0, 0, 0)
        assert not shared.channels


# A turn that fails.


def test_a_turn_that_fails_ends_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[None] = []

    def rejects() -> bool:
        asked.append(None)
        if len(asked) == 20:  # the first 16 begin as they are read, the others in turns
            raise MemoryError("amid a turn")
        return False

    with running(rejects=rejects) as server:
        with Client(server) as first, Client(server) as other:
            first.send(*(request(number) for number in range(40)))
            server.until(lambda: len(server.gone) > 0, "the first is hung up on")
            other.send(*(request(number) for number in range(100)))
            assert [other.receive().opaque for _ in range(100)] == list(range(100))
        server.until(lambda: not server.server._shared.behind, "nothing is left of the first")
    assert "amid a turn" in caplog.text


def test_a_frame_that_begins_behind_a_turns_requests_is_counted() -> None:
    begun = frame(request(40, body=bytes(1_000)))[:500]
    with running(serverMaxUnfinishedBytes="800") as server, Client(server) as client, Client(server) as other:
        client.sock.sendall(b"".join(frame(request(number)) for number in range(40)) + begun)
        assert [client.receive().opaque for _ in range(40)] == list(range(40))
        server.until(lambda: server.server._shared._unfinished_bytes == len(begun), "it counts")
        (channel,) = (each for each in server.server._shared.channels if each._unfinished_bytes)
        assert channel._frame_began_at is not None
        other.sock.sendall(begun)
        assert other.ended()
