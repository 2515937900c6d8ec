"""Requests over connections: answered in any order, in time or not at all, and never hanging, whatever a server does."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq.client.errors import (
    AccessDeniedError,
    BrokerUnreachableError,
    ClientClosedError,
    RequestIllegalError,
    RequestTimeoutError,
    ResponseError,
    TlsError,
)
from spark_mq.client.event_loop import event_loop, run
from spark_mq.client.settings import Credentials, TlsSettings
from spark_mq.remoting import HeaderEncoding, RemotingCommand, make_request, make_response
from tests.client.conftest import MakeClient
from tests.support.planned_server import Certificate, Peer, closed_port, echo, frame, keep_silent, planned_server

LIMIT_MS = 10_000  # of a whole test: far above each time-out in it, so that only what hangs meets it


def ask(client: Any, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
    return run(client.invoke(address, command, timeout_ms), LIMIT_MS)


def request(code: int = 105, **fields: str) -> RemotingCommand:
    return make_request(code, fields)


def test_an_answer_belongs_to_its_request_though_answers_overtake_each_other(make_client: MakeClient) -> None:
    held: list[RemotingCommand] = []

    def answer_backwards(peer: Peer, command: RemotingCommand) -> None:
        held.append(command)
        if len(held) == 50:
            for each in reversed(held):
                echo(peer, each)

    async def fifty(client: Any, address: str) -> list[RemotingCommand]:
        await client.invoke_oneway(address, request(15))  # the connection
        return await asyncio.gather(*(client.invoke(address, request(n=str(n))) for n in range(49)))

    with planned_server(answer_backwards) as server:
        answers = run(fifty(make_client(), server.address), LIMIT_MS)
    assert [answer.ext_fields for answer in answers] == [{"n": str(n)} for n in range(49)]
    assert len(server.peers) == 1


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_requests_go_out_in_the_encoding_of_the_settings(make_client: MakeClient, encoding: Any) -> None:
    with planned_server(echo) as server:
        ask(make_client(encoding=encoding), server.address, request(topic="T"))
        assert [command.encoding for command in server.commands] == [HeaderEncoding[encoding]]


def test_a_time_out_leaves_the_connection_to_the_others_unless_nothing_comes_over_it(make_client: MakeClient) -> None:
    def answer_fast_ones(peer: Peer, command: RemotingCommand) -> None:
        if command.code != 11:
            echo(peer, command)

    client = make_client()
    with planned_server(answer_fast_ones) as server:
        ask(client, server.address, request(), 5_000)
        with pytest.raises(RequestTimeoutError):
            ask(client, server.address, request(11), 50)
        ask(client, server.address, request(), 5_000)
        assert len(server.peers) == 1


def test_a_connection_that_fell_silent_is_dropped_also_by_a_try_with_less_than_the_usual_time_out(
    make_client: MakeClient,
) -> None:
    """As sends have it, whose deadline was set before the try."""
    client = make_client(request_timeout_ms=120)
    with planned_server(echo) as server:
        ask(client, server.address, request(), 5_000)
        server.plan = keep_silent
        with pytest.raises(RequestTimeoutError):
            ask(client, server.address, request(), 110)
        server.plan = echo
        ask(client, server.address, request(), 5_000)
        assert len(server.peers) == 2


def test_an_answer_after_its_time_out_goes_to_nobody_else(make_client: MakeClient) -> None:
    late: list[RemotingCommand] = []

    def late_first(peer: Peer, command: RemotingCommand) -> None:
        late.append(command)
        if len(late) == 2:
            echo(peer, late[0])
            echo(peer, late[1])

    with planned_server(late_first) as server:
        client = make_client()
        with pytest.raises(RequestTimeoutError):
            ask(client, server.address, request(n="first"), 50)
        assert ask(client, server.address, request(n="second"), 5_000).ext_fields == {"n": "second"}


def test_the_shorter_of_two_time_outs_ends_first(make_client: MakeClient) -> None:
    async def two(client: Any, address: str) -> list[str]:
        order: list[str] = []

        async def one(name: str, timeout_ms: int) -> None:
            with pytest.raises(RequestTimeoutError):
                await client.invoke(address, request(), timeout_ms)
            order.append(name)

        await asyncio.gather(one("long", 200), one("short", 40))
        return order

    with planned_server(keep_silent) as server:
        assert run(two(make_client(), server.address), LIMIT_MS) == ["short", "long"]


def half_frame(peer: Peer, command: RemotingCommand) -> None:
    peer.send_bytes(frame(make_response(command, 0, None, {"a": "b"}))[:20])


def half_frame_then_nothing(peer: Peer, command: RemotingCommand) -> None:
    half_frame(peer, command)
    peer.hang_up()


def hang_up(peer: Peer, command: RemotingCommand) -> None:
    peer.hang_up()


@pytest.mark.parametrize("plan", [half_frame_then_nothing, hang_up])
def test_all_who_wait_fail_at_once_when_the_connection_ends(
    make_client: MakeClient, plan: Callable[[Peer, RemotingCommand], None]
) -> None:
    async def three(client: Any, address: str) -> list[Any]:
        calls = (client.invoke(address, request(), 60_000) for _ in range(3))
        return await asyncio.gather(*calls, return_exceptions=True)

    with planned_server(plan) as server:
        errors = run(three(make_client(), server.address), LIMIT_MS)
        assert [type(error) for error in errors] == [BrokerUnreachableError] * 3
        assert server.address in str(errors[0])


def test_the_next_request_after_a_lost_connection_makes_a_new_one(make_client: MakeClient) -> None:
    client = make_client()
    with planned_server(hang_up) as server:
        with pytest.raises(BrokerUnreachableError):
            ask(client, server.address, request())
        server.plan = echo
        assert ask(client, server.address, request(n="1")).ext_fields == {"n": "1"}


def test_nobody_listening_is_said_at_once(make_client: MakeClient) -> None:
    address = closed_port()
    with pytest.raises(BrokerUnreachableError, match=f"{address}: no connection: Connection refused"):
        ask(make_client(), address, request(), 60_000)


def test_a_host_that_nobody_knows_is_named(make_client: MakeClient) -> None:
    with pytest.raises(BrokerUnreachableError, match=r"no-such-host\.invalid:1"):
        ask(make_client(), "no-such-host.invalid:1", request(), 60_000)


def test_connecting_counts_into_the_time_out(make_client: MakeClient) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = []
        for _ in range(4):  # the queue of a listener that accepts nobody
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises((RequestTimeoutError, BrokerUnreachableError)):
            ask(make_client(connect_timeout_ms=200), address, request(), 50)
        for filler in fillers:
            filler.close()


def test_a_code_that_is_not_success_is_an_error_with_all_that_is_known(make_client: MakeClient) -> None:
    def refuse(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, command.code, "the remark"))

    with planned_server(refuse) as server:
        client = make_client()
        with pytest.raises(ResponseError) as refused:
            run(client.ask(server.address, request(17), topic="T"), LIMIT_MS)
        error = refused.value
        assert (error.code, error.remark, error.address, error.topic) == (17, "the remark", server.address, "T")
        with pytest.raises(AccessDeniedError):
            run(client.ask(server.address, request(16)), LIMIT_MS)
        assert run(client.ask(server.address, request(19), accepted=(19, 20)), LIMIT_MS).code == 19


def test_a_request_that_no_frame_carries_is_refused_before_it_is_sent(make_client: MakeClient) -> None:
    with planned_server(echo) as server:
        client = make_client()
        for call in (client.invoke, client.invoke_oneway):
            with pytest.raises(RequestIllegalError, match=r"SEND_MESSAGE_V2 \(310\) was not sent"):
                run(call(server.address, make_request(310, {}, bytes(17 << 20))), LIMIT_MS)
        assert ask(client, server.address, request(n="1")).ext_fields == {"n": "1"}


def test_large_bodies_pass_in_both_directions(make_client: MakeClient) -> None:
    async def several(client: Any, address: str) -> list[RemotingCommand]:
        calls = (client.invoke(address, make_request(310, {}, bytes([n]) * (3 << 20)), 60_000) for n in range(5))
        return await asyncio.gather(*calls)

    with planned_server(echo) as server:
        answers = run(several(make_client(), server.address), 60_000)
    assert [bytes(answer.body) == bytes([n]) * (3 << 20) for n, answer in enumerate(answers)] == [True] * 5


def test_callers_wait_while_a_server_reads_nothing_and_their_time_out_holds(make_client: MakeClient) -> None:
    stop = threading.Event()

    async def fill(client: Any, address: str) -> list[Any]:
        calls = (client.invoke(address, make_request(310, {}, bytes(4 << 20)), 400) for _ in range(20))
        return await asyncio.gather(*calls, return_exceptions=True)

    with planned_server(lambda peer, command: stop.wait(LIMIT_MS / 1000)) as server:  # type: ignore[arg-type, return-value]
        errors = run(fill(make_client(), server.address), LIMIT_MS)
        stop.set()
    assert {type(error) for error in errors} <= {RequestTimeoutError, BrokerUnreachableError}


def test_a_server_that_goes_away_is_asked_once_more_over_a_new_connection(make_client: MakeClient) -> None:
    held: list[tuple[Peer, RemotingCommand]] = []

    def first_connection_leaves(peer: Peer, command: RemotingCommand) -> None:
        if peer is not server.peers[0]:
            echo(peer, command)
            for waiting in held:
                echo(*waiting)
        elif command.code == 11:
            held.append((peer, command))
        else:
            peer.send(make_response(command, 1500, "please go away"))

    async def both(client: Any, address: str) -> list[RemotingCommand]:
        pull = asyncio.ensure_future(client.invoke(address, request(11, n="pull"), 5_000))
        return await asyncio.gather(pull, client.invoke(address, request(n="asked"), 5_000))

    with planned_server(first_connection_leaves) as server:
        answers = run(both(make_client(), server.address), LIMIT_MS)
        assert [answer.ext_fields for answer in answers] == [{"n": "pull"}, {"n": "asked"}]
        assert len(server.peers) == 2


def test_a_server_that_goes_away_twice_is_unreachable(make_client: MakeClient) -> None:
    def send_away(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, 1500, "please go away"))

    with planned_server(send_away) as server, pytest.raises(BrokerUnreachableError, match="GO_AWAY"):
        ask(make_client(), server.address, request())


def test_requests_of_the_server_reach_their_handler_and_are_answered(make_client: MakeClient) -> None:
    answers: list[RemotingCommand] = []

    def asks_back(peer: Peer, command: RemotingCommand) -> None:
        if command.is_response:
            answers.append(command)
            if len(answers) == 3:
                peer.send(make_response(server.commands[0], 0))
        else:
            for opaque, code in enumerate((307, 221, 999)):
                peer.send(make_request(code, {"n": "1"})._replace(opaque=opaque))
            peer.send(make_request(40, {"consumerGroup": "g"}, is_oneway=True)._replace(opaque=3))

    told: list[tuple[str, RemotingCommand]] = []

    async def tell(address: str, command: RemotingCommand) -> RemotingCommand | None:
        told.append((address, command))
        return make_response(command, 0, None, {"told": "yes"})

    async def fail(address: str, command: RemotingCommand) -> RemotingCommand | None:
        raise ValueError("no status")

    logging.getLogger("spark_mq.client.remoting_client").disabled = True
    client = make_client()
    client.on_request(307, tell)
    client.on_request(40, tell)
    client.on_request(221, fail)
    with planned_server(asks_back) as server:
        ask(client, server.address, request(), 5_000)
    logging.getLogger("spark_mq.client.remoting_client").disabled = False
    assert {(each.opaque, each.code) for each in answers} == {(0, 0), (1, 1), (2, 3)}
    assert {each.opaque: each.remark for each in answers} == {
        0: None,
        1: "ValueError: no status",
        2: " request type 999 not supported",
    }
    assert [(address, command.code) for address, command in told] == [(server.address, 307), (server.address, 40)]


def test_an_idle_connection_is_closed_and_made_again(make_client: MakeClient) -> None:
    client = make_client(max_idle_ms=50)
    with planned_server(echo) as server:
        ask(client, server.address, request())
        while client.addresses:
            time.sleep(0.01)
        ask(client, server.address, request())
        assert len(server.peers) == 2


def in_flight(client: Any, address: str) -> asyncio.Future[RemotingCommand]:
    """A request that was sent without a task, as sends are."""
    future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
    client.invoke_for(future, address, request(11), 60_000)
    return future


def test_closing_fails_who_waits_and_who_comes_later_and_sends_what_was_one_way(make_client: MakeClient) -> None:
    async def close_amid(client: Any, address: str) -> list[Any]:
        waiting = in_flight(client, address)
        await client.invoke_oneway(address, request(15))
        unconnected = in_flight(client, address.replace("127.0.0.1", "localhost"))
        await client.close()
        return await asyncio.gather(waiting, unconnected, client.invoke(address, request()), return_exceptions=True)

    with planned_server(keep_silent) as server:
        client = make_client()
        errors = run(close_amid(client, server.address), LIMIT_MS)
        assert [type(error) for error in errors] == [ClientClosedError] * 3
        assert len(server.until(15)) == 1


def test_closing_in_the_moment_of_connecting_leaves_no_connection(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's wait_for swallows a cancellation that comes in the turn of the loop in which its future is done."""
    loop = event_loop()
    connect = loop.sock_connect
    closing: list[asyncio.Task[None]] = []

    async def story(client: Any, address: str) -> tuple[Any, int]:
        async def connect_and_close(sock: socket.socket, sockaddr: Any) -> None:
            await connect(sock, sockaddr)
            closing.append(loop.create_task(client.close()))

        monkeypatch.setattr(loop, "sock_connect", connect_and_close)
        (outcome,) = await asyncio.gather(client.invoke(address, request()), return_exceptions=True)
        await asyncio.gather(*closing)
        return outcome, len(client.addresses)

    with planned_server(echo) as server:
        outcome, open_count = run(story(make_client(), server.address), LIMIT_MS)
    assert isinstance(outcome, ClientClosedError)
    assert open_count == 0


