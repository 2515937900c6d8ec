"""What members of a DLedger group, or who says that he is one, send to another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from spark_mq.dledger.member import Member
from spark_mq.dledger.messages import (
    CONVERSATIONS,
    DLedgerMessage,
    DLedgerRequestCode,
    LedgerEntry,
    VoteResponse,
    VoteResult,
)
from spark_mq.dledger.state import Append, Ask, Cut, DLedgerSettings, Effect, Restart, Restored, SaveVote
from spark_mq.remoting import BodyError, read_body, write_body
from storage.format.dledger import Vote, decode_vote, encode_vote
from tests.support.places import PROJECT
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples

_CODES = {kind.__name__: code for code, found in CONVERSATIONS.items() for kind in found}
_NUMBERS = {b"%d" % code: code for code in DLedgerRequestCode}
_LINE = b"\n"


class _Files:
    """The log of a member whose disk is always synced."""

    def __init__(self) -> None:
        self.begin = 0
        self.entries: list[LedgerEntry] = []

    def entry(self, index: int) -> LedgerEntry:
        assert self.begin <= index < self.begin + len(self.entries)
        return self.entries[index - self.begin]

    def carry_out(self, effects: list[Effect]) -> tuple[int, list[Ask]]:
        """The last order, and what is asked."""
        number, asked = 0, []
        for each in effects:
            if isinstance(each, Ask):
                asked.append(each)
            if isinstance(each, SaveVote):
                assert decode_vote(encode_vote(each.vote)) == each.vote
            elif isinstance(each, Append):
                assert each.entries[0].index == self.begin + len(self.entries)
                self.entries += each.entries
            elif isinstance(each, Cut):
                del self.entries[each.last_index + 1 - self.begin :]
            elif isinstance(each, Restart):
                self.begin, self.entries = each.first.index, [each.first]
            number = getattr(each, "number", number)
        return number, asked


def _messages(samples: Samples) -> list[bytes]:
    """Requests and answers as Java's classes write them."""
    rows = (PROJECT / "tests" / "vectors" / "dledger" / "bodies.tsv").read_bytes().splitlines()
    lines = []
    for row in rows:
        name, _, body = row.partition(b"\t")
        kind = name.split()[0].decode()
        lines.append(b"%d %s " % (_CODES[kind], b"?" if kind.endswith("Request") else b"!") + body)
    return [_LINE.join(lines), _LINE.join(reversed(lines)), *lines]


class _Played:
    """A member, which leads or does not, with all that it asked."""

    def __init__(self, *, leads: bool) -> None:
        self.files, self.now_ms = _Files(), 10_000
        self.asked: list[Ask] = []
        peers = dict.fromkeys(("n0", "n1", "n2"), "h:1")
        settings = DLedgerSettings(group="group", self_id="n1", peers=peers, file_size_bytes=8_192)
        self.member = Member(settings, self.files, Restored(), Random(1), self.now_ms)
        if leads:
            self.carry_out(self.member.tick(self.now_ms))
            self.answer(DLedgerRequestCode.VOTE, VoteResponse(vote_result=VoteResult.ACCEPT))
            self.carry_out(self.member.propose("own", [b"one", b"two"], self.now_ms)[1])
            assert self.member.state.is_leader

    def carry_out(self, effects: list[Effect]) -> None:
        for _ in range(3):
            number, more = self.files.carry_out(effects)
            self.asked += more
            effects = self.member.synced(number, self.now_ms) if number else self.member.tick(self.now_ms)
        self.files.carry_out(effects)

    def answer(self, code: DLedgerRequestCode, message: DLedgerMessage) -> None:
        """The message answers all that was asked with the code."""
        calls = [each.call for each in self.asked if each.code == code]
        for call in calls:
            self.carry_out(self.member.answered(call, message, self.now_ms))

    def handle(self, message: DLedgerMessage) -> None:
        self.carry_out(self.member.handle("token", message, self.now_ms))

    def check(self) -> None:
        state, files = self.member.state, self.files
        assert not files.entries or (state.begin_index, state.end_index) == (files.begin, files.entries[-1].index)
        assert state.committed_index <= state.end_index


def _read_messages(content: bytes, directory: Path) -> bool:
    """No message makes a member fail, and its log stays one."""
    is_fine = False
    members = _Played(leads=False), _Played(leads=True)
    for line in content.split(_LINE)[:100]:
        number, _, rest = line.partition(b" ")
        kind, _, body = rest.partition(b" ")
        if number not in _NUMBERS:
            continue
        code = _NUMBERS[number]
        found = CONVERSATIONS[code]
        try:
            message = read_body(found.answer if kind == b"!" else found.request, body)
        except BodyError:
            continue
        is_fine = True
        write_body(message)
        for each in members:
            each.now_ms += 300
            if kind == b"!":
                each.answer(code, message)
            else:
                each.handle(message)
            each.check()
    return is_fine


def _votes(samples: Samples) -> list[bytes]:
    return [encode_vote(Vote(7, "n1")), b"#Sat Nov 28\nvoteLeader=\ncurrTerm=0\n"]


def _read_vote(content: bytes, directory: Path) -> bool:
    return decode_vote(content) is not None


_WORDS = (
    *JSON_WORDS,
    b'"n0"',
    b'"n2"',
    b'"group"',
    b"-1",
    b"0",
    b"9223372036854775807",
    b'"TRUNCATE"',
    b'"COMMIT"',
    b"\n",
)
DECODERS: Sequence[Decoder] = (
    Decoder(
        "messages to a member of a DLedger group",
        _messages,
        _read_messages,
        words=_WORDS,
        inputs=600,
        bombs=lambda: [b"51004 ? " + bomb.replace(b"\n", b" ") for bomb in JSON_BOMBS],
    ),
    Decoder(
        "a member's term and vote", _votes, _read_vote, words=(b"currTerm=", b"voteLeader=", b"=", b"\n"), inputs=200
    ),
)
