"""What one member of a DLedger group knows: term, vote, role, and the ends of its log; and what it says, which waits for its disk.

Two rules of durability live here, and nowhere else:

- `say` holds every message back until the term and the vote that it speaks of are durable.
- An answer that lets a leader count this member names the disk order that it rests on, and waits for that one, too. A leader counts
  itself by `durable_index`.

Java: MemberState, and DLedgerMmapFileStore's ends. Departure: Java says a vote before any sync, and counts an entry before the flush
that follows within 10 ms, so a power loss of one or two members can lose what was acknowledged, or elect two leaders of a term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from spark_mq.dledger.messages import NO_INDEX, DLedgerMessage, DLedgerRequestCode, LedgerEntry
from storage.format.dledger import Vote, place_of_next

MOST_PENDING = 10_000
"""Proposals that a leader takes before their majority has them."""


class Role(Enum):
    """A member's role. It begins as a candidate."""

    CANDIDATE = "CANDIDATE"
    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


@dataclass(frozen=True, slots=True)
class DLedgerSettings:
    """One member's settings, with Java's names and defaults. Java: DLedgerConfig."""

    group: str
    self_id: str
    peers: Mapping[str, str]
    """Each member's address by its id, this one's too."""
    heartbeat_ms: int = 2_000
    """heartBeatTimeIntervalMs"""
    heartbeat_leak: int = 3
    """maxHeartBeatLeak: so many silent intervals, and a follower looks for a new leader, or a leader steps down."""
    min_vote_ms: int = 300
    """minVoteIntervalMs"""
    max_vote_ms: int = 1_000
    """maxVoteIntervalMs"""
    most_pending: int = MOST_PENDING
    """maxPendingRequestsNum"""
    wait_ack_ms: int = 2_500
    """maxWaitAckTimeMs"""
    push_timeout_ms: int = 1_000
    """maxPushTimeOutMs: after so long a push is repeated."""
    batch_push_bytes: int = 0
    """maxBatchPushSize if isEnableBatchPush, else 0: each entry has a push of its own."""
    preferred_leaders: tuple[str, ...] = ()
    """preferredLeaderIds"""
    transfer_wait_index: int = 1_000
    """maxLeadershipTransferWaitIndex: a member further behind does not take over."""
    transfer_wait_ms: int = 1_000
    """leadershipTransferWaitTimeout"""
    file_size_bytes: int = 1 << 30
    """mappedFileSizeForEntryData; equal on all members."""

    @property
    def quorum(self) -> int:
        """How many members are a majority."""
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> tuple[str, ...]:
        """The other members, in order of their ids."""
        return tuple(sorted(each for each in self.peers if each != self.self_id))


class Restored(NamedTuple):
    """What the disk says at the start. `committed_index` may be behind; `end_place` is where the last entry ends."""

    vote: Vote = Vote(0, None)
    begin_index: int = 0
    end_index: int = NO_INDEX
    end_term: int = -1
    end_place: int = 0
    committed_index: int = NO_INDEX


class Ledger(Protocol):
    """The log as it can be read now: with each order of an earlier call, durable or not."""

    def entry(self, index: int) -> LedgerEntry:
        """An entry between begin and end."""


# What the owner of a member does next, in this order.


class Ask(NamedTuple):
    """Send a request; give `Member.answered` the answer, or None where none comes in time or the line is broken."""

    call: int
    peer: str
    code: DLedgerRequestCode
    body: DLedgerMessage
    timeout_ms: int


class Answer(NamedTuple):
    """Answer the request that came with the token."""

    token: Hashable
    body: DLedgerMessage


class SaveVote(NamedTuple):
    """Replace `currterm`."""

    number: int
    vote: Vote


class Append(NamedTuple):
    """Write entries behind the log's end."""

    number: int
    entries: tuple[LedgerEntry, ...]


class Cut(NamedTuple):
    """Remove the entries behind this index. Sync it before a later order is written, else old bytes may follow new ones."""

    number: int
    last_index: int


