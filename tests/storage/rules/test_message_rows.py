"""Rows become messages: as the broker stored the same, by a plain implementation row by row, and each rule once."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.source.rows import COLUMNS as SOURCE_COLUMNS
from spark_mq.source.rows import KAFKA_COLUMNS, Column, RowSource, arrow_schema, to_record_batch
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash, string_hash
from storage.format.properties import EARLIER_LIFE, MADE_ANEW
from storage.format.record import Message, decode_record, has_queue_entry
from storage.format.record_batch import Records
from storage.format.record_block import OutgoingMessages, encode_block
from storage.log.commit_log import CommitLog
from storage.log.dispatch import dispatch, index_keys
from storage.names import is_retry_or_dead_letter_topic, is_system_topic
from storage.queues.scan import QueueSlice
from storage.rules.message_rows import MessageRows, from_kafka_columns
from storage.rules.priorities import PRIORITY
from storage.rules.row_rules import MessageRules
from storage.rules.values import RejectedRow
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.fixture_stores import Fixture
from tests.support.named_rows import each_named

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
KEY_PREFIX = bytes(range(10))
NOW_MS = 1_700_000_000_000
TYPES: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "born_timestamp": pa.timestamp("us", "UTC"),
    "queue_id": pa.int32(),
    "sharding_key": pa.string(),
    "unique_key": pa.string(),
    "delay_level": pa.int32(),
}
TOPICS = {
    "Wide": TopicConfig("Wide", 4, 4),
    "Narrow": TopicConfig("Narrow", 8, 1),
    "Multi": TopicConfig("Multi", 2, 2, topic_filter_type="MULTI_TAG"),
    "Compact": TopicConfig("Compact", 2, 2, attributes={"cleanup.policy": "COMPACTION"}),
    "Batches": TopicConfig("Batches", 2, 2, attributes={"queue.type": "BatchCQ"}),
    "Closed": TopicConfig("Closed", 2, 2, perm=4),
    "Empty": TopicConfig("Empty", 2, 0),
}


def rules(**changes: Any) -> MessageRules:
    return MessageRules(**{"topic": "Wide", "topics": TOPICS, "broker_name": "broker-a", **changes})


def rows_of(rows: list[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    """Rows with the columns that any of them has."""
    names = [name for name in TYPES if name == "body" or any(name in row for row in rows)]
    columns = [pa.array([row.get(name) for row in rows], types.get(name, TYPES[name])) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def prepare(
    rows: list[dict[str, Any]], used: MessageRules | None = None, **types: pa.DataType
) -> tuple[OutgoingMessages, list[RejectedRow]]:
    named, used = each_named(rows, used or rules())
    found = MessageRows(used, KEY_PREFIX).prepare(rows_of(named, **types), NOW_MS)
    assert [rejected.row for rejected in found.rejected] == found.rejected_indices.tolist()
    return found.messages, list(found.rejected)


def count_of(outgoing: OutgoingMessages) -> int:
    return len(outgoing.queue_codes)


def messages_of(outgoing: OutgoingMessages, host: bytes = HOST) -> list[Message]:
    """The records, encoded and decoded one by one."""
    block = encode_block(outgoing, host)
    data = block.data.tobytes()
    ends = np.cumsum(block.columns.sizes_bytes).tolist()
    found = [decode_record(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert len(found) == count_of(outgoing)
    assert ends[-1:] == [len(data)][: len(ends)]
    assert all(isinstance(message, Message) for message in found)
    return found  # type: ignore[return-value]


def written(row: dict[str, Any], used: MessageRules | None = None, **types: pa.DataType) -> Message:
    outgoing, rejected = prepare([row], used, **types)
    assert rejected == []
    (message,) = messages_of(outgoing)
    return message


def refusal(row: dict[str, Any], used: MessageRules | None = None, **types: pa.DataType) -> str:
    """`column: rule` of a row that must be refused, between two rows that must not."""
    good = {"body": b"good", "topic": "Wide"}
    outgoing, rejected = prepare([good, row, good], used, **types)
    assert [message.body for message in messages_of(outgoing)] == [b"good", b"good"]
    ((number, column, rule),) = rejected
    assert number == 1
    return f"{column}: {rule}"


def keys_of(outgoing: OutgoingMessages) -> list[list[int]]:
    return [part.tolist() for part in np.split(outgoing.key_hashes, np.cumsum(outgoing.key_counts)[:-1])]


# As the broker stored them


def source_rows(
    fixture: Fixture, shown: Mapping[str, Column] = SOURCE_COLUMNS
) -> Iterator[tuple[str, list[Message], pa.RecordBatch, DispatchedRows]]:
    """Records of a store as our source shows them, by topic and queue, with what Java's own bytes dispatch."""
    columns = list(shown.values())
    log = CommitLog(LocalFileSystem(), (f"{fixture.root}/commitlog",))
    for all_places, all_records in log.walk(log.minimum):
        entered = np.array([has_queue_entry(flag) for flag in all_records.column("sys_flag").tolist()], bool)
        places, records = all_places[entered], all_records.take(entered)
        topics = np.array([topic.decode() for topic in records.topics().to_pylist()])
        queue_ids = records.column("queue_id")
        for topic in sorted(set(topics)):
            if is_system_topic(topic) or is_retry_or_dead_letter_topic(topic):
                continue
            for queue_id in sorted(set(queue_ids[topics == topic].tolist())):
                rows = np.flatnonzero((topics == topic) & (queue_ids == queue_id))
                part: Records = records.take(rows)
                source = RowSource(QueueSlice(part.column("queue_offset"), part), topic, "broker-lab", queue_id)
                messages = []
                for place in part.positions.tolist():
                    message = decode_record(memoryview(part.buffer)[place:])
                    assert isinstance(message, Message)
                    messages.append(message)
                yield (
                    topic,
                    messages,
                    to_record_batch(source, columns, arrow_schema(columns)),
                    DispatchedRows(places[rows], part),
                )


