"""A result that is not ready yet: the one type for it, from a put of the store to the answer of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
U = TypeVar("U")

WhenSettled: TypeAlias = Callable[[Callable[[], None]], float | None]
"""Like `Pending.when_settled`."""


class Pending(Generic[T]):
    """A result that is not ready yet. Java: CompletableFuture, as DefaultMessageStore.asyncPutMessage returns it.

    A put that waits for the disk is completed by the flush thread after its sync (`PutService.sync_turn`). A put that waits for
    replicas is completed by the thread that reports what they hold (`ReplicaAcks.see`). Only the caller notices a timeout.

    A caller that may wait calls the object, once: the call does the remaining work, waits, and returns the result or raises. A caller
    that may not wait, such as an event loop, calls `when_settled` until it returns None, and only then the object.
    """

    __slots__ = ("_result", "_when_settled")

    def __init__(self, result: Callable[[], T], when_settled: WhenSettled | None = None) -> None:
        """Without `when_settled` the result does not depend on another thread."""
        self._result = result
        self._when_settled = when_settled

    @classmethod
    def done(cls, result: T) -> Pending[T]:
        """A result that is ready."""
        return cls(lambda: result)

    def __call__(self) -> T:
        return self._result()

    def when_settled(self, call: Callable[[], None]) -> float | None:
        """Do what can be done now; returns how many seconds, at most, remain to wait. None = nothing to wait for.

        Unless the result is None, `call` runs once when the wait is over, perhaps at once, in a thread that may hold locks: it must be
        quick. Then call this again, as more work may remain.
        """
        return None if self._when_settled is None else self._when_settled(call)

    def then(self, change: Callable[[Callable[[], T]], U]) -> Pending[U]:
        """A result that `change` computes when it is requested, not sooner; `change` calls its argument for the present result."""
        return Pending(lambda: change(self._result), self._when_settled)
