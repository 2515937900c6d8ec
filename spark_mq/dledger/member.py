"""One member of a DLedger group, without sockets, clock and disk.

    handle(token, request, now)     a request has come           ─┐
    answered(call, answer, now)     a request was answered        │    list of effects, to be carried out in their order:
    propose(token, bodies, now)     the owner appends             ├──▶ Ask · Answer · SaveVote · Append · Cut · Restart ·
    synced(number, now)             disk orders are durable       │    Committed · RoleChanged · Diverged
    tick(now)                       it is `deadline_ms`          ─┘

The owner writes disk orders at once, one after the other, so that `Ledger.entry` shows them; it syncs them when it likes, and reports
the last number that is durable. Until then the member is silent about them.

Java: DLedgerServer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

from spark_mq.dledger.election import PREFERRED_CHECK_MS, Election
from spark_mq.dledger.following import Following, answer_push
from spark_mq.dledger.messages import (
    CONVERSATIONS,
    MOST_NUMBER,
    AppendEntryRequest,
    DLedgerCode,
    DLedgerMessage,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    VoteRequest,
    VoteResponse,
)
from spark_mq.dledger.pushing import Proposed, Pushing, Stamp
from spark_mq.dledger.state import Answer, Ask, DLedgerSettings, Effect, Ledger, MemberState, Restored

_ANSWER_OF = {found.request: found.answer for found in CONVERSATIONS.values()}


class Member:
    """A member. Nothing in it waits, and nothing fails."""

    def __init__(
        self, settings: DLedgerSettings, ledger: Ledger, restored: Restored, random: Random, now_ms: int
    ) -> None:
        self._settings = settings
        self.state = MemberState(settings, ledger, restored)
        self._election = Election(self.state, random, now_ms)
        self._following = Following(self.state)
        self._pushing = Pushing(self.state)
        self._calls: dict[int, Ask] = {}
        self._next_preferred_ms = now_ms + PREFERRED_CHECK_MS

    # What happens

    def handle(self, token: Hashable, request: DLedgerMessage, now_ms: int) -> list[Effect]:
        """A request; its answer may follow much later."""
        refusal = self._refusal_of(request)
        if refusal is not None:
            self._refuse(token, request, refusal)
        elif isinstance(request, VoteRequest):
            self._election.handle_vote(token, request, now_ms)
        elif isinstance(request, HeartBeatRequest):
            self._election.handle_heartbeat(token, request, now_ms)
        elif isinstance(request, PushEntryRequest):
            self._handle_push(token, request, now_ms)
        elif isinstance(request, LeadershipTransferRequest):
            self._handle_transfer(token, request, now_ms)
        elif isinstance(request, AppendEntryRequest):
            made = self._pushing.propose(token, [request.body or b""], now_ms)
            if made.code is not DLedgerCode.SUCCESS:
                self._refuse(token, request, made.code)
        elif isinstance(request, GetEntriesRequest):
            self._handle_get(token, request)
        elif isinstance(request, MetadataRequest):
            self._answer(
                token,
                MetadataResponse(
                    group=self._settings.group, peers=self._settings.peers, leader_id=self.state.leader_id
                ),
            )
        else:
            self._refuse(token, request, DLedgerCode.UNSUPPORTED)
        return self._effects(now_ms)

    def answered(self, call: int, answer: DLedgerMessage | None, now_ms: int) -> list[Effect]:
        """A peer's answer to a request, or None: it did not come in time, or the line is broken."""
        asked = self._calls.pop(call, None)
        if answer is not None and answer.term > MOST_NUMBER:
            answer = None
        if asked is not None:
            request = asked.body
            if isinstance(request, VoteRequest):
                self._election.on_vote(call, answer if isinstance(answer, VoteResponse) else None, now_ms)
            elif isinstance(request, HeartBeatRequest):
                beat = answer if isinstance(answer, HeartBeatResponse) else None
                self._election.on_heartbeat(call, asked.peer, beat, now_ms)
            elif isinstance(request, PushEntryRequest):
                pushed = answer if isinstance(answer, PushEntryResponse) else None
                self._pushing.on_pushed(call, asked.peer, request, pushed, now_ms)
            elif isinstance(request, LeadershipTransferRequest):
                handed = answer if isinstance(answer, LeadershipTransferResponse) else None
                self._election.on_handed_over(call, handed)
        return self._effects(now_ms)

    def propose(
        self,
        token: Hashable,
        bodies: Sequence[bytes],
        now_ms: int,
        stamp: Stamp | None = None,
        first_place: int | None = None,
    ) -> tuple[Proposed, list[Effect]]:
        """Append entries of the owner's. If they are taken, an `Answer` with the token follows when a majority has the last one."""
        made = self._pushing.propose(token, bodies, now_ms, stamp, first_place)
        return made, self._effects(now_ms)

    def synced(self, number: int, now_ms: int) -> list[Effect]:
        """All disk orders up to this one are durable."""
        self.state.synced(number)
        return self._effects(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Time has passed."""
        return self._effects(now_ms)

    def trimmed(self, begin_index: int) -> None:
        """The owner has deleted the entries before this one; they were committed."""
        self.state.trimmed(begin_index)

    @property
    def deadline_ms(self) -> int:
        """When to call `tick` though nothing happens."""
        due = [self._election.deadline_ms, self._following.deadline_ms, self._pushing.deadline_ms]
        if self._settings.preferred_leaders and self.state.is_leader:
            due.append(self._next_preferred_ms)
        return min(due)

    def _effects(self, now_ms: int) -> list[Effect]:
        self._election.tick(now_ms)
        self._following.tick(now_ms)
        self._prefer(now_ms)
        self._pushing.work(now_ms)
        effects = self.state.take_effects()
        for each in effects:
            if isinstance(each, Ask):
                self._calls[each.call] = each
        return effects

    # Requests

    def _refusal_of(self, request: DLedgerMessage) -> DLedgerCode | None:
        if request.remote_id != self._settings.self_id:
            return DLedgerCode.UNKNOWN_MEMBER
        if request.group != self._settings.group:
            return DLedgerCode.UNKNOWN_GROUP
        if request.term > MOST_NUMBER:
            return DLedgerCode.UNEXPECTED_ARGUMENT
        return None

    def _refuse(self, token: Hashable, request: DLedgerMessage, code: DLedgerCode) -> None:
        """An answer of the request's kind with this code."""
        answer = _ANSWER_OF[type(request)](
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=self.state.leader_id,
            term=request.term,
            code=code.value,
        )
        self._answer(token, answer)

    def _answer(self, token: Hashable, answer: DLedgerMessage) -> None:
        self.state.say(Answer(token, answer))

    def _handle_push(self, token: Hashable, request: PushEntryRequest, now_ms: int) -> None:
        code = self._election.hear_leader(request, now_ms)
        if code is DLedgerCode.SUCCESS:
            self._following.handle_push(token, request, now_ms)
        else:
            self._answer(token, answer_push(self.state, request, code))

    def _handle_get(self, token: Hashable, request: GetEntriesRequest) -> None:
        """An entry by its index. Departure: only a committed one."""
        state, index = self.state, request.begin_index
        if not state.is_leader:
            self._refuse(token, request, DLedgerCode.NOT_LEADER)
        elif index is None or not state.begin_index <= index <= state.committed_index:
            self._refuse(token, request, DLedgerCode.INDEX_OUT_OF_RANGE)
        else:
            entries = (state.entry(index),)
            self._answer(token, GetEntriesResponse(group=self._settings.group, entries=entries))

    def _handle_transfer(self, token: Hashable, request: LeadershipTransferRequest, now_ms: int) -> None:
        state, transferee = self.state, request.transferee_id
        if request.transfer_id != self._settings.self_id:
            if transferee == self._settings.self_id:
                self._election.handle_take(token, request, now_ms)
            else:
                self._refuse(token, request, DLedgerCode.UNEXPECTED_ARGUMENT)
            return
        code = DLedgerCode.SUCCESS
        if transferee is None or transferee not in self._settings.others:
            code = DLedgerCode.UNKNOWN_MEMBER
        elif request.term != state.term:
            code = DLedgerCode.INCONSISTENT_TERM
        elif not state.is_leader:
            code = DLedgerCode.NOT_LEADER
        elif state.end_index - self._pushing.watermark(transferee) >= self._settings.transfer_wait_index:
            code = DLedgerCode.FALL_BEHIND_TOO_MUCH
        elif state.transferee is not None:
            code = DLedgerCode.LEADER_TRANSFERRING
        if code is DLedgerCode.SUCCESS:
            assert transferee is not None
            self._election.hand_over(token, transferee, now_ms)
        else:
            self._refuse(token, request, code)

    def _prefer(self, now_ms: int) -> None:
        """Hand over to the preferred leader that is least behind. Java: DLedgerServer.checkPreferredLeader."""
        state, preferred = self.state, self._settings.preferred_leaders
        if not preferred or not state.is_leader or now_ms < self._next_preferred_ms:
            return
        self._next_preferred_ms = now_ms + PREFERRED_CHECK_MS
        if state.transferee is not None or self._settings.self_id in preferred:
            return
        live = [each for each in preferred if self._election.live.get(each) and each in self._settings.others]
        best = max(live, key=self._pushing.watermark, default=None)
        if best is not None and state.end_index - self._pushing.watermark(best) < self._settings.transfer_wait_index:
            self._election.hand_over(None, best, now_ms)