class DispatchedRows:
    """Tags codes and key hashes that dispatching these records gives."""

    def __init__(self, places: np.ndarray, records: Records) -> None:
        batch = dispatch(places, records, (1_000,))
        self.tags_codes = batch.tags_codes.tolist()
        taken = index_keys(batch)
        self.keys = [taken.key_hashes[taken.commitlog_offsets == place].tolist() for place in places.tolist()]


@pytest.mark.parametrize("name", ["clean", "ext", "syncflush", "ipv6", "roll"])
def test_a_sources_rows_become_the_records_that_they_were(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    topics = TopicTable.load((fixture.root / "config" / "topics.json").read_text("utf-8")).topics
    used = MessageRules(topics=topics, keep_unique_key=True)
    count = 0
    for _, originals, batch, dispatched in source_rows(fixture):
        prepared = MessageRows(used, KEY_PREFIX).prepare(batch, NOW_MS)
        assert prepared.rejected == ()
        for ours, java in zip(messages_of(prepared.messages), originals, strict=True):
            assert (ours.topic, ours.queue_id, ours.flag, ours.body) == (
                *(java.topic, java.queue_id, java.flag, java.plain_body),
            )
            assert (ours.born_time_ms, ours.reconsume_times, ours.prepared_transaction_offset) == (
                java.born_time_ms,
                0,
                0,
            )
            kept = {key: value for key, value in java.properties.items() if key not in EARLIER_LIFE}
            marks = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster", "WAIT": "true"}
            made = {"UNIQ_KEY": ours.unique_key} if java.unique_key is None else {}
            assert ours.properties == kept | marks | made
            count += 1
        assert prepared.messages.tags_codes.tolist() == dispatched.tags_codes
        found = [
            hashes if java.unique_key else hashes[1:]
            for java, hashes in zip(originals, keys_of(prepared.messages), strict=True)
        ]
        assert found == dispatched.keys
    assert count > 50


def test_without_keep_unique_key_only_that_key_is_another(pristine_store: Callable[[str], Fixture]) -> None:
    topics = TopicTable.load((pristine_store("clean").root / "config" / "topics.json").read_text("utf-8")).topics
    task = MessageRows(MessageRules(topics=topics), KEY_PREFIX)
    rank = 0
    for topic, originals, batch, dispatched in source_rows(pristine_store("clean")):
        outgoing = task.prepare(batch, NOW_MS).messages
        for ours, java, ours_hashes, java_hashes in zip(
            messages_of(outgoing), originals, keys_of(outgoing), dispatched.keys, strict=True
        ):
            assert ours.unique_key == f"{KEY_PREFIX.hex().upper()}{rank:012X}"
            assert ours_hashes[0] == index_key_hash(f"{topic}#{ours.unique_key}")
            assert ours_hashes[1:] == (java_hashes[1:] if java.unique_key else java_hashes)
            rank += 1


def test_a_sources_rows_under_kafkas_names_keep_tags_keys_and_properties(
    pristine_store: Callable[[str], Fixture],
) -> None:
    fixture = pristine_store("clean")
    topics = TopicTable.load((fixture.root / "config" / "topics.json").read_text("utf-8")).topics
    changed = {*MADE_ANEW, *EARLIER_LIFE}
    for _, originals, batch, dispatched in source_rows(fixture, KAFKA_COLUMNS):
        prepared = MessageRows(MessageRules(topics=topics), KEY_PREFIX).prepare(from_kafka_columns(batch), NOW_MS)
        assert prepared.rejected == ()
        assert prepared.messages.tags_codes.tolist() == dispatched.tags_codes
        for ours, java in zip(messages_of(prepared.messages), originals, strict=True):
            assert (ours.queue_id, ours.body, ours.keys) == (java.queue_id, java.plain_body, java.keys)
            expected = {name: value for name, value in java.properties.items() if name not in changed}
            key = java.properties.get("__SHARDINGKEY") or java.properties.get("KEYS")
            expected |= {"__SHARDINGKEY": key} if key else {}
            assert {name: value for name, value in ours.properties.items() if name not in changed} == expected


# By a plain implementation

NAMES = st.sampled_from(["a", "b", "ü", "TAGS", "KEYS", "__SHARDINGKEY", "DELAY", "UNIQ_KEY", "", "c\x01"])
TEXTS = st.one_of(st.none(), st.text("ab ü😀\x01\x07", max_size=4))
ROWS = st.lists(
    st.fixed_dictionaries(
        {"body": st.one_of(st.none(), st.binary(max_size=12))},
        optional={
            "topic": st.sampled_from([None, "Wide", "Narrow", "Compact", "New", "bad name", "TBW102", "%RETRY%g"]),
            "tags": TEXTS,
            "keys": TEXTS,
            "sharding_key": TEXTS,
            "unique_key": TEXTS,
            "queue_id": st.one_of(st.none(), st.integers(-1, 5)),
            "properties": st.one_of(
                st.none(), st.dictionaries(NAMES, TEXTS, max_size=4).map(lambda map_: [*map_.items()])
            ),
        },
    ),
    max_size=12,
)


class PlainRows:
    """The same rules, a row at a time."""

    def __init__(self, used: MessageRules) -> None:
        self.rules = used
        self.rank = 0
        self.turns: dict[str, int] = {}

    def message(self, row: dict[str, Any]) -> tuple[Any, ...] | str:
        """(topic, queue id, body, sys flag, properties, tags code, key hashes), or the column that is refused."""
        topic = row.get("topic") or self.rules.topic
        assert topic is not None
        if topic in ("bad name", "TBW102", "%RETRY%g"):
            return "topic"
        if row["body"] is None:
            return "body"
        text = {name: row.get(name) or None for name in ("tags", "keys", "sharding_key", "unique_key")}
        control = set(map(chr, range(32)))
        for name, unwanted in (
            ("tags", control),
            ("keys", {"\x01"}),
            ("sharding_key", {"\x01"}),
            ("unique_key", control | {" "}),
        ):
            if name == "unique_key" and not self.rules.keep_unique_key:
                continue
            if set(text[name] or "") & unwanted:
                return name
        count = {"Wide": 4, "Narrow": 1, "Compact": 2, "New": 8}[topic]
        asked = row.get("queue_id")
        if asked is not None and not 0 <= asked < (8 if topic == "Narrow" else count):  # which are there to be read
            return "queue_id"
        own = self.own_properties(row, text)
        if own is None:
            return "properties"
        if topic == "Compact" and not (text["keys"] or "").strip():
            return "keys"
        return self.accepted(row, topic, count, text, own)

    def own_properties(self, row: dict[str, Any], text: dict[str, str | None]) -> dict[str, str] | None:
        stated = {"TAGS": text["tags"], "KEYS": text["keys"], "__SHARDINGKEY": text["sharding_key"]}
        own = {}
        for name, value in row.get("properties") or []:
            if value is None:
                continue
            alone = name == "__SHARDINGKEY" and stated[name] is None
            if (self.rules.strict_properties and name in (*MADE_ANEW, "DELAY", *stated)) and not alone:
                return None
            if name in stated and not alone:
                if value != stated[name]:
                    return None
            elif alone or name not in (*MADE_ANEW, "DELAY"):
                if not name or not value or "\x01" in name + value:
                    return None
                own[name] = value
        return own

    def accepted(
        self, row: dict[str, Any], topic: str, count: int, text: dict[str, str | None], own: dict[str, str]
    ) -> tuple[Any, ...]:
        if row.get("queue_id") is not None:
            queue_id = row["queue_id"]
        elif text["sharding_key"]:
            queue_id = abs(string_hash(text["sharding_key"])) % count
        else:
            queue_id = self.turns.get(topic, 0) % count
            self.turns[topic] = self.turns.get(topic, 0) + 1
        unique = f"{KEY_PREFIX.hex().upper()}{self.rank:012X}"
        self.rank += 1
        if self.rules.keep_unique_key and text["unique_key"]:
            unique = text["unique_key"]
        properties = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster", "WAIT": "true"}
        properties["UNIQ_KEY"] = unique
        for name, column in (("TAGS", "tags"), ("KEYS", "keys"), ("__SHARDINGKEY", "sharding_key")):
            if value := text[column]:
                properties[name] = value
        properties |= own
        body, sys_flag = row["body"], 0
        if self.rules.compress_body_over and len(body) >= self.rules.compress_body_over:
            body, sys_flag = zlib.compress(body, 5), 0x301
        hashes = [index_key_hash(f"{topic}#{key}") for key in [unique, *(text["keys"] or "").split(" ")] if key]
        tags_code = string_hash(text["tags"]) if text["tags"] else 0
        return topic, queue_id, body, sys_flag, list(properties.items()), tags_code, list(dict.fromkeys(hashes))


@given(
    st.lists(ROWS, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 6]),
)
def test_batches_become_what_their_rows_become_one_by_one(
    batches: list[list[dict[str, Any]]], keep: bool, strict: bool, compress: int | None
) -> None:
    used = rules(topic=None, keep_unique_key=keep, strict_properties=strict, compress_body_over=compress)
    task, plain = MessageRows(used, KEY_PREFIX), PlainRows(used)
    number = 0
    for batch in batches:
        rows = [row if row.get("topic") is not None else {**row, "topic": "Wide"} for row in batch]
        prepared = task.prepare(rows_of(rows), NOW_MS)
        expected = [plain.message(row) for row in rows]
        assert {rejected.row: rejected.column for rejected in prepared.rejected} == {
            number + place: found for place, found in enumerate(expected) if isinstance(found, str)
        }
        number += len(rows)
        outgoing = prepared.messages
        assert len(set(outgoing.queues)) == len(outgoing.queues) == len(set(outgoing.queue_codes.tolist()))
        found = [
            (
                message.topic,
                message.queue_id,
                message.body,
                message.sys_flag,
                list(message.properties.items()),
                code,
                hashes,
            )
            for message, code, hashes in zip(
                messages_of(outgoing),
                outgoing.tags_codes.tolist(),
                keys_of(outgoing) if count_of(outgoing) else [],
                strict=True,
            )
        ]
        assert found == [row for row in expected if not isinstance(row, str)]


