"""What a thread notes every few seconds, so that pages can show rates and a group's lag over time. Kept in memory, for some hours.

sample ──▶ ends of topics ──▶ messages a second
       └─▶ who is behind (`spark_mq/lag/`) ──▶ unread messages of each group and topic
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_mq.console.views import LONGEST_WAIT_S, BusyError, Views
from spark_mq.lag.figures import GroupLag, LagReport, Reader
from spark_mq.terminal import describe, why_missing
from storage.epoch_times import current_time_ms

INTERVAL_S = 15.0
KEPT = 960
VALUES_KEPT = 4 << 20
"""Of all groups and topics; eight bytes each. With 10,000 pairs of them looks are kept for an hour and a half."""
RATE_MS = 60_000
"""Rates are of the last minute, or of as much of it as was seen."""
_REST = 9
"""After a look so many times its length is rest: a cluster of very many topics is not asked all the time."""
_LOG = logging.getLogger(__name__)


_UNKNOWN = -1


class _Ends(NamedTuple):
    """How many messages ever came to each topic. One whose queues were not all seen is missing."""

    time_ms: int
    of_topics: Mapping[str, int]
    incomplete: frozenset[str]


class Samples:
    """The samples of one process, and the newest report of who is behind. For several threads."""

    def __init__(
        self, views: Views, *, interval_s: float = INTERVAL_S, clock: Callable[[], int] = current_time_ms
    ) -> None:
        self._views = views
        self._interval_s = interval_s
        self._clock = clock
        self._times = array("q")
        self._unread: dict[tuple[Reader, str], array[int]] = {}
        """Of each reader and topic a value for each of the times, _UNKNOWN for none."""
        self._queue_counts: Mapping[tuple[Reader, str], int] = {}
        """Of the last look that had all brokers."""
        self._last_ends: deque[_Ends] = deque()
        self._report: LagReport | None = None
        self._lock = threading.Lock()
        self._has_looked = threading.Event()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-samples", daemon=True)
        self._error: Exception | None = None
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
            self._has_looked.set()
            took_s = time.monotonic() - begin_s
            self._ends.wait(max(self._interval_s, _REST * took_s))

    def _note(self, error: Exception) -> None:
        described = describe(error)
        text = repr(error) if described is None else described.text
        self._error = error
        if text != self.trouble:
            _LOG.warning("no sample: %s", text, exc_info=described is None)
        self.trouble = text

    def take(self) -> LagReport:
        """Take a sample now; returns who is behind. Raises what `lags` raises.

        The report stands without the ends of topics: a broker that does not answer must not take away who is behind at the others.
        """
        report = self._views.lags()
        now_ms = self._clock()
        with self._lock:
            self._report = report
            self._add(now_ms, report)
        trouble = why_missing(report.errors[0]) if report.errors else None
        try:
            ends = self._ends_now(now_ms)
        except Exception as error:
            self._note(error)
            return report
        with self._lock:
            self._last_ends.append(ends)
            while len(self._last_ends) > 2 and self._last_ends[0].time_ms < now_ms - RATE_MS:
                self._last_ends.popleft()
        self.trouble = trouble
        return report

    def _ends_now(self, now_ms: int) -> _Ends:
        ends: dict[str, int] = {}
        with self._views.opened(wait_s=None) as view:
            for queue in view.place.queues(None):
                ends[queue.topic] = ends.get(queue.topic, 0) + view.place.bounds(queue)[1]
            incomplete = frozenset(view.incomplete)
        return _Ends(now_ms, {topic: end for topic, end in ends.items() if topic not in incomplete}, incomplete)

    def _add(self, now_ms: int, report: LagReport) -> None:
        """Add a value of each reader and topic. The caller has the lock."""
        now = {(each.reader, topic): lag for each in report.groups for topic, lag in _by_topic(each).items()}
        counts = Counter((each.reader, queue.queue.topic) for each in report.groups for queue in each.queues)
        if not report.errors:
            self._queue_counts = counts
        for pair in now:
            if counts[pair] < self._queue_counts.get(pair, 0):  # the others are at a broker that did not answer
                now[pair] = None
        before = len(self._times)
        for pair in now.keys() - self._unread.keys():
            self._unread[pair] = array("q", [_UNKNOWN]) * before
        self._times.append(now_ms)
        too_many = max(0, len(self._times) - min(KEPT, max(2, VALUES_KEPT // max(1, len(self._unread)))))
        del self._times[:too_many]
        for pair, values in list(self._unread.items()):
            lag = now.get(pair)
            values.append(_UNKNOWN if lag is None else lag)
            del values[:too_many]
            if pair not in now and max(values) == _UNKNOWN:  # it is gone for as long as samples are kept
                del self._unread[pair]

    def report(self) -> LagReport:
        """Who is behind, by the last look that succeeded. The first one is waited for; BusyError where it takes long.

        If looks have failed until now, raises the last one's error: the next look of the thread may succeed.
        """
        if (found := self._newest()) is None and self._has_looked.wait(LONGEST_WAIT_S):
            found = self._newest()
        if found is None:
            raise BusyError("the first look at who is behind takes long: a broker may not answer")
        return found

    def _newest(self) -> LagReport | None:
        with self._lock:
            if self._report is None and self._error is not None:
                raise self._error.with_traceback(None)
            return self._report

    def rates(self) -> dict[str, float]:
        """Messages a second of each topic; of none before the second sample."""
        with self._lock:
            kept = list(self._last_ends)
        if len(kept) < 2:
            return {}
        last = kept[-1]
        first = next((each for each in kept if each.time_ms >= last.time_ms - RATE_MS), last)
        first = kept[-2] if first is last else first
        elapsed_ms = last.time_ms - first.time_ms
        if elapsed_ms <= 0:
            return {}
        return {
            topic: (end - first.of_topics.get(topic, 0)) * 1_000 / elapsed_ms
            for topic, end in last.of_topics.items()
            if topic not in first.incomplete
            and end >= first.of_topics.get(topic, 0)  # else it was deleted and made again
        }

    def series(self, reader: Reader) -> dict[str, Any]:
        """Times in seconds, and the unread messages of each topic at each of them; null = unknown. For the plot."""
        with self._lock:
            times = list(self._times)
            found = {topic: list(values) for (of, topic), values in self._unread.items() if of == reader}
        return {
            "times": [each / 1_000 for each in times],
            "series": [
                {"label": topic, "values": [None if each == _UNKNOWN else each for each in found[topic]]}
                for topic in sorted(found)
            ],
        }


def _by_topic(group: GroupLag) -> dict[str, int | None]:
    """A topic has no lag while the lag of one of its queues is unknown: the sum of the others would be too small."""
    found: dict[str, int | None] = {}
    for each in group.queues:
        known = found.get(each.queue.topic, 0)
        found[each.queue.topic] = None if known is None or each.lag is None else known + each.lag
    return found
