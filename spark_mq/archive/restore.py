"""Archived messages put back into a store or a cluster: each once, by plans in an audit table.

The audit is a Delta table with two rows for each range of a queue:

    planned     before anything is written, and synced; the plan's id names the write (option writeId of the sink)
    restored    when the write is committed

A run first finishes the plans that another one has left, as they were planned: a write that was committed is known by its name and
writes nothing. Then it plans what of its window no plan into the same target has. A plan is committed on the look at the audit that it
was made from, so of two runs that plan for one topic and target at once the second does nothing.
So each message goes to a target once, as long as one audit table is used for it.

A range has no offset that the table lacks. A left plan that the table cannot serve any more (its days were dropped, its topic was made
again) is named and left: whether its write was committed is unknown.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.conditions import ArchiveError, DataLossError
from spark_mq.source.archive_table import ArchiveTable, Life, Loss, Place, delta_lake, delta_rows, open_delta
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.ranges import QueueRange, ranges_between
from spark_mq.source.selection import open_cluster, select_queues
from spark_mq.source.starting_offsets import check_order, resolve_end, resolve_start
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import absolute_path, plain_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

PLANNED, RESTORED = "planned", "restored"
_SCHEMA = pa.schema(
    [
        pa.field("plan", pa.string(), False),
        pa.field("time", pa.timestamp("us", "UTC"), False),
        pa.field("state", pa.string(), False),
        pa.field("topic", pa.string(), False),
        pa.field("target", pa.string(), False),
        pa.field("settings", pa.string(), False),
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
    settings: str = ""
    """How they are written: names from `SETTINGS`, with commas."""


KEEP_UNIQUE_KEY, ANY_QUEUE = "keepUniqueKey", "anyQueue"
SETTINGS = (KEEP_UNIQUE_KEY, ANY_QUEUE)


@dataclass(slots=True)
class RestoreReport:
    """What a run did; of a dry run, what it would do."""

    finished: int = 0
    """Plans of an earlier run."""
    ranges: list[RestoreRange] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """What of the window the table does not have."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Plans of earlier runs that cannot be finished, and why."""
    conflict: str | None = None
    """Why the run left the rest to another one."""


Write = Callable[[RestorePlan], None]
"""Writes a plan's messages under its id: once, however often it is called."""


class RestoreAudit:
    """The audit table at a place, for one topic and one target. It is made with the first plan."""

    def __init__(self, place: Place, topic: str, target: str) -> None:
        self._place = place
        self._topic = topic
        self._target = target
        self._delta: DeltaTable | None = None
        """As `plans` has seen it."""

    def plans(self, *, makes: bool = False) -> tuple[list[RestorePlan], list[RestorePlan]]:
        """The open plans, and those that are restored. `makes` the table if there is none: the next plan is committed on this look."""
        self._delta = open_delta(self._place)
        if self._delta is None and makes:
            self._delta = self._made()
        if self._delta is None:
            return [], []
        of_topic = {"topic": [self._topic], "target": [self._target]}
        rows = delta_rows(self._place, self._delta, _SCHEMA.names, of_topic).to_pylist()
        done = {row["plan"] for row in rows if row["state"] == RESTORED}
        ranges: dict[tuple[str, str], list[RestoreRange]] = {}
        for row in rows:
            if row["state"] == PLANNED:
                queue = QueueId(row["topic"], row["broker_name"], row["queue_id"])
                one = RestoreRange(queue, row["incarnation"], row["start_offset"], row["end_offset"])
                ranges.setdefault((row["plan"], row["settings"]), []).append(one)
        plans = [
            RestorePlan(name, self._topic, self._target, tuple(sorted(found)), settings)
            for (name, settings), found in ranges.items()
        ]
        return [plan for plan in plans if plan.plan_id not in done], [plan for plan in plans if plan.plan_id in done]

    def plan(self, plan: RestorePlan) -> None:
        """Append a plan, on the look of `plans`. Raises ArchiveConflictError where another run has planned since.

        It is durable on return, at a local place too: else a power loss would take the plan and leave its messages.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        if self._delta is None:
            self.plans(makes=True)
        delta, self._delta = self._delta, None
        assert delta is not None
        name = "spark_mq.restore" + json.dumps([self._topic, self._target], ensure_ascii=False)
        version = (delta.transaction_version(name) or 0) + 1
        before, files = delta.version(), set(delta.file_uris())
        properties = CommitProperties(app_transactions=[Transaction(name, version)])
        try:
            self._append(delta, plan, PLANNED, properties)
        except DeltaError as error:
            raise ArchiveConflictError(str(error)) from error
        self._sync(before, files)

    def note_restored(self, plan: RestorePlan) -> None:
        """Append that a plan's write is committed. Raises ArchiveError where that cannot be noted; the next run finishes the plan."""
        from deltalake.exceptions import DeltaError

        try:
            self._append(open_delta(self._place), plan, RESTORED, None)
        except (DeltaError, OSError) as error:
            rule = f"the messages of plan {plan.plan_id} were put back, but that cannot be noted; the next run notes it: {error}"
            raise ArchiveError(self._place.url, rule) from error

    def _append(self, delta: Any, plan: RestorePlan, state: str, properties: Any) -> None:
        from deltalake import write_deltalake

        now = datetime.fromtimestamp(current_time_ms() / 1000, UTC)
        rows = [
            (plan.plan_id, now, state, plan.topic, plan.target, plan.settings, each.queue.broker_name, each.queue.queue_id,
             each.incarnation, each.start, each.end)
            for each in plan.ranges
        ]  # fmt: skip
        table = pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], schema=_SCHEMA)
        write_deltalake(delta, table, mode="append", commit_properties=properties)

    def _sync(self, before: int, files: set[str]) -> None:
        """What commits behind version `before` have written. delta-rs syncs nothing; object stores are durable as they are."""
        delta = open_delta(self._place) if self._place.is_local else None
        if delta is None:
            return
        log = f"{self._place.url}/_delta_log"
        versions = [f"{log}/{version:020}.json" for version in range(before + 1 if before else 0, delta.version() + 1)]
        new = [plain_path(uri) for uri in set(delta.file_uris()) - files]
        parent = self._place.url.rpartition("/")[0] or "/"
        LocalFileSystem().sync_all([*versions, *new, log, self._place.url, parent])

    def _made(self) -> DeltaTable:
        lake = delta_lake()
        try:
            made: DeltaTable = lake.DeltaTable.create(
                self._place.url, _SCHEMA, storage_options=dict(self._place.storage) or None
            )
            return made
        except Exception as error:  # another run may have made it at the same time
            found = open_delta(self._place)
            if found is None:
                raise ArchiveError(self._place.url, f"no audit table can be made: {error}") from error
            return found


