"""The sink's tasks and its commit, driven in this process in the way that Spark drives them in its own: cheap, and open to view."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructType

from spark_mq.conditions import InvalidRowError, OptionError, SparkMqError, WriteFailedError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import StoreSink, abort_rows, commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.writers import BatchWriter
from spark_mq.spark_api import WriterCommitMessage
from storage import open_store
from storage.batch.intent import intent_directory, load_intents
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentPool, list_segments, sink_digest, staged_directory
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import Message
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.served import served

FILES = LocalFileSystem()
Row = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "broker-a")


def options_of(root: str, **options: str) -> SinkOptions:
    return SinkOptions.parse({"path": root, "topic": "T", **options}, "streaming")


def options_by_row(root: str, **options: str) -> SinkOptions:
    """Each row names its topic."""
    return SinkOptions.parse({"path": root, **options}, "streaming")


def frames_of(rows: Sequence[Row], size: int = 3) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow batches of at most `size`."""
    whole = pa.RecordBatch.from_pylist(list(rows))
    for start in range(0, len(rows), size):
        yield whole.slice(start, size)


def stage(
    options: SinkOptions,
    rows: Sequence[Row],
    *,
    batch_id: int = 0,
    partition: int = 0,
    attempt: int = 0,
    sink_id: str = "sink",
    query_id: str = "query",
) -> StagedRows:
    columns = InputColumns(tuple(rows[0]) if rows else ("body",), kafka=False)
    batch = Batch(sink_id, query_id, batch_id)
    staged = stage_rows(options, columns, batch, partition, attempt, frames_of(rows))
    return pickle.loads(pickle.dumps(staged))  # as it crosses from a task to the commit


def commit(options: SinkOptions, *messages: WriterCommitMessage | None, batch_id: int = 0) -> None:
    commit_rows(options, messages, batch_id, mirrored=True)


def bodies(*texts: str) -> list[Row]:
    return [{"body": text.encode()} for text in texts]


def stored(root: str, topic: str = "T") -> list[Message]:
    """All messages of a topic, in the log's order."""
    with open_store(root) as store:
        return sorted(served(store, topic), key=lambda message: message.commitlog_offset)


def texts(root: str, topic: str = "T") -> list[str]:
    return [message.body.decode() for message in stored(root, topic)]


def files_under(path: str) -> set[str]:
    return {f"{folder}/{name}" for folder, _, names in os.walk(path) for name in names}


def test_the_tasks_rows_are_appended_in_the_order_of_the_tasks(root: str) -> None:
    options = options_of(root)
    first = stage(options, bodies("a", "b", "c", "d"))
    second = stage(options, bodies("e", "f"), partition=1, attempt=1)
    assert not os.path.exists(f"{root}/commitlog"), "tasks do not touch the log"
    commit(options, first, second)
    assert texts(root) == ["a", "b", "c", "d", "e", "f"]
    keys = [message.unique_key or "" for message in stored(root)]
    digest = hashlib.sha256(b'["sink", "query"]').hexdigest()[:8].upper()
    assert keys[:2] == [f"{digest}{0:04X}{0:08X}{rank:012X}" for rank in (0, 1)]
    assert keys[4:] == [f"{digest}{1:04X}{0:08X}{rank:012X}" for rank in (0, 1)]


def test_a_batch_without_rows_touches_nothing(root: str) -> None:
    options = options_of(root)
    message = stage(options, [])
    assert message.segments == ()
    commit(options, message)
    assert not os.path.exists(root)


def test_a_task_that_fails_holds_no_file_although_it_can_give_none_back(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = options_of(root, onInvalidRow="deadLetter", deadLetterPath=str(tmp_path / "aside"))

    def frames() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"body": b"good"}, {"body": None}])
        raise ZeroDivisionError

    monkeypatch.setattr(SegmentPool, "give_back", mock.Mock(side_effect=OSError(errno.ENOSPC, "planted")))
    with pytest.raises(ZeroDivisionError) as raised:
        stage_rows(aside, InputColumns(("body",), kafka=False), Batch("sink", "query", 0), 0, 0, frames())
    assert raised.value.__notes__ == ["what was staged could not all be given back: [Errno 28] planted"]
    assert len(list(list_segments(FILES, root))) == 1
    assert not [name for name in os.listdir("/proc/self/fd") if str(tmp_path) in _target(name)]
    assert not files_under(str(tmp_path / "aside"))


