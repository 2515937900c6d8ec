"""A member's log as its store has it: when a wait ends, and what is refused before it is appended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from spark_mq.broker_server.grouped import MemberLog
from spark_mq.dledger.messages import AppendEntryResponse, DLedgerCode
from storage.errors import StoreNotWritableError


class FakeRunner:
    """Its proposals wait until a test answers them."""

    durable_index = 1 << 40
    is_handing_over = False

    def __init__(self) -> None:
        self.proposed: list[tuple[int, Callable[[], bool]]] = []
        self.answers: list[Future[AppendEntryResponse]] = []
        self.trimmed: Future[int] = Future()

    def trim(self, minimum: int) -> Future[int]:
        return self.trimmed

    def propose(
        self, bodies: Sequence[bytes], term: int | None, *, first_place: int, stands: Callable[[], bool]
    ) -> Future[AppendEntryResponse]:
        self.proposed.append((first_place, stands))
        self.answers.append(Future())
        return self.answers[-1]


def member_log(runner: Any, *, term: int | None = 3) -> MemberLog:
    return MemberLog("root", runner, None, (4, 400), term)  # type: ignore[arg-type]


@pytest.mark.parametrize("term", [3, None])
def test_a_wait_for_a_majority_ends_when_the_log_is_closed_in_each_role(term: int | None) -> None:
    log = member_log(FakeRunner(), term=term)
    assert log.wait(400)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            log.wait(500)
        except StoreNotWritableError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    log.lose("it closes")
    waiting.join(10)
    assert len(errors) == 1
    assert "it closes" in str(errors[0])


def test_a_wait_with_a_limit_says_whether_the_log_is_committed() -> None:
    log = member_log(FakeRunner())
    assert not log.wait(500, 0.01)
    log.advance(5, 500)
    assert log.wait(500, 0.01)


def test_after_a_refused_proposal_no_later_one_is_taken() -> None:
    runner = FakeRunner()
    log = member_log(runner)
    log.propose([b"a"], 400)
    log.propose([b"b"], 500)
    assert runner.proposed[1][1]()
    runner.answers[0].set_result(AppendEntryResponse(code=DLedgerCode.NOT_LEADER.value))
    assert not runner.proposed[1][1](), "the second one waits in the member's thread, and would leave a gap"
    with pytest.raises(StoreNotWritableError, match="NOT_LEADER"):
        log.propose([b"c"], 600)


def test_what_the_member_would_refuse_is_refused_before_it_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.broker_server.grouped.MOST_PROPOSED", 2)
    runner = FakeRunner()
    log = member_log(runner)
    log.refuse()
    for place in (400, 500):
        assert not log.is_full
        log.propose([b"a"], place)
    assert log.is_full
    with pytest.raises(StoreNotWritableError, match="wait for a majority"):
        log.refuse()
    runner.answers[0].set_result(AppendEntryResponse(code=DLedgerCode.WAIT_QUORUM_ACK_TIMEOUT.value))
    assert not log.is_full
    log.refuse()
    runner.is_handing_over = True
    with pytest.raises(StoreNotWritableError, match="hands"):
        log.refuse()
    runner.is_handing_over = False
    assert log.lost is None
    with pytest.raises(StoreNotWritableError, match="another broker leads"):
        member_log(runner, term=None).refuse()


def test_a_trim_waits_a_moment_and_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.broker_server.grouped._TRIM_SECONDS", 0.01)
    runner = FakeRunner()
    with pytest.raises(StoreNotWritableError, match="no time"):
        member_log(runner).trim(4_096)
    assert runner.trimmed.cancelled(), "else it is made when nobody counts on it"
    runner.trimmed = Future()
    runner.trimmed.set_running_or_notify_cancel()
    done = threading.Timer(0.2, runner.trimmed.set_result, (7,))
    done.start()
    member_log(runner).trim(4_096)
    assert runner.trimmed.done(), "one that has begun is waited for"
