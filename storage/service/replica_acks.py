"""Puts that wait until replicas hold them, and how far each replica is. Java: HAService, GroupTransferService.

An acknowledgement means what the replica means by it: a Java slave has the bytes in its page cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future

from storage.dispatch.store_ends import EVERYTHING, NOTHING_NEW
from storage.put_status import PutStatus
from storage.rules.put_guards import ALL_IN_SET, NO_COPIES, copies_needed, copies_of_batch, is_in_sync, may_wait
from storage.settings.nouns import ReplicationConfig, StoreModeConfig


class CopiesWanted:
    """One put that waits until enough copies reach its end."""

    __slots__ = ("done", "end", "needed")

    def __init__(self, end: int, needed: int) -> None:
        self.end = end
        """Log offset after its last byte."""
        self.needed = needed
        """Copies, including the master's; or `ALL_IN_SET`."""
        self.done: Future[PutStatus] = Future()
        """PUT_OK, or FLUSH_SLAVE_TIMEOUT. `ReplicaAcks` completes it."""


class ReplicaAcks:
    """What each replica holds of one log, and which puts wait for that. Thread-safe."""

    def __init__(self, mode: StoreModeConfig, replication: ReplicationConfig) -> None:
        self._mode = mode
        self._config = replication
        self._lock = threading.Condition(threading.Lock())
        self._frontier = AckFrontier()
        self._set_size: int | None = None
        self._is_closed = False
        self.alive = replication.total_replicas
        """Brokers of the group, as the name server says. Java: aliveReplicaNumInGroup."""
        self.on_reached: Callable[[float], None] = lambda _: None
        """Called with `reached_by_all` after each change, in the thread that reports it: it must be quick and take no lock of a put."""

    # For puts

    def needed(self, log_end: int) -> int:
        """How many copies a put that starts now must have. Raises PutRefusedError if there are too few replicas."""
        if not may_wait(self._mode):
            return NO_COPIES
        return copies_needed(self._mode, self._config, in_sync=self.in_sync(log_end), alive=self.alive)

    def in_sync(self, log_end: int) -> int:
        """Copies that count as in sync, including the master's. Java: HAService.inSyncReplicasNums.

        Departure: a connection that has acknowledged nothing does not count.
        """
        with self._lock:
            return self._in_sync(log_end)

    def _in_sync(self, log_end: int) -> int:
        if self._set_size is not None:
            return self._set_size
        gap = self._config.ha_max_gap_not_in_sync
        return 1 + sum(is_in_sync(offset, log_end, gap) for offset in self._frontier.acknowledged.values())

    def needed_by_batch(self, requested: int | None) -> int:
        """How many copies a batch must have; `requested` is its writer's option."""
        return copies_of_batch(self._mode, self._config, requested)

    def in_sync_within(self, log_end: int, needed: int, seconds: float) -> int:
        """How many copies are in sync: as soon as they are enough, the time is over, or no replica will report any more."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._in_sync(log_end) >= needed, seconds)
            return self._in_sync(log_end)

    def holding_within(self, end: int, needed: int, seconds: float) -> int:
        """How many copies, including the master's, hold the log up to `end`: as soon as they are enough, or after the time."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._holding(end) >= needed, seconds)
            return self._holding(end)

    def _holding(self, end: int) -> int:
        return 1 + sum(offset >= end for offset in self._frontier.acknowledged.values())

    def want(self, end: int, needed: int) -> CopiesWanted | None:
        """What a put that ends there must wait for; None = nothing."""
        if needed == NO_COPIES:
            return None
        with self._lock:
            if self._is_closed:
                wanted = CopiesWanted(end, needed)
                wanted.done.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)
                return wanted
            return self._frontier.ask(end, needed)

    def wait(self, wanted: CopiesWanted, timeout_ms: int) -> PutStatus:
        """PUT_OK, or FLUSH_SLAVE_TIMEOUT: it is in the log, readable, and replicas will have it later. For one thread."""
        try:
            return wanted.done.result(timeout_ms / 1_000)
        except TimeoutError:
            return self.given_up(wanted)

    def given_up(self, wanted: CopiesWanted) -> PutStatus:
        """The status of a put whose time is over; reports that came in between count."""
        with self._lock:
            if self._frontier.give_up(wanted):
                return PutStatus.FLUSH_SLAVE_TIMEOUT
        return wanted.done.result()

    # For reports of replicas

    def see(self, acknowledged: Mapping[Hashable, int]) -> None:
        """Set the acknowledged end of each connected replica; less than 0 = unknown.

        The caller has checked them: only what was sent counts, and each replica once.
        """
        with self._lock:
            self._tell(self._frontier.see({replica: offset for replica, offset in acknowledged.items() if offset >= 0}))

    def set_members(self, others: Iterable[Hashable]) -> None:
        """Set the SyncStateSet without the master; old and new, while it is being changed."""
        members = frozenset(others)
        with self._lock:
            self._set_size = 1 + len(members)
            self._tell(self._frontier.set_members(members))

    @property
    def is_closed(self) -> bool:
        """Whether no replica will report any more."""
        return self._is_closed

    @property
    def reached_by_all(self) -> float:
        """The log offset that all in the SyncStateSet have; `EVERYTHING` if no other must. Java: computeConfirmOffset."""
        if not self._config.all_ack_in_sync_state_set:
            return EVERYTHING
        return NOTHING_NEW if self._set_size is None else self._frontier.reached(ALL_IN_SET)

    def _tell(self, settled: list[CopiesWanted]) -> None:
        self.on_reached(self.reached_by_all)
        for wanted in settled:
            wanted.done.set_result(PutStatus.PUT_OK)
        self._lock.notify_all()

    def close(self) -> None:
        """No replica will report any more: puts that wait, or will wait, end in FLUSH_SLAVE_TIMEOUT now."""
        with self._lock:
            self._is_closed = True
            for wanted in self._frontier.forget():
                wanted.done.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)
            self._lock.notify_all()


