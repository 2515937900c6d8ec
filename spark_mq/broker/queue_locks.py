"""Which client of a group has which queue for itself, for orderly consumption. In memory; a lock lives for a minute.

Java: RebalanceLockManager. Not supported: `lockInStrictMode`, which asks the other replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_mq.remoting import MessageQueue

LOCK_LIVES_MS = 60_000
"""Java: rocketmq.broker.rebalance.lockMaxLiveTime."""


class _Lock(NamedTuple):
    client_id: str
    locked_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return now_ms - self.locked_ms > LOCK_LIVES_MS


class QueueLocks:
    """The locks of all groups. For one thread at a time. Times are ms."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int) -> tuple[MessageQueue, ...]:
        """Those of the queues that the client has now: they were free, its own, or another's whose lock has expired."""
        locks = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or lock.is_expired(now_ms):
                locks[queue] = _Lock(client_id, now_ms)
                granted.append(queue)
        return tuple(granted)

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """The client's own locks of these queues end."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if (lock := locks.get(queue)) is not None and lock.client_id == client_id:
                del locks[queue]

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any lock of the group has not expired. Java: isLockAllExpired."""
        return any(not lock.is_expired(now_ms) for lock in self._groups.get(group, {}).values())
