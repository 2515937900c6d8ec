"""DLedger's requests and answers: codes, and JSON bodies of commands that have no header.

    50000 METADATA              the members and their leader
    50001 APPEND                a client's entry, to the leader
    50002 GET                   an entry, from the leader
    51001 VOTE                  a candidate's request for a vote
    51002 HEART_BEAT            a leader is still there
    51003 PULL                  declared in Java, served by no release
    51004 PUSH                  a leader's entries: COMPARE, TRUNCATE, APPEND, COMMIT
    51005 LEADERSHIP_TRANSFER   to the leader: hand over; from it: take over

The command that answers always has the code 200; the code in its body is the answer's.

Java: DLedgerRequestCode, DLedgerResponseCode, RequestOrResponse and its heirs, DLedgerEntry, DLedgerRpcNettyService (DLedger 0.3.1.2).
fastjson writes each getter, so a push has fields that follow from its entries (`batch`, `count`, …): `push_request` sets them, and no
reader looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Annotated, NamedTuple

from storage.format.dledger import ENTRY_HEAD_SIZE, ENTRY_MAGIC
from storage.format.typed_json import Int, Long, WireBody, wire

NO_INDEX = -1
"""The index before the first entry of a log."""
MOST_NUMBER = 1 << 56
"""Of a term and an index. No group comes so far; behind a greater term there may be none to elect in, and file names have 20 digits."""


class DLedgerRequestCode(IntEnum):
    """The code of a request."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005


class DLedgerCode(IntEnum):
    """The code in an answer's body."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506


class VoteResult(StrEnum):
    """A member's answer to a candidate, in Java's order: an enum may come as its position."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(StrEnum):
    """The kinds of a push, in Java's order."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class LedgerEntry(WireBody):
    """One entry of the group's log, as it stands on each member's disk. Java: DLedgerEntry."""

    body: bytes | None = None
    body_crc: Int = 0
    chain_crc: Int = 0
    channel: Int = 0
    index: Long = 0
    magic: Int = 0
    place: Long = wire("pos", default=0)
    size_bytes: Int = wire("size", default=0)
    term: Long = 0


def make_entry(index: int, term: int, place: int, body: bytes) -> LedgerEntry:
    """An entry as a leader makes it: no member sets channel and CRCs."""
    return LedgerEntry(index=index, term=term, place=place, body=body, magic=ENTRY_MAGIC, size_bytes=entry_size(body))


def entry_size(body: bytes) -> int:
    """The size of an entry with this body."""
    return ENTRY_HEAD_SIZE + len(body)


def is_same(one: LedgerEntry, other: LedgerEntry) -> bool:
    """Whether two members hold the same entry. Java: DLedgerEntry.equals, which leaves the CRCs out."""
    return (
        (one.index, one.term, one.place, one.size_bytes) == (other.index, other.term, other.place, other.size_bytes)
        and (one.magic, one.channel) == (other.magic, other.channel)
        and (one.body or b"") == (other.body or b"")
    )


class DLedgerMessage(WireBody):
    """Fields of all requests and answers. Java: RequestOrResponse."""

    group: str | None = None
    remote_id: str | None = None
    """Who is meant."""
    local_id: str | None = None
    """Who asks."""
    code: Int = DLedgerCode.SUCCESS.value
    """A `DLedgerCode`; of an answer."""
    leader_id: str | None = None
    term: Long = -1


class MetadataRequest(DLedgerMessage):
    """Request for the members."""


class MetadataResponse(DLedgerMessage):
    """The members by id, with addresses."""

    peers: Mapping[str, str] | None = None


class AppendEntryRequest(DLedgerMessage):
    """A client's entry."""

    body: bytes | None = None


class AppendEntryResponse(DLedgerMessage):
    """Where the entry stands, once a majority has it."""

    index: Long = NO_INDEX
    place: Long = wire("pos", default=-1)


class GetEntriesRequest(DLedgerMessage):
    """Request for an entry."""

    begin_index: Long | None = None
    max_size: Int = 0
    index_list: tuple[Long, ...] | None = None