def test_a_caller_that_goes_takes_nobody_with_it(make_client: MakeClient) -> None:
    async def cancel_one(client: Any, address: str) -> RemotingCommand:
        first = event_loop().create_task(client.invoke(address, request(n="1"), 5_000))
        second = event_loop().create_task(client.invoke(address, request(n="2"), 5_000))
        await asyncio.sleep(0)
        first.cancel()  # while both wait for one connection
        return await second

    with planned_server(echo) as server:
        assert run(cancel_one(make_client(), server.address), LIMIT_MS).ext_fields == {"n": "2"}


def test_every_request_is_signed_and_no_error_shows_how(make_client: MakeClient) -> None:
    client = make_client(credentials=Credentials("alice", "the-secret", "the-token"))
    with planned_server(keep_silent) as server:
        with pytest.raises(RequestTimeoutError) as late:
            ask(client, server.address, request(), 60)
        run(client.invoke_oneway(server.address, request(15)), LIMIT_MS)
        server.plan = hang_up
        with pytest.raises(BrokerUnreachableError) as lost:
            ask(client, server.address, request())
    for command in server.commands:
        fields = dict(command.ext_fields or {})
        assert fields["AccessKey"] == "alice"
        assert fields["SecurityToken"] == "the-token"
        for error in (late.value, lost.value):
            shown = f"{error!r} {error} {error.__dict__}"
            assert not [secret for secret in ("the-secret", "the-token", fields["Signature"]) if secret in shown]


