"""Requests of operators to a broker, and requests between brokers: headers and bodies.

Java: remoting.protocol.header, .admin, .body, .subscription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from spark_mq.remoting.command import Header, RpcHeader, TopicHeader
from spark_mq.remoting.consumers import SubscriptionData
from storage.format.typed_json import (
    DataVersion,
    Int,
    Long,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
    WireBody,
    wire,
)


class TopicRequest(TopicHeader):
    """A topic: its queues' offsets (202), its deletion (215), its groups (300), its settings (351), its registration (217)."""

    topic: str


class CreateTopicRequest(TopicHeader):
    """A topic as it shall be."""

    topic: str
    default_topic: str | None = None
    read_queue_count: Int = wire("readQueueNums")
    write_queue_count: Int = wire("writeQueueNums")
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    is_order: bool = wire("order", default=False)
    attributes: str | None = None
    """`+name=value,-name`."""
    force: bool | None = False


class TopicPageRequest(RpcHeader):
    """All topics (21); with fields, of brokers and clients from 5.4.0 on, a page of them. Brokers before it answer with all."""

    topic_seq: Int | None = None
    """The number of the page's first topic, in the order of their names."""
    data_version: str | None = None
    """Of the pages before, as JSON. Another one than the broker's begins anew."""
    max_topic_num: Int | None = None


class TopicPageAnswer(Header):
    """How many topics there are. Without it all were in the answer."""

    total_topic_num: Int | None = None


class GroupPageRequest(RpcHeader):
    """All groups (201), or a page of them, as `TopicPageRequest`."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


class GroupPageAnswer(Header):
    """How many groups there are. Without it all were in the answer."""

    total_group_num: Int | None = None


class BrokerConfigAnswer(Header):
    """The version of the broker's settings; the settings are the body."""

    version: str


class DeleteGroupRequest(RpcHeader):
    """A group that shall be forgotten."""

    group_name: str
    clean_offset: bool = False


class BrokerStatsRequest(Header):
    """A number that a broker counts, as TOPIC_PUT_NUMS of a topic."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsRequest(Header):
    """The progress of all groups of a broker."""

    is_order: bool


class QueryConsumeQueueRequest(TopicHeader):
    """Entries of a queue."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


class MinBrokerIdRequest(Header):
    """The name server's notice that another broker of the group has the lowest id."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_address: str | None = wire("minBrokerAddr", default=None)
    offline_broker_address: str | None = wire("offlineBrokerAddr", default=None)
    ha_broker_address: str | None = wire("haBrokerAddr", default=None)


class HaInfo(Header):
    """The address of a master's log and its flushed end: request and answer."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class FlushOffsetRequest(Header):
    """The flushed end of the master's log."""

    master_flush_offset: Long


class AccountRequest(Header):
    """An account of ACL 1.0 as it shall be; rights are `name=PUB|SUB` between commas, and absent fields stay as they are."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccountKeyRequest(Header):
    """An account of ACL 1.0 that shall be forgotten."""

    access_key: str


class WhiteAddressesRequest(Header):
    """The addresses of one file, between commas, from which ACL 1.0 lets everything in."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class AclVersionAnswer(Header):
    """The version of ACL 1.0's first file, as JSON."""

    version: str
    all_acl_file_version: str | None = None
    """Those of all its files, by path, as JSON. Brokers of 4.9.3 and later 4.9 send it; all later tools expect it."""
    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str


class UserRequest(Header):
    """A user of the access control."""

    username: str | None = None


class UserFilterRequest(Header):
    """Users whose names contain a text."""

    filter: str | None = None


class AclRequest(Header):
    """The permissions of a subject."""

    subject: str | None = None


class DeleteAclRequest(Header):
    """A rule that shall no longer hold."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AclFilterRequest(Header):
    """Rules whose subject and resource contain these texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class TopicOffset(WireBody):
    """Begin and end of a queue, and the time of its last message."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_time_ms: Long = wire("lastUpdateTimestamp", default=0)


class TopicStatsTable(WireBody):
    """All queues of a topic at one broker; answers 202."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(WireBody):
    """A group's progress in a queue."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_time_ms: Long = wire("lastTimestamp", default=0)


class ConsumeStats(WireBody):
    """A group's progress in its queues; answers 208."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(WireBody):
    """The progress of all groups of a broker; answers 317."""

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

    topics: tuple[TopicConfig, ...] = wire("topicConfigList", default=())


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
    """The times of a queue's messages, and of the group's next one."""

    queue: MessageQueue | None = wire("messageQueue", default=None)
    min_time_ms: Long = wire("minTimeStamp", default=0)
    max_time_ms: Long = wire("maxTimeStamp", default=0)
    consume_time_ms: Long = wire("consumeTimeStamp", default=0)
    delay_ms: Long = wire("delayTime", default=0)
    min_time: str | None = wire("minTimeStampStr", default=None)
    max_time: str | None = wire("maxTimeStampStr", default=None)
    consume_time: str | None = wire("consumeTimeStampStr", default=None)


class ConsumeTimeSpans(WireBody):
    """Spans of all queues of a topic; the answer to 303."""

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
    """The state of replication; answers 907."""

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
    """Actions on a resource that are allowed or denied, by address."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(WireBody):
    """Entries of one kind, Custom or Default."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


class AclInfo(WireBody):
    """The permissions of a subject: sent with 3006 and 3007, answers 3009."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
