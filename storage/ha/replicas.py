"""The replicas of a group: which is the master, what each has acknowledged, and which of them acknowledgements wait for.

    listener's thread:     connected ─▶ acknowledged* ─▶ gone
    puts:                  snapshot() · listen(callback)

A replica counts once, however many connections it has: its newest connection with a proven position counts.
Departure: Java counts connections, and a silent one counts as in sync while the log is short.
Java: HAConnection, DefaultHAService, ReplicasManager, AutoSwitchHAService.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from storage.rules.put_guards import is_in_sync
from storage.settings.nouns import ReplicationConfig

# The master of a group, by its controller, and the role that a broker gets. Pure.


class Term(NamedTuple):
    """A controller's decision for a group. Terms never go back."""

    epoch: int
    """masterEpoch; 0 = no master was elected yet."""
    master_id: int | None = None
    """None = there is no master now."""
    master_address: str | None = None
    members: frozenset[int] = frozenset()
    """The SyncStateSet."""
    set_epoch: int = 0


class Role(NamedTuple):
    """What one broker is in a term."""

    own_id: int
    term: Term

    @property
    def is_master(self) -> bool:
        return self.term.master_id == self.own_id

    @property
    def registered_id(self) -> int:
        """The broker id that name servers know."""
        return 0 if self.is_master else self.own_id


def next_role(own_id: int, present: Role | None, decided: Term) -> Role | None:
    """The broker's role after a decision; None = it stays what it is, fenced if it has none yet.

    A term without a master changes nothing: a former master has lost the election already, and acknowledges no put that waits for all
    in sync. A slave whose master has another address within the term follows it there; Java's gets that from name servers.
    """
    if decided.master_id is None or decided.master_address is None:
        return None
    if present is not None and decided.epoch <= present.term.epoch and not _has_moved(present, decided):
        return None
    return Role(own_id, decided)


def _has_moved(slave: Role, decided: Term) -> bool:
    """Whether the master of a slave's term has another address now; a master knows its own."""
    known = slave.term
    is_same = (decided.epoch, decided.master_id) == (known.epoch, known.master_id)
    return is_same and not slave.is_master and decided.master_address != known.master_address


UNPROVEN = -1
"""The acknowledged offset of a replica that has not reported yet."""
_DEFAULT_MAX_GAP_BYTES = ReplicationConfig().ha_max_gap_not_in_sync


class Replica(NamedTuple):
    """One replica as its master knows it."""

    identity: str
    """The key by which it is counted: `id:2` if it has sent its broker id, else its host, on a loopback address with the port."""
    broker_id: int | None
    """In controller mode, else None."""
    address: str
    """host:port of its connection."""
    acknowledged: int
    """Log offset that it has confirmed, or proven to hold; UNPROVEN before."""
    is_learner: bool = False
    """It follows, and is never in sync. Java: asyncLearner."""

    def is_in_sync(self, end: int, max_gap_bytes: int) -> bool:
        """Whether it counts as a copy of a log that ends there."""
        return not self.is_learner and is_in_sync(self.acknowledged, end, max_gap_bytes)


Snapshot = tuple[Replica, ...]
"""The replicas of one moment, each once."""


