"""Brokers that were slow or failed are left out for a while, where the producer asks for that (`avoids_slow_brokers`).

    a try took at least   0   50  100   550   1,800   3,000    5,000   15,000 ms
    left out for          0    0    0  2,000   5,000   6,000   10,000   30,000 ms      a failed try counts as 10,000

Java: MQFaultStrategy, LatencyFaultToleranceImpl, by the machine's clock: one that is set back makes its bans longer. Owned by one
thread. Not supported: the detector (startDetectorEnable, off by
default), which looks whether a broker that could not be reached is there again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage.epoch_times import steady_time_ms

FAILED_COUNTS_AS_MS = 10_000
_BANS_MS = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)


@dataclass(slots=True)
class _Fault:
    is_reachable: bool = True
    available_from_ms: int = 0


class LatencyFaults:
    """What the tries so far say of each broker, by name."""

    def __init__(self, clock: Callable[[], int] = steady_time_ms) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}

    def note(self, broker_name: str, latency_ms: int, *, has_failed: bool = False, is_reachable: bool = True) -> None:
        """A try ended. A ban that is under way is never shortened."""
        fault = self._faults.setdefault(broker_name, _Fault())
        fault.is_reachable = is_reachable
        ban = ban_ms(FAILED_COUNTS_AS_MS if has_failed else latency_ms)
        if ban:
            fault.available_from_ms = max(fault.available_from_ms, self._clock() + ban)

    def is_available(self, broker_name: str) -> bool:
        """Whether it is not banned now."""
        fault = self._faults.get(broker_name)
        return fault is None or self._clock() >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Whether the last try reached it."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.is_reachable


def ban_ms(latency_ms: int) -> int:
    """For how long a broker is left out after a try that took so long. Java: computeNotAvailableDuration."""
    return next((ban for least, ban in _BANS_MS if latency_ms >= least), 0)
