"""Threads of a simulated process: one runs at a time, and who waits for anything gives the turn back to the world.

What is played with them is the engine's own loops: their threads, events and sleeps are these (`FIBERS`), as long as `fibers` lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from tests.ha.network import Runs, World

T = TypeVar("T")


class Ended(BaseException):
    """The process of this fiber is dead."""


class HasFibers(Runs, Protocol):
    """A machine whose process runs in fibers."""

    fibers: list[Fiber]
    frozen_until: int

    @property
    def is_dying(self) -> bool: ...

    def fall(self) -> None:
        """It has died in the middle of something."""


class Fiber:
    """One thread of a machine's process. All but `pause` is for the world's own thread."""

    def __init__(self, world: World, owner: HasFibers, work: Callable[[], None]) -> None:
        self._world, self.owner, self._work = world, owner, work
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._turn = 0
        self.is_over = self.is_killed = False
        self.ended = Waiters(world)
        owner.fibers.append(self)

    def later(self, delay_ms: int) -> None:
        """Its next turn, unless it gets one before."""
        self._world.after(delay_ms, partial(self._resume_if, self._turn))

    def _resume_if(self, turn: int) -> None:
        if self._turn != turn or self.is_over or self.is_killed:
            return
        if self.owner.frozen_until > self._world.now_ms:
            self._world.after(self.owner.frozen_until - self._world.now_ms, partial(self._resume_if, turn))
        else:
            self._resume()

    def _resume(self) -> None:
        self._turn += 1
        world, before = self._world, (self._world.acting, current.fiber)
        world.acting, current.fiber = self.owner, self
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        world.acting, current.fiber = before
        if self.is_over:
            self.ended.call()
            if self in self.owner.fibers:
                self.owner.fibers.remove(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.owner.is_dying and not self.is_killed:
            self.owner.fall()

    def _run(self) -> None:
        try:
            self._work()
        except Ended:
            pass
        except BaseException as error:
            if not self.owner.is_dying:
                self._error = error
        finally:
            self.is_over = True
            self._back.release()

    def pause(self) -> None:
        """Until its next turn. Of the fiber itself."""
        if self.owner.is_dying or self.is_killed:
            raise Ended
        self._back.release()
        self._go.acquire()
        if self.is_killed or self.owner.is_dying:
            raise Ended

    def kill(self) -> None:
        """It does nothing more."""
        self.is_killed = True
        if self._thread is not None:
            while not self.is_over:
                self._resume()
        self.is_over = True


class _Current:
    """Which fiber has the turn."""

    fiber: Fiber | None = None


current = _Current()


def this_fiber() -> Fiber:
    """The one that asks."""
    assert current.fiber is not None, "nobody waits in the world's own thread"
    return current.fiber


class Waiters:
    """Fibers that wait for one thing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fibers: list[Fiber] = []

    def call(self) -> None:
        """It has happened."""
        waiting, self._fibers = self._fibers, []
        for fiber in waiting:
            fiber.later(0)

    def wait(self, timeout_ms: int | None = None) -> None:
        """Until it has happened, or the time is over, or for nothing at all."""
        fiber = this_fiber()
        self._fibers.append(fiber)
        if timeout_ms is not None:
            fiber.later(timeout_ms)
        try:
            fiber.pause()
        finally:
            if fiber in self._fibers:
                self._fibers.remove(fiber)


class FiberEvent:
    """As threading.Event."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiters = Waiters(world)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.call()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        end_ms = None if timeout is None else self._world.now_ms + max(1, round(timeout * 1_000))
        while not self._is_set and (end_ms is None or self._world.now_ms < end_ms):
            self._waiters.wait(None if end_ms is None else end_ms - self._world.now_ms)
        return self._is_set


class FiberThread:
    """As threading.Thread, of the machine that makes it."""

    def __init__(
        self, world: World, target: Callable[..., None], args: Sequence[Any] = (), name: str = "", daemon: bool = True
    ) -> None:
        self._world, self._work = world, partial(target, *args)
        self.fiber: Fiber | None = None
        self.ident: int | None = None

    def start(self) -> None:
        owner: Any = self._world.acting
        self.ident = 1
        self.fiber = Fiber(self._world, owner, self._work)
        self.fiber.later(0)

    def join(self) -> None:
        while self.fiber is not None and not self.fiber.is_over:
            self.fiber.ended.wait()


def sleep(world: World, seconds: float) -> None:
    """As time.sleep."""
    Waiters(world).wait(max(1, round(seconds * 1_000)))


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits as a fiber does, and so for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits for something")
