"""From any thread to the event loop's: many items by one wake-up.

While the loop has not yet looked, further items need no call of their own. It takes a limited number in one turn, so that answers
are read in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

TAKEN_AT_ONCE = 128
_LOG = logging.getLogger(__name__)


class HandOver(Generic[T]):
    """A way to the loop's thread for items, in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], object]) -> None:
        """`take` is called on the loop's thread. What it raises is logged, and the next item taken."""
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """Hand one over, from any thread."""
        self._items.append(item)
        if not self._is_woken:  # two threads may both see this: a wake-up too many does no harm
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._take_some)

    def _take_some(self) -> None:
        self._is_woken = False  # before looking: what comes from now on wakes again
        items = self._items
        for _ in range(min(len(items), TAKEN_AT_ONCE)):
            try:
                self._take(items.popleft())
            except Exception:
                _LOG.exception("what another thread handed over was not taken")
        if items and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._take_some)
