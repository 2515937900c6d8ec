"""Rows with a delay level or a deliver time: what the Apache broker stored of such messages, and each rule once.

Java: HookUtils.handleScheduleMessage, transformDelayLevelMessage, transformTimerMessage; ScheduleMessageService.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import open_store
from storage.errors import PutRefusedError
from storage.format.arrays import index_key_hash, string_hash
from storage.format.properties import EARLIER_LIFE, MADE_ANEW
from storage.format.record import Message, decode_record
from storage.format.record_block import DUE_IN, encode_block
from storage.names import is_retry_or_dead_letter_topic
from storage.rules.delays import route_delayed
from storage.rules.inner_messages import InnerMessage
from storage.rules.message_rows import MessageRows, Prepared
from storage.rules.row_rules import MessageRules
from storage.rules.values import RejectedRow, Rejections
from storage.settings.nouns import TimerConfig
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture
from tests.support.named_rows import each_named

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW_MS = 1_700_000_000_000
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
TYPES: dict[str, pa.DataType] = {
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("ms", "UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
    "queue_id": pa.int32(),
}


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def rules(**changes: Any) -> MessageRules:
    return MessageRules(**{"topic": "T", "topics": {"T": TopicConfig("T", 4, 4)}, **changes})


def prepare(rows: list[dict[str, Any]], used: MessageRules | None = None) -> Prepared:
    rows, used = each_named(rows, used or rules())
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [pa.array([row.get(name) for row in rows], TYPES.get(name)) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    return MessageRows(used, bytes(10)).prepare(batch, NOW_MS)


def records(prepared: Prepared) -> list[Message]:
    block = encode_block(prepared.messages, HOST)
    data, ends = block.data.tobytes(), np.cumsum(block.columns.sizes_bytes).tolist()
    found = [decode_record(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert all(isinstance(message, Message) for message in found)
    return found  # type: ignore[return-value]


def written(row: dict[str, Any], used: MessageRules | None = None) -> Message:
    prepared = prepare([row], used)
    assert prepared.rejected == ()
    (message,) = records(prepared)
    return message


def refusal(row: dict[str, Any], used: MessageRules | None = None) -> RejectedRow:
    prepared = prepare([row, {"body": b"good"}], used)
    assert [message.body for message in records(prepared)] == [b"good"]
    (rejected,) = prepared.rejected
    return rejected


# As the broker stored them


def delayed_by_producers(fixture: Fixture) -> Iterator[tuple[Message, int]]:
    """Records of the schedule topic that producers sent, each with its queue entry's tags code."""
    with open_store(fixture.root) as store:
        for queue_id in store.queue_ids(SCHEDULE):
            messages = store.get(SCHEDULE, queue_id, 0, 1_000).messages
            queue = store.queues.get(SCHEDULE, queue_id)
            assert queue is not None
            codes = queue.entries(0, len(messages))["tags_code"].tolist()
            for message, code in zip(messages, codes, strict=True):
                if not is_retry_or_dead_letter_topic(message.properties["REAL_TOPIC"]):
                    yield message, code


