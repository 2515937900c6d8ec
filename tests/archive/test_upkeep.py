"""Upkeep changes files and no row that is kept; --verify names what is wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs.archive import main
from spark_mq.archive import upkeep
from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.archive.upkeep import UpkeepReport, compact, drop_old_days, parse_keep, plan_joins, replace_files, vacuum
from spark_mq.archive.verify import DOUBLED, MISSING, UNNAMED, verify
from spark_mq.conditions import OptionError
from spark_mq.source.archive_table import Place
from spark_mq.source.offsets import QueueId
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, opened, rows_of, table_rows

DAY_MS = 86_400_000
QUEUE = QueueId("Topic", "broker-a", 0)


def joined_here(joins: Any) -> Any:
    return [upkeep.write_joined(join) for join in joins]


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "broker-a")


@pytest.fixture
def table(store: StoreBuilder, tmp_path: Path) -> Path:
    """Three days of two queues, four runs a day."""
    place = tmp_path / "archive"
    for day in range(3):
        for step in range(4):
            for queue_id in (0, 1):
                for number in range(3):
                    time_ms = START_MS + day * DAY_MS + step * 3_600_000 - 40_000_000
                    store.send(
                        "Topic",
                        f"{day}/{step}/{number}",
                        queue_id=queue_id,
                        keys=f"k{day}{step}",
                        store_time_ms=time_ms,
                    )
            archived(place, path=str(store.root))
    return place


def files_of(table: Path) -> int:
    return len(opened(table).files())


def test_compaction_joins_the_files_of_a_queue_and_day_and_changes_no_row(table: Path) -> None:
    before, rows = files_of(table), table_rows(table)
    report = UpkeepReport()
    compact(opened(table), joined_here, report)
    assert (before, report.joined_files, report.into_files, files_of(table)) == (24, 24, 6, 6)
    assert table_rows(table) == rows
    assert [row["queue_offset"] for row in rows_of(archive=str(table), topic="Topic", queueId="0")] == list(range(36))
    for part in opened(table).newest(QUEUE).parts:  # type: ignore[union-attr]
        offsets = pq.read_table(table / part.path)["queue_offset"].to_pylist()
        assert offsets == sorted(offsets) == list(range(part.start, part.end))
    assert plan_joins(upkeep.lives_of(opened(table), lambda topic: True, report), opened(table).place) == []
    log = sorted((table / "_delta_log").glob("*.json"))[-1].read_text()
    assert '"dataChange":true' not in log, "a stream of Delta over the table reads nothing again"


def test_files_of_gaps_become_one_for_each_topic(tmp_path: Path) -> None:
    """A query that is planned opens each of them."""
    store, table = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10), tmp_path / "archive"
    for step in range(3):
        for number in range(20):
            for topic in ("Topic", "Other"):
                store.send(topic, f"{step}/{number}")
        while len(store.log_files) > 1:
            store.delete_oldest_log_file()
        archived(table, path=str(store.root))
    rows, before = table_rows(table), opened(table).newest(QUEUE)
    assert [file.topic for file in opened(table).gap_files()] == ["Other"] * 3 + ["Topic"] * 3
    said = UpkeepReport()
    compact(opened(table), joined_here, said, topics={"Topic"}.__contains__, dry_run=True)
    report = UpkeepReport()
    compact(opened(table), joined_here, report, topics={"Topic"}.__contains__)
    assert (report.joined_files, report.into_files) == (said.joined_files, said.into_files)
    assert [file.topic for file in opened(table).gap_files()] == ["Other"] * 3 + ["Topic"]
    after = opened(table).newest(QUEUE)
    assert before is not None
    assert after is not None
    assert after.gaps == before.gaps
    assert len(after.gaps) == 3
    assert table_rows(table) == rows
    assert verify(opened(table)) == []
    again = UpkeepReport()
    compact(opened(table), joined_here, again, topics={"Topic"}.__contains__)
    assert again.joined_files == 0


@pytest.mark.slow
def test_compaction_beside_an_archiver_loses_nothing(store: StoreBuilder, table: Path) -> None:
    def meanwhile(joins: Any) -> Any:
        store.send("Topic", "late")
        archived(table, path=str(store.root))
        return joined_here(joins)

    compact(opened(table), meanwhile, UpkeepReport())
    assert len(table_rows(table)) == 73
    assert verify(opened(table)) == []


@pytest.mark.slow
def test_of_two_compactions_the_second_changes_nothing(table: Path) -> None:
    rows = table_rows(table)

    def meanwhile(joins: Any) -> Any:
        compact(opened(table), joined_here, UpkeepReport())
        return joined_here(joins)

    report = UpkeepReport()
    compact(opened(table), meanwhile, report)
    assert (report.conflicts, report.joined_files) == (1, 0)
    assert table_rows(table) == rows
    assert files_of(table) == 6


@pytest.mark.slow
def test_a_file_that_another_process_removed_is_not_replaced(table: Path) -> None:
    """Else its rows would be there twice."""
    stale = opened(table)
    part = stale.newest(QUEUE).parts[0]  # type: ignore[union-attr]
    (written,) = upkeep.write_joined(upkeep.Join(stale.place, (part,)))
    replace_files(opened(table), [part], [], is_change=True)
    with pytest.raises(ArchiveConflictError, match="another process has removed some of the files"):
        replace_files(stale, [part], [written], is_change=False)
    assert written.path not in opened(table).files()


def test_days_that_are_older_than_a_topic_is_kept_are_dropped(store: StoreBuilder, table: Path) -> None:
    report = UpkeepReport()
    now_ms = START_MS + 3 * DAY_MS - 40_000_000
    drop_old_days(opened(table), parse_keep("Other=1d, Topic=2d", "--keep"), report, now_ms=now_ms)
    assert report.dropped_files == {"Topic": 8}
    assert report.dropped_rows == {"Topic": 24}
    assert min(row["queue_offset"] for row in table_rows(table)) == 12
    assert archived(table, path=str(store.root)).commits == 0, "how far the queues are archived stays"
    assert [row["queue_offset"] for row in rows_of(archive=str(table), topic="Topic", queueId="1")] == list(
        range(12, 36)
    )
    assert verify(opened(table)) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("orders", "expected TOPICS=TIME"),
        ("=3d", "expected TOPICS=TIME"),
        ("a(=3d", "not a regular expression"),
        ("orders=3h", "for a day at least"),
        ("orders=soon", "soon"),
    ],
)
def test_a_keep_that_makes_no_sense_is_refused(text: str, rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        parse_keep(text, "--keep")


def test_years_and_days_are_times_to_keep() -> None:
    assert [keep.time_ms // DAY_MS for keep in parse_keep("orders=400d, audit.*=10y", "--keep")] == [400, 3650]


@pytest.mark.slow
def test_vacuum_deletes_what_no_version_names_and_is_old(table: Path) -> None:
    compact(opened(table), joined_here, UpkeepReport())
    orphan = table / "topic=Topic" / "day=2023-11-14" / "orphan.parquet"
    orphan.write_bytes(b"of a killed run")
    report = UpkeepReport()
    vacuum(opened(table), upkeep.LEAST_VACUUM_MS, report)
    assert report.deleted_files == [], "too young, all of them"
    import os

    old = time.time() - 8 * 86_400
    os.utime(orphan, (old, old))
    vacuum(opened(table), upkeep.LEAST_VACUUM_MS, report, dry_run=True)
    assert [Path(path).name for path in report.deleted_files] == ["orphan.parquet"]
    assert orphan.exists()
    vacuum(opened(table), upkeep.LEAST_VACUUM_MS, report)
    assert not orphan.exists()
    assert len(table_rows(table)) == 72


# Verify


def test_a_sound_archive_has_no_findings(table: Path) -> None:
    assert verify(opened(table)) == []


def test_a_deleted_file_is_found(table: Path) -> None:
    path = opened(table).newest(QUEUE).parts[2].path  # type: ignore[union-attr]
    (table / path).unlink()
    found = verify(opened(table))
    assert [each.kind for each in found] == [MISSING, UNNAMED]
    assert all(path in each.text for each in found)


def test_a_doubled_row_is_found(table: Path) -> None:
    looked = opened(table)
    part = looked.newest(QUEUE).parts[1]  # type: ignore[union-attr]
    (written,) = upkeep.write_joined(upkeep.Join(looked.place, (part,)))
    replace_files(looked, [], [written], is_change=True)
    found = verify(opened(table))
    assert [(each.kind, each.text) for each in found] == [
        (DOUBLED, f"queue Topic/broker-a/0, incarnation 0: offset {offset} is there more than once")
        for offset in range(part.start, part.end)
    ]


def test_a_gap_that_no_one_named_is_found(table: Path) -> None:
    looked = opened(table)
    part = looked.newest(QUEUE).parts[3]  # type: ignore[union-attr]
    replace_files(looked, [part], [], is_change=True)
    (found,) = verify(opened(table))
    assert found.kind == UNNAMED
    assert f"offsets [{part.start}, {part.end}) are not there" in found.text


def test_the_end_that_is_missing_is_found(table: Path) -> None:
    looked = opened(table)
    part = looked.newest(QUEUE).parts[-1]  # type: ignore[union-attr]
    replace_files(looked, [part], [], is_change=True)
    (found,) = verify(opened(table))
    assert f"offsets [{part.start}, {part.end}) are not there" in found.text


# The command line, without Spark


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_job_looks_at_a_table_without_a_store(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = said(capsys, "--table", str(table), "--verify", "--compact", "--keep", "Topic=1d", "--dry-run")
    assert (code, told["findings"], told["joined_files"], told["into_files"]) == (0, [], 24, 6)
    assert told["dropped_rows"] == {"Topic": 72}
    assert files_of(table) == 24
    looked = opened(table)
    replace_files(looked, [looked.newest(QUEUE).parts[1]], [], is_change=True)  # type: ignore[union-attr]
    code, told = said(capsys, "--table", str(table), "--verify")
    assert (code, [each["kind"] for each in told["findings"]]) == (1, [UNNAMED])


def test_the_job_says_what_it_would_archive(
    store: StoreBuilder, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.send("Topic", "late")
    code, told = said(capsys, str(store.root), "--table", str(table), "--dry-run")
    assert (code, told["would_archive"]) == (0, {"Topic/broker-a/0": [36, 37]})


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--table", "x"], "say what to do with the table"),
        (["--table", "x", "--vacuum", "1d"], "7d at least"),
        (["store", "--table", "x", "--topics", "a", "--pattern", "b"], "one of --topics and --pattern"),
        (["--table", "x", "--verify", "--storage", "name"], "NAME=VALUE"),
        (["--table", "/nowhere/at/all", "--verify"], "there is no Delta table"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    assert rule in capsys.readouterr().err


def test_a_table_by_url_is_read_as_an_object_store_is(store: StoreBuilder, tmp_path: Path) -> None:
    """By delta-rs's own file system, which all URLs share; the files are written and read through it."""
    from spark_mq.archive.archiver import archive_once
    from spark_mq.archive.commits import open_or_make
    from spark_mq.source.archived_cluster import ArchivedCluster
    from spark_mq.source.options import SourceOptions
    from spark_mq.source.query_cluster import Piece
    from spark_mq.source.rows import RowRequest

    from .archived import in_process

    bodies = store.send_many("Topic", 5)
    (tmp_path / "by-url").mkdir()
    place = Place(f"file://{tmp_path}/by-url")
    options = SourceOptions.parse({"path": str(store.root), "topic": "Topic"}, "batch")
    looked = open_or_make(place)
    assert archive_once(options, looked, in_process).rows == {"Topic": 5}
    split = ArchivedCluster(None, looked).split(Piece(QUEUE, ((1, 4),)), RowRequest(("body",)))
    assert [row["body"].decode() for batch in split.read() for row in batch.to_pylist()] == bodies[1:4]
    assert verify(looked) == []