# What a message is made of


def test_columns_that_are_not_given_have_the_values_of_a_plain_send() -> None:
    message = written({"body": b"x"})
    assert (message.topic, message.queue_id, message.flag, message.sys_flag) == ("Wide", 0, 0, 0)
    assert (message.born_time_ms, message.born_host, message.store_host) == (NOW_MS, HOST, HOST)
    assert list(message.properties) == ["MSG_REGION", "TRACE_ON", "CLUSTER", "WAIT", "UNIQ_KEY"]


def test_the_brokers_marks_are_those_of_its_configuration() -> None:
    message = written({"body": b"x"}, rules(region="eu", trace_on=False, cluster_name="c1"))
    assert message.raw_properties.startswith(
        b"MSG_REGION\x01eu\x02TRACE_ON\x01false\x02CLUSTER\x01c1\x02WAIT\x01true\x02"
    )


def test_an_empty_body_and_text_of_every_type_are_taken() -> None:
    assert written({"body": b""}).body == b""
    assert written({"body": "grüß"}, body=pa.string()).body == "grüß".encode()
    assert written({"body": b"\xff"}, body=pa.large_binary()).body == b"\xff"


def test_empty_texts_are_not_there() -> None:
    message = written({"body": b"x", "tags": "", "keys": "", "sharding_key": "", "unique_key": ""})
    assert not {"TAGS", "KEYS", "__SHARDINGKEY"} & set(message.properties)


