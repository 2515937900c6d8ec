"""The compressed body of a registration against Java's bytes."""

from __future__ import annotations

import base64
import zlib

import pytest

from spark_mq.remoting import BodyError, ProtocolVersion, write_body
from spark_mq.remoting.routes import (
    BrokerMemberGroup,
    BrokerMemberGroupAnswer,
    TopicQueueMappingInfo,
    TopicRouteData,
    read_compressed,
)
from tests.support.registrations import write_compressed

JAVA = base64.b64decode(
    "eNpVUFFLwzAQjv4OhXCwJ+NYVmdH3gqWMpiCWxHGkJBm5yy2TUnTh1H63736ot5xcPfd991dwhhbD2Bd3wT0oCIBXTAB39B3pWtAxQJCWSOBdQtKxotfGxlj1xQ3"
    "s12a7w6zjEvymO83L9k21XmS8WHiyNy1pU34A4/4478u3NHkzpxxHi4tgoKndJscYBLdHkEu4/mCXCoJ4k+1hHciXFGEAYrG1JOy8O4L/b0hpu2935yeDd07REqO"
    "Ak6lDxdQH6bqUAC2zn6CWtFTrftZq/W5coWptCZ5mK4lcE//QMkEBFO99thjB2o9fgNPbFSU"
)
"""RegisterBrokerBody.encode(true) of two topics, two filter servers and one static topic."""
PLAIN = (
    b'{"filterServerList":["127.0.0.1:1","127.0.0.1:2"],"topicConfigSerializeWrapper":{'
    b'"dataVersion":{"counter":3,"stateVersion":7,"timestamp":1700000000000},"topicConfigTable":{'
    b'"%RETRY%G":{"attributes":{},"order":false,"perm":7,"readQueueNums":1,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"%RETRY%G","topicSysFlag":0,"writeQueueNums":1},'
    b'"TopicA":{"attributes":{"+message.type":"DELAY"},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":3}},"topicQueueMappingInfoMap":{'
    b'"Static":{"bname":"broker-a","currIdMap":{3:1},"dirty":false,"epoch":5,"scope":"__global__","topic":"Static","totalQueues":8}}}}'
)
"""What Java reads from it, but for what was not in it; topics in the order of the bytes."""


def test_what_java_has_compressed_is_read_as_java_reads_it() -> None:
    assert write_body(read_compressed(JAVA)) == PLAIN


def test_what_we_compress_is_what_java_compresses() -> None:
    assert zlib.decompress(write_compressed(read_compressed(JAVA))) == zlib.decompress(JAVA)


def test_a_broker_before_5_0_says_nothing_of_static_topics() -> None:
    content = zlib.decompress(JAVA)
    old = content[: content.rindex(b"\0\0\0\x01")]
    table = read_compressed(zlib.compress(old), ProtocolVersion.V4_9_4).topic_config_table
    assert list(table.topic_config_table) == ["%RETRY%G", "TopicA"]
    assert table.topic_queue_mapping_info_map == {}


def test_what_is_cut_or_lies_is_refused_with_its_place() -> None:
    content = zlib.decompress(JAVA)
    for end in range(len(content)):
        with pytest.raises(BodyError, match=r"RegisterBrokerBody|DataVersion|_Servers|TopicQueueMappingInfo"):
            read_compressed(zlib.compress(content[:end]))
    for end in range(1, len(JAVA), 7):
        with pytest.raises(BodyError, match="ends too early"):
            read_compressed(JAVA[:end])
    with pytest.raises(BodyError, match="it is not zlib's"):
        read_compressed(b"no zlib")
    with pytest.raises(BodyError, match="the limit is 1000 bytes"):
        read_compressed(zlib.compress(bytes(1 << 20)), limit_bytes=1_000)
    for number in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
        with pytest.raises(BodyError, match=r"it ends before that|must not be negative"):
            read_compressed(zlib.compress(number + content[4:]))
        at = 4 + int.from_bytes(content[:4], "big")
        with pytest.raises(BodyError, match=r"it ends before that many|must not be negative"):
            read_compressed(zlib.compress(content[:at] + number + content[at + 4 :]))


def test_static_topics_and_members_stand_in_answers_as_java_writes_them() -> None:
    mapping = TopicQueueMappingInfo(topic="Static", total_queues=8, broker_name="broker-a", epoch=5, current_ids={3: 1})
    route = TopicRouteData(topic_queue_mapping_by_broker={"broker-a": mapping})
    told = (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[],"topicQueueMappingByBroker":{"broker-a":{"bname":"broker-a",'
        b'"currIdMap":{%s:1},"dirty":false,"epoch":5,"scope":"__global__","topic":"Static","totalQueues":8}}}'
    )
    assert write_body(route) == told % b"3"
    assert write_body(route, is_standard_json=True) == told % b'"3"'
    group = BrokerMemberGroup(cluster="C", broker_name="b", broker_addresses={0: "h:1", 2: "h:3"})
    answer = b'{"brokerMemberGroup":{"brokerAddrs":{0:"h:1",2:"h:3"},"brokerName":"b","cluster":"C"}}'
    assert write_body(BrokerMemberGroupAnswer(group=group)) == answer