def target_of(sink: Mapping[str, str], topic: str) -> str:
    """A target's name in the audit, however it was written: without links and a last slash; name servers in order."""
    path = sink.get("path")
    if path is None:
        names = sorted({name.strip() for name in re.split("[;,]", sink["nameServer"]) if name.strip()})
        return f"{';'.join(names)} {topic}"
    where = absolute_path(plain_path(path))
    return f"{os.path.realpath(where) if '://' not in where else where.rstrip('/')} {topic}"


def restore_once(
    options: SourceOptions,
    table: ArchiveTable,
    audit: RestoreAudit,
    target: str,
    write: Write,
    *,
    settings: Collection[str] = (),
    dry_run: bool = False,
) -> RestoreReport:
    """Finish what earlier runs have planned, then put back what of the options' window no plan has.

    `options` name the archive alone, one topic and a window. Raises the source's and the sink's errors, and DataLossError for offsets
    of the window that the table lacks though no gap names them.
    """
    report = RestoreReport()
    left, done = audit.plans(makes=not dry_run)
    for plan in left:
        if (reason := _unfinishable(table, plan)) is not None:
            report.stuck[plan.plan_id] = reason
            continue
        if not dry_run:
            write(plan)
            audit.note_restored(plan)
        report.finished += 1
    windows, report.losses = _readable(table, window_of(options))
    while True:
        taken = [one for plan in (*left, *done) for one in plan.ranges]
        rest = [one for window in windows for one in without(window, taken)]
        if dry_run or not rest:
            report.ranges += rest
            return report
        ranges = one_a_queue(rest)[0]
        told = ",".join(name for name in SETTINGS if name in settings)
        plan = RestorePlan(f"restore-{uuid.uuid4().hex}", ranges[0].queue.topic, target, tuple(ranges), told)
        try:
            audit.plan(plan)
        except ArchiveConflictError as error:
            report.conflict = str(error)
            return report
        write(plan)
        audit.note_restored(plan)
        report.ranges += ranges
        left, done = audit.plans(makes=True)


def _readable(table: ArchiveTable, window: Iterable[QueueRange]) -> tuple[list[RestoreRange], list[Loss]]:
    """The window without named gaps, and those. Raises DataLossError for what is missing without a name."""
    found: list[RestoreRange] = []
    lost: list[Loss] = []
    for piece in window:
        life = table.newest(piece.queue)
        if life is None:
            continue
        losses = named_losses(life, piece.start, piece.end)
        lost += losses
        whole = RestoreRange(piece.queue, life.incarnation, piece.start, piece.end)
        found += without(whole, [RestoreRange(piece.queue, life.incarnation, loss.start, loss.end) for loss in losses])
    return found, lost


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


def named_losses(life: Life, start: int, end: int) -> list[Loss]:
    """What of [start, end) the table does not have. Raises DataLossError for what no gap names."""
    losses = life.losses_between(start, end)
    if unnamed := [str(loss) for loss in losses if not loss.is_named]:
        raise DataLossError(*unnamed)
    return losses


def _unfinishable(table: ArchiveTable, plan: RestorePlan) -> str | None:
    """Why the table has not, or has no more, all that a plan names."""
    for each in plan.ranges:
        life = table.newest(each.queue)
        if life is None or life.incarnation != each.incarnation:
            return f"it is for incarnation {each.incarnation} of queue {each.queue}, which is not the newest"
        if losses := life.losses_between(each.start, each.end):
            return str(losses[0])
    return None


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


def read_options(place: Place, plan: RestorePlan, *, passes_gaps: bool = False) -> dict[str, str]:
    """Options of the source that read exactly the plan's messages; `passes_gaps` if its ranges have gaps."""
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
        "failOnDataLoss": str(not passes_gaps).lower(),
    }
    return options | ({"archiveStorage": json.dumps(dict(place.storage))} if place.storage else {})


COLUMNS = "body,tags,keys,properties,flag,born_timestamp,queue_id,unique_key"
"""What a message keeps; the broker gives it a new place and store time."""
