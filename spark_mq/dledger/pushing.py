"""A leader's side of pushes: each follower's log is compared, cut, and then fed; what a majority has is committed.

    COMPARE ──▶ TRUNCATE ──▶ APPEND ──▶ COMMIT          back to COMPARE at INCONSISTENT_STATE
        └────────────────────▲

Java: DLedgerEntryPusher.EntryDispatcher and QuorumAckChecker. Departures:

- An entry of an older term is committed only together with one of the leader's own term: a majority that has it may still lose it to a
  member with a younger term (Raft, 5.4.2). So a new leader's owner proposes an entry at once, as Java's controller does.
- The leader counts itself only up to what is durable on its own disk.
- What waits for a majority when the leader steps down is answered TERM_CHANGED at once; nobody knows then whether it will stand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import NamedTuple

from spark_mq.dledger.messages import (
    NO_INDEX,
    AppendEntryResponse,
    DLedgerCode,
    DLedgerMessage,
    DLedgerRequestCode,
    LedgerEntry,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    entry_size,
    make_entry,
    push_request,
)
from spark_mq.dledger.state import Answer, Ask, MemberState
from storage.format.dledger import ENTRY_HEAD_SIZE, FILLER_SIZE

MOST_PUSHES = 1_000
"""Pushes of entries to one follower that are not answered yet. Java: maxPendingSize."""
COMMIT_PUSH_MS = 1_000
PAUSE_MS = 500
"""After a comparison that failed for another reason than the entries."""
CALL_TIMEOUT_MS = 3_000


class _Mode(Enum):
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


class _Pushed(NamedTuple):
    sent_ms: int
    entry_count: int


class _Peer:
    """One follower as its leader knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = _Mode.COMPARE
        self.at = NO_INDEX
        """The index to compare or to truncate at."""
        self.call: int | None = None
        self.pause_until_ms = 0
        self.next_index = 0
        self.watermark = NO_INDEX
        """Up to here the follower has the leader's entries, durably."""
        self.pushed: dict[int, _Pushed] = {}
        self.pushed_ms = 0

    def compare(self, pause_until_ms: int = 0) -> None:
        self.mode, self.at, self.call, self.pause_until_ms = _Mode.COMPARE, NO_INDEX, None, pause_until_ms
        self.pushed.clear()

    def feed(self, index: int) -> None:
        self.mode, self.call, self.next_index = _Mode.APPEND, None, index + 1
        self.reached(index)

    def reached(self, index: int) -> None:
        self.watermark = max(self.watermark, index)
        for first in [first for first, found in self.pushed.items() if first + found.entry_count - 1 <= self.watermark]:
            del self.pushed[first]


class _Proposal(NamedTuple):
    token: Hashable
    place: int
    end_ms: int


class Proposed(NamedTuple):
    """The entries that were made of a proposal, or the code that refuses it."""

    code: DLedgerCode
    entries: tuple[LedgerEntry, ...] = ()


Stamp = Callable[[bytes, int], bytes]
"""Body and its place in the log → body. A broker's record names its own place."""


