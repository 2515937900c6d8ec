"""What a thread notes every few seconds, so that pages can show rates and a group's lag over time. Kept in memory, for some hours.

sample ──▶ ends of topics ──▶ messages a second
       └─▶ who is behind (`spark_mq/lag/`) ──▶ unread messages of each group and topic
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_mq.cli.output import describe
from spark_mq.console.views import Views
from spark_mq.lag.figures import GroupLag, LagReport, Reader
from storage.epoch_times import current_time_ms

INTERVAL_S = 15.0
KEPT = 960
RATE_MS = 60_000
"""Rates are of the last minute, or of as much of it as was seen."""
_REST = 9
"""After a look so many times its length is rest: a cluster of very many topics is not asked all the time."""
_LOG = logging.getLogger(__name__)


class Sample(NamedTuple):
    """One look. `ends` are how many messages ever came to each topic."""

    time_ms: int
    ends: Mapping[str, int]
    unread: Mapping[Reader, Mapping[str, int | None]]
    """By topic; None = unknown."""


class Samples:
    """The samples of one process, and the newest report of who is behind. For several threads."""

    def __init__(
        self, views: Views, *, interval_s: float = INTERVAL_S, clock: Callable[[], int] = current_time_ms
    ) -> None:
        self._views = views
        self._interval_s = interval_s
        self._clock = clock
        self._kept: deque[Sample] = deque(maxlen=KEPT)
        self._report: LagReport | None = None
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-samples", daemon=True)
        self.trouble: str | None = None
        """Why the last look failed."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the look that it is at."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            begin_s = time.monotonic()
            try:
                self.take()
            except Exception as error:  # the next look may succeed; until then pages say why there is none
                self._note(error)
            took_s = time.monotonic() - begin_s
            self._ends.wait(max(self._interval_s, _REST * took_s))

    def _note(self, error: Exception) -> None:
        described = describe(error)
        text = repr(error) if described is None else described.text
        if text != self.trouble:
            _LOG.warning("no sample: %s", text, exc_info=described is None)
        self.trouble = text

    def take(self) -> LagReport:
        """Take a sample now; returns who is behind. Raises what the views raise."""
        report = self._views.lags()
        ends: dict[str, int] = {}
        with self._views.opened() as view:
            for queue in view.place.queues(None):
                ends[queue.topic] = ends.get(queue.topic, 0) + view.place.bounds(queue)[1]
        with self._lock:
            self._kept.append(Sample(self._clock(), ends, {each.reader: _by_topic(each) for each in report.groups}))
            self._report = report
        self.trouble = None if not report.errors else str(report.errors[0])
        return report

    def report(self) -> LagReport:
        """Who is behind, by the last look, or by one that is made now."""
        with self._lock:
            found = self._report
        return self.take() if found is None else found

    def rates(self) -> dict[str, float]:
        """Messages a second of each topic; of none before the second sample."""
        with self._lock:
            kept = list(self._kept)
        if len(kept) < 2:
            return {}
        last = kept[-1]
        first = next((each for each in kept if each.time_ms >= last.time_ms - RATE_MS), last)
        first = kept[-2] if first is last else first
        elapsed_ms = last.time_ms - first.time_ms
        if elapsed_ms <= 0:
            return {}
        return {
            topic: (end - first.ends.get(topic, 0)) * 1_000 / elapsed_ms
            for topic, end in last.ends.items()
            if end >= first.ends.get(topic, 0)  # else it was deleted and made again
        }

    def series(self, reader: Reader) -> dict[str, Any]:
        """Times in seconds, and the unread messages of each topic at each of them; null = unknown. For the plot."""
        with self._lock:
            kept = list(self._kept)
        topics = sorted({topic for each in kept for topic in each.unread.get(reader, {})})
        return {
            "times": [each.time_ms / 1_000 for each in kept],
            "series": [
                {"label": topic, "values": [each.unread.get(reader, {}).get(topic) for each in kept]}
                for topic in topics
            ],
        }


def _by_topic(group: GroupLag) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for each in group.queues:
        known = found.get(each.queue.topic)
        found[each.queue.topic] = known if each.lag is None else (known or 0) + each.lag
    return found
