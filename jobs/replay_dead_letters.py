"""Put a consumer group's dead letters back into their topics, or into the group's retry topic, chosen by time or predicate.

    python -m jobs.replay_dead_letters PATH --group GROUP [--to retry] [--audit DELTA-TABLE]
        [--since TIME] [--until TIME] [--where SQL] [--rate N]

`--where` is a predicate of Spark SQL over the columns of the source, `origin_topic = 'Orders' AND reconsume_times > 3` for one; times
are those at which the messages became dead letters. `--dry-run` lists what would be done and writes nothing. Dead letters stay where
they are; what is put is a copy (`spark_mq/replay.py`), in bursts of one second's `--rate`, between which other writers get the store.

Each dead letter is replayed once, also if the job is killed and run again. Without `--audit` the log tells which letters have a copy;
that needs no Spark, and a few letters take a second or two. `--where` and `--audit` start Spark.

With `--audit` each letter is noted in the table as planned (one commit), then its copy is put and synced, then the audit says so.
A run that finds planned attempts of an earlier one looks for their copies in the log, from where the log ended when they were
planned, before it plans anew. What the audit calls replayed is passed over, unless `--again` asks for another copy. This holds as
long as one audit table is used for a store, and until the log has expired between the two runs: then the attempts are `unknown`, and
left. A table serves one store: another's message ids may be the same.

With `--name-server` in place of PATH the letters are those of a running cluster: `spark_mq/cluster_replay.py` says what holds there. In
the audit `log_end` is the time of the plan in ms then. `--to retry` is for the failing group alone: its retry topic has the copies.

Two runs at the same time exclude each other by a lock beside the store. A burst waits a minute for a store that another writer has;
then the run ends, and the next run does the rest.
spark-submit needs Delta's jar, `--packages io.delta:delta-spark_4.2_2.13:4.4.0`; the other two ways fetch it themselves.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from jobs.run import JobReport, Shared, StorePathUnlessCluster, open_to_write, run_job
from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.conditions import OptionError
from spark_mq.options import parse_time
from spark_mq.replay import (
    NOT_MADE,
    REFUSED,
    REPLAYED,
    UNKNOWN,
    DeadLetter,
    OpenPlan,
    Outcome,
    Target,
    find_copies,
    list_letters,
    replay,
    target_of,
    targets_of,
    without_copies,
)
from spark_mq.terminal import OnProgress, progress_bar
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.errors import StoreLockedError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import file_system_of, plain_path
from storage.names import dead_letter_topic, validate_group
from storage.settings.load import load_config
from storage.tables.put_statistics import PutStatistics
from storage.tables.surroundings import own_directory, refuse_foreign_log, refuse_links

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BURST = 500
"""The most messages of one put."""
NOTE_EVERY = 1_000
"""The fewest outcomes of one commit of the audit: a killed run finds the others in the log."""
LIMIT = 100_000
PATIENCE_MS = 60_000
LEFT = "left: another writer has the store"
STOPPED = "left: the run was stopped"
"""Results beside the others: letters that the run did not reach."""
LOCK = "spark_mq/replay.lock"
SMALL_TABLES = {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
"""The audit has a row for each dead letter; Delta plans for 50 partitions of its log, Spark for 200 of a join."""


class Audit(Protocol):
    """The part of a `ReplayAudit` that `replay_letters` needs."""

    def open_plans(self) -> list[OpenPlan]: ...
    def plan(self, run: str, letters: Sequence[DeadLetter], log_end: int) -> None: ...
    def note(self, run: str, outcomes: Sequence[Outcome]) -> None: ...


class NoAudit:
    """Used if only the log says what was replayed."""

    def open_plans(self) -> list[OpenPlan]:
        return []

    def plan(self, run: str, letters: Sequence[DeadLetter], log_end: int) -> None:
        """Does nothing."""

    def note(self, run: str, outcomes: Sequence[Outcome]) -> None:
        """Does nothing."""


class Letters(Protocol):
    """Dead letters of one group, in a store or at the brokers of a cluster (`ClusterLetters`)."""

    def exist(self) -> bool: ...
    def locked(self) -> AbstractContextManager[None]: ...
    def listed(self, since_ms: int | None = None, until_ms: int | None = None) -> list[DeadLetter]: ...
    def without_copies(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]: ...
    def mark(self) -> int: ...
    def copies(self, letters: Sequence[DeadLetter], mark: int) -> tuple[dict[str, str], bool]: ...
    def replay(self, letters: Sequence[DeadLetter]) -> list[Outcome]: ...


class StoreLetters:
    """Dead letters in a store, which is opened for each call. In between another writer may have its lock."""

    def __init__(
        self, path: str, group: str, to: Target = "topic", *, conf: str | None = None, lock_timeout_ms: int = 0
    ) -> None:
        self._path = path
        self._group = group
        self._to = to
        self._conf = conf
        self._lock_timeout_ms = lock_timeout_ms
        self.put = PutStatistics()
        """What was put into the store."""

    def exist(self) -> bool:
        """Whether the group has any."""
        with open_store(self._path, config=self._conf) as store:
            return bool(store.queue_ids(dead_letter_topic(self._group)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs from replaying letters of the store. Raises StoreNotWritableError, StoreLockedError."""
        files = file_system_of(self._path)
        if not isinstance(files, LocalFileSystem):
            raise StoreNotWritableError(self._path, "it does not lie on a local file system")
        refuse_foreign_log(self._path, load_config(self._path, self._conf, read_bytes=files.read_file), files)
        refuse_links(files, self._path)
        files.make_directories(own_directory(self._path))
        with files.locked(f"{self._path}/{LOCK}"):
            yield

    def listed(self, since_ms: int | None = None, until_ms: int | None = None) -> list[DeadLetter]:
        """Those that became dead letters in [since_ms, until_ms), by queue and offset."""
        with open_store(self._path, config=self._conf) as store:
            return list_letters(store, self._group, since_ms=since_ms, until_ms=until_ms)

    def without_copies(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """The letters without a copy in the log."""
        with open_store(self._path, config=self._conf) as store:
            return without_copies(store, self._group, letters)

    def mark(self) -> int:
        """The log's end. Raises StoreLockedError if another writer has the store."""
        with open_to_write(self._path, conf=self._conf, lock_timeout_ms=self._lock_timeout_ms) as store:
            return store.log_end

    def copies(self, letters: Sequence[DeadLetter], mark: int) -> tuple[dict[str, str], bool]:
        """The letters' copies from a log offset on, and whether the log is complete from there on."""
        with open_to_write(self._path, conf=self._conf) as store:  # which recovers what a kill left
            ids = {letter.msg_id for letter in letters}
            return find_copies(store, targets_of(letters, self._group), ids, mark), store.log.minimum <= mark

    def replay(self, letters: Sequence[DeadLetter]) -> list[Outcome]:
        """Put copies. Waits up to PATIENCE_MS for another writer of ours; then StoreLockedError."""
        with open_to_write(self._path, conf=self._conf, lock_timeout_ms=PATIENCE_MS, put=self.put) as store:
            return replay(store, self._group, letters, self._to)


def settle_open_plans(place: Letters, audit: Audit) -> int:
    """Find the outcomes of attempts that earlier runs planned, and note them; returns how many there were."""
    count = 0
    for plan in audit.open_plans():
        copies, can_tell = place.copies(plan.letters, plan.log_end)
        rest = NOT_MADE if can_tell else UNKNOWN
        audit.note(
            plan.run,
            [
                Outcome(letter, REPLAYED, None, copies[letter.msg_id])
                if letter.msg_id in copies
                else Outcome(letter, rest, "the run that planned it ended before it said more")
                for letter in plan.letters
            ],
        )
        count += len(plan.letters)
    return count


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits the rate to at most `rate` letters a second. `clock` and `sleep` are in seconds. `is_stopping` ends a run before its next
    burst.
    """

    rate: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    is_stopping: Callable[[], bool] = lambda: False

    def bursts(self, letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
        """The letters to put at once, each burst when it is due: those of one second, at most BURST."""
        size = BURST if self.rate is None else min(BURST, max(1, int(self.rate)))
        due = self.clock()
        for start in range(0, len(letters), size):
            burst = letters[start : start + size]
            self.sleep(max(0.0, due - self.clock()))
            if self.is_stopping():
                return
            due = self.clock() + (0.0 if self.rate is None else len(burst) / self.rate)
            yield burst


def replay_letters(
    place: Letters,
    letters: Sequence[DeadLetter],
    audit: Audit,
    *,
    pace: Pace = Pace(),
    on_progress: OnProgress = lambda done, total: None,
) -> Counter[str]:
    """Replay them, oldest first; returns how many had which result.

    Raises StoreLockedError, with nothing planned, if another writer has the store. Between two bursts it waits up to PATIENCE_MS for
    a writer of ours, but not for a broker. What is LEFT then, or STOPPED, stays planned.
    """
    results: Counter[str] = Counter()
    if not letters:
        return results
    if pace.is_stopping():
        return Counter({STOPPED: len(letters)})
    mark = place.mark()  # if that is refused, nothing is planned
    run_id = uuid.uuid4().hex
    audit.plan(run_id, letters, mark)
    unnoted: list[Outcome] = []
    for burst in pace.bursts(letters):
        try:
            outcomes = place.replay(burst)
        except StoreLockedError:
            results[LEFT] = len(letters) - results.total()
            break
        results.update(outcome.result for outcome in outcomes)
        unnoted += outcomes
        on_progress(results.total(), len(letters))
        if len(unnoted) >= NOTE_EVERY:
            audit.note(run_id, unnoted)
            unnoted = []
    audit.note(run_id, unnoted)
    if results.total() < len(letters):
        results[STOPPED] = len(letters) - results.total()
    return results


def _rate(value: object) -> float:
    try:
        rate = float(str(value))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise typer.BadParameter(f"{value!r} is no number of messages a second")
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which letters are replayed, and how: the job's own options."""

    group: Annotated[
        str,
        typer.Option("--group", metavar="GROUP", show_default=False, help="The consumer group of the dead letters."),
    ]
    to: Annotated[
        Target,
        typer.Option(
            "--to", help="The topic that a letter came from, for all its groups, or the group's own retry topic."
        ),
    ] = "topic"
    audit: Annotated[
        str | None, typer.Option("--audit", metavar="TABLE", help="Delta table of what was replayed, kept by Spark.")
    ] = None
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Dead since: ISO-8601, ms, or -2h.")] = (
        None
    )
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Dead before; as --since.")] = None
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="A predicate over the columns of the source.")
    ] = None
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", parser=_rate, help="Messages a second, at most.")
    ] = None
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many in one run.")] = LIMIT
    again: Annotated[bool, typer.Option("--again", help="Also what was replayed before.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be replayed, and write nothing.")] = False
    master: Annotated[
        str | None, typer.Option("--master", help="Spark's master; without it spark-submit's, else local[*].")
    ] = None

    def between_ms(self) -> tuple[int | None, int | None]:
        """Since and until, relative to now. Raises OptionError."""
        now_ms = current_time_ms()
        since = None if self.since is None else parse_time(self.since, "--since").at(now_ms)
        return since, None if self.until is None else parse_time(self.until, "--until").at(now_ms)


