"""Headers of requests of consumers, of their offsets, and of what a broker asks a client. Java: remoting.protocol.header."""

from __future__ import annotations

from spark_mq.remoting.header_fields import Header, RpcHeader, TopicHeader
from spark_mq.remoting.wire_class import Int, Long, wire


class QueryConsumerOffsetRequest(TopicHeader):
    """Where a group goes on in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(TopicHeader):
    """Where a group shall go on in a queue; sent one-way."""

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
    """Where a queue ends."""

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
    """A group goes on elsewhere: asked of a broker (222), told to its consumers (220)."""

    group: str
    topic: str
    queue_id: Int = -1
    """−1 = every queue."""
    queue_offset: Long | None = wire("offset", default=None)
    time_ms: Long = wire("timestamp")
    is_force: bool


class ConsumerStatusRequest(TopicHeader):
    """Where a group's consumers are: asked of a broker (223) and of a client (221)."""

    topic: str
    group: str
    client_address: str | None = wire("clientAddr", default=None)


class ConsumerRunningInfoRequest(RpcHeader):
    """How a consumer is doing: asked of a broker and of a client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeStatsRequest(TopicHeader):
    """How far a group is; None or "" as the topic = all of its topics."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GroupTopicRequest(TopicHeader):
    """A group's subscription of a topic."""

    group: str
    topic: str | None = None


class ConsumeTimeSpanRequest(TopicHeader):
    """How old a group's messages of a topic are."""

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