def test_tags_keep_their_blanks() -> None:
    assert written({"body": b"x", "tags": " a || b "}).tags == " a || b "


@pytest.mark.parametrize("arrow_type", [pa.list_(pa.string()), pa.large_list(pa.large_string())], ids=str)
def test_a_list_of_keys_is_joined_by_blanks(arrow_type: pa.DataType) -> None:
    lists = [["a", "b"], None, [], ["", None, "c"], [None], ["d"]]
    outgoing, _ = prepare([{"body": b"x", "keys": keys} for keys in lists], keys=arrow_type)
    assert [message.properties.get("KEYS") for message in messages_of(outgoing)] == ["a b", None, None, "c", None, "d"]
    assert outgoing.key_counts.tolist() == [3, 1, 1, 2, 1, 2]


def test_a_key_named_twice_is_indexed_once() -> None:
    outgoing, _ = prepare([{"body": b"x", "keys": " b a  b "}, {"body": b"x", "keys": "b"}])
    b, a = index_key_hash("Wide#b"), index_key_hash("Wide#a")
    assert [hashes[1:] for hashes in keys_of(outgoing)] == [[b, a], [b]]


def test_a_key_that_is_the_unique_key_is_indexed_once() -> None:
    outgoing, _ = prepare([{"body": b"x", "keys": "k u", "unique_key": "u"}], rules(keep_unique_key=True))
    assert keys_of(outgoing) == [[index_key_hash("Wide#u"), index_key_hash("Wide#k")]]


def test_times_are_milliseconds_cut_off_towards_the_past() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_900, tzinfo=UTC)
    assert written({"body": b"x", "born_timestamp": moment}).born_time_ms == -1
    for unit, ticks in (("s", 7), ("ms", 7_001), ("us", 7_001_999), ("ns", 7_001_999_999)):
        born = written({"body": b"x", "born_timestamp": ticks}, born_timestamp=pa.timestamp(unit)).born_time_ms
        assert born == (7_000 if unit == "s" else 7_001)
    assert written({"body": b"x", "born_timestamp": 12}, born_timestamp=pa.int64()).born_time_ms == 12


def test_null_times_and_flags_are_those_of_now() -> None:
    outgoing, _ = prepare(
        [{"body": b"x", "flag": 3, "born_timestamp": 5}, {"body": b"x"}], born_timestamp=pa.int64(), flag=pa.int64()
    )
    assert [(message.flag, message.born_time_ms) for message in messages_of(outgoing)] == [(3, 5), (0, NOW_MS)]


def test_a_topic_with_several_tags_a_message_marks_its_records() -> None:
    outgoing, _ = prepare([{"body": b"x", "topic": topic} for topic in ("Multi", "Wide")])
    assert outgoing.sys_flags.tolist() == [2, 0]


def test_large_bodies_are_compressed_where_asked_to() -> None:
    plain = [b"a" * 99, b"b" * 100, b"c" * 101]
    outgoing, _ = prepare([{"body": body} for body in plain], rules(compress_body_over=100))
    found = messages_of(outgoing)
    assert [message.sys_flag for message in found] == [0, 0x301, 0x301]
    assert [len(message.body) < 99 for message in found] == [False, True, True]
    assert [message.plain_body for message in found] == plain


# Queues


def test_rows_without_a_queue_take_turns_by_topic_across_batches() -> None:
    task = MessageRows(rules(topic=None, queue_count=3), KEY_PREFIX, round_robin_start=6)
    found = []
    for topics in (["Wide", "New", "Wide", "Wide", "New"], ["New", "New", "Wide"]):
        rows = [{"body": b"x", "topic": topic} for topic in topics]
        found += [(message.topic, message.queue_id) for message in messages_of(task.prepare(rows_of(rows), 0).messages)]
    assert found == [("Wide", 2), ("New", 0), ("Wide", 3), ("Wide", 0), ("New", 1), ("New", 2), ("New", 0), ("Wide", 1)]


def test_rejected_and_placed_rows_take_no_turn_and_rejected_ones_no_rank() -> None:
    rows = [
        {"body": b"0"},
        {"body": None},
        {"body": b"2", "queue_id": 3},
        {"body": b"3", "sharding_key": "a"},
        {"body": b"4"},
    ]
    outgoing, rejected = prepare(rows)
    found = messages_of(outgoing)
    assert [row.row for row in rejected] == [1]
    assert [message.queue_id for message in found] == [0, 3, 97 % 4, 1]
    assert [int((message.unique_key or "")[20:], 16) for message in found] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("key", "queue_count", "queue_id"),
    [
        ("a", 7, 97 % 7),
        ("polygenelubricants", 7, 2),  # its hash is −2³¹, which has no absolute value: Java takes the remainder first
        ("polygenelubricants", 8, 0),
        ("ü", 5, 252 % 5),
        ("hello", 8, 99_162_322 % 8),
        ("Hello World", 8, 862_545_276 % 8),  # its hash is negative
    ],
)
def test_a_sharding_key_chooses_the_queue_that_javas_selector_does(key: str, queue_count: int, queue_id: int) -> None:
    message = written({"body": b"x", "sharding_key": key, "topic": "New"}, rules(queue_count=queue_count))
    assert (message.queue_id, message.properties["__SHARDINGKEY"]) == (queue_id, key)


