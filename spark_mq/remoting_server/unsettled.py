"""Answers that wait for something else than a thread: a sync of the disk, replicas. Java: the futures of SendMessageProcessor.

Whoever waits holds no thread, so one request that waits for long keeps no other from its answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from spark_mq.remoting_server.peer import Outbox
from storage.settling import Settling

_LOOK_SECONDS = 0.01
_LOG = logging.getLogger(__name__)


class _Held:
    """One that waits; it goes on once."""

    def __init__(self, settling: Settling, go_on: Callable[[], None]) -> None:
        self.settling: Settling | None = settling
        self.go_on: Callable[[], None] | None = go_on
        self.deadline: float | None = None

    def end(self) -> Callable[[], None]:
        """It goes on, by this call, and leads to nothing more.

        What it waited for keeps the call back, and so this: with the request behind it that would be a circle, and the request's body
        would stay until the garbage collector looks.
        """
        assert self.go_on is not None, "it goes on once"
        go_on, self.go_on, self.settling = self.go_on, None, None
        return go_on


class Unsettled:
    """Those that wait. `hold` is for any thread; they go on on the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._lock = threading.Lock()
        self._held: set[_Held] = set()
        self._is_looking = False

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._held)

    def hold(self, settling: Settling, go_on: Callable[[], None]) -> bool:
        """Go on when that is settled, or its time is over; False = there is nothing to be waited for, and the caller goes on."""
        held = _Held(settling, go_on)
        seconds = self._asked(held)
        if seconds is None:
            held.end()
            return False
        with self._lock:
            if (
                held.go_on is not None and held.deadline is None
            ):  # else it has gone on meanwhile, or waits for something else
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
        self._outbox.put(self._look_soon)
        return True

    def _asked(self, held: _Held) -> float | None:
        assert held.settling is not None, "it has not gone on"
        try:
            return held.settling(lambda: self._outbox.put(lambda: self._go_on(held)))
        except Exception:  # who asks for the answer hears why
            _LOG.debug("the end of a request is asked for now", exc_info=True)
            return None

    # On the loop.

    def _go_on(self, held: _Held) -> None:
        """What it waited for is over, or its time: it goes on, unless it waits for something else then."""
        if held.go_on is None:
            return
        seconds = self._asked(held)
        with self._lock:
            if seconds is not None:
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
                return
            self._held.discard(held)
        held.end()()

    def _look_soon(self) -> None:
        if self._held and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now = self._loop.time()
        with self._lock:
            late = [held for held in self._held if held.deadline is not None and held.deadline <= now]
        for held in late:
            self._outbox.put(lambda held=held: self._go_on(held))  # type: ignore[misc]
        self._look_soon()
