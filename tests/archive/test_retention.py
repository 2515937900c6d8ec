"""What retention and the layout of files do, and what they leave alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.archive import main
from spark_mq.archive import upkeep
from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.archive.upkeep import UpkeepReport, compact, drop_old_days, parse_keep, replace_files, vacuum
from spark_mq.archive.verify import verify
from spark_mq.source.archive_files import read_rows
from spark_mq.source.archive_table import DROPPED, Part, Progress
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, opened, rows_of, table_rows

DAY_MS = 86_400_000
QUEUE = QueueId("Topic", "broker-a", 0)


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "broker-a")


def the_part(table: Path) -> Part:
    life = opened(table).newest(QUEUE)
    assert life is not None
    (part,) = life.parts
    return part


def offsets_of(table: Path, part: Part, start: int, end: int) -> list[int]:
    found = read_rows(opened(table).place, [part], start, end, ["body"])
    return [offset for rows in found for offset in rows.column("queue_offset").to_pylist()]


# Files that other tools have joined


@pytest.mark.parametrize(
    "order",
    [[(10, 20), (0, 10), (20, 30)], [(5, 15), (0, 5), (15, 30)], [(0, 10), (20, 30), (10, 20)]],
    ids=["newest first", "cut elsewhere", "last two exchanged"],
)
def test_row_groups_in_any_order_give_every_row_in_queue_order(
    order: list[tuple[int, int]], store: StoreBuilder, table: Path
) -> None:
    """delta-rs compacts the newest file first."""
    store.send_many("Topic", 30)
    archived(table, path=str(store.root))
    part = the_part(table)
    rows = pq.read_table(table / part.path)
    with pq.ParquetWriter(table / part.path, rows.schema) as file:
        for start, end in order:
            file.write_table(rows.slice(start, end - start))
    assert offsets_of(table, part, 0, 30) == list(range(30))
    assert offsets_of(table, part, 7, 23) == list(range(7, 23))


def test_row_groups_that_overlap_and_are_mixed_give_every_row_in_queue_order(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 30)
    archived(table, path=str(store.root))
    part = the_part(table)
    rows = pq.read_table(table / part.path)
    groups = [[20, 1, 3], [0, 2, 4, 5], [*range(19, 5, -1)], [*range(21, 30)]]
    with pq.ParquetWriter(table / part.path, rows.schema, write_statistics=["queue_offset"]) as file:  # type: ignore[arg-type]
        for group in groups:
            file.write_table(rows.take(pa.array(group)))
    assert offsets_of(table, part, 0, 30) == list(range(30))
    with pq.ParquetWriter(table / part.path, rows.schema, write_statistics=False) as file:
        for group in groups:
            file.write_table(rows.take(pa.array(group)))
    assert offsets_of(table, part, 2, 25) == list(range(2, 25))


# Days that are dropped


def by_days(store: StoreBuilder, table: Path, *topics: str) -> None:
    for day in range(3):
        for topic in topics:
            for number in range(3):
                store.send(topic, f"{day}/{number}", store_time_ms=START_MS + day * DAY_MS + number)
        archived(table, path=str(store.root))


def kept(table: Path, keep: str, days: int, **named: Any) -> UpkeepReport:
    report = UpkeepReport()
    now_ms = START_MS + days * DAY_MS
    drop_old_days(opened(table), parse_keep(keep, "--keep"), report, now_ms=now_ms, **named)
    return report


def test_days_are_dropped_of_the_topics_that_are_meant(
    store: StoreBuilder, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_days(store, table, "Topic", "Other")
    assert main(["--table", str(table), "--topics", "Other", "--keep", ".*=1d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped_rows"] == {"Other": 9}
    assert main(["--table", str(table), "--pattern", "No.*", "--keep", ".*=1d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped_rows"] == {}
    assert {row["topic"] for row in table_rows(table)} == {"Topic"}


def test_days_whose_commit_met_another_one_are_not_told_as_dropped(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_days(store, table, "Topic")

    def met(*given: Any, **named: Any) -> None:
        raise ArchiveConflictError("another process has removed some of the files")

    monkeypatch.setattr(upkeep, "replace_files", met)
    report = UpkeepReport()
    with pytest.raises(ArchiveConflictError):
        drop_old_days(opened(table), parse_keep("Topic=1d", "--keep"), report)
    assert (report.dropped_files, report.dropped_rows) == ({}, {})
    assert len(table_rows(table)) == 9


def test_days_are_dropped_from_the_front_as_a_log_expires(store: StoreBuilder, table: Path) -> None:
    """A clock that went back makes an old day among younger ones: without it there would be a hole."""
    for day in (2, 0, 3):
        store.send("Topic", f"day {day}", store_time_ms=START_MS + day * DAY_MS)
        archived(table, path=str(store.root))
    assert kept(table, "Topic=2d", 4).dropped_rows == {}
    assert kept(table, "Topic=2d", 5).dropped_rows == {"Topic": 2}
    assert [row["body"] for row in rows_of(archive=str(table), topic="Topic")] == [b"day 3"]
    assert verify(opened(table)) == []


def test_a_queue_whose_days_are_all_dropped_goes_on(store: StoreBuilder, table: Path) -> None:
    by_days(store, table, "Topic")
    assert kept(table, "Topic=1d", 9).dropped_rows == {"Topic": 9}
    assert kept(table, "Topic=1d", 9).dropped_rows == {}
    assert verify(opened(table)) == []
    assert archived(table, path=str(store.root)).commits == 0
    store.send("Topic", "late", store_time_ms=START_MS + 9 * DAY_MS)
    assert archived(table, path=str(store.root)).rows == {"Topic": 1}
    assert opened(table).progress(QUEUE) == Progress(0, 10)
    assert verify(opened(table)) == []
    (gap,) = opened(table).newest(QUEUE).gaps  # type: ignore[union-attr]
    assert (gap.kind, gap.start, gap.end) == (DROPPED, 0, 9)


@pytest.mark.parametrize("count", [4, 9, 25], ids=["shorter", "as long", "longer"])
def test_a_topic_whose_days_are_all_dropped_and_that_was_made_again_is_another_incarnation(
    count: int, store: StoreBuilder, table: Path
) -> None:
    by_days(store, table, "Topic")
    kept(table, "Topic=1d", 9)
    store.delete_topic("Topic")
    for number in range(count):
        store.send("Topic", f"new {number}", store_time_ms=START_MS + 9 * DAY_MS + number)
    report = archived(table, path=str(store.root))
    assert (report.refused, report.new_lives) == ({}, [(QUEUE, 1)])
    assert [row["queue_offset"] for row in table_rows(table)] == list(range(count))
    assert opened(table).progress(QUEUE) == Progress(1, count)


def test_a_file_that_queues_share_is_dropped_when_all_of_it_may_be(store: StoreBuilder, table: Path) -> None:
    """Another tool may join a day's files; in queue 1 the day lies behind a younger one."""
    for queue_id, day in ((0, 0), (1, 2), (1, 0), (0, 0)):
        store.send("Topic", f"{queue_id}/{day}", queue_id=queue_id, store_time_ms=START_MS + day * DAY_MS)
        archived(table, path=str(store.root))
    assert kept(table, "Topic=2d", 4, dry_run=True).dropped_rows == {"Topic": 2}
    opened(table).delta.optimize.compact()
    assert kept(table, "Topic=2d", 4).dropped_rows == {}
    assert kept(table, "Topic=1d", 9).dropped_rows == {"Topic": 4}
    assert verify(opened(table)) == []


