"""A group of members in one process: a clock, a network that loses, repeats and reorders, and disks that forget what is not synced."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from spark_mq.dledger.member import Member
from spark_mq.dledger.messages import (
    CONVERSATIONS,
    AppendEntryResponse,
    DLedgerCode,
    DLedgerMessage,
    LeadershipTransferRequest,
    LedgerEntry,
)
from spark_mq.dledger.state import (
    Answer,
    Append,
    Ask,
    Committed,
    Cut,
    Diverged,
    DLedgerSettings,
    Effect,
    Order,
    Restart,
    Restored,
    Role,
    RoleChanged,
    SaveVote,
)
from spark_mq.remoting import read_body, write_body
from storage.format.dledger import Vote, decode_vote, encode_vote
from tests.dledger.invariants import Invariants, require

GROUP = "group"
FILE_BYTES = 2_048


@dataclass
class Pages:
    """The content of a disk: what is in the files, or what survives a power loss."""

    vote: Vote = field(default_factory=lambda: Vote(0, None))
    begin: int = 0
    entries: list[LedgerEntry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.entries) - 1

    def has(self, entry: LedgerEntry) -> bool:
        """Whether it is there, or was once and is trimmed."""
        at = entry.index - self.begin
        return at < 0 or (at < len(self.entries) and self.entries[at] == entry)

    def take(self, order: Order) -> None:
        if isinstance(order, SaveVote):
            self.vote = decode_vote(encode_vote(order.vote)) or self.vote
        elif isinstance(order, Append):
            if not self.entries:
                self.begin = order.entries[0].index
            require(order.entries[0].index == self.end + 1, 11, f"{order.entries[0].index} behind {self.end}")
            self.entries += order.entries
        elif isinstance(order, Cut):
            del self.entries[order.last_index - self.begin + 1 :]
        else:
            self.begin, self.entries = order.first.index, [order.first]

    def trim(self, begin: int) -> None:
        if self.begin < begin <= self.end:
            del self.entries[: begin - self.begin]
            self.begin = begin


class Disk:
    """One member's disk, and the `Ledger` that it reads."""

    def __init__(self) -> None:
        self.files, self.durable = Pages(), Pages()
        self.unsynced: list[Order] = []
        self.committed = -1
        """Of the checkpoint."""

    def entry(self, index: int) -> LedgerEntry:
        require(self.files.begin <= index <= self.files.end, 11, f"{index} of {self.files.begin}..{self.files.end}")
        return self.files.entries[index - self.files.begin]

    def write(self, order: Order) -> None:
        if isinstance(order, Restart):
            self.committed = -1  # it must not vouch for entries that a crash amid it takes away
        self.files.take(order)
        self.unsynced.append(order)

    def save_committed(self, index: int) -> None:
        """Write the checkpoint."""
        self.committed = index

    def sync(self, number: int) -> None:
        """All orders up to this one."""
        while self.unsynced and self.unsynced[0].number <= number:
            self.durable.take(self.unsynced.pop(0))

    def lose_power(self, random: Random) -> None:
        """Of what is not synced the first orders are on the disk, as many as luck has it; amid a restart there may be no log."""
        kept = random.randint(0, len(self.unsynced))
        is_amid = any(isinstance(each, Restart) for each in self.unsynced[kept : kept + 1])
        if kept:
            self.sync(self.unsynced[kept - 1].number)
        if is_amid and random.random() < 0.5:
            self.durable = Pages(self.durable.vote)
        self.unsynced.clear()
        self.files = Pages(self.durable.vote, self.durable.begin, list(self.durable.entries))

    def restored(self) -> Restored:
        """What an owner finds, and syncs before it goes on."""
        if self.unsynced:
            self.sync(self.unsynced[-1].number)
        files, last = self.files, self.files.entries[-1] if self.files.entries else None
        if last is None:
            return Restored(files.vote)
        end = last.place + last.size_bytes
        return Restored(files.vote, files.begin, files.end, last.term, end, min(self.committed, files.end))

    def stop(self) -> None:
        """The process has ended."""

    def trim(self, begin: int) -> int:
        """Delete the entries before this one, or some of them; the log's new begin."""
        self.files.trim(begin)
        self.durable.trim(begin)
        return self.files.begin


