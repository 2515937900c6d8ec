"""What was put, by topic and in total: since a broker started, in a run of a job, or in a batch of a sink. Java: BrokerStatsManager,
StatsItem.

A message counts under the topic it was stored in: a delayed one under SCHEDULE_TOPIC_XXXX, a half under the half topic.
Not supported: rates by minute, hour and day, which a reader can derive from the sums.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from storage.epoch_times import is_time
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import is_system_topic
from storage.pending import PutStatus

NO_QUEUE = -1
"""Of messages that count by topic alone."""


@dataclass(slots=True)
class Sum:
    """A sum and how many additions it has."""

    value: int = 0
    times: int = 0

    def add(self, value: int, times: int = 1) -> None:
        self.value += value
        self.times += times


class TopicSum(NamedTuple):
    """What was put into one topic."""

    messages: int
    size_bytes: int
    """Bytes of the records."""


def _sums() -> defaultdict[str, Sum]:
    return defaultdict(Sum)


@dataclass(slots=True)
class PutStatistics:
    """Sums of one broker (all handlers and threads), of one run or of one batch.

    Keys are topics, or `topic@queue`, `queue@topic` and `topic@group` if the name says so.
    """

    broker_name: str | None = None
    cluster_name: str | None = None
    topic_put_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    topic_put_size: defaultdict[str, Sum] = field(default_factory=_sums)
    """Bytes of records."""
    topic_put_latency: defaultdict[str, Sum] = field(default_factory=_sums)
    """Milliseconds, by `queue@topic`, with the queue in the client's answer."""
    queue_put_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """By `topic@queue`, of the schedule topic only: messages of each delay level."""
    queue_put_size: defaultdict[str, Sum] = field(default_factory=_sums)
    send_back_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """By `topic@group`: messages that a group gave back."""
    transaction_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """Half messages by their real topic. Java: TransactionMetrics."""
    broker_put_nums: int = 0
    broker_put_nums_without_system_topic: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def put(self, topic: str, queue_id: int, message_count: int, size_bytes: int, times: int = 1) -> None:
        """Count what one put stored, or what `times` puts stored together.

        Java: SendMessageProcessor.handlePutMessageResult, EndTransactionProcessor.sendFinalMessage.
        """
        with self._lock:
            self.put_by_topic(topic, queue_id, message_count, size_bytes, times)
            self.broker_put_nums += message_count
            if not is_system_topic(topic, broker_name=self.broker_name, cluster_name=self.cluster_name):
                self.broker_put_nums_without_system_topic += message_count

    def put_columns(
        self,
        queues: Sequence[tuple[str, int]],
        queue_codes: np.ndarray,
        sizes_bytes: np.ndarray,
        *,
        are_single: bool = False,
    ) -> None:
        """Count many rows: each has its number among `queues` and its bytes. `are_single` = each is a put of its own."""
        counts = np.bincount(queue_codes, minlength=len(queues)).tolist()
        sizes = np.bincount(queue_codes, sizes_bytes, len(queues)).tolist()  # exact below 2^53
        for (topic, queue_id), count, size in zip(queues, counts, sizes, strict=True):
            if count:
                self.put(topic, queue_id, count, int(size), count if are_single else 1)

    @property
    def topics(self) -> dict[str, TopicSum]:
        """By topic, the one with the most bytes first."""
        with self._lock:
            names = self.topic_put_nums
            found = {name: TopicSum(nums.value, self.topic_put_size[name].value) for name, nums in names.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1].size_bytes))

    def line(self) -> str:
        """A line to display; "" if nothing was put."""
        topics = self.topics
        size = sum(one.size_bytes for one in topics.values())
        parts = ", ".join(f"{topic} {one.messages:,}" for topic, one in topics.items())
        return f"put {self.broker_put_nums:,} messages of {size:,} bytes: {parts}" if topics else ""

    def put_by_topic(self, topic: str, queue_id: int, message_count: int, size_bytes: int, times: int = 1) -> None:
        """Count by topic, and by level for a delayed message, but not in the broker's totals."""
        with self._lock:
            if topic == SCHEDULE_TOPIC and queue_id != NO_QUEUE:
                self.queue_put_nums[f"{topic}@{queue_id}"].add(message_count, times)
                self.queue_put_size[f"{topic}@{queue_id}"].add(size_bytes, times)
            self.topic_put_nums[topic].add(message_count, times)
            self.topic_put_size[topic].add(size_bytes, times)

    def put_latency(self, topic: str, answered_queue_id: int, latency_ms: int, times: int = 1) -> None:
        """Count the latency of `times` sends. Java: BrokerStatsManager.incTopicPutLatency."""
        with self._lock:
            self.topic_put_latency[f"{answered_queue_id}@{topic}"].add(latency_ms * times, times)

    def send_back(self, group: str, topic: str) -> None:
        """Count a message that a group gave back. Java: BrokerStatsManager.incSendBackNums."""
        with self._lock:
            self.send_back_nums[f"{topic}@{group}"].add(1)

    def prepared(self, topic: str) -> None:
        """Count a half message by its real topic. Java: TransactionMetrics.addAndGet."""
        with self._lock:
            self.transaction_nums[topic].add(1)


