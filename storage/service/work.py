"""Whose turn it is to compute, and who is on the way to a put.

Python runs one thread at a time anyway, and Arrow's kernels let go of the interpreter at each call: of eight threads that compute at
once, each call wakes another one, and a message takes twice the processor. So one computes, and whoever waits for a disk lets others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from storage.service.put_group import PutGroup


class Work:
    """The turns of all threads in front of one store."""

    def __init__(self, group: PutGroup) -> None:
        self.processor = threading.Lock()
        """Held by the one that computes; before the put lock."""
        self._group = group
        self._own = threading.local()

    def begun(self, *, is_waited_for: bool = True) -> AbstractContextManager[None]:
        """Computes, and is on the way if others are to wait for it. Not to be entered twice by a thread."""
        return _Turn(self, is_waited_for)

    def begin(self, *, is_waited_for: bool) -> None:
        """The beginning of `begun`."""
        if is_waited_for:
            self._group.come()
            self._own.is_coming = True
        self._take()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Within `begun`: others may compute meanwhile, and do not wait for this one. For what waits for a disk."""
        was_mine = self.end()
        try:
            yield
        finally:
            if was_mine:
                self._take()

    def end(self) -> bool:
        """Whether this thread computed, which it does no more."""
        was_mine = getattr(self._own, "is_mine", False)
        if was_mine:
            self._own.is_mine = False
            self.processor.release()
        if getattr(self._own, "is_coming", False):
            self._own.is_coming = False
            self._group.leave()
        return was_mine

    def _take(self) -> None:
        self.processor.acquire()
        self._own.is_mine = True


class _Turn(AbstractContextManager[None]):
    """From `begin` to `end`; each send takes one, so it is no generator."""

    __slots__ = ("_is_waited_for", "_work")

    def __init__(self, work: Work, is_waited_for: bool) -> None:
        self._work = work
        self._is_waited_for = is_waited_for

    def __enter__(self) -> None:
        self._work.begin(is_waited_for=self._is_waited_for)

    def __exit__(self, *_: object) -> None:
        self._work.end()
