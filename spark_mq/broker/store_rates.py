"""Puts and gets per second, by samples of every second. Java: StoreStatsService.

Not followed: how long single puts and gets take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from storage.epoch_times import is_time

SAMPLE_MS = 1_000
_SPANS = (10, 60, 600)
"""Over how many samples a rate is told."""


class _Sample(NamedTuple):
    time_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class StoreRates:
    """What a store is asked for. For one thread at a time; times are ms."""

    def __init__(self) -> None:
        self._found = self._missed = self._transferred = 0
        self._samples: deque[_Sample] = deque(maxlen=_SPANS[-1] + 1)
        self._sampled_ms = -SAMPLE_MS

    def got(self, messages: int) -> None:
        """Count one get and the messages that it found; 0 = it found none."""
        self._found += messages > 0
        self._missed += messages == 0
        self._transferred += messages

    def sample(self, now_ms: int, put: int) -> None:
        """Take the sample if it is due. `put` is how many messages were put since the broker began."""
        if is_time(now_ms, self._sampled_ms, SAMPLE_MS):
            if now_ms < self._sampled_ms:  # what was sampled by another clock tells no rate
                self._samples.clear()
            self._sampled_ms = now_ms
            self._samples.append(_Sample(now_ms, put, self._found, self._missed, self._transferred))

    def texts(self) -> dict[str, str]:
        """Each rate over 10, 60 and 600 seconds, by Java's names. What is not sampled long enough is left out; of the total it is 0."""
        put, found, missed, transferred = ([self._rate(item, count) for count in _SPANS] for item in range(1, 5))
        total = [(hit or 0.0) + (miss or 0.0) for hit, miss in zip(found, missed, strict=True)]
        rates: dict[str, Sequence[float | None]] = {
            "putTps": put,
            "getFoundTps": found,
            "getMissTps": missed,
            "getTotalTps": total,
            "getTransferredTps": transferred,
        }
        return {name: " ".join("" if rate is None else str(rate) for rate in each) for name, each in rates.items()}

    def _rate(self, item: int, count: int) -> float | None:
        if len(self._samples) <= count:
            return None
        first, last = self._samples[-count - 1], self._samples[-1]
        return (last[item] - first[item]) * 1_000.0 / max(1, last.time_ms - first.time_ms)
