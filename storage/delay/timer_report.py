"""What a delivery of the timer's messages did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

REPORTED_ROWS = 100
"""How many messages that cannot be delivered a report names one by one."""


class UndeliverableTimed(NamedTuple):
    """A message that stays in the timer's topic, passed over."""

    commitlog_offset: int
    rule: str


@dataclass(frozen=True, slots=True)
class TimerReport:
    """The counts of one `deliver_timed`."""

    entered: int = 0
    """Messages entered in the wheel, rolled ones each time."""
    delivered: int = 0
    rolled: int = 0
    """Messages put back to the timer's queue, because they wait for longer than the wheel's window."""
    cancelled: int = 0
    """Messages that a deletion took away."""
    pending: int = 0
    """Messages that wait in the wheel now, less deletions."""
    next_due_ms: int | None = None
    """When the first of them is due."""
    lateness_p50_ms: int = 0
    """Store time less TIMER_OUT_MS of the messages delivered, their median; by up to a tick more than the asked time's."""
    lateness_max_ms: int = 0
    found_delivered: int = 0
    """Messages that stood in the log already, put by a timer that was killed since, and were not put again."""
    missing: int = 0
    """Units whose record is not in the commit log any more, or is another one."""
    undeliverable_count: int = 0
    undeliverable: tuple[UndeliverableTimed, ...] = ()
    """The first REPORTED_ROWS of them."""

    @property
    def delivered_count(self) -> int:
        """As of the delay levels' report."""
        return self.delivered


NOTHING_TIMED = TimerReport()