class GetEntriesResponse(DLedgerMessage):
    """The entry."""

    entries: tuple[LedgerEntry, ...] = ()


class VoteRequest(DLedgerMessage):
    """A candidate: `leader_id` in `term`, with a log that ends there."""

    ledger_end_index: Long = NO_INDEX
    ledger_end_term: Long = -1


class VoteResponse(DLedgerMessage):
    """The vote; `term` is the voter's."""

    vote_result: Annotated[str, VoteResult] = VoteResult.UNKNOWN


class HeartBeatRequest(DLedgerMessage):
    """`leader_id` leads in `term`."""


class HeartBeatResponse(DLedgerMessage):
    """Whether it is taken for the leader."""


class PullEntriesRequest(DLedgerMessage):
    """A request that no release serves."""

    node_id: str | None = None
    begin_index: Long | None = None


class PullEntriesResponse(DLedgerMessage):
    """Its answer."""

    entries: tuple[LedgerEntry, ...] = ()


class PushEntryRequest(DLedgerMessage):
    """A leader's word on the log. `push_request` makes it."""

    type: Annotated[str, PushType] = PushType.APPEND
    commit_index: Long = NO_INDEX
    entry: LedgerEntry | None = None
    batch_entry: tuple[LedgerEntry, ...] = ()
    batch: bool = False
    count: Int = 0
    first_entry_index: Long = NO_INDEX
    last_entry_index: Long = NO_INDEX
    total_size: Long = 0

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries that it carries, one or many."""
        return self.batch_entry or (() if self.entry is None else (self.entry,))


class PushEntryResponse(DLedgerMessage):
    """What became of the push: `index` is its first entry's; the member's log reaches from `begin_index` to `end_index`."""

    index: Long | None = None
    begin_index: Long = 0
    end_index: Long = 0
    count: Int = 0


class LeadershipTransferRequest(DLedgerMessage):
    """`transfer_id` shall hand over to `transferee_id`, whose log must have reached that index first."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: Long = 0


class LeadershipTransferResponse(DLedgerMessage):
    """Whether leadership was handed over."""


class Conversation(NamedTuple):
    """The bodies of one code."""

    request: type[DLedgerMessage]
    answer: type[DLedgerMessage]


CONVERSATIONS: Mapping[DLedgerRequestCode, Conversation] = {
    DLedgerRequestCode.METADATA: Conversation(MetadataRequest, MetadataResponse),
    DLedgerRequestCode.APPEND: Conversation(AppendEntryRequest, AppendEntryResponse),
    DLedgerRequestCode.GET: Conversation(GetEntriesRequest, GetEntriesResponse),
    DLedgerRequestCode.VOTE: Conversation(VoteRequest, VoteResponse),
    DLedgerRequestCode.HEART_BEAT: Conversation(HeartBeatRequest, HeartBeatResponse),
    DLedgerRequestCode.PULL: Conversation(PullEntriesRequest, PullEntriesResponse),
    DLedgerRequestCode.PUSH: Conversation(PushEntryRequest, PushEntryResponse),
    DLedgerRequestCode.LEADERSHIP_TRANSFER: Conversation(LeadershipTransferRequest, LeadershipTransferResponse),
}


def push_request(
    kind: PushType, base: Mapping[str, object], entries: Sequence[LedgerEntry], commit_index: int, *, in_batch: bool
) -> PushEntryRequest:
    """A push of these entries; `base` has the fields of all messages."""
    first, last = (entries[0].index, entries[-1].index) if entries else (NO_INDEX, NO_INDEX)
    return PushEntryRequest(
        **base,  # type: ignore[arg-type]
        type=kind,
        commit_index=commit_index,
        entry=entries[0] if entries and not in_batch else None,
        batch_entry=tuple(entries) if in_batch else (),
        batch=in_batch,
        count=len(entries),
        first_entry_index=first,
        last_entry_index=last,
        total_size=sum(each.size_bytes for each in entries) if in_batch else 0,
    )
