"""What befalls brokers and their controller, and who starts them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from storage.format.replication import Dialect, SlaveHandshake
from tests.ha.control import HOST, Control
from tests.ha.controlled_node import ControlledNode
from tests.ha.peers import SecondLine, Stranger
from tests.ha.troubles import Troubles


class ControlledTroubles(Troubles):
    """The half of a life in which things go wrong."""

    nodes: Sequence[ControlledNode]
    control: Control

    @property
    def master(self) -> ControlledNode | None:  # type: ignore[override]
        """Who is, as the controller has said last."""
        raise NotImplementedError

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
