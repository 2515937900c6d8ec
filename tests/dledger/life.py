"""A life of a group: clients, crashes, power losses, partitions, and at the end a time when all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import NamedTuple

from spark_mq.dledger.election import CALL_TIMEOUT_MS
from tests.dledger.invariants import BrokenError, require
from tests.dledger.world import Disk, Node, World

STEPS = 40
QUIET_MS = 120_000
SIZES = (3, 3, 3, 3, 3, 3, 5, 2, 4, 1)


class Life:
    """One life; everything in it follows from its seed."""

    def __init__(self, seed: int, make_disk: Callable[[str], Disk] = lambda name: Disk()) -> None:
        self.random = random = Random(seed)
        size = random.choice(SIZES)
        settings: dict[str, object] = {}
        if random.random() < 0.4:
            settings["batch_push_bytes"] = 300
        if random.random() < 0.2:
            settings["preferred_leaders"] = tuple(random.sample([f"n{at}" for at in range(size)], min(size, 2)))
        self.world = World(random, size, settings, make_disk)
        self.nodes = list(self.world.nodes.values())
        self._written = 0
        self._trims = random.random() < 0.2
        self._plot = {9: self._duel, 18: self._hand_over_late, 19: self._duel}.get(seed % 20)
        """What happens in each step, in place of what luck brings."""
        if self._plot == self._duel:
            self.world.first_ms = random.choice((50, 6_000))

    def run(self, steps: int) -> None:
        world, random = self.world, self.random
        if random.random() < 0.7 and self._plot is None:
            world.loss, world.repeat = random.choice((0, 0.02, 0.2)), random.choice((0, 0.05, 0.3))
            world.slow = random.choice((0, 0.02, 0.2))
        for node in self.nodes:
            node.sync_ms = random.choice(((1, 8), (1, 8), (20, 300), (1, 2_000)))
            node.start()
        for _ in range(steps):
            if self._plot is not None:
                self._plot()
                continue
            self._step()
            for _ in range(random.randrange(4)):
                self._write()
            world.run_for(random.choice((10, 50, 200, 1_000, 3_000)))
        self._come_to_rest()

    def _write(self) -> None:
        leaders = [node for node in self.nodes if node.leads]
        node = self.random.choice(leaders or self.nodes)
        bodies = []
        for _ in range(self.random.choice((1, 1, 1, 3, 12))):
            self._written += 1
            bodies.append(b"%d:" % self._written + b"x" * self.random.randrange(120))
        node.propose(bodies)

    def _step(self) -> None:
        world, random = self.world, self.random
        node = self._any()
        luck = random.random()
        if luck < 0.14:
            node.stop(power=True)
            world.counts["power lost"] += 1
        elif luck < 0.2:
            node.stop(power=False)
            world.counts["kills"] += 1
        elif luck < 0.23:
            for each in random.sample(self.nodes, min(2, len(self.nodes))):
                each.stop(power=True)
            world.counts["power lost of two"] += 1
        elif luck < 0.25:
            for each in self.nodes:
                each.stop(power=True)
            world.counts["power lost of all"] += 1
        elif luck < 0.37:
            self._part(node)
        elif luck < 0.4:
            world.cut_off.add((node.name, random.choice(self.nodes).name))
        elif luck < 0.55:
            world.cut_off.clear()
        elif luck < 0.6:
            node.hand_over(random.choice(self.nodes).name)
        elif luck < 0.65 and self._trims:
            node.trim(random.randint(node.disk.files.begin, max(node.disk.files.begin, node.committed)))
        if random.random() < 0.5:
            for each in self.nodes:
                if random.random() < 0.7:
                    each.start()

    def _duel(self) -> None:
        """A leader writes what only it has, and goes; one that went so before comes back."""
        world, random = self.world, self.random
        for _ in range(30):
            if any(node.leads for node in self.nodes):
                break
            world.run_for(500)
        else:
            for each in self.nodes:
                each.start()
            return
        world.run_for(random.choice((10, 100, 1_000)))
        node = [node for node in self.nodes if node.leads][-1:]
        for each in node:
            self._part(each, alone=True)
            each.propose([b"only here"] * random.choice((1, 1, 4)))
            world.run_for(random.choice((10, 400)))
            each.stop(power=False)
            world.cut_off.clear()
        for each in self.nodes:
            if each not in node:
                each.start()

    def _hand_over_late(self) -> None:
        """A member takes over when the leader has given that up and has gone on: its term is higher, its log ends before."""
        world, random = self.world, self.random
        world.run_for(random.choice((100, 3_000)))
        leader, other = next((node for node in self.nodes if node.leads), None), random.choice(self.nodes)
        if leader is None:
            return
        world.slow = 1
        leader.hand_over(other.name)
        world.slow = 0
        world.run_for(CALL_TIMEOUT_MS)
        world.cut_off.add((leader.name, other.name))
        self._write()
        world.run_for(random.choice((500, 2_000)))
        world.cut_off.clear()

    def _any(self) -> Node:
        """Any node, and a leader rather than another."""
        leaders = [node for node in self.nodes if node.leads]
        return self.random.choice(leaders if leaders and self.random.random() < 0.5 else self.nodes)

    def _part(self, node: Node, *, alone: bool = False) -> None:
        """A member alone, or with one other, on its side; or two do not hear each other, and a third hears both."""
        self.world.counts["partitions"] += 1
        side = {node.name}
        if not alone and self.random.random() < 0.25:
            other = self.random.choice(self.nodes).name
            self.world.cut_off |= {(node.name, other), (other, node.name)}
            return
        if not alone and self.random.random() < 0.3:
            side.add(self.random.choice(self.nodes).name)
        names = {each.name for each in self.nodes}
        self.world.cut_off |= {pair for one in side for other in names - side for pair in ((one, other), (other, one))}

    def _come_to_rest(self) -> None:
        world = self.world
        world.loss = world.repeat = world.slow = 0.0
        world.cut_off.clear()
        for node in self.nodes:
            node.sync_ms = (1, 8)
            node.start()
        acknowledged = world.invariants.acknowledged_count
        end_ms = world.now_ms + QUIET_MS
        while not self._is_at_rest(acknowledged) and world.now_ms < end_ms:
            leaders = [node for node in self.nodes if node.leads]
            if leaders and world.invariants.acknowledged_count == acknowledged:
                leaders[0].propose([b"the last one"])
            world.run_for(500)
        world.counts["ms to rest"] += QUIET_MS - (end_ms - world.now_ms)
        ends = [(node.leads, node.disk.files.begin, node.disk.files.end, node.committed) for node in self.nodes]
        require(self._is_at_rest(acknowledged), 10, f"leads, begin, end, committed: {ends}")
        for node in self.nodes:
            for entry in world.invariants.agreed.values():
                require(node.disk.files.has(entry), 7, f"{node.name} lacks {entry} in the end")
        world.counts["acknowledged"] += world.invariants.acknowledged_count

    def _is_at_rest(self, acknowledged: int) -> bool:
        disks = [node.disk for node in self.nodes]
        ends = {(node.disk.files.end, node.committed) for node in self.nodes}
        is_one = len(ends) == 1 and all(end == committed for end, committed in ends)
        return (
            is_one
            and sum(node.leads for node in self.nodes) == 1
            and self.world.invariants.acknowledged_count > acknowledged
            and not any(disk.unsynced for disk in disks)
        )


class Found(NamedTuple):
    """What lives showed."""

    counts: Counter[str]
    failures: list[str]
    broken: list[int]
    """The invariants, in the order of the failures; 0 is another error."""


def lived(
    seeds: Iterable[int], steps: int = STEPS, make_disk: Callable[[int, str], Disk] = lambda seed, name: Disk()
) -> Found:
    """Some lives, each by its seed."""
    found = Found(Counter(), [], [])
    for seed in seeds:
        life = Life(seed, partial(make_disk, seed))
        try:
            life.run(steps)
        except BrokenError as error:
            found.failures.append(f"seed {seed}, {len(life.nodes)} members, {life.world.now_ms} ms: {error}")
            found.broken.append(error.number)
        except Exception as error:  # a fault may show as any
            found.failures.append(f"seed {seed}, {len(life.nodes)} members: {error!r}")
            found.broken.append(0)
        found.counts["lives"] += 1
        found.counts.update(life.world.counts)
    return found
