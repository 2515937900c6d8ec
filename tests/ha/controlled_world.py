"""The world in which controlled brokers live: their keeper, follower and copies as they run otherwise, in fibers (`fibers.py`).

What is left out of a running broker is what its clients see: puts go to its service.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import storage.ha.follower
import storage.ha.listener
import storage.recovery.opening
from spark_mq.broker_server import (
    controlled,
    controllers,
    following,
    opening,
    server,
    state_copies,
)
from spark_mq.broker_server.masters import MasterPlace
from spark_mq.broker_server.metrics_page import MetricsPage
from spark_mq.broker_server.opening import ControllerMode, GroupRole, serve_slaves
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import Configuration
from spark_mq.client.errors import BrokerUnreachableError
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.format.replication import SlaveHandshake
from storage.ha.epochs import FollowedEpochs
from storage.ha.follower import Follower, Switching
from storage.ha.listener import ReplicationListener
from storage.ha.sessions import CONNECT_TIMEOUT_MS, SlaveSession
from storage.service.put_service import PutService
from storage.store import MessageStore
from tests.ha.control import Control, ControlClient
from tests.ha.controlled_node import ControlledNode, Cut
from tests.ha.fibers import FiberEvent, FiberThread, Waiters, driven, sleep
from tests.ha.invariants import shown_end
from tests.ha.network import LineEnd, World
from tests.ha.node import UnwaitedService

T = TypeVar("T")


class SimulatedFollower(Follower):
    """Shows what it does."""

    node: ControlledNode

    def _session(self, end: int) -> SlaveSession:
        self.node.session = super()._session(end)
        return self.node.session

    def _converse(self, connection: Any, session: SlaveSession) -> str | None:
        self.node.connection = connection
        try:
            return super()._converse(connection, session)
        finally:
            if self.node.connection is connection:
                self.node.connection = self.node.session = None

    def _handle(self, connection: Any, session: SlaveSession, data: bytes) -> str | None:
        found = super()._handle(connection, session, data)
        if self._switching is not None:
            self.node.told_confirmed = self._switching.epochs.confirm_offset
        return found


class SimulatedMaster:
    """What a slave knows of its master, and asks it for."""

    def __init__(self, node: ControlledNode, nodes: Callable[[str], ControlledNode | None], address: str) -> None:
        self._node, self._nodes, self._address = node, nodes, address

    def place(self) -> MasterPlace:
        host, _, port = self._address.rpartition(":")
        return MasterPlace(self._address, f"{host}:{int(port) + 1}")

    def ha_address(self) -> str:
        return self.place().ha_address

    def bounds(self) -> tuple[int, int] | None:
        try:
            return self._asked(lambda master, service: (0, service.log_end))
        except BrokerUnreachableError:
            return None

    def record(self, commitlog_offset: int, topic: str) -> None:
        """Epochs say what both have."""

    def topics(self) -> None:
        """No topic is one of batch queues."""

    def state(self, name: str) -> str | None:
        """From the disk of who is there. Raises BrokerUnreachableError."""
        content = self._asked(lambda master, service: master.files.read_file(f"{master.root}/config/{name}"))
        return None if content is None else content.decode()

    def _asked(self, answer: Callable[[ControlledNode, PutService], T]) -> T:
        """Of who is there after a while, be it no master any more; heard after another one. Raises BrokerUnreachableError."""
        world, master = self._node.world, self._nodes(self._address)
        waiters = Waiters(world)
        waiters.wait(world.delay() + 1)
        is_there = master is not None and master.frozen_until <= world.now_ms
        is_blocked = master is not None and world.blocked_until(self._node.host, master.host) is not None
        if master is None or not is_there or is_blocked or master.service is None or master.service.is_closed:
            raise BrokerUnreachableError(self._address, "it is not reached")
        found = answer(master, master.service)
        waiters.wait(world.delay() + 1)
        return found


class SimulatedService(UnwaitedService):
    """What is confirmed becomes readable a little later, as by the duty's thread."""

    def __init__(self, store: MessageStore) -> None:
        self._node: ControlledNode = _acting()
        super().__init__(store, starts_duties=False)

    def on_confirmed(self, place: float) -> None:
        before = self._writer.confirmed and self._writer.confirmed.reached
        super().on_confirmed(place)
        if self._writer.confirmed is not None and before != place:
            self._node.world.after(self._node.world.random.choice((0, 0, 0, 1, 50)), self._confirm)

    def _confirm(self) -> None:
        node = self._node
        if node.service is not self or self.is_closed:
            return
        if node.frozen_until > node.world.now_ms:
            node.world.after(node.frozen_until - node.world.now_ms, self._confirm)
        else:
            node.serve_turn(PutService.confirm_turn)


