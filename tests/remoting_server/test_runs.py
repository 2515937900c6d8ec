"""Requests that come in runs: each is answered once, whatever becomes of its run, and nothing of them stays counted."""

from __future__ import annotations

from typing import NoReturn

import pytest

from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting.frames import RequestRun, RunAnswers
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import PendingAnswers, PoolSettings
from storage.pending import Pending
from storage.rules.response_codes import ResponseCode
from tests.remoting_server.echo import Client, Running, request, running

SENDS = PoolSettings("Send", 1_000, thread_count=2, together=64)
COUNT = 400


def as_run(run: RequestRun, peer: Peer) -> PendingAnswers:
    return Pending(lambda: RunAnswers(make_response(run.like, 0, "run"), {}))


def none(run: RequestRun, peer: Peer) -> None:
    return None


def failing(run: RequestRun, peer: Peer) -> NoReturn:
    raise ValueError("it fails")


def failing_later(run: RequestRun, peer: Peer) -> PendingAnswers:
    return Pending(lambda: failing(run, peer))


def told(server: Running) -> list[RemotingCommand]:
    with Client(server) as client:
        client.send(*map(request, range(COUNT)))
        return [client.receive() for _ in range(COUNT)]


def assert_nothing_is_counted(server: Running) -> None:
    shared = server.server._shared
    server.until(lambda: (shared.request_count, shared._request_bytes) == (0, 0), "all are answered")


@pytest.mark.parametrize("answer_run", [as_run, none, failing, failing_later])
def test_each_request_of_a_run_is_answered_once(answer_run: object) -> None:
    with running(pool=SENDS, answer_run=answer_run) as server:  # type: ignore[arg-type]
        answers = told(server)
        assert_nothing_is_counted(server)
    assert sorted(answer.opaque for answer in answers) == list(range(COUNT))
    has_failed = {answer.code for answer in answers if answer.code} == {ResponseCode.SYSTEM_ERROR}
    assert has_failed == (answer_run in (failing, failing_later))
    assert ("run" in {answer.remark for answer in answers}) == (answer_run is as_run)


def test_a_run_that_cannot_be_read_one_by_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestRun, "commands", lambda run: failing(run, None))  # type: ignore[arg-type]
    with running(pool=SENDS, answer_run=none) as server:
        answers = told(server)
        assert_nothing_is_counted(server)
    assert {answer.code for answer in answers} == {0, ResponseCode.SYSTEM_ERROR}


def test_a_run_that_is_more_than_a_server_may_hold_is_taken_one_by_one() -> None:
    with running(pool=SENDS, answer_run=as_run, serverMaxRequestBytes="16384") as server:
        answers = told(server)
        assert_nothing_is_counted(server)
    assert sorted(answer.opaque for answer in answers) == list(range(COUNT))
    assert sum(answer.code == 0 for answer in answers) > 1
    assert "run" not in {answer.remark for answer in answers}