def test_a_queue_that_is_named_wins_over_the_sharding_key() -> None:
    message = written({"body": b"x", "sharding_key": "a", "queue_id": 0})
    assert (message.queue_id, message.properties["__SHARDINGKEY"]) == (0, "a")


def test_a_run_of_the_same_rows_makes_the_same_messages() -> None:
    rows = rows_of([{"body": b"x", "tags": "t", "topic": topic} for topic in ("Wide", "New", "Wide")])
    first, second = (MessageRows(rules(), KEY_PREFIX, 5).prepare(rows, NOW_MS).messages for _ in range(2))
    assert encode_block(first, HOST).data.tobytes() == encode_block(second, HOST).data.tobytes()


def test_a_batch_in_pieces_makes_the_same_messages() -> None:
    batch = rows_of(
        [
            {
                "body": b"x" * number,
                "tags": "ü"[number % 2 :],
                "keys": "k l"[: number % 4],
                "properties": [("p", str(number))],
            }
            for number in range(20)
        ]
    )
    whole, pieces = MessageRows(rules(), KEY_PREFIX), MessageRows(rules(), KEY_PREFIX)
    parts = [pieces.prepare(batch.slice(start, 7), NOW_MS).messages for start in range(0, 20, 7)]
    assert messages_of(whole.prepare(batch, NOW_MS).messages) == [
        message for part in parts for message in messages_of(part)
    ]


def test_rules_can_be_sent_to_tasks() -> None:
    assert pickle.loads(pickle.dumps(rules())) == rules()


# Rules


@pytest.mark.parametrize("body_type", [pa.binary(), pa.string()], ids=str)
def test_a_null_body_is_refused(body_type: pa.DataType) -> None:
    good = "good" if body_type == pa.string() else b"good"
    outgoing, rejected = prepare([{"body": good}, {"body": None}], body=body_type)
    assert [row.describe() for row in rejected] == ["row 1, column body: it is null"]
    assert count_of(outgoing) == 1


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("a b", "character ' ' at position 1"),
        ("a/../b", "character '/'"),
        ("", "it is blank"),
        ("x" * 128, "128 characters, the limit is 127"),
        ("ü", "character 'ü'"),
        ("SCHEDULE_TOPIC_XXXX", "system topic"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "system topic"),
        ("rmq_sys_spark_mq_ledger", "system topic"),
        ("TBW102", "system topic"),
        ("broker-a", "system topic"),
        ("DefaultCluster", "system topic"),
        ("DefaultCluster_REPLY_TOPIC", "system topic"),
        ("%RETRY%group", "belongs to a consumer group"),
        ("%DLQ%group", "belongs to a consumer group"),
        ("Batches", "BatchCQ"),
        ("Closed", "perm 4"),
        ("Empty", "no write queues"),
    ],
)
def test_topics_that_take_no_rows(topic: str, rule: str) -> None:
    found = refusal({"body": b"x", "topic": topic})
    assert found.startswith("topic: ")
    assert rule in found


def test_a_topic_that_is_no_text_is_refused() -> None:
    assert "topic: " in refusal({"body": b"x", "topic": b"\xff"}, topic=pa.binary())


def test_a_row_needs_a_topic_from_somewhere() -> None:
    found = refusal({"body": b"x"}, rules(topic=None))
    assert found == "topic: it is null, and the option topic is not given"


def test_an_unknown_topic_is_refused_unless_it_may_be_created() -> None:
    assert written({"body": b"x", "topic": "New"}).topic == "New"
    found = refusal({"body": b"x", "topic": "New"}, rules(create_topic=False))
    assert found == "topic: there is no topic 'New', and createTopic is false"


@pytest.mark.parametrize(
    ("topic", "queue_id", "rule"),
    [
        ("Wide", 4, "4 is no queue: topic 'Wide' has 4 queues (queueNum=5 adds more)"),
        ("Wide", -1, "-1 is no queue: they are counted from 0"),
        ("Narrow", 8, "8 is no queue: topic 'Narrow' has 8 queues (queueNum=9 adds more)"),
        ("New", 4_096, "4096 is no queue: topic 'New' gets at most 4096 (queueNum)"),
        ("New", 2**31 - 1, "2147483647 is no queue: topic 'New' gets at most 4096 (queueNum)"),
        ("Wide", 1 << 40, "1099511627776 is no queue: topic 'Wide' has 4 queues"),
    ],
)
def test_a_queue_must_be_one_of_the_topics(topic: str, queue_id: int, rule: str) -> None:
    assert refusal({"body": b"x", "topic": topic, "queue_id": queue_id}, queue_id=pa.int64()) == f"queue_id: {rule}"


def topics_of(used: MessageRules, *queues: tuple[str, int | None]) -> tuple[dict[str, int], dict[str, int]]:
    """How many queues topics get that are made, and that are there."""
    batch = pa.record_batch(
        {
            "body": pa.array([b"x"] * len(queues), pa.binary()),
            "topic": pa.array([topic for topic, _ in queues], pa.string()),
            "queue_id": pa.array([queue_id for _, queue_id in queues], pa.int32()),
        }
    )
    prepared = MessageRows(replace(used, topic=None), bytes(10)).prepare(batch, NOW_MS)
    assert prepared.rejected == ()
    assert [(topic, queue_id) for topic, queue_id in queues if queue_id is not None] == [
        prepared.messages.queues[code]
        for code, (_, queue_id) in zip(prepared.messages.queue_codes, queues, strict=True)
        if queue_id is not None
    ]
    return dict(prepared.topics), dict(prepared.grown)


