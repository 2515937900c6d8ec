"""Archived messages are put back once each, whatever kills the run, and the audit says what went where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.restore import COLUMNS
from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.archive.restore import (
    RestoreAudit,
    RestorePlan,
    RestoreRange,
    one_a_queue,
    read_options,
    restore_once,
    target_of,
    without,
)
from spark_mq.archive.upkeep import UpkeepReport, drop_old_days, parse_keep, replace_files
from spark_mq.conditions import ArchiveError, DataLossError
from spark_mq.source.archive_table import Place
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from storage.files.local_file_system import LocalFileSystem
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


def whole(table: Path, **window: str) -> SourceOptions:
    return SourceOptions.parse(
        {"archive": str(table), "topic": "Topic", "startingOffsetsByTimestampStrategy": "latest", **window}, "batch"
    )


def restored(table: Path, target: Target, *, dry_run: bool = False, **window: str) -> Any:
    audit = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    return restore_once(whole(table, **window), opened(table), audit, "somewhere Topic", target.write, dry_run=dry_run)


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
    RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic").plan(plan)
    report = restored(table, target, **window)
    assert report.finished == 1
    assert target.bodies == numbers(*range(8))


def ranges_of(*bounds: tuple[int, int]) -> tuple[RestoreRange, ...]:
    return tuple(RestoreRange(QUEUE, 0, *each) for each in bounds)


@pytest.mark.parametrize("is_first", [True, False], ids=["the table is not there yet", "the table is there"])
def test_of_two_runs_that_plan_at_once_the_second_does_nothing(is_first: bool, table: Path) -> None:
    place = Place.of(str(table) + "-audit")
    first, second = (RestoreAudit(place, "Topic", "somewhere Topic") for _ in range(2))
    if not is_first:
        RestoreAudit(place, "Topic", "elsewhere Topic").plan(RestorePlan("p0", "Topic", "elsewhere Topic", ()))
    for audit in (first, second):
        assert audit.plans(makes=True) == ([], [])
    plan = RestorePlan("p1", "Topic", "somewhere Topic", ranges_of((0, 4)))
    first.plan(plan)
    with pytest.raises(ArchiveConflictError):
        second.plan(plan._replace(plan_id="p2"))
    assert [each.plan_id for each in second.plans()[0]] == ["p1"]


def test_two_first_restores_at_once_put_each_message_back_once(table: Path, target: Target) -> None:
    """The other one plans all between our look at the audit, which there was none of, and our plan."""
    other = Target(table)
    real = RestoreAudit.plan

    def overtaken(self: RestoreAudit, plan: RestorePlan) -> None:
        RestoreAudit.plan = real  # type: ignore[method-assign]
        restored(table, other)
        real(self, plan)

    RestoreAudit.plan = overtaken  # type: ignore[method-assign]
    report = restored(table, target)
    assert report.conflict is not None
    assert (report.ranges, target.bodies) == ([], [])
    assert other.bodies == numbers(*range(20))


def test_a_plan_that_is_made_on_an_older_look_is_refused_though_ours_came_between(table: Path) -> None:
    audit = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    audit.plans(makes=True)
    plan = RestorePlan("p1", "Topic", "somewhere Topic", ranges_of((0, 4)))
    audit.plan(plan)
    audit.note_restored(plan)
    audit.plans()
    other = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    other.plan(plan._replace(plan_id="p2", ranges=ranges_of((4, 8))))
    with pytest.raises(ArchiveConflictError):
        audit.plan(plan._replace(plan_id="p3", ranges=ranges_of((4, 8))))


def test_another_plan_between_a_write_and_its_note_is_no_conflict(table: Path, target: Target) -> None:
    place = Place.of(str(table) + "-audit")

    def write(plan: RestorePlan) -> None:
        target.write(plan)
        RestoreAudit(place, "Topic", "somewhere Topic").plan(
            RestorePlan("other", "Topic", "somewhere Topic", ranges_of((40, 50)))
        )

    audit = RestoreAudit(place, "Topic", "somewhere Topic")
    report = restore_once(whole(table), opened(table), audit, "somewhere Topic", write)
    assert (len(report.ranges), report.conflict) == (2, None)
    assert len(audit.plans()[1]) == 1


def test_a_plan_is_on_the_disk_before_its_write(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs syncs nothing; a power loss must not take a plan whose messages stay."""
    synced: set[str] = set()
    real = LocalFileSystem.sync_all
    monkeypatch.setattr(
        LocalFileSystem, "sync_all", lambda self, paths: (synced.update(paths := [*paths]), real(self, paths))
    )
    place = Path(str(table) + "-audit")

    def write(plan: RestorePlan) -> None:
        there = {str(path) for path in place.rglob("*") if path.suffix in (".json", ".parquet")}
        assert len(there) == 3, "the table's first version, the plan's, and its rows"
        assert there | {str(place), str(place / "_delta_log"), str(place.parent)} <= synced

    restore_once(whole(table), opened(table), RestoreAudit(Place.of(str(place)), "Topic", "t"), "t", write)


def test_a_plan_is_finished_as_it_was_planned(table: Path) -> None:
    place, seen = Place.of(str(table) + "-audit"), []

    def write(plan: RestorePlan) -> None:
        seen.append(plan.settings)
        if len(seen) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore_once(whole(table), opened(table), RestoreAudit(place, "Topic", "t"), "t", write, settings=["anyQueue"])
    restore_once(whole(table), opened(table), RestoreAudit(place, "Topic", "t"), "t", write)
    assert seen == ["anyQueue", "anyQueue"]


