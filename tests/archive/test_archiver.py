"""The archiver: every message once, also beside another archiver and after kills; messages that expired before are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from spark_mq.archive import archiver, commits
from spark_mq.archive.archiver import ArchiveTask, QueuePlan, QueueView, TaskResult, plan_queue
from spark_mq.archive.commits import ArchiveConflictError, open_or_make
from spark_mq.archive.typed import typed_place, write_typed
from spark_mq.archive.verify import verify
from spark_mq.client.errors import AccessDeniedError, BrokerUnreachableError
from spark_mq.conditions import ConvertedError, DataLossError, OptionError
from spark_mq.source.archive_table import Gap, Place, Progress
from spark_mq.source.cluster import Cluster
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.pulled_records import first_hole, holes_in
from spark_mq.source.rows import COLUMN_NAMES
from spark_mq.source.selection import open_cluster
from tests.support.fake_broker import FakeCluster
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import StoreBuilder

from .archived import archived, by_queue, in_process, opened, rows_of, table_rows

QUEUE = QueueId("Topic", "broker-a", 0)


def offsets_in(table: Path, incarnation: int = 0) -> list[int]:
    return [row["queue_offset"] for row in table_rows(table) if row["incarnation"] == incarnation]


@pytest.mark.parametrize("name", ["clean", "ipv6", "ext", "v4.9.7", "v5.5.0"])
def test_the_table_has_what_the_log_has(name: str, fixture_store: Callable[[str], Fixture], table: Path) -> None:
    """Of stores that the Apache broker wrote: every column, bodies as they are stored."""
    path = str(fixture_store(name).root)
    report = archived(table, path=path)
    log = rows_of(path=path, subscribePattern=".*", decompress="false")
    assert [{name: row[name] for name in COLUMN_NAMES} for row in table_rows(table)] == by_queue(log)
    assert sum(report.rows.values()) == len(log) > 0
    assert report.commits == 1


def test_a_second_run_archives_only_what_came_since(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    assert archived(table, path=str(store.root)).rows == {"Topic": 5}
    again = archived(table, path=str(store.root))
    assert (again.commits, again.rows) == (0, {})
    store.send_many("Topic", 3)
    assert archived(table, path=str(store.root)).rows == {"Topic": 3}
    assert offsets_in(table) == list(range(8))


def test_a_commit_holds_the_rows_and_the_progress_of_each_queue(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 7)
    store.send_many("Topic", 4, queue_id=3)
    store.send_many("Other", 2)
    archived(table, path=str(store.root))
    log = (table / "_delta_log" / "00000000000000000001.json").read_text()
    for topic, queue, end in (("Topic", 0, 7), ("Topic", 3, 4), ("Other", 0, 2)):
        assert f'{{"txn":{{"appId":"spark_mq.archive[\\"{topic}\\",\\"broker-a\\",{queue}]","version":{end}' in log
    assert log.count('"add":') == 3


def test_a_run_is_cut_into_commits_of_so_many_offsets(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 25)
    report = archived(table, path=str(store.root), more={"max_offsets": 10, "file_rows": 4})
    assert report.commits == 3
    assert offsets_in(table) == list(range(25))
    assert max(part.rows for part in opened(table).newest(QUEUE).parts) <= 4  # type: ignore[union-attr]


def test_what_comes_while_a_run_works_is_the_next_runs(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)

    def slowly(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        written = in_process(tasks)
        store.send_many("Topic", 5)
        return written

    assert archived(table, slowly, path=str(store.root)).rows == {"Topic": 5}
    assert archived(table, path=str(store.root)).rows == {"Topic": 5}
    assert offsets_in(table) == list(range(10))


# Killed and doubled runs


class Killed(BaseException):
    """As if the process had ended there."""


def test_a_run_that_is_killed_before_its_commit_leaves_nothing_that_counts(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)

    def killed(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        in_process(tasks)
        raise Killed

    with pytest.raises(Killed):
        archived(table, killed, path=str(store.root))
    assert offsets_in(table) == []
    assert list(table.rglob("*.parquet")), "the file is there, in no commit"
    archived(table, path=str(store.root))
    assert offsets_in(table) == list(range(5))


def test_a_run_that_is_killed_behind_its_commit_is_gone_on_with(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send_many("Topic", 5)

    def killed(*given: Any) -> int:
        commits.commit(*given)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(archiver, "commit", killed)
        with pytest.raises(Killed):
            archived(table, path=str(store.root))
    store.send_many("Topic", 5)
    assert archived(table, path=str(store.root)).rows == {"Topic": 5}
    assert offsets_in(table) == list(range(10))


def test_of_two_archivers_the_second_plans_again(store: StoreBuilder, table: Path) -> None:
    """The other run commits between our plan and our commit; it has seen less, so part of ours is left to be done."""
    store.send_many("Topic", 10)
    store.send_many("Topic", 10, queue_id=1)
    others = []

    def overtaken(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        written = in_process(tasks)
        if not others:
            others.append(archived(table, path=str(store.root), topic="Topic", queueId="0", more={"max_offsets": 4}))
        return written

    report = archived(table, overtaken, path=str(store.root))
    assert report.conflicts == 1
    assert others[0].rows == {"Topic": 10}
    assert report.rows == {"Topic": 10}, "queue 1 alone was left"
    rows = table_rows(table)
    assert [(row["queue_id"], row["queue_offset"]) for row in rows] == [(q, n) for q in (0, 1) for n in range(10)]


def test_archivers_of_other_queues_do_not_disturb_each_other(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 10)
    store.send_many("Other", 10)

    def beside(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        archived(table, path=str(store.root), topic="Other")
        return in_process(tasks)

    report = archived(table, beside, path=str(store.root), topic="Topic")
    assert (report.conflicts, report.rows) == (0, {"Topic": 10})
    assert len(table_rows(table)) == 20


def test_a_commit_on_an_old_look_is_refused_and_changes_nothing(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    stale = open_or_make(Place.of(str(table)))
    archived(table, path=str(store.root))
    version = opened(table).version
    with pytest.raises(ArchiveConflictError):
        commits.commit(stale, [], {QUEUE: Progress(0, 99)})
    assert (opened(table).version, opened(table).progress(QUEUE)) == (version, Progress(0, 5))


def test_a_commit_whose_answer_is_lost_counts(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    store.send_many("Topic", 5)
    real = DeltaTable.create_write_transaction

    def lost(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise OSError("the connection broke")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    report = archived(table, path=str(store.root))
    assert (report.commits, report.conflicts, report.rows) == (1, 0, {"Topic": 5})
    assert offsets_in(table) == list(range(5))


def test_the_progress_outlives_checkpoints_of_the_table(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    opened(table).delta.create_checkpoint()
    for file in (table / "_delta_log").glob("*.json"):
        file.unlink()
    assert archived(table, path=str(store.root)).commits == 0


# Gaps and lives


def test_what_expired_before_it_was_archived_is_a_named_gap(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    while len(store.log_files) < 3:
        store.send_many("Topic", 1)
    store.delete_oldest_log_file()
    report = archived(table, path=str(store.root))
    (gap,) = report.gaps
    first_left = gap.end
    assert gap == Gap(QUEUE, 0, 5, first_left)
    assert first_left > 5
    assert offsets_in(table) == [*range(5), *range(first_left, store.end("Topic"))]
    life = opened(table).newest(QUEUE)
    assert life is not None
    assert life.gaps == (gap,)
    assert archived(table, path=str(store.root)).gaps == []


def test_messages_that_expire_while_tasks_read_are_a_gap_of_the_next_plan(store: StoreBuilder, table: Path) -> None:
    while len(store.log_files) < 3:
        store.send_many("Topic", 1)
    expired = []

    def late(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        if not expired:
            expired.append(store.delete_oldest_log_file())
        try:
            return in_process(tasks)
        except ConvertedError as error:  # as it comes from Spark's tasks
            raise DataLossError(str(error)) from error

    report = archived(table, late, path=str(store.root))
    (gap,) = report.gaps
    assert gap.start == 0
    assert offsets_in(table) == list(range(gap.end, store.end("Topic")))


def without_offsets(*missing: int) -> Callable[[Sequence[ArchiveTask]], list[TaskResult]]:
    """Tasks whose broker passes over some messages, as one does that deletes their file; its minimum has not moved yet."""

    class PassesOver:
        def __init__(self, split: Any) -> None:
            self.ranges, self._split = split.ranges, split

        def read(self) -> Iterator[pa.RecordBatch]:
            for batch in self._split.read():
                yield batch.filter(pc.invert(pc.is_in(batch.column("queue_offset"), pa.array(missing, pa.int64()))))

    return lambda tasks: in_process([task._replace(split=PassesOver(task.split)) for task in tasks])  # type: ignore[arg-type]


def test_messages_that_a_broker_passes_over_are_named(store: StoreBuilder, table: Path) -> None:
    """At the front they have expired, though the minimum does not say so; behind a message there were none."""
    store.send_many("Topic", 10)
    report = archived(table, without_offsets(0, 1, 2, 6), path=str(store.root), topic="Topic")
    assert report.gaps == [Gap(QUEUE, 0, 0, 3)]
    assert report.empty_offsets == 1
    assert offsets_in(table) == [3, 4, 5, 7, 8, 9]
    life = opened(table).newest(QUEUE)
    assert life is not None
    assert life.gaps == (Gap(QUEUE, 0, 0, 3), Gap(QUEUE, 0, 6, 7, "empty"))
    assert verify(opened(table)) == []
    assert len(rows_of(archive=str(table), topic="Topic")) == 6, "an offset without a message is no loss"


def test_messages_that_a_deleting_broker_passes_over_have_expired(table: Path) -> None:
    """The last archived one was there when the run was planned, and is gone, too, when the tasks have read."""
    with FakeCluster(range(60)) as cluster:
        source = {"nameServer": cluster.address, "topic": "TopicA", "pullTimeout": "1s"}
        sent, cluster.records = cluster.records, cluster.records[:40]
        assert archived(table, **source).rows == {"TopicA": 40}
        cluster.records = sent

        def late(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
            cluster.deleted_before = 50
            return in_process(tasks)

        report = archived(table, late, **source)
    assert report.gaps == [Gap(QueueId("TopicA", "broker-a", 0), 0, 40, 50)]
    assert (report.commits, report.empty_offsets) == (1, 0)
    assert offsets_in(table) == [*range(40), *range(50, 60)]


def test_what_a_compacted_topic_lacks_has_not_expired(table: Path) -> None:
    with FakeCluster(range(60)) as cluster:
        cluster.attributes = {"cleanup.policy": "COMPACTION"}
        cluster.deleted_before = 7
        report = archived(table, nameServer=cluster.address, topic="TopicA", pullTimeout="1s")
    assert (report.gaps, report.empty_offsets) == ([], 7)


def test_a_queue_holds_up_no_other_where_its_broker_refuses_to_say_whether_the_topic_is_compacted(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send_many("Topic", 10)
    store.send_many("Other", 10)
    denied = AccessDeniedError(
        16, "GetTopicConfig on Topic is denied", "broker-a:10911", "GET_TOPIC_CONFIG", "Topic", None
    )

    def is_compacted(cluster: Cluster, queue: QueueId) -> bool:
        if queue.topic == "Topic":
            raise denied
        return False

    monkeypatch.setattr(Cluster, "is_compacted", is_compacted)
    report = archived(table, without_offsets(0, 1), path=str(store.root))
    assert list(report.refused) == [QUEUE]
    assert "GetTopicConfig on Topic is denied" in report.refused[QUEUE]
    assert [row["topic"] for row in table_rows(table)] == ["Other"] * 8
    assert verify(opened(table)) == []
    monkeypatch.undo()
    assert archived(table, without_offsets(0, 1), path=str(store.root)).rows == {"Topic": 8}
    assert verify(opened(table)) == []


def test_a_broker_that_does_not_answer_what_a_hole_is_ends_the_run(
    store: StoreBuilder, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send_many("Topic", 10)

    def is_compacted(cluster: Cluster, queue: QueueId) -> bool:
        raise BrokerUnreachableError("broker-a:10911", "Connection refused")

    monkeypatch.setattr(Cluster, "is_compacted", is_compacted)
    with pytest.raises(BrokerUnreachableError):
        archived(table, without_offsets(0, 1), path=str(store.root))
    assert table_rows(table) == []


def test_what_expired_behind_the_last_archived_message_is_named(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    while len(store.log_files) < 3:
        store.send_many("Topic", 1)
    cluster = open_cluster(SourceOptions.parse({"path": str(store.root), "topic": "Topic"}, "batch"))
    store.delete_oldest_log_file()
    cluster.refresh()
    (gap,) = archiver._judged(cluster, QUEUE, 0, [(5, 7)])
    assert gap.kind == "expired"


def test_holes_are_what_is_not_there() -> None:
    offsets = np.array([3, 4, 7])
    assert holes_in(offsets, 0, 10) == [(0, 3), (5, 7), (8, 10)]
    assert holes_in(offsets, 3, 5) == []
    assert holes_in(offsets[:0], 2, 4) == [(2, 4)]
    for start in range(10):
        for end in range(start, 10):
            assert first_hole(offsets, start, end) == next(iter(holes_in(offsets, start, end)), None)


@pytest.mark.parametrize("count", [4, 10, 25], ids=["shorter", "as long", "longer"])
def test_a_topic_that_was_made_again_is_another_incarnation(count: int, store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 10, prefix="old ")
    archived(table, path=str(store.root))
    store.delete_topic("Topic")
    store.send_many("Topic", count, prefix="new ")
    report = archived(table, path=str(store.root))
    assert report.new_lives == [(QUEUE, 1)]
    found = [(row["incarnation"], row["queue_offset"], row["body"].decode()) for row in table_rows(table)]
    assert sorted(found) == [
        *((0, n, f"old Topic/0/{n}") for n in range(10)),
        *((1, n, f"new Topic/0/{n}") for n in range(count)),
    ]
    assert opened(table).progress(QUEUE) == Progress(1, count)
    assert archived(table, path=str(store.root)).commits == 0


def test_a_store_that_is_older_than_the_archive_is_refused(store: StoreBuilder, table: Path, tmp_path: Path) -> None:
    """A copy of yesterday is no topic that was made again."""
    store.send_many("Topic", 5)
    shutil.copytree(store.root, tmp_path / "copy" / "broker-a")
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    report = archived(table, path=str(tmp_path / "copy" / "broker-a"))
    assert "not newer than the archive" in report.refused[QUEUE]
    assert report.commits == 0
    assert offsets_in(table) == list(range(10))


def test_messages_that_another_run_archived_after_our_look_are_no_new_life(store: StoreBuilder, table: Path) -> None:
    """A cluster is looked at once in a while only, so the table may know more than our look."""
    store.send_many("Topic", 5)
    options = SourceOptions.parse({"path": str(store.root), "topic": "Topic"}, "batch")
    cluster = open_cluster(options)
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    looked = opened(table)
    view = archiver._view(cluster, looked, QUEUE)
    assert (view.maximum, view.progress) == (5, Progress(0, 10))
    assert view.last is not None
    assert view.last[0] == 4, "the last one that our look knows"
    assert plan_queue(view).refusal, "refused, until a new look"
    cluster.refresh()
    assert plan_queue(archiver._view(cluster, looked, QUEUE)) == QueuePlan(0, 10)


def test_a_dry_run_makes_nothing(store: StoreBuilder, table: Path) -> None:
    store.send_many("Topic", 5)
    archived(table, path=str(store.root))
    store.send_many("Topic", 2)
    report = archived(table, path=str(store.root), more={"dry_run": True})
    assert report.left == {QUEUE: (5, 7)}
    assert offsets_in(table) == list(range(5))


LAST = (9, (4_096, 1_000))


@pytest.mark.parametrize(
    ("view", "start", "incarnation", "gap"),
    [
        (QueueView(0, 10, None), 0, 0, None),
        (QueueView(3, 10, None), 3, 0, (0, 3)),
        (QueueView(0, 20, Progress(0, 10), LAST, LAST[1]), 10, 0, None),
        (QueueView(15, 20, Progress(0, 10), LAST, None), 15, 0, (10, 15)),
        (QueueView(0, 20, Progress(0, 10), LAST, (9_000, 2_000), (8_000, 1_500)), 0, 1, None),
        (QueueView(2, 5, Progress(3, 10), LAST, None, (8_000, 1_500)), 2, 4, (0, 2)),
        (QueueView(0, 20, Progress(0, 10), LAST, (9_000, 1_000)), 10, 0, None),  # moved into tiered storage
        (QueueView(0, 0, Progress(0, 10), LAST, None, None), 0, 0, None),  # emptied: nothing to archive
    ],
)
def test_where_a_queue_goes_on(view: QueueView, start: int, incarnation: int, gap: tuple[int, int] | None) -> None:
    plan = plan_queue(view)
    assert (plan.start, plan.incarnation, plan.gap, plan.refusal) == (start, incarnation, gap, None)


def test_a_log_whose_first_record_is_older_is_no_new_life() -> None:
    assert plan_queue(QueueView(0, 5, Progress(0, 10), LAST, None, (0, 999))).refusal
    assert plan_queue(QueueView(0, 20, Progress(0, 10), LAST, (0, 999), (0, 998))).refusal
    assert not plan_queue(QueueView(0, 5, Progress(0, 10), LAST, None, (0, 1_001))).refusal, "the log began anew"


@pytest.mark.parametrize("progress", [Progress(0, 0), Progress(0, 12), Progress(7, 2**48 - 1)])
def test_progress_is_one_number(progress: Progress) -> None:
    assert Progress.decoded(progress.encoded()) == progress
    assert Progress(progress.incarnation + 1, 0).encoded() > progress.encoded()


def test_two_topics_never_share_a_typed_table() -> None:
    archive = Place.of("s3://bucket/archive")
    topics = ["orders", "%DLQ%g", "_DLQ_g", "a|b", "a_b", "25DLQ25g", "a-b"]
    places = [typed_place(archive, topic).url for topic in topics]
    assert len(set(places)) == len(topics)
    assert places[:2] == ["s3://bucket/archive-values/orders", "s3://bucket/archive-values/=25DLQ=25g"]
    assert not any("%" in place for place in places)


def test_columns_of_a_typed_table_may_be_null_and_are_no_intervals(tmp_path: Path) -> None:
    from pyspark.sql.types import ArrayType, DayTimeIntervalType, LongType, StructField, StructType

    table = open_or_make(Place.of(str(tmp_path / "archive")))
    needed = StructType([StructField("order", LongType(), nullable=False)])  # as Protobuf's `required` is
    spark: Any = None  # nothing is archived, so nothing is read
    write_typed(spark, table, "orders", None, needed)
    (column,) = (
        each for each in DeltaTable(typed_place(table.place, "orders").url).schema().fields if each.name == "order"
    )
    assert column.nullable
    waits = StructType([StructField("waits", ArrayType(DayTimeIntervalType()))])
    with pytest.raises(
        OptionError, match="field waits is array<interval day to second>, and a table of Delta has no intervals"
    ):
        write_typed(spark, table, "waits", None, waits)
    assert not Path(tmp_path, "archive-values", "waits").exists()
