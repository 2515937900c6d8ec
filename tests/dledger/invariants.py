"""What holds in every life of a group. A broken one raises `BrokenError` with its number.

1   a term has one leader, and is led once
2   a member votes once in a term
3   a term, a vote, or an entry is durable before it is said
4   two logs that have an entry of one index and term are equal up to it
5   what is committed at an index is the same entry everywhere and for ever
6   an acknowledged entry is durable on a majority of the disks at that moment
7   an elected leader has everything that was ever committed or acknowledged
8   what a member knows as committed is never cut, nor replaced
9   a leader that no majority answers steps down
10  when all is well again, there is a leader, entries are acknowledged, and all logs are equal
11  the log has no gap, and what is sent is read as it was
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_mq.dledger.messages import (
    DLedgerCode,
    DLedgerMessage,
    LedgerEntry,
    PushEntryResponse,
    VoteResponse,
    VoteResult,
)
from spark_mq.dledger.state import Append, Cut, Order, Restart, Role, RoleChanged

if TYPE_CHECKING:
    from tests.dledger.world import Node, Token, World


class BrokenError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def require(holds: bool, number: int, text: str) -> None:
    if not holds:
        raise BrokenError(number, text)


class Invariants:
    """Sees all that members say and order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._made: dict[tuple[int, int], tuple[LedgerEntry, int]] = {}
        self.agreed: dict[int, LedgerEntry] = {}
        self._known: dict[str, int] = {}
        self._heard: dict[tuple[str, str], int] = {}
        self._led_since: dict[str, int] = {}
        self.acknowledged_count = 0

    def started(self, node: Node) -> None:
        self._known[node.name] = -1
        self._led_since.pop(node.name, None)

    def said(self, node: Node, body: DLedgerMessage) -> None:
        durable = node.disk.durable.vote.term
        require(body.term <= durable or body.term == 0, 3, f"{node.name} says term {body.term}, its disk {durable}")

    def changed_role(self, node: Node, change: RoleChanged) -> None:
        self._led_since.pop(node.name, None)
        if change.role is not Role.LEADER:
            return
        other = self._leaders.setdefault(change.term, f"{node.name} in its life {node.life}")
        require(other == f"{node.name} in its life {node.life}", 1, f"{other} led term {change.term}, now {node.name}")
        self._leaders[change.term] += ", before"
        self._led_since[node.name] = self._world.now_ms
        self._world.counts["elections"] += 1
        for entry in self.agreed.values():
            require(node.disk.files.has(entry), 7, f"{node.name} leads in {change.term} without {entry}")

    def ordered(self, node: Node, order: Order) -> None:
        if isinstance(order, Append):
            before = node.disk.files.entries[-1].term if node.disk.files.entries else -1
            for entry in order.entries:
                known, term = self._made.setdefault((entry.index, entry.term), (entry, before))
                require(known == entry, 4, f"{node.name} has {entry}, another member {known}")
                require(term == before or entry.index == node.disk.files.begin, 4, f"before {entry}: {before}, {term}")
                before = entry.term
        elif isinstance(order, Cut):
            self._world.counts["cuts"] += 1
            require(order.last_index >= self._known[node.name], 8, f"{node.name} cuts behind {order.last_index}")
        elif isinstance(order, Restart):
            self._world.counts["restarts of a log"] += 1
            require(order.first.index > self._known[node.name], 8, f"{node.name} begins with {order.first}")

    def committed(self, node: Node, index: int) -> None:
        files = node.disk.files
        require(index <= files.end, 11, f"{node.name} commits {index} of {files.end}")
        for at in range(max(self._known[node.name] + 1, files.begin), index + 1):
            self._agree(files.entries[at - files.begin])
        self._known[node.name] = index

    def _agree(self, entry: LedgerEntry) -> None:
        known = self.agreed.setdefault(entry.index, entry)
        require(known == entry, 5, f"committed: {known} and {entry}")

    def acknowledged(self, entries: Sequence[LedgerEntry]) -> None:
        for entry in entries:
            holders = sum(node.disk.durable.has(entry) for node in self._world.nodes.values())
            require(holders >= self._world.quorum, 6, f"{entry} is acknowledged, and durable on {holders}")
            self._agree(entry)
            self.acknowledged_count += 1

    def answered(self, node: Node, token: Token, body: DLedgerMessage) -> None:
        """A member's answer to another."""
        durable = node.disk.durable
        if isinstance(body, VoteResponse) and body.vote_result == VoteResult.ACCEPT:
            vote, term = durable.vote, body.term
            known = self._votes.setdefault((node.name, term), token.source)
            require(known == token.source, 2, f"{node.name} votes in {term} for {known} and {token.source}")
            is_durable = vote.term > term or (vote.term == term and vote.voted_for == token.source)
            require(is_durable, 3, f"{node.name} votes for {token.source} in {term}, its disk says {vote}")
        elif isinstance(body, PushEntryResponse) and body.code == DLedgerCode.SUCCESS and body.index is not None:
            last = body.index + max(body.count, 1) - 1
            # Of a later term something else may stand there.
            if node.disk.files.vote.term == body.term:
                require(durable.end >= last, 3, f"{node.name} has {last}, its disk {durable.end}")
        elif not isinstance(body, PushEntryResponse):
            self.said(node, body)

    def heard(self, node: Node, peer: str) -> None:
        """An answer of the peer has come."""
        self._heard[(node.name, peer)] = self._world.now_ms

    def look(self) -> None:
        """A leader has been answered by a majority not long ago."""
        world = self._world
        for node in world.nodes.values():
            if not node.leads:
                continue
            since = self._led_since.get(node.name, world.now_ms)
            heard = [max(self._heard.get((node.name, peer), since), since) for peer in node.settings.others]
            if heard:
                last = sorted(heard, reverse=True)[world.quorum - 2]
                require(world.now_ms - last <= world.leak_ms + 3_500, 9, f"{node.name} leads, unheard since {last}")
