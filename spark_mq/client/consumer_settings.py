"""How a consumer behaves. Java: DefaultMQPushConsumer, DefaultLitePullConsumer; the same names in our spelling, the same defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spark_mq.client.allocation import Allocation, Averagely
from spark_mq.client.errors import ClientSettingError
from spark_mq.client.first_offsets import ConsumeFrom
from spark_mq.client.process_queue import FlowLimits
from spark_mq.client.settings import check_range
from spark_mq.remoting.consumers import MessageModel
from storage.epoch_times import current_time_ms, other_unit_rule

_HALF_HOUR_MS = 30 * 60_000
MAX_RECONSUME_TIMES = 16
"""Tries after the first one of a concurrent consumer that names no number."""


def default_offset_directory() -> Path:
    """Where Java's clients keep a broadcast's offsets too. Java: LOCAL_OFFSET_STORE_DIR."""
    return Path.home() / ".rocketmq_offsets"


def _half_an_hour_ago() -> int:
    return current_time_ms() - _HALF_HOUR_MS


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Of a push consumer. Times are ms. All clients of a group must agree on model, allocation and where to begin."""

    model: MessageModel = MessageModel.CLUSTERING
    allocation: Allocation = field(default_factory=Averagely)
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where a group begins that has no stored offset."""
    consume_time_ms: int = field(default_factory=_half_an_hour_ago)
    """… with `ConsumeFrom.TIMESTAMP`."""
    thread_count: int = 20
    batch_size: int = 1
    """Messages of a listener's call, at most."""
    pull_limit: int = 32
    """Messages of a pull, at most; brokers give no more than 32 by default."""
    pull_limit_bytes: int = 262_144
    pull_interval_ms: int = 0
    queue_limit: int = 1_000
    """Messages that may wait in a queue before pulling pauses."""
    queue_limit_mib: int = 100
    span_limit: int = 2_000
    """Offsets between a queue's first unfinished message and its last (concurrent)."""
    max_reconsume_times: int | None = None
    """Tries after the first; None: 16 for a concurrent listener, for ever for an orderly one."""
    consume_timeout_ms: int = 15 * 60_000
    """A concurrent listener that takes longer loses the message to the next try."""
    suspend_ms: int = 1_000
    """How long an orderly queue waits after a failure."""
    sends_subscription: bool = False
    """Whether pulls carry the subscription, for groups whose clients subscribe differently. Java: postSubscriptionWhenPull."""
    offset_directory: Path | None = None
    """Of a broadcast; None: where Java's clients keep theirs."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("thread_count", 1, 1_000),
            ("batch_size", 1, 1_024),
            ("pull_limit", 1, 1_024),
            ("pull_limit_bytes", 1, 2**31 - 1),
            ("pull_interval_ms", 0, 65_535),
            ("queue_limit", 1, 65_535),
            ("queue_limit_mib", 1, 1_024),
            ("span_limit", 1, 65_535),
            ("consume_timeout_ms", 1, 2**53),
            ("suspend_ms", 0, 2**31 - 1),
            ("consume_time_ms", 0, 2**53),
        ):
            check_range(self, name, least, most)
        _check_time(self.consume_time_ms)
        if self.max_reconsume_times is not None:
            check_range(self, "max_reconsume_times", 0, 2**31 - 1)

    def flow_limits(self, *, is_orderly: bool) -> FlowLimits:
        """What may wait in a queue."""
        return FlowLimits(self.queue_limit, self.queue_limit_mib, None if is_orderly else self.span_limit)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Of a pull consumer. Times are ms."""

    model: MessageModel = MessageModel.CLUSTERING
    allocation: Allocation = field(default_factory=Averagely)
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where a group begins that has no stored offset."""
    consume_time_ms: int = field(default_factory=_half_an_hour_ago)
    """… with `ConsumeFrom.TIMESTAMP`."""
    auto_commit: bool = True
    """Whether what is consumed is stored every now and then, by the calls of `poll`."""
    auto_commit_interval_ms: int = 5_000
    poll_limit: int = 500
    """Messages of a poll, at most."""
    pull_limit: int = 32
    """Messages of a pull, at most. Java's lite pull consumer asks for 10; brokers give no more than 32 by default."""
    buffer_limit: int = 10_000
    """Messages that may wait in all queues before pulling pauses."""
    queue_limit: int = 1_000
    queue_limit_mib: int = 100
    span_limit: int = 2_000
    """Offsets between a queue's first unfinished message and its last."""
    offset_directory: Path | None = None
    """Of a broadcast; None: where Java's clients keep theirs."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("auto_commit_interval_ms", 1, 2**53),
            ("poll_limit", 1, 2**31 - 1),
            ("pull_limit", 1, 1_024),
            ("buffer_limit", 1, 2**31 - 1),
            ("queue_limit", 1, 65_535),
            ("queue_limit_mib", 1, 1_024),
            ("span_limit", 1, 65_535),
            ("consume_time_ms", 0, 2**53),
        ):
            check_range(self, name, least, most)
        _check_time(self.consume_time_ms)

    def flow_limits(self) -> FlowLimits:
        """What may wait in a queue."""
        return FlowLimits(self.queue_limit, self.queue_limit_mib, self.span_limit)


def _check_time(consume_time_ms: int) -> None:
    rule = other_unit_rule(consume_time_ms)
    if rule is not None:
        raise ClientSettingError("consume_time_ms", consume_time_ms, rule)
