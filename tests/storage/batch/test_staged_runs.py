"""Commits are made of the half messages that were staged; those that an earlier version staged as records are taken as they are."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage import open_store
from storage.batch import staged_segment
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import (
    SegmentPool,
    SegmentReader,
    SegmentWriter,
    StagedBatch,
    StagedSegment,
    open_runs,
)
from storage.errors import CorruptRecordError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import RecordRun, encode_parts
from storage.put.half_ends import with_states
from storage.put.settings import put_settings
from storage.rules.half_messages import TransactionRules
from storage.rules.message_rows import MessageRows, Prepared
from storage.rules.row_rules import MessageRules
from storage.settings.load import load_config

FILES = LocalFileSystem()
SINK = "00" * 8
NOW_MS = 1_700_000_000_000
STATES = ("commit", "rollback", "commit", "unknown", "commit")
TOPICS = {"T": 3}


def prepared(count: int, first: int = 0, *, state: str | None = None) -> Prepared:
    rows = pa.record_batch(
        {
            "body": [f"{first + number}" * (number % 7 + 1) for number in range(count)],
            "keys": [f"k{number}" for number in range(count)],
            "transaction_state": [state or STATES[number % len(STATES)] for number in range(count)],
        }
    )
    rules = MessageRules(topic="T", topics={}, queue_count=3, transaction=TransactionRules("group"))
    return MessageRows(rules, bytes([first]) * 10).prepare(rows, NOW_MS)


def stage(root: Path, tasks: list[Prepared], *, as_records: Collection[int] = ()) -> list[StagedSegment]:
    """Halves of all tasks, then their commits, of some tasks as records."""
    settings = put_settings(str(root), load_config(str(root), read_bytes=FILES.read_file), FILES)
    found: list[list[StagedSegment]] = [[], []]
    for number, rows in enumerate(tasks):
        assert rows.commits is not None
        writers = [SegmentWriter(FILES, str(root), SINK, f"0-{number}-{kind}") for kind in ("halves", "commits")]
        halves = with_states(encode_parts(rows.messages, settings.host), rows.commits.states)
        writers[0].append(halves)
        if number in as_records:
            writers[1].append(encode_parts(rows.commits.messages, settings.host))
        else:
            writers[1].append_commits(halves, settings.columns_of(rows.commits.messages))
        for kind, writer in enumerate(writers):
            found[kind] += [segment] if (segment := writer.finish()) else []
    return found[0] + found[1]


def logged(root: Path, tasks: list[Prepared], *, as_records: Collection[int] = ()) -> bytes:
    root.mkdir()
    segments = stage(root, tasks, as_records=as_records)
    assert all((segment.data_size_bytes > 0) == segment.has_records for segment in segments)
    with open_store(root, read_only=False, create=True, clock=lambda: NOW_MS) as store:
        commit_batch(store.writer, StagedBatch(Batch("sink", "query", 0), segments, TOPICS))
        return store.log.bytes_at(0, store.log_end)


def test_they_are_the_records_that_were_staged_before(tmp_path: Path) -> None:
    tasks = [prepared(40), prepared(5, 1, state="rollback"), prepared(23, 2), prepared(1, 3, state="commit")]
    made = logged(tmp_path / "made", tasks)
    assert made == logged(tmp_path / "staged", tasks, as_records=range(4))
    assert made.count(b"T") > 80


def test_a_segment_of_commits_has_the_keys_of_the_first_and_the_last(tmp_path: Path) -> None:
    """By these the end of a batch is told."""
    of_records, made = (
        stage(tmp_path / name, [prepared(23)], as_records=as_records)[1]
        for name, as_records in (("records", [0]), ("made", []))
    )
    assert of_records.last_unique_key != of_records.first_unique_key
    assert made == of_records._replace(data_size_bytes=0, data_crc=0, has_records=False)


@pytest.mark.parametrize("kept", [[2, 3], [0, 3], [0, 2, 3]], ids=["none", "another task's", "one task's"])
def test_commits_without_their_halves_are_refused(tmp_path: Path, kept: list[int]) -> None:
    segments = stage(tmp_path, [prepared(40), prepared(23, 1)])
    with ExitStack() as resources, pytest.raises(CorruptRecordError, match=r"the commits of \d+ halves of the batch"):
        open_runs(FILES, str(tmp_path), [segments[number] for number in kept], resources)


@pytest.mark.parametrize("as_records", [{0}, {1}, {2}])
def test_tasks_of_two_versions_stage_one_batch(tmp_path: Path, as_records: set[int]) -> None:
    """Some have staged their commits as records; the others' are made of their own halves."""
    tasks = [prepared(40), prepared(40, 1), prepared(40, 2)]
    found = []
    for name, of_tasks in (("records", {0, 1, 2}), ("mixed", as_records)):
        segments = stage(tmp_path / name, tasks, as_records=of_tasks)
        assert [segment.has_records for segment in segments[3:]] == [number in of_tasks for number in range(3)]
        with ExitStack() as resources:
            runs = open_runs(FILES, str(tmp_path / name), segments, resources).runs
            found.append([bytes_of(run) for run in runs])
    assert found[0] == found[1]


