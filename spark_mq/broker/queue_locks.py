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
    """The locks of all groups. For one thread at a time.

    A lock goes by what was asked last: it outlives its client's connection, and one that is asked for after the client has unlocked
    or left the group is given, as in Java.
    Times are ms of a clock that nobody sets: of one that was set forward two clients would have a queue. Java: currentTimeMillis.
    Once in a lock's life those that have expired are forgotten; Java keeps all that were ever asked for.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._looked_ms = 0

    @property
    def count(self) -> int:
        """How many are kept."""
        return sum(map(len, self._groups.values()))

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int) -> tuple[MessageQueue, ...]:
        """Those of the queues that the client has now: they were free, its own, or another's whose lock has expired."""
        if abs(now_ms - self._looked_ms) > LOCK_LIVES_MS:
            self._looked_ms = now_ms
            self._forget_expired(now_ms)
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

    def _forget_expired(self, now_ms: int) -> None:
        for group, locks in list(self._groups.items()):
            kept = {queue: lock for queue, lock in locks.items() if not lock.is_expired(now_ms)}
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any lock of the group has not expired. Java: isLockAllExpired."""
        return any(not lock.is_expired(now_ms) for lock in self._groups.get(group, {}).values())