def test_rows_with_a_level_become_the_records_that_the_broker_stored(pristine_store: Callable[[str], Fixture]) -> None:
    """HookUtils.transformDelayLevelMessage, CommitLog.checkMessageAndReturnSize (tagsCode = deliver time)."""
    count = 0
    fixture = pristine_store("clean")
    with open_store(fixture.root) as store:
        delays_ms = store.config.delay.delays_ms
    for java, tags_code in delayed_by_producers(fixture):
        properties = java.properties
        own = {
            name: value for name, value in properties.items() if name not in (*EARLIER_LIFE, *MADE_ANEW, "TAGS", "KEYS")
        }
        row = {
            "body": java.plain_body,
            "topic": properties["REAL_TOPIC"],
            "queue_id": int(properties["REAL_QID"]),
            "delay_level": int(properties["DELAY"]),
            "properties": list(own.items()),
            "tags": properties.get("TAGS"),
            "keys": properties.get("KEYS"),
            "unique_key": properties["UNIQ_KEY"],
        }
        used = rules(topics={}, keep_unique_key=True, cluster_name="LabCluster", delays_ms=delays_ms)
        prepared = prepare([row], used)
        (ours,) = records(prepared)
        assert (ours.topic, ours.queue_id, ours.body) == (java.topic, java.queue_id, java.plain_body)
        assert ours.properties == {**properties, "WAIT": "true"}
        assert prepared.messages.tags_codes.tolist() == [DUE_IN + tags_code - java.store_time_ms]
        assert prepared.destinations == ((properties["REAL_TOPIC"], int(properties["REAL_QID"])),)
        names = [properties["UNIQ_KEY"], *properties.get("KEYS", "").split()]
        assert prepared.messages.key_hashes.tolist() == [index_key_hash(f"{SCHEDULE}#{name}") for name in names]
        count += 1
    assert count >= 20


# By the rules of one message


@pytest.mark.parametrize(
    "row",
    [
        {"delay_level": 0},
        {"delay_level": 1},
        {"delay_level": 18},
        {"delay_level": 19},
        {"delay_level": 2**31 - 1},
        {"deliver_at": at(NOW_MS - 1)},
        {"deliver_at": at(NOW_MS)},
        {"deliver_at": at(NOW_MS + 1)},
        {"deliver_at": at(NOW_MS + 1_000)},
        {"deliver_at": at(NOW_MS + 1_001)},
        {"deliver_at": at(NOW_MS + 259_200_000)},
        {},
    ],
    ids=str,
)
def test_a_row_waits_where_a_message_with_the_property_would(row: dict[str, Any]) -> None:
    """HookUtils.handleScheduleMessage, as `route_delayed` does it for one message."""
    ours = written({"body": b"x", "tags": "a", "queue_id": 3, "delay_level": None, "deliver_at": None, **row})
    asked = {}
    if row.get("delay_level"):
        asked["DELAY"] = str(row["delay_level"])
    if "deliver_at" in row:
        asked["TIMER_DELIVER_MS"] = str(round(row["deliver_at"].timestamp() * 1_000))
    shared = {name: value for name, value in ours.properties.items() if name in (*MADE_ANEW, "TAGS")}
    message = InnerMessage(topic="T", queue_id=3, body=b"x", properties={**shared, **asked})
    expected = route_delayed(message, delays_ms=rules().delays_ms, timer=TimerConfig(), now_ms=NOW_MS)
    assert (ours.topic, ours.queue_id, ours.properties) == (expected.topic, expected.queue_id, expected.properties)


def test_rows_that_wait_and_rows_that_do_not_keep_their_places_in_the_batch() -> None:
    rows = [
        {"body": b"a", "delay_level": 3, "tags": "x", "keys": "k"},
        {"body": b"b", "deliver_at": at(NOW_MS + 5_500), "tags": "x", "keys": "k"},
        {"body": b"c", "tags": "x", "keys": "k"},
        {"body": b"d", "delay_level": 1, "tags": "x", "keys": "k"},
    ]
    prepared = prepare(rows)
    found = [(message.body, message.topic, message.queue_id) for message in records(prepared)]
    assert found == [(b"a", SCHEDULE, 2), (b"b", TIMER, 0), (b"c", "T", 2), (b"d", SCHEDULE, 0)]
    assert [message.properties.get("REAL_QID") for message in records(prepared)] == ["0", "1", None, "3"]
    tag = string_hash("x")
    assert prepared.messages.tags_codes.tolist() == [DUE_IN + 10_000, tag, tag, DUE_IN + 1_000]
    assert prepared.destinations == tuple(("T", queue_id) for queue_id in range(4))
    assert prepared.messages.key_hashes[1::2].tolist() == [
        index_key_hash(f"{topic}#k") for topic in (SCHEDULE, TIMER, "T", SCHEDULE)
    ]


