"""Bodies that operators are sent and send. Java: remoting.protocol.admin, .body, .subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from spark_mq.remoting.body_fields import MessageQueue, WireBody
from spark_mq.remoting.client_bodies import SubscriptionData
from spark_mq.remoting.route_bodies import DataVersion, TopicConfigData
from spark_mq.remoting.wire_class import Int, Long, wire


class TopicOffset(WireBody):
    """Where a queue begins and ends, and when its last message was stored."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_time_ms: Long = wire("lastUpdateTimestamp", default=0)


class TopicStatsTable(WireBody):
    """All queues of a topic at one broker; answers 202."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(WireBody):
    """How far a group is in a queue."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_time_ms: Long = wire("lastTimestamp", default=0)


class ConsumeStats(WireBody):
    """How far a group is in its queues; answers 208."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(WireBody):
    """How far all groups of a broker are; answers 317."""

    consume_stats: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = wire("consumeStatsList", default=())
    broker_address: str | None = wire("brokerAddr", default=None)
    total_diff: Long = 0
    total_inflight_diff: Long = 0


class ClientConnection(WireBody):
    """One client of a group."""

    client_id: str | None = None
    client_address: str | None = wire("clientAddr", default=None)
    language: str | None = None
    version: Int = 0


class ConsumerConnection(WireBody):
    """The clients of a group of consumers; answers 203."""

    connections: tuple[ClientConnection, ...] = wire("connectionSet", default=())
    subscription_table: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(WireBody):
    """The clients of a group of producers; answers 204."""

    connections: tuple[ClientConnection, ...] = wire("connectionSet", default=())


class ProducerInfo(WireBody):
    """One client that produces."""

    client_id: str | None = None
    remote_ip: str | None = wire("remoteIP", default=None)
    language: str | None = None
    version: Int = 0
    last_update_time_ms: Long = wire("lastUpdateTimestamp", default=0)


class ProducerTable(WireBody):
    """All clients that produce, by group; answers 328."""

    data: Mapping[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


class GroupList(WireBody):
    """Names of groups; answers 300."""

    groups: tuple[str, ...] = wire("groupList", default=())


class SubscriptionGroupConfig(WireBody):
    """A group of consumers as a broker holds it (200, 352)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: Int = wire("retryQueueNums", default=1)
    retry_max_times: Int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: tuple[Mapping[str, Any], ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(WireBody):
    """All groups of a broker; answers 201."""

    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: Mapping[str, Mapping[str, Int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


class SubscriptionGroupList(WireBody):
    """Groups to be made or changed (225)."""

    groups: tuple[SubscriptionGroupConfig, ...] = wire("groupConfigList", default=())


class TopicConfigList(WireBody):
    """Topics to be made or changed (18)."""

    topics: tuple[TopicConfigData, ...] = wire("topicConfigList", default=())


class GroupForbidden(WireBody):
    """Whether a group may read a topic; answers 353."""

    group: str | None = None
    topic: str | None = None
    readable: bool | None = None


class StatsItem(WireBody):
    """A figure over a span of time."""

    sum: Long = 0
    tps: float = 0.0
    average_per_time: float = wire("avgpt", default=0.0)


class BrokerStats(WireBody):
    """A figure that a broker counts; answers 315."""

    minute: StatsItem | None = wire("statsMinute", default=None)
    hour: StatsItem | None = wire("statsHour", default=None)
    day: StatsItem | None = wire("statsDay", default=None)


class QueueTimeSpan(WireBody):
    """How old the messages of a queue are, and where a group is among them."""

    queue: MessageQueue | None = wire("messageQueue", default=None)
    min_time_ms: Long = wire("minTimeStamp", default=0)
    max_time_ms: Long = wire("maxTimeStamp", default=0)
    consume_time_ms: Long = wire("consumeTimeStamp", default=0)
    delay_ms: Long = wire("delayTime", default=0)
    min_time: str | None = wire("minTimeStampStr", default=None)
    max_time: str | None = wire("maxTimeStampStr", default=None)
    consume_time: str | None = wire("consumeTimeStampStr", default=None)


class ConsumeTimeSpans(WireBody):
    """Of all queues of a topic; answers 303."""

    spans: tuple[QueueTimeSpan, ...] = wire("consumeTimeSpanSet", default=())


class HaConnectionInfo(WireBody):
    """A slave as its master sees it."""

    address: str | None = wire("addr", default=None)
    slave_ack_offset: Long = 0
    diff: Long = 0
    in_sync: bool = False
    transferred_bytes_per_second: Long = wire("transferredByteInSecond", default=0)
    transfer_from_where: Long = 0


class HaClientInfo(WireBody):
    """A slave as it sees itself."""

    master_address: str | None = wire("masterAddr", default=None)
    transferred_bytes_per_second: Long = wire("transferredByteInSecond", default=0)
    max_offset: Long = 0
    last_read_time_ms: Long = wire("lastReadTimestamp", default=0)
    last_write_time_ms: Long = wire("lastWriteTimestamp", default=0)
    master_flush_offset: Long = 0
    activated: bool | None = None


class HaRuntimeInfo(WireBody):
    """How replication is doing; answers 907."""

    is_master: bool = wire("master", default=False)
    master_commitlog_max_offset: Long = wire("masterCommitLogMaxOffset", default=0)
    in_sync_slave_count: Int = wire("inSyncSlaveNums", default=0)
    connections: tuple[HaConnectionInfo, ...] = wire("haConnectionInfo", default=())
    client: HaClientInfo | None = wire("haClientRuntimeInfo", default=None)


class GroupSubscription(WireBody):
    """A group's subscription of a topic; answers 345."""

    group: str | None = None
    topic: str | None = None
    subscription: SubscriptionData | None = wire("subscriptionData", default=None)


class CorrectionOffsets(WireBody):
    """Offsets by queue id; answers 308."""

    correction_offsets: Mapping[Int, Long] = field(default_factory=dict)


class ConsumeQueueEntry(WireBody):
    """An entry of a queue, and what a filter says of it."""

    commitlog_offset: Long = wire("physicOffset", default=0)
    size_bytes: Int = wire("physicSize", default=0)
    tags_code: Long = 0
    extension: str | None = wire("extendDataJson", default=None)
    bit_map: str | None = None
    passes: bool = wire("eval", default=False)
    message: str | None = wire("msg", default=None)


class ConsumeQueueEntries(WireBody):
    """Entries of a queue; answers 321."""

    subscription: SubscriptionData | None = wire("subscriptionData", default=None)
    filter_data: str | None = None
    entries: tuple[ConsumeQueueEntry, ...] | None = wire("queueData", default=None)
    max_queue_index: Long = 0
    min_queue_index: Long = 0


# Access control. Java: UserInfo, AclInfo. Lists of them (3005, 3010) go through `read_body_list`.


class UserInfo(WireBody):
    """A user: sent with 3001 and 3002, answers 3004. Java's broker answers with the password."""

    username: str | None = None
    password: str | None = wire(default=None, is_secret=True)
    user_type: str | None = None
    """Super or Normal."""
    user_status: str | None = None
    """enable or disable."""


class PolicyEntryInfo(WireBody):
    """What may be done with a resource, from where."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(WireBody):
    """Entries of one kind, Custom or Default."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


class AclInfo(WireBody):
    """What a subject may do: sent with 3006 and 3007, answers 3009."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
