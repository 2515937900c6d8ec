"""Rows that go to a consumer group's retry topic, sent there by a client or sent back: where they go and what they say then.

Java: SendMessageProcessor.handleRetryAndDLQ, ConsumeMessageOrderlyService.sendMessageBack;
AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.broker.put_plan import retry_or_dead_letter
from storage.format.properties import MADE_ANEW
from storage.format.record import Message, decode_record
from storage.format.record_block import OutgoingMessages, encode_block
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.delays import route_delayed
from storage.rules.inner_messages import InnerMessage, Limits
from storage.rules.message_rows import MessageRows, Prepared
from storage.rules.retries import RetryRules
from storage.rules.retry_rows import Returned, ReturnedRows, ReturnRules
from storage.rules.row_rules import MessageRules
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.topics import TopicConfig
from tests.support.named_rows import each_named

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
V6_HOST = bytes([*range(16), 0, 0, 0x2A, 0x9F])
NOW_MS = 1_700_000_000_000
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
GROUP = SubscriptionGroupConfig("g", retry_queue_count=3, retry_max_times=4)
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "retry_group": pa.string(),
    "reconsume_times": pa.int32(),
    "delay_level": pa.int32(),
    "queue_id": pa.int32(),
    "origin_msg_id": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "born_host": pa.string(),
    "sys_flag": pa.int32(),
}


def table(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [pa.array([row.get(name) for row in rows], TYPES.get(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def records(outgoing: OutgoingMessages, host: bytes = HOST) -> list[Message]:
    block = encode_block(outgoing, host)
    data, ends = block.data.tobytes(), np.cumsum(block.columns.sizes_bytes).tolist()
    found = [decode_record(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert all(isinstance(message, Message) for message in found)
    return found  # type: ignore[return-value]


# Sent by a client


def rules(retries: RetryRules | None = None, **changes: Any) -> MessageRules:
    values = {"topic": "T", "topics": {"T": TopicConfig("T", 8, 8)}, "retries": retries or RetryRules({"g": GROUP})}
    return MessageRules(**{**values, **changes})


def prepare(rows: list[dict[str, Any]], used: MessageRules | None = None) -> Prepared:
    named, used = each_named(rows, used or rules())
    return MessageRows(used, bytes(10)).prepare(table(named), NOW_MS)


@pytest.mark.parametrize("times", [0, 1, 4, 5, 100])
@pytest.mark.parametrize("level", [None, 0, 2, 99])
@pytest.mark.parametrize("maximum", [None, 0, 16])
def test_a_row_for_a_group_goes_where_a_message_for_its_retry_topic_does(
    times: int, level: int | None, maximum: int | None
) -> None:
    """handleRetryAndDLQ, then HookUtils.handleScheduleMessage. DELAY without a wish is the orderly consumer's 3 + times."""
    used = rules(RetryRules({"g": GROUP}, max_reconsume_times=maximum))
    prepared = prepare(
        [{"body": b"x", "retry_group": "g", "reconsume_times": times, "delay_level": level, "queue_id": 7}], used
    )
    assert prepared.rejected == ()
    (ours,) = records(prepared.messages)
    shared = {name: value for name, value in ours.properties.items() if name in MADE_ANEW}
    wished = 3 + times if level is None else level
    sent = InnerMessage(
        topic="%RETRY%g",
        queue_id=0,
        body=b"x",
        properties={**shared, "RETRY_TOPIC": "T", **({"DELAY": str(wished)} if wished else {})},
        reconsume_times=times,
    )
    routed = retry_or_dead_letter(sent, {"g": GROUP}, {}, config=StoreConfig(), max_reconsume_times=maximum)
    expected = route_delayed(routed.message, delays_ms=used.delays_ms, timer=TimerConfig(), now_ms=NOW_MS)
    assert (ours.topic, ours.queue_id, ours.reconsume_times) == (expected.topic, expected.queue_id, times)
    assert ours.properties == expected.properties
    target = "%DLQ%g" if routed.is_dead_letter else "%RETRY%g"
    assert prepared.destinations == ((target, 0),)
    assert prepared.topics == {target: 1 if routed.is_dead_letter else 3}