def test_a_topic_that_is_made_gets_as_many_queues_as_rows_name() -> None:
    named = topics_of(rules(), ("New", 11), ("New", 3), ("Small", 2), ("New", None), ("Most", 4_095))
    assert named == ({"New": 12, "Small": 8, "Most": 4_096}, {})
    assert topics_of(rules(queue_count=5_000), ("New", 4_999)) == ({"New": 5_000}, {})


def test_a_topic_that_is_there_gets_more_queues_only_where_that_is_allowed() -> None:
    assert topics_of(rules(grow_to=6), ("Wide", 4), ("Narrow", 0)) == ({"Wide": 5, "Narrow": 1}, {"Wide": 5})
    assert topics_of(rules(growing=frozenset({"Wide"})), ("Wide", 40)) == ({"Wide": 41}, {"Wide": 41})
    beyond = refusal({"body": b"x", "topic": "Wide", "queue_id": 6}, rules(grow_to=6), queue_id=pa.int64())
    assert beyond == "queue_id: 6 is no queue: topic 'Wide' gets at most 6 (queueNum)"
    fixed = refusal(
        {"body": b"x", "topic": "Wide", "queue_id": 4}, rules(grow_to=6, create_topic=False), queue_id=pa.int64()
    )
    assert fixed.startswith("queue_id: 4 is no queue: topic 'Wide' has 4 queues")


def test_rows_without_a_queue_are_spread_over_the_queues_that_the_topic_would_have_without_the_others() -> None:
    queues = [("New", 40), *[("New", None)] * 16]
    batch = pa.record_batch(
        {
            "body": pa.array([b"x"] * len(queues), pa.binary()),
            "topic": pa.array([topic for topic, _ in queues], pa.string()),
            "queue_id": pa.array([queue_id for _, queue_id in queues], pa.int32()),
        }
    )
    messages = MessageRows(rules(topic=None), bytes(10)).prepare(batch, NOW_MS).messages
    assert [messages.queues[code][1] for code in messages.queue_codes] == [40, *range(8), *range(8)]


def test_a_flag_has_32_bits() -> None:
    assert written({"body": b"x", "flag": -(1 << 31)}, flag=pa.int64()).flag == -(1 << 31)
    assert refusal({"body": b"x", "flag": 1 << 31}, flag=pa.int64()) == "flag: 2147483648 does not fit into 32 bits"


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("tags", "a\nb", "it holds a control character"),
        ("tags", "\x7f", "it holds a control character"),
        ("keys", "a\x01", "it holds 0x01 or 0x02, which separate properties"),
        ("sharding_key", "\x02", "it holds 0x01 or 0x02, which separate properties"),
        ("unique_key", "a b", "it holds a control character or a blank"),
        ("unique_key", "ü" * 256, "it has 256 characters, the limit is 255"),
    ],
)
def test_texts_that_would_not_come_back_are_refused(column: str, value: str, rule: str) -> None:
    assert refusal({"body": b"x", column: value}, rules(keep_unique_key=True)) == f"{column}: {rule}"


def test_a_long_unique_key_is_counted_in_characters() -> None:
    used = rules(keep_unique_key=True)
    assert written({"body": b"x", "unique_key": "ü" * 255}, used).unique_key == "ü" * 255


@pytest.mark.parametrize("column", ["tags", "keys", "sharding_key", "unique_key"])
def test_texts_that_are_not_utf_8_are_refused(column: str) -> None:
    found = refusal({"body": b"x", column: b"\xc3"}, rules(keep_unique_key=True), **{column: pa.binary()})
    assert found == f"{column}: it is not UTF-8"


def test_a_listed_key_with_a_blank_would_be_two() -> None:
    found = refusal({"body": b"x", "keys": ["a", "b c"]}, keys=pa.list_(pa.string()))
    assert found == "keys: a key of the list holds a blank: a reader would take it for two keys"


@pytest.mark.parametrize("keys", [None, "", "  "])
def test_a_topic_under_compaction_needs_a_key(keys: str | None) -> None:
    assert "COMPACTION" in refusal({"body": b"x", "topic": "Compact", "keys": keys})
    assert written({"body": b"x", "topic": "Compact", "keys": "k"}).keys == ["k"]


def test_a_body_may_be_as_large_as_max_message_size_as_stored() -> None:
    used = rules(max_message_size=100)
    assert len(written({"body": b"x" * 100}, used).body) == 100
    found = refusal({"body": b"x" * 101}, used)
    assert found == "body: it is 101 bytes as stored, maxMessageSize is 100"
    assert written({"body": b"x" * 101}, rules(max_message_size=100, compress_body_over=50)).plain_body == b"x" * 101


@pytest.mark.parametrize("host_size", [8, 20])
def test_a_record_and_its_filler_fit_into_a_log_file(host_size: int) -> None:
    row = {"body": b"good", "tags": "ü", "keys": "k", "sharding_key": "s", "properties": [("p", "v")]}
    host = bytes(host_size)
    outgoing, _ = prepare([row], rules(host_size=host_size))
    room = int(encode_block(outgoing, host).columns.sizes_bytes[0]) + 8
    assert prepare([row], rules(host_size=host_size, log_file_size=room))[1] == []
    _, ((_, column, rule),) = prepare([row], rules(host_size=host_size, log_file_size=room - 1))
    assert (column, rule) == (
        "body",
        f"its record of {room - 8} bytes and 8 behind it do not fit into a log file of {room - 1}",
    )


