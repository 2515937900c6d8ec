"""Bodies that say where topics and brokers are. Java: remoting.protocol.route, .body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from spark_mq.remoting.body_fields import WireBody
from spark_mq.remoting.wire_class import Int, Long, wire


class QueueData(WireBody):
    """A topic's queues at the brokers of one name."""

    broker_name: str
    read_queue_count: Int = wire("readQueueNums", default=0)
    write_queue_count: Int = wire("writeQueueNums", default=0)
    perm: Int = 0
    """4 to be read, 2 to be written."""
    topic_sys_flag: Int = 0


class BrokerData(WireBody):
    """The addresses of the brokers of one name, by their ids; 0 is the master."""

    cluster: str | None = None
    broker_name: str
    broker_addresses: Mapping[Long, str] = wire("brokerAddrs", default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicQueueMappingInfo(WireBody):
    """Which logical queues of a static topic a broker leads, each with its physical queue."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: Int = 0
    broker_name: str | None = wire("bname", default=None)
    epoch: Long = 0
    is_dirty: bool = wire("dirty", default=False)
    current_ids: Mapping[Int, Int] = wire("currIdMap", default_factory=dict)


class TopicRouteData(WireBody):
    """Where a topic's queues are; answers 105."""

    order_topic_conf: str | None = None
    """`broker:queues;…` for topics that are ordered over all brokers."""
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: Mapping[str, TopicQueueMappingInfo] | None = None
    """Of a static topic."""


class ClusterInfo(WireBody):
    """All brokers, and which clusters they form; answers 106."""

    broker_address_table: Mapping[str, BrokerData] = wire("brokerAddrTable", default_factory=dict)
    cluster_address_table: Mapping[str, tuple[str, ...]] = wire("clusterAddrTable", default_factory=dict)


class TopicList(WireBody):
    """Names of topics."""

    topics: tuple[str, ...] = wire("topicList", default=())
    broker_address: str | None = wire("brokerAddr", default=None)


class KvTable(WireBody):
    """Texts by names: a broker's figures (28), a namespace of a name server."""

    table: Mapping[str, str] = field(default_factory=dict)


class DataVersion(WireBody):
    """Which state of its tables a broker speaks of."""

    counter: Long = 0
    state_version: Long = 0
    time_ms: Long = wire("timestamp", default=0)


class TopicConfigData(WireBody):
    """A topic as a broker holds it."""

    topic_name: str | None = None
    read_queue_count: Int = wire("readQueueNums", default=16)
    write_queue_count: Int = wire("writeQueueNums", default=16)
    perm: Int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    is_order: bool = wire("order", default=False)
    attributes: Mapping[str, str] = field(default_factory=dict)


class TopicConfigTable(WireBody):
    """All topics of a broker; answers 21, and is within a registration."""

    topic_config_table: Mapping[str, TopicConfigData] = field(default_factory=dict)
    data_version: DataVersion | None = None
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: Mapping[str, TopicQueueMappingInfo] | None = None
    topic_queue_mapping_detail_map: Mapping[str, Any] | None = None


class RegisterBrokerBody(WireBody):
    """What a broker registers (103)."""

    topic_config_table: TopicConfigTable = wire("topicConfigSerializeWrapper", default_factory=TopicConfigTable)
    filter_servers: tuple[str, ...] = wire("filterServerList", default=())


class BrokerMemberGroup(WireBody):
    """The addresses of the brokers of one name."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addresses: Mapping[Long, str] = wire("brokerAddrs", default_factory=dict)


class BrokerMemberGroupAnswer(WireBody):
    """The addresses of the brokers of one name; answers 901. Java: GetBrokerMemberGroupResponseBody."""

    group: BrokerMemberGroup = wire("brokerMemberGroup", default_factory=BrokerMemberGroup)