def _target(descriptor: str) -> str:
    """What an open file of this process is."""
    with suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


def test_a_replayed_batch_is_acknowledged_and_not_written_again(root: str) -> None:
    options = options_of(root)
    for _ in range(3):
        commit(options, stage(options, bodies("a", "b")))
    commit(options, stage(options, bodies("c"), batch_id=1), batch_id=1)
    commit(options, stage(options, bodies("d"), batch_id=1), batch_id=1)
    assert texts(root) == ["a", "b", "c"]
    for rows, batch_id in ((bodies("a", "b"), 0), (bodies("c", "d"), 1)):
        with pytest.raises(SparkMqError, match="SPARK_MQ_SINK_AHEAD"):
            commit(options, stage(options, rows, batch_id=batch_id), batch_id=batch_id)
    assert texts(root) == ["a", "b", "c"]


def test_the_first_batch_of_a_query_is_no_write_though_its_sink_has_the_querys_name(root: str) -> None:
    options = options_of(root)
    commit(options, stage(options, bodies("a"), sink_id="query"))
    with pytest.raises(SparkMqError, match=r"SPARK_MQ_SINK_AHEAD.* with 1 rows, .* batch 0, 2 rows(?s:.*)sinkTakeover"):
        commit(options, stage(options, bodies("b", "c"), sink_id="query"))
    takeover = options_of(root, sinkTakeover="true")
    commit(takeover, stage(takeover, bodies("b", "c"), sink_id="query"))
    commit(options, stage(options, bodies("d"), batch_id=1, sink_id="query"), batch_id=1)
    assert texts(root) == ["a", "d"]


def test_what_comes_under_a_writes_name_again_is_not_written_whatever_it_is(root: str) -> None:
    options = SinkOptions.parse({"path": root, "topic": "T", "writeId": "w"}, "batch")
    for rows in (bodies("a"), bodies("b", "c")):
        commit(options, stage(options, rows, sink_id="w", query_id="w"))
    assert texts(root) == ["a"]


def test_a_replay_makes_the_same_keys_and_takes_the_same_queues(root: str, tmp_path: Path) -> None:
    rows = bodies(*"abcdefghij")
    other = str(tmp_path / "broker-b")
    for place in (root, other):
        options = options_of(place)
        commit(options, stage(options, rows, batch_id=7, attempt=len(place)), batch_id=7)
    one, two = stored(root), stored(other)
    assert [(m.unique_key, m.queue_id, m.queue_offset) for m in one] == [
        (m.unique_key, m.queue_id, m.queue_offset) for m in two
    ]
    assert len({message.queue_id for message in one}) == 8


def test_of_two_attempts_of_one_task_the_one_that_spark_chose_is_written_and_the_other_goes(root: str) -> None:
    options = options_of(root)
    stage(options, bodies("a", "b"), attempt=1)
    chosen = stage(options, bodies("a", "b"), attempt=2)
    assert len(list(list_segments(FILES, root))) == 2
    commit(options, chosen)
    commit(options, stage(options, bodies("c"), batch_id=1), batch_id=1)
    assert texts(root) == ["a", "b", "c"]
    left = {path for path, _ in list_segments(FILES, root)}
    named = {segment.path for intent in load_intents(FILES, root) for segment in intent.segments}
    assert left == named


def test_attempts_of_two_drivers_with_one_number_do_not_meet(root: str) -> None:
    options = options_of(root)
    first, second = (stage(options, bodies("a"), attempt=5) for _ in range(2))
    assert first.segments[0].path != second.segments[0].path


