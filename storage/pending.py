"""How a put ends, in RocketMQ's words; and a result that is not ready yet, from a put of the store to the answer of a server.

Java: PutMessageStatus, PutMessageResult.isOk; CompletableFuture.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeAlias, TypeVar


class PutStatus(Enum):
    """The put path's answer for one message or batch."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    PUT_TO_REMOTE_BROKER_FAIL = "PUT_TO_REMOTE_BROKER_FAIL"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"

    @property
    def is_stored(self) -> bool:
        """Whether the message is in the log: a time-out of disk or slave comes after that."""
        return self in _STORED


_STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)


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