def test_properties_may_have_32767_bytes_with_ours() -> None:
    spare = 32_767 - len(written({"body": b"x", "tags": "t", "properties": [("p", "v")]}).raw_properties)
    longest = {"body": b"x", "tags": "t", "properties": [("p", "v" + "x" * spare)]}
    assert len(written(longest).raw_properties) == 32_767
    over = longest | {"tags": "tt"}
    assert refusal(over) == "properties: all properties together are 32768 bytes, the limit is 32767"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("p\x01", "v", "property 'p\\x01': its name holds 0x01 or 0x02, which separate properties"),
        ("p", "\x02", "property 'p': its value holds 0x01 or 0x02, which separate properties"),
        ("", "v", "property '': its name is empty: no reader would see it"),
        ("p", "", "property 'p': its value is empty: no reader would see it"),
        ("TAGS", "other", "TAGS is reserved and not what column tags says: use the column"),
        ("KEYS", "k", "KEYS is reserved and not what column keys says: use the column"),
    ],
)
def test_properties_that_a_row_may_not_have(name: str, value: str, rule: str) -> None:
    row = {"body": b"x", "tags": "t", "properties": [("first", "1"), (name, value), ("last", "1")]}
    assert refusal(row) == f"properties: {rule}"


@pytest.mark.parametrize(("name", "value"), [(b"\xff", b"v"), (b"p", b"\xff")])
def test_properties_that_are_not_utf_8_are_refused(name: bytes, value: bytes) -> None:
    found = refusal(
        {"body": b"x", "properties": [(b"fine", b"1"), (name, value)]}, properties=pa.map_(pa.binary(), pa.binary())
    )
    assert found.endswith("is not UTF-8")


def test_a_line_break_in_a_property_is_an_ordinary_character() -> None:
    assert written({"body": b"x", "properties": [("p", "a\n\0b")]}).properties["p"] == "a\n\0b"


@pytest.mark.parametrize("name", [*MADE_ANEW, *EARLIER_LIFE, "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"])
def test_properties_of_an_earlier_life_are_dropped_or_refused(name: str) -> None:
    row = {"body": b"x", "properties": [("p", "1"), (name, "3"), ("q", "2")]}
    properties = written(row).properties
    assert list(properties) == ["MSG_REGION", "TRACE_ON", "CLUSTER", "WAIT", "UNIQ_KEY", "p", "q"]
    assert "3" not in properties.values()
    assert (
        refusal(row, rules(strict_properties=True))
        == f"properties: {name} is reserved for brokers and clients; take another name"
    )


def test_properties_that_the_columns_say_too_stand_once() -> None:
    stated = [("TAGS", "t"), ("KEYS", "k l"), ("__SHARDINGKEY", "s"), ("p", "1")]
    row = {"body": b"x", "tags": "t", "keys": ["k", "l"], "sharding_key": "s", "properties": stated}
    message = written(row, keys=pa.list_(pa.string()))
    assert [entry.partition(b"\x01")[0] for entry in message.raw_properties.split(b"\x02")[5:-1]] == [
        *(b"TAGS", b"KEYS", b"__SHARDINGKEY", b"p"),
    ]
    assert refusal(row, rules(strict_properties=True), keys=pa.list_(pa.string())).endswith(
        "__SHARDINGKEY is reserved for brokers and clients; take another name"
    )


def test_a_sharding_key_without_a_column_is_kept_and_chooses_no_queue() -> None:
    row = {"body": b"x", "properties": [("__SHARDINGKEY", "b")]}
    for used in (rules(), rules(strict_properties=True)):
        outgoing, _ = prepare([row, row], used)
        assert [(message.queue_id, message.properties["__SHARDINGKEY"]) for message in messages_of(outgoing)] == [
            *((0, "b"), (1, "b")),
        ]
    other = row | {"sharding_key": "c"}
    assert (
        refusal(other) == "properties: __SHARDINGKEY is reserved and not what column sharding_key says: use the column"
    )


def test_all_rows_of_a_batch_can_be_refused() -> None:
    outgoing, rejected = prepare([{"body": None}, {"body": b"x", "topic": "a b"}])
    assert (count_of(outgoing), [row.row for row in rejected]) == (0, [0, 1])
    assert messages_of(outgoing) == []


def test_row_numbers_go_on_from_batch_to_batch() -> None:
    task = MessageRows(rules(), KEY_PREFIX)
    task.prepare(rows_of([{"body": b"x"}] * 3), NOW_MS)
    prepared = task.prepare(rows_of([{"body": b"x"}, {"body": None}]), NOW_MS)
    assert [row.row for row in prepared.rejected] == [4]
    assert prepared.rejected_indices.tolist() == [1]


@pytest.mark.parametrize("queue_count", [65_537, 2**31 - 1])
def test_a_topic_of_more_queues_than_anybody_has_is_refused(queue_count: int) -> None:
    huge = rules(topics={**TOPICS, "Huge": TopicConfig("Huge", queue_count, queue_count)})
    assert refusal({"body": b"x", "topic": "Huge"}, huge) == (
        f"topic: topic 'Huge' has {queue_count} write queues, and at most 65536 are written (writeQueueNums)"
    )
    assert "topic 'New' has" in refusal({"body": b"x", "topic": "New"}, rules(queue_count=queue_count))