@pytest.mark.parametrize(
    ("row", "used", "column", "rule"),
    [
        ({"delay_level": -1}, {}, "delay_level", "negative"),
        ({"delay_level": 1, "deliver_at": at(NOW_MS + 9)}, {}, "deliver_at", "a delay_level too"),
        ({"delay_level": -1, "deliver_at": at(NOW_MS + 9)}, {}, "delay_level", "negative"),
        ({"deliver_at": at(NOW_MS + 259_200_001)}, {}, "deliver_at", "timerMaxDelaySec"),
        (
            {"deliver_at": at(NOW_MS + 9)},
            {"timer": TimerConfig(timer_wheel_enable=False)},
            "deliver_at",
            "timerWheelEnable",
        ),
        (
            {"deliver_at": at(NOW_MS - 9)},
            {"timer": TimerConfig(timer_wheel_enable=False)},
            "deliver_at",
            "timerWheelEnable",
        ),
        ({"delay_level": 1, "body": b""}, {}, "delay_level", "no body"),
        ({"deliver_at": at(NOW_MS + 9), "body": b""}, {}, "deliver_at", "no body"),
    ],
    ids=str,
)
def test_what_no_broker_would_deliver_is_refused(
    row: dict[str, Any], used: dict[str, Any], column: str, rule: str
) -> None:
    """WHEEL_TIMER_MSG_ILLEGAL, WHEEL_TIMER_NOT_ENABLE, MESSAGE_ILLEGAL of HookUtils; and what it would not have asked for."""
    rejected = refusal({"body": b"x", **row}, rules(**used))
    assert rejected.column == column
    assert rule in rejected.rule


def test_a_broker_with_other_levels_delays_by_those() -> None:
    """DefaultMessageStore.parseDelayLevel, ScheduleMessageService.delayLevel2QueueId."""
    prepared = prepare([{"body": b"x", "delay_level": 5}], rules(delays_ms=(7, 70)))
    assert [(message.queue_id, message.properties["DELAY"]) for message in records(prepared)] == [(1, "2")]
    assert prepared.messages.tags_codes.tolist() == [DUE_IN + 70]


def test_a_record_that_the_timer_cannot_read_is_refused_and_the_next_smaller_one_is_not() -> None:
    """TimerMessageStore.getMessageByCommitOffset: its buffer has maxMessageSize + 100 bytes; a larger record stops it for good."""
    small = rules(max_message_size=1_000)
    row = {"body": b"x", "deliver_at": at(NOW_MS + 9_000)}
    taken = len(records(prepare([row], small))[0].raw_properties)
    sizes = [size for size in range(700, 1_001) if not prepare([{**row, "body": b"x" * size}], small).rejected]
    greatest = max(sizes)
    assert sizes == list(range(700, greatest + 1))
    # Header 88, 24 more if hosts are IPv6, a topic of 19 with its length, two bytes of properties' length.
    assert greatest + taken + 88 + 24 + 1 + 19 + 2 == 1_100
    assert refusal({**row, "body": b"x" * (greatest + 1)}, small).column == "deliver_at"
    assert not prepare([{"body": b"x" * 1_000, "delay_level": 1}], small).rejected, "levels have no such limit"


def test_properties_must_have_room_for_what_waiting_adds() -> None:
    """MessageExtEncoder.encode: PROPERTIES_SIZE_EXCEEDED above 32,767 bytes, the broker's own among them."""
    row: dict[str, Any] = {"body": b"x", "delay_level": 1}
    empty = len(written({**row, "properties": [("p", "v")]}).raw_properties) - 1
    fits = written({**row, "properties": [("p", "v" * (32_767 - empty))]})
    assert len(fits.raw_properties) == 32_767
    rejected = refusal({**row, "properties": [("p", "v" * (32_768 - empty))]})
    assert (rejected.column, "32768 bytes" in rejected.rule) == ("properties", True)


