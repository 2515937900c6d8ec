"""Which replicas a master has at present, and how far each of them has acknowledged. Java: HAConnection, DefaultHAService.

    listener's thread:     connected ─▶ acknowledged* ─▶ gone
    whoever answers puts:  snapshot() · listen(callback)

A replica counts once, however many connections it has: its newest connection that has proven where it stands speaks for it.
Departure: Java counts connections, and one that never said anything is in sync while the log is short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from storage.rules.put_guards import is_in_sync
from storage.settings.nouns import ReplicationConfig

UNPROVEN = -1
"""What a replica has acknowledged that did not say yet where it stands."""
_DEFAULT_MAX_GAP_BYTES = ReplicationConfig().ha_max_gap_not_in_sync


class Replica(NamedTuple):
    """One replica as its master knows it."""

    identity: str
    """What it counts by: `id:2` where it has said its broker id, else its host, on a loopback address with the port."""
    broker_id: int | None
    """In controller mode, else None."""
    address: str
    """host:port of its connection."""
    acknowledged: int
    """Until where in the log it has confirmed what it was sent, or proven to hold; UNPROVEN before."""
    is_learner: bool = False
    """It follows, and is never in sync. Java: asyncLearner."""

    def is_in_sync(self, end: int, max_gap_bytes: int) -> bool:
        """Whether it counts as a copy, of a log that ends there."""
        return not self.is_learner and is_in_sync(self.acknowledged, end, max_gap_bytes)


Snapshot = tuple[Replica, ...]
"""The replicas of one moment, each once."""


class Replicas:
    """The replicas of one master. All methods may be called by any thread; one thread at a time tells of changes."""

    def __init__(self, max_gap_bytes: int = _DEFAULT_MAX_GAP_BYTES) -> None:
        self.max_gap_bytes = max_gap_bytes
        self._connections: dict[int, Replica] = {}
        self._snapshot: Snapshot = ()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Snapshot], None]] = []

    # The listener's side

    def connected(self, connection: int, replica: Replica) -> None:
        """A connection says whose it is; before that it is nobody's. Numbers of connections ascend."""
        self._change(connection, replica)

    def acknowledged(self, connection: int, offset: int) -> None:
        """Its replica holds the log until there. The session has judged it: it lies within what was sent, and never goes back."""
        self._change(connection, self._connections[connection]._replace(acknowledged=offset))

    def gone(self, connection: int) -> None:
        """The connection has ended, known or not; what it has acknowledged counts no longer."""
        self._change(connection, None)

    def _change(self, connection: int, replica: Replica | None) -> None:
        with self._lock:
            if replica is None:
                self._connections.pop(connection, None)
            else:
                self._connections[connection] = replica
            self._snapshot = snapshot = _each_once(self._connections)
            callbacks = tuple(self._callbacks)
        for callback in callbacks:
            callback(snapshot)

    # The side of those who wait

    def snapshot(self) -> Snapshot:
        """The replicas of this moment; takes no lock."""
        return self._snapshot

    def listen(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back after each change, in the thread that tells of it, with no lock held; it must not block. Returns how to end it."""
        with self._lock:
            self._callbacks.append(callback)
        return lambda: self._forget(callback)

    def _forget(self, callback: Callable[[Snapshot], None]) -> None:
        with self._lock:
            self._callbacks.remove(callback)


def _each_once(connections: dict[int, Replica]) -> Snapshot:
    """For each replica its newest connection that has proven where it stands; its newest one if none has."""
    found: dict[str, Replica] = {}
    for number in sorted(connections):
        replica = connections[number]
        known = found.get(replica.identity)
        if known is None or replica.acknowledged != UNPROVEN or known.acknowledged == UNPROVEN:
            found[replica.identity] = replica
    return tuple(found.values())