def test_abort_gives_back_what_no_intent_names(root: str) -> None:
    options = options_of(root)
    committed, failed = stage(options, bodies("a")), stage(options, bodies("b"), batch_id=1)
    commit(options, committed)
    abort_rows(options, [committed, None])
    abort_rows(options, [None, failed])
    named = {segment.path for intent in load_intents(FILES, root) for segment in intent.segments}
    assert {path for path, _ in list_segments(FILES, root)} == named
    commit(options, stage(options, bodies("b2"), batch_id=1), batch_id=1)
    assert texts(root) == ["a", "b2"]


def test_abort_beside_a_writer_that_holds_the_store_leaves_everything(root: str) -> None:
    options = options_of(root)
    commit(options, stage(options, bodies("a")))
    failed = stage(options, bodies("b"), batch_id=1)
    before = set(list_segments(FILES, root))
    with FILES.locked(f"{root}/lock"):
        abort_rows(options, [failed])
    assert set(list_segments(FILES, root)) == before
    abort_rows(options, [])


def test_what_is_refused_before_a_store_was_made_leaves_nothing_in_its_place(root: str) -> None:
    options = options_of(root)
    staged = stage(options, bodies("a"), partition=1)
    with pytest.raises(InvalidRowError):
        stage(options, [*bodies("a", "b", "c", "d"), {"body": None}])
    assert files_under(root)
    abort_rows(options, [None, staged])
    assert os.listdir(root) == []
    commit(options, stage(options, bodies("b")))
    assert texts(root) == ["b"]


def test_abort_makes_nothing_where_no_commit_has_been(tmp_path: Path) -> None:
    """A write fails in its first batch, in a directory that a task has made for its rows alone."""
    root = tmp_path / "place"
    options = options_of(str(root))
    staged = stage(options, bodies("a"))
    abort_rows(options, [staged, None])
    assert os.listdir(root) == []
    assert not list(list_segments(FILES, str(root)))


@pytest.mark.parametrize("mode", ["writer", "streamWriter"])
def test_a_place_that_is_no_store_and_not_empty_is_refused_before_any_task_runs(tmp_path: Path, mode: str) -> None:
    (tmp_path / "thesis.txt").write_text("x", "utf-8")
    schema = StructType().add("body", StringType())
    for path in (tmp_path, tmp_path / "thesis.txt"):
        source = SparkMqDataSource({"path": str(path), "topic": "T"})
        with pytest.raises(SparkMqError, match=r"(?s)^\[SPARK_MQ_STORE_NOT_FOUND\] .*Check the option path"):
            getattr(source, mode)(schema, False)
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis.txt"]
    empty = tmp_path / "new"
    assert getattr(SparkMqDataSource({"path": str(empty), "topic": "T"}), mode)(schema, False)
    assert not empty.exists()


def test_keys_of_a_write_of_its_own_take_all_of_the_digest(root: str) -> None:
    options = options_of(root)
    batch = Batch("|name", "|name", 0)
    columns = InputColumns(("body",), kafka=False)
    messages = [
        stage_rows(options, columns, batch, partition, 0, frames_of(bodies("a")), is_only=True) for partition in (0, 9)
    ]
    commit(options, *messages)
    digest = hashlib.sha256(b'["|name", "|name"]').hexdigest().upper()
    assert [message.unique_key for message in stored(root)] == [
        f"{digest[:8]}{partition:04X}{digest[8:16]}{0:012X}" for partition in (0, 9)
    ]


def test_a_write_without_a_name_gets_one_that_no_option_can_name() -> None:
    columns = InputColumns(("body",), kafka=False)
    unnamed = [BatchWriter(StoreSink(SinkOptions.parse({"path": "/s"}, "batch"), columns)).batch for _ in range(2)]
    assert len({batch.sink_id for batch in unnamed}) == 2
    for batch in unnamed:
        assert batch == Batch(batch.sink_id, batch.sink_id, 0)
        assert batch.sink_id.startswith("|")
        for option, mode in (("writeId", "batch"), ("sinkId", "streaming")):
            with pytest.raises(OptionError, match=rf"option {option}: .*begins with \|"):
                SinkOptions.parse({"path": "/s", option: batch.sink_id}, mode)  # type: ignore[arg-type]
    assert BatchWriter(StoreSink(SinkOptions.parse({"path": "/s", "writeId": "w"}, "batch"), columns)).batch == Batch(
        "w", "w", 0
    )


