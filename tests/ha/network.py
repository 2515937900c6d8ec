"""Time, and a network without sockets: what is sent comes in pieces of any size, late, or never.

`World` has one queue of events; what happens at one moment happens in an order that follows from the seed. Listener and follower use
these lines as they use sockets (`patched`), and end a turn where they would wait.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import storage.ha.follower
import storage.ha.listener

WINDOW_BYTES = 16 << 10
"""What a line takes before somebody reads."""
READ, WRITE = 1, 2


class TurnOver(BaseException):
    """Who runs here would wait now."""


class Runs(Protocol):
    """A machine, as far as the network goes."""

    @property
    def host(self) -> str: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def clock_shift_ms(self) -> int: ...

    def wake(self) -> None: ...


class Waiting(Protocol):
    """Those that wait for something to happen (`fibers.Waiters`)."""

    def call(self) -> None: ...

    def wait(self, timeout_ms: int) -> None: ...


class World:
    """Time, chance, the network; who runs just now."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 1_800_000_000_000
        self.acting: Runs | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._ports = count(40_000)
        self.partitions: dict[frozenset[str], int] = {}
        """Which hosts do not reach each other, and until when."""
        self.servers: dict[str, ServerSocket] = {}
        self.lines: list[LineEnd] = []

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """It happens then."""
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), next(self._numbers), act))

    def step(self) -> None:
        """The next event."""
        at, _, act = heapq.heappop(self._events)
        self.now_ms = max(self.now_ms, at)
        act()

    def steady_ms(self) -> int:
        """A clock that nobody sets."""
        return self.now_ms

    def clock_ms(self) -> int:
        """The clock of the node that runs just now."""
        return self.now_ms + (0 if self.acting is None else self.acting.clock_shift_ms)

    @contextmanager
    def on(self, node: Runs) -> Iterator[None]:
        """What happens now happens there."""
        before, self.acting = self.acting, node
        try:
            yield
        finally:
            self.acting = before

    def delay(self) -> int:
        """Of one piece on its way, ms."""
        return self.random.choice((0, 0, 1, 1, 2, 5, 20, 150))

    def blocked_until(self, one: str, other: str) -> int | None:
        """When these hosts reach each other again; None = they do."""
        until = self.partitions.get(frozenset((one, other)), 0)
        return until if until > self.now_ms else None

    def connect(self, node: Runs, host: str, source: str | None = None) -> LineEnd | None:
        """A line to who listens there; None where nobody does, or nobody hears it."""
        server = self.servers.get(host)
        source = source or node.host
        if server is None or not server.owner.is_up or self.blocked_until(source, host):
            return None
        near, far = LineEnd(self, node, source, next(self._ports)), LineEnd(self, server.owner, host, 10_912)
        near.peer, far.peer = far, near
        self.lines += [near, far]
        server.pending.append(far)
        self.after(self.delay(), server.owner.wake)
        return near

    def forget(self, node: Runs) -> None:
        """The machine is down: nobody is told, and nothing of its lines is left."""
        self.servers.pop(node.host, None)
        for line in self.lines:
            if line.owner is node:
                line.is_gone = True
        self.lines = [line for line in self.lines if not (line.is_gone or line.is_closed)]