def test_a_target_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    ways = [
        f"{tmp_path}/store",
        f"{tmp_path}/store/",
        f"{tmp_path}//store",
        f"file://{tmp_path}/store",
        f"{tmp_path}/link",
    ]
    assert {target_of({"path": way}, "T") for way in ways} == {f"{tmp_path}/store T"}
    assert target_of({"nameServer": "b:1;a:1"}, "T") == target_of({"nameServer": "a:1; b:1"}, "T") == "a:1;b:1 T"


# Plans that the table cannot serve any more


def left_plan(table: Path, *bounds: tuple[int, int]) -> None:
    audit = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    audit.plans(makes=True)
    audit.plan(RestorePlan("p1", "Topic", "somewhere Topic", ranges_of(*bounds)))


def test_a_left_plan_of_another_incarnation_is_named_and_does_not_hold_up_the_rest(
    tmp_path: Path, table: Path, target: Target
) -> None:
    left_plan(table, (0, 10))
    store = StoreBuilder(tmp_path / "anew" / "broker-a")
    for number in range(4):
        store.send("Topic", f"new {number}", store_time_ms=START_MS + 10**9 + number)
    archived(table, path=str(store.root))
    report = restored(table, target)
    assert report.finished == 0
    assert "incarnation 0 of queue Topic/broker-a/0, which is not the newest" in report.stuck["p1"]
    assert [body for body in target.bodies if body.startswith("new")] == [f"new {number}" for number in range(4)]


def test_a_left_plan_whose_days_were_dropped_is_not_told_as_restored(table: Path, target: Target) -> None:
    left_plan(table, (0, 10))
    drop_old_days(opened(table), parse_keep("Topic=1d", "--keep"), UpkeepReport())
    report = restored(table, target)
    assert (report.finished, target.bodies) == (0, [])
    assert "were dropped from the archive" in report.stuck["p1"]


def test_a_window_over_a_named_gap_is_put_back_without_it(tmp_path: Path) -> None:
    store, table = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10), tmp_path / "archive"
    sent = store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    sent += store.send_many("Topic", 30)
    while len(store.log_files) > 1:
        store.delete_oldest_log_file()
    (gap,) = archived(table, path=str(store.root)).gaps
    target = Target(table)
    report = restored(table, target)
    assert [(loss.start, loss.end) for loss in report.losses] == [(gap.start, gap.end)]
    assert sorted([*target.bodies]) == sorted(sent[: gap.start] + sent[gap.end :])
    assert restored(table, target).ranges == []


def test_a_window_over_a_hole_without_a_name_is_refused(tmp_path: Path) -> None:
    store, table = StoreBuilder(tmp_path / "broker-a"), tmp_path / "archive"
    for _ in range(3):
        store.send_many("Topic", 5)
        archived(table, path=str(store.root))
    looked = opened(table)
    life = looked.newest(QUEUE)
    assert life is not None
    replace_files(looked, [life.parts[1]], [], is_change=True)
    target = Target(table)
    with pytest.raises(DataLossError, match=r"offsets \[5, 10\) are missing in the archive, and no gap names them"):
        restored(table, target)
    assert target.bodies == []


def test_what_is_left_of_a_range() -> None:
    window = RestoreRange(QUEUE, 0, 10, 20)
    others = [(0, 5), (12, 14), (13, 15), (18, 30)]
    left = without(window, [RestoreRange(QUEUE, 0, start, end) for start, end in others])
    assert [(each.start, each.end) for each in left] == [(10, 12), (15, 18)]
    assert without(window, [RestoreRange(QUEUE, 1, 0, 30)]) == [window], "another life"
    assert [[each.start for each in group] for group in one_a_queue(left)] == [[10], [15]]


def test_the_audit_is_read_without_threads_of_arrow(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's threads may hold what they read through files of Python for a while; one that lets go of it as the job ends aborts it."""

    def scan(*given: Any, **named: Any) -> None:
        raise AssertionError("a scan by Arrow")

    monkeypatch.setattr(DeltaTable, "to_pyarrow_dataset", scan)
    target = Target(table)
    audit = RestoreAudit(Place.of(str(table) + "-audit"), "Topic", "somewhere Topic")
    done = restore_once(whole(table), opened(table), audit, "somewhere Topic", target.write)
    assert len(done.ranges) == 2
    assert [len(plans) for plans in audit.plans()] == [0, 1]


def test_targets_of_any_name_have_their_own_plans(tmp_path: Path) -> None:
    place, names = Place.of(str(tmp_path / "audit")), ["it's T", "it''s T", 'a "b" \\ T', "c' OR 'd' = 'd T"]
    for name in names:
        ranges = (RestoreRange(QUEUE, 0, 0, 5),)
        RestoreAudit(place, "Topic", name).plan(RestorePlan(f"of {name}", "Topic", name, ranges))
    for name in names:
        assert [plan.plan_id for plan in RestoreAudit(place, "Topic", name).plans()[0]] == [f"of {name}"]
    assert RestoreAudit(place, "Topic", "another T").plans() == ([], [])


def test_an_audit_whose_file_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    audit = RestoreAudit(Place.of(str(tmp_path / "audit")), "Topic", "somewhere Topic")
    audit.plan(RestorePlan("p0", "Topic", "somewhere Topic", (RestoreRange(QUEUE, 0, 0, 5),)))
    (file,) = (tmp_path / "audit").glob("*.parquet")
    file.unlink()
    with pytest.raises(ArchiveError, match=file.name):
        audit.plans()