def test_gaps_in_a_file_that_is_dropped_stay_named(tmp_path: Path, table: Path) -> None:
    store, now_ms = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10), current_time_ms()
    for step in range(2):
        for number in range(20):
            store.send("Topic", f"{step}/{number}", store_time_ms=now_ms + number)
        while step and len(store.log_files) > 1:
            store.delete_oldest_log_file()
        report = archived(table, path=str(store.root))
    opened(table).delta.optimize.compact()
    assert len(opened(table).files()) <= 2, "one of today, maybe one of tomorrow"
    drop_old_days(opened(table), parse_keep("Topic=1d", "--keep"), UpkeepReport(), now_ms=now_ms + 9 * DAY_MS)
    life = opened(table).newest(QUEUE)
    assert life is not None
    assert life.parts == ()
    assert {gap for gap in life.gaps if gap.kind != DROPPED} == set(report.gaps)


def test_verify_names_a_queue_that_has_lost_all_files(tmp_path: Path, table: Path) -> None:
    """By another tool: only the gap before its first message is left."""
    store = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10)
    while len(store.log_files) < 3:
        store.send("Topic", "x")
    store.delete_oldest_log_file()
    (gap,) = archived(table, path=str(store.root)).gaps
    looked = opened(table)
    replace_files(looked, list(looked.newest(QUEUE).parts), [], is_change=True)  # type: ignore[union-attr]
    (found,) = verify(opened(table))
    assert f"offsets [{gap.end}, {store.end('Topic')}) are not there, and no gap names them" in found.text


# Where files lie


@pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group", "_own", "|own"])
def test_vacuum_deletes_files_of_every_topic(topic: str, store: StoreBuilder, table: Path) -> None:
    """delta-rs and Spark take a directory whose name begins with _ for one that is not the table's."""
    for number in range(2):
        store.send(topic, f"{number}")
        archived(table, path=str(store.root), topic=topic)
    looked = opened(table)
    old_paths = looked.files()
    compact(looked, lambda joins: [upkeep.write_joined(join) for join in joins], UpkeepReport())
    looked.refresh()
    assert len(looked.files()) == 1
    orphan = table / old_paths[0].rpartition("/")[0] / "orphan.parquet"
    orphan.write_bytes(b"of a killed run")
    old = time.time() - 8 * 86_400
    os.utime(orphan, (old, old))
    report = UpkeepReport()
    vacuum(looked, upkeep.LEAST_VACUUM_MS, report)
    assert [Path(path).name for path in report.deleted_files] == ["orphan.parquet"]
    assert not orphan.exists()
