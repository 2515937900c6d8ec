"""Which puts have as many copies as they need: what replicas hold in, tickets out. Java: GroupTransferService.

Departure: one put that lacks copies delays no other, and a put that has had its copies is never called late.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from storage.rules.acks import ALL_IN_SET


class Ticket:
    """One put that waits until enough copies reach its end."""

    __slots__ = ("end", "needed")

    def __init__(self, end: int, needed: int) -> None:
        self.end = end
        """Offset in the log behind its last byte."""
        self.needed = needed
        """Copies, the master's among them; or `ALL_IN_SET`."""


class AckFrontier:
    """What each replica has acknowledged, and who waits for more. Not thread-safe; it knows no time."""

    def __init__(self) -> None:
        self._acknowledged: dict[Hashable, int] = {}
        self._others_in_set: frozenset[Hashable] = frozenset()
        self._waiting: dict[int, list[Ticket]] = {}

    @property
    def acknowledged(self) -> Mapping[Hashable, int]:
        """The offset that each replica has reached."""
        return self._acknowledged

    def ask(self, end: int, needed: int) -> Ticket | None:
        """A ticket for a put that ends there; None = it has its copies already."""
        if end <= self.reached(needed):
            return None
        ticket = Ticket(end, needed)
        self._waiting.setdefault(needed, []).append(ticket)
        return ticket

    def see(self, acknowledged: Mapping[Hashable, int]) -> list[Ticket]:
        """How far each replica is that is connected now; one that is missing counts no more. Whoever waits no longer."""
        self._acknowledged = dict(acknowledged)
        return self._settled()

    def set_members(self, others: Iterable[Hashable]) -> list[Ticket]:
        """The SyncStateSet without the master (old and new, while a change is under way); whoever waits no longer."""
        self._others_in_set = frozenset(others)
        return self._settled()

    def give_up(self, ticket: Ticket) -> bool:
        """Nobody waits for it any more. False = it had been settled before."""
        waiting = self._waiting.get(ticket.needed, [])
        if ticket not in waiting:
            return False
        waiting.remove(ticket)
        return True

    def reached(self, needed: int) -> float:
        """The end before which there are so many copies; infinity where the master's own is enough."""
        if needed == ALL_IN_SET:
            return min((self._acknowledged.get(other, -1) for other in self._others_in_set), default=float("inf"))
        if needed <= 1:
            return float("inf")
        offsets = sorted(self._acknowledged.values(), reverse=True)
        return offsets[needed - 2] if len(offsets) >= needed - 1 else -1

    def _settled(self) -> list[Ticket]:
        settled: list[Ticket] = []
        for needed, waiting in self._waiting.items():
            reached = self.reached(needed)
            settled += [ticket for ticket in waiting if ticket.end <= reached]
            self._waiting[needed] = [ticket for ticket in waiting if ticket.end > reached]
        return settled

    def forget(self) -> list[Ticket]:
        """All that wait; nobody will ever tell them."""
        left = [ticket for waiting in self._waiting.values() for ticket in waiting]
        self._waiting.clear()
        return left
