"""A queue that cannot be archived is named with its reason, holds up no other, and has a way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from jobs.archive import main
from spark_mq.archive import archiver
from spark_mq.archive.archiver import ArchiveTask, QueueView, TaskResult, plan_queue, write_task
from spark_mq.archive.commits import ArchiveConflictError, open_or_make
from spark_mq.archive.upkeep import Join, replace_files, write_joined
from spark_mq.archive.verify import MISSING, UNREAD, verify
from spark_mq.conditions import ArchiveError, as_condition
from spark_mq.source.archive_table import Place, Progress, opened_parts
from spark_mq.source.offsets import QueueId
from storage.errors import CorruptRecordError
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, opened, rows_of, table_rows

QUEUE = QueueId("Topic", "broker-a", 0)
OTHER = QueueId("Other", "broker-a", 0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "_LOOK_S", 0.0)


def offsets_in(table: Path, topic: str = "Topic", incarnation: int = 0) -> list[int]:
    rows = table_rows(table)
    return [row["queue_offset"] for row in rows if (row["topic"], row["incarnation"]) == (topic, incarnation)]


def lost_tail(store: StoreBuilder, table: Path, place: Path) -> StoreBuilder:
    """A broker that came back without its last two archived messages, and has others there."""
    returned = StoreBuilder(place / "broker-a", log_file_size_bytes=4 << 10)
    for each in (store, returned):
        each.send_many("Topic", 8)
    store.send_many("Topic", 2, prefix="lost ")
    archived(table, path=str(store.root))
    for number in range(8, 14):
        returned.send("Topic", f"after {number}", store_time_ms=START_MS + 10**6 + number)
    return returned


def test_a_log_that_has_lost_archived_messages_is_refused_and_can_begin_anew(
    store: StoreBuilder, table: Path, tmp_path: Path
) -> None:
    returned = lost_tail(store, table, tmp_path / "returned")
    assert "has another record at the last archived offset" in archived(table, path=str(returned.root)).refused[QUEUE]
    dry = archived(table, path=str(returned.root), more={"begins_anew": True, "dry_run": True})
    assert (dry.refused, dry.left) == ({}, {QUEUE: (0, 14)})
    report = archived(table, path=str(returned.root), more={"begins_anew": True})
    assert (report.refused, report.new_lives, report.rows) == ({}, [(QUEUE, 1)], {"Topic": 14})
    assert offsets_in(table) == list(range(10)), "nothing archived is touched"
    assert offsets_in(table, incarnation=1) == list(range(14))
    found = rows_of(path=str(returned.root), topic="Topic", archive=str(table))
    assert [row["queue_offset"] for row in found] == list(range(14))


def test_begin_anew_changes_no_plan_that_is_not_refused() -> None:
    last = (9, (4_096, 1_000))
    for view in (
        QueueView(0, 10, None),
        QueueView(0, 20, Progress(0, 10), last, last[1]),
        QueueView(15, 20, Progress(0, 10), last, None),
    ):
        assert plan_queue(view, begins_anew=True) == plan_queue(view)
    other = QueueView(2, 20, Progress(3, 10), last, (0, 999), (0, 998))
    assert plan_queue(other).refusal
    assert plan_queue(other, begins_anew=True) == archiver.QueuePlan(4, 2, (0, 2), is_new_life=True)


def test_rows_that_the_progress_does_not_know_are_not_archived_again(
    store: StoreBuilder, table: Path, tmp_path: Path
) -> None:
    """As in a table that was made by CREATE TABLE AS SELECT: it has the rows, and no transactions."""
    store.send_many("Topic", 5)
    store.send_many("Other", 3)
    archived(table, path=str(store.root), topic="Topic")
    copy = open_or_make(Place.of(str(tmp_path / "copy")))
    source = opened(table)
    life = source.newest(QUEUE)
    assert life is not None
    copied = write_joined(Join(source.place, life.parts))
    for file in copied:
        (tmp_path / "copy" / file.path).parent.mkdir(parents=True)
        shutil.copy(table / file.path, tmp_path / "copy" / file.path)
    replace_files(copy, [], copied, is_change=True)
    report = archived(tmp_path / "copy", path=str(store.root))
    assert "the table has rows of it though by the table's log none is archived" in report.refused[QUEUE]
    assert report.rows == {"Other": 3}
    assert offsets_in(tmp_path / "copy") == list(range(5))
    report = archived(tmp_path / "copy", path=str(store.root), more={"begins_anew": True})
    assert report.new_lives == [(QUEUE, 1)]


@dataclass(frozen=True)
class Corrupt:
    """A split with a corrupt record behind its first messages."""

    inner: Any
    after: int

    @property
    def ranges(self) -> Any:
        return self.inner.ranges

    def read(self) -> Iterator[Any]:
        start = self.inner.ranges[0][0]
        if self.after:
            yield from replace(self.inner, ranges=((start, start + self.after),)).read()
        raise as_condition(CorruptRecordError("magic", 77, 1, 2))


@pytest.mark.parametrize("after", [0, 3])
def test_a_corrupt_record_holds_up_its_queue_alone(after: int, store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 25)
    store.send_many("Other", 5)

    starts: list[int] = []

    def with_corrupt(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        starts.extend(task.split.ranges[0][0] for task in tasks if task.life.topic == "Topic")
        return [
            write_task(task._replace(split=Corrupt(task.split, after)))  # type: ignore[arg-type]
            if task.life.topic == "Topic" and task.split.ranges[0][0] == starts[1]
            else write_task(task)
            for task in tasks
        ]

    report = archived(table, with_corrupt, path=str(store.root), more={"file_rows": 10})
    assert "SPARK_MQ_CORRUPT_RECORD" in report.refused[QUEUE]
    end = starts[1] + after
    assert (len(starts), report.rows) == (3, {"Topic": end, "Other": 5})
    assert opened(table).progress(QUEUE) == Progress(0, end)
    assert offsets_in(table) == list(range(end))
    assert archived(table, path=str(store.root)).rows == {"Topic": 25 - end}
    assert verify(opened(table)) == []


def without_gap_file(store: StoreBuilder, table: Path) -> str:
    """An archive of which a file is gone that must be opened: one with a gap."""
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    while len(store.log_files) < 3:
        store.send_many("Topic", 1)
    store.delete_oldest_log_file()
    before = set(opened(table).files())
    assert archived(table, path=str(store.root)).gaps
    store.send_many("Other", 3)
    archived(table, path=str(store.root))
    rows = opened(table).delta.to_pyarrow_table(columns=["gap_end"])
    assert rows["gap_end"].null_count == rows.num_rows - 1
    (path,) = (
        path
        for path in set(opened(table).files()) - before
        if "Other" not in path and (table / path).stat().st_size < 12_000 and opened_rows(table / path) == 1
    )
    (table / path).unlink()
    opened_parts.cache_clear()
    return path


def opened_rows(path: Path) -> int:
    import pyarrow.parquet as pq

    file = pq.read_table(path)
    return file.num_rows if file["gap_end"].null_count == 0 else 0


def test_a_missing_file_holds_up_its_topic_alone(store: StoreBuilder, table: Path) -> None:
    path = without_gap_file(store, table)
    assert [row["queue_offset"] for row in rows_of(path=str(store.root), topic="Other", archive=str(table))] == [
        0,
        1,
        2,
    ]
    with pytest.raises(ArchiveError, match=path):
        rows_of(path=str(store.root), topic="Topic", archive=str(table))
    store.send_many("Topic", 1)
    store.send_many("Other", 1)
    report = archived(table, path=str(store.root))
    assert report.rows == {"Other": 1}
    assert path in report.refused[QUEUE]


def test_verify_names_a_missing_gap_file_and_goes_on(store: StoreBuilder, table: Path) -> None:
    path = without_gap_file(store, table)
    found = verify(opened(table))
    assert [each.kind for each in found] == [MISSING, UNREAD]
    assert all(path in each.text for each in found)


def test_upkeep_leaves_a_topic_with_a_missing_file_and_names_it(
    store: StoreBuilder, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without_gap_file(store, table)
    assert main(["--table", str(table), "--keep", ".*=1d", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["dropped_rows"] == {"Other": 3}
    assert path in told["unread_topics"]["Topic"]
    assert offsets_in_log(table, "Other") == []


def offsets_in_log(table: Path, topic: str) -> list[str]:
    return [path for path in opened(table).files() if path.startswith(f"topic={topic}/day=2023")]


def test_a_run_that_meets_others_all_the_time_says_so(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.send_many("Topic", 5)

    def met(*given: Any) -> int:
        raise ArchiveConflictError("another one was faster")

    monkeypatch.setattr(archiver, "commit", met)
    monkeypatch.setattr(archiver, "wait_a_little", lambda tries: None)
    import jobs.archive

    monkeypatch.setattr(jobs.archive, "_with_spark", lambda task, master: lambda tasks: [task(each) for each in tasks])
    assert main([str(store.root), "--table", str(table)]) == 75
    assert "another run archives the same: run again for the rest" in capsys.readouterr().out
