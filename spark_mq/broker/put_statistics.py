"""What was put, by topic and altogether, since the broker began. Java: BrokerStatsManager, StatsItem.

A message counts under the topic it was stored in: a delayed one under SCHEDULE_TOPIC_XXXX, a half under the half topic.
Not followed: rates by minute, hour and day, which whoever reads the sums can take.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

from storage.format.delay_level import SCHEDULE_TOPIC
from storage.names import is_system_topic


@dataclass(slots=True)
class Sum:
    """A value and how often something was added to it."""

    value: int = 0
    times: int = 0

    def add(self, value: int, times: int = 1) -> None:
        self.value += value
        self.times += times


def _sums() -> defaultdict[str, Sum]:
    return defaultdict(Sum)


@dataclass(slots=True)
class PutStatistics:
    """Sums of one broker, of all its handlers and their threads.

    Keys are topics; `topic@queue`, `queue@topic` and `topic@group` where the name says so.
    """

    broker_name: str | None = None
    cluster_name: str | None = None
    topic_put_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    topic_put_size: defaultdict[str, Sum] = field(default_factory=_sums)
    """Bytes of records."""
    topic_put_latency: defaultdict[str, Sum] = field(default_factory=_sums)
    """Milliseconds, by `queue@topic` with the queue that the client was told."""
    queue_put_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """By `topic@queue`, of the schedule topic only: messages by delay level."""
    queue_put_size: defaultdict[str, Sum] = field(default_factory=_sums)
    send_back_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """By `topic@group`: messages that a group gave back."""
    transaction_nums: defaultdict[str, Sum] = field(default_factory=_sums)
    """Half messages by their real topic. Java: TransactionMetrics."""
    broker_put_nums: int = 0
    broker_put_nums_without_system_topic: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def put(self, topic: str, queue_id: int, message_count: int, size_bytes: int) -> None:
        """Count what one put stored. Java: SendMessageProcessor.handlePutMessageResult, EndTransactionProcessor.sendFinalMessage."""
        with self._lock:
            self.put_by_topic(topic, queue_id, message_count, size_bytes)
            self.broker_put_nums += message_count
            if not is_system_topic(topic, broker_name=self.broker_name, cluster_name=self.cluster_name):
                self.broker_put_nums_without_system_topic += message_count

    def put_by_topic(self, topic: str, queue_id: int, message_count: int, size_bytes: int) -> None:
        """Count it by its topic, and by its level where it waits, but not as the broker's."""
        with self._lock:
            if topic == SCHEDULE_TOPIC:
                self.queue_put_nums[f"{topic}@{queue_id}"].add(message_count)
                self.queue_put_size[f"{topic}@{queue_id}"].add(size_bytes)
            self.topic_put_nums[topic].add(message_count)
            self.topic_put_size[topic].add(size_bytes)

    def put_latency(self, topic: str, answered_queue_id: int, latency_ms: int) -> None:
        """Count how long a send took. Java: BrokerStatsManager.incTopicPutLatency."""
        with self._lock:
            self.topic_put_latency[f"{answered_queue_id}@{topic}"].add(latency_ms)

    def send_back(self, group: str, topic: str) -> None:
        """Count a message that a group gave back. Java: BrokerStatsManager.incSendBackNums."""
        with self._lock:
            self.send_back_nums[f"{topic}@{group}"].add(1)

    def prepared(self, topic: str) -> None:
        """Count a half message by its real topic. Java: TransactionMetrics.addAndGet."""
        with self._lock:
            self.transaction_nums[topic].add(1)