def test_rows_of_groups_and_others_share_a_batch() -> None:
    rows = [
        {"body": b"a", "retry_group": "g", "reconsume_times": 1, "topic": "Other", "origin_msg_id": "ID"},
        {"body": b"b", "retry_group": None, "reconsume_times": 9, "topic": "T", "origin_msg_id": "ID"},
        {"body": b"c", "retry_group": "h", "reconsume_times": 17, "topic": "T", "origin_msg_id": None},
        {"body": b"d", "retry_group": "g", "reconsume_times": None, "topic": None, "origin_msg_id": None},
    ]
    prepared = prepare(rows)
    assert prepared.rejected == ()
    found = [
        (m.body, m.topic, m.queue_id, m.reconsume_times, m.properties.get("DELAY")) for m in records(prepared.messages)
    ]
    assert found == [
        (b"a", SCHEDULE, 3, 1, "4"),
        (b"b", "T", 0, 0, None),
        (b"c", "%DLQ%h", 0, 17, "-1"),
        (b"d", SCHEDULE, 2, 0, "3"),
    ]
    said = [
        (m.properties.get("RETRY_TOPIC"), m.properties.get("ORIGIN_MESSAGE_ID"), m.properties.get("REAL_TOPIC"))
        for m in records(prepared.messages)
    ]
    assert said == [("Other", "ID", "%RETRY%g"), (None, None, None), ("T", None, None), ("T", None, "%RETRY%g")]
    assert prepared.topics == {"T": 8, "%RETRY%g": 3, "%DLQ%h": 1}, "Other was there, as far as anybody knows"


