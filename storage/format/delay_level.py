"""The delay levels of a broker: `messageDelayLevel`. Java: MessageStoreConfig, DefaultMessageStore.parseDelayLevel."""

from __future__ import annotations

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in milliseconds; level 1 is element 0.

    Raises ValueError where an element is not a number followed by s, m, h or d.
    """
    delays = []
    for element in text.split():
        if element[-1] not in _UNIT_MS or not element[:-1].isdigit():
            raise ValueError(f"{element!r} is not a number followed by s, m, h or d")
        delays.append(int(element[:-1]) * _UNIT_MS[element[-1]])
    return tuple(delays)


def deliver_time_ms(level: int, store_time_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message of that level is due; levels above the last count as the last (Java: computeDeliverTimestamp)."""
    return store_time_ms + delays_ms[min(level, len(delays_ms)) - 1]