def bytes_of(run: RecordRun) -> bytes:
    into = np.empty(int(run.columns.sizes_bytes.sum()), np.uint8)
    run.read(0, len(into), into)
    return into.tobytes()


def test_commits_of_other_sizes_than_their_halves_are_refused(tmp_path: Path) -> None:
    """As many, but another task's."""
    segments = stage(tmp_path, [prepared(40), prepared(40, 11)])
    with ExitStack() as resources, pytest.raises(CorruptRecordError, match="commits of another size"):
        open_runs(FILES, str(tmp_path), [segments[0], segments[3]], resources)


def test_halves_that_have_changed_are_noticed_when_their_commits_are_read(tmp_path: Path) -> None:
    segments = stage(tmp_path, [prepared(40)])
    with ExitStack() as resources:
        runs = open_runs(FILES, str(tmp_path), segments, resources).runs
        path = tmp_path / "spark_mq" / "staged" / segments[0].path
        with path.open("r+b") as file:
            file.seek(segments[0].data_size_bytes - 1)
            file.write(b"\x00")
        into = np.empty(int(runs[1].columns.sizes_bytes.sum()), np.uint8)
        with pytest.raises(CorruptRecordError, match="data CRC"):
            runs[1].read(0, len(into), into)


@pytest.mark.parametrize("many_bytes", [0, 1 << 30])
@pytest.mark.parametrize("number", [0, 1])
def test_each_segment_is_compared_with_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, many_bytes: int
) -> None:
    monkeypatch.setattr(staged_segment, "_MANY_BYTES", many_bytes)
    segments = stage(tmp_path, [prepared(40), prepared(23, 1)])
    with ExitStack() as resources:
        staged = open_runs(FILES, str(tmp_path), segments, resources)
        staged.verify_data()
        path = tmp_path / "spark_mq" / "staged" / segments[number].path
        with path.open("r+b") as file:
            file.write(b"\xff")
        with pytest.raises(CorruptRecordError, match="data CRC"):
            staged.verify_data()


def test_who_writes_little_takes_the_shortest_file_of_the_pool(tmp_path: Path) -> None:
    """Else the records of the next task would find none of their size."""
    settings = put_settings(str(tmp_path), load_config(str(tmp_path), read_bytes=FILES.read_file), FILES)
    rows = prepared(400)
    used = stage(tmp_path, [rows, prepared(40, 1)], as_records=[0, 1])
    pool = SegmentPool(FILES, str(tmp_path))
    for segment in used:
        pool.give_back(segment.path)
    lengths = sorted(path.stat().st_size for path in Path(pool.directory).iterdir())
    assert rows.commits is not None
    halves = with_states(encode_parts(rows.messages, settings.host), rows.commits.states)
    writer = SegmentWriter(FILES, str(tmp_path), SINK, "1-0-commits")
    writer.append_commits(halves, settings.columns_of(rows.commits.messages))
    assert sorted(path.stat().st_size for path in Path(pool.directory).iterdir()) == lengths[1:]
    segment = writer.finish()
    assert segment is not None
    with SegmentReader(FILES, str(tmp_path), segment) as reader:
        assert reader.columns.row_count == segment.rows == 240
