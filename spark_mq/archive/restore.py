"""Archived messages put back into a store or a cluster: each once, by plans in an audit table.

The audit is a Delta table with two rows for each range of a queue:

    planned     before anything is written; the plan's id names the write (option writeId of the sink)
    restored    when the write is committed

A run first finishes the plans that another one has left: a write that was committed is known by its name and writes nothing. Then it
plans what of its window no plan into the same target has. Two runs that plan for one topic and target conflict, as two archivers do.
So each message goes to a target once, as long as one audit table is used for it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.conditions import ArchiveError
from spark_mq.source.archive_table import ArchiveTable, Gap, Place, delta_lake, open_delta
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.ranges import QueueRange, ranges_between
from spark_mq.source.selection import open_cluster, select_queues
from spark_mq.source.starting_offsets import check_order, resolve_end, resolve_start
from storage.epoch_times import current_time_ms

PLANNED, RESTORED = "planned", "restored"
_SCHEMA = pa.schema(
    [
        pa.field("plan", pa.string(), False),
        pa.field("time", pa.timestamp("us", "UTC"), False),
        pa.field("state", pa.string(), False),
        pa.field("topic", pa.string(), False),
        pa.field("target", pa.string(), False),
        pa.field("broker_name", pa.string(), False),
        pa.field("queue_id", pa.int32(), False),
        pa.field("incarnation", pa.int32(), False),
        pa.field("start_offset", pa.int64(), False),
        pa.field("end_offset", pa.int64(), False),
    ]
)


class RestoreRange(NamedTuple):
    """Offsets [start, end) of one life of a queue."""

    queue: QueueId
    incarnation: int
    start: int
    end: int


class RestorePlan(NamedTuple):
    """One write: at most one range a queue. `plan_id` is the write's name."""

    plan_id: str
    topic: str
    target: str
    """Where the messages go: place and topic, as text."""
    ranges: tuple[RestoreRange, ...]


