"""Headers of requests to a name server, and of its answers. Java: remoting.protocol.header.namesrv."""

from __future__ import annotations

from spark_mq.remoting.header_fields import Header, TopicHeader
from spark_mq.remoting.wire_class import Int, Long, wire


class RegisterBrokerRequest(Header):
    """A broker and its topics, which are the body."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str
    ha_server_address: str = wire("haServerAddr")
    broker_id: Long
    heartbeat_timeout_ms: Long | None = wire("heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int | None = 0
    """Of the body, in 31 bits; 0 = not said."""


class RegisterBrokerAnswer(Header):
    """What a slave is told of its master."""

    ha_server_address: str | None = wire("haServerAddr", default=None)
    master_address: str | None = wire("masterAddr", default=None)


class BrokerAddressRequest(Header):
    """A broker at an address: it leaves (104), it asks whether its topics are known as they are (322)."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str
    broker_id: Long


class DataVersionAnswer(Header):
    """Whether the name server knows other topics of the broker."""

    changed: bool


class RouteRequest(TopicHeader):
    """Where a topic's queues are."""

    topic: str
    accept_standard_json_only: bool | None = None


class KvConfigRequest(Header):
    """A key of a namespace: its value (101), its deletion (102)."""

    namespace: str
    key: str


class PutKvConfigRequest(Header):
    """A key of a namespace and its value."""

    namespace: str
    key: str
    value: str


class KvConfigAnswer(Header):
    """The value of a key."""

    value: str | None = None


class NamespaceRequest(Header):
    """All keys of a namespace."""

    namespace: str


class BrokerNameRequest(Header):
    """A broker whose permission to be written to is taken (205) or given back (327)."""

    broker_name: str


class WipeWritePermissionAnswer(Header):
    """How many topics were changed."""

    wipe_topic_count: Int


class AddWritePermissionAnswer(Header):
    """How many topics were changed."""

    add_topic_count: Int


class ClusterRequest(Header):
    """The topics of a cluster."""

    cluster: str


class DeleteTopicRequest(TopicHeader):
    """A topic that the name server shall forget, in one cluster or in all."""

    topic: str
    cluster_name: str | None = None


class BrokerGroupRequest(Header):
    """The addresses of the brokers of one name."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatRequest(Header):
    """A broker is alive."""

    cluster_name: str
    broker_address: str = wire("brokerAddr")
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_ms: Long | None = wire("heartbeatTimeoutMills", default=None)
    election_priority: Int | None = None