class SimulatedBroker(RunningBroker):
    """A running broker without its clients. What it starts, keeps and closes is what the real one does."""

    def __init__(
        self,
        configuration: Configuration,
        service: PutService,
        mode: ControllerMode | None = None,
        member: GroupRole | None = None,
        clock: Callable[[], int] = current_time_ms,
        page: MetricsPage | None = None,
    ) -> None:
        assert mode is not None
        assert member is None
        assert page is None
        node: Any = _acting()
        nothing = SimpleNamespace(close=lambda *_: None, start=lambda: None, on_table_copied=lambda name: None)
        parts = SimpleNamespace(store=SimpleNamespace(config=configuration.store))
        self.node: ControlledNode = node
        self.role = mode.role
        self._configuration, self._service, self._mode, self._member = configuration, service, mode, member
        self._clock = clock
        self._stands_in = self._is_closing = False
        self.keeper = self._queues = self._page = None
        self.following = None
        self.replication = None
        self.group = None
        self._timer = None
        self._duties = self._registration = self._others = nothing  # type: ignore[assignment]
        self.broker = SimpleNamespace(close=nothing.close, on_table_copied=nothing.on_table_copied, parts=parts)  # type: ignore[assignment]
        self._batches = None
        self._remoting = SimpleNamespace(close=_nothing)  # type: ignore[assignment]
        if not mode.role.is_master:
            address = mode.role.term.master_address or ""
            switching = Switching(SlaveHandshake(mode.role.own_id), FollowedEpochs(mode.epochs), mode.diverged)
            master: Any = SimulatedMaster(node, node.neighbour, address)
            self.following = following.Following(service, self.broker, configuration, master, switching)
            self.following.follower.node = node  # type: ignore[attr-defined]

    async def _begin(self) -> None:
        node, mode = self.node, self._mode
        assert mode is not None
        listener = serve_slaves(self._service, self._configuration, mode.epochs)
        self.replication = SimpleNamespace(close=partial(self._stop_serving, listener))  # type: ignore[assignment]
        self._keep_in_sync(listener)
        node.service, node.listener, node.running = self._service, listener, self  # type: ignore[assignment]
        node.role = "master" if self.role.is_master else "slave"
        if self.following is not None:
            node.follower = self.following.follower
            self.following.start()
        node.on_role()
        node.wake()

    def _stop_serving(self, listener: ReplicationListener) -> None:
        self.node.listener = None
        listener.close()

    def _close_store(self) -> None:
        node = self.node
        try:
            super()._close_store()
        finally:
            node.service = node.follower = node.session = node.running = None


async def _nothing() -> None:
    """A server that is not there has nothing to close."""


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


async def _one_by_one(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    return [await each for each in work]


_world: list[World] = []


def _acting() -> Any:
    return _world[-1].acting


def _note(node: Any, error: BaseException | None) -> None:
    if node is not None and error is not None and node.noted is None:
        node.noted = error


@contextmanager
def fibers(world: World, control: Control) -> Iterator[None]:
    """Brokers live in this world, inside `network.patched`."""

    def files() -> Any:
        return _acting().files

    def thread(*args: Any, **named: Any) -> FiberThread:
        return FiberThread(world, *args, **named)

    def opened(*args: Any, **named: Any) -> Any:
        return open_store(*args, **{**named, "file_system": files(), "clock": _acting().clock})

    def truncated(root: str, end: int, **named: Any) -> Any:
        node = _acting()
        told = Cut(end, node.held_on_disk, node.told_confirmed, shown_end(node), node.lost_by_cut(end))
        found = truncate(root, end, **named, file_system=files())
        node.cuts.append(told)
        node.told_confirmed = 0
        return found

    def connected(address: tuple[str, int], timeout: float) -> LineEnd:
        node = _acting()
        if world.blocked_until(node.host, address[0]) is not None:
            sleep(world, CONNECT_TIMEOUT_MS / 1_000)
        line = world.connect(node, address[0])
        if line is None:
            raise ConnectionRefusedError(111, "nobody is there")
        line.readers = Waiters(world)
        return line

    class Log:
        """Keeps what a loop has swallowed."""

        def exception(self, *_: Any) -> None:
            _note(_acting(), sys.exc_info()[1])

        def info(self, *_: Any) -> None: ...

        warning = error = info

    truncate = storage.ha.follower.truncate_store
    looping = SimpleNamespace(
        get_running_loop=lambda: None,
        to_thread=_at_once,
        gather=_one_by_one,
        run_coroutine_threadsafe=lambda coroutine, loop: SimpleNamespace(result=partial(driven, coroutine)),
    )
    clock = SimpleNamespace(monotonic=lambda: world.steady_ms() / 1_000, sleep=partial(sleep, world))
    threads = SimpleNamespace(
        Thread=thread, Event=partial(FiberEvent, world), Condition=threading.Condition, Lock=threading.Lock
    )
    sockets = SimpleNamespace(create_connection=connected, IPPROTO_TCP=6, TCP_NODELAY=1)
    chance = SimpleNamespace(token_hex=lambda count: world.random.randbytes(count).hex())
    changes: tuple[tuple[Any, str, Any], ...] = (
        (controlled, "asyncio", looping),
        (controlled, "threading", threads),
        (controlled, "LocalFileSystem", files),
        (controlled, "RunningBroker", SimulatedBroker),
        (controlled, "truncate_store", truncated),
        (controlled, "current_time_ms", world.clock_ms),
        (controlled, "time", clock),
        (controlled, "_LOG", Log()),
        (controllers, "RemotingClient", lambda settings: ControlClient(control, _acting())),
        (controllers, "run", driven),
        (controllers, "current_time_ms", world.clock_ms),
        (server, "asyncio", looping),
        (opening, "open_store", opened),
        (opening, "PutService", SimulatedService),
        (server, "current_time_ms", world.clock_ms),
        (controllers, "threading", threads),
        (controllers, "steady_time_ms", world.steady_ms),
        (controllers, "time", clock),
        (controllers, "_LOG", Log()),
        (state_copies, "threading", threads),
        (state_copies, "time", clock),
        (following, "Follower", SimulatedFollower),
        (storage.ha.follower, "threading", threads),
        (storage.ha.follower, "socket", sockets),
        (storage.ha.follower, "open_store", opened_with(open_store)),
        (storage.recovery.opening, "secrets", chance),
        (ReplicationListener, "start", lambda listener: None),
    )
    _world.append(world)
    with ExitStack() as patches:
        for where, name, value in changes:
            patches.enter_context(mock.patch.object(where, name, value))
        try:
            yield
        finally:
            _world.pop()


def opened_with(open_it: Callable[..., Any]) -> Callable[..., Any]:
    """Opens with the clock of who opens."""
    return lambda *args, **named: open_it(*args, **{**named, "clock": _acting().clock})