@dataclass(slots=True)
class RestoreReport:
    """What a run did; of a dry run, what it would do."""

    finished: int = 0
    """Plans of an earlier run."""
    ranges: list[RestoreRange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


Write = Callable[[RestorePlan], None]
"""Writes a plan's messages under its id: once, however often it is called."""


class RestoreAudit:
    """The audit table at a place, for one topic and one target. It is made with the first plan."""

    def __init__(self, place: Place, topic: str, target: str) -> None:
        self._place = place
        self._topic = topic
        self._target = target
        self._delta = open_delta(place)

    def plans(self) -> tuple[list[RestorePlan], list[RestorePlan]]:
        """The open plans, and those that are restored."""
        self._delta = open_delta(self._place)
        if self._delta is None:
            return [], []
        rows = self._delta.to_pyarrow_table(
            filters=[("topic", "=", self._topic), ("target", "=", self._target)]
        ).to_pylist()
        done = {row["plan"] for row in rows if row["state"] == RESTORED}
        ranges: dict[str, list[RestoreRange]] = {}
        for row in rows:
            if row["state"] == PLANNED:
                queue = QueueId(row["topic"], row["broker_name"], row["queue_id"])
                one = RestoreRange(queue, row["incarnation"], row["start_offset"], row["end_offset"])
                ranges.setdefault(row["plan"], []).append(one)
        plans = [RestorePlan(name, self._topic, self._target, tuple(sorted(found))) for name, found in ranges.items()]
        return [plan for plan in plans if plan.plan_id not in done], [plan for plan in plans if plan.plan_id in done]

    def note(self, plan: RestorePlan, state: str) -> None:
        """Append a plan's rows. Raises ArchiveConflictError where another run has planned since `plans` was called."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import DeltaError

        now = datetime.fromtimestamp(current_time_ms() / 1000, UTC)
        rows = [
            (plan.plan_id, now, state, plan.topic, plan.target, each.queue.broker_name, each.queue.queue_id,
             each.incarnation, each.start, each.end)
            for each in plan.ranges
        ]  # fmt: skip
        table = pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], schema=_SCHEMA)
        delta = self._delta or self._made()
        name = "spark_mq.restore" + json.dumps([self._topic, self._target], ensure_ascii=False)
        version = (delta.transaction_version(name) or 0) + 1
        try:
            write_deltalake(
                delta,
                table,
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(name, version)]),
            )
        except DeltaError as error:
            self._delta = open_delta(self._place)
            raise ArchiveConflictError(str(error)) from error
        self._delta = open_delta(self._place)

    def _made(self) -> Any:
        lake = delta_lake()
        try:
            return lake.DeltaTable.create(self._place.url, _SCHEMA, storage_options=dict(self._place.storage) or None)
        except Exception as error:  # another run may have made it at the same time
            found = open_delta(self._place)
            if found is None:
                raise ArchiveError(self._place.url, f"no audit table can be made: {error}") from error
            return found


def restore_once(
    options: SourceOptions,
    table: ArchiveTable,
    audit: RestoreAudit,
    target: str,
    write: Write,
    *,
    dry_run: bool = False,
) -> RestoreReport:
    """Finish what earlier runs have planned, then put back what of the options' window no plan has.

    `options` name the archive alone, one topic and a window. Raises the source's and the sink's errors, and ArchiveConflictError.
    """
    report = RestoreReport()
    left, done = audit.plans()
    report.finished = len(left) if dry_run else 0
    for plan in [] if dry_run else left:
        _refuse_other_lives(table, plan)
        write(plan)
        audit.note(plan, RESTORED)
        report.finished += 1
    windows = [
        RestoreRange(piece.queue, life.incarnation, piece.start, piece.end)
        for piece in window_of(options)
        if (life := table.newest(piece.queue)) is not None
    ]
    report.gaps = [
        gap
        for each in windows
        if (life := table.newest(each.queue)) is not None
        for gap in life.losses_between(each.start, each.end)
    ]
    restored = [one for plan in (*left, *done) for one in plan.ranges]
    rest = [one for window in windows for one in without(window, restored)]
    for ranges in one_a_queue(rest):
        report.ranges += ranges
        if dry_run:
            continue
        plan = RestorePlan(f"restore-{uuid.uuid4().hex}", ranges[0].queue.topic, target, tuple(ranges))
        audit.note(plan, PLANNED)
        write(plan)
        audit.note(plan, RESTORED)
    return report


def window_of(options: SourceOptions) -> list[QueueRange]:
    """The offsets of the options' window in each queue of the archive."""
    cluster = open_cluster(options)
    try:
        queues, now_ms = select_queues(cluster, options), current_time_ms()
        starts = resolve_start(
            options.batch_start, queues, cluster, brokers=cluster.brokers, now_ms=now_ms, fail_on_data_loss=True
        )
        ends = resolve_end(
            options.batch_end, queues, cluster, brokers=cluster.brokers, now_ms=now_ms, fail_on_data_loss=True
        )
        check_order(starts.offsets, ends.offsets)
        return ranges_between(starts.offsets, ends.offsets)
    finally:
        cluster.close()


def _refuse_other_lives(table: ArchiveTable, plan: RestorePlan) -> None:
    for each in plan.ranges:
        life = table.newest(each.queue)
        if life is None or life.incarnation != each.incarnation:
            rule = f"plan {plan.plan_id} is for incarnation {each.incarnation} of queue {each.queue}, which is not the newest"
            raise ArchiveError(table.place.url, rule)


def without(window: RestoreRange, others: Iterable[RestoreRange]) -> list[RestoreRange]:
    """The parts of a range that no other one has. Pure."""
    same = sorted(each for each in others if (each.queue, each.incarnation) == (window.queue, window.incarnation))
    found, at = [], window.start
    for other in same:
        if other.end <= at or other.start >= window.end:
            continue
        if other.start > at:
            found.append(window._replace(start=at, end=other.start))
        at = max(at, other.end)
    if at < window.end:
        found.append(window._replace(start=at))
    return found


def one_a_queue(ranges: Sequence[RestoreRange]) -> list[list[RestoreRange]]:
    """The ranges in groups with at most one of each queue. Pure."""
    groups: list[list[RestoreRange]] = []
    seen: dict[QueueId, int] = {}
    for each in ranges:
        number = seen.get(each.queue, 0)
        seen[each.queue] = number + 1
        if number == len(groups):
            groups.append([])
        groups[number].append(each)
    return groups


def read_options(place: Place, plan: RestorePlan) -> dict[str, str]:
    """Options of the source that read exactly the plan's messages."""
    brokers: dict[str, dict[str, RestoreRange]] = {}
    for each in plan.ranges:
        brokers.setdefault(each.queue.broker_name, {})[str(each.queue.queue_id)] = each
    offsets: Mapping[str, dict[str, dict[str, int]]] = {
        which: {
            broker: {number: getattr(each, which) for number, each in queues.items()}
            for broker, queues in brokers.items()
        }
        for which in ("start", "end")
    }
    queues = {broker: [int(number) for number in found] for broker, found in brokers.items()}
    options = {
        "archive": place.url,
        "assign": json.dumps({plan.topic: queues}),
        "startingOffsets": json.dumps({plan.topic: offsets["start"]}),
        "endingOffsets": json.dumps({plan.topic: offsets["end"]}),
        "failOnDataLoss": "false",  # named gaps are in the report
    }
    return options | ({"archiveStorage": json.dumps(dict(place.storage))} if place.storage else {})


COLUMNS = "body,tags,keys,properties,flag,born_timestamp,queue_id,unique_key"
"""What a message keeps; the broker gives it a new place and store time."""