_MINUTE_MS = 60_000
_CLASSES = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]"),
    *("[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
_CLASS_STARTS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_STEPS_MS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))
_LONG_MAX = 2**63 - 1
_BUCKETS_MS = (*accumulate(step for step, times in _STEPS_MS for _ in range(times)), _LONG_MAX)
"""The greatest time of each. Java: StoreStatsService.PUT_MESSAGE_ENTIRE_TIME_BUCKETS."""
_COUNTED_REFUSALS = frozenset(
    {
        *(PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH),
        PutStatus.CREATE_MAPPED_FILE_FAILED,
    }
)
"""What Java's CommitLog refuses. What a PutMessageHook refuses counts nowhere."""


class PutTimes:
    """How long puts took, and how many failed. Thread-safe.

    Times are those of the last whole minute, except the longest one; a put is one call, a batch too. Java: StoreStatsService.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = self._longest_ms = 0
        self._now: Counter[int] = Counter()
        self._last: Counter[int] | None = None
        self._began_ms: int | None = None

    def add(self, took_ms: int, puts: int = 1, *, failed: bool = False) -> None:
        """Count puts that took so long. Java: setPutMessageEntireTimeMax."""
        with self._lock:
            self._now[took_ms] += puts
            self._longest_ms = max(self._longest_ms, took_ms)
            self._failed += puts if failed else 0

    def refused(self, status: PutStatus, puts: int = 1) -> None:
        """Count puts that were refused before the log was touched."""
        if status in _COUNTED_REFUSALS:
            self.add(0, puts, failed=True)

    def look(self, now_ms: int) -> None:
        """Begin another minute if this one is over. Java: printTps."""
        with self._lock:
            if self._began_ms is None:
                self._began_ms = now_ms
            elif is_time(now_ms, self._began_ms, _MINUTE_MS):
                self._began_ms, self._last, self._now = now_ms, self._now, Counter()

    def texts(self) -> dict[str, str]:
        """The figures by Java's names."""
        with self._lock:
            failed, longest_ms, last = self._failed, self._longest_ms, self._last
        classes = [0] * len(_CLASSES)
        for took_ms, count in (last or {}).items():
            classes[bisect_right(_CLASS_STARTS_MS, took_ms)] += count
        shown = "".join(f"{name}:{count} " for name, count in zip(_CLASSES, classes, strict=True))
        return {
            "putMessageEntireTimeMax": str(longest_ms),
            "putMessageFailedTimes": str(failed),
            "putMessageDistributeTime": "null" if last is None else shown,
            "putLatency99": _two_places(_quantile_ms(last or Counter(), 0.99)),
            "putLatency999": _two_places(_quantile_ms(last or Counter(), 0.999)),
        }


def _quantile_ms(times: Counter[int], share: float) -> float:
    """The time within which so many puts ended, read off the buckets. Java: findPutMessageEntireTimePX."""
    counts = [0] * len(_BUCKETS_MS)
    for took_ms, count in times.items():
        counts[bisect_left(_BUCKETS_MS, took_ms)] += count
    rest, before = int(sum(counts) * share), 0
    for bucket, count in zip(_BUCKETS_MS, counts, strict=True):
        if times and rest <= count:
            return before + (bucket - before) * rest / count if count else float(before)
        rest, before = rest - count, bucket
    return 0.0


def _two_places(value: float) -> str:
    return str(Decimal(repr(value)).quantize(Decimal("0.01"), ROUND_HALF_UP))
