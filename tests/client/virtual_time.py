"""An event loop whose clock jumps to the next thing to do: hours of timers pass in no time, and in order.

For code without sockets and threads. Where nothing is left to happen, the test fails at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at second 1000: of larger numbers asyncio's resolution of a nanosecond makes no others."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self._loop.now += max(timeout, 0)
        return super().select(0)


def clock_ms() -> int:
    """The running loop's time."""
    return round(asyncio.get_running_loop().time() * 1000)


def play(story: Coroutine[Any, Any, Any]) -> Any:
    """Run a story to its end in virtual time, and end what it left running."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(story)
    finally:
        while left := asyncio.all_tasks(loop):  # Python 3.11's wait_for may swallow a cancellation
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1))
        loop.close()
