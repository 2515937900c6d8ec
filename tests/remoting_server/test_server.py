"""What a server does with requests, and with peers that are slow, lie, or take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from spark_mq.remoting import HeaderEncoding, RemotingCommand, make_request, make_response
from spark_mq.remoting_server.channel import Channel
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import PendingAnswer, PoolSettings
from storage.pending import Pending
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from tests.remoting_server.echo import LIMIT_SECONDS, NO_FRAMES, Client, Running, echo, frame, request, running

BINARY = HeaderEncoding.ROCKETMQ


# Requests and answers.


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_a_request_is_answered_in_its_encoding(encoding: HeaderEncoding) -> None:
    with running() as server, Client(server) as client:
        answer = client.ask(request(7, body=b"body", encoding=encoding))
        assert (answer.opaque, answer.encoding, answer.ext_fields, answer.body) == (7, encoding, {"n": "7"}, b"body")
        assert answer.is_response


def test_a_request_byte_by_byte_is_a_request() -> None:
    with running() as server, Client(server) as client:
        for byte in frame(request(1)) + frame(request(2, encoding=BINARY)):
            client.sock.sendall(bytes([byte]))
        assert [client.receive().opaque, client.receive().opaque] == [1, 2]


def test_many_requests_in_one_write_are_all_answered() -> None:
    with running() as server, Client(server) as client:
        client.send(*(request(number) for number in range(2_000)))
        assert [client.receive().opaque for _ in range(2_000)] == list(range(2_000))


def test_oneway_requests_are_never_answered_not_even_with_errors() -> None:
    with running() as server, Client(server) as client:
        client.send(request(1, flag=2), request(2, code=999, flag=2), request(3))
        assert client.receive().opaque == 3


def test_what_nobody_answers_is_not_supported() -> None:
    with running() as server, Client(server) as client:
        answer = client.ask(request(1, code=999))
        assert (answer.code, answer.remark) == (3, " request type 999 not supported")


def test_what_is_not_supported_is_counted_and_named_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        running() as server,
        Client(server) as client,
        caplog.at_level("WARNING", "spark_mq.remoting_server.peer"),
    ):
        address = "{}:{}".format(*client.sock.getsockname())
        of_group = make_request(400, {"consumerGroup": "team"})
        client.ask(of_group)
        for number in range(3):
            client.send(request(number, code=999, flag=2))
        client.ask(request(3, code=999))
        assert server.server.unsupported_counts == {400: 1, 999: 4}
        assert [record.getMessage().partition(", a ")[0] for record in caplog.records] == [
            f"QUERY_ASSIGNMENT (400) of client {address}, group 'team'",
            f"request 999 of client {address}",
        ]
        caplog.clear()
        unsupported = server.server._shared.unsupported
        server.call(unsupported.tell)  # a minute is over
        server.call(unsupported.tell)  # another one
        assert caplog.messages == [f"request 999 of client {address} is not supported: 3 more within a minute"]
        client.ask(of_group)
        assert len(caplog.messages) == 2


def test_what_is_noted_of_requests_that_are_not_supported_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with (
        running() as server,
        Client(server) as client,
        caplog.at_level("WARNING", "spark_mq.remoting_server.peer"),
    ):
        for number in range(1_000):
            client.send(make_request(1_000 + number, {"group": "g" * 1_000}, is_oneway=True))
        client.ask(request(1, code=999))
        counts = server.server.unsupported_counts
        assert (len(counts), sum(counts.values()), counts[-1]) == (65, 1_001, 937)
        assert len(caplog.messages) == 256
        assert all(len(message) < 400 for message in caplog.messages)
        server.call(server.server._shared.unsupported.tell)
        assert caplog.messages[256:] == ["requests of others are not supported: 745 within a minute"]


def test_errors_are_answered_and_the_connection_stays() -> None:
    def fail(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        if asked.opaque == 1:
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, "no")
        if asked.opaque == 2:
            raise ZeroDivisionError("it is nothing")
        return make_response(asked, 0, None, None, bytes(1 << 20)) if asked.opaque == 3 else echo(asked, peer)

    settings = {"com.rocketmq.remoting.frameMaxLength": "100000"}
    with running(fail, **settings) as server, Client(server) as client:
        found = [client.ask(request(number)) for number in (1, 2, 3, 4)]
    assert [(answer.code, answer.remark) for answer in found[:2]] == [
        (16, "no"),
        (1, "ZeroDivisionError: it is nothing"),
    ]
    assert found[2].code == 1
    assert "the limit is 100000 bytes" in (found[2].remark or "")
    assert found[3].code == 0


def test_an_answer_may_come_later_from_any_thread() -> None:
    def later(asked: RemotingCommand, peer: Peer) -> None:
        threading.Timer(0.05 if asked.opaque == 1 else 0, peer.respond, (asked, make_response(asked, 0))).start()

    with running(later) as server, Client(server) as client:
        client.send(request(1), request(2))
        assert [client.receive().opaque, client.receive().opaque] == [2, 1]


def test_a_peer_is_known_by_its_last_request() -> None:
    peers: list[Peer] = []

    def remember(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        peers.append(peer)
        return echo(asked, peer)

    with running(remember) as server, Client(server) as client:
        client.ask(request(1, version=401))
        host, port = client.sock.getsockname()
        assert (peers[0].address, peers[0].host, peers[0].version) == (f"{host}:{port}", host, 401)
        client.sock.close()
        server.until(lambda: server.gone == peers, "the server hears that the peer has gone")
        assert not peers[0].is_open


def test_the_server_asks_its_peers_over_the_same_connection() -> None:
    asked: list[Peer] = []

    def remember(command: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        asked.append(peer)
        return echo(command, peer)

    with running(remember) as server, Client(server) as client:
        client.ask(request(0))
        (peer,) = asked
        found = peer.request(make_request(40), LIMIT_SECONDS * 1_000)
        question = client.receive()
        assert (question.code, question.is_response) == (40, False)
        client.send(make_response(question, 0, "answer"))
        assert found.result(LIMIT_SECONDS).remark == "answer"
        peer.send_oneway(make_request(41))
        assert client.receive().is_oneway
        late = peer.request(make_request(40), 20)
        with pytest.raises(TimeoutError, match="did not answer within 20 ms"):
            late.result(LIMIT_SECONDS)
        waiting = peer.request(make_request(40), LIMIT_SECONDS * 1_000)
        client.sock.close()
        with pytest.raises(Exception, match="the connection is closed"):
            waiting.result(LIMIT_SECONDS)


# Answers that wait for others.


def test_answers_that_wait_hold_no_thread_and_are_asked_for_when_their_time_is_over() -> None:
    def late(asked: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        left = iter(() if asked.opaque == 10 else (0.2,))
        return Pending(lambda: echo(asked, peer), lambda call: next(left, None))

    with running(late, PoolSettings("Echo", 100, 1, 100, together=4)) as server, Client(server) as client:
        client.send(*(request(number) for number in range(11)))
        opaques = [client.receive().opaque for _ in range(11)]
    assert opaques[0] == 10
    assert sorted(opaques) == list(range(11))


def test_an_answer_is_asked_for_as_soon_as_what_it_waits_for_is_over_and_once() -> None:
    calls: dict[int, Callable[[], None]] = {}
    over: set[int] = set()
    asked_for: list[int] = []

    def later(asked: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        def answer() -> RemotingCommand | None:
            asked_for.append(asked.opaque)
            return echo(asked, peer)

        def when_settled(call: Callable[[], None]) -> float | None:
            calls[asked.opaque] = call
            return None if asked.opaque in over else LIMIT_SECONDS * 10

        return Pending(answer, when_settled)

    with running(later, PoolSettings("Echo", 100, 1)) as server, Client(server) as client:
        client.send(request(0), request(1))
        server.until(lambda: len(calls) == 2, "both wait")
        assert asked_for == []
        for number in (1, 1, 0):
            over.add(number)
            calls[number]()
        assert [client.receive().opaque, client.receive().opaque] == [1, 0]
        assert asked_for == [1, 0]


def test_a_settling_that_fails_and_an_answer_that_fails_are_answered() -> None:
    def fail(asked: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        def broken(*_: object) -> float | None:
            raise ZeroDivisionError("it is nothing")

        return Pending(broken if asked.opaque == 1 else lambda: echo(asked, peer), broken)  # type: ignore[arg-type]

    with running(fail, PoolSettings("Echo", 100, 1)) as server, Client(server) as client:
        assert client.ask(request(1)).remark == "ZeroDivisionError: it is nothing"
        assert client.ask(request(2)).code == 0


def test_a_server_that_ends_answers_those_that_wait() -> None:
    def late(asked: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        left = iter((0.1, 0.1))  # for one thing, then for another
        return Pending(lambda: echo(asked, peer), lambda call: next(left, None))

    with running(late, PoolSettings("Echo", 100, 1)) as server, Client(server) as client:
        client.send(request(1))
        server.until(lambda: server.server._shared.waiting.count == 1, "it waits")
        server.close()
        assert client.receive().opaque == 1
        assert client.ended()


# Queues.


def test_a_full_queue_refuses_at_once() -> None:
    gate = threading.Event()

    def wait(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        gate.wait(LIMIT_SECONDS)
        return echo(asked, peer)

    with running(wait, PoolSettings("Send", capacity=2, thread_count=1)) as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        client.send(*(request(number) for number in range(1, 5)))
        refused = [client.receive(), client.receive()]
        assert [(answer.opaque, answer.code) for answer in refused] == [(3, 2), (4, 2)]
        assert refused[0].remark == "[OVERLOAD]system busy, start flow control for a while"
        gate.set()
        assert sorted(client.receive().opaque for _ in range(3)) == [0, 1, 2]


def test_what_waits_for_too_long_is_refused_while_all_threads_are_busy() -> None:
    gate = threading.Event()

    def wait(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        gate.wait(LIMIT_SECONDS)
        return echo(asked, peer)

    pool = PoolSettings("Send", capacity=10, thread_count=1, wait_limit_ms=50)
    with running(wait, pool) as server, Client(server) as client:
        client.send(request(0))
        server.until(lambda: server.pool.size == 0 and server.pool.is_busy, "the first runs")
        client.send(request(1), request(2))
        for opaque in (1, 2):
            answer = client.receive()
            assert (answer.opaque, answer.code) == (opaque, 2)
            remark = answer.remark or ""
            assert remark.startswith(
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            )
            assert remark.endswith(f"ms, size of queue: {2 - opaque}")
        gate.set()
        assert client.receive().opaque == 0


def test_a_queue_can_be_emptied() -> None:
    gate = threading.Event()

    def wait(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        gate.wait(LIMIT_SECONDS)
        return echo(asked, peer)

    with running(wait, PoolSettings("Send", capacity=10, thread_count=1)) as server, Client(server) as client:
        client.send(*(request(number) for number in range(3)))
        server.until(lambda: server.pool.size == 2, "two wait")
        assert server.call(lambda: server.pool.refuse_all(lambda waited, size: f"cleaned, {size} left")) == 2
        assert [(client.receive().remark) for _ in range(2)] == ["cleaned, 1 left", "cleaned, 0 left"]
        gate.set()


def test_a_processor_may_turn_requests_away_unread() -> None:
    with running(rejects=lambda: True) as server, Client(server) as client:
        answer = client.ask(request(1))
        assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")


def test_requests_beyond_the_servers_memory_are_refused() -> None:
    with running(serverMaxRequestBytes="5000") as server, Client(server) as client:
        assert client.ask(request(1, body=bytes(4_000))).code == 0
        assert client.ask(request(2, body=bytes(6_000))).code == 2
        assert client.ask(request(3, body=bytes(4_000))).code == 0


# Hostile peers.


@pytest.mark.parametrize("bytes_sent", NO_FRAMES.values(), ids=NO_FRAMES)
def test_what_is_no_frame_ends_its_connection_and_no_other(bytes_sent: bytes) -> None:
    with running() as server, Client(server) as other, Client(server) as client:
        assert client.ask(request(1)).opaque == 1
        client.sock.sendall(bytes_sent)
        assert client.ended()
        assert other.ask(request(2)).opaque == 2


def test_a_lying_length_takes_no_memory() -> None:
    with running() as server, Client(server) as client, Client(server) as other:
        client.sock.sendall(struct.pack(">iI", 16_000_000, 100) + b"{")
        server.until(lambda: server.server._shared._unfinished_bytes > 0, "it has begun")
        assert other.ask(request(1)).opaque == 1
        (pending,) = (each._unfinished_bytes for each in server.server._shared.channels if each._unfinished_bytes)
        assert pending == 9


def test_unfinished_frames_of_all_connections_have_a_limit() -> None:
    with running(serverMaxUnfinishedBytes="100000") as server:
        begun = struct.pack(">iI", 1_000_000, 100) + bytes(40_000)
        with Client(server) as first, Client(server) as second, Client(server) as third, Client(server) as other:
            first.sock.sendall(begun)
            second.sock.sendall(begun)
            server.until(lambda: server.server._shared._unfinished_bytes > 79_000, "two have begun")
            third.sock.sendall(begun)
            assert third.ended()
            assert other.ask(request(1)).opaque == 1
        server.until(lambda: server.server._shared._unfinished_bytes == 0, "all is given back")


def test_idle_connections_are_closed_and_used_ones_are_not() -> None:
    with running(serverChannelMaxIdleTimeSeconds="1") as server, Client(server) as idle, Client(server) as used:
        closed = threading.Thread(target=idle.ended)
        closed.start()
        number = 0
        while closed.is_alive():
            number += 1
            assert used.ask(request(number)).opaque == number
            time.sleep(0.05)


def test_a_frame_that_comes_too_slowly_ends_its_connection() -> None:
    with running(serverChannelMaxIdleTimeSeconds="1") as server, Client(server) as loris:
        hung_up = threading.Thread(target=loris.ended)
        hung_up.start()
        for byte in frame(request(1, body=bytes(4_000)))[: LIMIT_SECONDS * 20]:  # so it is never idle
            with contextlib.suppress(OSError):
                loris.sock.sendall(bytes([byte]))
            hung_up.join(0.05)
            if not hung_up.is_alive():
                break
        assert not hung_up.is_alive()


def test_nothing_is_read_from_a_peer_that_takes_nothing() -> None:
    with running(serverSocketSndBufSize="4096") as server, Client(server) as client:
        server.until(lambda: server.server.connection_count == 1, "it is accepted")
        client.sock.setblocking(False)
        sent = 0
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            try:
                sent += client.sock.send(frame(request(1, body=bytes(100_000))))
            except BlockingIOError:
                if server.call(lambda: not server.server.peers[0].is_writable):
                    break
                time.sleep(0.01)
        assert not server.server.peers[0].is_writable
        (channel,) = server.server._shared.channels
        assert channel._transport is not None
        assert channel._transport.get_write_buffer_size() < 8 << 20
        with Client(server) as other:
            assert other.ask(request(2)).opaque == 2


def test_connections_have_a_limit_and_those_beyond_it_are_closed_at_once() -> None:
    with running(serverMaxConnections="2") as server, Client(server) as first, Client(server) as second:
        assert first.ask(request(1)).opaque == second.ask(request(1)).opaque == 1
        with Client(server) as third:
            assert third.ended()
        first.sock.close()
        server.until(lambda: server.server.connection_count == 1, "the first is gone")
        with Client(server) as fourth:
            assert fourth.ask(request(1)).opaque == 1


def test_a_connection_is_counted_once_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    connection_made = Channel.connection_made

    def counted(channel: Channel, transport: asyncio.BaseTransport) -> None:
        counts.append(server.server.connection_count)
        connection_made(channel, transport)
        counts.append(server.server.connection_count)

    monkeypatch.setattr(Channel, "connection_made", counted)
    with running() as server, Client(server) as client:
        assert client.ask(request(1)).opaque == 1
        assert counts == [1, 1]


def test_a_thousand_idle_connections_harm_nobody() -> None:
    with running() as server:
        idle = [socket.create_connection(server.address) for _ in range(1_000)]
        try:
            server.until(lambda: server.server.connection_count == 1_000, "all are connected")
            with Client(server) as client:
                assert client.ask(request(1)).opaque == 1
        finally:
            for sock in idle:
                sock.close()
        server.until(lambda: server.server.connection_count == 0, "all are gone")


def test_closing_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with running() as server, Client(server) as client:
        client.ask(request(1))
    assert len(os.listdir("/proc/self/fd")) <= before


# The end.


def ended_softly(server: Running) -> threading.Thread:
    thread = threading.Thread(target=server.close)
    thread.start()
    server.until(lambda: server.server._shared.is_going_away, "it is going away")
    return thread


def test_clients_of_today_are_told_to_go_away_before_the_server_ends() -> None:
    with running(enableShutdownGracefully="true", shutdownWaitTimeSeconds="1") as server, Client(server) as client:
        ending = ended_softly(server)
        answer = client.ask(request(1, version=479))
        assert (answer.code, answer.remark) == (1_500, "please go away")
        assert client.ask(request(2, version=475)).code == 0
        ending.join(LIMIT_SECONDS)
        assert client.ended()


def test_what_has_come_is_answered_before_the_server_ends() -> None:
    gate = threading.Event()

    def wait(asked: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        gate.wait(LIMIT_SECONDS)
        return echo(asked, peer)

    with running(wait, PoolSettings("Send", 10, thread_count=1)) as server, Client(server) as client:
        client.send(request(1))
        server.until(lambda: server.pool.is_busy, "it runs")
        ending = threading.Thread(target=server.close)
        ending.start()
        gate.set()
        assert client.receive().opaque == 1
        ending.join(LIMIT_SECONDS)
        assert client.ended()
