"""Milliseconds since 1970: now, and numbers that ought to be such and are seconds, microseconds or nanoseconds.

Taken as milliseconds, the seconds of our days lie in January 1970 and the microseconds behind the year 30000. A read that starts there
gives every message or none, without an error. So a number is refused that is a time from 2000 to 2100 in another unit; in milliseconds
none of these is a time from 1971 to 5000. Java: a broker takes any number.
"""

from __future__ import annotations

import time

_FROM_S = 946_684_800  # 2000-01-01
_TO_S = 4_102_444_800  # 2100-01-01
_UNITS = (("seconds", 1), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000))


def steady_time_ms() -> int:
    """For lengths of time alone: nobody can set this clock, and it begins anywhere.

    Who is silent, what is idle and what expires in memory is judged by it. Departure: Java takes System.currentTimeMillis for most of
    these, so a clock that is set forward by two minutes closes its connections, empties its routes and frees its locks.
    """
    return time.monotonic_ns() // 1_000_000


def current_time_ms() -> int:
    """The machine's clock, for times that are stored or sent. Java: System.currentTimeMillis."""
    return time.time_ns() // 1_000_000


def shown_time_ms(steady_ms: int) -> int:
    """When a moment of the steady clock was, by the machine's clock as it is set now: for people to read."""
    return current_time_ms() - (steady_time_ms() - steady_ms)


def is_time(now_ms: int, last_ms: int, interval_ms: int) -> bool:
    """Whether something is to be done again that is done at intervals: also at once where the clock was set back since."""
    return not 0 <= now_ms - last_ms < interval_ms


def other_unit_rule(number: int) -> str | None:
    """What is wrong with a number of milliseconds that looks like one of another unit, with the value that was meant; else None."""
    for unit, per_second in _UNITS:
        if _FROM_S * per_second <= number < _TO_S * per_second:
            meant_ms = number * 1_000 // per_second
            return f"{number} looks like {unit}, and milliseconds since 1970 are expected: write {meant_ms}"
    return None