class Token(NamedTuple):
    """Who asks, in which of its lives, and by which call."""

    source: str
    life: int
    call: int
    target: str


class Node:
    """One member with its disk, alive or not."""

    def __init__(self, world: World, settings: DLedgerSettings) -> None:
        self.world, self.settings, self.name = world, settings, settings.self_id
        self.disk = world.make_disk(settings.self_id)
        self.member: Member | None = None
        self.life = 0
        self.sync_ms = (1, 8)
        self._is_syncing = False
        self._due_ms = 1 << 62

    def start(self) -> None:
        if self.member is None:
            self.life += 1
            self._is_syncing, self._due_ms = False, 1 << 62
            world = self.world
            seed = Random(world.random.getrandbits(40))
            self.member = Member(self.settings, self.disk, self.disk.restored(), seed, world.now_ms)
            world.invariants.started(self)
            self.run(self.member.tick(world.now_ms))

    def stop(self, *, power: bool) -> None:
        if self.member is not None:
            self.member = None
            self.disk.stop()
            if power:
                self.disk.lose_power(self.world.random)

    @property
    def leads(self) -> bool:
        return self.member is not None and self.member.state.is_leader

    @property
    def committed(self) -> int:
        """Up to where it knows entries as committed."""
        return -1 if self.member is None else self.member.state.committed_index

    def run(self, effects: list[Effect]) -> None:
        """Carry out what a call returned."""
        world = self.world
        for each in effects:
            if isinstance(each, Ask):
                world.invariants.said(self, each.body)
                world.send(self, each)
            elif isinstance(each, Answer):
                world.answer(self, each)
            elif isinstance(each, Committed):
                world.invariants.committed(self, each.last_index)
            elif isinstance(each, RoleChanged):
                world.invariants.changed_role(self, each)
                if each.role is Role.LEADER:
                    pause_ms = world.first_ms or world.random.choice((0, 0, 50, 4_000))
                    world.after(pause_ms, partial(self.propose, [b""], self.life))
            elif isinstance(each, Diverged):
                require(False, 8, f"{self.name} was to replace {each.entry_index}, which it knows as committed")
            else:
                world.invariants.ordered(self, each)
                self.disk.write(each)
        self._after()

    def _after(self) -> None:
        member, world = self.member, self.world
        if member is None:
            return
        if self.disk.unsynced and not self._is_syncing:
            self._is_syncing = True
            number, life = self.disk.unsynced[-1].number, self.life
            world.after(world.random.randint(*self.sync_ms), partial(self._synced, number, life))
        due = member.deadline_ms
        if due < self._due_ms:
            self._due_ms = due
            world.after(max(due - world.now_ms, 1), partial(self._tick, self.life))

    def _synced(self, number: int, life: int) -> None:
        if self.member is not None and life == self.life:
            self._is_syncing = False
            self.disk.sync(number)
            self.disk.save_committed(self.member.state.durable_committed_index)
            self.run(self.member.synced(number, self.world.now_ms))

    def _tick(self, life: int) -> None:
        if self.member is not None and life == self.life:
            self._due_ms = 1 << 62
            self.run(self.member.tick(self.world.now_ms))

    def handle(self, token: Token, request: DLedgerMessage) -> None:
        if self.member is not None:
            self.run(self.member.handle(token, request, self.world.now_ms))

    def answered(self, life: int, call: int, peer: str, answer: DLedgerMessage | None) -> None:
        if self.member is not None and life == self.life:
            if answer is not None:
                self.world.invariants.heard(self, peer)
            self.run(self.member.answered(call, answer, self.world.now_ms))

    def propose(self, bodies: list[bytes], life: int | None = None) -> None:
        if self.member is not None and life in (None, self.life):
            token = next(self.world.tokens)
            made, effects = self.member.propose(token, bodies, self.world.now_ms)
            self.world.counts[f"proposed: {made.code.name}"] += 1
            if made.code is DLedgerCode.SUCCESS:
                self.world.proposed[token] = made.entries
            self.run(effects)

    def hand_over(self, to: str) -> None:
        if self.member is not None:
            request = LeadershipTransferRequest(
                group=GROUP, remote_id=self.name, term=self.member.state.term, transfer_id=self.name, transferee_id=to
            )
            self.run(self.member.handle("operator", request, self.world.now_ms))

    def trim(self, begin: int) -> None:
        """Delete old entries, of those that are committed and durable."""
        disk = self.disk
        if (
            self.member is not None
            and not disk.unsynced
            and disk.files.begin < begin <= min(disk.committed, self.member.state.committed_index)
        ):
            self.member.trimmed(disk.trim(begin))
            self.world.counts["trimmed"] += 1


