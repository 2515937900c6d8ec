"""Both connections of the client (the event loop's, and the one that a thread waits on) towards servers that are slow or lie.

What may come of it is an answer, or an error that names the server and says what to do; never an answer of another request, and never
a wait beyond the time-out.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientError,
    FrameRefusedError,
    RequestIllegalError,
    RequestTimeoutError,
    TlsError,
    response_error,
)
from spark_mq.client.event_loop import run
from spark_mq.client.settings import ClientSettings, TlsSettings
from spark_mq.remoting import HeaderEncoding, RemotingCommand, make_request, make_response
from tests.client.conftest import MakeClient
from tests.support.planned_server import Certificate, Peer, echo, frame, planned_server

Ask = Callable[..., RemotingCommand]
REQUEST = make_request(105, {"n": "1"})
LIMIT_MS = 10_000
SLOW_MS = 150


@pytest.fixture(params=["event loop", "blocking"])
def ask(request: pytest.FixtureRequest, make_client: MakeClient) -> Ask:
    """One request to an address over a connection of each kind: `ask(address, timeout_ms, command, **settings)`."""

    def on_the_loop(address: str, timeout_ms: int = LIMIT_MS, command: RemotingCommand = REQUEST, **given: Any) -> Any:
        return run(make_client(**given).invoke(address, command, timeout_ms), 2 * LIMIT_MS)

    def in_this_thread(
        address: str, timeout_ms: int = LIMIT_MS, command: RemotingCommand = REQUEST, **given: Any
    ) -> Any:
        connection: BlockingConnection[str] = BlockingConnection(address, ClientSettings(("n:1",), **given))
        try:
            connection.send([(command, "asked")], timeout_ms)
            ((waiter, answer),) = connection.receive(timeout_ms)
            assert waiter == "asked"
            return answer
        finally:
            connection.close()

    return on_the_loop if request.param == "event loop" else in_this_thread


def answer(command: RemotingCommand, **fields: str) -> bytes:
    return frame(make_response(command, 0, None, {**(command.ext_fields or {}), **fields}, b"body"))


def binary(command: RemotingCommand) -> bytes:
    return frame(make_response(command._replace(encoding=HeaderEncoding.ROCKETMQ), 0, None, {"name": "value"}))


# Slow ones.


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_an_answer_byte_by_byte_is_an_answer(ask: Ask, encoding: Any) -> None:
    def byte_by_byte(peer: Peer, command: RemotingCommand) -> None:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in answer(command):
            peer.send_bytes(bytes([byte]))

    with planned_server(byte_by_byte) as server:
        found = ask(server.address, encoding=encoding)
    assert (found.ext_fields, bytes(found.body)) == ({"n": "1"}, b"body")


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_an_answer_that_is_cut_at_any_byte_names_the_server(ask: Ask, encoding: Any) -> None:
    size = len(answer(REQUEST._replace(encoding=HeaderEncoding[encoding])))
    place = [0]

    def cut_off(peer: Peer, command: RemotingCommand) -> None:
        peer.send_bytes(answer(command)[: place[0]])
        peer.hang_up()

    with planned_server(cut_off) as server:
        for place[0] in range(0, size, 3):
            with pytest.raises(BrokerUnreachableError, match=server.address) as caught:
                ask(server.address, encoding=encoding)
            assert type(caught.value) is BrokerUnreachableError
            assert caught.value.retriable
            assert "Check that the server runs" in str(caught.value)


def test_a_server_that_trickles_or_says_nothing_takes_no_longer_than_the_time_out(ask: Ask) -> None:
    def trickle(peer: Peer, command: RemotingCommand) -> None:
        for byte in answer(command)[:40]:
            peer.send_bytes(bytes([byte]))
            time.sleep(0.01)

    for plan in (trickle, lambda peer, command: None, lambda peer, command: peer.send_bytes(answer(command)[:20])):
        with planned_server(plan) as server:
            begun = time.monotonic()
            with pytest.raises(RequestTimeoutError) as caught:
                ask(server.address, SLOW_MS)
            assert 0.9 * SLOW_MS < 1_000 * (time.monotonic() - begun) < LIMIT_MS
            what = f"{server.address}: no answer to GET_ROUTEINFO_BY_TOPIC (105) within {SLOW_MS} ms"
            assert str(caught.value) == f"{what}. {RequestTimeoutError.hint}"


# Liars.


def other_opaque(command: RemotingCommand) -> bytes:
    return answer(command._replace(opaque=command.opaque + 7), of="another")


def unasked_request(command: RemotingCommand) -> bytes:
    return frame(make_request(40, {"consumerGroup": "g"}, is_oneway=True))


@pytest.mark.parametrize(
    "said",
    [
        lambda command: other_opaque(command) + answer(command),
        lambda command: answer(command) + answer(command, of="a second answer"),
        lambda command: frame(make_response(command._replace(opaque=-1), 0)) + answer(command),
        lambda command: unasked_request(command) + answer(command),
        lambda command: answer(command) + b"\xff\xff\xff\xff",
    ],
    ids=["wrong number", "two answers", "number below 0", "a request of its own", "no frame behind the answer"],
)
def test_what_nobody_asked_for_is_passed_over(ask: Ask, said: Callable[[RemotingCommand], bytes]) -> None:
    with planned_server(lambda peer, command: peer.send_bytes(said(command))) as server:
        assert ask(server.address).ext_fields == {"n": "1"}


def test_a_wrong_number_alone_is_no_answer(ask: Ask) -> None:
    def say_another(peer: Peer, command: RemotingCommand) -> None:
        peer.send_bytes(other_opaque(command))

    with planned_server(say_another) as server, pytest.raises(RequestTimeoutError, match=server.address):
        ask(server.address, SLOW_MS)


def prefixed(length: int, word: int, rest: bytes = b"") -> Callable[[RemotingCommand], bytes]:
    return lambda command: struct.pack(">iI", length, word) + rest


def changed(at: int, by: bytes) -> Callable[[RemotingCommand], bytes]:
    """An answer in the ROCKETMQ encoding with other bytes at a place of its header."""

    def said(command: RemotingCommand) -> bytes:
        data = binary(command)
        return data[: 8 + at] + by + data[8 + at + len(by) :]

    return said


NO_FRAMES = {
    "negative length": prefixed(-1, 0),
    "length of nothing": prefixed(3, 0),
    "frame over the limit": prefixed(16 << 20, 21),
    "header over its frame": prefixed(20, 17, b"x" * 16),
    "unknown type of header": prefixed(20, 7 << 24 | 16, b"x" * 16),
    "header that is no JSON": prefixed(20, 16, b"this is no JSON."),
    "header that is another JSON": prefixed(8, 4, b"[{}]"),
    "header without a number": prefixed(14, 10, b'{"code":0}'),
    "header that is a tower": prefixed(4 + 60_000, 60_000, b"[" * 60_000),
    "ROCKETMQ header that ends early": prefixed(14, 1 << 24 | 10, bytes(10)),
    "ROCKETMQ remark below 0": changed(13, b"\xff\xff\xff\xff"),
    "ROCKETMQ remark beyond its header": changed(13, b"\x00\x00\xff\xff"),
    "ROCKETMQ fields below 0": changed(17, b"\x80\x00\x00\x00"),
    "ROCKETMQ fields beyond the header": changed(17, b"\x7f\xff\xff\xff"),
    "ROCKETMQ name below 0": changed(21, b"\xff\xff"),
    "ROCKETMQ value beyond the fields": changed(27, b"\x00\x00\xff\xff"),
    "HTTP": lambda command: b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("said", NO_FRAMES.values(), ids=NO_FRAMES.keys())
def test_what_is_no_frame_is_refused_by_name_at_once(ask: Ask, said: Callable[[RemotingCommand], bytes]) -> None:
    def say(peer: Peer, command: RemotingCommand) -> None:
        peer.send_bytes(said(command))

    with planned_server(say) as server, pytest.raises(FrameRefusedError) as caught:
        ask(server.address)
    assert f"{server.address} sent what is no frame: bad frame at byte 0 of the connection: " in str(caught.value)
    assert not caught.value.retriable
    assert "Check that the port is a RocketMQ remoting port" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("code", [-1, 77, 2**31 - 1])
def test_a_code_that_nobody_knows_comes_to_the_caller_who_names_it(ask: Ask, code: int) -> None:
    with planned_server(lambda peer, command: peer.send(make_response(command, code, "a remark"))) as server:
        found = ask(server.address)
        error = response_error(found.code, found.remark, server.address, "a request", "T")
        assert f"{server.address} answered {code} to a request topic T: a remark" in str(error)
        assert error.hint


def test_an_answer_to_a_oneway_request_goes_to_nobody(make_client: MakeClient) -> None:
    def answer_all(peer: Peer, command: RemotingCommand) -> None:
        peer.send_bytes(answer(command))

    async def story(client: Any, address: str) -> RemotingCommand:
        await client.invoke_oneway(address, make_request(15, {"n": "one-way"}))
        found: RemotingCommand = await client.invoke(address, REQUEST)
        return found

    with planned_server(answer_all) as server:
        assert run(story(make_client(), server.address), LIMIT_MS).ext_fields == {"n": "1"}


def test_a_request_that_no_frame_carries_is_not_sent(ask: Ask) -> None:
    with planned_server(echo) as server:
        with pytest.raises(RequestIllegalError, match=r"SEND_MESSAGE_V2 \(310\) was not sent.*(?s:.)*Make the message"):
            ask(server.address, LIMIT_MS, make_request(310, {}, bytes(17 << 20)))
        assert server.commands == []


# Addresses that a name server may give.


@pytest.mark.parametrize(
    "address", ["", "host", "host:0", "host:99999", "a..b:1", f"{'x' * 300}:1", "a\0b:1", "[::g]:1"]
)
def test_an_address_that_is_none_is_an_error_of_that_address(ask: Ask, address: str) -> None:
    with pytest.raises(BrokerUnreachableError) as caught:
        ask(address)
    assert caught.value.address == address


# TLS on one side alone.


def test_plain_towards_a_server_that_wants_tls_is_named(ask: Ask, certificate: Certificate) -> None:
    with planned_server(echo, certificate.server_context()) as server:
        with pytest.raises(
            TlsError, match=f"{server.address}: TLS failed: the server closes plain connections and speaks TLS"
        ) as caught:
            ask(server.address)
        assert "Use TLS exactly where the server does" in str(caught.value)


def test_a_tls_alert_towards_a_plain_client_is_named(ask: Ask) -> None:
    def alert(peer: Peer, command: RemotingCommand) -> None:
        peer.send_bytes(b"\x15\x03\x03\x00\x02\x02\x28")

    with planned_server(alert) as server, pytest.raises(TlsError, match="TLS failed: the server speaks TLS"):
        ask(server.address)


def test_tls_towards_a_plain_server_is_named(ask: Ask) -> None:
    with (
        planned_server(echo) as server,
        pytest.raises(TlsError, match=f"{server.address}: TLS failed: .*(not speak TLS|UNEXPECTED_EOF)"),
    ):
        ask(server.address, tls=TlsSettings(verify=False))


def test_a_server_that_takes_both_and_hangs_up_once_is_a_broken_connection(ask: Ask, certificate: Certificate) -> None:
    """As Java's servers are by default (tls.server.mode=permissive): the next try may succeed."""

    def hang_up_first(peer: Peer, command: RemotingCommand) -> None:
        if peer is server.peers[0]:
            peer.hang_up()
        else:
            echo(peer, command)

    with planned_server(hang_up_first, certificate.server_context(), is_permissive=True) as server:
        with pytest.raises(BrokerUnreachableError) as caught:
            ask(server.address)
        assert type(caught.value) is BrokerUnreachableError
        assert ask(server.address).ext_fields == {"n": "1"}
        assert ask(server.address, tls=TlsSettings(ca_file=str(certificate.cert))).ext_fields == {"n": "1"}


def test_a_certificate_of_nobody_is_refused_unless_it_is_not_verified(ask: Ask, certificate: Certificate) -> None:
    with planned_server(echo, certificate.server_context()) as server:
        with pytest.raises(TlsError, match=rf"{server.address}.*self-signed certificate"):
            ask(server.address, tls=TlsSettings())
        assert ask(server.address, tls=TlsSettings(verify=False)).ext_fields == {"n": "1"}


def test_every_error_of_a_server_says_what_to_do() -> None:
    """What a server does or does not; the rest of the tree says it in its own words."""
    of_servers = (BrokerUnreachableError, FrameRefusedError, TlsError, RequestTimeoutError, RequestIllegalError)
    assert all(issubclass(kind, ClientError) and kind.hint for kind in of_servers)
