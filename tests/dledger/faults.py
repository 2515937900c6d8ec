"""Faults planted into members: each of a sort that loses acknowledged entries, elects two leaders, or stops a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import PropertyMock, patch

from spark_mq.dledger.election import Election
from spark_mq.dledger.following import Following
from spark_mq.dledger.messages import DLedgerCode, LedgerEntry, PushEntryRequest, PushType, VoteRequest, VoteResult
from spark_mq.dledger.pushing import Pushing
from spark_mq.dledger.state import DLedgerSettings, MemberState, Restored
from storage.format.dledger import Vote
from tests.dledger.life import lived

MOST_SEEDS = 400
Planted = AbstractContextManager[Any]


class Fault(NamedTuple):
    """What is planted, and which invariants may show it; 0 = an undeclared error."""

    plant: Callable[[], Planted]
    shows: tuple[int, ...]
    first: tuple[int, ...] = ()
    """Seeds that are tried first, for what happens seldom."""


def _forgets_votes() -> Planted:
    """A member votes for each who asks in a term."""
    judge = Election._judge

    def forgetful(election: Election, request: VoteRequest, now_ms: int) -> Any:
        state = election._state
        if request.term == state.term and not state.is_leader:
            state.vote, state.leader_id = Vote(state.term, None), None
        return judge(election, request, now_ms)

    return patch.object(Election, "_judge", forgetful)


def _vote_not_restored() -> Planted:
    """Whom it voted for is forgotten at a restart; the term is not."""
    make = MemberState.__init__

    def forgetful(state: MemberState, settings: Any, ledger: Any, restored: Restored) -> None:
        make(state, settings, ledger, restored._replace(vote=Vote(restored.vote.term, None)))

    return patch.object(MemberState, "__init__", forgetful)


def _said_before_durable() -> Planted:
    def say(state: MemberState, message: Any, rests_on: int = 0) -> None:
        if rests_on <= state.durable_number:
            state._effects.append(message)
        else:
            state._held.append((rests_on, message))

    return patch.object(MemberState, "say", say)


def _any_log() -> Planted:
    """A vote for a log that ends before the voter's."""
    judge = Election._judge

    def blind(election: Election, request: VoteRequest, now_ms: int) -> Any:
        return judge(election, replace(request, ledger_end_term=1 << 40), now_ms)

    return patch.object(Election, "_judge", blind)


def _longer_not_younger() -> Planted:
    """A longer log is taken for a better one, whatever its last term is."""
    judge = Election._judge

    def by_length(election: Election, request: VoteRequest, now_ms: int) -> Any:
        is_long = request.ledger_end_index > election._state.end_index
        return judge(election, replace(request, ledger_end_term=1 << 40) if is_long else request, now_ms)

    return patch.object(Election, "_judge", by_length)


def _old_terms_counted() -> Planted:
    begin = Pushing._begin_term

    def counting(pushing: Pushing, now_ms: int) -> None:
        begin(pushing, now_ms)
        pushing._first_own_index = 0

    return patch.object(Pushing, "_begin_term", counting)


def _answers_rest_on_nothing(kind: PushType) -> Callable[[], Planted]:
    """Pushes of a kind are answered before the sync."""

    def plant() -> Planted:
        answer = Following._answer

        def early(
            following: Following, token: Any, request: PushEntryRequest, code: DLedgerCode, rests_on: int = 0
        ) -> None:
            answer(following, token, request, code, 0 if request.type == kind else rests_on)

        return patch.object(Following, "_answer", early)

    return plant


def _leader_counts_unsynced() -> Planted:
    count = Pushing._count

    def early(pushing: Pushing) -> None:
        pushing._state.durable_index = pushing._state.end_index
        count(pushing)

    return patch.object(Pushing, "_count", early)


def _nothing_cut() -> Planted:
    """A conflict is left in the log."""
    return patch.object(MemberState, "cut", lambda state, last_index: state.last_number)