class World:
    """Everything that happens follows from the random numbers."""

    def __init__(
        self,
        random: Random,
        size: int,
        settings: dict[str, object],
        make_disk: Callable[[str], Disk] = lambda name: Disk(),
    ) -> None:
        self.random = random
        self.make_disk = make_disk
        self.now_ms = 1_000
        self.counts: Counter[str] = Counter()
        self.tokens = count()
        self.proposed: dict[int, tuple[LedgerEntry, ...]] = {}
        self.invariants = Invariants(self)
        self.loss, self.repeat, self.slow = 0.0, 0.0, 0.0
        self.first_ms = 0
        """How long a new leader waits with its first entry; 0 = as luck has it."""
        self.cut_off: set[tuple[str, str]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        peers = {f"n{at}": f"127.0.0.1:{9000 + at}" for at in range(size)}
        made = [
            DLedgerSettings(group=GROUP, self_id=name, peers=peers, file_size_bytes=FILE_BYTES, **settings)  # type: ignore[arg-type]
            for name in peers
        ]
        self.nodes = {each.self_id: Node(self, each) for each in made}
        self.quorum = made[0].quorum
        self.leak_ms = made[0].heartbeat_ms * made[0].heartbeat_leak

    def after(self, ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + ms, next(self._numbers), call))

    def run_for(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._events)
            call()
            self.counts["events"] += 1
        self.now_ms = end_ms
        self.invariants.look()

    def send(self, node: Node, asked: Ask) -> None:
        token = Token(node.name, node.life, asked.call, asked.peer)
        body = asked.body
        if self.random.random() < 0.05:
            body = read_body(CONVERSATIONS[asked.code].request, write_body(body))
            require(body == asked.body, 11, f"{asked.body} is read as {body}")
        target = self.nodes[asked.peer]
        self._carry(node.name, asked.peer, partial(target.handle, token, body))
        self.after(asked.timeout_ms, partial(node.answered, node.life, asked.call, asked.peer, None))

    def answer(self, node: Node, answer: Answer) -> None:
        token = answer.token
        if isinstance(token, Token):
            self.invariants.answered(node, token, answer.body)
            source = self.nodes[token.source]
            self._carry(
                node.name, token.source, partial(source.answered, token.life, token.call, node.name, answer.body)
            )
        elif isinstance(token, int) and isinstance(answer.body, AppendEntryResponse):
            code = DLedgerCode(answer.body.code)
            self.counts[f"answered: {code.name}"] += 1
            entries = self.proposed.pop(token)
            if code is DLedgerCode.SUCCESS:
                self.invariants.acknowledged(entries)
        else:
            self.counts[f"handed over: {DLedgerCode(answer.body.code).name}"] += 1

    def _carry(self, source: str, target: str, call: Callable[[], None]) -> None:
        """Over the network: maybe late, maybe twice, maybe never."""
        random = self.random
        if (source, target) in self.cut_off or random.random() < self.loss:
            self.counts["lost"] += 1
            return
        for _ in range(1 + (random.random() < self.repeat)):
            most_ms = 8_000 if random.random() < self.slow else 15
            self.after(random.randint(1, most_ms), call)
