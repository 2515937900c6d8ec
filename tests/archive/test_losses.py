"""What is neither in the table nor in the log is a loss that is told; nothing is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from spark_mq.archive.upkeep import replace_files
from spark_mq.conditions import DataLossError
from spark_mq.source import archived_cluster
from spark_mq.source.archive_table import DROPPED, EMPTY, EXPIRED, Gap, Life, Part
from spark_mq.source.archived_cluster import LogSplit
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import Piece, Split
from spark_mq.source.rows import RowRequest
from spark_mq.source.selection import open_cluster
from tests.spark.in_process import bodies
from tests.support.store_builder import StoreBuilder

from .archived import archived, by_queue, opened, rows_of, splits_of
from .test_reading_on import Story

QUEUE = QueueId("Topic", "broker-a", 0)


def life_of(parts: list[tuple[int, int]], gaps: list[tuple[int, int, str]], end: int) -> Life:
    made = tuple(
        Part(f"{start}", QUEUE, 0, start, stop, date(2026, 1, 1), stop - start, 1, (0, 0), (None, None))
        for start, stop in parts
    )
    return Life(QUEUE, 0, end, made, tuple(Gap(QUEUE, 0, *gap) for gap in gaps))


@pytest.mark.parametrize(
    ("parts", "gaps", "lost"),
    [
        ([(0, 30)], [], []),
        ([(0, 10), (10, 30)], [], []),
        ([(0, 20), (5, 30)], [], []),
        ([(0, 10), (20, 30)], [(10, 20, EMPTY)], []),
        ([(0, 10), (20, 30)], [(10, 20, EXPIRED)], [(10, 20, "expired", True)]),
        ([(0, 10), (20, 30)], [(10, 20, DROPPED)], [(10, 20, "dropped", True)]),
        ([(0, 30)], [(10, 12, EXPIRED)], [(10, 12, "expired", True)]),
        ([(0, 10), (20, 30)], [], [(10, 20, "missing", False)]),
        ([(0, 10), (20, 30)], [(12, 15, EMPTY)], [(10, 12, "missing", False), (15, 20, "missing", False)]),
        ([(4, 30)], [], [(2, 4, "older", False)]),
        ([(0, 20)], [], [(20, 25, "missing", False)]),
        ([], [], [(2, 25, "older", False)]),
        ([(0, 20)], [(20, 30, EMPTY)], []),
    ],
)
def test_an_offset_is_in_a_part_or_in_a_gap_or_it_is_lost(
    parts: list[tuple[int, int]], gaps: list[tuple[int, int, str]], lost: list[tuple[int, int, str, bool]]
) -> None:
    found = life_of(parts, gaps, 30).losses_between(2, 25)
    assert [(each.start, each.end, each.is_named) for each in found] == [
        (low, high, named) for low, high, _, named in lost
    ]
    assert all(word in each.why for each, (_, _, word, _) in zip(found, lost, strict=True))


def test_what_lies_behind_the_archives_end_expired_before_it_was_archived() -> None:
    (loss,) = life_of([(0, 10)], [], 10).losses_between(5, 20)
    assert str(loss) == "queue Topic/broker-a/0: offsets [10, 20) expired before they were archived"


def expire(store: StoreBuilder) -> None:
    while len(store.log_files) > 1:
        store.delete_oldest_log_file()


def rows_in(splits: Sequence[Split]) -> list[str]:
    return bodies(by_queue([row for split in splits for batch in split.read() for row in batch.to_pylist()]))


def test_a_hole_that_no_gap_names_is_loss_for_a_query(tmp_path: Path) -> None:
    story = Story(tmp_path)
    looked = opened(story.table)
    life = looked.newest(QUEUE)
    assert life is not None
    part = life.parts[0]
    later = life.parts[1]
    replace_files(looked, [later], [], is_change=True)
    with pytest.raises(DataLossError, match=rf"offsets \[{part.end}, \d+\) are missing in the archive"):
        rows_of(**story.options)


def test_the_fallback_to_the_archive_tells_a_gap(tmp_path: Path) -> None:
    """Planned in the log, then expired; by the time the task reads, the archiver has named a gap."""
    story = Story(tmp_path)
    splits = [split for split in splits_of(**story.options) if isinstance(split, LogSplit)]
    tolerant = [split for split in splits_of(**story.options, failOnDataLoss="false") if isinstance(split, LogSplit)]
    for number in range(40):
        story.send(0, f"unarchived {number}")
    expire(story.store)
    report = archived(story.table, path=str(story.store.root))
    gap = next(gap for gap in report.gaps if gap.queue == QUEUE)
    of_queue = next(split for split in splits if split.queue == QUEUE)
    with pytest.raises(DataLossError, match=rf"\[{gap.start}, {of_queue.ranges[-1][1]}\) expired before"):
        rows_in([of_queue])
    with pytest.warns(RuntimeWarning, match="expired before they were archived"):
        found = rows_in([split for split in tolerant if split.queue == QUEUE])
    start = of_queue.ranges[0][0]
    assert found == story.sent[0][start : gap.start]


def test_the_fallback_reads_no_other_incarnation(tmp_path: Path) -> None:
    story = Story(tmp_path, archives_all=True)
    split = next(split for split in splits_of(**story.options) if isinstance(split, LogSplit))
    gone = replace(split, inner=Breaking(split.inner, split.ranges, split.inner.request))
    found = [row for batch in gone.read() for row in batch.to_pylist()]
    assert len(found) == split.ranges[-1][1] - split.ranges[0][0], "the rest by the table"
    with pytest.raises(DataLossError, match="gone"):
        list(replace(gone, incarnation=1).read())


def test_what_was_archived_after_the_plan_is_read_from_the_table(tmp_path: Path) -> None:
    """Also of a queue of which nothing was archived when the query was planned."""
    store, table = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10), str(tmp_path / "archive")
    store.send_many("Other", 1)
    archived(table, path=str(store.root))
    sent = store.send_many("Topic", 40)
    splits = splits_of(path=str(store.root), topic="Topic", archive=table)
    archived(table, path=str(store.root))
    expire(store)
    assert rows_in(splits) == sent


@pytest.mark.parametrize("columns", [{}, {"columns": "body"}, {"columns": "kafka"}, {"tags": "odd"}], ids=str)
def test_a_file_that_expires_behind_the_first_batch_is_read_from_the_table(
    columns: dict[str, str], tmp_path: Path
) -> None:
    story = Story(tmp_path, archives_all=True)
    expected = rows_of(**story.options, **columns)
    splits = splits_of(**story.options, **columns)
    found = []
    for split in splits:
        if isinstance(split, LogSplit):
            split = replace(split, inner=Breaking(split.inner, split.inner.ranges, split.inner.request))
        found += [row for batch in split.read() for row in batch.to_pylist()]
    assert found == expected


@dataclass(frozen=True)
class Breaking:
    """A split whose messages behind the first three are gone."""

    inner: Any
    ranges: tuple[tuple[int, int], ...]
    request: RowRequest

    @property
    def queue(self) -> QueueId:
        queue: QueueId = self.inner.queue
        return queue

    def read(self) -> Iterator[Any]:
        for batch in replace(self.inner, ranges=self.ranges, request=self.request).read():
            yield batch.slice(0, 3)
            raise DataLossError("gone")


def test_a_border_that_moves_while_a_query_is_planned_hides_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    parsed = SourceOptions.parse(story.options, "batch")
    cluster = open_cluster(parsed)
    assert isinstance(cluster, archived_cluster.ArchivedCluster)
    minimum = cluster._inner.bounds(QUEUE)[0]
    for number in range(40):
        story.send(0, f"unarchived {number}")
    expire(story.store)
    cluster.refresh()
    assert cluster._inner.bounds(QUEUE)[0] > 30
    with pytest.raises(DataLossError, match=r"offsets \[20, 30\) expired before they were archived"):
        cluster.split(Piece(QUEUE, ((minimum, 30),)), RowRequest(("body",)))


# Logs that are not the archive's


def test_a_log_with_other_records_is_loss_for_a_query(tmp_path: Path) -> None:
    story = Story(tmp_path, archives_all=True)
    story.store.delete_topic("Topic")
    sent = story.store.send_many("Topic", 40, prefix="new ")
    with pytest.raises(DataLossError, match="another record than the archived one stands at offset 29"):
        rows_of(**story.options, queueId="0")
    with pytest.warns(RuntimeWarning, match="another record than the archived one"):
        found = rows_of(**story.options, queueId="0", failOnDataLoss="false")
    assert bodies(found) == sent
