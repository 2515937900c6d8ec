"""A broker's machine under a controller: the real `ControlledBroker` over a store on a disk that forgets (`controlled_world.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.settings import Configuration, ProcessSettings
from spark_mq.remoting_server.settings import ServerSettings
from storage import StoreConfig
from tests.ha.control import ADDRESS, CLUSTER, NAME, Control
from tests.ha.fibers import Fiber, driven
from tests.ha.network import World
from tests.ha.node import Died, MortalDisk, Node
from tests.support.crash_disk import Disk

if TYPE_CHECKING:
    from tests.ha.controlled_world import SimulatedBroker

PORT = 10_911


class Cut(NamedTuple):
    """One truncation."""

    end: int
    before: int
    """Where the log ended."""
    confirmed: int
    """How far it was confirmed as far as this node knew."""
    shown: int
    """How far readers saw it."""
    lost: list[int]
    """Where acknowledged puts begin that go with it."""


class DyingDisk(MortalDisk):
    """Tells when the process died in one of its operations."""

    is_dead = False
    changes = 0
    """How many operations there were."""

    def _keep(self, operation: Any) -> None:
        self.changes += 1
        if self.left is not None and self.left <= 0:
            self.is_dead = True
        super()._keep(operation)


class ControlledNode(Node):
    """`broker` is its process; None = it is down."""

    def __init__(
        self, world: World, directory: Path, number: int, config: StoreConfig, batch_bytes: int, control: Control
    ) -> None:
        super().__init__(world, directory, number, config, batch_bytes)
        self.control = control
        replication = replace(config.replication, ha_transfer_batch_size=batch_bytes)
        identity = replace(
            config.identity, broker_cluster_name=CLUSTER, broker_name=NAME, broker_ip1=self.host, listen_port=PORT
        )
        self.configuration = Configuration(
            replace(config, replication=replication, identity=identity),
            ProcessSettings(store_path_root_dir=str(self.root), controllers=ADDRESS),
            ServerSettings(bind_address=self.host, listen_port=PORT),
        )
        self.fibers: list[Fiber] = []
        self.cuts: list[Cut] = []
        self.lost_by_cut: Callable[[int], list[int]] = lambda end: []
        self.noted: BaseException | None = None
        """What one of its loops has met that nobody has declared."""
        self.told_confirmed = 0
        self.on_role: Callable[[], None] = lambda: None
        self.neighbour: Callable[[str], ControlledNode | None] = lambda address: None

    def _clear(self) -> None:
        super()._clear()
        self.broker: ControlledBroker | None = None
        self.running: SimulatedBroker | None = None
        self._is_stopping = False

    def _begin_with(self, disk: Disk | None) -> None:
        self.files: DyingDisk = DyingDisk(str(self.root), disk, self.boot)

    @property
    def is_dying(self) -> bool:
        return self.files.is_dead

    def fall(self) -> None:
        self.die(power_loss=self.world.random.random() < 0.5)

    @property
    def held_on_disk(self) -> int:
        """Behind the last byte of its log that is not 0."""
        return len(self.log(1 << 40).rstrip(b"\0"))

    @property
    def readable_end(self) -> int:
        """What lies behind is not confirmed, and in no queue."""
        return 0 if self.service is None else self.service.dispatched_end

    @property
    def is_master(self) -> bool:
        """Whether it takes itself for one, and takes puts."""
        return self.running is not None and self.running.role.is_master and self.service is not None

    @property
    def epoch(self) -> int:
        """Of the term in which it runs; 0 = none."""
        return 0 if self.running is None else self.running.role.term.epoch

    # Starting and ending

    def start(self, master: Node | None = None) -> None:
        """As whatever the controller says."""
        with self.at_work():
            self.is_up = True
            self.broker = driven(ControlledBroker.start(self.configuration))

    def die(self, *, power_loss: bool) -> None:
        if not self.is_up:
            return
        left = self._gone(power_loss=power_loss)
        if self.broker is not None and not power_loss:
            self.control.hang_up(self.broker._controllers._client.channel)  # type: ignore[attr-defined]
        for fiber in list(self.fibers):
            fiber.kill()
        self.fibers.clear()
        self._abandon()
        if power_loss:
            left = self._after_power_loss(left)
        self.told_confirmed = 0
        self._begin_with(left)

    def stop(self) -> None:
        """Ended in good order, some time from now."""
        broker = self.broker

        def work() -> None:
            if broker is not None and broker is self.broker:
                driven(broker.close())
                self._has_ended()

        if broker is not None and not self._is_stopping:
            self._is_stopping = True
            Fiber(self.world, self, work).later(0)

    def _has_ended(self) -> None:
        self.is_up = False
        self.world.forget(self)
        self._clear()

    # Its turns

    def _turn(self, at: int) -> None:
        if self._wakes_at != at:
            return
        if self.frozen_until > self.world.now_ms:
            self.world.after(self.frozen_until - self.world.now_ms, partial(self._turn, at))
            return
        self._wakes_at = None
        listener = self.listener
        if not self.is_up or listener is None:
            return
        with self.at_work():
            listener._turn()
            is_ready = listener._selector.select(0)
            self.wake_in(0 if is_ready else max(1, round(listener._patience_seconds() * 1_000)))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        try:
            with self.world.on(self):
                yield
        except Died:
            self.fall()

    @property
    def master_host(self) -> str | None:
        """Where it believes its master to be."""
        if self.running is None:
            return None
        return (self.running.role.term.master_address or "").rpartition(":")[0] or None
