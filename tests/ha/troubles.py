"""What befalls lines, clocks and processes of a life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from tests.ha.network import World
from tests.ha.node import Node
from tests.ha.peers import SecondLine, Stranger


class Troubles:
    """The half of a life in which things go wrong that nobody has to repair."""

    random: Random
    world: World
    nodes: Sequence[Node]
    master: Node
    counts: Counter[str]

    def _count(self, what: str) -> None:
        self.counts[what] += 1

    def _second_line(self) -> None:
        slave = self.random.choice(self.nodes)
        if slave.is_up and slave.follower is not None and slave.checked_end and slave._master is self.master:
            SecondLine(self.world, slave, self.master.host)
            self._count("second connections")

    def _stranger(self) -> None:
        Stranger(self.world, self.master.host)
        self._count("strangers")

    def _drop(self) -> None:
        lines = [line for line in self.world.lines if not line.is_closed and not line.is_gone]
        if lines:
            line = self.random.choice(lines)
            line.reset()
            self.world.after(self.random.choice((0, 100, 30_000)), line.peer.reset)
            self._count("lines dropped")

    def _partition(self) -> None:
        one, other = self.random.sample(self.nodes, 2)
        until = self.world.now_ms + self.random.choice((50, 2_000, 15_000, 45_000))
        self.world.partitions[frozenset((one.host, other.host))] = until
        self._count("partitions")

    def _isolate(self, node: Node, others: Iterable[str]) -> None:
        """Nobody reaches it but its clients, and it reaches nobody."""
        until = self.world.now_ms + self.random.choice((2_000, 15_000, 30_000, 45_000))
        for host in others:
            if host != node.host:
                pair = frozenset((node.host, host))
                self.world.partitions[pair] = max(until, self.world.partitions.get(pair, 0))
        self._count("isolations")

    def _freeze(self) -> None:
        node = self.random.choice(self.nodes)
        node.frozen_until = self.world.now_ms + self.random.choice((100, 4_000, 30_000))
        self._count("freezes")

    def _jump(self) -> None:
        node = self.random.choice(self.nodes)
        node.clock_shift_ms += self.random.choice((-3_600_000, -10_000, 500, 10_000, 3_600_000))
        self._count("clock jumps")
