"""Rows that are not plain sends, through the sink's tasks and commit in this process: delayed, tried again, sent back, transactions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError, OptionError, SparkMqError
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import abort_rows, commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import check_place
from storage import open_store
from storage.batch.ledger import Batch
from storage.batch.staged_segment import list_segments
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import Message
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.topics import TopicTable
from storage.transaction.progress import TransactionCounts

HALF, OP, SCHEDULE, TIMER = (
    *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    *("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"),
)
TYPES: dict[str, pa.DataType] = {
    "transaction_state": pa.string(),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("us", "UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
    "reconsume_times": pa.int32(),
}
Row = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store whose files are small, empty."""
    path = make_root(tmp_path, "")
    open_store(path, read_only=False, create=True).close()
    return str(path)


def make_root(tmp_path: Path, settings: str) -> Path:
    (tmp_path / "broker.conf").write_text(
        f"mappedFileSizeCommitLog=65536\nmaxHashSlotNum=20\nmaxIndexNum=600\n{settings}"
    )
    return tmp_path / "broker-a"


def options_of(root: str, **options: str) -> SinkOptions:
    return SinkOptions.parse({"path": root, **options}, "streaming")


def stage(
    options: SinkOptions, rows: Sequence[Row], *, batch_id: int = 0, partition: int = 0, is_only: bool = False
) -> StagedRows:
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    columns = [pa.array([row.get(name) for row in rows], TYPES.get(name)) for name in names]
    frame = pa.RecordBatch.from_arrays(columns, names=list(names))
    batch = Batch("sink", "query", batch_id)
    return stage_rows(options, InputColumns(names), batch, partition, partition, iter([frame]), is_only=is_only)


def write(options: SinkOptions, rows: Sequence[Row], *, batch_id: int = 0) -> None:
    commit_rows(options, [stage(options, rows, batch_id=batch_id)], batch_id, mirrored=True)


def stored(root: str, topic: str) -> list[Message]:
    with open_store(root) as store:
        return [m for queue_id in store.queue_ids(topic) for m in store.get(topic, queue_id, 0, 1_000).messages]


def queue_counts(root: str) -> dict[str, int]:
    with open_store(root) as store:
        table = store.state("topics.json", TopicTable.load)
    assert table is not None
    assert all(topic.perm == 6 for topic in table.topics.values())
    return {name: topic.write_queue_count for name, topic in table.topics.items()}


def groups(root: str) -> set[str]:
    with open_store(root) as store:
        table = store.state("subscriptionGroup.json", SubscriptionGroupTable.load)
    return set() if table is None else set(table.groups)


def test_delayed_rows_wait_and_their_topic_is_made(root: str) -> None:
    """Java: SendMessageProcessor.msgCheck makes the topic before HookUtils.handleScheduleMessage parks the message."""
    later = datetime.now(UTC) + timedelta(hours=1)
    rows = [{"topic": "T", "body": "a", "delay_level": 2}, {"topic": "U", "body": "b", "deliver_at": later}]
    write(options_of(root, queueNum="4"), rows)
    (delayed,), (timed,) = stored(root, SCHEDULE), stored(root, TIMER)
    assert (delayed.body, delayed.queue_id, delayed.properties["REAL_TOPIC"]) == (b"a", 1, "T")
    assert (timed.body, timed.properties["REAL_TOPIC"]) == (b"b", "U")
    assert queue_counts(root) == {"T": 4, "U": 4}
    with open_store(root) as store:
        queue = store.queues.get(SCHEDULE, 1)
        assert queue is not None
        assert queue.entries(0, 1)["tags_code"].tolist() == [delayed.store_time_ms + 5_000]


def test_a_named_release_takes_what_it_can_read(root: str) -> None:
    """Tasks refuse rows for a timer that 4.9 does not have; the commit names ended halves one by one."""
    old = options_of(root, rocketmqVersion="4.9.7")
    later = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(InvalidRowError, match=r"rocketmqVersion is before 5\.0"):
        write(old, [{"topic": "T", "body": "a", "deliver_at": later}])
    rows = [{"topic": "T", "body": "a", "transaction_state": "commit"} for _ in range(3)]
    write(options_of(root, rocketmqVersion="4.9.7", transactional="true", producerGroup="G"), rows)
    assert [message.body for message in stored(root, OP)] == [b"0", b"1", b"2"]