def test_one_message_with_a_level_and_a_time_would_lose_its_time() -> None:
    """Why both columns together are refused: HookUtils.checkIfTimerMessage drops the times where there is a level."""
    message = InnerMessage(
        topic="T", queue_id=0, body=b"x", properties={"DELAY": "1", "TIMER_DELIVER_MS": str(NOW_MS + 9)}
    )
    parked = route_delayed(message, delays_ms=(1_000,), timer=TimerConfig(), now_ms=NOW_MS)
    assert "TIMER_DELIVER_MS" not in parked.properties
    with pytest.raises(PutRefusedError):
        route_delayed(replace(message, body=b""), delays_ms=(1_000,), timer=TimerConfig(), now_ms=NOW_MS)


# At any time the same


def test_a_repeatable_row_waits_although_its_time_has_passed() -> None:
    at_any_time = rules(is_repeatable=True)
    passed, first = NOW_MS - 86_400_000, -5
    assert written({"body": b"x", "deliver_at": at(passed)}).topic == "T"
    for ms, out_ms in ((passed, passed - 1_000), (passed + 1, passed), (first, 0), (NOW_MS, NOW_MS - 1_000)):
        waiting = written({"body": b"x", "deliver_at": at(ms)}, at_any_time)
        assert (waiting.topic, waiting.properties["TIMER_OUT_MS"]) == (TIMER, str(out_ms))
        assert waiting.properties["TIMER_DELIVER_MS"] == str(max(ms, 1))
    assert refusal({"body": b"", "deliver_at": at(passed)}, at_any_time).rule.startswith("it has no body")


def test_rows_that_may_be_taken_later_are_told_from_those_that_may_not() -> None:
    too_far = {"body": b"x", "deliver_at": at(NOW_MS + 10 * 86_400_000)}
    full = {"body": b"x", "deliver_at": at(NOW_MS + 5_000)}
    used = rules(is_congested=lambda out_ms: out_ms == NOW_MS + 4_000)
    prepared = prepare([{**too_far, "queue_id": -1}, too_far, {"body": None}, full], used)
    assert [row.row for row in prepared.rejected] == [0, 1, 2, 3]
    assert [row.row for row in prepared.passing] == [3]
    assert all(row in prepared.rejected for row in prepared.passing)


def test_a_reason_that_stays_comes_before_one_that_passes() -> None:
    found = Rejections()
    row = np.array([3])
    found.add(row, "deliver_at", "later", passes=True)
    found.add(row, "deliver_at", "later still", passes=True)
    assert (found[3].rule, found.passing) == ("later", {3})
    for column in ("body", "topic"):
        found.add(row, column, "never")
    found.add(row, "deliver_at", "later", passes=True)
    assert (found[3].column, found.passing) == ("body", set())


def test_rows_that_are_sent_say_what_they_ask_for_and_keep_their_queue() -> None:
    """Message.setDelayTimeLevel and setDeliverTimeMs: the broker moves the message."""
    rules = MessageRules(topics={"T": TopicConfig("T", write_queue_count=1)}, topic="T", is_sent=True)
    rows = pa.record_batch(
        {"body": [b"a", b"b", b"c"], "delay_level": [None, 99, None], "deliver_at": [None, None, 1 << 50]}
    )
    prepared = MessageRows(rules, b"0123456789").prepare(rows, 0)
    assert prepared.rejected == ()
    assert prepared.messages.queues == (("T", 0),)
    strings = [value.as_py() for value in prepared.messages.properties]
    assert [b"DELAY\x0199\x02" in text for text in strings] == [False, True, False]
    assert [b"TIMER_DELIVER_MS\x01%d\x02" % (1 << 50) in text for text in strings] == [False, False, True]
    assert not any(b"REAL_TOPIC" in text or b"TIMER_OUT_MS" in text for text in strings)