class AckFrontier:
    """What each replica has acknowledged, and which puts wait for more. Not thread-safe, and without a clock.

    Java: GroupTransferService. Departure: a put that lacks copies delays no other, and one that has its copies is never called late.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[Hashable, int] = {}
        self._others_in_set: frozenset[Hashable] = frozenset()
        self._waiting: dict[int, list[CopiesWanted]] = {}

    @property
    def acknowledged(self) -> Mapping[Hashable, int]:
        """The offset that each replica has reached."""
        return self._acknowledged

    def ask(self, end: int, needed: int) -> CopiesWanted | None:
        """What a put that ends there waits for; None = it has its copies already."""
        if end <= self.reached(needed):
            return None
        wanted = CopiesWanted(end, needed)
        self._waiting.setdefault(needed, []).append(wanted)
        return wanted

    def see(self, acknowledged: Mapping[Hashable, int]) -> list[CopiesWanted]:
        """Set how far each connected replica is; a missing one stops counting. Returns the puts that are done."""
        self._acknowledged = dict(acknowledged)
        return self._settled()

    def set_members(self, others: Iterable[Hashable]) -> list[CopiesWanted]:
        """Set the SyncStateSet without the master (old and new, while it is being changed). Returns the puts that are done."""
        self._others_in_set = frozenset(others)
        return self._settled()

    def give_up(self, wanted: CopiesWanted) -> bool:
        """Stop waiting for the put. False = it was done before."""
        waiting = self._waiting.get(wanted.needed, [])
        if wanted not in waiting:
            return False
        waiting.remove(wanted)
        return True

    def reached(self, needed: int) -> float:
        """The log offset that so many copies have reached; infinity if the master's own is enough."""
        if needed == ALL_IN_SET:
            return min((self._acknowledged.get(other, -1) for other in self._others_in_set), default=float("inf"))
        if needed <= 1:
            return float("inf")
        offsets = sorted(self._acknowledged.values(), reverse=True)
        return offsets[needed - 2] if len(offsets) >= needed - 1 else -1

    def _settled(self) -> list[CopiesWanted]:
        settled: list[CopiesWanted] = []
        for needed, waiting in self._waiting.items():
            reached = self.reached(needed)
            settled += [put for put in waiting if put.end <= reached]
            self._waiting[needed] = [put for put in waiting if put.end > reached]
        return settled

    def forget(self) -> list[CopiesWanted]:
        """All waiting puts, which are dropped here."""
        left = [put for waiting in self._waiting.values() for put in waiting]
        self._waiting.clear()
        return left
