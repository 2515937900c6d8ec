"""Apache's broker takes the frames that ours takes from clients that spell names their own way, or say no more than is needed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import FrameReader, RemotingCommand
from tests.broker import test_frames_of_other_clients as frames
from tests.broker.test_frames_of_other_clients import Ask
from tests.support.java_broker import RELEASE, RunningBroker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
"""What a client of gRPC begins with."""


@pytest.fixture
def ask(broker: RunningBroker) -> Iterator[Ask]:
    """The topic is new. A client's answers on a connection of its own, as soon as what it has sent can be pulled."""
    connections: dict[str, socket.socket] = {}
    with Admin(ClientSettings((broker.name_server,))) as admin:
        for topic in ("T", "New"):
            admin.delete_topic(topic)
        broker.make_topic("T")

        def answered(client: str, frame: bytes) -> RemotingCommand:
            if client not in connections:
                connections[client] = _opened(broker.address)
            connections[client].sendall(frame)
            reader = FrameReader()
            answers: list[RemotingCommand] = []
            while not answers:
                data = connections[client].recv(65_536)
                assert data, f"the broker hangs up on {client}"
                answers = [command for command in reader.feed(data) if command.is_response]
            place = (answers[0].ext_fields or {}).get("queueOffset")
            if place is not None:
                wait_until(lambda: sum(admin.max_offsets("T").values()) > int(place), "the message is dispatched")
            return answers[0]

        yield answered
    for connection in connections.values():
        connection.close()


def _opened(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


TAKES_OTHER_SPELLINGS = {"5.3.3"}
exactly_spelled = pytest.mark.skipif(
    RELEASE not in TAKES_OTHER_SPELLINGS,
    reason=f"a broker of {RELEASE} reads JSON by fastjson2: to `Code` it says that request 0 is not supported, to 'code' it hangs up",
)


@exactly_spelled
@pytest.mark.parametrize("client", ["pascal", "lean"])
@pytest.mark.parametrize(
    "check",
    [
        frames.test_a_send_is_stored_with_its_properties,
        frames.test_queues_are_locked,
        frames.test_a_heartbeat_makes_a_consumer_that_gets_its_tags_alone,
    ],
)
def test_apaches_broker_takes_them_too(ask: Ask, client: str, check: Callable[[Ask, str], None]) -> None:
    check(ask, client)


@exactly_spelled
def test_apaches_broker_makes_a_topic_without_a_word_of_a_template(ask: Ask) -> None:
    frames.test_a_topic_is_made_without_a_word_of_a_template(ask)


@exactly_spelled
def test_apaches_broker_refuses_what_ours_refuses(ask: Ask) -> None:
    frames.test_code_320_alone_makes_no_batch(ask)
    for kind in ('"0"', '"x"'):
        frames.test_a_topic_of_an_unknown_filter_type_is_not_made(ask, kind)


@pytest.mark.parametrize("preface", [HTTP2, b"GET / HTTP/1.1\r\n\r\n"])
def test_apaches_servers_hang_up_on_http(broker: RunningBroker, preface: bytes) -> None:
    for address in (broker.name_server, broker.address):
        with _opened(address) as opened:
            opened.sendall(preface)
            assert opened.recv(1) == b""