def test_wide_topics_get_the_queues_that_narrow_ones_would(monkeypatch: pytest.MonkeyPatch) -> None:
    used = rules(topics={name: TopicConfig(name, 65_536, 65_536) for name in ("Wide", "Other")})
    rows = [{"body": b"x", "topic": name, "queue_id": queue} for name in ("Other", "Wide") for queue in (65_535, 3, 3)]
    rows += [{"body": b"y", "topic": "Wide"}] * 3

    def queues() -> list[tuple[str, int]]:
        messages, rejected = prepare(rows, used)
        assert rejected == []
        return [messages.queues[code] for code in messages.queue_codes.tolist()]

    counted = queues()
    monkeypatch.setattr("storage.rules.message_rows._COUNTED_PLACES", 0)
    assert queues() == counted
    assert counted[:3] == [("Other", 65_535), ("Other", 3), ("Other", 3)]


# What is said of all rows


def test_a_topic_that_is_said_of_all_rows_comes_before_what_rows_say() -> None:
    """As option `topic` of Spark's Kafka sink (KafkaRowWriter). What such a row names is not even judged."""
    task = MessageRows(rules(topic="Wide"), KEY_PREFIX)
    first = task.prepare(rows_of([{"body": b"a", "topic": "Narrow"}, {"body": b"b", "topic": "bad name"}]), NOW_MS)
    assert [(message.topic, message.body) for message in messages_of(first.messages)] == [
        ("Wide", b"a"),
        ("Wide", b"b"),
    ]
    assert (first.rejected, dict(first.topics)) == ((), {"Wide": 4})
    assert first.overruled == {"topic": "Narrow"}
    second = task.prepare(rows_of([{"body": b"c", "topic": "Narrow"}]), NOW_MS)
    assert [message.topic for message in messages_of(second.messages)] == ["Wide"]
    assert second.overruled == {}, "said once"


@pytest.mark.parametrize("topic", ["Wide", "", None])
def test_a_row_that_says_the_same_or_nothing_is_not_overruled(topic: str | None) -> None:
    prepared = MessageRows(rules(topic="Wide"), KEY_PREFIX).prepare(rows_of([{"body": b"a", "topic": topic}]), NOW_MS)
    assert [message.topic for message in messages_of(prepared.messages)] == ["Wide"]
    assert prepared.overruled == {}


def test_a_row_that_is_tried_again_has_come_from_the_topic_that_is_said_of_all() -> None:
    row = {"body": b"a", "topic": "Narrow", "retry_group": "g", "reconsume_times": 1}
    names = list(row)
    batch = pa.RecordBatch.from_arrays([pa.array([row[name]]) for name in names], names=names)
    prepared = MessageRows(rules(topic="Wide"), KEY_PREFIX).prepare(batch, NOW_MS)
    (message,) = messages_of(prepared.messages)
    assert (message.properties["REAL_TOPIC"], message.properties["RETRY_TOPIC"]) == ("%RETRY%g", "Wide")


# Priorities

PRIORITY_ROWS: list[tuple[dict[str, Any], int, bool]] = [
    ({"properties": [(PRIORITY, "0")]}, 0, True),
    ({"properties": [(PRIORITY, "1")]}, 1, True),
    ({"properties": [(PRIORITY, "9"), ("own", "x")]}, 3, True),
    ({"properties": [(PRIORITY, "9"), (PRIORITY, "1")]}, 1, True),
    ({"properties": [(PRIORITY, "-1")]}, 2, True),
    ({"properties": [(PRIORITY, "high")]}, 2, True),
    ({"properties": [(PRIORITY, "2147483648")]}, 2, True),
    ({"properties": [("own", "x")]}, 2, False),
    ({"properties": None}, 2, False),
    ({"properties": [(PRIORITY, "0")], "sharding_key": "k"}, 2, False),
    ({"properties": [(PRIORITY, "0"), ("__SHARDINGKEY", "k")]}, 2, False),
    ({"properties": [(PRIORITY, "0"), ("own", "x")], "delay_level": 3}, 2, False),
    ({"properties": [(PRIORITY, "0")], "delay_level": 0}, 0, True),
]


def test_a_row_goes_to_the_queue_of_its_priority_as_a_send_does() -> None:
    """Rows of all kinds in one batch, each as it is alone; a delayed one waits and names its queue."""
    rows = [
        {"body": b"%d" % number, "topic": "Four", "queue_id": 2, **row}
        for number, (row, _, _) in enumerate(PRIORITY_ROWS)
    ]
    used = rules(topics={"Four": TopicConfig("Four", 4, 4)}, topic=None, honours_priority=True)
    outgoing, rejected = prepare(rows, used)
    assert rejected == []
    found = [(int(m.properties.get("REAL_QID", m.queue_id)), PRIORITY in m.properties) for m in messages_of(outgoing)]
    assert found == [(queue_id, keeps) for _, queue_id, keeps in PRIORITY_ROWS]
    assert [m.properties.get("own") for m in messages_of(outgoing)] == [
        dict(row["properties"] or ()).get("own") for row, _, _ in PRIORITY_ROWS
    ]


def test_a_priority_is_a_property_like_others_before_5_4() -> None:
    row = {"body": b"m", "topic": "Wide", "queue_id": 1, "properties": [(PRIORITY, "0")]}
    assert (written(row).queue_id, written(row).properties[PRIORITY]) == (1, "0")


def test_rows_in_a_store_of_5_4_go_by_priority(tmp_path: Path) -> None:
    with open_store(tmp_path, rocketmq_version="5.4.0", read_only=False, create=True) as store:
        store.save_topic(TopicConfig("Four", 4, 4))
        assert store.put("Four", b"m", properties={PRIORITY: "7"}).queue_id == 3