def test_tls_with_the_right_authority(make_client: MakeClient, certificate: Certificate) -> None:
    client = make_client(tls=TlsSettings(ca_file=str(certificate.cert)))
    with planned_server(echo, certificate.server_context()) as server:
        body = bytes(1 << 20)
        assert ask(client, server.address, make_request(310, {"n": "1"}, body)).body == body


def test_a_certificate_of_another_host_is_refused(make_client: MakeClient, certificate: Certificate) -> None:
    tls = TlsSettings(ca_file=str(certificate.cert), server_hostname="broker.example")
    with (
        planned_server(echo, certificate.server_context()) as server,
        pytest.raises(TlsError, match="Hostname mismatch"),
    ):
        ask(make_client(tls=tls), server.address, request())


def test_a_handshake_that_never_ends_ends_with_the_time_out(make_client: MakeClient) -> None:
    client = make_client(tls=TlsSettings(verify=False), connect_timeout_ms=60)
    with socket.create_server(("127.0.0.1", 0)) as accepting_nobody:
        address = f"127.0.0.1:{accepting_nobody.getsockname()[1]}"
        with pytest.raises(BrokerUnreachableError, match="TLS handshake took longer than 60 ms"):
            ask(client, address, request())
        with pytest.raises((RequestTimeoutError, BrokerUnreachableError)):
            ask(client, address, request(), 30)
