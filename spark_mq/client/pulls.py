"""A pull and its answer, as values. Java: PullMessageRequestHeader, PullSysFlag, PullResult, PullAPIWrapper.processPullResult.

The answer says where to go on (`next_offset`): also over what the broker's filter left out, so nobody counts messages.
Not supported: inner batches (BatchCQ), class filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_mq.client.message import MessageExt, MessageQueue, decode_records
from spark_mq.client.subscriptions import Subscription
from storage.format.record import Message as Record
from storage.rules.response_codes import ResponseCode

COMMITS_OFFSET = 0x1
MAY_SUSPEND = 0x2
HAS_SUBSCRIPTION = 0x4
IS_LITE = 0x10


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


@dataclass(frozen=True, slots=True)
class Pull:
    """What is asked of one queue. `suspend_ms` above 0 lets the broker wait so long for messages."""

    queue: MessageQueue
    offset: int
    subscription: Subscription
    limit: int = 32
    suspend_ms: int = 15_000
    limit_bytes: int = 262_144
    """Said to the broker, which ignores it up to 5.3.3."""
    committed_offset: int | None = None
    """Stored by the broker as the group's offset before it answers; only a master does."""
    sends_subscription: bool = False
    """The subscription counts as sent, not as the heartbeat said: for consumers that assign queues themselves."""
    is_lite: bool = False

    def sys_flag(self, *, at_master: bool) -> int:
        """The request's flag. Java: PullSysFlag.buildSysFlag; no offset is stored by way of a slave."""
        return (
            COMMITS_OFFSET * (self.committed_offset is not None and at_master)
            | MAY_SUSPEND * (self.suspend_ms > 0)
            | HAS_SUBSCRIPTION * self.sends_subscription
            | IS_LITE * self.is_lite
        )

    def subscription_version(self) -> int:
        """Lite pulls by tags say 0, so that no broker waits for a newer heartbeat. Java: DefaultLitePullConsumerImpl.pullSyncImpl."""
        by_tags = self.subscription.expression_type == "TAG"
        return 0 if self.is_lite and by_tags else self.subscription.version


@dataclass(frozen=True, slots=True)
class PullResult:
    """A broker's answer: where to go on, the queue's ends, and the records as they stand in its log."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0
    """Whom to ask next time: the master (0) or a slave."""
    offset_delta: int = 0
    """What to add to the records' offsets: those of a static topic are another broker's."""
    records: bytes | memoryview = b""


def pulled_messages(
    result: PullResult, queue: MessageQueue, wanted: Subscription, topic_of: Callable[[Record], str]
) -> list[MessageExt]:
    """The messages of a result that the subscription admits. `topic_of` gives the name under which the program knows the topic.

    Raises CorruptRecordError where the bytes are no records.
    """
    if result.status is not PullStatus.FOUND:
        return []
    return [
        MessageExt(
            topic_of(record),
            queue.broker_name,
            queue.queue_id,
            record.queue_offset + result.offset_delta,
            record.reconsume_times,
            record,
            result.min_offset,
            result.max_offset,
        )
        for record in decode_records(result.records)
        if wanted.admits(record.tags)
    ]