def test_levels_and_the_timer_are_the_brokers(tmp_path: Path) -> None:
    root = str(make_root(tmp_path, "messageDelayLevel=3s 9s\ntimerWheelEnable=false\n"))
    write(options_of(root, topic="T"), [{"body": "a", "delay_level": 7}])
    assert [(message.queue_id, message.properties["DELAY"]) for message in stored(root, SCHEDULE)] == [(1, "2")]
    with pytest.raises(InvalidRowError, match="timerWheelEnable is false"):
        stage(options_of(root, topic="T"), [{"body": "a", "deliver_at": datetime.now(UTC)}])


def test_rows_of_a_group_make_its_retry_topic_and_entry(root: str) -> None:
    """Java: TopicConfigManager.createTopicInSendMessageBackMethod, SubscriptionGroupManager.findSubscriptionGroupConfig."""
    rows = [{"topic": "T", "body": f"{times}", "retry_group": "g", "reconsume_times": times} for times in (0, 3, 4)]
    options = options_of(root, maxReconsumeTimes="3")
    write(options, rows)
    assert sorted((message.body, message.queue_id) for message in stored(root, SCHEDULE)) == [(b"0", 2), (b"3", 5)]
    assert [(message.body, message.reconsume_times) for message in stored(root, "%DLQ%g")] == [(b"4", 4)]
    assert queue_counts(root) == {"%RETRY%g": 1, "%DLQ%g": 1}
    assert groups(root) == {"g"}


CONSUMED = {"topic": "T", "msg_id": "ID", "properties": [("UNIQ_KEY", "KEY"), ("a", "1")]}