def run(
    shared: Shared,
    options: Replay,
    *,
    path: StorePathUnlessCluster = None,
    connection: Connection = NO_CLUSTER,
) -> JobReport:
    return run_paced(shared, options, Pace(), path=path, connection=connection)


def run_paced(
    shared: Shared, options: Replay, pace: Pace, *, path: str | None = None, connection: Connection = NO_CLUSTER
) -> JobReport:
    """One run. Of `pace` the clock, the pauses and the end are used; the rate is that of the options."""
    group = validate_group(options.group)
    pace = with_fields(pace, rate=options.rate)
    if not connection.is_chosen(path):
        root = _root(path)
        of_store = StoreLetters(root, group, options.to, conf=shared.conf, lock_timeout_ms=shared.lock_timeout_ms)
        source = {"path": root} if shared.conf is None else {"path": root, "conf": shared.conf}
        report = _locked_run(options, of_store, source, pace)
        return with_fields(report, put=of_store.put) if "results" in report.figures else report
    if shared.conf is not None:
        raise OptionError("--conf", "is for stores: leave it away with --name-server")
    from spark_mq.cluster_replay import ClusterLetters, ReplayAtWorkError

    cluster = connection.cluster()
    try:
        with closing(ClusterLetters(cluster, group, options.to)) as letters:
            return _locked_run(options, letters, cluster.to_options(), pace)
    except ReplayAtWorkError as error:
        return JobReport([f"nothing done: {error}"], is_busy=True, figures={"nothing_done": str(error)})


