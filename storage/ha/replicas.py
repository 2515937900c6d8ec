"""The replicas of a group: who is master, how far each replica has acknowledged, and which of them acknowledgements wait for.

    listener's thread:     connected ─▶ acknowledged* ─▶ gone
    puts:                  snapshot() · listen(callback)

A replica counts once, however many connections it has: its newest connection that has proven where it stands speaks for it.
Departure: Java counts connections, and one that never said anything is in sync while the log is short.
Java: HAConnection, DefaultHAService, ReplicasManager, AutoSwitchHAService.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from storage.rules.put_guards import is_in_sync
from storage.settings.nouns import ReplicationConfig

# Who is master of a group, as a controller says, and what a broker becomes by it. Pure.


class Term(NamedTuple):
    """What a controller has decided of a group. Terms never go back."""

    epoch: int
    """masterEpoch; 0 = nobody was elected yet."""
    master_id: int | None = None
    """None = nobody is master now."""
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
        """As name servers know it."""
        return 0 if self.is_master else self.own_id


def next_role(own_id: int, present: Role | None, told: Term) -> Role | None:
    """What the broker becomes by what it was told; None = it stays what it is, fenced where it is nothing yet.

    A term without a master changes nothing: a master in it has lost the election already, and acknowledges to nobody that waits for all
    in sync. A slave whose master is at another address within the term follows it there; Java's hears of that from name servers.
    """
    if told.master_id is None or told.master_address is None:
        return None
    if present is not None and told.epoch <= present.term.epoch and not _has_moved(present, told):
        return None
    return Role(own_id, told)


def _has_moved(slave: Role, told: Term) -> bool:
    """Whether the master of a slave's term is at another address; a master knows where it is."""
    known = slave.term
    is_same = (told.epoch, told.master_id) == (known.epoch, known.master_id)
    return is_same and not slave.is_master and told.master_address != known.master_address


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


# Which replicas a master's acknowledgements wait for, and which change of that it asks a controller for. Pure.
#
#     look(replicas, end, now) ─▶ the set to ask for (1001) ─▶ accepted | refused; without an answer `union` waits for old and new
#
# A replica joins in two steps: from the first on puts wait for it, and when it has all that was there by then, the controller is asked.
# So each broker in the controller's set has all that was acknowledged.
# Departure: Java asks when a report reaches what was there at the last frame.


NEAR_BYTES = 1 << 20
"""A replica that lacks more is not waited for yet."""
PATIENCE_MS = 2_000
"""A replica that has not caught up so long after puts wait for it is waited for no longer, and not again for as long."""


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
        self._asked: frozenset[int] = frozenset()
        self._in_doubt: frozenset[int] | None = None
        """What was asked for whose answer is lost: the controller may have it. None = nothing."""
        self._joining: dict[int, _Joining] = {}
        self._barred_until: dict[int, int] = {}
        self._caught_up = dict.fromkeys(self.members, now_ms)
        self._marks: dict[int, int] = {}
        self._seen: set[int] = set()

    @property
    def union(self) -> frozenset[int]:
        """All for whom puts wait, the master among them."""
        return self.members | self._asked | self._joining.keys()

    def look(self, replicas: Snapshot, end: int, now_ms: int) -> frozenset[int] | None:
        """The set to ask for now; None = this one is right. `end` of the log was read after the last `union` was in force.

        What is in doubt is asked for again, until an answer says what holds.
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
        """Members that have hung up, or have not caught up for long."""
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
        """The controller is asked: old and new count until it answers, also where the answer is lost."""
        self._asked = self._asked | wanted

    def holds(self, members: frozenset[int], epoch: int, now_ms: int) -> None:
        """The controller has said what holds: what was asked of an older set, and comes late, is refused there.

        Of one epoch the smaller set is the later one: an operator has had the controller forget brokers (1011).
        """
        if epoch == self.epoch and self.own_id in members:  # an answer without its set says nothing
            self.members &= members
        if epoch <= self.epoch:
            return
        for broker_id in members - self.members:
            self._caught_up[broker_id] = now_ms
        self.members, self.epoch = members | {self.own_id}, epoch
        self._asked, self._in_doubt = frozenset(), None

    def unanswered(self) -> None:
        """The controller may have done what it was asked for, or may do it yet."""
        self._in_doubt = self._asked

    def refused(self, now_ms: int) -> None:
        """The controller has said no, and then that its set is the one that is known here. Who was to join waits for a while."""
        for broker_id in self._asked - self.members:
            self._bar(broker_id, now_ms)
        self._asked, self._in_doubt = frozenset(), None
