"""Consumers: headers of their requests, of their offsets, of what a broker asks a client; heartbeats and other bodies.

Java: remoting.protocol.header, .heartbeat, .body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from spark_mq.remoting.command import Header, RpcHeader, TopicHeader
from storage.format.typed_json import Int, Long, MessageQueue, WireBody, wire


class QueryConsumerOffsetRequest(TopicHeader):
    """A group's offset in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(TopicHeader):
    """A group's new offset in a queue; sent one-way."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class SearchOffsetRequest(TopicHeader):
    """The first message of a queue from a time on; `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: Int
    time_ms: Long = wire("timestamp")
    boundary_type: str | None = None


class MaxOffsetRequest(TopicHeader):
    """The end of a queue."""

    topic: str
    queue_id: Int
    committed: bool = True
    """Brokers ignore it."""


class QueueRequest(TopicHeader):
    """One queue: where it begins (31), when its first message was stored (32)."""

    topic: str
    queue_id: Int


class OffsetAnswer(Header):
    """An offset of a queue: answers 14, 29, 30, 31."""

    queue_offset: Long = wire("offset")


class TimeAnswer(Header):
    """When the first message was stored: answers 32."""

    time_ms: Long = wire("timestamp")


class ConsumerGroupRequest(RpcHeader):
    """A group of consumers: its clients (38), its connections (203); from the broker: it has changed (40)."""

    consumer_group: str


class ProducerGroupRequest(RpcHeader):
    """The connections of a group of producers."""

    producer_group: str


class GroupRequest(RpcHeader):
    """A group: its topics (343), its settings (352)."""

    group: str


class UnregisterClientRequest(RpcHeader):
    """A client leaves a group."""

    client_id: str | None = wire("clientID", default=None)
    producer_group: str | None = None
    consumer_group: str | None = None


class ResetOffsetRequest(TopicHeader):
    """Reset a group's offsets: sent to a broker (222), and by the broker to consumers (220)."""

    group: str
    topic: str
    queue_id: Int = -1
    """−1 = every queue."""
    queue_offset: Long | None = wire("offset", default=None)
    time_ms: Long = wire("timestamp")
    is_force: bool


class ConsumerStatusRequest(TopicHeader):
    """The positions of a group's consumers: sent to a broker (223) and to a client (221)."""

    topic: str
    group: str
    client_address: str | None = wire("clientAddr", default=None)


class ConsumerRunningInfoRequest(RpcHeader):
    """The state of a consumer: sent to a broker and to a client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeStatsRequest(TopicHeader):
    """Request for a group's progress; None or "" as the topic = all of its topics."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GroupTopicRequest(TopicHeader):
    """A group's subscription of a topic."""

    group: str
    topic: str | None = None


class ConsumeTimeSpanRequest(TopicHeader):
    """Request for the times of a group's messages of a topic."""

    topic: str
    group: str


class CorrectionOffsetRequest(TopicHeader):
    """Offsets of a group beside those of others."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffsetRequest(RpcHeader):
    """A group's offsets for another group."""

    source_group: str = wire("srcGroup")
    destination_group: str = wire("destGroup")
    topic: str | None = None
    offline: bool = False


class GroupForbiddenRequest(TopicHeader):
    """Whether a group may read a topic; None only asks."""

    group: str
    topic: str
    readable: bool | None = None


class ConsumeType(StrEnum):
    """The group's way of consumption: pull or push. Each enum here is in Java's order: C++ clients send positions."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether consumers of a group share its messages or each gets all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """The start of a group without offsets."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class RequestMode(StrEnum):
    """A client's way of requesting messages. Java: MessageRequestMode."""

    PULL = "PULL"
    POP = "POP"


class SubscriptionData(WireBody):
    """A group's subscription of a topic."""

    topic: str
    sub_string: str | None = None
    """`TagA || TagB`, `*`, or an SQL92 expression."""
    tags: tuple[str, ...] = wire("tagsSet", default=())
    codes: tuple[Int, ...] = wire("codeSet", default=())
    """Java's hashes of the tags."""
    sub_version: Long = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ConsumerData(WireBody):
    """A group in which the client consumes."""

    group_name: str
    consume_type: Annotated[str, ConsumeType] | None = None
    message_model: Annotated[str, MessageModel] | None = None
    consume_from_where: Annotated[str, ConsumeFromWhere] | None = None
    subscriptions: tuple[SubscriptionData, ...] = wire("subscriptionDataSet", default=())
    unit_mode: bool = False


class ProducerData(WireBody):
    """A group in which the client produces."""

    group_name: str


class HeartbeatData(WireBody):
    """A client's heartbeat to every broker, every 30 s (34)."""

    client_id: str = wire("clientID")
    producers: tuple[ProducerData, ...] = wire("producerDataSet", default=())
    consumers: tuple[ConsumerData, ...] = wire("consumerDataSet", default=())
    heartbeat_fingerprint: Int = 0
    without_sub: bool = False


class ConsumerList(WireBody):
    """The ids of a group's clients; answers 38."""

    client_ids: tuple[str, ...] = wire("consumerIdList", default=())


class LockBody(WireBody):
    """Queues that a client locks (41) or gives up (42)."""

    consumer_group: str | None = None
    client_id: str | None = None
    only_this_broker: bool = False
    queues: tuple[MessageQueue, ...] = wire("mqSet", default=())


class LockedQueues(WireBody):
    """Those that it has got; answers 41."""

    queues: tuple[MessageQueue, ...] = wire("lockOKMQSet", default=())


class AssignmentQuestion(WireBody):
    """A client asks which queues of a topic it reads (400)."""

    topic: str
    consumer_group: str
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: Annotated[str, MessageModel] | None = None


class QueueAssignment(WireBody):
    """A queue that a client reads, and how it asks for messages."""

    message_queue: MessageQueue
    mode: Annotated[str, RequestMode] | None = RequestMode.PULL


class QueueAssignments(WireBody):
    """Answers 400; None: unknown, and the client keeps its queues."""

    assignments: tuple[QueueAssignment, ...] | None = wire("messageQueueAssignments", default=None)


class RequestModeBody(WireBody):
    """The way in which a group's clients request messages of a topic (401)."""

    topic: str
    consumer_group: str
    mode: Annotated[str, RequestMode] | None = RequestMode.PULL
    pop_share_queue_num: Int = 0


class CheckClientBody(WireBody):
    """A subscription that the broker shall look at (46)."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription: SubscriptionData | None = wire("subscriptionData", default=None)


class OffsetTable(WireBody):
    """A group's new offsets in queues: answers 222, and is sent with 220."""

    offset_table: Mapping[MessageQueue, Long] = field(default_factory=dict)


class ConsumerStatus(WireBody):
    """A consumer's positions in its queues; answers 221, and 223 for all consumers that the broker has asked."""

    message_queue_table: Mapping[MessageQueue, Long] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, Long]] | None = None
    """By client id."""


class ConsumeDirectlyResult(WireBody):
    """A listener's result for one message; answers 309."""

    is_order: bool = wire("order", default=False)
    auto_commit: bool = True
    consume_result: str | None = None
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    remark: str | None = None
    spent_time_ms: Long = wire("spentTimeMills", default=0)


class ProcessQueueInfo(WireBody):
    """A consumer's messages of a queue."""

    commit_offset: Long = 0
    cached_message_min_offset: Long = wire("cachedMsgMinOffset", default=0)
    cached_message_max_offset: Long = wire("cachedMsgMaxOffset", default=0)
    cached_message_count: Int = wire("cachedMsgCount", default=0)
    cached_message_size_mib: Int = wire("cachedMsgSizeInMiB", default=0)
    transaction_message_min_offset: Long = wire("transactionMsgMinOffset", default=0)
    transaction_message_max_offset: Long = wire("transactionMsgMaxOffset", default=0)
    transaction_message_count: Int = wire("transactionMsgCount", default=0)
    locked: bool = False
    try_unlock_times: Long = 0
    last_lock_time_ms: Long = wire("lastLockTimestamp", default=0)
    dropped: bool = wire("droped", default=False)
    last_pull_time_ms: Long = wire("lastPullTimestamp", default=0)
    last_consume_time_ms: Long = wire("lastConsumeTimestamp", default=0)


class PopProcessQueueInfo(WireBody):
    """A POP consumer's messages of a queue."""

    wait_ack_count: Int = 0
    dropped: bool = wire("droped", default=False)
    last_pop_time_ms: Long = wire("lastPopTimestamp", default=0)


class ConsumeStatus(WireBody):
    """A consumer's rates in a topic."""

    pull_rt_ms: float = wire("pullRT", default=0.0)
    pull_tps: float = wire("pullTPS", default=0.0)
    consume_rt_ms: float = wire("consumeRT", default=0.0)
    consume_ok_tps: float = wire("consumeOKTPS", default=0.0)
    consume_failed_tps: float = wire("consumeFailedTPS", default=0.0)
    consume_failed_messages: Long = wire("consumeFailedMsgs", default=0)


class ConsumerRunningInfo(WireBody):
    """A consumer's state; answers 307."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = wire("subscriptionSet", default=())
    queue_table: Mapping[MessageQueue, ProcessQueueInfo] = wire("mqTable", default_factory=dict)
    pop_queue_table: Mapping[MessageQueue, PopProcessQueueInfo] = wire("mqPopTable", default_factory=dict)
    status_table: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: Mapping[str, str] = field(default_factory=dict)
    jstack: str | None = None
