"""Every field of a message is put as said; records of a broker are made again byte for byte, and few make the records of many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import StoreConfig, open_store
from storage.errors import MessageIllegalError
from storage.format.properties import decode_properties
from storage.format.record import MAGIC_V2, TRANSACTION_PREPARED
from storage.format.record_block import RecordBlock, encode_block, stamp
from storage.rules.inner_messages import (
    EncodedMessage,
    InnerMessage,
    InnerMessages,
    Limits,
    columns_of,
    encode_properties,
    few_block,
    outgoing_messages,
    read_back,
)
from storage.store import MessageStore
from tests.support.fixture_stores import Fixture

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
V6_HOST = bytes(15) + b"\1" + (10911).to_bytes(4, "big")


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path / "store", config=StoreConfig.tiny(), read_only=False, create=True, clock=lambda: 5_000)


def test_every_field_stands_in_the_record(store: MessageStore) -> None:
    said = InnerMessage(
        topic="Orders",
        queue_id=3,
        body=b"body",
        properties={"UNIQ_KEY": "A1", "KEYS": "k1 k2", "TAGS": "t"},
        flag=7,
        sys_flag=0x8,
        born_time_ms=123,
        born_host=V6_HOST,
        reconsume_times=2,
        prepared_transaction_offset=99,
    )
    result = store.put_inner([said]).to_pylist()[0]
    found = store.message_by_commitlog_offset(result["commitlog_offset"])
    assert InnerMessage.of(found) == said
    assert (found.store_time_ms, result["queue_offset"], result["unique_key"]) == (5_000, 0, "A1")
    assert [message.commitlog_offset for message in store.query("Orders", "k2")] == [found.commitlog_offset]
    assert store.get("Orders", 3, 0, tags="t").messages == (found,)


def test_hosts_of_both_kinds_keep_their_order(store: MessageStore) -> None:
    hosts = [HOST, V6_HOST, HOST, HOST]
    said = [
        InnerMessage(topic="T", queue_id=0, body=bytes([n]), properties={}, born_host=host)
        for n, host in enumerate(hosts)
    ]
    places = store.put_inner(said)
    assert places.column("queue_offset").to_pylist() == [0, 1, 2, 3]
    found = store.get("T", 0, 0).messages
    assert [(message.body, message.born_host) for message in found] == [(m.body, m.born_host) for m in said]


def test_prepared_and_rolled_back_records_enter_no_queue(store: MessageStore) -> None:
    """CommitLog.DefaultAppendMessageCallback.doAppend: queue offset 0; DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue."""
    flags = [0x0, 0x4, 0xC, 0x8, 0x0]
    said = [InnerMessage(topic="T", queue_id=0, body=b"", properties={}, sys_flag=flag) for flag in flags]
    places = store.put_inner(said)
    assert places.column("queue_offset").to_pylist() == [0, 0, 0, 1, 2]
    assert store.max_offset("T", 0) == 3
    assert [message.sys_flag for message in store.get("T", 0, 0).messages] == [0x0, 0x8, 0x0]


def test_in_the_schedule_topic_the_tags_code_is_when_it_is_due(store: MessageStore) -> None:
    """CommitLog.checkMessageAndReturnSize."""
    levels = ["1", "3", "99", "0", None]
    said = [
        InnerMessage(
            topic="SCHEDULE_TOPIC_XXXX",
            queue_id=0,
            body=b"",
            properties={"TAGS": "a"} | ({"DELAY": level} if level is not None else {}),
        )
        for level in levels
    ]
    store.put_inner(said)
    queue = store.queues.get("SCHEDULE_TOPIC_XXXX", 0)
    assert queue is not None
    of_tags = ord("a")
    assert queue.entries(0, 5)["tags_code"].tolist() == [
        5_000 + 1_000,
        5_000 + 10_000,
        5_000 + 7_200_000,
        of_tags,
        of_tags,
    ]


def test_a_long_retry_topic_makes_a_v2_record(store: MessageStore) -> None:
    topic = "%RETRY%" + "g" * 200
    place = store.put_inner([InnerMessage(topic=topic, queue_id=0, body=b"x", properties={})]).to_pylist()[0]
    found = store.message_by_commitlog_offset(place["commitlog_offset"])
    assert (found.magic, found.topic) == (MAGIC_V2, topic)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"topic": "%RETRY%" + "g" * 249}, "topic"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body"),
        ({"properties": {"a": "b" * 32_765}}, "properties"),
    ],
)
def test_what_no_record_holds_is_refused_whole(store: MessageStore, change: dict[str, object], what: str) -> None:
    good = {"topic": "T", "queue_id": 0, "body": b"", "properties": {}}
    with pytest.raises(MessageIllegalError) as refused:
        store.put_inner([InnerMessage(**good), InnerMessage(**good | change)])  # type: ignore[arg-type]
    assert refused.value.what == what
    assert store.log_end == 0


def test_records_of_a_broker_are_made_again_byte_for_byte(fixture_store: Callable[[str], Fixture]) -> None:
    with open_store(fixture_store("ipv6").root) as store:
        count = 0
        for offsets, records in store.log.walk(store.log.minimum, check_crc=False):
            for row, place in enumerate(offsets.tolist()):
                record = records.take(np.array([row]))
                message = store.message_by_commitlog_offset(place)
                (run,) = outgoing_messages(
                    InnerMessages.of_records(record), message.store_host, store.config.delay.delays_ms, Limits()
                )
                block = encode_block(run, message.store_host)
                made = block.data.copy()
                stamp(
                    made,
                    np.zeros(1, np.int64),
                    record.column("queue_offset"),
                    np.array([place]),
                    message.store_time_ms,
                    block.columns.host_size,
                )
                start = int(record.positions[0])
                assert made.tobytes() == record.buffer[start : start + message.size_bytes].tobytes()
                count += 1
        assert count == 136


def test_what_utf_8_cannot_say_is_a_question_mark() -> None:
    """String.getBytes of half a surrogate pair, which JSON can say."""
    assert encode_properties({"a\ud800": "\udc00b"}) == b"a?\x01?b\x02"


def test_properties_are_written_in_their_order() -> None:
    assert encode_properties({"b": "1", "a": "ü"}) == "b\x011\x02a\x01ü\x02".encode()


CLIENT = bytes((10, 0, 0, 1)) + (4711).to_bytes(4, "big")
DELAYS_MS = (1_000, 5_000)
TEXTS = st.text(st.sampled_from("ab #?%éß漢😀\x01\x02\ud800") | st.characters(codec="utf-8"), max_size=12)
PROPERTIES = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "", "own", "é"]), TEXTS, max_size=5)
KEYS = st.lists(st.sampled_from(["a", "b", "same", "é"]), max_size=5).map(" ".join)


def message(topic: str, number: int, properties: dict[str, str], *, sys_flag: int = 0) -> InnerMessage:
    return InnerMessage(
        topic=topic,
        queue_id=number % 3,
        body=b"x" * number,
        properties=properties,
        flag=number - 5,
        sys_flag=sys_flag,
        born_time_ms=1_700_000_000_000 + number,
        born_host=CLIENT,
        reconsume_times=number % 4,
        prepared_transaction_offset=number * 7,
    )


def by_columns(messages: list[EncodedMessage]) -> RecordBlock:
    (outgoing,) = outgoing_messages(columns_of(messages), HOST, DELAYS_MS, Limits())
    return encode_block(outgoing, HOST)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["T", "Orders", "T" * 127, "T" * 128]), PROPERTIES, KEYS), min_size=1, max_size=6
    )
)
def test_few_make_the_records_of_columns(rows: list[tuple[str, dict[str, str], str]]) -> None:
    messages = [
        EncodedMessage.of(message(topic, number, properties | ({"KEYS": keys} if keys else {})))
        for number, (topic, properties, keys) in enumerate(rows)
    ]
    few, columns = few_block(messages, HOST, Limits()), by_columns(messages)
    assert few is not None
    assert few.data.tobytes() == columns.data.tobytes()
    names = [[block.columns.queues[code] for code in block.columns.queue_codes.tolist()] for block in (few, columns)]
    assert names[0] == names[1]
    for name in ("sizes_bytes", "tags_codes", "key_counts", "key_hashes"):
        found, expected = getattr(few.columns, name), getattr(columns.columns, name)
        np.testing.assert_array_equal(found, expected, name)
        assert found.dtype == expected.dtype
    assert (few.columns.host_size, few.columns.is_queued) == (columns.columns.host_size, columns.columns.is_queued)


@given(PROPERTIES)
def test_properties_are_what_a_reader_finds(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert read_back(raw, properties) == decode_properties(raw)


@pytest.mark.parametrize(
    "seldom",
    [
        message("SCHEDULE_TOPIC_XXXX", 1, {"DELAY": "1"}),
        message("T", 1, {}, sys_flag=TRANSACTION_PREPARED),
        message("T" * 300, 1, {}),
        message("T", 1, {"own": "x" * 40_000}),
        message("Tä", 1, {}),
    ],
    ids=["waits", "half", "topic", "properties", "foreign"],
)
def test_what_is_seldom_is_left_to_columns(seldom: InnerMessage) -> None:
    usual = EncodedMessage.of(message("T", 1, {}))
    assert few_block([usual], HOST, Limits()) is not None
    assert few_block([usual, EncodedMessage.of(seldom)], HOST, Limits()) is None
    assert few_block([usual], bytes(16) + HOST[-4:], Limits()) is None
    assert few_block([usual], HOST, Limits(max_message_size=0)) is None
