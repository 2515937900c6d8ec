"""Halves, what is committed of them, what is put back: the same properties and fields as the Apache broker's own records.

The broker's records are those of the `clean` store, what it was sent is in its sent.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import Message, MessageStore, open_store
from storage.errors import PutRefusedError
from storage.format.record import HOST_FLAGS, committed_flags
from storage.pending import PutStatus
from storage.rules.half_messages import (
    CHECK_TIMES,
    FIRST_OFFSET,
    HALF_DELAYED,
    HALF_EMPTY,
    HALF_TOPIC,
    OP_TOPIC,
    OpBatch,
    committed_messages,
    discarded_messages,
    half_message,
    half_properties,
    half_refusals,
    integers,
    op_bodies,
    op_messages,
    put_back_messages,
    put_back_unchecked,
    real_queue,
    resumed_messages,
    with_property,
)
from storage.rules.inner_messages import InnerMessage, InnerMessages, encode_properties
from storage.settings.nouns import parse_broker_version, release_of
from tests.support.fixture_stores import Fixture
from tests.support.served import served

ADDED_BY_BROKER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "LabCluster"}


@pytest.fixture
def fixture(pristine_store: Callable[[str], Fixture]) -> Fixture:
    return pristine_store("clean")


@pytest.fixture
def store(fixture: Fixture) -> Iterator[MessageStore]:
    with open_store(fixture.root) as opened:
        yield opened


@pytest.fixture
def halves(store: MessageStore) -> list[Message]:
    return messages(store, HALF_TOPIC)


def messages(store: MessageStore, topic: str, queue_id: int = 0) -> list[Message]:
    return list(served(store, topic, queue_id))


def sent_transactions(fixture: Fixture) -> dict[str, dict[str, Any]]:
    """What the producer sent, by unique key."""
    assert fixture.sent is not None
    lines = (json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines())
    return {line["msgId"]: line for line in lines if line["kind"] == "tx"}


def one(columns: InnerMessages) -> InnerMessage:
    """The one row of columns."""
    assert columns.row_count == 1
    return columns.message(0)


# As the broker's


def test_a_half_is_the_brokers(fixture: Fixture, halves: list[Message]) -> None:
    """TransactionalMessageBridge.parseHalfMessageInner, DefaultMQProducerImpl.sendMessageInTransaction."""
    sent = sent_transactions(fixture)
    originals = [half for half in halves if CHECK_TIMES not in half.properties]
    assert len(originals) == 18
    for half in originals:
        line = sent[half.unique_key or ""]
        plain = {name: value for name, value in line["properties"].items() if name not in ("TRAN_MSG", "PGROUP")}
        message = InnerMessage(
            topic="TopicTx",
            queue_id=line["queueId"],
            body=half.body,
            properties=ADDED_BY_BROKER | plain,
            flag=line["flag"],
            sys_flag=line["sysFlag"],  # the client's prepared bit among them
            born_time_ms=half.born_time_ms,
            born_host=half.born_host,
        )
        assert half_message(message, "ProducerTx") == InnerMessage.of(half)
        with_groups = replace(message, properties=ADDED_BY_BROKER | line["properties"])
        assert half_message(with_groups) == InnerMessage.of(half)


def test_a_committed_message_is_the_brokers(store: MessageStore, halves: list[Message]) -> None:
    """EndTransactionProcessor.endMessageTransaction and processRequest."""
    by_place = {half.commitlog_offset: half for half in halves}
    committed = [message for queue_id in store.queue_ids("TopicTx") for message in messages(store, "TopicTx", queue_id)]
    assert len(committed) == 12
    for message in committed:
        half = by_place[message.prepared_transaction_offset]
        expected = replace(InnerMessage.of(message), sys_flag=message.sys_flag & ~HOST_FLAGS)
        columns = committed_messages(InnerMessages.of([InnerMessage.of(half)]), np.array([half.commitlog_offset]))
        assert one(columns) == expected


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.4.0", "5.5.0"])
def test_a_committed_message_names_its_half_messages_queue_up_to_5_3(
    pristine_store: Callable[[str], Fixture], version: str
) -> None:
    """EndTransactionProcessor.endMessageTransaction of each release."""
    names_real_queue = release_of(parse_broker_version(version)).commit_names_real_queue
    assert names_real_queue == (version < "5.4")
    with open_store(pristine_store(f"v{version}").root) as store:
        halves = {half.commitlog_offset: half for half in messages(store, HALF_TOPIC)}
        topics = {half.properties["REAL_TOPIC"] for half in halves.values()}
        committed = [
            message
            for topic in topics
            for queue_id in store.queue_ids(topic)
            for message in messages(store, topic, queue_id)
            if message.prepared_transaction_offset in halves
        ]
        assert len(committed) > 1
        for message in committed:
            half = halves[message.prepared_transaction_offset]
            columns, place = InnerMessages.of([InnerMessage.of(half)]), np.array([half.commitlog_offset])
            made = one(committed_messages(columns, place, names_real_queue=names_real_queue))
            assert (made.topic, made.queue_id, made.properties) == (message.topic, message.queue_id, message.properties)


def test_a_half_put_back_is_the_brokers_but_keeps_its_flag(halves: list[Message]) -> None:
    """TransactionalMessageBridge.renewHalfMessageInner, which leaves flag out."""
    last: dict[str | None, Message] = {}
    compared = 0
    for half in halves:
        if before := last.get(half.unique_key):
            times = int(half.properties[CHECK_TIMES])
            renewed = one(put_back_messages(InnerMessages.of([InnerMessage.of(before)]), np.array([times])))
            assert renewed == replace(InnerMessage.of(half), flag=before.flag)
            compared += 1
        last[half.unique_key] = half
    assert compared == len(halves) - 18 > 20


def test_op_messages_are_the_brokers(store: MessageStore) -> None:
    """TransactionalMessageServiceImpl.getOpMessage, TransactionalMessageBridge.makeOpMessageInner."""
    for op in messages(store, OP_TOPIC):
        offsets = np.array([int(text) for text in op.body.decode().split(",") if text])
        (made,) = op_messages(offsets, 4_096, op.born_time_ms)
        assert op.born_host == op.store_host
        assert made == replace(InnerMessage.of(op), born_host=None)
        assert sorted(made.properties) == sorted(op.properties)


# Rules


@pytest.mark.parametrize(
    "properties",
    [
        *({"DELAY": level} for level in ("1", "+3", "٣", "0" * 5_000 + "1")),
        *({name: "1"} for name in ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")),
    ],
    ids=lambda properties: " ".join(f"{name} {value[:4]}" for name, value in properties.items()),
)
def test_a_delayed_message_becomes_no_half(properties: dict[str, str]) -> None:
    """HookUtils.handleScheduleMessage parks the half, ScheduleMessageService.messageTimeUp discards it. Integer.parseInt."""
    message = InnerMessage(topic="T", queue_id=0, body=b"b", properties=properties)
    with pytest.raises(PutRefusedError) as refused:
        half_message(message)
    assert refused.value.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.UNKNOWN_ERROR)


def test_a_message_without_body_becomes_no_half() -> None:
    """EndTransactionProcessor: its body is null when it is read back, and HookUtils.checkBeforePutMessage refuses that."""
    with pytest.raises(PutRefusedError, match="empty") as refused:
        half_message(InnerMessage(topic="T", queue_id=0, body=b"", properties={}))
    assert refused.value.status is PutStatus.MESSAGE_ILLEGAL


def test_columns_of_values_become_halves_by_the_same_rules() -> None:
    """Levels, times and bodies of many; what a broker says of them."""
    levels, asks_time, is_empty = np.array([0, 1, -1, 0]), np.array([0, 0, 0, 1]) > 0, np.array([1, 1, 0, 0]) > 0
    found = [(np.flatnonzero(rows).tolist(), why) for rows, why in half_refusals(levels, asks_time, is_empty)]
    assert found == [([1, 3], HALF_DELAYED), ([0, 1], HALF_EMPTY)]
    parked = half_refusals(levels, asks_time, is_empty, parks_delayed=True)
    assert [np.flatnonzero(rows).tolist() for rows, _ in parked] == [[3], [0, 1]]
    columns = half_properties(pa.array(["T"]), pa.array(["3"]), pa.array(["K"]))
    single = half_properties("T", "3", "K")
    assert {name: column.to_pylist() for name, column in columns.items()} == {n: [v] for n, v in single.items()}
    assert committed_flags(np.array([0x4, 0x3, 0xC])).tolist() == [committed_flags(flag) for flag in (0x4, 0x3, 0xC)]


@pytest.mark.parametrize("level", ["", "1_0", "abc", "9" * 5_000])
def test_a_level_that_is_no_number_becomes_no_half(level: str) -> None:
    """Message.getDelayTimeLevel, which throws."""
    message = InnerMessage(topic="T", queue_id=0, body=b"b", properties={"DELAY": level, "UNIQ_KEY": "K"})
    with pytest.raises(PutRefusedError):
        half_message(message)


@pytest.mark.parametrize("level", ["0", "+0", "-1", "000"])
def test_a_level_below_1_is_no_delay(level: str) -> None:
    """Message.getDelayTimeLevel."""
    message = InnerMessage(topic="T", queue_id=0, body=b"b", properties={"DELAY": level})
    assert half_message(message).topic == HALF_TOPIC


def test_what_a_message_says_of_itself_in_a_brokers_words_is_replaced() -> None:
    """MessageAccessor.putProperty: a client cannot choose where its message is committed."""
    hostile = {"REAL_TOPIC": "Other", "REAL_QID": "9", "__transactionId__": "x", "UNIQ_KEY": "K", "a": "b"}
    message = InnerMessage(topic="T", queue_id=3, body=b"b", properties=hostile)
    expected = {
        "UNIQ_KEY": "K",
        "a": "b",
        "TRAN_MSG": "true",
        "PGROUP": "P",
        "__transactionId__": "K",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert dict(half_message(message, "P").properties) == expected


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "T"},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T", "REAL_QID": "9999999999"},
        {"REAL_TOPIC": "../T", "REAL_QID": "0"},
        {"REAL_TOPIC": "..", "REAL_QID": "0"},
    ],
    ids=str,
)
def test_a_half_that_does_not_say_where_it_belongs_is_refused(
    properties: dict[str, str], halves: list[Message]
) -> None:
    """EndTransactionProcessor.endMessageTransaction throws."""
    half = replace(halves[0], properties=properties)
    with pytest.raises(PutRefusedError, match="REAL_TOPIC"):
        real_queue(half)
    with pytest.raises(PutRefusedError, match="REAL_TOPIC"):
        committed_messages(InnerMessages.of([InnerMessage.of(half)]))


def test_the_first_half_is_remembered_through_every_unasked_return(halves: list[Message]) -> None:
    """TransactionalMessageBridge.renewImmunityHalfMessageInner."""
    first = put_back_unchecked(InnerMessages.of([InnerMessage.of(halves[3])]), np.array([3]))
    second = put_back_unchecked(first, np.array([40]))
    assert one(first).properties == {**halves[3].properties, FIRST_OFFSET: "3", "WAIT": "false"}
    assert one(second) == one(first)


def test_what_is_given_up_and_resumed_keeps_all_but_topic_and_count(halves: list[Message]) -> None:
    """DefaultTransactionalMessageCheckListener.toMessageExtBrokerInner, AdminBrokerProcessor.resumeCheckHalfMessage."""
    half = InnerMessage.of(halves[-1])
    discarded = discarded_messages(InnerMessages.of([half]))
    assert one(discarded) == replace(half, topic="TRANS_CHECK_MAX_TIME_TOPIC")
    assert one(resumed_messages(discarded)) == replace(half, properties={**half.properties, CHECK_TIMES: "0"})


# Bytes


def test_a_property_is_set_in_place_of_all_of_its_name() -> None:
    raw = [
        b"A\x01a\x02N\x01old\x02B\x01b\x02",
        b"N\x01old\x02N\x01older\x02",
        b"XN\x01x\x02",
        b"",
        b"A\x01N\x01\x02",
        b"\xff\x01\xfe\x02N\x01o\x02",
    ]
    encoded = with_property(pa.array(raw, pa.large_binary()), "N", "new")
    assert encoded.to_pylist() == [
        b"A\x01a\x02B\x01b\x02N\x01new\x02",
        b"N\x01new\x02",
        b"XN\x01x\x02N\x01new\x02",
        b"N\x01new\x02",
        b"A\x01N\x01\x02N\x01new\x02",
        b"\xff\x01\xfe\x02N\x01new\x02",
    ]


def test_a_null_or_empty_value_sets_nothing() -> None:
    raw = pa.array([b"N\x01old\x02", b"N\x01old\x02", b"N\x01old\x02"], pa.large_binary())
    encoded = with_property(raw, "N", pa.array(["ä", None, ""]))
    assert encoded.to_pylist() == ["N\x01ä\x02".encode(), b"N\x01old\x02", b"N\x01old\x02"]


def test_a_string_without_its_last_separator_gets_it_before_more_is_added() -> None:
    """MessageDecoder.string2messageProperties reads both."""
    message = InnerMessage(topic="T", queue_id=0, body=b"", properties={})
    columns = InnerMessages.of([message, message])
    columns = columns._replace(properties=pa.array([b"a\x01b", b"a\x01b\x02"], pa.large_binary()))
    renewed = put_back_messages(columns, np.array([1, 2]))
    expected = [encode_properties({"a": "b", CHECK_TIMES: str(times)}) for times in (1, 2)]
    assert renewed.properties.to_pylist() == expected


def test_numbers_are_read_as_far_as_they_are_digits() -> None:
    texts = pa.array(["15", "", None, "x", "-1", "999999999", "9999999999"])
    assert integers(texts, -1).tolist() == [15, -1, -1, -1, -1, 999_999_999, -1]


@pytest.mark.parametrize(
    ("offsets", "limit", "bodies"),
    [
        ([1], 4_096, [b"1,"]),
        ([8, 9, 10, 11], 5, [b"8,9,10,", b"11,"]),  # the third fills it
        ([8, 9, 10, 11], 4, [b"8,9,", b"10,11,"]),
        ([123_456], 1, [b"123456,"]),
        ([], 4_096, []),
        ([8, 9, 10], 0, [b"8", b"9", b"10"]),  # as releases before 5.1 write them, and nothing else do they read
    ],
)
def test_an_op_body_ends_with_the_offset_that_fills_it(offsets: list[int], limit: int, bodies: list[bytes]) -> None:
    """TransactionalMessageServiceImpl.getOpMessage appends while the body is shorter than transactionOpMsgMaxSize."""
    assert op_bodies(np.array(offsets, np.int64), limit) == bodies


def test_op_messages_wait_for_the_interval_or_the_size() -> None:
    """TransactionalMessageServiceImpl.batchSendOpMessage, MessageQueueOpContext."""
    batch = OpBatch(6, 3_000, now_ms=1_000)
    assert not batch.is_due(9_000)
    batch.add(10)
    assert [batch.is_due(now_ms) for now_ms in (3_999, 4_000)] == [False, True]
    batch.add(11)
    assert batch.is_due(1_001)
    assert [message.body for message in batch.messages(4_000)] == [b"10,11,"]
    batch.written(4_000)
    assert len(batch) == 0
    batch.add(12)
    assert [batch.is_due(now_ms) for now_ms in (6_999, 7_000)] == [False, True]