def _root(path: str | None) -> str:
    return plain_path(path or "").rstrip("/") or "/"


def preview(
    shared: Shared,
    options: Replay,
    settled: Collection[str] | None,
    *,
    path: str | None = None,
    connection: Connection = NO_CLUSTER,
) -> JobReport:
    """What a run would do, without Spark and without `--where`; nothing is written.

    `settled` are the message ids of the letters that the audit of the run calls settled; None: it has no audit, the log says.
    """
    options = with_fields(options, dry_run=True, audit=None, where=None)
    if not connection.is_chosen(path):
        return _preview(options, StoreLetters(_root(path), options.group, options.to, conf=shared.conf), settled)
    from spark_mq.cluster_replay import ClusterLetters

    with closing(ClusterLetters(connection.cluster(), options.group, options.to)) as letters:
        return _preview(options, letters, settled)


def _preview(options: Replay, place: Letters, settled: Collection[str] | None) -> JobReport:
    if not place.exist():
        return JobReport([f"group {options.group} has no dead letters"])
    letters = place.listed(*options.between_ms())
    if settled is None:
        return _replay(options, place, letters)
    left = [letter for letter in letters if options.again or letter.msg_id not in settled]
    return _replay(options, place, left, NoAudit())


def _locked_run(options: Replay, place: Letters, source: Mapping[str, str], pace: Pace) -> JobReport:
    """`source` are the options of Spark's source for the letters' place."""
    if not place.exist():
        return JobReport([f"group {options.group} has no dead letters"])
    if options.dry_run:
        return _run(options, place, source, pace)
    with place.locked():
        return _run(options, place, source, pace)


