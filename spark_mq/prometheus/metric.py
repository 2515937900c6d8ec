"""A metric, its series, and sums that many threads add to. Java: the instruments of OpenTelemetry that RocketMQ's brokers use.

counters.add(MESSAGES_IN, ("TopicA", "normal", "false"), 32)       # once a put or a group of puts, not once a message
counters.observe_all(MESSAGE_SIZE, labels, sizes_bytes)            # a NumPy array
counters.families()                                                # what the page shows
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

SERIES_MOST = 50_000
"""Java: metricsOtelCardinalityLimit."""
_LOG = logging.getLogger(__name__)


class Kind(Enum):
    """The type of a metric, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric as it is served: its name with the unit, and the names of its own labels. Equal to itself alone."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, each included; the bucket without a bound is not among them."""
    fixed: tuple[tuple[str, str], ...] = ()
    """Labels that all its series have, with one value."""


class Distribution(NamedTuple):
    """A histogram's series: how many values each bucket has, the one without a bound last, and the sum of all values."""

    counts: tuple[int, ...]
    sum: float

    @property
    def cumulative(self) -> list[int]:
        """How many values are at most each bound; all of them last."""
        return list(accumulate(self.counts))


class Series(NamedTuple):
    """One line of a page, or the lines of one histogram. `labels` are in the order of the metric's."""

    labels: tuple[str, ...]
    value: float | Distribution


class Family(NamedTuple):
    """A metric with its series of one moment."""

    metric: Metric
    series: tuple[Series, ...]


def family(metric: Metric, series: Iterable[tuple[Iterable[str], float | Distribution]]) -> Family:
    """A metric with its series, from pairs of labels and value."""
    return Family(metric, tuple(Series(tuple(labels), value) for labels, value in series))


class _Sums:
    """A histogram's series while it grows."""

    __slots__ = ("counts", "sum")

    def __init__(self, metric: Metric) -> None:
        self.counts = [0] * (len(metric.bounds) + 1)
        self.sum: float = 0


class Counters:
    """Counters and histograms of one process, by metric and labels. Thread-safe; nothing is lost between threads.

    A metric takes `series_most` series at most. Values of further ones are dropped, with one line in the log, as OpenTelemetry drops
    them: so a client that sends to ever new topics cannot fill the memory.
    """

    def __init__(self, series_most: int = SERIES_MOST) -> None:
        self._series_most = series_most
        self._lock = threading.Lock()
        self._sums: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], _Sums]] = {}
        self._full: set[str] = set()

    def add(self, counter: Metric, labels: tuple[str, ...], value: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            series = self._sums.setdefault(counter, {})
            if labels in series:
                series[labels] += value
            elif self._has_room(counter, len(series)):
                series[labels] = value

    def observe(self, histogram: Metric, labels: tuple[str, ...], value: float, times: int = 1) -> None:
        """Count a value in a histogram, as often as it was seen."""
        with self._lock:
            if (found := self._of(histogram, labels)) is not None:
                found.counts[bisect_left(histogram.bounds, value)] += times
                found.sum += value * times

    def observe_all(self, histogram: Metric, labels: tuple[str, ...], values: np.ndarray) -> None:
        """Count many values in a histogram."""
        buckets = np.searchsorted(histogram.bounds, values)
        counts = np.bincount(buckets, minlength=len(histogram.bounds) + 1).tolist()
        self.merge(histogram, labels, Distribution(tuple(counts), float(values.sum())))

    def merge(self, histogram: Metric, labels: tuple[str, ...], more: Distribution) -> None:
        """Add what was counted elsewhere by the same bounds."""
        with self._lock:
            if (found := self._of(histogram, labels)) is not None:
                found.counts = [have + add for have, add in zip(found.counts, more.counts, strict=True)]
                found.sum += more.sum

    def families(self) -> Iterator[Family]:
        """All of them that have a series."""
        with self._lock:
            found = [family(metric, series.items()) for metric, series in self._sums.items() if series]
            found += [
                family(
                    metric, ((labels, Distribution(tuple(each.counts), each.sum)) for labels, each in series.items())
                )
                for metric, series in self._histograms.items()
                if series
            ]
        yield from found

    def _of(self, histogram: Metric, labels: tuple[str, ...]) -> _Sums | None:
        series = self._histograms.setdefault(histogram, {})
        found = series.get(labels)
        if found is None and self._has_room(histogram, len(series)):
            found = series[labels] = _Sums(histogram)
        return found

    def _has_room(self, metric: Metric, count: int) -> bool:
        if count < self._series_most:
            return True
        if metric.name not in self._full:
            self._full.add(metric.name)
            _LOG.warning("%s has %d series: further ones are not counted", metric.name, count)
        return False
