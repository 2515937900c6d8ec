"""What was put, by topic and in total: since a broker started, in a run of a job, or in a batch of a sink. Java: BrokerStatsManager,
StatsItem.

A message counts under the topic it was stored in: a delayed one under SCHEDULE_TOPIC_XXXX, a half under the half topic.
Not supported: rates by minute, hour and day, which a reader can derive from the sums.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from storage.format.delay import SCHEDULE_TOPIC
from storage.names import is_system_topic


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
            if topic == SCHEDULE_TOPIC:
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