@pytest.mark.parametrize(
    ("row", "used", "column", "rule"),
    [
        ({"retry_group": "a/b"}, rules(), "retry_group", "character '/' at position 1"),
        ({"retry_group": ""}, rules(), "retry_group", "it is blank"),
        (
            {"retry_group": "x"},
            rules(RetryRules({}, auto_create=False)),
            "retry_group",
            "no group 'x', and none may be",
        ),
        ({"retry_group": "g", "reconsume_times": -1}, rules(), "reconsume_times", "negative"),
        ({"retry_group": "g", "delay_level": -1}, rules(), "delay_level", "negative"),
        (
            {"retry_group": "g"},
            rules(topics={"T": TopicConfig("T", 8, 8), "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, perm=4)}),
            "retry_group",
            "topic '%RETRY%g' cannot be written",
        ),
        (
            {"retry_group": "g"},
            rules(topics={"T": TopicConfig("T", 8, 8), "%RETRY%g": TopicConfig("%RETRY%g", 1, 0)}),
            "retry_group",
            "topic '%RETRY%g' has no write queues",
        ),
        (
            {"retry_group": "g"},
            rules(RetryRules({"g": SubscriptionGroupConfig("g", retry_queue_count=0)})),
            "retry_group",
            "topic '%RETRY%g' has no write queues",
        ),
    ],
    ids=str,
)
def test_what_a_broker_would_not_take_is_refused(
    row: dict[str, Any], used: MessageRules, column: str, rule: str
) -> None:
    """SUBSCRIPTION_GROUP_NOT_EXIST, NO_PERMISSION."""
    ((_, found, text),) = prepare([{"body": b"x", **row}], used).rejected
    assert (found, rule in text) == (column, True), text


# Sent back


def back(rows: list[dict[str, Any]], group: SubscriptionGroupConfig = GROUP, **changes: Any) -> Returned:
    return ReturnedRows(ReturnRules(group, HOST, **changes)).prepare(table(rows), NOW_MS)


def consumed(body: bytes, **columns: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "msg_id": "ID",
        "properties": [("UNIQ_KEY", body.decode()), ("a", "1")],
        "body": body,
        **columns,
    }


def test_rows_take_turns_among_retry_queues_and_the_dead_go_to_one() -> None:
    """consumerSendMsgBack: a queue of retryQueueNums (Java draws it), %DLQ% has one; DELAY is 0 there."""
    rows = [consumed(b"%d" % n, reconsume_times=times) for n, times in enumerate([0, 1, 4, 3, 5, 0])]
    returned = back(rows)
    assert returned.rejected == ()
    assert returned.topics == {"%RETRY%g": 3, "%DLQ%g": 1}
    (part,) = returned.parts
    found = [
        (m.body, m.topic, m.queue_id, m.reconsume_times, m.properties["DELAY"], m.properties.get("REAL_QID"))
        for m in records(part)
    ]
    assert found == [
        (b"0", SCHEDULE, 2, 1, "3", "0"),
        (b"1", SCHEDULE, 3, 2, "4", "1"),
        (b"2", "%DLQ%g", 0, 5, "0", None),
        (b"3", SCHEDULE, 5, 4, "6", "0"),
        (b"4", "%DLQ%g", 0, 6, "0", None),
        (b"5", SCHEDULE, 2, 1, "3", "2"),
    ]


def test_topics_are_those_that_the_rows_need() -> None:
    """consumerSendMsgBack makes the retry topic in any case, that of dead letters with the first."""
    assert back([consumed(b"a")]).topics == {"%RETRY%g": 3}
    assert back([consumed(b"a", delay_level=-1)]).topics == {"%RETRY%g": 3, "%DLQ%g": 1}


def test_producers_of_both_kinds_of_address_are_kept_apart_and_kept() -> None:
    """MessageExtEncoder: the born host's kind decides a record's layout; setBornHost keeps the producer's."""
    rows = [
        consumed(b"a", born_host="10.1.2.3:77"),
        consumed(b"b", born_host="10.1.2.4:78"),
        consumed(b"c", born_host="[2001:db8::1]:79"),
    ]
    parts = back(rows).parts
    found = [message for part in parts for message in records(part)]
    assert [len(message.born_host) for message in found] == [8, 8, 20]
    assert [message.body for message in found] == [b"a", b"b", b"c"]
    assert {message.store_host for message in found} == {HOST}


def test_a_group_without_retry_queues_loses_nothing_silently() -> None:
    """Departure: Java answers SUCCESS and forgets the message (retryQueueNums <= 0)."""
    ((_, column, rule),) = back([consumed(b"a")], SubscriptionGroupConfig("g", retry_queue_count=0)).rejected
    assert (column, "takes no retries" in rule) == ("topic", True)


def test_a_retry_topic_that_nobody_may_write_is_refused() -> None:
    """NO_PERMISSION: "the topic[%RETRY%g] sending message is forbidden"."""
    topics = {"%RETRY%g": TopicConfig("%RETRY%g", 1, 1, perm=4)}
    ((_, column, rule),) = back([consumed(b"a")], topics=topics).rejected
    assert (column, "cannot be written" in rule) == ("topic", True)


def test_a_broker_that_takes_no_messages_takes_none_back() -> None:
    """NO_PERMISSION: "the broker[…] sending message is forbidden"."""
    ((_, column, rule),) = back([consumed(b"a")], broker_permission=4).rejected
    assert (column, "brokerPermission 4" in rule) == ("topic", True)


def test_a_system_group_is_made_only_where_the_broker_may() -> None:
    """SubscriptionGroupManager.findSubscriptionGroupConfig: enableCreateSysGroup."""
    group = "CID_RMQ_SYS_OTHER"
    assert RetryRules(auto_create=False).group(group) is not None
    assert RetryRules(auto_create=False, create_system_groups=False).group(group) is None


def test_rows_that_are_too_large_are_refused_and_the_others_go() -> None:
    """MessageExtEncoder: MESSAGE_ILLEGAL above maxMessageSize; a body that was compressed may be, as it is read."""
    returned = back([consumed(b"a"), consumed(b"x" * 101), consumed(b"b" * 100)], limits=Limits(100))
    assert [(row, column) for row, column, _ in returned.rejected] == [(1, "body")]
    (part,) = returned.parts
    assert [message.body for message in records(part)] == [b"a", b"b" * 100]
    long = consumed(b"c") | {"properties": [("a", "x" * 32_767)]}
    ((_, column, rule),) = back([long]).rejected
    assert (column, "all properties together are" in rule) == ("properties", True)


def test_numbers_of_rows_go_on_from_batch_to_batch() -> None:
    task = ReturnedRows(ReturnRules(GROUP, HOST))
    task.prepare(table([consumed(b"a"), consumed(b"b")]), NOW_MS)
    second = task.prepare(table([consumed(b"c"), {**consumed(b"d"), "msg_id": None}]), NOW_MS)
    assert [row for row, _, _ in second.rejected] == [3]
    (part,) = second.parts
    assert [message.properties["REAL_QID"] for message in records(part)] == ["2"]


NO_CREATION = SendConfig(auto_create_topic_enable=False)


def test_the_topic_that_a_row_came_from_may_be_gone() -> None:
    """AbstractSendMessageProcessor.consumerSendMsgBack asks for the retry topic's entry, and for none of the message's own."""
    there = {"%RETRY%g": TopicConfig("%RETRY%g", 3, 3)}
    rows = [
        {"body": b"a", "topic": "Gone", "retry_group": "g"},
        {"body": b"b", "topic": "Gone", "retry_group": None},
        {"body": b"c", "topic": "no/topic", "retry_group": "g"},
        {"body": b"d", "topic": None, "retry_group": "g"},
        {"body": b"e", "topic": "%RETRY%other", "retry_group": "g"},
    ]
    prepared = prepare(rows, rules(topic=None, topics=there, send=NO_CREATION))
    assert [message.properties["RETRY_TOPIC"] for message in records(prepared.messages)] == ["Gone", "%RETRY%other"]
    assert [(row.row, row.column) for row in prepared.rejected] == [(1, "topic"), (2, "topic"), (3, "topic")]
    assert "autoCreateTopicEnable=false" in prepared.rejected[0].rule
    assert prepared.rejected[2].rule.startswith("it is null")
    assert set(prepared.topics) == {"%RETRY%g"}


@pytest.mark.parametrize("times", [0, 17])
def test_a_broker_that_takes_no_writes_takes_no_retries(times: int) -> None:
    """BrokerController.registerBrokerAll takes brokerPermission off each route; consumerSendMsgBack: NO_PERMISSION."""
    row = {"body": b"a", "topic": "T", "retry_group": "g", "reconsume_times": times}
    (rejected,) = prepare([row], rules(send=SendConfig(broker_permission=4))).rejected
    assert (rejected.column, "brokerPermission=4" in rejected.rule) == ("retry_group", True)