def _compare_commits() -> Planted:
    """The leader's commit index is taken over for entries that were not compared."""
    compare = Following._compare

    def trusting(following: Following, token: Any, request: PushEntryRequest, entry: LedgerEntry) -> None:
        following._state.commit(min(request.commit_index, following._state.end_index))
        compare(following, token, request, entry)

    return patch.object(Following, "_compare", trusting)


def _commit_index_ahead() -> Planted:
    commit = MemberState.commit
    return patch.object(MemberState, "commit", lambda state, index: commit(state, min(index + 1, state.end_index)))


def _leads_on() -> Planted:
    """A leader that nobody answers goes on."""
    down = Election._step_down

    def staying(election: Election, known_term: int, now_ms: int) -> None:
        if not (election._state.is_leader and known_term == election._state.term):
            down(election, known_term, now_ms)

    return patch.object(Election, "_step_down", staying)


@contextmanager
def _nobody_compares() -> Any:
    """A leader appends behind whatever a follower has, and the follower lets it."""
    append, begin = Following._append, Pushing._begin_term

    def trusting(following: Following, token: Any, request: PushEntryRequest) -> None:
        following._state.matched_index = following._state.end_index
        append(following, token, request)

    def hasty(pushing: Pushing, now_ms: int) -> None:
        is_new = pushing._term != pushing._state.term and pushing._state.is_leader
        begin(pushing, now_ms)
        for peer in pushing._peers.values() if is_new else ():
            peer.feed(pushing._state.end_index)

    with patch.object(Following, "_append", trusting), patch.object(Pushing, "_begin_term", hasty):
        yield


def _cuts_what_is_known() -> Planted:
    """A TRUNCATE that comes late is obeyed."""
    truncate = Following._truncate

    def obedient(following: Following, token: Any, request: PushEntryRequest, entry: LedgerEntry) -> None:
        following._state.matched_index = min(following._state.matched_index, entry.index)
        truncate(following, token, request, entry)

    return patch.object(Following, "_truncate", obedient)


def _holds_anything() -> Planted:
    """An entry of the same index is taken for the leader's."""

    def trusting(following: Following, entry: LedgerEntry) -> bool:
        state = following._state
        holds = state.begin_index <= entry.index <= state.end_index
        if holds:
            state.matched_index = max(state.matched_index, entry.index)
        return holds

    return patch.object(Following, "_holds", trusting)


