"""Archived messages are put back once each, whatever kills the run, and the audit says what went where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.restore import COLUMNS
from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.archive.restore import (
    PLANNED,
    RestoreAudit,
    RestorePlan,
    RestoreRange,
    one_a_queue,
    read_options,
    restore_once,
    without,
)
from spark_mq.source.archive_table import Place
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, opened, rows_of

QUEUE = QueueId("Topic", "broker-a", 0)


class Target:
    """A sink that knows its writes by name, as a store does."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.writes: dict[str, list[str]] = {}
        self.dies = False

    def write(self, plan: RestorePlan) -> None:
        rows = rows_of(**read_options(Place.of(str(self.table)), plan), columns=COLUMNS)
        self.writes.setdefault(plan.plan_id, [row["body"].decode() for row in rows])
        if self.dies:
            raise KeyboardInterrupt

    @property
    def bodies(self) -> list[str]:
        return sorted(body for bodies in self.writes.values() for body in bodies)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    store = StoreBuilder(tmp_path / "broker-a")
    for number in range(20):
        store.send("Topic", f"{number:02}", queue_id=number % 2)
    archived(tmp_path / "archive", path=str(store.root))
    return tmp_path / "archive"


@pytest.fixture
def target(table: Path) -> Target:
    return Target(table)


def restored(table: Path, target: Target, *, dry_run: bool = False, **window: str) -> Any:
    options = SourceOptions.parse(
        {"archive": str(table), "topic": "Topic", "startingOffsetsByTimestampStrategy": "latest", **window}, "batch"
    )
    audit = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    return restore_once(options, opened(table), audit, "somewhere Topic", target.write, dry_run=dry_run)


def numbers(*which: int) -> list[str]:
    return [f"{number:02}" for number in which]


def test_a_window_is_put_back_once(table: Path, target: Target) -> None:
    window = {"startingTimestamp": str(START_MS + 5_000), "endingTimestamp": str(START_MS + 9_000)}
    assert restored(table, target, dry_run=True, **window).ranges
    assert target.bodies == []
    assert len(restored(table, target, **window).ranges) == 2
    assert target.bodies == numbers(4, 5, 6, 7)
    assert restored(table, target, **window).ranges == []
    restored(table, target)
    assert target.bodies == numbers(*range(20)), "the rest, and nothing twice"


def test_a_run_that_dies_behind_its_write_is_finished_by_the_next(table: Path, target: Target) -> None:
    target.dies = True
    with pytest.raises(KeyboardInterrupt):
        restored(table, target)
    target.dies = False
    report = restored(table, target)
    assert (report.finished, report.ranges) == (1, [])
    assert target.bodies == numbers(*range(20))


def test_a_run_that_dies_before_its_write_is_finished_by_the_next(table: Path, target: Target) -> None:
    window = {"endingTimestamp": str(START_MS + 9_000)}
    plan = RestorePlan("restore-1", "Topic", "somewhere Topic", (RestoreRange(QUEUE, 0, 0, 4),))
    RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic").note(plan, PLANNED)
    report = restored(table, target, **window)
    assert report.finished == 1
    assert target.bodies == numbers(*range(8))


def test_of_two_runs_that_plan_at_once_the_second_does_nothing(table: Path, target: Target) -> None:
    place = Place.of(str(table) + "-audit")
    first, second = (RestoreAudit(place, "Topic", "somewhere Topic") for _ in range(2))
    RestoreAudit(place, "Topic", "elsewhere Topic").note(RestorePlan("p0", "Topic", "elsewhere Topic", ()), PLANNED)
    for audit in (first, second):
        audit.plans()
    plan = RestorePlan("p1", "Topic", "somewhere Topic", (RestoreRange(QUEUE, 0, 0, 4),))
    first.note(plan, PLANNED)
    with pytest.raises(ArchiveConflictError):
        second.note(plan._replace(plan_id="p2"), PLANNED)
    assert [each.plan_id for each in second.plans()[0]] == ["p1"]


def test_what_is_left_of_a_range() -> None:
    window = RestoreRange(QUEUE, 0, 10, 20)
    others = [(0, 5), (12, 14), (13, 15), (18, 30)]
    left = without(window, [RestoreRange(QUEUE, 0, start, end) for start, end in others])
    assert [(each.start, each.end) for each in left] == [(10, 12), (15, 18)]
    assert without(window, [RestoreRange(QUEUE, 1, 0, 30)]) == [window], "another life"
    assert [[each.start for each in group] for group in one_a_queue(left)] == [[10], [15]]
