"""One run of the archiver: what is not in the table yet, round by round, each round one commit.

A round plans from the table and from the brokers' data, lets Spark's tasks write files, and commits them with the progress of their
queues (`commits.py`). Nothing else keeps state: a run after a crash, on another machine or after years plans from the same two.

    killed before the commit     files without a commit; the next run writes the same offsets into other files
    killed after it              the next run goes on behind it
    two runs at once             the one that commits a queue's offsets second changes nothing, and plans again from the table

A queue is archived from its progress on. Where its log begins behind that, the offsets between are a named gap, a row of the table in
the same commit. Where another record stands at the place of the last archived one, the topic was deleted and made again: it goes on as
the next incarnation, from its own beginning. That is said only where the queue's first record was stored later than the last archived
one; else the log is older than the archive (a copy, a replica that is behind), or has lost messages that are archived, and the queue
is refused. So is one with rows in the table behind its progress. `begins_anew` archives such queues as their next
incarnations. A queue holds up no other if it is refused, if a record of its log is corrupt, or if its broker refuses to say whether its
topic is compacted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_mq.archive.commits import ArchiveConflictError, commit, wait_a_little
from spark_mq.archive.data_files import LifeOfQueue, WrittenFile, write_gaps, write_messages
from spark_mq.conditions import ArchiveError, DataLossError, SparkMqError
from spark_mq.source.archive_table import EMPTY, EXPIRED, ArchiveTable, Gap, Place, Progress, last_place
from spark_mq.source.offsets import QueueId, RecordPlace, has_expired
from spark_mq.source.options import SourceOptions
from spark_mq.source.pulled_records import holes_in
from spark_mq.source.query_cluster import Piece, QueryCluster, Split
from spark_mq.source.ranges import QueueRange, ReadLimits, plan_end, split_ranges
from spark_mq.source.rows import COLUMN_NAMES, RowRequest
from spark_mq.source.selection import open_cluster, select_queues
from storage.errors import CorruptRecordError, DescribedError

MAX_OFFSETS = 4_000_000
"""Of a commit."""
FILE_ROWS = 1_000_000
"""Of a file at most."""
_TRIES = 50
_LOOKS = 3
_LOOK_S = 0.7
"""Between two looks at brokers before a queue is refused."""
REQUEST = RowRequest(COLUMN_NAMES, decompress=False, judges_holes=False)
"""All columns of the source, bodies as they are stored."""


class ArchiveTask(NamedTuple):
    """Splits of one life of one queue, for a task to write."""

    place: Place
    life: LifeOfQueue
    split: Split


class TaskResult(NamedTuple):
    """What a task has written, and the offsets [start, end) of its split that had no message.

    Where a record is corrupt: the offset up to which all is written, and the error.
    """

    files: list[WrittenFile]
    holes: list[tuple[int, int]]
    stopped: tuple[int, str] | None = None


RunTasks = Callable[[Sequence[ArchiveTask]], list[TaskResult]]
"""Runs `write_task` for each, somewhere, and gives what it returned, in order."""


def write_task(task: ArchiveTask) -> TaskResult:
    """Read a split, and write what it has."""
    seen: list[np.ndarray] = []
    corrupt: list[str] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            for batch in task.split.read():
                seen.append(np.asarray(batch.column("queue_offset")))
                yield batch
        except SparkMqError as error:
            if CorruptRecordError.condition not in str(error):
                raise
            corrupt.append(str(error).partition("\n")[0])

    files = write_messages(task.place, task.life, watched())
    offsets = np.concatenate(seen) if seen else np.zeros(0, np.int64)
    start, end = task.split.ranges[0][0], task.split.ranges[-1][1]
    stopped = None
    if corrupt:
        end = int(offsets[-1]) + 1 if len(offsets) else start
        stopped = end, corrupt[0]
    ranges = [(low, min(high, end)) for low, high in task.split.ranges if low < end]
    return TaskResult(files, [hole for low, high in ranges for hole in holes_in(offsets, low, high)], stopped)


class QueueView(NamedTuple):
    """What the brokers' data and the table say of a queue. `first` and `at_last` are places of records in the log.

    `last` is the last archived message of the newest life below `maximum`, and where it was; `at_last` the record that is at its
    offset now; both None if there is none to be seen.
    """

    minimum: int
    maximum: int
    progress: Progress | None
    last: tuple[int, RecordPlace] | None = None
    at_last: RecordPlace | None = None
    first: RecordPlace | None = None
    unknown: int | None = None
    """The newest incarnation with rows in the table that `progress` does not count."""


class QueuePlan(NamedTuple):
    """From where a queue is archived: `start` of `incarnation`; `gap` before it; why it is refused."""

    incarnation: int
    start: int
    gap: tuple[int, int] | None = None
    is_new_life: bool = False
    refusal: str | None = None


def plan_queue(view: QueueView, *, begins_anew: bool = False) -> QueuePlan:
    """Where a queue goes on; with `begins_anew` as its next incarnation where it would be refused. Pure."""
    plan, minimum = _planned(view), view.minimum
    if plan.refusal is None or not begins_anew:
        return plan
    return QueuePlan(plan.incarnation + 1, minimum, (0, minimum) if minimum else None, is_new_life=True)


def _planned(view: QueueView) -> QueuePlan:
    minimum = view.minimum
    if view.unknown is not None:
        known = "none is archived" if view.progress is None else f"it is archived up to {view.progress.end}"
        rule = f"the table has rows of it though by the table's log {known}: the table is a copy, or its log has lost transactions"
        return QueuePlan(view.unknown, minimum, refusal=rule)
    if view.progress is None:
        return QueuePlan(0, minimum, (0, minimum) if minimum else None)
    incarnation, end = view.progress
    is_shorter = end > max(view.maximum, minimum)
    is_other = is_another(view.last, view.at_last)
    if is_shorter or is_other:
        if view.first is None and is_shorter:  # nothing to be archived, of whichever life
            return QueuePlan(incarnation, max(view.maximum, minimum))
        if view.last is None or view.first is None or not _is_later(view.first, view.last[1]):
            found = f"ends at {view.maximum}" if is_shorter else "has another record at the last archived offset"
            return QueuePlan(
                incarnation,
                end,
                refusal=f"it {found}, and its log is not newer than the archive, which has it up to {end}",
            )
        return QueuePlan(incarnation + 1, minimum, (0, minimum) if minimum else None, is_new_life=True)
    if end < minimum:
        return QueuePlan(incarnation, minimum, (end, minimum))
    return QueuePlan(incarnation, end)


def is_another(last: tuple[int, RecordPlace] | None, at_last: RecordPlace | None) -> bool:
    """Whether the record at the offset of the last archived message is another one; no, if one of them cannot be seen.

    Store times are compared: a message that has moved into tiered storage has another place.
    """
    return last is not None and at_last is not None and at_last[1] != last[1][1]


def _is_later(first: RecordPlace, last: RecordPlace) -> bool:
    """Whether a record was stored after another, though the log may begin again at 0."""
    return (first[1], first[0]) > (last[1], last[0])


@dataclass(slots=True)
class ArchiveReport:
    """What a run did."""

    rows: Counter[str] = field(default_factory=Counter)
    """By topic."""
    files: int = 0
    offsets: int = 0
    """Of the queues, archived by this run; of `all_offsets`, which it found when it started."""
    all_offsets: int = 0
    size_bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    version: int = 0
    gaps: list[Gap] = field(default_factory=list)
    """What expired before it was archived."""
    empty_offsets: int = 0
    """Without a message in the log."""
    new_lives: list[tuple[QueueId, int]] = field(default_factory=list)
    refused: dict[QueueId, str] = field(default_factory=dict)
    """Queues that cannot be archived, or no further, and why."""
    conflict: str | None = None
    """Why the run left the rest to another one."""
    left: dict[QueueId, tuple[int, int]] = field(default_factory=dict)
    """Of a dry run: what would be archived."""


class _Round(NamedTuple):
    starts: Mapping[QueueId, int]
    ends: Mapping[QueueId, int]
    plans: Mapping[QueueId, QueuePlan]


def archive_once(
    options: SourceOptions,
    table: ArchiveTable,
    run_tasks: RunTasks,
    *,
    max_offsets: int = MAX_OFFSETS,
    file_rows: int = FILE_ROWS,
    dry_run: bool = False,
    begins_anew: bool = False,
    on_commit: Callable[[ArchiveReport], None] = lambda report: None,
) -> ArchiveReport:
    """Archive what there is when it starts, and end. `options` name the topics and the table.

    Raises the source's errors, ArchiveError, and what a task raised.
    """
    report = ArchiveReport(version=table.version)
    cluster = open_cluster(options)
    try:
        queues = select_queues(cluster, options)
        frozen = {queue: max(cluster.bounds(queue)) for queue in queues}
        held_up: dict[QueueId, str] = {}
        tries = looks = 0
        while True:
            limits = ReadLimits(max_offsets=max_offsets)
            is_last_look = looks >= _LOOKS
            planned, refused = _plan(cluster, table, frozen, limits, begins_anew=begins_anew and is_last_look)
            report.refused = refused | held_up
            if not report.commits:
                report.all_offsets = sum(frozen[queue] - start for queue, start in planned.starts.items())
            if refused and not is_last_look:  # the table may know messages that came after our last look at the brokers
                looks += 1
                time.sleep(_LOOK_S)
                cluster.refresh()
                continue
            if dry_run:
                report.left = {queue: (start, planned.ends[queue]) for queue, start in planned.starts.items()}
                report.gaps = _gaps(planned)
            if dry_run or not _moving(planned):
                return report
            try:
                written = _write(cluster, table, planned, run_tasks, file_rows)
                planned = planned._replace(ends=written.ends)
                if _moving(planned):
                    report.version = commit(table, written.files, _progress(planned))
            except (ArchiveConflictError, DataLossError) as error:
                tries += 1
                if tries == _TRIES and isinstance(error, DataLossError):
                    raise
                if tries == _TRIES:
                    report.conflict = str(error)
                    return report
                report.conflicts += isinstance(error, ArchiveConflictError)
                wait_a_little(tries)
                table.refresh()
                cluster.refresh()
                continue
            tries = 0
            held_up |= written.held_up
            frozen = {queue: end for queue, end in frozen.items() if queue not in held_up}
            if _moving(planned):
                _note(report, planned, written.files, written.gaps)
                on_commit(report)
            cluster.refresh()
    finally:
        cluster.close()


def _plan(
    cluster: QueryCluster,
    table: ArchiveTable,
    frozen: Mapping[QueueId, int],
    limits: ReadLimits,
    *,
    begins_anew: bool,
) -> tuple[_Round, dict[QueueId, str]]:
    """The round, and the queues that are refused."""
    plans, starts, ends, refused = {}, {}, {}, {}
    for queue in frozen:
        try:
            plan = plan_queue(_view(cluster, table, queue), begins_anew=begins_anew)
        except ArchiveError as error:  # a file of its topic is gone
            refused[queue] = error.describe()
            continue
        if plan.refusal is not None:
            refused[queue] = plan.refusal
            continue
        plans[queue], starts[queue] = plan, plan.start
        ends[queue] = max(plan.start, min(frozen[queue], max(cluster.bounds(queue))))
    return _Round(starts, plan_end(starts, ends, limits, cluster), plans), refused


def _view(cluster: QueryCluster, table: ArchiveTable, queue: QueueId) -> QueueView:
    minimum, maximum = cluster.bounds(queue)
    progress = table.progress(queue)
    unknown = table.unknown_rows(queue)
    if progress is None or unknown is not None:
        return QueueView(minimum, maximum, progress, unknown=unknown)
    life = table.newest(queue)
    last = None if life is None else last_place(table.place, life, max(minimum, maximum))
    at_last = None
    if last is not None and minimum <= last[0] < maximum:
        at_last = cluster.record_before(queue, last[0] + 1)
    is_doubtful = progress.end > max(minimum, maximum) or is_another(last, at_last)
    first = _first_record(cluster, queue, minimum, maximum) if is_doubtful else None
    return QueueView(minimum, maximum, progress, last, at_last, first)


_LOOKED_AT = 1_000


def _first_record(cluster: QueryCluster, queue: QueueId, minimum: int, maximum: int) -> RecordPlace | None:
    """The place of the first record of a queue, past offsets that have none."""
    for offset in range(minimum, min(maximum, minimum + _LOOKED_AT)):
        if (found := cluster.record_before(queue, offset + 1)) is not None:
            return found
    return None


def _moving(planned: _Round) -> list[QueueId]:
    return [
        queue
        for queue, plan in planned.plans.items()
        if planned.ends[queue] > plan.start or plan.gap is not None or plan.is_new_life
    ]


def _progress(planned: _Round) -> dict[QueueId, Progress]:
    return {queue: Progress(planned.plans[queue].incarnation, planned.ends[queue]) for queue in _moving(planned)}


def _gaps(planned: _Round) -> list[Gap]:
    return [Gap(queue, plan.incarnation, *plan.gap) for queue, plan in planned.plans.items() if plan.gap is not None]


class _Written(NamedTuple):
    files: list[WrittenFile]
    gaps: list[Gap]
    ends: dict[QueueId, int]
    """Up to which offsets; less than was planned of a queue that is held up."""
    held_up: dict[QueueId, str]
    """Queues that this run leaves, and why: a record is corrupt, or the broker refuses to say what a hole is."""


def _write(
    cluster: QueryCluster, table: ArchiveTable, planned: _Round, run_tasks: RunTasks, file_rows: int
) -> _Written:
    ranges = [QueueRange(queue, planned.starts[queue], planned.ends[queue]) for queue in sorted(planned.ends)]
    pieces = split_ranges([each for each in ranges if each.size > 0], None, file_rows)
    tasks = [
        ArchiveTask(
            table.place,
            LifeOfQueue(*piece.queue, planned.plans[piece.queue].incarnation),
            cluster.split(Piece(piece.queue, ((piece.start, piece.end),)), REQUEST),
        )
        for piece in pieces
    ]
    results = run_tasks(tasks) if tasks else []
    written = _Written([], _gaps(planned), dict(planned.ends), {})
    for piece, result in zip(pieces, results, strict=True):
        if piece.queue in written.held_up:  # what comes behind waits
            continue
        try:
            gaps = list(_judged(cluster, piece.queue, planned.plans[piece.queue].incarnation, result.holes))
        except DescribedError as error:  # it is the queue's own; its files of this piece are in no commit
            if error.retriable:
                raise
            written.ends[piece.queue], written.held_up[piece.queue] = piece.start, error.describe()
            continue
        if result.stopped is not None:
            written.ends[piece.queue], written.held_up[piece.queue] = result.stopped
        written.files.extend(result.files)
        written.gaps.extend(gaps)
    by_topic: dict[str, list[Gap]] = {}
    for gap in written.gaps:
        by_topic.setdefault(gap.queue.topic, []).append(gap)
    written.files.extend(write_gaps(table.place, topic, some) for topic, some in sorted(by_topic.items()))
    return written


def _judged(cluster: QueryCluster, queue: QueueId, incarnation: int, holes: Iterable[tuple[int, int]]) -> Iterator[Gap]:
    """Why offsets had no message. `holes` ascend. Messages expire from the front, so behind the first hole that did not expire no other
    one did. Raises what the broker refuses.
    """
    is_expired = True
    for start, end in holes:
        is_expired = is_expired and has_expired(
            start, lambda offset: cluster.first_from(queue, offset), lambda: cluster.is_compacted(queue)
        )
        yield Gap(queue, incarnation, start, end, EXPIRED if is_expired else EMPTY)


def _note(report: ArchiveReport, planned: _Round, files: Iterable[WrittenFile], gaps: Sequence[Gap]) -> None:
    report.gaps += [gap for gap in gaps if gap.kind == EXPIRED]
    report.empty_offsets += sum(gap.end - gap.start for gap in gaps if gap.kind == EMPTY)
    report.new_lives += [(queue, plan.incarnation) for queue, plan in planned.plans.items() if plan.is_new_life]
    report.offsets += sum(planned.ends[queue] - start for queue, start in planned.starts.items())
    report.commits += 1
    for file in files:
        report.rows[file.topic] += file.rows
        report.files += 1
        report.size_bytes += file.size_bytes
    for gap in gaps:
        report.rows[gap.queue.topic] -= 1  # its row is no message
    report.rows += Counter()