def test_a_message_that_is_missing_or_of_another_batch_fails_the_commit(root: str) -> None:
    options = options_of(root)
    staged = stage(options, bodies("a"))
    for messages, batch_id in (
        ([staged, None], 0),
        ([staged], 1),
        ([staged, stage(options, bodies("b"), query_id="q")], 0),
    ):
        with pytest.raises(WriteFailedError):
            commit(options, *messages, batch_id=batch_id)
    assert not os.path.exists(f"{root}/commitlog")


def test_a_store_that_stays_locked_fails_the_batch_and_nothing_is_written(root: str) -> None:
    options = options_of(root, lockTimeout="50ms")
    commit(options, stage(options, bodies("a")))
    staged = stage(options, bodies("b"), batch_id=1)
    with FILES.locked(f"{root}/lock"):
        intents = os.listdir(intent_directory(root))
        with pytest.raises(SparkMqError, match=r"(?s)\[SPARK_MQ_STORE_LOCKED\] .* lockTimeout"):
            commit(options, staged, batch_id=1)
        assert os.listdir(intent_directory(root)) == intents
    assert texts(root) == ["a"]
    commit(options, staged, batch_id=1)
    assert texts(root) == ["a", "b"]


def test_two_queries_write_into_one_store_in_turn(root: str) -> None:
    options = options_of(root)
    for batch_id in range(3):
        for query in ("one", "two"):
            rows = bodies(f"{query}-{batch_id}")
            commit(options, stage(options, rows, batch_id=batch_id, sink_id=query, query_id=query), batch_id=batch_id)
    assert texts(root) == ["one-0", "two-0", "one-1", "two-1", "one-2", "two-2"]


def test_another_query_under_the_same_sink_id_is_refused_unless_it_takes_over(root: str) -> None:
    options = options_of(root, sinkId="sink")
    for batch_id in range(2):
        commit(options, stage(options, bodies(f"a{batch_id}"), batch_id=batch_id), batch_id=batch_id)
    lost = stage(options, bodies("b"), query_id="second")
    with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_SINK_TAKEN\] .*query query\b.*query second\b"):
        commit(options, lost)
    assert texts(root) == ["a0", "a1"]
    takeover = options_of(root, sinkId="sink", sinkTakeover="true")
    commit(takeover, stage(takeover, bodies("b"), query_id="second"))
    commit(options, stage(options, bodies("c"), batch_id=1, query_id="second"), batch_id=1)
    assert texts(root) == ["a0", "a1", "b", "c"]
    with pytest.raises(SparkMqError, match="SPARK_MQ_SINK_TAKEN"):
        commit(options, stage(options, bodies("a2"), batch_id=2), batch_id=2)


def test_topics_are_made_as_rows_need_them_with_so_many_queues(root: str) -> None:
    options = options_by_row(root, queueNum="3")
    commit(options, stage(options, [{"body": b"x", "topic": "T"}, {"body": b"y", "topic": "U"}] * 4))
    assert (texts(root, "T"), texts(root, "U")) == (["x"] * 4, ["y"] * 4)
    more = options_by_row(root, queueNum="5")
    commit(more, stage(more, [{"body": b"z", "topic": "U", "queue_id": 2}], batch_id=1), batch_id=1)
    with open_store(root) as store:
        assert store.queue_ids("T") == store.queue_ids("U") == [0, 1, 2]
    unasked = options_by_row(root)
    with pytest.raises(
        InvalidRowError, match=r"queue_id: 3 is no queue: topic 'U' has 3 queues \(queueNum=4 adds more\)"
    ):
        stage(unasked, [{"body": b"z", "topic": "U", "queue_id": 3}], batch_id=2)
    commit(more, stage(more, [{"body": b"z", "topic": "U", "queue_id": 3}], batch_id=2), batch_id=2)
    assert queue_counts(root) == {"T": 3, "U": 4}


