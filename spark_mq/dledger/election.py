"""Elections: votes, heartbeats, time-outs, and leadership that is handed over.

A candidate asks all members for a vote in its present term; only when that was of no use does it raise the term. So a member that is
cut off does not raise terms. A voter refuses a log that ends before its own, an old term, and a second candidate of a term.

Java: DLedgerLeaderElector, DLedgerServer.handleLeadershipTransfer and checkPreferredLeader. Departures:

- A voter, and who gets a heartbeat, takes over a higher term at once. Java answers TERM_NOT_READY first; that answer is understood.
- A term is led once: who has led it, or may have led it before a restart, asks in it only whether another one leads, and is elected in
  a later one; and a voter that knows the leader of a term votes for no one else in it, nor for that leader again. Java's restarted
  leader can make an entry twice.
- A leader that hears of a higher term steps down. Java's stays while a majority answers, and the other member stays out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from spark_mq.dledger.messages import (
    DLedgerCode,
    DLedgerMessage,
    DLedgerRequestCode,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from spark_mq.dledger.state import Answer, Ask, MemberState, Role

CALL_TIMEOUT_MS = 3_000
VOTE_WAIT_MS = 2_000
REVOTE_MS = 10
"""Pause before asking again those who were not ready. Java: the pause of its maintainer."""
MIN_TAKE_VOTE_MS, MAX_TAKE_VOTE_MS = 30, 100
PREFERRED_CHECK_MS = 1_000


class _Next(Enum):
    """What a candidate does next. Java: VoteResponse.ParseResult."""

    SAME_TERM = "WAIT_TO_REVOTE"
    NEXT_TERM = "WAIT_TO_VOTE_NEXT"


@dataclass
class _Round:
    """Votes of one term, or answers to one heartbeat."""

    term: int
    started_ms: int
    end_ms: int
    first_call: int
    """Answers to calls before it are of an earlier round, and would count a member twice."""
    answers: Counter[str] = field(default_factory=Counter)
    count: int = 0


class _Take(NamedTuple):
    """A request to take over leadership that waits: for the log, then for the election."""

    token: Hashable
    request: LeadershipTransferRequest
    end_ms: int
    term: int | None = None


class Election:
    """One member's part in elections."""

    def __init__(self, state: MemberState, random: Random, now_ms: int) -> None:
        self._state = state
        self._random = random
        self._next = _Next.SAME_TERM
        self._next_vote_ms = now_ms
        self._heard_ms = now_ms
        self._votes: _Round | None = None
        self._beat: _Round | None = None
        self._next_beat_ms = now_ms
        self._quorum_ms = now_ms
        """When the last heartbeat was sent that a majority answered."""
        self.live: dict[str, bool] = {}
        """Which others have answered this leader's last heartbeat."""
        self._take: _Take | None = None
        self._hand_over: tuple[Hashable | None, int] | None = None

    # Time

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        state, leak_ms = self._state, self._leak_ms
        if self._take is not None and self._take.term is None:
            self._try_to_take(now_ms)
        if state.role is Role.LEADER:
            if now_ms - self._quorum_ms > leak_ms:
                self._step_down(state.term, now_ms)
            elif now_ms >= self._next_beat_ms:
                self._send_heartbeats(now_ms)
        elif state.role is Role.FOLLOWER and now_ms - self._heard_ms > leak_ms:
            self._step_down(state.term, now_ms)
        if state.role is Role.CANDIDATE:
            if self._votes is not None:
                self._count_votes(now_ms)
            elif now_ms >= self._next_vote_ms:
                self._ask_for_votes(now_ms)

    @property
    def deadline_ms(self) -> int:
        """When something is due though nothing happens."""
        due = [self._take.end_ms] if self._take is not None and self._take.term is None else []
        if self._state.role is Role.LEADER:
            due += [self._next_beat_ms, self._quorum_ms + self._leak_ms + 1]
        elif self._state.role is Role.FOLLOWER:
            due.append(self._heard_ms + self._leak_ms + 1)
        elif self._votes is None:
            due.append(self._next_vote_ms)
        elif not self._waits_for_own_vote:  # else `synced` decides
            due.append(self._votes.end_ms)
        return min(due, default=1 << 62)

    @property
    def _leak_ms(self) -> int:
        return self._state.settings.heartbeat_ms * self._state.settings.heartbeat_leak

    def _pause_ms(self) -> int:
        settings = self._state.settings
        if self._is_taking():
            return self._random.randrange(MIN_TAKE_VOTE_MS, MAX_TAKE_VOTE_MS)
        return self._random.randrange(settings.min_vote_ms, max(settings.max_vote_ms, settings.min_vote_ms + 1))

    # A candidate

    def _ask_for_votes(self, now_ms: int) -> None:
        state = self._state
        if self._next is _Next.NEXT_TERM:
            state.save_vote(max(state.known_term, state.term + 1), state.settings.self_id)
            self._next = _Next.SAME_TERM
        elif state.vote.voted_for is None:
            state.save_vote(state.term, state.settings.self_id)
        wait_ms = VOTE_WAIT_MS + self._random.randrange(state.settings.max_vote_ms)
        self._votes = _Round(state.term, now_ms, now_ms + wait_ms, state.last_call + 1)
        for peer in state.settings.others:
            request = VoteRequest(
                **state.base,
                remote_id=peer,
                leader_id=state.settings.self_id,
                ledger_end_index=state.end_index,
                ledger_end_term=state.end_term,
            )
            state.say(Ask(state.next_call(), peer, DLedgerRequestCode.VOTE, request, CALL_TIMEOUT_MS))

    def on_vote(self, call: int, answer: VoteResponse | None, now_ms: int) -> None:
        """A voter has answered, or None for silence."""
        votes = self._votes
        if votes is None or call < votes.first_call:
            return
        votes.count += 1
        result = answer.vote_result if answer is not None else VoteResult.UNKNOWN
        votes.answers[result] += 1
        if answer is not None and result in (
            VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,
            VoteResult.REJECT_EXPIRED_VOTE_TERM,
        ):
            self._state.known_term = max(self._state.known_term, answer.term)
        self._count_votes(now_ms)

    @property
    def _waits_for_own_vote(self) -> bool:
        state = self._state
        return state.vote.voted_for == state.settings.self_id and not state.is_vote_durable

    def _count_votes(self, now_ms: int) -> None:
        """Decide when it is decided, or the time is over. Java's order."""
        votes, state = self._votes, self._state
        assert votes is not None
        found = votes.answers
        voted_for_itself = state.vote.voted_for == state.settings.self_id
        if self._waits_for_own_vote:
            return
        quorum = state.settings.quorum
        accepted = found[VoteResult.ACCEPT] + voted_for_itself
        may_accept = accepted + found[VoteResult.REJECT_TERM_NOT_READY]
        has_leader = found[VoteResult.REJECT_ALREADY_HAS_LEADER] > 0
        is_over = votes.count == len(state.settings.others) or now_ms >= votes.end_ms
        if not (is_over or has_leader or may_accept >= quorum):
            return
        self._votes = None
        valid = votes.count + 1 - found[VoteResult.UNKNOWN]
        longer = found[VoteResult.REJECT_EXPIRED_LEDGER_TERM] + found[VoteResult.REJECT_SMALL_LEDGER_END_INDEX]
        self._next = _Next.SAME_TERM
        self._next_vote_ms = now_ms + self._pause_ms()
        if state.known_term > state.term:
            self._next = _Next.NEXT_TERM
            state.step_down(state.known_term)
        elif has_leader:
            self._next_vote_ms += self._leak_ms
        elif valid < quorum:
            pass
        elif valid - longer < quorum:
            self._next_vote_ms += state.settings.max_vote_ms
        elif accepted >= quorum and voted_for_itself and state.led_term != state.term:
            self._lead(now_ms)
        # It has led this term, or voted for another, so that a restart would not know that it has.
        elif accepted >= quorum:
            self._next, self._next_vote_ms = _Next.NEXT_TERM, now_ms
        elif may_accept >= quorum:
            self._next_vote_ms = now_ms + REVOTE_MS
        else:
            self._next = _Next.NEXT_TERM

    def _lead(self, now_ms: int) -> None:
        self._state.lead()
        self._beat = None
        self._next_beat_ms = self._quorum_ms = now_ms
        self.live = {}
        self._settle_take()

    def _step_down(self, known_term: int, now_ms: int) -> None:
        self._state.step_down(known_term)
        self._votes = None
        self._next_vote_ms = max(self._next_vote_ms, now_ms)
        if known_term > self._state.term:
            self._next = _Next.NEXT_TERM
        self._settle_take()

    # A voter

    def handle_vote(self, token: Hashable, request: VoteRequest, now_ms: int) -> None:
        """A candidate asks."""
        result = self._judge(request, now_ms)
        state = self._state
        term = state.end_term if result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER else state.term
        answer = VoteResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=request.leader_id,
            term=term,
            vote_result=result,
        )
        state.say(Answer(token, answer))

    def _judge(self, request: VoteRequest, now_ms: int) -> VoteResult:
        """Whether to vote for the candidate; if so, the vote is on its way to the disk. Java's order."""
        state, candidate = self._state, request.leader_id
        if candidate not in state.settings.peers:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if candidate == state.settings.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.ledger_end_term < state.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == state.end_term and request.ledger_end_index < state.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < state.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.term == state.term:
            if state.leader_id == candidate:
                return VoteResult.REJECT_ALREADY_VOTED
            if state.leader_id is not None:
                return VoteResult.REJECT_ALREADY_HAS_LEADER
            if state.vote.voted_for not in (None, candidate):
                return VoteResult.REJECT_ALREADY_VOTED
            if self._is_taking() and request.ledger_end_term == state.end_term:
                return VoteResult.REJECT_TAKING_LEADERSHIP
        if request.term < state.end_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        if request.term > state.term:
            state.save_vote(request.term, candidate)
            self._next_vote_ms = now_ms + self._pause_ms()
            self._step_down(request.term, now_ms)
            self._next = _Next.SAME_TERM
        elif state.vote.voted_for is None:
            state.save_vote(request.term, candidate)
        return VoteResult.ACCEPT

    # Heartbeats

    def _send_heartbeats(self, now_ms: int) -> None:
        state = self._state
        self._next_beat_ms = now_ms + state.settings.heartbeat_ms
        self._beat = _Round(state.term, now_ms, self._next_beat_ms, state.last_call + 1)
        if state.settings.quorum == 1:
            self._quorum_ms = now_ms
        for peer in state.settings.others:
            request = HeartBeatRequest(**state.base, remote_id=peer, leader_id=state.settings.self_id)
            state.say(Ask(state.next_call(), peer, DLedgerRequestCode.HEART_BEAT, request, CALL_TIMEOUT_MS))

    def on_heartbeat(self, call: int, peer: str, answer: HeartBeatResponse | None, now_ms: int) -> None:
        """A follower has answered, or None for silence."""
        state, beat = self._state, self._beat
        if not state.is_leader or beat is None:
            return
        self.live[peer] = answer is not None
        if answer is not None and answer.code == DLedgerCode.EXPIRED_TERM and answer.term > state.term:
            self._step_down(answer.term, now_ms)
            return
        if call < beat.first_call:
            return
        beat.count += 1
        beat.answers[str(answer.code) if answer is not None else ""] += 1
        good = beat.answers[str(DLedgerCode.SUCCESS.value)] + 1
        unready = beat.answers[str(DLedgerCode.TERM_NOT_READY.value)]
        if good >= state.settings.quorum:
            self._quorum_ms = beat.started_ms
        elif good + unready >= state.settings.quorum:
            self._next_beat_ms = min(self._next_beat_ms, now_ms + REVOTE_MS)
        elif beat.count == len(state.settings.others) and beat.answers[str(DLedgerCode.INCONSISTENT_LEADER.value)]:
            self._step_down(state.term, now_ms)

    def handle_heartbeat(self, token: Hashable, request: HeartBeatRequest, now_ms: int) -> None:
        """A leader is there, or one says so."""
        code = self.hear_leader(request, now_ms)
        term = self._state.term if code is not DLedgerCode.SUCCESS else -1
        self._state.say(Answer(token, HeartBeatResponse(code=code.value, term=term)))

    def hear_leader(self, request: DLedgerMessage, now_ms: int) -> DLedgerCode:
        """Follow the leader that says this; any other code than SUCCESS says why not."""
        state, leader = self._state, request.leader_id
        if leader is None or leader not in state.settings.peers:
            return DLedgerCode.UNKNOWN_MEMBER
        if leader == state.settings.self_id:
            return DLedgerCode.UNEXPECTED_MEMBER
        if request.term < state.term:
            return DLedgerCode.EXPIRED_TERM
        if request.term == state.term and state.leader_id not in (None, leader):
            return DLedgerCode.INCONSISTENT_LEADER
        if request.term > state.term or state.leader_id is None:
            state.follow(request.term, leader)
            self._next, self._votes = _Next.SAME_TERM, None
            self._next_vote_ms = now_ms
            self._settle_take()
        self._heard_ms = now_ms
        return DLedgerCode.SUCCESS

    # Leadership that is handed over

    def hand_over(self, token: Hashable | None, transferee: str, now_ms: int) -> None:
        """The leader passes leadership on; without a token nobody waits for the outcome."""
        state = self._state
        state.transferee = transferee
        call = state.next_call()
        request = LeadershipTransferRequest(
            **state.base,
            remote_id=transferee,
            leader_id=state.leader_id,
            take_leadership_ledger_index=state.end_index,
            transfer_id=state.settings.self_id,
            transferee_id=transferee,
        )
        self._hand_over = token, call
        state.say(Ask(call, transferee, DLedgerRequestCode.LEADERSHIP_TRANSFER, request, CALL_TIMEOUT_MS))

    def on_handed_over(self, call: int, answer: LeadershipTransferResponse | None) -> None:
        """The transferee has answered, or None for silence: then this member goes on, if it still leads."""
        if self._hand_over is None or self._hand_over[1] != call:
            return
        (token, _), self._hand_over = self._hand_over, None
        self._state.transferee = None
        if token is not None:
            silence = LeadershipTransferResponse(code=DLedgerCode.NETWORK_ERROR.value, term=self._state.term)
            self._state.say(Answer(token, answer or silence))

    def handle_take(self, token: Hashable, request: LeadershipTransferRequest, now_ms: int) -> None:
        """The leader asks this member to take over; its log must have come so far first."""
        if request.transfer_id != self._state.leader_id:
            self._answer_transfer(token, DLedgerCode.INCONSISTENT_LEADER)
            return
        if self._take is not None:
            self._answer_transfer(self._take.token, DLedgerCode.TAKE_LEADERSHIP_FAILED)
        self._take = _Take(token, request, now_ms + self._state.settings.transfer_wait_ms)
        self._try_to_take(now_ms)

    def _try_to_take(self, now_ms: int) -> None:
        take, state = self._take, self._state
        assert take is not None
        if take.request.term != state.term:
            self._fail_take(DLedgerCode.INCONSISTENT_TERM)
        elif state.end_index >= take.request.take_leadership_ledger_index:
            self._take = take._replace(term=take.request.term + 1)
            self._step_down(take.request.term + 1, now_ms)
            self._next_vote_ms = now_ms
            if state.role is Role.CANDIDATE:
                self._ask_for_votes(now_ms)
        elif now_ms >= take.end_ms:
            self._fail_take(DLedgerCode.TAKE_LEADERSHIP_FAILED)

    def _settle_take(self) -> None:
        """A role has changed. Java: TakeLeadershipTask.check."""
        take, state = self._take, self._state
        if take is None or take.term is None:
            return
        if state.term > take.term:
            self._fail_take(DLedgerCode.EXPIRED_TERM)
        elif state.role is Role.FOLLOWER:
            self._fail_take(DLedgerCode.TAKE_LEADERSHIP_FAILED)
        elif state.role is Role.LEADER:
            self._fail_take(DLedgerCode.SUCCESS)

    def _fail_take(self, code: DLedgerCode) -> None:
        assert self._take is not None
        token, self._take = self._take.token, None
        self._answer_transfer(token, code)

    def _answer_transfer(self, token: Hashable, code: DLedgerCode) -> None:
        self._state.say(Answer(token, LeadershipTransferResponse(code=code.value, term=self._state.term)))

    def _is_taking(self) -> bool:
        state = self._state
        return (
            self._take is not None
            and self._take.term == state.term
            and state.settings.self_id in state.settings.preferred_leaders
        )