def test_rows_are_sent_back_in_one_batch_and_once(root: str) -> None:
    """Java: AbstractSendMessageProcessor.consumerSendMsgBack."""
    options = options_of(root, sendBack="true", consumerGroup="g", maxReconsumeTimes="2")
    rows = [{**CONSUMED, "body": f"{times}", "reconsume_times": times} for times in (0, 1, 2)]
    for _ in range(2):
        write(options, rows)
    found = [(message.body, message.reconsume_times, message.properties) for message in stored(root, SCHEDULE)]
    own = {"UNIQ_KEY": "KEY", "a": "1", "WAIT": "false", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID"}
    retried = {**own, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0"}
    assert found == [(b"0", 1, {**retried, "DELAY": "3"}), (b"1", 2, {**retried, "DELAY": "4"})]
    (dead,) = stored(root, "%DLQ%g")
    assert (dead.body, dead.reconsume_times, dead.properties) == (b"2", 3, {**own, "DELAY": "0"})
    assert queue_counts(root) == {"%RETRY%g": 1, "%DLQ%g": 1}
    assert groups(root) == {"g"}


def test_what_a_message_had_before_it_was_sent_back_is_all_it_needs_to_be_found_done(root: str) -> None:
    """Messages of old clients have no UNIQ_KEY; the batch's END names its last row by it."""
    options = options_of(root, sendBack="true", consumerGroup="g")
    rows = [{**CONSUMED, "properties": [("a", "1")], "body": "x"}]
    write(options, rows)
    Path(root, "spark_mq", "hint.json").unlink()  # so that the ledger itself is asked
    write(options, rows)
    assert len(stored(root, SCHEDULE)) == 1


def test_producers_with_both_kinds_of_address_are_sent_back_by_one_task(root: str) -> None:
    options = options_of(root, sendBack="true", consumerGroup="g")
    hosts = ["10.1.2.3:4", "[2001:db8::1]:5", "10.1.2.3:4"]
    write(options, [{**CONSUMED, "body": f"{number}", "born_host": host} for number, host in enumerate(hosts)])
    assert sorted((m.body, len(m.born_host)) for m in stored(root, SCHEDULE)) == [(b"0", 8), (b"1", 20), (b"2", 8)]
    assert list(list_segments(LocalFileSystem(), root)) != [], "under ASYNC_FLUSH they stay until the next commit"
    open_store(root, read_only=False).close()
    assert list(list_segments(LocalFileSystem(), root)) == []


def test_what_failed_is_sent_back_to_no_store_that_is_not_there(tmp_path: Path) -> None:
    options = options_of(str(tmp_path / "typo"), sendBack="true", consumerGroup="g")
    with pytest.raises(SparkMqError, match="SPARK_MQ_STORE_NOT_FOUND"):
        check_place(options)
    assert not (tmp_path / "typo").exists()


def test_a_group_that_the_broker_would_not_make_is_refused(tmp_path: Path) -> None:
    """Java: SUBSCRIPTION_GROUP_NOT_EXIST where autoCreateSubscriptionGroup is false."""
    root = str(make_root(tmp_path, "autoCreateSubscriptionGroup=false\n"))
    options = options_of(root, sendBack="true", consumerGroup="g")
    with pytest.raises(OptionError, match="there is no group 'g', and autoCreateSubscriptionGroup is false"):
        stage(options, [{**CONSUMED, "body": "x"}])


TRANSACTIONS = [
    {"topic": "T", "body": "a"},
    {"topic": "T", "body": "b", "transaction_state": "rollback"},
    {"topic": "U", "body": "c", "transaction_state": "unknown"},
    {"topic": "T", "body": "d", "transaction_state": "commit"},
]


def transactional(root: str, **options: str) -> SinkOptions:
    return options_of(root, transactional="true", producerGroup="pg", **options)


def test_transactions_end_in_the_batch_that_brings_them_and_once(root: str) -> None:
    """Java: EndTransactionProcessor; TransactionalMessageServiceImpl.deletePrepareMessage."""
    options = transactional(root)
    for _ in range(2):
        staged = [stage(options, TRANSACTIONS), stage(options, TRANSACTIONS[:1], partition=1)]
        commit_rows(options, staged, 0, mirrored=True)
    halves = {half.commitlog_offset: half for half in stored(root, HALF)}
    assert [half.body for half in halves.values()] == [b"a", b"b", b"c", b"d", b"a"]
    visible = sorted(stored(root, "T"), key=lambda message: message.commitlog_offset)
    assert [message.body for message in visible] == [b"a", b"d", b"a"]
    assert [halves[message.prepared_transaction_offset].queue_offset for message in visible] == [0, 3, 4]
    assert stored(root, "U") == []
    assert [op.body for op in stored(root, OP)] == [b"0,1,3,4,"]
    assert queue_counts(root) == {"T": 8, "U": 8}, "a broker will commit c to its topic"
    with open_store(root) as store:
        counts = store.state("transactionMetrics", TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"U": 1}, "Java: TransactionMetrics, what is prepared and not ended"


def test_half_messages_tell_a_check_of_which_micro_batch_they_are(root: str) -> None:
    options = transactional(root)
    commit_rows(options, [stage(options, TRANSACTIONS, batch_id=5)], 5, mirrored=True)
    marks = {
        half.body: (half.properties.get("SPARK_MQ_QUERY"), half.properties.get("SPARK_MQ_BATCH"))
        for half in stored(root, HALF)
    }
    known = ("query", "5")
    assert marks == {b"a": known, b"b": known, b"c": (None, None), b"d": known}, "nobody answers for the unknown one"


def test_those_of_a_batch_write_have_no_checkpoint_to_ask(root: str) -> None:
    options = transactional(root)
    commit_rows(options, [stage(options, TRANSACTIONS[2:3], is_only=True)], 0, mirrored=False)
    (half,) = stored(root, HALF)
    assert not {"SPARK_MQ_QUERY", "SPARK_MQ_BATCH"} & set(half.properties)


def test_a_batch_that_commits_nothing_counts_as_one(root: str) -> None:
    options = transactional(root)
    for _ in range(2):
        write(options, TRANSACTIONS[1:3])
    assert [half.body for half in stored(root, HALF)] == [b"b", b"c"]
    assert [op.body for op in stored(root, OP)] == [b"0,"]


def test_what_is_staged_of_transactions_is_given_back(root: str) -> None:
    options = transactional(root)
    staged = stage(options, TRANSACTIONS)
    assert len(list(list_segments(LocalFileSystem(), root))) == 2
    abort_rows(options, [staged])
    assert list(list_segments(LocalFileSystem(), root)) == []


def test_a_task_that_fails_leaves_nothing_of_its_transactions(root: str) -> None:
    with pytest.raises(SparkMqError, match="a message of a transaction cannot be delayed"):
        stage(transactional(root), [*TRANSACTIONS, {"topic": "T", "body": "x", "delay_level": 1}])
    assert not os.path.exists(root) or list(list_segments(LocalFileSystem(), root)) == []


def test_plain_sends_leave_nothing_of_all_this(root: str) -> None:
    write(options_of(root, topic="T"), [{"body": "a"}])
    with open_store(root) as store:
        assert set(store.topics()) == {"T", "rmq_sys_spark_mq_ledger"}
    assert groups(root) == set()
