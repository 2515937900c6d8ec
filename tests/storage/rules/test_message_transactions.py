"""Rows that are transactions: halves and commits as the Apache broker stored them, and each rule once.

Java: DefaultMQProducerImpl.sendMessageInTransaction, TransactionalMessageBridge.parseHalfMessageInner,
EndTransactionProcessor.endMessageTransaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.errors import RowIllegalError
from storage.format.arrays import index_key_hash, string_hash
from storage.format.properties import EARLIER_LIFE, MADE_ANEW
from storage.format.record import Message, decode_record
from storage.format.record_block import OutgoingMessages, encode_block
from storage.rules.half_messages import TransactionRules
from storage.rules.message_rows import Commits, MessageRows, Prepared
from storage.rules.row_rules import MessageRules
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture
from tests.support.named_rows import each_named

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW_MS = 1_700_000_000_000
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TYPES: dict[str, pa.DataType] = {
    "transaction_state": pa.string(),
    "producer_group": pa.string(),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("ms", "UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
    "queue_id": pa.int32(),
}


def rules(group: str | None = "pg", *, marks: tuple[tuple[str, str], ...] = (), **changes: Any) -> MessageRules:
    values = {"topic": "T", "topics": {"T": TopicConfig("T", 4, 4)}, "transaction": TransactionRules(group, marks)}
    return MessageRules(**{**values, **changes})


def table(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [pa.array([row.get(name) for row in rows], TYPES.get(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def prepare(rows: list[dict[str, Any]], used: MessageRules | None = None) -> Prepared:
    named, used = each_named(rows, used or rules())
    return MessageRows(used, bytes(10)).prepare(table(named), NOW_MS)


def commits_of(prepared: Prepared) -> Commits:
    assert prepared.commits is not None
    return prepared.commits


def records(outgoing: OutgoingMessages) -> list[Message]:
    block = encode_block(outgoing, HOST)
    data, ends = block.data.tobytes(), np.cumsum(block.columns.sizes_bytes).tolist()
    found = [decode_record(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert all(isinstance(message, Message) for message in found)
    return found  # type: ignore[return-value]


def everything(store: MessageStore, topic: str) -> list[Message]:
    return [message for queue_id in store.queue_ids(topic) for message in store.get(topic, queue_id, 0, 1_000).messages]


# As the broker stored them


def test_rows_become_the_halves_and_commits_that_the_broker_stored(pristine_store: Callable[[str], Fixture]) -> None:
    """parseHalfMessageInner (REAL_TOPIC, REAL_QID, __transactionId__, bits cleared); endMessageTransaction (the half's properties)."""
    with open_store(pristine_store("clean").root) as store:
        halves = [half for half in everything(store, HALF) if "TRANSACTION_CHECK_TIMES" not in half.properties]
        committed = {message.prepared_transaction_offset: message for message in everything(store, "TopicTx")}
    assert len(halves) >= 15
    seen = 0
    for java in halves:
        properties = java.properties
        own = {
            name: value for name, value in properties.items() if name not in (*EARLIER_LIFE, *MADE_ANEW, "TAGS", "KEYS")
        }
        row = {
            "body": java.plain_body,
            "topic": properties["REAL_TOPIC"],
            "queue_id": int(properties["REAL_QID"]),
            "properties": list(own.items()),
            "tags": properties.get("TAGS"),
            "keys": properties.get("KEYS"),
            "unique_key": properties["UNIQ_KEY"],
            "producer_group": properties["PGROUP"],
        }
        prepared = prepare([row], rules(None, topics={}, keep_unique_key=True, cluster_name="LabCluster"))
        assert prepared.rejected == ()
        (half,) = records(prepared.messages)
        assert (half.topic, half.queue_id, half.body, half.sys_flag) == (
            HALF,
            0,
            java.plain_body,
            java.sys_flag & ~0x701,
        )
        assert half.properties == {**properties, "WAIT": "true"}
        (commit,) = records(commits_of(prepared).messages)
        if (golden := committed.get(java.commitlog_offset)) is not None:
            seen += 1
            assert (commit.topic, commit.queue_id) == (golden.topic, golden.queue_id)
            assert commit.sys_flag == golden.sys_flag & ~0x701
            assert commit.properties == {**golden.properties, "WAIT": "true"}
        names = [properties["UNIQ_KEY"], *properties.get("KEYS", "").split()]
        for outgoing, topic in ((prepared.messages, HALF), (commits_of(prepared).messages, properties["REAL_TOPIC"])):
            assert outgoing.key_hashes.tolist() == [index_key_hash(f"{topic}#{name}") for name in names]
            assert outgoing.tags_codes.tolist() == [string_hash(properties.get("TAGS", ""))]
    assert seen >= 5


# What ends a row


def test_what_ends_a_half_is_said_by_its_state() -> None:
    """LocalTransactionState, and null for the sink's own: a row that says nothing is committed."""
    states = ["commit", "rollback", None, "unknown", "COMMIT", "Rollback"]
    rows = [{"body": str(n).encode(), "keys": f"k{n}", "transaction_state": state} for n, state in enumerate(states)]
    prepared = prepare(rows)
    assert prepared.rejected == ()
    assert commits_of(prepared).states.tolist() == [8, 12, 8, 0, 8, 12]
    assert [message.body for message in records(prepared.messages)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    commits = commits_of(prepared).messages
    assert [(message.body, message.queue_id) for message in records(commits)] == [(b"0", 0), (b"2", 2), (b"4", 0)]
    assert commits.key_hashes[1::2].tolist() == [index_key_hash(f"T#k{n}") for n in (0, 2, 4)]
    assert prepared.destinations == tuple(("T", queue_id) for queue_id in range(4))


def test_without_the_column_all_are_committed() -> None:
    assert commits_of(prepare([{"body": b"a"}, {"body": b"b"}])).states.tolist() == [8, 8]


def test_the_group_is_the_options_where_it_is_given_else_the_rows() -> None:
    """DefaultMQProducerImpl.sendMessageInTransaction: PGROUP."""
    rows = [{"body": b"b", "producer_group": "own"}, {"body": b"a", "producer_group": None}, {"body": b"c"}]
    said_of_all = MessageRows(rules("pg"), bytes(10)).prepare(table(rows), NOW_MS)
    assert [half.properties["PGROUP"] for half in records(said_of_all.messages)] == ["pg", "pg", "pg"]
    assert (said_of_all.rejected, said_of_all.overruled) == ((), {"producer_group": "own"})
    by_row = MessageRows(rules(None), bytes(10)).prepare(table(rows[:1]), NOW_MS)
    assert [half.properties["PGROUP"] for half in records(by_row.messages)] == ["own"]
    assert by_row.overruled == {}
    assert [half.properties["PGROUP"] for half in records(prepare([{"body": b"a"}]).messages)] == ["pg"]


def test_marks_stand_in_half_and_commit() -> None:
    prepared = prepare([{"body": b"a"}], rules(marks=(("SPARK_MQ_QUERY", "q"), ("SPARK_MQ_BATCH", "7"))))
    for outgoing in (prepared.messages, commits_of(prepared).messages):
        (message,) = records(outgoing)
        assert (message.properties["SPARK_MQ_QUERY"], message.properties["SPARK_MQ_BATCH"]) == ("q", "7")


@pytest.mark.parametrize(
    ("row", "used", "column", "rule"),
    [
        (
            {"transaction_state": "done"},
            rules(),
            "transaction_state",
            "expected one of commit, rollback, unknown, found 'done'",
        ),
        ({"producer_group": "a/b"}, rules(), "producer_group", "character '/'"),
        ({"producer_group": "x" * 256}, rules(), "producer_group", "the limit is 255"),
        ({}, rules(None), "producer_group", "the option producerGroup is not given"),
        ({"producer_group": ""}, rules(None), "producer_group", "the option producerGroup is not given"),
        ({"delay_level": 1}, rules(), "delay_level", "a message of a transaction cannot be delayed"),
        (
            {"deliver_at": datetime(2000, 1, 1, tzinfo=UTC)},
            rules(),
            "deliver_at",
            "a message of a transaction cannot be delayed",
        ),
        ({"body": b""}, rules(), "body", "cannot commit such a half"),
        (
            {"transaction_state": "rollback"},
            rules(transaction=TransactionRules("pg", is_rejected=True)),
            "transaction_state",
            "rejectTransactionMessage",
        ),
    ],
    ids=str,
)
def test_what_can_be_no_transaction_is_refused_row_by_row(
    row: dict[str, Any], used: MessageRules, column: str, rule: str
) -> None:
    prepared = prepare([{"body": b"x", **row}], used)
    ((_, found, text),) = prepared.rejected
    assert (found, rule in text) == (column, True), text
    assert records(prepared.messages) == []


def test_a_delay_of_nothing_is_none() -> None:
    assert prepare([{"body": b"x", "delay_level": 0, "deliver_at": None}]).rejected == ()


def test_properties_must_have_room_for_what_a_half_adds() -> None:
    """MessageExtEncoder.encode: PROPERTIES_SIZE_EXCEEDED above 32,767 bytes, those of TransactionalMessageBridge among them."""
    empty = len(records(prepare([{"body": b"x", "properties": [("p", "v")]}]).messages)[0].raw_properties) - 1
    fits = prepare([{"body": b"x", "properties": [("p", "v" * (32_767 - empty))]}])
    assert len(records(fits.messages)[0].raw_properties) == 32_767
    ((_, column, rule),) = prepare([{"body": b"x", "properties": [("p", "v" * (32_768 - empty))]}]).rejected
    assert (column, "32768 bytes" in rule) == ("properties", True)


# Put into a store


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path / "store", config=StoreConfig.tiny(), read_only=False, create=True) as opened:
        yield opened


def test_a_put_leaves_halves_commits_that_name_them_and_op_messages(store: MessageStore) -> None:
    """EndTransactionProcessor: preparedTransactionOffset = the half's place; deletePrepareMessage: op body = its queue offset."""
    states = ["commit", "rollback", "unknown", "commit"]
    rows = table([{"body": str(n).encode(), "transaction_state": state} for n, state in enumerate(states)])
    for _ in range(3):
        placed = store.put_batch(rows, topic="T", transactional=True, producer_group="pg").to_pylist()
    halves = {half.commitlog_offset: half for half in everything(store, HALF)}
    assert [row["commitlog_offset"] for row in placed] == list(halves)[-4:]
    assert {row["topic"] for row in placed} == {HALF}
    commits = everything(store, "T")
    assert sorted(halves[message.prepared_transaction_offset].queue_offset for message in commits) == [
        0,
        3,
        4,
        7,
        8,
        11,
    ]
    assert all(halves[message.prepared_transaction_offset].body == message.body for message in commits)
    assert [op.body for op in everything(store, OP)] == [b"0,1,3,", b"4,5,7,", b"8,9,11,"]


def test_a_put_of_transactions_without_a_group_appends_nothing(store: MessageStore) -> None:
    with pytest.raises(RowIllegalError, match="producer_group"):
        store.put_batch(table([{"body": b"x"}]), topic="T", transactional=True)
    assert store.log_end == 0


def test_op_messages_are_as_long_as_a_broker_makes_them(tmp_path: Path) -> None:
    """transactionOpMsgMaxSize: TransactionalMessageServiceImpl.getOpMessage fills a body until it has reached 4,096 bytes."""
    tiny = StoreConfig.tiny()
    config = replace(tiny, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=1 << 20))
    with open_store(tmp_path / "store", config=config, read_only=False, create=True) as store:
        store.put_batch(pa.record_batch({"body": ["x"] * 2_000}), topic="T", transactional=True, producer_group="pg")
        bodies = [op.body for op in everything(store, OP)]
    assert len(bodies) == 3
    assert all(4_096 <= len(body) < 4_096 + len("1999,") for body in bodies[:-1])
    assert b"".join(bodies).decode() == "".join(f"{n}," for n in range(2_000))


def test_op_messages_fit_into_the_logs_files_however_small_these_are(store: MessageStore) -> None:
    """Files of 4 KiB, which is less than a broker's longest op message."""
    store.put_batch(pa.record_batch({"body": ["x"] * 2_000}), topic="T", transactional=True, producer_group="pg")
    assert b"".join(op.body for op in everything(store, OP)).decode() == "".join(f"{n}," for n in range(2_000))
