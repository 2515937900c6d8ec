"""Requests to several servers, many in flight; connections that grew old; name servers that fail over."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientError,
    MalformedResponseError,
    NameServerUnreachableError,
)
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, make_response, write_body
from spark_mq.remoting.routes import TopicList
from spark_mq.source.cluster_questions import IN_FLIGHT, ClusterQuestions
from tests.support.fake_broker import FakeBroker

NOBODY = "127.0.0.1:1"


def topics(self: FakeBroker, request: RemotingCommand) -> RemotingCommand:
    return make_response(request, 0, None, None, write_body(TopicList(topics=("A", "B"))))


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker([]) as running:
        yield running


def until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def questions(*name_servers: str) -> ClusterQuestions:
    return ClusterQuestions(ClientSettings(name_servers or (NOBODY,), connect_timeout_ms=300, request_timeout_ms=300))


def pulls(count: int) -> list[RemotingCommand]:
    return [make_request(RequestCode.PULL_MESSAGE, {"queueOffset": str(at), "maxMsgNums": "1"}) for at in range(count)]


def test_answers_come_in_the_order_of_their_requests(server: FakeBroker) -> None:
    answers = questions().ask(server.address, pulls(3 * IN_FLIGHT + 1))
    assert [int((one.command.ext_fields or {})["nextBeginOffset"]) for one in answers] == [0] * (3 * IN_FLIGHT + 1)
    assert server.offsets == list(range(3 * IN_FLIGHT + 1))
    assert server.connections == 1


def test_a_connection_that_broke_since_is_made_again(server: FakeBroker) -> None:
    asking = questions()
    asking.ask(server.address, pulls(1))
    server.answers = [lambda *_: None]
    assert len(asking.ask(server.address, pulls(3))) == 3
    assert server.connections == 2
    server.answers = [lambda *_: None] * 3
    with pytest.raises(BrokerUnreachableError, match=r"closed the connection|broke"):
        asking.ask(server.address, pulls(3))


def test_a_server_that_fails_does_not_keep_others_from_answering(server: FakeBroker) -> None:
    failures: dict[str, ClientError] = {}
    answers = questions().ask_all({NOBODY: pulls(1), server.address: pulls(2)}, failures)
    assert (list(answers), list(failures)) == ([server.address], [NOBODY])


def test_servers_are_connected_to_side_by_side(server: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is gone answers nothing: connecting to it takes the whole time that connecting may."""
    both = threading.Barrier(3)
    connect = socket.create_connection

    def slow(address: tuple[str, int], timeout_s: float) -> socket.socket:
        both.wait(10)  # it breaks unless all three are here
        return connect(address, timeout_s)

    monkeypatch.setattr(socket, "create_connection", slow)
    failures: dict[str, ClientError] = {}
    with FakeBroker([]) as other:
        found = questions().ask_all({NOBODY: pulls(1), server.address: pulls(1), other.address: pulls(2)}, failures)
        assert (list(found), list(failures)) == ([server.address, other.address], [NOBODY])
    assert "no connection: Connection refused" in str(failures[NOBODY])


def test_the_next_name_server_is_asked_where_one_does_not_answer(server: FakeBroker) -> None:
    server.answers = [topics, topics]
    asking = questions(NOBODY, server.address)
    assert asking.topics() == ("A", "B")
    assert asking.topics() == ("A", "B")


def test_all_name_servers_are_named_where_none_answers(server: FakeBroker) -> None:
    server.answers = [lambda _, request: make_response(request, 1, "name server not ready")]
    with pytest.raises(NameServerUnreachableError) as caught:
        questions(NOBODY, server.address).topics()
    assert "127.0.0.1:1: no connection: Connection refused" in str(caught.value)
    assert f"{server.address} answered 1 (SYSTEM_ERROR)" in str(caught.value)


def test_a_body_that_makes_no_sense_is_an_error(server: FakeBroker) -> None:
    server.answers = [lambda _, request: make_response(request, 0, None, None, b"[1")]
    with pytest.raises(MalformedResponseError, match="GET_ALL_TOPIC_LIST_FROM_NAMESERVER"):
        questions(server.address).topics()


def test_answers_to_requests_that_were_given_up_are_not_taken_for_those_of_the_next(server: FakeBroker) -> None:
    asking = questions()
    with pytest.raises(BrokerUnreachableError):
        asking.ask_all({server.address: pulls(2), NOBODY: pulls(1)})
    until(lambda: len(server.requests) == 2)
    server.answers = [topics] * 4
    answer = asking.ask(server.address, [make_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)])[0]
    assert answer.body(TopicList).topics == ("A", "B")
