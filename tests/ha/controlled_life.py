"""A life of brokers and their controller, by its seed: what runs is what runs otherwise, without threads, sockets and real time.

Beside what befalls masters and slaves (`simulation.py`) a controller is killed, frozen and cut off, and begins anew from its journal;
masters are deposed while they live, by who does not reach them or by an operator; consumers go on meanwhile, and slaves copy that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from storage import StoreConfig
from storage.format.replication import Dialect, SlaveHandshake
from storage.pending import PutStatus
from storage.rules.put_guards import ALL_IN_SET
from storage.service.put_service import PutService
from storage.settings.nouns import FlushConfig, ReplicationConfig, StoreModeConfig
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from tests.ha.batches import Sink
from tests.ha.control import HOST, Control
from tests.ha.controlled_invariants import (
    ControlledWatch,
    acknowledged_beyond,
    judge_acknowledged,
    judge_late,
)
from tests.ha.controlled_node import ControlledNode
from tests.ha.controlled_world import fibers
from tests.ha.invariants import Put, compare_queues, entries_of, judge_master, require
from tests.ha.life import QUEUES, QUIET_MS, TOPICS, Life, quiet
from tests.ha.network import World, patched
from tests.ha.node import WaitsFor
from tests.ha.peers import SecondLine, Stranger
from tests.support.reproducible import reproducible


class ControlledLife(Life):
    """One life."""

    nodes: Sequence[ControlledNode]

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random = Random(seed)
        self.world = World(random)
        self.counts = Counter[str]()
        self.is_synced = random.random() < 0.6
        self.control = Control(self.world, directory, self._told)
        self.watch = ControlledWatch(self.is_synced, control=self.control)
        count = random.choice((2, 3, 3))
        config = self._config(count)
        batch_bytes = random.choice((100, 700, 32_768))
        self.nodes = [
            ControlledNode(self.world, directory, number, config, batch_bytes, self.control)
            for number in range(1, count + 1)
        ]
        for node in self.nodes:
            node.on_death = partial(self._forget_puts, node)
            node.on_role = partial(self._has_role, node)
            node.neighbour = self._at_address
            node.lost_by_cut = partial(acknowledged_beyond, node, acknowledged=())
        self.pending: list[Put] = []
        self.acknowledged: list[Put] = []
        self.begun: list[ControlledNode] = []
        for node in self.nodes:
            node.lost_by_cut = partial(acknowledged_beyond, node, acknowledged=self.acknowledged)
        self.sink = Sink(TOPICS, QUEUES)
        self._judged: Hashable = None
        self.is_ending = False

    def _config(self, count: int) -> StoreConfig:
        random = self.random
        return replace(
            StoreConfig.tiny(),
            flush=FlushConfig("SYNC_FLUSH") if self.is_synced else FlushConfig(),
            mode=StoreModeConfig(enable_controller_mode=True),
            replication=ReplicationConfig(
                in_sync_replicas=2,
                total_replicas=count,
                min_in_sync_replicas=random.choice((1, 1, 2)),
                all_ack_in_sync_state_set=True,
            ),
        )

    @property
    def master(self) -> ControlledNode | None:  # type: ignore[override]
        """Who is, as the controller has said last."""
        group = self.watch.group
        return None if group is None else self._at_address(group.master_address or "")

    def _at_address(self, address: str) -> ControlledNode | None:
        host = address.rpartition(":")[0]
        return next((node for node in self.nodes if node.host == host), None)

    def run(self, steps: int) -> None:
        """So many steps, then quiet until all brokers have everything. Raises AssertionError."""
        with (
            quiet("storage", "spark_mq"),
            reproducible(self.random),
            patched(self.world),
            fibers(self.world, self.control),
        ):
            try:
                self.control.start()
                for node in self.nodes:
                    self.world.after(self.random.choice((0, 0, 10, 3_000)), partial(self._restart, node))
                self._act_later()
                for _ in range(steps):
                    self._step()
                self._come_to_rest()
            finally:
                for node in self.nodes:
                    with suppress(Exception):
                        node.die(power_loss=True)

    def _step(self) -> None:
        self.world.step()
        self.counts["steps"] += 1
        if not self.is_synced and any(node.lost_power_ms is not None for node in self.nodes):
            self.watch.lost_power = True
        self._settle_puts()
        self.counts["lost, not promised"] += self.watch.look_at(self.nodes, self.acknowledged)
        while self.begun:
            node = self.begun.pop()
            if node.is_master:
                self._judge(node)
        self._judge_again()

    def _judge_again(self) -> None:
        """The elected one, where something has changed there."""
        master = self.master
        if master is None or master.service is None or not master.is_master or not self._is_elected(master):
            return
        judged = master.service, master.held_end, master.readable_end, len(self.acknowledged), len(self.sink.done)
        if judged != self._judged:
            self._judged = judged
            self._judge(master)
            self.sink.judge(master, may_lack=self.watch.lost_power)

    def _judge(self, node: ControlledNode) -> None:
        """Who has become master; or is it at the end."""
        if not self._is_elected(node):
            judge_master(node, ())
            return
        if self.watch.lost_power:
            kept = [put for put in self.acknowledged if self.watch.holds(node, put)]
            self.counts["lost, not promised"] += len(self.acknowledged) - len(kept)
            self.acknowledged[:] = kept
        judge_master(node, self.acknowledged)

    def _is_elected(self, node: ControlledNode) -> bool:
        group = self.watch.group
        return group is not None and self.master is node and group.master_epoch == node.epoch

    def _actions(self) -> Sequence[tuple[Callable[[], None], int]]:
        return (
            (self._put, 60),
            (self._commit, 6),
            (self._do_duty, 10),
            (self._consume, 6),
            (self._second_line, 3),
            (self._stranger, 2),
            (self._drop, 4),
            (self._partition, 7),
            (self._cut_off, 3),
            (self._freeze, 4),
            (self._jump, 2),
            (self._kill, 5),
            (self._lose_power, 3),
            (self._black_out, 1),
            (self._designate, 3),
            (self._stop, 2),
            (self._trouble_controller, 4),
        )

    # What happens by itself

    def _told(self, address: str) -> None:
        node = self._at_address(address)
        if node is not None and node.is_up and node.running is not None and node.broker is not None:
            node.broker.look()

    def _has_role(self, node: ControlledNode) -> None:
        self._count("masters" if node.is_master else "slaves")
        self.watch.begins(node)
        self.begun.append(node)

    # Puts

    def _writable(self) -> ControlledNode | None:
        able = [
            node
            for node in self.nodes
            if node.is_master
            and node.frozen_until <= self.world.now_ms
            and node.service is not None
            and node.service.failure is None
            and not node.service.is_closed
        ]
        return self.random.choice(able) if able else None

    def _new_put(
        self, node: ControlledNode, start: int, data: bytes, places: Sequence[Any], waits_for: WaitsFor, *, is_new: bool
    ) -> Put:
        now_ms = self.world.now_ms
        deadline = now_ms + node.config.replication.slave_timeout
        put = Put(node, start, data, places, waits_for, ALL_IN_SET, now_ms, deadline, epoch=node.epoch)
        if is_new:
            self.watch.puts.append(put)
        return put

    def _judge_put(self, put: Put, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            judge_late(put)
        elif judge_acknowledged(put, self.watch, self.nodes):
            self.counts["lost, not promised"] += 1
        else:
            self.acknowledged.append(put)

    def _may_serve(self, node: ControlledNode, turn: Callable[[PutService], None]) -> bool:
        is_open = node.service is not None and not node.service.is_closed
        return is_open and (node.is_master or turn is PutService.queue_turn)

    def _consume(self) -> None:
        """A group goes on, as its master knows it."""
        node = self._writable()
        if node is None:
            return
        with node.at_work():
            content = node.files.read_file(f"{node.root}/config/{OFFSETS_FILE}")
            table = ConsumerOffsets() if content is None else ConsumerOffsets.load(content.decode())
            key = self.random.choice(TOPICS), self.random.randrange(QUEUES)
            offset = (table.get(key[0], "readers", key[1]) or 0) + self.random.randrange(1, 5)
            assert node.service is not None
            offset = min(offset, len(entries_of(node).get(key, ())))  # nobody has read what is not readable
            if offset <= (table.get(key[0], "readers", key[1]) or 0):
                return
            changed = table.with_offsets("readers", {key: offset}, now_ms=node.clock())
            node.service.take_over(OFFSETS_FILE, changed.to_text())
            self._count("offsets")

    # The end

    def _come_to_rest(self) -> None:
        """Nothing goes wrong any more."""
        self.is_ending = True
        self.world.partitions.clear()
        self.control.files.left = None
        self._restart_controller()
        for node in self.nodes:
            node.frozen_until = 0
            node.files.left = None
        end_ms = self.world.now_ms + QUIET_MS
        while not self._is_at_rest():
            if self.world.now_ms >= end_ms:
                break
            if self.counts["steps"] % 20 == 0:
                for node in self.nodes:
                    self._look_after(node)
                    if node.is_master and self.is_synced:
                        node.serve_turn(PutService.sync_turn)
            self._step()
        master = self.master
        require(self._is_at_rest(), 17, "; ".join(map(self._told_of, self.nodes)) + f"; {self.watch.group}")
        assert master is not None
        self._judge(master)
        self.sink.judge(master, may_lack=self.watch.lost_power)
        for node in self.nodes:
            compare_queues(node, master)
            is_same = node.log(master.held_end) == master.log(master.held_end)
            require(is_same, 1, f"{node.host} has other bytes than its master in the end")
        self.counts["checks"] = self.watch.checks
        self.counts["epochs"] = len(self.watch.masters)

    def _look_after(self, node: ControlledNode) -> None:
        """As an operator: start brokers that are down, and begin anew with those whose log is not the master's."""
        status = None if node.follower is None else node.follower.status
        is_told = status is not None and status.trouble is not None and not status.is_connected
        if is_told and self.watch.lost_power and (status.is_hopeless or "another log" in status.trouble):
            self._count("made anew")
            node.wipe()
            self.watch.offsets.pop(node.number, None)
        self._restart(node)

    def _told_of(self, node: ControlledNode) -> str:
        status = None if node.follower is None else node.follower.status
        return f"{node.host} {node.epoch} {node.is_up} {node.is_master} {node.checked_end} of {node.held_end}: {status}"

    def _is_at_rest(self) -> bool:
        group, master = self.watch.group, self.master
        if group is None or master is None or not self._is_elected(master) or not master.is_master or self.pending:
            return False
        end = master.held_end
        return (
            master.service is not None
            and all(
                node.epoch == group.master_epoch and node.readable_end == node.checked_end == node.held_end == end
                for node in self.nodes
            )
            and len(group.sync_state_set) == len(self.nodes)
        )

    # What goes wrong

    def _second_line(self) -> None:
        slave = self.random.choice(self.nodes)
        host = slave.master_host
        if slave.is_up and slave.follower is not None and slave.running is not None and host is not None:
            is_itself = self.random.random() < 0.5
            identity = SlaveHandshake(slave.running.role.own_id if is_itself else 55, is_learner=not is_itself)
            SecondLine(self.world, slave, host, identity)
            self._count("second connections")

    def _stranger(self) -> None:
        node = self.random.choice(self.nodes)
        if node.listener is not None:
            Stranger(self.world, node.host, Dialect.CONTROLLER)
            self._count("strangers")

    def _partition(self) -> None:
        one, other = self.random.sample([HOST, *(node.host for node in self.nodes)], 2)
        until = self.world.now_ms + self.random.choice((50, 2_000, 15_000, 45_000))
        self.world.partitions[frozenset((one, other))] = until
        self._count("partitions")

    def _cut_off(self) -> None:
        """Most often the master: it goes on with who puts, and another one is elected."""
        node = self._who_matters()
        self._isolate(node, (HOST, *(other.host for other in self.nodes)))

    def _who_matters(self) -> ControlledNode:
        """A machine, more often than not the master's."""
        master = self.master
        return master if master is not None and self.random.random() < 0.5 else self.random.choice(self.nodes)

    def _kill(self) -> None:
        node = self.random.choice(self.nodes)
        if node.is_up:
            self._count("kills")
            if self.random.random() < 0.6:
                node.files.left = self.random.randrange(30)
            else:
                node.die(power_loss=False)
            self._restart_later(node)

    def _lose_power(self) -> None:
        self._lose_powers([self._who_matters()])

    def _black_out(self) -> None:
        """All machines lose their power at once, and the controller's may."""
        self._count("blackouts")
        self._lose_powers(self.nodes)
        if self.control.is_up and self.random.random() < 0.5:
            self.control.die(power_loss=True)
            self.world.after(self.random.choice((10, 1_000, 10_000)), self._restart_controller)

    def _lose_powers(self, nodes: Iterable[ControlledNode]) -> None:
        for node in nodes:
            if node.is_up:
                self._count("power losses")
                node.die(power_loss=True)
                self._restart_later(node)

    def _stop(self) -> None:
        node = self.random.choice(self.nodes)
        if node.is_up:
            self._count("stops")
            node.stop()
            self._restart_later(node)

    def _restart_later(self, node: ControlledNode) -> None:
        self.world.after(self.random.choice((10, 1_000, 5_000, 20_000)), partial(self._restart, node))

    def _restart(self, node: ControlledNode) -> None:
        if node.is_up:
            return
        node.start()
        if not node.is_up:
            self.world.after(1_000, partial(self._restart, node))

    def _designate(self) -> None:
        group = self.control.group
        if group is not None and self.control.designate(self.random.choice([*group.replicas, 1])):
            self._count("designated")

    def _trouble_controller(self) -> None:
        control, chance = self.control, self.random.random()
        if not control.is_up:
            return
        if chance < 0.3:
            self._count("controller frozen")
            control.freeze(self.random.choice((500, 4_000, 20_000)))
            return
        self._count("controller killed")
        if chance < 0.6:
            control.files.left = self.random.randrange(4)
        else:
            control.die(power_loss=chance < 0.8)
        self.world.after(self.random.choice((10, 1_000, 10_000)), self._restart_controller)

    def _restart_controller(self) -> None:
        if not self.control.is_up:
            self.control.start()
            if not self.control.is_up:
                self.world.after(1_000, self._restart_controller)
