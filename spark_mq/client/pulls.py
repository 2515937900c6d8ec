"""Subscription, pull request and pull answer, as values.

The answer says where to continue (`next_offset`). This includes messages that the broker's filter left out, so the caller never
counts messages.

Java: SubscriptionData, FilterAPI, PullMessageRequestHeader, PullSysFlag, PullResult, PullAPIWrapper.processPullResult.
Not supported: inner batches (BatchCQ), class filters, which brokers from 5.0 on do not have either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, get_args

from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import request_text, response_error
from spark_mq.client.message import MessageExt, MessageQueue, decode_records
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.consumers import SubscriptionData
from spark_mq.remoting.messages import PullMessageAnswer, PullMessageRequest
from storage.format.arrays import string_hash
from storage.format.record import Message as Record
from storage.rules.response_codes import ResponseCode

ExpressionType = Literal["TAG", "SQL92"]
ALL = "*"
_SEPARATOR = "||"
COMMITS_OFFSET = 0x1
MAY_SUSPEND = 0x2
HAS_SUBSCRIPTION = 0x4
IS_LITE = 0x10
FULL_MS = 50
"""Pause of a queue's reader while too many messages wait for the program."""
FAILED_MS = 1_000
"""… and after a pull that failed,"""
BROKER_BUSY_MS = 20
"""… or that a broker refused because it is over its limit."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of one group: all of it, some tags, or what an SQL92 expression is true for; made by `subscription`.

    A broker compares hashes of tags only, so the consumer compares the texts once more. SQL92 goes to the broker as it is: the broker
    decides, and refuses it where `enablePropertyFilter` is off, the default. `version` is a time: of two at a broker the later counts.
    """

    topic: str
    expression: str
    expression_type: ExpressionType
    tags: frozenset[str]
    version: int = field(compare=False)

    def admits(self, tag: str | None) -> bool:
        """The second comparison, of a message's tag: not only its hash, the text itself is wanted."""
        return not self.tags or tag in self.tags

    def renewed(self, version: int) -> Subscription:
        """The same with a later version, with which brokers replace what they know; later also where the clock was set back.

        Java takes the clock's time, and its brokers go on with the subscription before.
        """
        return replace(self, version=max(version, self.version + 1))

    def in_place_of(self, before: Subscription | None) -> Subscription:
        """The same with a later version than that of the topic's subscription before, if there was one."""
        return self if before is None else replace(self, version=before.renewed(self.version).version)

    def wire_form(self) -> SubscriptionData:
        """As heartbeats and the answers to 307 hold it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags=tuple(sorted(self.tags)),
            codes=tuple(sorted({string_hash(tag) for tag in self.tags})),
            sub_version=self.version,
            expression_type=self.expression_type,
        )


def subscription(
    topic: str, expression: str | None, version: int, expression_type: ExpressionType = "TAG"
) -> Subscription:
    """A subscription to tags (`A || B`; `*`, nothing or blanks only: all) or by an SQL92 expression.

    Raises ValueError where Java refuses the expression.
    """
    if expression_type not in get_args(ExpressionType):
        raise ValueError(f"{expression_type!r} is no expression type: write {' or '.join(get_args(ExpressionType))}")
    if expression_type == "SQL92":
        if not expression:
            raise ValueError("an SQL92 subscription needs an expression; to get everything, subscribe to tags '*'")
        return Subscription(topic, expression, expression_type, frozenset(), version)
    if not expression or expression == ALL:
        return Subscription(topic, ALL, expression_type, frozenset(), version)
    if not expression.replace(_SEPARATOR, ""):
        raise ValueError(f"{expression!r} names no tag: write tags with {_SEPARATOR} between them, or '*' for all")
    tags = (tag.strip(_JAVA_BLANKS) for tag in expression.split(_SEPARATOR))
    return Subscription(topic, expression, expression_type, frozenset(tag for tag in tags if tag), version)


_JAVA_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim takes away


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUSES = {int(status.value): status for status in PullStatus}


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull of one queue. With `suspend_ms` above 0 the broker may wait so long for messages."""

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
    """The id of the broker for the next pull: the master (0) or a slave."""
    offset_delta: int = 0
    """Added to the records' offsets: those of a static topic are another broker's."""
    records: bytes | memoryview = b""


Filtered = Callable[[list[MessageExt], MessageQueue], Awaitable[list[MessageExt]]]
"""Those messages of a pull of the queue that the program shall get."""


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


def pull_command(pull: Pull, group: str, *, at_master: bool = True) -> RemotingCommand:
    """The request: 361 for a lite pull, else 11. The group is as brokers know it. Java: MQClientAPIImpl.pullMessage."""
    says_what = pull.sends_subscription
    header = PullMessageRequest(
        consumer_group=group,
        topic=pull.queue.topic,
        queue_id=pull.queue.queue_id,
        queue_offset=pull.offset,
        max_messages=pull.limit,
        sys_flag=pull.sys_flag(at_master=at_master),
        commit_offset=pull.committed_offset or 0,
        suspend_timeout_ms=pull.suspend_ms,
        subscription=pull.subscription.expression if says_what else None,
        sub_version=pull.subscription_version(),
        expression_type=pull.subscription.expression_type,
        max_message_bytes=pull.limit_bytes,
        broker_name=pull.queue.broker_name,
    )
    return make_call(RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE, header)


def pull_result(answer: RemotingCommand, pull: Pull, group: str, address: str) -> PullResult:
    """The result of an answer. Raises ResponseError for a refusal, MalformedResponseError for an answer that makes no sense.

    Java: MQClientAPIImpl.processPullResponse.
    """
    code = RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE
    status = _STATUSES.get(answer.code)
    if status is None:
        raise response_error(answer.code, answer.remark, address, request_text(code), pull.queue.topic, group)
    header = read_answer_header(PullMessageAnswer, answer, address, code)
    return PullResult(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        header.offset_delta or 0,
        answer.body if answer.code == ResponseCode.SUCCESS else b"",
    )