class LineEnd:
    """One end of a connection, as a socket."""

    peer: LineEnd

    def __init__(self, world: World, owner: Runs, host: str, port: int) -> None:
        self.world, self.owner = world, owner
        self.host, self.port = host, port
        self.arrived, self.on_the_way = bytearray(), bytearray()
        self.is_closed = self.is_gone = self.is_reset = self.has_ended = False
        self._ends_here = self._is_scheduled = False
        self._waits = True
        self.timeout_ms = 0
        self.readers: Waiting | None = None
        """How its owner waits; None = it ends its turn instead."""

    # As a socket

    def __enter__(self) -> LineEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setblocking(self, blocking: bool) -> None:
        self._waits = blocking

    def setsockopt(self, *option: int) -> None: ...

    def settimeout(self, seconds: float) -> None:
        self.timeout_ms = round(seconds * 1_000)

    def fileno(self) -> int:
        return -1

    def recv(self, most_bytes: int) -> bytes:
        if self.arrived:
            data = bytes(self.arrived[:most_bytes])
            del self.arrived[:most_bytes]
            return data
        if self.is_reset:
            raise ConnectionResetError(104, "the line is dead")
        if self.has_ended:
            return b""
        if self._waits and self.readers is None:
            raise TurnOver
        if self._waits and self.readers is not None:
            self.readers.wait(self.timeout_ms)
            if not self.is_readable:
                raise TimeoutError
            return self.recv(most_bytes)
        raise BlockingIOError(11, "nothing is there")

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        room = WINDOW_BYTES - len(self.on_the_way)
        if self.is_reset:
            raise BrokenPipeError(32, "the line is dead")
        if room <= 0:
            raise BlockingIOError(11, "it is full")
        return self._send(b"".join(buffers)[:room])

    def sendall(self, data: bytes) -> None:
        if self.is_reset:
            raise BrokenPipeError(32, "the line is dead")
        self._send(data)

    def _send(self, data: bytes) -> int:
        self.on_the_way += data
        self._schedule()
        return len(data)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = self._ends_here = True
            self._schedule()

    # On its way

    def _schedule(self, delay_ms: int | None = None) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.world.after(self.world.delay() if delay_ms is None else delay_ms, self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        world, peer = self.world, self.peer
        if (until := world.blocked_until(self.host, peer.host)) is not None:
            self._schedule(until - world.now_ms + world.delay())
            return
        if peer.is_gone or peer.is_closed:
            if peer.owner.is_up and not self.is_reset:
                self.reset()
            return
        if self.on_the_way:
            some = world.random.choice((len(self.on_the_way), world.random.randint(1, len(self.on_the_way)), 1))
            size = min(some if world.random.random() < 0.3 else len(self.on_the_way), len(self.on_the_way))
            peer.arrived += self.on_the_way[:size]
            del self.on_the_way[:size]
            if self.on_the_way and world.random.random() < 0.25:  # it breaks in the middle of what is on its way
                self.reset()
                peer.reset()
            elif self.on_the_way:
                self._schedule()
        if not self.on_the_way and self._ends_here:
            peer.has_ended = True
        peer.wake()
        if not self.is_gone:
            self.owner.wake()

    def wake(self) -> None:
        """Something has come."""
        if self.readers is not None:
            self.readers.call()
        self.owner.wake()

    def reset(self) -> None:
        """The line is dead, and this end hears of it."""
        self.is_reset = True
        self.on_the_way.clear()
        if not self.is_gone:
            self.wake()

    @property
    def is_readable(self) -> bool:
        return bool(self.arrived) or self.is_reset or self.has_ended

    @property
    def is_writable(self) -> bool:
        return self.is_reset or len(self.on_the_way) < WINDOW_BYTES


class ServerSocket:
    """Where slaves connect."""

    def __init__(self, world: World, owner: Runs) -> None:
        self.world, self.owner = world, owner
        self.pending: list[LineEnd] = []
        world.servers[owner.host] = self

    def setblocking(self, blocking: bool) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return self.owner.host, 10_912

    def accept(self) -> tuple[LineEnd, tuple[str, int]]:
        line = self.pending.pop(0)
        return line, (line.peer.host, line.peer.port)

    def close(self) -> None:
        self.world.servers.pop(self.owner.host, None)


class Waker:
    """A pair of sockets to oneself: a write there wakes the listener."""

    def __init__(self, owner: Runs) -> None:
        self._owner = owner

    def setblocking(self, blocking: bool) -> None: ...

    def send(self, data: bytes) -> int:
        self._owner.wake()
        return len(data)

    def recv(self, most_bytes: int) -> bytes:
        raise BlockingIOError(11, "nothing is there")

    def close(self) -> None: ...


class Selector:
    """Says what is ready, and never waits."""

    def __init__(self) -> None:
        self._registered: dict[Any, tuple[int, Any]] = {}

    def register(self, thing: Any, events: int, data: Any = None) -> None:
        self._registered[thing] = events, data

    modify = register

    def unregister(self, thing: Any) -> None:
        del self._registered[thing]

    def close(self) -> None:
        self._registered.clear()

    def select(self, timeout: float) -> list[tuple[SimpleNamespace, int]]:
        found = []
        for thing, (events, data) in self._registered.items():
            mask = 0
            if isinstance(thing, ServerSocket):
                mask = READ if thing.pending else 0
            elif isinstance(thing, LineEnd):
                mask = (READ if thing.is_readable else 0) | (events & WRITE if thing.is_writable else 0)
            if mask:
                found.append((SimpleNamespace(fileobj=thing, data=data), mask))
        return found


def _what_is_there(connection: LineEnd, most_bytes: int = 1 << 20) -> bytes:
    return connection.recv(most_bytes) if connection.arrived else b""


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Listener and follower live in this world."""

    class Thread:
        """Its work is done some time later."""

        def __init__(self, target: Callable[..., None], args: Sequence[Any] = (), **_: Any) -> None:
            self._target, self._args, self._owner = target, args, world.acting
            self.ident = None

        def start(self) -> None:
            owner = self._owner
            assert owner is not None

            def work() -> None:
                with world.on(owner):
                    self._target(*self._args)

            world.after(world.delay(), lambda: work() if owner.is_up else None)

    def create_server(*_: Any, **__: Any) -> ServerSocket:
        assert world.acting is not None
        return ServerSocket(world, world.acting)

    def socketpair() -> tuple[Waker, Waker]:
        assert world.acting is not None
        return Waker(world.acting), Waker(world.acting)

    sockets = SimpleNamespace(
        create_server=create_server, socketpair=socketpair, AF_INET=2, AF_INET6=10, IPPROTO_TCP=6, TCP_NODELAY=1
    )
    selecting = SimpleNamespace(EVENT_READ=READ, EVENT_WRITE=WRITE, DefaultSelector=Selector)
    listener, follower = storage.ha.listener, storage.ha.follower
    with (
        mock.patch.object(listener, "socket", sockets),
        mock.patch.object(listener, "selectors", selecting),
        mock.patch.object(listener, "threading", SimpleNamespace(Thread=Thread, Event=threading.Event)),
        mock.patch.object(listener, "current_time_ms", world.clock_ms),
        mock.patch.object(listener, "steady_time_ms", world.steady_ms),
        mock.patch.object(follower, "steady_time_ms", world.steady_ms),
        mock.patch.object(follower, "_what_is_there", _what_is_there),
    ):
        yield
