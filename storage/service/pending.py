"""What is under way, and will be known. Java: CompletableFuture, as DefaultMessageStore.asyncPutMessage returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from storage.settling import Settling

T = TypeVar("T")
U = TypeVar("U")


class Pending(Generic[T]):
    """To be called once: that waits until it is known, and returns or raises it."""

    __slots__ = ("_ask", "settling")

    def __init__(self, ask: Callable[[], T], settling: Settling | None = None) -> None:
        self._ask = ask
        self.settling = settling
        """For whoever has no thread to wait with. None: asking waits for nobody else."""

    def __call__(self) -> T:
        return self._ask()

    def then(self, change: Callable[[Callable[[], T]], U]) -> Pending[U]:
        """What is made of it when it is asked for, and not sooner; `change` asks."""
        return Pending(lambda: change(self._ask), self.settling)