class Pushing:
    """One member as a leader."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._term = -1
        self._first_own_index = 0
        self._peers: dict[str, _Peer] = {}
        self._proposals: dict[int, _Proposal] = {}

    # Proposals

    def propose(
        self,
        token: Hashable,
        bodies: Sequence[bytes],
        now_ms: int,
        stamp: Stamp | None = None,
        first_place: int | None = None,
    ) -> Proposed:
        """Append entries; the token is answered when a majority has the last. A refusal's token is not answered.

        With `first_place` the first of them must come to stand there, else none is appended: INCONSISTENT_INDEX.
        """
        state = self._state
        self._begin_term(now_ms)
        if not state.is_leader:
            return Proposed(DLedgerCode.NOT_LEADER)
        if state.transferee is not None:
            return Proposed(DLedgerCode.LEADER_TRANSFERRING)
        if len(self._proposals) >= state.settings.most_pending:
            return Proposed(DLedgerCode.LEADER_PENDING_FULL)
        if not bodies:
            return Proposed(DLedgerCode.REQUEST_WITH_EMPTY_BODYS)
        most_bytes = state.settings.file_size_bytes - FILLER_SIZE
        if any(entry_size(body) > most_bytes for body in bodies):
            return Proposed(DLedgerCode.UNEXPECTED_ARGUMENT)
        entries, end_place = [], state.end_place
        if first_place not in (None, state.place_behind(end_place, entry_size(bodies[0]))):
            return Proposed(DLedgerCode.INCONSISTENT_INDEX)
        for at, body in enumerate(bodies):
            place = state.place_behind(end_place, entry_size(body))
            made = body if stamp is None else stamp(body, place + ENTRY_HEAD_SIZE)
            entries.append(make_entry(state.end_index + 1 + at, state.term, place, made))
            end_place = place + entry_size(made)
        if state.end_index == NO_INDEX:
            state.begin_index = 0
        state.append(entries)
        last = entries[-1]
        self._proposals[last.index] = _Proposal(token, last.place, now_ms + state.settings.wait_ack_ms)
        return Proposed(DLedgerCode.SUCCESS, tuple(entries))

    def watermark(self, peer: str) -> int:
        """Up to where a follower has the log."""
        found = self._peers.get(peer)
        return NO_INDEX if found is None else found.watermark

    # Time

    def work(self, now_ms: int) -> None:
        """Push what can be pushed, commit what can be committed, answer what was waited for."""
        self._begin_term(now_ms)
        if not self._state.is_leader:
            return
        for peer in self._peers.values():
            if peer.mode is _Mode.APPEND:
                self._feed(peer, now_ms)
            elif peer.call is None and now_ms >= peer.pause_until_ms:
                self._compare(peer)
        self._count()
        self._answer_proposals(now_ms)

    @property
    def deadline_ms(self) -> int:
        """When something is due though nothing happens."""
        if not self._state.is_leader:
            return 1 << 62
        due = [found.end_ms for found in list(self._proposals.values())[:1]]
        for peer in self._peers.values():
            if peer.mode is _Mode.APPEND:
                first = next(iter(peer.pushed.values()), None)
                due.append(peer.pushed_ms + COMMIT_PUSH_MS if first is None else first.sent_ms + self._retry_ms)
            elif peer.call is None and self._state.end_index != NO_INDEX:
                due.append(peer.pause_until_ms)
        return min(due, default=1 << 62)

    @property
    def _retry_ms(self) -> int:
        return self._state.settings.push_timeout_ms

    def _begin_term(self, now_ms: int) -> None:
        """Role or term have changed."""
        state = self._state
        term = state.term if state.is_leader else -1
        if term == self._term:
            return
        self._term = term
        proposals, self._proposals = self._proposals, {}
        for index, found in proposals.items():
            self._answer(found, index, DLedgerCode.TERM_CHANGED)
        self._peers = {name: _Peer(name) for name in state.settings.others} if state.is_leader else {}
        self._first_own_index = state.end_index + 1

    # Compare and truncate

    def _compare(self, peer: _Peer) -> None:
        state = self._state
        if state.end_index == NO_INDEX:
            return
        if not state.begin_index <= peer.at <= state.end_index:
            peer.mode, peer.at = _Mode.COMPARE, state.end_index
        kind = PushType.COMPARE if peer.mode is _Mode.COMPARE else PushType.TRUNCATE
        peer.call = self._push(peer, kind, (state.entry(peer.at),))

    def _on_compared(self, peer: _Peer, answer: PushEntryResponse | None, now_ms: int) -> None:
        state, code = self._state, answer.code if answer is not None else DLedgerCode.NETWORK_ERROR
        peer.call = None
        if answer is None or code not in (DLedgerCode.SUCCESS, DLedgerCode.INCONSISTENT_STATE):
            peer.compare(now_ms + PAUSE_MS)
        elif peer.mode is _Mode.TRUNCATE:
            if code == DLedgerCode.SUCCESS:
                peer.feed(peer.at)
            else:
                peer.compare(now_ms + PAUSE_MS)
        elif code == DLedgerCode.SUCCESS:
            if answer.end_index == peer.at:
                peer.feed(peer.at)
            else:
                peer.mode = _Mode.TRUNCATE
        else:
            begin = state.begin_index
            if answer.end_index < begin or answer.begin_index > state.end_index or peer.at < answer.begin_index:
                peer.at = begin - 1
            elif peer.at > answer.end_index:
                peer.at = answer.end_index
            else:
                peer.at -= 1
            if peer.at < begin:
                peer.mode, peer.at = _Mode.TRUNCATE, begin

    # Append

    def _feed(self, peer: _Peer, now_ms: int) -> None:
        state = self._state
        oldest = next(iter(peer.pushed), peer.next_index)
        if oldest < state.begin_index:  # the owner has deleted what the follower lacks
            peer.compare()
            return
        while peer.next_index <= state.end_index and len(peer.pushed) < MOST_PUSHES:
            entries = self._entries_from(peer.next_index)
            self._append(peer, entries, now_ms)
            peer.next_index += len(entries)
        begin, first = next(iter(peer.pushed.items()), (NO_INDEX, None))
        if first is not None and now_ms - first.sent_ms >= self._retry_ms:
            self._append(peer, [state.entry(begin + at) for at in range(first.entry_count)], now_ms)
        elif now_ms - peer.pushed_ms >= COMMIT_PUSH_MS:
            peer.pushed_ms = now_ms
            self._push(peer, PushType.COMMIT, ())

    def _entries_from(self, index: int) -> list[LedgerEntry]:
        entries, size = [self._state.entry(index)], 0
        while (size := size + entries[-1].size_bytes) < self._state.settings.batch_push_bytes:
            if entries[-1].index == self._state.end_index:
                break
            entries.append(self._state.entry(entries[-1].index + 1))
        return entries

    def _append(self, peer: _Peer, entries: Sequence[LedgerEntry], now_ms: int) -> None:
        peer.pushed[entries[0].index] = _Pushed(now_ms, len(entries))
        peer.pushed_ms = now_ms
        self._push(peer, PushType.APPEND, entries)

    def _push(self, peer: _Peer, kind: PushType, entries: Sequence[LedgerEntry]) -> int:
        state = self._state
        base = state.base | {"remote_id": peer.name, "leader_id": state.settings.self_id}
        in_batch = kind is PushType.APPEND and state.settings.batch_push_bytes > 0
        request = push_request(kind, base, entries, state.committed_index, in_batch=in_batch)
        call = state.next_call()
        state.say(Ask(call, peer.name, DLedgerRequestCode.PUSH, request, CALL_TIMEOUT_MS))
        return call

    def on_pushed(
        self, call: int, name: str, request: DLedgerMessage, answer: PushEntryResponse | None, now_ms: int
    ) -> None:
        """A follower has answered, or None for silence."""
        peer = self._peers.get(name)
        if peer is None or not self._state.is_leader or request.term != self._term:
            return
        assert isinstance(request, PushEntryRequest)
        if request.type in (PushType.COMPARE, PushType.TRUNCATE):
            if call == peer.call:
                self._on_compared(peer, answer, now_ms)
        elif request.type == PushType.APPEND and answer is not None:
            if answer.code == DLedgerCode.SUCCESS:
                peer.reached(request.entries[-1].index)
            elif answer.code == DLedgerCode.INCONSISTENT_STATE and peer.mode is _Mode.APPEND:
                peer.compare()

    # Commit

    def _count(self) -> None:
        state = self._state
        marks = sorted([state.durable_index, *(peer.watermark for peer in self._peers.values())], reverse=True)
        index = marks[state.settings.quorum - 1]
        if index >= self._first_own_index:
            state.commit(index)

    def _answer_proposals(self, now_ms: int) -> None:
        while self._proposals:
            index, found = next(iter(self._proposals.items()))
            if index <= self._state.committed_index:
                code = DLedgerCode.SUCCESS
            elif now_ms >= found.end_ms:
                code = DLedgerCode.WAIT_QUORUM_ACK_TIMEOUT
            else:
                break
            del self._proposals[index]
            self._answer(found, index, code)

    def _answer(self, found: _Proposal, index: int, code: DLedgerCode) -> None:
        state = self._state
        place = found.place if code is DLedgerCode.SUCCESS else -1
        answer = AppendEntryResponse(
            group=state.settings.group,
            code=code.value,
            term=state.term,
            index=index,
            leader_id=state.leader_id,
            place=place,
        )
        state.say(Answer(found.token, answer))
