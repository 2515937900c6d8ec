"""A life of a master and its slaves, by its seed: real sessions, listener, follower and stores; no threads, no sockets, no real time.

Puts and sinks' batches wait for copies; lines are late, cut, doubled, or dead without a word; strangers say anything; processes freeze
and are killed in the middle of an operation, machines lose their power, clocks jump. Where a master is gone, an operator does as the
documentation says: ends the followers, promotes the one with the longest log, makes the others anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from storage import StoreConfig
from storage.errors import ReplicasNotEnoughError
from storage.pending import PutStatus
from storage.service.put_service import PutService
from storage.settings.nouns import FlushConfig, ReplicationConfig, StoreModeConfig
from tests.ha.batches import Sink
from tests.ha.invariants import Put, Watch, judge_master, judge_outcome, require
from tests.ha.life import QUEUES, QUIET_MS, TOPICS, Life, quiet
from tests.ha.network import World, patched
from tests.ha.node import Node, WaitsFor
from tests.support.reproducible import reproducible


class Simulation(Life):
    """One life."""

    draws_queues_first = True
    refusals = ReplicasNotEnoughError

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random = Random(seed)
        self.world = World(random)
        self.counts = Counter[str]()
        self.is_synced = random.random() < 0.5
        self.watch = Watch(self.is_synced)
        count = random.choice((2, 3, 3))
        self.copies = random.choice((2, 2, count))
        self.is_acting = random.random() < 0.25
        tiny = StoreConfig.tiny()
        config = replace(
            tiny,
            flush=FlushConfig("SYNC_FLUSH") if self.is_synced else FlushConfig(),
            mode=StoreModeConfig(broker_role="SYNC_MASTER"),
            replication=ReplicationConfig(
                in_sync_replicas=self.copies, total_replicas=count, enable_slave_acting_master=self.is_acting
            ),
        )
        batch_bytes = random.choice((100, 700, 32_768))
        self.nodes = [Node(self.world, directory, number, config, batch_bytes) for number in range(1, count + 1)]
        cuts_anywhere = random.random() < 0.5
        for node in self.nodes:
            node.cuts_anywhere = cuts_anywhere
            node.on_death = partial(self._forget_puts, node)
        self.master = self.nodes[0]
        self.master.role = "master"
        self.deposed: set[Node] = set()
        self.unasked: set[Node] = set()
        """Slaves that were down when another one was promoted: they begin anew."""
        self.pending: list[Put] = []
        self.acknowledged: list[Put] = []
        self.late: list[Put] = []
        self.sink = Sink(TOPICS, QUEUES)
        self._judged: Hashable = None
        self._has_lost_power = False
        """Whether one has, under ASYNC_FLUSH."""
        self.generation_start = 0
        self.is_ending = False

    def run(self, steps: int) -> None:
        """So many steps, then quiet until all slaves have everything. Raises AssertionError."""
        with quiet(), reproducible(self.random), patched(self.world):
            try:
                for node in self.nodes:
                    node.start(self.master)
                self._act_later()
                for _ in range(steps):
                    self._step()
                self._come_to_rest()
            finally:
                self._end()

    def _step(self) -> None:
        self.world.step()
        self.counts["steps"] += 1
        self._settle_puts()
        self.watch.look(
            self.master if self.master.is_up else None,
            [one for one in self.nodes if one not in self.deposed | self.unasked],
        )
        self._judge_master()

    def _judge_master(self) -> None:
        """8, 9, 10 and 22 of who is master, where something has changed there."""
        master = self.master
        if not master.is_up or master.service is None:
            return
        judged = master.service, master.held_end, master.readable_end, len(self.acknowledged), len(self.sink.done)
        if judged != self._judged:
            self._judged = judged
            judge_master(master, self.acknowledged)
            may_lack = not self.is_synced and any(node.lost_power_ms is not None for node in self.nodes)
            self._has_lost_power = self._has_lost_power or may_lack
            self.sink.judge(master, may_lack=self._has_lost_power)

    def _actions(self) -> Sequence[tuple[Callable[[], None], int]]:
        return (
            (self._put, 44),
            (self._commit, 5),
            (self._do_duty, 10),
            (self._second_line, 8),
            (self._stranger, 4),
            (self._drop, 4),
            (self._partition, 3),
            (self._freeze, 2),
            (self._jump, 2),
            (self._kill, 4),
            (self._lose_power, 2),
            (self._black_out, 1),
            (self._cut_off, 2),
            (self._promote, 4),
        )

    # Puts

    def _writable(self) -> Node | None:
        """The master, or one that does not know yet that it is not."""
        node = self.random.choice([self.master, self.master, *self.deposed])
        is_able = node.is_up and node.service is not None and node.service.failure is None
        return node if is_able and node.frozen_until <= self.world.now_ms else None

    def _new_put(
        self, node: Node, start: int, data: bytes, places: Sequence[Any], waits_for: WaitsFor, *, is_new: bool
    ) -> Put:
        now_ms = self.world.now_ms
        deadline = now_ms + node.config.replication.slave_timeout
        return Put(node, start, data, places, waits_for, self.copies, now_ms, deadline, node in self.deposed)

    def _judge_put(self, put: Put, status: PutStatus) -> None:
        judge_outcome(put, status, self.nodes, is_synced=self.is_synced)
        (self.acknowledged if status is PutStatus.PUT_OK else self.late).append(put)

    def _committing(self) -> Node | None:
        node = self.master
        is_able = node.is_up and node.frozen_until <= self.world.now_ms and node.service is not None
        return node if is_able else None

    def _may_serve(self, node: Node, turn: Callable[[PutService], None]) -> bool:
        return node.follower is None or turn is PutService.queue_turn

    # What goes wrong beside the network

    def _kill(self) -> None:
        node = self.random.choice(self.nodes)
        if node.is_up:
            self._count("kills")
            if self.random.random() < 0.6:
                node.files.left = self.random.randrange(30)  # in the middle of something
            else:
                self._die(node, power_loss=False)
            self.world.after(self.random.choice((10, 1_000, 20_000)), partial(self._restart, node))

    def _lose_power(self) -> None:
        node = self.random.choice(self.nodes)
        if node.is_up:
            self._count("power losses")
            self._die(node, power_loss=True)
            self.world.after(self.random.choice((1_000, 40_000)), partial(self._restart, node))

    def _black_out(self) -> None:
        """All machines lose their power at once."""
        self._count("blackouts")
        for node in self.nodes:
            if node.is_up:
                self._die(node, power_loss=True)
                self.world.after(self.random.choice((1_000, 40_000)), partial(self._restart, node))

    def _cut_off(self) -> None:
        self._isolate(self.master, (node.host for node in self.nodes))

    def _die(self, node: Node, *, power_loss: bool) -> None:
        node.die(power_loss=power_loss)

    # The operator

    def _restart(self, node: Node) -> None:
        """Start what is down, in the role that it has by now."""
        if node.is_up:
            return
        if node in self.deposed or node in self.unasked:
            self._make_anew(node)
            return
        node.start(self.master)
        if not node.is_up:  # it has died again
            self.world.after(1_000, partial(self._restart, node))
            return
        lost, node.is_after_power_loss = node.is_after_power_loss, False
        if lost and not self.is_synced and node is self.master:
            self._go_on_with(node)

    def _go_on_with(self, node: Node) -> None:
        """A master under ASYNC_FLUSH that lost its power goes on with what it has: its slaves begin anew."""
        self._forgive(node)
        for slave in self.nodes:
            if slave is not node and slave not in self.deposed:
                self._make_anew(slave)
        self.generation_start = node.held_end

    def _forgive(self, node: Node) -> None:
        """Under ASYNC_FLUSH an acknowledgement promises nothing about power losses."""
        log = node.log(node.held_end)
        kept = [put for put in self.acknowledged if log[put.start : put.end] == put.data]
        self.counts["lost, not promised"] += len(self.acknowledged) - len(kept)
        self.acknowledged = kept

    def _make_anew(self, node: Node) -> None:
        self.deposed.discard(node)
        self.unasked.discard(node)
        node.wipe()
        node.start(self.master)
        self._count("made anew")

    @property
    def _is_established(self) -> bool:
        """Whether what the master began with has its copies."""
        holders = sum(node.is_up and node.checked_end >= self.generation_start for node in self.nodes)
        return holders >= self.copies

    def _promote(self) -> None:
        """Another master: the slave with the longest log, of so many that one of them holds all that was acknowledged."""
        old = self.master
        if old.is_up and (self.random.random() < 0.5 or not self._is_established):
            return
        slaves = [one for one in self.nodes if one is not old and one.is_up and one.follower is not None]
        slaves = [one for one in slaves if one.frozen_until <= self.world.now_ms and one not in self.unasked]
        if len(slaves) < len(self.nodes) - self.copies + 1 or not slaves:
            return
        if max(slave.checked_end for slave in slaves) < self.generation_start:
            return
        best = max(slaves, key=lambda slave: slave.checked_end)
        self._count("promotions")
        self.unasked |= {one for one in self.nodes if one is not old and one not in slaves and one not in self.deposed}
        for slave in slaves:
            slave.files.left = None
            slave.close()
        self.deposed.add(old)
        self.master = best
        best.promote()
        best.start(None)
        if not self.is_synced and any(node.lost_power_ms is not None for node in self.nodes):
            self._forgive(best)
        judge_master(best, self.acknowledged)
        self.generation_start = best.held_end
        for slave in slaves:
            if slave is not best:
                slave.start(best)
        for other in sorted(self.unasked | {old}, key=lambda node: node.number):
            self.world.after(self.random.choice((0, 5_000, 30_000)), partial(self._make_anew_if_left, other))

    def _make_anew_if_left(self, node: Node) -> None:
        if node in self.deposed or (node in self.unasked and node.is_up):
            self._make_anew(node)

    # The end

    def _come_to_rest(self) -> None:
        """Nothing goes wrong any more."""
        self.is_ending = True
        self.world.partitions.clear()
        for node in self.nodes:
            node.frozen_until = 0
            node.files.left = None
        for node in list(self.deposed | self.unasked):
            self._make_anew(node)
        self._restart(self.master)
        for node in self.nodes:
            self._restart(node)
            node.wake()
        end_ms = self.world.now_ms + QUIET_MS
        while not self._is_at_rest():
            if self.world.now_ms >= end_ms:
                break
            if self.counts["steps"] % 20 == 0 and self.is_synced:
                self.master.serve_turn(PutService.sync_turn)
            self._step()
        slaves = [node for node in self.nodes if node is not self.master]
        for slave in slaves:
            told = [refusal.reason for refusal in (self.master.listener.refusals if self.master.listener else ())]
            text = f"{slave.host} stands at {slave.checked_end} of {self.master.held_end}: {slave.trouble}, {told[-2:]}"
            require(slave.checked_end == self.master.held_end, 17, text)
        judge_master(self.master, self.acknowledged)
        self.sink.judge(self.master, may_lack=self._has_lost_power)
        log = self.master.log(self.master.held_end)
        self.counts["late, and there in the end"] += sum(log[put.start : put.end] == put.data for put in self.late)
        self.counts["checks"] = self.watch.checks

    def _is_at_rest(self) -> bool:
        end = self.master.held_end
        synced = self.master.service is None or self.master.service.dispatched_end == end
        return synced and not self.pending and all(node.is_up and node.checked_end == end for node in self.nodes)

    def _end(self) -> None:
        for node in self.nodes:
            with suppress(Exception):
                node.die(power_loss=True)