def _one_too_few() -> Planted:
    def fewer(settings: DLedgerSettings) -> int:
        return max(len(settings.peers) // 2, 1)

    return patch.object(DLedgerSettings, "quorum", property(fewer))


@contextmanager
def _leads_twice() -> Any:
    """A restarted leader asks for votes in its old term."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(MemberState, "led_term", PropertyMock(return_value=-1), create=True))
        yield


def _counts_twice() -> Planted:
    """One member's vote counts as two."""
    vote = Election.on_vote

    def generous(election: Election, call: int, answer: Any, now_ms: int) -> None:
        for _ in range(2 if answer is not None and answer.vote_result is VoteResult.ACCEPT else 1):
            vote(election, call, answer, now_ms)

    return patch.object(Election, "on_vote", generous)


def _votes_in_old_terms() -> Planted:
    """A candidate of an old term gets a vote."""
    judge = Election._judge

    def generous(election: Election, request: VoteRequest, now_ms: int) -> VoteResult:
        result = judge(election, request, now_ms)
        return VoteResult.ACCEPT if result is VoteResult.REJECT_EXPIRED_VOTE_TERM else result

    return patch.object(Election, "_judge", generous)


def _success_though_deposed() -> Planted:
    """What waits when a leader steps down is answered as if a majority had it."""
    answer = Pushing._answer

    def hopeful(pushing: Pushing, found: Any, index: int, code: DLedgerCode) -> None:
        answer(pushing, found, index, DLedgerCode.SUCCESS if code is DLedgerCode.TERM_CHANGED else code)

    return patch.object(Pushing, "_answer", hopeful)


def _waits_for_ever() -> Planted:
    """A comparison that is not answered is not repeated."""
    pushed = Pushing.on_pushed

    def patient(pushing: Pushing, call: int, name: str, request: Any, answer: Any, now_ms: int) -> None:
        if answer is not None:
            pushed(pushing, call, name, request, answer, now_ms)

    return patch.object(Pushing, "on_pushed", patient)


def _higher_term_not_heeded() -> Planted:
    """A leader goes on though a member has gone to a higher term."""
    heard = Election.on_heartbeat

    def deaf(election: Election, call: int, peer: str, answer: Any, now_ms: int) -> None:
        is_expired = answer is not None and answer.code == DLedgerCode.EXPIRED_TERM
        heard(election, call, peer, None if is_expired else answer, now_ms)

    return patch.object(Election, "on_heartbeat", deaf)


def _no_restart() -> Planted:
    """The first entry of a leader's log is put behind the follower's own log."""
    return patch.object(MemberState, "restart", lambda state, first: state.append([first]))


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "a member votes twice in a term": Fault(_forgets_votes, (1, 2, 3)),
        "a vote is forgotten at a restart": Fault(_vote_not_restored, (1, 2, 3)),
        "a vote is said before it is durable": Fault(_said_before_durable, (2, 3)),
        "a vote for a shorter log": Fault(_any_log, (5, 7, 8)),
        "a longer log wins over a younger one": Fault(_longer_not_younger, (5, 7, 8)),
        "an entry of an old term is committed by counting": Fault(_old_terms_counted, (5, 7, 8)),
        "an append is acknowledged before the sync": Fault(_answers_rest_on_nothing(PushType.APPEND), (3, 6)),
        "a comparison is answered before the sync": Fault(_answers_rest_on_nothing(PushType.COMPARE), (3, 6)),
        "a truncation is answered before the sync": Fault(_answers_rest_on_nothing(PushType.TRUNCATE), (3, 4, 6)),
        "a leader counts itself before the sync": Fault(_leader_counts_unsynced, (6, 7)),
        "a conflict is not cut": Fault(_nothing_cut, (4, 5, 10)),
        "what is not compared is committed": Fault(_compare_commits, (5, 7, 8)),
        "the commit index is ahead": Fault(_commit_index_ahead, (5, 6, 7, 8)),
        "a leader without a majority leads on": Fault(_leads_on, (9,)),
        "logs are not compared": Fault(_nobody_compares, (3, 4, 5, 6, 7)),
        "a late TRUNCATE cuts what is known": Fault(_cuts_what_is_known, (3, 8)),
        "another entry of the same index is taken for the leader's": Fault(_holds_anything, (3, 4, 5, 7)),
        "a majority is one too few": Fault(_one_too_few, (1, 6)),
        "a vote counts twice": Fault(_counts_twice, (1, 6, 7)),
        "a term is led twice": Fault(_leads_twice, (1,)),
        "a candidate of an old term gets a vote": Fault(_votes_in_old_terms, (1, 2, 3)),
        "what waits for a deposed leader succeeds": Fault(_success_though_deposed, (5, 6)),
        "a comparison is not repeated": Fault(_waits_for_ever, (10,)),
        "a higher term is not heeded": Fault(_higher_term_not_heeded, (10,)),
        "a log that begins anew is appended": Fault(_no_restart, (4, 11)),
    }
)


def noticed(name: str, seeds: int = MOST_SEEDS) -> str | None:
    """What shows the fault: a seed and an invariant; None = nothing does.

    Another failure counts nothing, and neither does a life that fails without the fault.
    """
    fault = FAULTS[name]
    for seed in (*fault.first, *range(seeds)):
        with fault.plant():
            found = lived([seed])
        if found.failures and found.broken[0] in fault.shows and not lived([seed]).failures:
            return f"seed {seed}, invariant {found.broken[0]}"
    return None


def plant_all(note: Callable[[str], None]) -> dict[str, str | None]:
    """Of each fault what shows it."""
    shown: dict[str, str | None] = {}
    for name in FAULTS:
        shown[name] = noticed(name)
        note(f"{name}: {shown[name] or 'NOT NOTICED'}")
    return shown
