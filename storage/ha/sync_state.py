"""Which replicas a master's acknowledgements wait for, and which change of that it asks a controller for. Pure.

    look(replicas, end, now) ─▶ the set to ask for (1001) ─▶ accepted | refused; without an answer `union` waits for old and new

A replica joins in two steps: from the first on puts wait for it, and when it has all that was there by then, the controller is asked.
So whoever is in the controller's set has all that was acknowledged.
Departure: Java asks when a report reaches what was there at the last frame. Java: AutoSwitchHAService.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.ha.replicas import UNPROVEN, Replica, Snapshot

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
