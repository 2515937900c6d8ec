"""Routes of topics, and brokers: headers and bodies of requests to a name server, and of its answers.

Java: remoting.protocol.header.namesrv, .route, .body.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import DEFAULT_LIMITS, Buffer, Header, TopicHeader, read_body, read_texts
from spark_mq.remoting.errors import BodyError
from storage.format.typed_json import DataVersion, Int, Long, TopicConfig, WireBody, fits, wire


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
    """CRC-32 of the body, in 31 bits; 0 = not given."""


class RegisterBrokerAnswer(Header):
    """The answer to a registration: a slave learns its master's addresses."""

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
    """Request for a topic's route."""

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
    """Number of changed topics."""

    wipe_topic_count: Int


class AddWritePermissionAnswer(Header):
    """Number of changed topics."""

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
    """The logical queues of a static topic that a broker leads, each with its physical queue."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: Int = 0
    broker_name: str | None = wire("bname", default=None)
    epoch: Long = 0
    is_dirty: bool = wire("dirty", default=False)
    current_ids: Mapping[Int, Int] = wire("currIdMap", default_factory=dict)


class TopicRouteData(WireBody):
    """A topic's route; answers 105."""

    order_topic_conf: str | None = None
    """`broker:queues;…` for topics that are ordered over all brokers."""
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: Mapping[str, TopicQueueMappingInfo] | None = None
    """Set for a static topic."""


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


class TopicConfigTable(WireBody):
    """All topics of a broker; answers 21, and is within a registration."""

    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion | None = None
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: Mapping[str, TopicQueueMappingInfo] | None = None
    topic_queue_mapping_detail_map: Mapping[str, Any] | None = None


class RegisterBrokerBody(WireBody):
    """A broker's registration (103)."""

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


# The compressed body of a broker's registration, for those that say `compressed=true` (103).
#
# zlib of, each with its size or count in 4 bytes big-endian before it:
#
#     | data version, JSON | count | topic, text … | filter servers, JSON | count | mapping, JSON … |
#
# The text of a topic is `name read write perm filterType attributes`, attributes as JSON; its flags and order are lost. The mappings of
# static topics are there from version 5.0 on. Java: RegisterBrokerBody, TopicConfig.encode and decode.
#
# A broker 5.3.3 with `compressedRegister` compresses, but says `compressed=false`, which no name server can read.


_SIZE = struct.Struct(">i")
_BODY = RegisterBrokerBody.__name__
_FIELDS_LEAST = 5
_NUMBER = re.compile(r"-?[0-9]{1,10}", re.ASCII)


class _Attributes(WireBody):
    """A map that stands in a text without an object around it."""

    pairs: Mapping[str, str]


def read_compressed(
    body: Buffer, version: int = ProtocolVersion.V5_3_3, limit_bytes: int = DEFAULT_LIMITS.frame_bytes
) -> RegisterBrokerBody:
    """The body that a broker of that version has compressed.

    Raises BodyError, also where more than `limit_bytes` come out of it: no more memory than that is taken.
    """
    stream = _Stream(_inflated(body, limit_bytes))
    data_version = read_body(DataVersion, stream.sized())
    topics = [_topic(stream.sized()) for _ in stream.counted()]
    servers = read_texts("filterServerList", stream.sized() or b"[]")
    has_mappings = version >= ProtocolVersion.V5_0_0
    mappings = [read_body(TopicQueueMappingInfo, stream.sized()) for _ in stream.counted()] if has_mappings else []
    table = TopicConfigTable(
        topic_config_table={topic.topic or "": topic for topic in topics},
        data_version=data_version,
        topic_queue_mapping_info_map={mapping.topic or "": mapping for mapping in mappings},
    )
    return RegisterBrokerBody(topic_config_table=table, filter_servers=servers)


def _topic(text: bytes) -> TopicConfig:
    """A topic from its text. As in Java attributes that are no JSON, as those with a blank in them, count as none."""
    fields = text.decode("utf-8", "replace").split(" ")
    if len(fields) < _FIELDS_LEAST:
        raise BodyError(_BODY, "topicConfigTable", text, f"a topic has at least {_FIELDS_LEAST} words")
    name, read, write, perm, filter_type, *rest = fields
    try:
        pairs = read_body(_Attributes, f'{{"pairs":{rest[0] if rest else "{}"}}}'.encode()).pairs
    except BodyError:
        pairs = {}
    return TopicConfig(
        topic=name,
        read_queue_count=_number(read),
        write_queue_count=_number(write),
        perm=_number(perm),
        topic_filter_type=filter_type,
        attributes=pairs,
    )


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) and fits(int(text), 32):
        return int(text)
    raise BodyError(_BODY, "topicConfigTable", text, "a number of 32 bits is expected")


def _inflated(body: Buffer, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(bytes(body), limit_bytes)
    except zlib.error as error:
        raise BodyError(_BODY, "", bytes(body[:16]), f"it is not zlib's: {error}") from None
    if not inflater.eof:
        rule = f"the limit is {limit_bytes} bytes" if inflater.unconsumed_tail else "it ends too early"
        raise BodyError(_BODY, "", f"{len(content)} bytes", rule)
    return content


class _Stream:
    """What was compressed, read from its beginning on."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def sized(self) -> bytes:
        size = self._number()
        if size > len(self._content) - self._position:
            raise BodyError(_BODY, f"byte {self._position}", size, "it ends before that")
        self._position += size
        return self._content[self._position - size : self._position]

    def counted(self) -> Iterator[int]:
        """Once for each of so many; each takes four bytes at least, so that no count is taken at its word."""
        count = self._number()
        if count > (len(self._content) - self._position) // _SIZE.size:
            raise BodyError(_BODY, f"byte {self._position}", count, "it ends before that many")
        return iter(range(count))

    def _number(self) -> int:
        try:
            (number,) = _SIZE.unpack_from(self._content, self._position)
        except struct.error:
            raise BodyError(_BODY, f"byte {self._position}", None, "a number of 4 bytes is expected") from None
        if number < 0:
            raise BodyError(_BODY, f"byte {self._position}", number, "it must not be negative")
        self._position += _SIZE.size
        return int(number)
