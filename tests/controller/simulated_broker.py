"""A broker of the simulation: what it is on its disk, and what it believes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Broker:
    """One broker process and its disk."""

    number: int
    broker_id: int | None = None
    wanted_id: int | None = None
    """What it has applied for, until that is answered."""
    runs: bool = True
    channel: int = 0
    master_epoch: int = 0
    master_id: int | None = None
    known_set: frozenset[int] = frozenset()
    known_epoch: int = 0
    asked_set: frozenset[int] = frozenset()
    """All that 1001 has asked for, until a later set is known."""
    log: list[int] = field(default_factory=list)

    @property
    def is_master(self) -> bool:
        """Whether it believes so."""
        return self.runs and self.broker_id is not None and self.master_id == self.broker_id

    @property
    def waits_for(self) -> frozenset[int]:
        """Who must hold a message before it is acknowledged."""
        return self.known_set | self.asked_set

    def ask_for(self, wanted: frozenset[int]) -> None:
        """Until one of them is answered, each set that was asked for may be the controller's.

        A Java master forgets the one before (AutoSwitchHAService.markSynchronizingSyncStateSet), and so may for some seconds wait for
        fewer than the controller calls in sync.
        """
        self.asked_set |= wanted

    @property
    def address(self) -> str:
        """Where it is."""
        return f"h:{self.number}"