def test_a_topic_that_is_made_gets_as_many_queues_as_any_task_needs(root: str) -> None:
    options = options_of(root)
    tasks = [
        stage(options, [{"body": b"x", "queue_id": queue_id}], partition=task)
        for task, queue_id in enumerate((3, 15, 9))
    ]
    commit_rows(options, tasks, 0, mirrored=True)
    assert queue_counts(root) == {"T": 16}
    with open_store(root) as store:
        assert store.queue_ids("T") == [3, 9, 15]


def test_a_topic_that_was_made_meanwhile_with_fewer_queues_is_not_grown_unasked(root: str) -> None:
    options = options_of(root)
    staged = stage(options, [{"body": b"x", "queue_id": 15}])
    commit(options, stage(options, [{"body": b"y"}], query_id="other", sink_id="other"))
    with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_TOPIC_CHANGED\] .*the topic has 8 write queues"):
        commit(options, staged)


def queue_counts(root: str) -> dict[str, int]:
    table = TopicTable.load((Path(root) / "config" / "topics.json").read_text("utf-8"))
    return {
        topic: config.write_queue_count for topic, config in table.topics.items() if not topic.startswith("rmq_sys_")
    }


def test_without_create_topic_rows_of_missing_topics_are_invalid(root: str) -> None:
    options = options_of(root)
    commit(options, stage(options, bodies("a")))
    strict = options_of(root, createTopic="false")
    commit(strict, stage(strict, bodies("b"), batch_id=1), batch_id=1)
    with pytest.raises(InvalidRowError, match="column topic: there is no topic 'New', and createTopic is false"):
        stage(options_by_row(root, createTopic="false"), [{"body": b"c", "topic": "New"}], batch_id=2)
    assert texts(root) == ["a", "b"]


def test_an_invalid_row_fails_the_task_by_partition_row_column_and_rule_and_leaves_nothing(root: str) -> None:
    options = options_of(root)
    rows = [*bodies("0", "1", "2", "3"), {"body": None}, {"body": None}, *bodies("6")]
    with pytest.raises(InvalidRowError) as caught:
        stage(options, rows, partition=5)
    text = str(pickle.loads(pickle.dumps(caught.value)))
    assert text.splitlines()[:2] == [
        "[SPARK_MQ_INVALID_ROW] partition 5: row 4, column body: it is null; and 1 more; correct or filter such rows, "
        "or put them aside with onInvalidRow=deadLetter and a deadLetterPath",
        "row 5: the same",
    ]
    assert list(list_segments(FILES, root)) == []
    assert not os.path.exists(f"{root}/commitlog")


def test_many_invalid_rows_are_counted(root: str) -> None:
    with pytest.raises(InvalidRowError, match="and 2 more rows"):
        stage_rows(
            options_of(root),
            InputColumns(("body",), kafka=False),
            Batch("s", "q", 0),
            0,
            0,
            frames_of([{"body": None}] * 6 + bodies("x") + [{"body": None}], size=100),
        )


