"""Headers of an operator's requests to a broker, and of what brokers tell each other. Java: remoting.protocol.header."""

from __future__ import annotations

from spark_mq.remoting.header_fields import Header, RpcHeader, TopicHeader
from spark_mq.remoting.wire_class import Int, Long, wire


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


class BrokerConfigAnswer(Header):
    """Which version of its settings the broker has; the settings are the body."""

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
    """How far all groups of a broker are."""

    is_order: bool


class QueryConsumeQueueRequest(TopicHeader):
    """Entries of a queue."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


class MinBrokerIdRequest(Header):
    """The name server tells that another broker of the group has the lowest id."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_address: str | None = wire("minBrokerAddr", default=None)
    offline_broker_address: str | None = wire("offlineBrokerAddr", default=None)
    ha_broker_address: str | None = wire("haBrokerAddr", default=None)


class HaInfo(Header):
    """Where a master's log is served and how far it is flushed: request and answer."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class FlushOffsetRequest(Header):
    """How far the master's log is flushed."""

    master_flush_offset: Long


class UserRequest(Header):
    """A user of the access control."""

    username: str | None = None


class UserFilterRequest(Header):
    """Users whose names contain a text."""

    filter: str | None = None


class AclRequest(Header):
    """What a subject may do."""

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
