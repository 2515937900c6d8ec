"""A follower's side of pushes: compare, truncate, append, commit.

`matched_index` of the state says up to where this log is known to be the leader's of this term. Only behind a log that is wholly known
are entries appended; only what is known is committed; and what is known is never cut, so an old TRUNCATE that comes late takes back
nothing that this member has answered for.

Java: DLedgerEntryPusher.EntryHandler, DLedgerMmapFileStore.appendAsFollower and truncate. Departures:

- SUCCESS waits until the entries that it speaks of are durable, of a COMPARE too: a leader counts them.
- A push shows who leads, as a heartbeat does. One of an old term is answered EXPIRED_TERM.
- Java appends to a log that it has not compared, commits what it has not compared, and cuts what a late TRUNCATE says. Here the
  answer is INCONSISTENT_STATE, at which each leader compares.
- An entry that a leader's log begins with replaces the whole log. Java keeps what stands before it, which no one can compare.
- Entries that are there already are answered at once, and not within a second.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from spark_mq.dledger.messages import (
    MOST_NUMBER,
    NO_INDEX,
    DLedgerCode,
    LedgerEntry,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    entry_size,
    is_same,
)
from spark_mq.dledger.state import Answer, Diverged, MemberState
from storage.format.dledger import ENTRY_MAGIC

MOST_WAITING = 1_024
"""Pushes that wait for the ones before them."""
MOST_WAITING_BYTES = 64 << 20
"""Their entries."""
WAIT_MS = 1_000


class _Waiting(NamedTuple):
    """A push that came before its predecessor, or while a cut is not durable."""

    token: Hashable
    request: PushEntryRequest
    end_ms: int


class Following:
    """One member as a follower."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._waiting: dict[int, _Waiting] = {}
        self._of: tuple[int, str | None] = (state.term, None)

    def handle_push(self, token: Hashable, request: PushEntryRequest, now_ms: int) -> None:
        """A push of the leader that this member follows."""
        self._forget_others()
        if request.type == PushType.COMMIT:
            self._commit(request)
            self._answer(token, request, DLedgerCode.SUCCESS)
            return
        if not self._is_sound(request):
            self._answer(token, request, DLedgerCode.UNEXPECTED_ARGUMENT)
        elif request.type == PushType.APPEND:
            self._append_or_wait(token, request, now_ms)
            self._append_waiting()
        else:
            self._refuse_waiting()
            (entry,) = request.entries
            if request.type == PushType.COMPARE:
                self._compare(token, request, entry)
            else:
                self._truncate(token, request, entry)

    def tick(self, now_ms: int) -> None:
        """Append what waited for a cut, and refuse what has waited too long: the leader compares then."""
        self._forget_others()
        if self._waiting:
            self._append_waiting()
            for first in [first for first, found in self._waiting.items() if now_ms >= found.end_ms]:
                found = self._waiting.pop(first)
                self._answer(found.token, found.request, DLedgerCode.INCONSISTENT_STATE)

    @property
    def deadline_ms(self) -> int:
        return min((found.end_ms for found in self._waiting.values()), default=1 << 62)

    def _is_sound(self, request: PushEntryRequest) -> bool:
        """Whether a leader can have made these entries."""
        entries = request.entries
        if not entries or (request.type != PushType.APPEND and len(entries) > 1):
            return False
        terms = [0, *(each.term for each in entries), request.term]
        return (terms == sorted(terms) and max(terms[-1], entries[-1].index, entries[-1].place) <= MOST_NUMBER) and all(
            each.index == entries[0].index + at >= 0
            and each.magic == ENTRY_MAGIC
            and each.size_bytes == entry_size(each.body or b"")
            and 0 <= each.place == self._state.place_behind(each.place, each.size_bytes)
            for at, each in enumerate(entries)
        )

    def _forget_others(self) -> None:
        """Pushes of another leader, or of another term."""
        now = self._state.term, self._state.leader_id
        if self._of != now:
            self._of = now
            self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for found in waiting.values():
            self._answer(found.token, found.request, DLedgerCode.INCONSISTENT_STATE)

    # Append

    def _append_or_wait(self, token: Hashable, request: PushEntryRequest, now_ms: int) -> None:
        first = request.entries[0].index
        if first <= self._state.end_index + 1 and self._state.is_cut_durable:
            self._append(token, request)
        elif first in self._waiting:
            self._answer(token, request, DLedgerCode.REPEATED_PUSH)
        elif len(self._waiting) >= MOST_WAITING or self._would_be_too_much(request):
            self._answer(token, request, DLedgerCode.PUSH_REQUEST_IS_FULL)
        else:
            self._waiting[first] = _Waiting(token, request, now_ms + WAIT_MS)

    def _would_be_too_much(self, request: PushEntryRequest) -> bool:
        pushes = [request, *(found.request for found in self._waiting.values())]
        return sum(each.size_bytes for push in pushes for each in push.entries) > MOST_WAITING_BYTES

    def _append_waiting(self) -> None:
        while self._waiting and self._state.is_cut_durable:
            first = min(self._waiting)
            if first > self._state.end_index + 1:
                break
            found = self._waiting.pop(first)
            self._append(found.token, found.request)

    def _append(self, token: Hashable, request: PushEntryRequest) -> None:
        """Entries some of which may be there already."""
        state, entries = self._state, request.entries
        there = [each for each in entries if each.index <= state.end_index]
        new = entries[len(there) :]
        if not all(self._holds(each) for each in there) or (new and state.matched_index < state.end_index):
            self._answer(token, request, DLedgerCode.INCONSISTENT_STATE)
            return
        rests_on = state.last_number
        if new:
            place = state.end_place
            for each in new:
                if each.place != (place := state.place_behind(place, each.size_bytes)) or each.term < state.end_term:
                    self._answer(token, request, DLedgerCode.INCONSISTENT_STATE)
                    return
                place += each.size_bytes
            if state.end_index == NO_INDEX:
                state.begin_index = new[0].index
            rests_on = state.append(new)
            state.matched_index = state.end_index
        self._answer(token, request, DLedgerCode.SUCCESS, rests_on)
        self._commit(request)

    def _holds(self, entry: LedgerEntry) -> bool:
        """Whether the leader's entry is here; where another one is, that and what follows it is not the leader's."""
        state = self._state
        if not state.begin_index <= entry.index <= state.end_index:
            return False
        if is_same(entry, state.entry(entry.index)):
            state.matched_index = max(state.matched_index, entry.index)
            return True
        state.matched_index = min(state.matched_index, entry.index - 1)
        return False

    # Compare and truncate

    def _compare(self, token: Hashable, request: PushEntryRequest, entry: LedgerEntry) -> None:
        is_here = self._holds(entry)
        code = DLedgerCode.SUCCESS if is_here else DLedgerCode.INCONSISTENT_STATE
        self._answer(token, request, code, self._state.last_number)

    def _truncate(self, token: Hashable, request: PushEntryRequest, entry: LedgerEntry) -> None:
        state = self._state
        if self._holds(entry):
            keep = max(entry.index, state.matched_index)
            if keep < state.committed_index:
                self._diverge(token, request, entry.index)
                return
            rests_on = state.last_number if keep == state.end_index else state.cut(keep)
        elif entry.index <= state.committed_index:
            self._diverge(token, request, entry.index)
            return
        else:
            rests_on = state.restart(entry)
        self._answer(token, request, DLedgerCode.SUCCESS, rests_on)
        self._commit(request)

    def _diverge(self, token: Hashable, request: PushEntryRequest, index: int) -> None:
        self._state.note(Diverged(request.leader_id or "", index))
        self._answer(token, request, DLedgerCode.INCONSISTENT_STATE)

    def _commit(self, request: PushEntryRequest) -> None:
        self._state.commit(min(request.commit_index, self._state.matched_index))

    def _answer(self, token: Hashable, request: PushEntryRequest, code: DLedgerCode, rests_on: int = 0) -> None:
        self._state.say(Answer(token, answer_push(self._state, request, code)), rests_on)


def answer_push(state: MemberState, request: PushEntryRequest, code: DLedgerCode) -> PushEntryResponse:
    """An answer to a push, with the ends of this member's log. Java: EntryHandler.buildResponse."""
    is_commit = request.type == PushType.COMMIT
    entries = request.entries
    is_expired = code is DLedgerCode.EXPIRED_TERM
    return PushEntryResponse(
        group=request.group,
        code=code.value,
        term=state.term if is_expired else request.term,
        index=None if is_commit or not entries else entries[0].index,
        count=0 if is_commit else len(entries),
        begin_index=state.begin_index if state.end_index != NO_INDEX else NO_INDEX,
        end_index=state.end_index,
    )