def dead_rows(path: Path) -> list[Row]:
    return [row for file in sorted(path.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_dead_letters_appear_with_their_batch_once(root: str, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options = options_of(root, onInvalidRow="deadLetter", deadLetterPath=f"file://{dead}")
    rows: list[Row] = [
        {"body": b"a", "queue_id": 0, "note": "n0"},
        {"body": None, "queue_id": 1, "note": "n1"},
        {"body": b"c", "queue_id": 4_096, "note": "n2"},
        {"body": b"d", "queue_id": 7, "note": "n3"},
    ]
    columns = InputColumns(("body", "queue_id"), kafka=False)

    def staged(attempt: int) -> StagedRows:
        return stage_rows(options, columns, Batch("sink", "query", 0), 3, attempt, frames_of(rows, 2))

    first = staged(0)
    assert dead_rows(dead) == []
    assert [name[0] for name in os.listdir(dead)] == ["."]
    commit(options, first)
    assert texts(root) == ["a", "d"]
    expected = [
        {**rows[1], "error_column": "body", "error_rule": "it is null", "error_partition": 3, "error_row": 1},
        {
            **rows[2],
            "error_column": "queue_id",
            "error_rule": "4096 is no queue: topic 'T' gets at most 4096 (queueNum)",
            "error_partition": 3,
            "error_row": 2,
        },
    ]
    assert dead_rows(dead) == expected
    assert os.listdir(dead) == [f"{sink_digest('sink', 'query').hex()}-0-3.parquet"]

    commit(options, staged(1))  # the replay of a batch that is done
    assert dead_rows(dead) == expected
    assert len(os.listdir(dead)) == 1
    assert texts(root) == ["a", "d"]


def test_a_dead_letter_that_is_a_good_row_when_its_batch_is_repeated_counts_all_the_same(
    root: str, tmp_path: Path
) -> None:
    """Somebody has made the topic that was missing."""
    options = options_by_row(
        root, createTopic="false", onInvalidRow="deadLetter", deadLetterPath=str(tmp_path / "dead")
    )
    rows: list[Row] = [{"body": b"1", "topic": "T"}, {"body": b"2", "topic": "U"}]
    make_topic(root, "T")
    for batch_id in (0, 1):
        commit(options, stage(options, rows, batch_id=batch_id), batch_id=batch_id)
    assert [row["body"] for row in dead_rows(tmp_path / "dead")] == [b"2", b"2"]
    make_topic(root, "U")
    commit(options, stage(options, rows, batch_id=1), batch_id=1)
    assert (texts(root), texts(root, "U")) == (["1", "1"], [])
    with pytest.raises(SparkMqError, match=r"SPARK_MQ_SINK_AHEAD.* with 2 rows, .* batch 1, 3 rows"):
        commit(options, stage(options, [*rows, *rows[:1]], batch_id=1), batch_id=1)
    commit(options, stage(options, rows, batch_id=2), batch_id=2)
    assert (texts(root), texts(root, "U")) == (["1", "1", "1"], ["2"])


def make_topic(root: str, name: str) -> None:
    with open_store(root, read_only=False, create=True) as store:
        store.writer.topic_entries.make(TopicConfig(name, 1, 1))


def test_a_batch_of_dead_letters_only_counts_as_a_batch(root: str, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options = options_of(root, onInvalidRow="deadLetter", deadLetterPath=str(dead))
    rows: list[Row] = [{"body": None}]
    columns = InputColumns(("body",), kafka=False)
    frame = pa.record_batch([pa.nulls(1, pa.binary())], names=["body"])
    for attempt in range(2):
        staged = stage_rows(options, columns, Batch("sink", "query", 0), 0, attempt, iter([frame]))
        assert staged.segments == ()
        commit(options, staged)
    assert len(dead_rows(dead)) == len(rows)
    assert len(os.listdir(dead)) == 1
    commit(options, stage(options, bodies("a"), batch_id=1), batch_id=1)
    assert texts(root) == ["a"]


def test_dead_letters_of_a_batch_that_failed_are_deleted(root: str, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options = options_of(root, onInvalidRow="deadLetter", deadLetterPath=str(dead))
    commit(options, stage(options, bodies("a")))
    staged = stage(options, [*bodies("b"), {"body": None}], batch_id=1)
    assert len(os.listdir(dead)) == 1
    abort_rows(options, [staged])
    assert os.listdir(dead) == []


def test_dead_letters_of_a_first_batch_that_failed_are_deleted_before_there_is_a_store(
    root: str, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    options = options_of(root, onInvalidRow="deadLetter", deadLetterPath=str(dead))
    frame = pa.record_batch([pa.nulls(1, pa.binary())], names=["body"])
    columns = InputColumns(("body",), kafka=False)
    abort_rows(options, [stage_rows(options, columns, Batch("sink", "query", 0), 0, 0, iter([frame])), None])
    assert os.listdir(dead) == []
    assert not os.path.exists(root)


def test_a_task_that_fails_behind_its_first_rows_leaves_nothing(root: str, tmp_path: Path) -> None:
    options = options_of(root, onInvalidRow="deadLetter", deadLetterPath=str(tmp_path / "dead"))

    def frames() -> Iterator[pa.RecordBatch]:
        yield from frames_of([*bodies("a"), {"body": None}])
        raise ConnectionError("Spark is gone")

    with pytest.raises(ConnectionError, match="Spark is gone"):
        stage_rows(options, InputColumns(("body",), kafka=False), Batch("s", "q", 0), 0, 0, frames())
    assert list(list_segments(FILES, root)) == []
    assert os.listdir(tmp_path / "dead") == []


def test_a_full_disk_while_staging_is_named_and_leaves_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = options_of(root)
    monkeypatch.setattr("storage.files.file_system.LocalWriter.write", full)
    with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_STORE_NOT_WRITABLE\] .*No space left on device"):
        stage(options, bodies("a"))
    assert list(list_segments(FILES, root)) == []


def test_a_replay_of_the_batch_that_a_dead_commit_had_decided_finds_it_done(root: str) -> None:
    options = options_of(root)
    commit(options, stage(options, bodies("a")))
    staged = stage(options, bodies("b", "c"), batch_id=1)
    script = """
import pickle, sys
from spark_mq.sink.commit import commit_rows
options, staged = pickle.load(sys.stdin.buffer)
commit_rows(options, [staged], 1, mirrored=True)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps((options, staged)),
        env={**os.environ, "SPARK_MQ_FAILPOINT": "amid-slice", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    abort_rows(options, [staged])
    assert texts(root) == ["a"]
    commit(options, stage(options, bodies("b", "c"), batch_id=1), batch_id=1)
    assert texts(root) == ["a", "b", "c"]


def test_too_many_partitions_are_refused(root: str) -> None:
    with pytest.raises(WriteFailedError, match="partition 65536"):
        stage(options_of(root), bodies("a"), partition=65_536)


def test_files_of_the_sink_lie_under_its_own_directory(root: str) -> None:
    options = options_of(root)
    stage(options, bodies("a"))
    assert all(path.startswith(staged_directory(root)) for path in files_under(root))


def test_a_repeated_batch_with_other_rows_than_its_slices_in_the_log_has_a_name(root: str) -> None:
    """The store was a replica: it has the log, and no intent."""
    options = options_of(root)
    staged = stage(options, bodies("b", "c"))
    script = """
import pickle, sys
from spark_mq.sink.commit import commit_rows
options, staged = pickle.load(sys.stdin.buffer)
commit_rows(options, [staged], 0, mirrored=True)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps((options, staged)),
        env={**os.environ, "SPARK_MQ_FAILPOINT": "before-end", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    shutil.rmtree(Path(root, "spark_mq"))
    with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_SLICE_MISMATCH\] .*rows 0 to 1 of it"):
        commit(options, stage(options, bodies("b", "d")))
    commit(options, stage(options, bodies("b", "c")))
    assert texts(root) == ["b", "c"]


def test_a_commit_reads_settings_tables_and_the_place_of_the_log_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(root)
    for batch_id in range(2):
        commit(options, stage(options, bodies("a", "b"), batch_id=batch_id), batch_id=batch_id)
    staged, reads, read = stage(options, bodies("c"), batch_id=2), Counter[str](), LocalFileSystem.read_file

    def counted(self: LocalFileSystem, path: str) -> bytes | None:
        reads[path] += 1
        return read(self, path)

    monkeypatch.setattr(LocalFileSystem, "read_file", counted)
    commit(options, staged, batch_id=2)
    often = {path.removeprefix(root): count for path, count in reads.items() if count > 1 and "boot_id" not in path}
    # The mirror is asked before the batch is decided, written behind it, and its former text is kept beside it.
    assert often.pop("/config/consumerOffset.json") == 3
    # Opening finishes what an intent says, and this commit settles the last one.
    assert sum(often.pop(path) for path in [*often] if path.startswith("/spark_mq/intents/")) == 2
    assert often.pop("/abort") == 2
    # Whether the queues lie in RocksDB is asked before anything is written, and for the layout.
    assert sum(often.pop(path) for path in [*often] if path.endswith("/CURRENT")) == 4
    # Topics with batch queues refuse the store before its lock is taken.
    assert often.pop("/config/topics.json") == 2
    assert often == {}
    assert texts(root) == [*"abab", "c"]
