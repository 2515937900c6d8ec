"""A result that is not there yet: the one type for it, from a put of the store to the answer of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
U = TypeVar("U")

WhenSettled: TypeAlias = Callable[[Callable[[], None]], float | None]
"""As `Pending.when_settled`."""


class Pending(Generic[T]):
    """A result that is not there yet. Java: CompletableFuture, as DefaultMessageStore.asyncPutMessage returns it.

    Who completes it, and on which thread: a put that waits for the disk is completed by the thread of the flush duty, when its sync is
    over (`PutService.sync_turn`); one that waits for replicas by the thread that reports what they hold (`ReplicaAcks.see`). A timeout
    is noticed by the caller alone.

    A caller that may wait calls the object, once: that does what is left to do, waits, and returns the result or raises. A caller that
    may not wait, such as an event loop, calls `when_settled` until it gives None, and the object only then.
    """

    __slots__ = ("_result", "_when_settled")

    def __init__(self, result: Callable[[], T], when_settled: WhenSettled | None = None) -> None:
        """Without `when_settled` the result waits for no other thread."""
        self._result = result
        self._when_settled = when_settled

    @classmethod
    def done(cls, result: T) -> Pending[T]:
        """A result that is there."""
        return cls(lambda: result)

    def __call__(self) -> T:
        return self._result()

    def when_settled(self, call: Callable[[], None]) -> float | None:
        """Do what can be done now; then for how many seconds, at most, there is something to wait for. None = for nothing.

        Unless it is None, `call` is made once when that is over, perhaps at once, by a thread that may hold locks: it must be quick.
        Then this is called again: something else may be left.
        """
        return None if self._when_settled is None else self._when_settled(call)

    def then(self, change: Callable[[Callable[[], T]], U]) -> Pending[U]:
        """What `change` makes of it when the result is wanted, and not sooner; `change` calls what it gets."""
        return Pending(lambda: change(self._result), self._when_settled)