class Replicas:
    """The replicas of one master. Thread-safe; one thread at a time reports changes."""

    def __init__(self, max_gap_bytes: int = _DEFAULT_MAX_GAP_BYTES) -> None:
        self.max_gap_bytes = max_gap_bytes
        self._connections: dict[int, Replica] = {}
        self._snapshot: Snapshot = ()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Snapshot], None]] = []

    # For the listener

    def connected(self, connection: int, replica: Replica) -> None:
        """A connection has sent its identity; before that it belongs to no replica. Numbers of connections ascend."""
        self._change(connection, replica)

    def acknowledged(self, connection: int, offset: int) -> None:
        """The replica holds the log up to `offset`. The session has checked it: it is within what was sent, and never decreases."""
        self._change(connection, self._connections[connection]._replace(acknowledged=offset))

    def gone(self, connection: int) -> None:
        """The connection, known or not, has ended; its acknowledgements stop counting."""
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

    # For waiting puts

    def snapshot(self) -> Snapshot:
        """The present replicas; takes no lock."""
        return self._snapshot

    def listen(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back after each change, in the reporting thread, without a lock; it must not block. Returns a function to end it."""
        with self._lock:
            self._callbacks.append(callback)
        return lambda: self._forget(callback)

    def _forget(self, callback: Callable[[Snapshot], None]) -> None:
        with self._lock:
            self._callbacks.remove(callback)


def _each_once(connections: dict[int, Replica]) -> Snapshot:
    """For each replica its newest connection with a proven position; the newest one if none has."""
    found: dict[str, Replica] = {}
    for number in sorted(connections):
        replica = connections[number]
        known = found.get(replica.identity)
        if known is None or replica.acknowledged != UNPROVEN or known.acknowledged == UNPROVEN:
            found[replica.identity] = replica
    return tuple(found.values())


# The replicas that a master's acknowledgements wait for, and the changes of this set that it requests from a controller. Pure.
#
#     look(replicas, end, now) ─▶ the set to request (1001) ─▶ accepted | refused; without an answer `union` waits for old and new
#
# A replica joins in two steps: first puts wait for it; when it has everything that was there by then, the controller is requested.
# So each broker in the controller's set has everything acknowledged.
# Departure: Java requests it when a report reaches the end of the last frame.


NEAR_BYTES = 1 << 20
"""Puts do not wait yet for a replica that lacks more."""
PATIENCE_MS = 2_000
"""If a replica has not caught up so long after puts started to wait for it, they stop waiting, and do not start again for as long."""


@dataclass(slots=True)
class _Joining:
    since_ms: int
    target: int | None = None


class SyncState:
    """The set of one master. Not thread-safe; `now_ms` never goes back."""

    def __init__(self, own_id: int, members: frozenset[int], epoch: int, now_ms: int, behind_ms: int) -> None:
        """`behind_ms` is haMaxTimeSlaveNotCatchup."""
        self.own_id = own_id
        self.members = members | {own_id}
        self.epoch = epoch
        self._behind_ms = behind_ms
        self._requested: frozenset[int] = frozenset()
        self._in_doubt: frozenset[int] | None = None
        """A requested set whose answer is lost: the controller may have it. None = nothing."""
        self._joining: dict[int, _Joining] = {}
        self._barred_until: dict[int, int] = {}
        self._caught_up = dict.fromkeys(self.members, now_ms)
        self._marks: dict[int, int] = {}
        self._seen: set[int] = set()

    @property
    def union(self) -> frozenset[int]:
        """All replicas that puts wait for, including the master."""
        return self.members | self._requested | self._joining.keys()

    def look(self, replicas: Snapshot, end: int, now_ms: int) -> frozenset[int] | None:
        """The set to request now; None = the present one is right. `end` of the log was read after the last `union` was in force.

        A set in doubt is requested again, until an answer gives the valid one.
        """
        known = {each.broker_id: each for each in replicas if each.broker_id is not None and not each.is_learner}
        known = {broker_id: each for broker_id, each in known.items() if each.acknowledged != UNPROVEN}
        self._seen |= known.keys()
        self._note(known, end, now_ms)
        ready = self._ready(known, end, now_ms)
        wanted = (self.members - self._lost(known, now_ms)) | ready | {self.own_id}
        if wanted == self.members:
            return None if self._in_doubt is None else self.members | self._in_doubt
        return wanted

    def _note(self, known: dict[int, Replica], end: int, now_ms: int) -> None:
        for broker_id, replica in known.items():
            if replica.acknowledged >= self._marks.get(broker_id, 0):
                self._caught_up[broker_id] = now_ms
                self._marks[broker_id] = end

    def _lost(self, known: dict[int, Replica], now_ms: int) -> frozenset[int]:
        """Members that have disconnected, or are behind for too long."""
        others = self.members - {self.own_id}
        gone = {broker_id for broker_id in others if broker_id in self._seen and broker_id not in known}
        late = {each for each in others if now_ms - self._caught_up.get(each, 0) > self._behind_ms}
        return frozenset(gone | late)

    def _ready(self, known: dict[int, Replica], end: int, now_ms: int) -> frozenset[int]:
        ready = set()
        for broker_id in [each for each in self._joining if each not in known or each in self.members]:
            del self._joining[broker_id]
        for broker_id, replica in known.items():
            if broker_id in self.members or now_ms < self._barred_until.get(broker_id, 0):
                continue
            joining = self._joining.get(broker_id)
            if joining is None:
                if end - replica.acknowledged <= NEAR_BYTES:
                    self._joining[broker_id] = _Joining(now_ms)
                continue
            if joining.target is None:
                joining.target = end
            if replica.acknowledged >= joining.target:
                ready.add(broker_id)
            elif now_ms - joining.since_ms > PATIENCE_MS:
                self._bar(broker_id, now_ms)
        return frozenset(ready)

    def _bar(self, broker_id: int, now_ms: int) -> None:
        self._joining.pop(broker_id, None)
        self._barred_until[broker_id] = now_ms + PATIENCE_MS

    def asks(self, wanted: frozenset[int]) -> None:
        """A set was requested: old and new count until the controller answers, also if the answer is lost."""
        self._requested = self._requested | wanted

    def holds(self, members: frozenset[int], epoch: int, now_ms: int) -> None:
        """The controller has sent the valid set: it refuses late requests that are based on an older set.

        Of two sets of one epoch the smaller is the later: an operator has removed brokers in the controller (1011).
        """
        if epoch == self.epoch and self.own_id in members:  # an answer without its set is ignored
            self.members &= members
        if epoch <= self.epoch:
            return
        for broker_id in members - self.members:
            self._caught_up[broker_id] = now_ms
        self.members, self.epoch = members | {self.own_id}, epoch
        self._requested, self._in_doubt = frozenset(), None

    def unanswered(self) -> None:
        """No answer came: the controller may have applied the request, or may do it yet."""
        self._in_doubt = self._requested

    def refused(self, now_ms: int) -> None:
        """The controller has refused: its set is the known one. Joining replicas wait for a while."""
        for broker_id in self._requested - self.members:
            self._bar(broker_id, now_ms)
        self._requested, self._in_doubt = frozenset(), None
