"""One member alone: when it is due, and what it does not take from others."""

from __future__ import annotations

from random import Random

import pytest

from spark_mq.dledger import following
from spark_mq.dledger.member import Member
from spark_mq.dledger.messages import (
    DLedgerCode,
    DLedgerMessage,
    HeartBeatRequest,
    HeartBeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
    make_entry,
)
from spark_mq.dledger.state import Answer, Ask, DLedgerSettings, Effect, Order, Restored
from tests.dledger.world import Disk

PEERS = {f"n{at}": f"127.0.0.1:{9000 + at}" for at in range(3)}
FILE_BYTES = 1 << 30
FROM_LEADER = {"group": "group", "remote_id": "n0", "local_id": "n1", "leader_id": "n1"}


class Alone:
    """The member n0, whose disk syncs when the test says so."""

    def __init__(self, now_ms: int = 0) -> None:
        settings = DLedgerSettings(group="group", self_id="n0", peers=PEERS, file_size_bytes=FILE_BYTES)
        self.disk = Disk()
        self.member = Member(settings, self.disk, Restored(), Random(1), now_ms)
        self.said: list[DLedgerMessage] = []
        self.asked: list[Ask] = []

    def run(self, effects: list[Effect]) -> None:
        for each in effects:
            if isinstance(each, Answer):
                self.said.append(each.body)
            elif isinstance(each, Ask):
                self.asked.append(each)
            elif isinstance(each, Order):
                self.disk.write(each)

    def handle(self, request: DLedgerMessage, now_ms: int = 10) -> None:
        self.run(self.member.handle(len(self.said), request, now_ms))

    def sync(self, now_ms: int) -> None:
        number = self.member.state.last_number
        self.disk.sync(number)
        self.run(self.member.synced(number, now_ms))


def test_a_candidate_whose_vote_is_not_durable_waits_for_its_disk_and_for_no_time() -> None:
    alone = Alone()
    alone.run(alone.member.tick(0))
    over_ms = alone.member.deadline_ms if alone.member.deadline_ms < 1 << 62 else 100_000
    alone.run(alone.member.tick(over_ms))
    assert alone.member.deadline_ms > over_ms
    alone.sync(over_ms + 1)
    assert over_ms < alone.member.deadline_ms < 1 << 62


def pushed(index: int, place: int, term: int = 1, body: bytes = b"") -> PushEntryRequest:
    return PushEntryRequest(
        **FROM_LEADER,  # type: ignore[arg-type]
        term=term,
        type=PushType.APPEND,
        entry=make_entry(index, term, place, body),
    )


def test_pushes_that_wait_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_WAITING_BYTES", 10_000)
    alone = Alone()
    for at in range(1, 11):
        alone.handle(pushed(at, at * 3_048, body=bytes(3_000)))
    alone.sync(10)
    codes = [answer.code for answer in alone.said if isinstance(answer, PushEntryResponse)]
    assert codes == [DLedgerCode.PUSH_REQUEST_IS_FULL] * 7


@pytest.mark.parametrize("term", [1 << 57, (1 << 63) - 1])
def test_a_term_that_no_group_reaches_is_taken_from_no_one(term: int) -> None:
    alone = Alone()
    base = FROM_LEADER | {"term": term}
    alone.handle(HeartBeatRequest(**base))  # type: ignore[arg-type]
    alone.handle(VoteRequest(**base, ledger_end_index=5, ledger_end_term=1))  # type: ignore[arg-type]
    alone.handle(pushed(0, 0, term))
    alone.run(alone.member.tick(5_000))
    alone.sync(5_000)
    beat, vote, push = alone.said
    assert [beat.code, push.code] == [DLedgerCode.UNEXPECTED_ARGUMENT] * 2
    assert isinstance(vote, VoteResponse)
    assert vote.vote_result == VoteResult.UNKNOWN
    for asked in list(alone.asked):
        answer = VoteResponse(term=term, vote_result=VoteResult.REJECT_EXPIRED_VOTE_TERM)
        alone.run(alone.member.answered(asked.call, answer, 5_010))
    state = alone.member.state
    assert max(state.term, state.known_term) < 1 << 56
    assert isinstance(beat, HeartBeatResponse)


@pytest.mark.parametrize(("index", "place"), [(1 << 57, 0), (1 << 62, 0), (0, 1 << 62)])
def test_an_entry_that_no_log_reaches_is_refused(index: int, place: int) -> None:
    alone = Alone()
    alone.handle(pushed(index, place))
    alone.sync(10)
    assert [answer.code for answer in alone.said] == [DLedgerCode.UNEXPECTED_ARGUMENT]
