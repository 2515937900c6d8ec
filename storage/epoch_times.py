"""Milliseconds since 1970: the clocks, and a check for numbers that are seconds, microseconds or nanoseconds instead.

Read as milliseconds, present seconds lie in January 1970 and present microseconds after the year 30000. A read from there gives every
message or none, without an error. So a number is refused if it is a time from 2000 to 2100 in another unit; as milliseconds, no such
number is a time from 1971 to 5000. Java: a broker takes any number.
"""

from __future__ import annotations

import time

_FROM_S = 946_684_800  # 2000-01-01
_TO_S = 4_102_444_800  # 2100-01-01
_UNITS = (("seconds", 1), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000))


def steady_time_ms() -> int:
    """A clock for durations only: its zero is arbitrary, and setting the machine's clock does not change it.

    It measures silence, idle times and expiry in memory. Departure: Java uses System.currentTimeMillis for most of these, so setting
    the clock forward by two minutes closes its connections, empties its routes and frees its locks.
    """
    return time.monotonic_ns() // 1_000_000


def current_time_ms() -> int:
    """The machine's clock, for times that are stored or sent. Java: System.currentTimeMillis."""
    return time.time_ns() // 1_000_000


def shown_time_ms(steady_ms: int) -> int:
    """The machine's time (as the clock is set now) of a moment of the steady clock, for display."""
    return current_time_ms() - (steady_time_ms() - steady_ms)


def is_time(now_ms: int, last_ms: int, interval_ms: int) -> bool:
    """Whether work that repeats every `interval_ms` is due. It is due at once if the clock was set back since the last time."""
    return not 0 <= now_ms - last_ms < interval_ms


def other_unit_rule(number: int) -> str | None:
    """Why a number of milliseconds looks like another unit, with the value that was probably meant; None if it does not."""
    for unit, per_second in _UNITS:
        if _FROM_S * per_second <= number < _TO_S * per_second:
            meant_ms = number * 1_000 // per_second
            return f"{number} looks like {unit}, and milliseconds since 1970 are expected: write {meant_ms}"
    return None
