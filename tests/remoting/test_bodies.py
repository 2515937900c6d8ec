"""A typed body says what Java's says, byte for byte, and what is none is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_mq.remoting import (
    ANSWER_BODIES,
    REQUEST_BODIES,
    BodyError,
    MessageQueue,
    WireBody,
    decode_frame,
    read_body,
    read_body_list,
    write_body,
    write_body_list,
)
from spark_mq.remoting.administration import ConsumeStats, StatsItem, TopicOffset, TopicStatsTable, UserInfo
from spark_mq.remoting.consumers import ConsumerStatus, HeartbeatData, LockBody, ProducerData
from spark_mq.remoting.routes import BrokerData, ClusterInfo, KvTable, QueueData, TopicRouteData
from storage.format.fastjson import double_text, quoted
from storage.format.typed_json import Int, standard_json, wire
from tests.support.captures import FOLDERS, captured_frames
from tests.support.places import VECTORS

NOT_TYPED = {400, 401, 3_442, 200_050, 200_051}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_captured_body_is_written_as_it_was_from_its_typed_value(folder: str) -> None:
    typed = set()
    for one in captured_frames():
        command = decode_frame(one.data)
        body = bytes(command.body)
        if one.folder != folder or not body.startswith(b"{") or one.asked in NOT_TYPED:
            continue
        body_class = (ANSWER_BODIES if one.is_response else REQUEST_BODIES)[one.asked]
        is_standard = one.asked == 105  # a client of 5.3.3 asks
        assert write_body(read_body(body_class, command.body), is_standard_json=is_standard) == body, one
        typed.add((one.asked, one.is_response))
    assert len(typed) >= 17


def test_queues_stand_as_keys() -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1},'
        b'{"brokerName":"b\\"\\u0001","queueId":-1,"topic":"\xc3\xa9"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}},'
        b'"topicPutTps":1.0E10}'
    )
    stats = read_body(TopicStatsTable, body)
    assert stats.offset_table == {
        MessageQueue("T", "b", 0): TopicOffset(min_offset=1, max_offset=2, last_update_time_ms=3),
        MessageQueue("é", 'b"\x01', -1): TopicOffset(),
    }
    assert stats.topic_put_tps == 1e10
    assert write_body(stats) == body


def test_queues_are_read_as_keys_however_they_are_written() -> None:
    first = b"{'topic':'T', queueId:0, \"x\":[{}], brokerName:'b'} "
    body = b"{ messageQueueTable : { " + first + b':7, {"topic":"U","queueId":1,"brokerName":"b"}:8}}'
    assert read_body(ConsumerStatus, body).message_queue_table == {
        MessageQueue("T", "b", 0): 7,
        MessageQueue("U", "b", 1): 8,
    }


def test_a_queue_within_a_text_is_a_text() -> None:
    text = '{{"brokerName":"b","queueId":0,"topic":"T"}:1}'
    for key in ("k", text):
        assert read_body(KvTable, write_body(KvTable(table={key: text}))).table == {key: text}
    single = b'{\'table\':{\'k\':\'{{"brokerName":"b","queueId":0,"topic":"T"}:1}\'}}'
    assert read_body(KvTable, single).table == {"k": text}


def test_queues_sort_as_java_sorts_them() -> None:
    queues = [
        MessageQueue("a", "b", 10),
        MessageQueue("a", "b", 9),
        MessageQueue("a", "a", 11),
        MessageQueue("B", "z", 0),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]


def test_integer_keys_stand_bare_and_are_read_bare_and_quoted() -> None:
    cluster = ClusterInfo(
        broker_address_table={"b": BrokerData(cluster="c", broker_name="b", broker_addresses={0: "h:1", 2: "h:2"})}
    )
    body = write_body(cluster)
    assert b'"brokerAddrs":{0:"h:1",2:"h:2"}' in body
    assert read_body(ClusterInfo, body) == read_body(ClusterInfo, body.replace(b'0:"', b'"0":"')) == cluster


def test_a_route_as_standard_json_is_ascii_with_sorted_quoted_keys() -> None:
    route = TopicRouteData(
        order_topic_conf="é😀", queue_datas=(QueueData(broker_name="b"),),
        broker_datas=(BrokerData(broker_name="b", broker_addresses={1: "x", 0: "y"}),),
    )  # fmt: skip
    body = write_body(route, is_standard_json=True)
    assert b'"brokerAddrs":{"0":"y","1":"x"}' in body
    assert b'"orderTopicConf":"\\u00E9\\uD83D\\uDE00"' in body
    assert read_body(TopicRouteData, body) == route
    assert standard_json("{}") == b"{}"


def test_texts_and_numbers_are_written_as_fastjson_writes_them() -> None:
    plain, standard, doubles = (VECTORS / "remoting" / "fastjson_texts.json").read_bytes().splitlines()
    beyond = (0x2027, 0x2028, 0x2029, 0x202A, 0x4E2D, 0xD800, 0x61, 0xDC00, 0xD83D, 0xDE00, 0xFEFF, 0xFFFF)
    units = [unit.to_bytes(2, "big") for unit in (*range(0x180), *beyond)]
    written = f'{{"numbers":{{10:"b",2:"a"}},"text":{quoted(b"".join(units).decode("utf-16-be", "surrogatepass"))}}}'
    assert written.encode("utf-8", "replace") == plain
    assert standard_json(written) == standard
    texts = doubles[1:-1].decode().split(",")
    assert len(texts) > 20
    for text in texts:
        if text not in (
            "null",
            "Infinity",
            "-1.2499999999999999E22",
            "4.9E-324",
        ):  # the JDK's own last digits, since mended
            assert double_text(float(text)) == text
    assert double_text(float("nan")) == "null"


def test_what_a_body_lacks_has_its_default_and_what_it_has_besides_is_passed_over() -> None:
    heartbeat = read_body(
        HeartbeatData, b'{"clientID":"c","new":{"a":[1]},"consumerDataSet":null,"producerDataSet":[{"groupName":"g"}]}'
    )
    assert heartbeat == HeartbeatData(client_id="c", producers=(ProducerData(group_name="g"),))
    assert read_body(LockBody, b"{}") == LockBody()


def test_values_are_converted_as_fastjson_converts_them() -> None:
    """C++ sends the positions of enums, Go and .NET numbers in quotes."""
    told = (
        b'{"clientID":7,"consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":0,"consumeFromWhere":4,"unitMode":1,'
        b'"subscriptionDataSet":[{"topic":"T","codeSet":["-12"],"subVersion":"1700000000000","classFilterMode":"False"}]},'
        b'{"groupName":"h","consumeType":"push"}]}'
    )
    beat = read_body(HeartbeatData, told)
    first, second = beat.consumers
    assert (beat.client_id, first.consume_type, first.message_model) == ("7", "CONSUME_PASSIVELY", "BROADCASTING")
    assert (first.consume_from_where, first.unit_mode) == ("CONSUME_FROM_FIRST_OFFSET", True)
    (subscription,) = first.subscriptions
    assert (subscription.codes, subscription.sub_version, subscription.class_filter_mode) == (
        (-12,),
        1_700_000_000_000,
        False,
    )
    assert second.consume_type is None
    queue = read_body(LockBody, b'{"mqSet":[{"brokerName":"b","queueId":"3","topic":"T"}]}').queues
    assert queue == (MessageQueue("T", "b", 3),)


@pytest.mark.parametrize(
    ("body_class", "body", "place"),
    [
        (TopicRouteData, b"", "line 1, column 1"),
        (TopicRouteData, b'{"queueDatas":', "line 1, column 15"),
        (TopicRouteData, b"[]", ""),
        (TopicRouteData, b'{"queueDatas":{}}', "queueDatas"),
        (TopicRouteData, b'{"queueDatas":[{"brokerName":"b"},{}]}', "queueDatas[1].brokerName"),
        (TopicRouteData, b'{"queueDatas":[{"brokerName":"b","perm":"six"}]}', "queueDatas[0].perm"),
        (TopicRouteData, b'{"queueDatas":[{"brokerName":"b","perm":true}]}', "queueDatas[0].perm"),
        (TopicRouteData, b'{"queueDatas":[{"brokerName":"b","perm":2147483648}]}', "queueDatas[0].perm"),
        (TopicRouteData, b'{"queueDatas":[{"brokerName":[]}]}', "queueDatas[0].brokerName"),
        (TopicRouteData, b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"a"}}]}', "brokerDatas[0].brokerAddrs[x]"),
        (TopicRouteData, b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{0:null}}]}', "brokerDatas[0].brokerAddrs[0]"),
        (TopicRouteData, b'{"brokerDatas":[{"brokerName":"b","enableActingMaster":2}]}', "brokerDatas[0].enableActingMaster"),
        (ConsumeStats, b'{"offsetTable":{"T":{}}}', "offsetTable[T]"),
        (ConsumeStats, b'{"offsetTable":{{"queueId":0}:{}}}', 'offsetTable[{"queueId":0}]'),
        (ConsumeStats, b'{"offsetTable":{{"a" 1}:{}}}', 'offsetTable[{"a"1}]'),
        (ConsumeStats, b'{"offsetTable":{{{"a":1}:2}:{}}}', "line 1, column 18"),
        (ConsumeStats, b'{"consumeTps":"1"}', "consumeTps"),
        (ConsumeStats, b'{"consumeTps":' + b"9" * 400 + b"}", "consumeTps"),
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}', "consumerDataSet[0].messageModel"),
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":true}]}', "consumerDataSet[0].consumeType"),
        (LockBody, b'{"mqSet":[{"brokerName":"b","queueId":0.5,"topic":"T"}]}', "mqSet[0]"),
        (LockBody, b"[" * 600 + b"]" * 600, "line 1, column 513"),
    ],
)  # fmt: skip
def test_a_bad_body_is_refused_with_the_place(body_class: type[WireBody], body: bytes, place: str) -> None:
    with pytest.raises(BodyError) as caught:
        read_body(body_class, body)
    assert caught.value.place == place
    assert f"bad body {body_class.__name__}" in str(caught.value)


def test_a_body_over_the_limit_is_not_looked_at() -> None:
    with pytest.raises(BodyError, match="the limit is 10 bytes"):
        read_body(KvTable, b" " * 11, limit_bytes=10)


def test_whole_numbers_are_written_as_doubles_where_java_has_one() -> None:
    for value, text in ((0.0, "0.0"), (1.6, "1.6"), (5, "5.0"), (1e7, "1.0E7")):
        assert write_body(StatsItem(tps=value)) == f'{{"avgpt":0.0,"sum":0,"tps":{text}}}'.encode()


def test_a_list_of_bodies_is_read_and_written_and_shows_no_password() -> None:
    users = (UserInfo(username="ann", password="hidden-secret", user_type="Super"), UserInfo(username="bob"))
    body = write_body_list(users)
    assert body == b'[{"password":"hidden-secret","userType":"Super","username":"ann"},{"username":"bob"}]'
    assert read_body_list(UserInfo, body) == users
    with pytest.raises(BodyError) as caught:
        read_body_list(UserInfo, body[:-1] + b',{"username":[]}]')
    assert caught.value.place == "[2].username"
    with pytest.raises(BodyError) as broken:
        read_body_list(UserInfo, body[:-1])
    assert "secret" not in f"{users}{caught.value}{broken.value}"


class _Anything(WireBody):
    value: Any = None
    codes: tuple[Int, ...] = wire("z", default=())


def test_whatever_json_it_is_passes_through() -> None:
    value = {"a": [1, 2.5, True, None, "é\x01"], "b": {"c": {}}}
    body = write_body(_Anything(value=value, codes=(1, -1)))
    assert body == '{"value":{"a":[1,2.5,true,null,"é\\u0001"],"b":{"c":{}}},"z":[1,-1]}'.encode()
    assert read_body(_Anything, json.dumps({"value": value, "z": [1, -1]}).encode()) == _Anything(
        value=value, codes=(1, -1)
    )
