"""The delay levels of a broker: `messageDelayLevel`. Java: MessageStoreConfig, DefaultMessageStore.parseDelayLevel."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_LEVEL = re.compile("[0-9]{1,10}[smhd]")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@lru_cache(maxsize=8)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in milliseconds; level 1 is element 0.

    Raises ValueError where an element is not a number followed by s, m, h or d, or is more than the years that a time may lie ahead.
    """
    delays = []
    for element in text.split():
        if not _LEVEL.fullmatch(element):
            raise ValueError(f"{element!r:.40} is not a number of up to 10 digits followed by s, m, h or d")
        delays.append(int(element[:-1]) * _UNIT_MS[element[-1]])
    return tuple(delays)


def deliver_time_ms(level: int, store_time_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message of that level is due; levels above the last count as the last (Java: computeDeliverTimestamp)."""
    return int(due_codes(np.array([level]), store_time_ms, delays_ms)[0])


def due_codes(levels: np.ndarray, from_ms: np.ndarray | int, delays_ms: tuple[int, ...]) -> np.ndarray:
    """The tags codes of messages in the schedule topic, int64: when each is due by its level, from 1 on;
    one above the last is the last.

    `from_ms` is the store time, or what stands for it. The one rule for records that are read and for those that are made.
    Java: CommitLog.checkMessageAndReturnSize, ScheduleMessageService.computeDeliverTimestamp.
    """
    return np.asarray(np.array(delays_ms, np.int64)[np.clip(levels, 1, len(delays_ms)) - 1] + from_ms)