class Restart(NamedTuple):
    """The log begins anew with this entry, and nothing else is in it. Sync it like a cut."""

    number: int
    first: LedgerEntry


class Committed(NamedTuple):
    """A majority has the entries up to this index: apply them before what follows. None of them ever changes."""

    last_index: int


class RoleChanged(NamedTuple):
    """Role, term or leader are new. A new leader's owner proposes an entry at once: older ones are committed with it."""

    term: int
    role: Role
    leader_id: str | None


class Diverged(NamedTuple):
    """A leader wants to replace an entry that is committed here. It is refused; an operator must look."""

    leader_id: str
    entry_index: int


Order: TypeAlias = SaveVote | Append | Cut | Restart
Effect: TypeAlias = Ask | Answer | Order | Committed | RoleChanged | Diverged


class MemberState:
    """The state that election, pushing and following share."""

    def __init__(self, settings: DLedgerSettings, ledger: Ledger, restored: Restored) -> None:
        self.settings = settings
        self._ledger = ledger
        self._ordered: dict[int, LedgerEntry] = {}
        """Entries of this call, which the owner has not written yet."""
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.transferee: str | None = None
        # A term file that was lost, or never written, is behind the log.
        is_behind = restored.vote.term < restored.end_term
        self.vote = Vote(restored.end_term, None) if is_behind else restored.vote
        self.known_term = self.vote.term
        """The highest term that another member has spoken of."""
        self.led_term = self.vote.term if self.vote.voted_for == settings.self_id else -1
        """The last term that this member has led, or may have led before it restarted: it must not ask for votes in it again."""
        self.begin_index = restored.begin_index
        self.end_index = restored.end_index
        self.end_term = restored.end_term
        self.end_place = restored.end_place
        self.committed_index = min(restored.committed_index, restored.end_index)
        self.matched_index = NO_INDEX
        """Up to here the log is known to be that of the leader of this term."""
        self.durable_index = restored.end_index
        self.last_number = 0
        """The last disk order."""
        self.durable_number = 0
        self._vote_number = 0
        self._cut_number = 0
        self._appended: deque[tuple[int, int]] = deque()
        self._held: list[tuple[int, Effect]] = []
        self._effects: list[Effect] = []
        self.last_call = 0
        self._match_own_term()

    @property
    def term(self) -> int:
        return self.vote.term

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def base(self) -> dict[str, Any]:
        """The fields of all messages that this member fills in for itself."""
        return {"group": self.settings.group, "local_id": self.settings.self_id, "term": self.term}

    # Saying

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        self._ordered.clear()
        return effects

    def say(self, message: Ask | Answer, rests_on: int = 0) -> None:
        """Send it when this term and vote are durable, and the order that it rests on."""
        number = max(rests_on, self._vote_number)
        if number <= self.durable_number:
            self._effects.append(message)
        else:
            self._held.append((number, message))

    def next_call(self) -> int:
        """A number for a request to a peer."""
        self.last_call += 1
        return self.last_call

    def note(self, notice: Committed | RoleChanged | Diverged) -> None:
        """Tell the owner."""
        self._effects.append(notice)

    def synced(self, number: int) -> None:
        """All orders up to this one are durable."""
        self.durable_number = max(self.durable_number, number)
        while self._appended and self._appended[0][0] <= self.durable_number:
            self.durable_index = max(self.durable_index, self._appended.popleft()[1])
        if self._held:
            self._effects += [said for on, said in self._held if on <= self.durable_number]
            self._held = [(on, said) for on, said in self._held if on > self.durable_number]

    @property
    def is_vote_durable(self) -> bool:
        return self._vote_number <= self.durable_number

    @property
    def is_cut_durable(self) -> bool:
        """Whether entries may be appended: not over a cut that a crash may take back."""
        return self._cut_number <= self.durable_number

    # Term and role

    def save_vote(self, term: int, voted_for: str | None) -> None:
        """The term, and whom this member votes for in it; it is not said before it is durable."""
        assert term > self.term or self.vote.voted_for in (None, voted_for)
        if term > self.term:
            self.leader_id = None
        self.vote = Vote(term, voted_for)
        self.known_term = max(self.known_term, term)
        self._vote_number = self._order()
        self._effects.append(SaveVote(self._vote_number, self.vote))

    def lead(self) -> None:
        """This member was elected."""
        self.led_term = self.term
        self._become(Role.LEADER, self.settings.self_id)

    def follow(self, term: int, leader_id: str) -> None:
        """Another member leads in this term."""
        if term > self.term:
            self.save_vote(term, None)
        self._become(Role.FOLLOWER, leader_id)
        self._match_own_term()

    def step_down(self, known_term: int) -> None:
        """No leader is known any more. `known_term` is the highest that was spoken of."""
        self.known_term = max(self.known_term, known_term)
        self._become(Role.CANDIDATE, None)

    def _become(self, role: Role, leader_id: str | None) -> None:
        self.transferee = None
        self.role, self.leader_id = role, leader_id
        self._effects.append(RoleChanged(self.term, role, leader_id))

    def _match_own_term(self) -> None:
        """What a leader has though nothing is compared: it was elected with all that is committed; and entries of this term come from
        it, so what stands before them is its own as well.
        """
        known = self.end_index if self.end_term == self.term else self.committed_index
        self.matched_index = max(known, self.begin_index - 1)

    # The log

    def entry(self, index: int) -> LedgerEntry:
        """An entry between begin and end."""
        return self._ordered.get(index) or self._ledger.entry(index)

    def append(self, entries: Sequence[LedgerEntry]) -> int:
        """Entries that follow the log's end; the order's number."""
        last = entries[-1]
        self.end_index, self.end_term, self.end_place = last.index, last.term, last.place + last.size_bytes
        number = self._order()
        self._appended.append((number, last.index))
        self._effects.append(Append(number, tuple(entries)))
        self._ordered.update((each.index, each) for each in entries)
        return number

    def cut(self, last_index: int) -> int:
        """Remove what stands behind the entry at this index, which stays."""
        last = self.entry(last_index)
        self.end_index, self.end_term, self.end_place = last.index, last.term, last.place + last.size_bytes
        self.matched_index = min(self.matched_index, last_index)
        self._cut_number = self._order()
        self.durable_index = min(self.durable_index, last_index)
        self._appended = deque((on, min(end, last_index)) for on, end in self._appended)
        self._effects.append(Cut(self._cut_number, last_index))
        self._ordered = {index: each for index, each in self._ordered.items() if index <= last_index}
        return self._cut_number

    def restart(self, first: LedgerEntry) -> int:
        """The log begins with this entry."""
        self.begin_index = self.end_index = self.matched_index = first.index
        self.end_term, self.end_place = first.term, first.place + first.size_bytes
        self._cut_number = self._order()
        self.durable_index = first.index - 1
        self._appended = deque([(self._cut_number, first.index)])
        self._effects.append(Restart(self._cut_number, first))
        self._ordered = {first.index: first}
        return self._cut_number

    def trimmed(self, begin_index: int) -> None:
        """The owner has removed the entries before this one, which were committed."""
        assert begin_index <= self.committed_index
        self.begin_index = begin_index

    @property
    def durable_committed_index(self) -> int:
        """For the checkpoint. A higher one could outlive the entry that it means, and vouch for another that stood there before."""
        return min(self.committed_index, self.durable_index)

    def commit(self, index: int) -> None:
        """A majority has the entries up to there."""
        if index > self.committed_index:
            self.committed_index = index
            self._effects.append(Committed(index))

    def place_behind(self, end_place: int, size_bytes: int) -> int:
        """Where an entry of this size begins behind a log that ends there."""
        return place_of_next(end_place, size_bytes, self.settings.file_size_bytes)

    def _order(self) -> int:
        self.last_number += 1
        return self.last_number