def _run(options: Replay, place: Letters, source: Mapping[str, str], pace: Pace) -> JobReport:
    since, until = options.between_ms()
    if options.audit is None and options.where is None:
        return _replay(options, place, place.listed(since, until), pace=pace)
    from spark_mq.replay_audit import ReplayAudit, failures_in_one_line, select_letters
    from spark_mq.session import build_session

    spark = build_session(
        "spark_mq replay of dead letters",
        master=options.master,
        delta=options.audit is not None,
        config=SMALL_TABLES,
    )
    found = select_letters(spark, source, options.group, since_ms=since, until_ms=until, where=options.where)
    lines = []
    audit = None if options.audit is None else ReplayAudit(spark, options.audit, options.group)
    if audit is not None:
        if not options.dry_run and (settled := settle_open_plans(place, audit)):
            lines.append(f"{settled} planned by a run that ended before: looked for in the log")
        if not options.again:
            found = audit.without_settled(found)
    with failures_in_one_line("dead letters" if options.where is None else f"dead letters, --where {options.where}"):
        # Without an audit all of them are looked up in the log.
        letters = _collected(found, None if audit is None else options.limit + 1)
    return _replay(options, place, letters, audit, lines, pace=pace)


def _replay(
    options: Replay,
    place: Letters,
    letters: Sequence[DeadLetter],
    audit: Audit | None = None,
    lines: Sequence[str] = (),
    *,
    pace: Pace = Pace(),
) -> JobReport:
    """Replay the letters up to the limit, or list them. Without an audit letters with a copy in the log are skipped."""
    if audit is None and not options.again:
        letters = place.without_copies(letters)
    said = list(lines)
    if len(letters) > options.limit:
        said.append(f"more than {options.limit} (--limit): run again for the rest")
    letters = letters[: options.limit]
    if options.dry_run:
        said += [_listed(letter, options.group, options.to) for letter in letters]
        by_topic = Counter(target_of(letter.origin_topic, options.group, options.to) for letter in letters)
        said += [f"would replay {count} to {topic}" for topic, count in sorted(by_topic.items())]
        figures = {"would_replay": dict(by_topic)}
        return JobReport(said or ["nothing to replay"], figures=figures)
    with progress_bar("replaying", "messages") as on_progress:
        results = replay_letters(place, letters, audit or NoAudit(), pace=pace, on_progress=on_progress)
    said += [f"{count} {result}" for result, count in sorted(results.items())]
    figures = {"results": dict(results)}
    exit_code, is_busy = 1 if results[REFUSED] else 0, results[LEFT] + results[STOPPED] > 0
    return JobReport(said or ["nothing to replay"], exit_code, is_busy=is_busy, figures=figures)


def _listed(letter: DeadLetter, group: str, to: Target) -> str:
    key = "" if letter.unique_key is None else f", {letter.unique_key}"
    place = f"queue {letter.queue_id} offset {letter.queue_offset}"
    return f"{letter.msg_id} ({place}{key}) to {target_of(letter.origin_topic, group, to)}"


def _collected(letters: DataFrame, limit: int | None) -> list[DeadLetter]:
    ordered = letters.orderBy("queue_id", "queue_offset")
    return [DeadLetter(*row) for row in (ordered if limit is None else ordered.limit(limit)).collect()]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
