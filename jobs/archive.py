"""Archive topics into a Delta table that readers go on in, and keep the table.

    python -m jobs.archive PATH --table URL [--topics a,b | --pattern REGEX] [--every 1m]
    python -m jobs.archive PATH --table URL --values orders=orders.schema.json
    python -m jobs.archive --table URL --verify | --compact | --keep "orders=400d, audit.*=10y" | --vacuum 7d   [--dry-run]

With `--name-server` in place of PATH the topics are those of a running cluster. Without both only the table is looked at. A run
archives what there is when it starts, then does what is asked of the table, and ends; `--every` repeats it. How far each queue has
come is in the table, in the commit that has its rows: no checkpoint, and any number of runs at once (`spark_mq/archive/archiver.py`).

Spark's tasks read the messages and write the files; delta-rs commits (the extra `spark_mq[archive]`, on driver and workers).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from jobs.run import JobReport, Shared, run_job
from spark_mq.archive.archiver import FILE_ROWS, MAX_OFFSETS, ArchiveReport, archive_once, write_task
from spark_mq.archive.commits import ArchiveConflictError, open_or_make
from spark_mq.archive.upkeep import (
    LEAST_VACUUM_MS,
    UpkeepReport,
    compact,
    drop_old_days,
    parse_keep,
    vacuum,
    write_joined,
)
from spark_mq.archive.verify import Finding, verify
from spark_mq.command_options import NO_CLUSTER, Connection, duration_ms
from spark_mq.conditions import OptionError, from_task, noting_what_may_pass
from spark_mq.source.archive_table import ArchiveTable, Place
from spark_mq.source.options import SourceOptions
from spark_mq.terminal import progress_bar

if TYPE_CHECKING:
    from spark_mq.archive.typed import TypedReport
    from spark_mq.values import ValueSchema

_MOST_TASKS = 1_000
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What is archived, and what is done with the table: the job's own options."""

    table: Annotated[
        str, typer.Option("--table", metavar="URL", show_default=False, help="The Delta table: a directory, or a URL.")
    ]
    topics: Annotated[str | None, typer.Option("--topics", metavar="NAMES", help="These topics: a,b.")] = None
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches; without both all of users."),
    ] = None
    storage: Annotated[
        list[str] | None,
        typer.Option("--storage", metavar="NAME=VALUE", help="A storage option of delta-rs; may be repeated."),
    ] = None
    max_offsets: Annotated[
        int, typer.Option("--max-offsets", metavar="N", min=1, help="Of a commit, at most about so many.")
    ] = MAX_OFFSETS
    file_rows: Annotated[
        int, typer.Option("--file-rows", metavar="N", min=1, help="Of a data file, at most so many messages.")
    ] = FILE_ROWS
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--values",
            metavar="TOPIC=FILE",
            help="A typed table too, by a JSON Schema, an .avsc, or FILE.desc#MESSAGE; may be repeated.",
        ),
    ] = None
    new_incarnation: Annotated[
        bool,
        typer.Option(
            "--new-incarnation", help="Archive refused queues from their logs' beginning, as their next incarnations."
        ),
    ] = False
    compact: Annotated[bool, typer.Option("--compact", help="Join small files.")] = False
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="TOPICS=TIME,…", help="Drop older days: orders=400d, audit.*=10y."),
    ] = None
    vacuum: Annotated[
        int | None,
        typer.Option(
            "--vacuum", metavar="TIME", parser=duration_ms, help="Delete files unused for so long; 7d at least."
        ),
    ] = None
    verify: Annotated[
        bool, typer.Option("--verify", help="Look for missing files, doubled rows and gaps that none names.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False
    master: Annotated[
        str | None, typer.Option("--master", help="Spark's master; without it spark-submit's, else local[*].")
    ] = None

    def place(self) -> Place:
        return Place.given(self.table, self.storage)

    def schemas(self) -> dict[str, ValueSchema]:
        """Topic → the schema of its bodies. Raises OptionError, OSError."""
        if not self.values:
            return {}
        from spark_mq.values import avro_schema, json_schema, protobuf_schema  # needs Spark

        found = {}
        for text in self.values:
            topic, equals, file = text.partition("=")
            if not equals or not topic or not file:
                raise OptionError("--values", f"expected TOPIC=FILE, found {text!r}")
            path, _, message = file.partition("#")
            if path.endswith((".desc", ".pb")) or message:
                found[topic] = protobuf_schema(path, message)
            else:
                found[topic] = avro_schema(path) if path.endswith(".avsc") else json_schema(path)
        return found

    def selection(self) -> dict[str, str]:
        if self.topics is not None and self.pattern is not None:
            raise OptionError("--pattern", "give one of --topics and --pattern")
        if self.topics is not None:
            return {"subscribe": self.topics}
        return {"subscribePattern": self.pattern or ".*", "allowEmpty": "true"}

    def is_meant(self) -> Callable[[str], bool]:
        """Whether upkeep is for a topic."""
        if self.topics is not None:
            return frozenset(name.strip() for name in self.topics.split(",")).__contains__
        import re

        return lambda topic: self.pattern is None or re.fullmatch(self.pattern, topic, re.ASCII) is not None


def run(
    shared: Shared,
    options: Archive,
    *,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="The store: the directory that holds commitlog/; in its place --name-server. Without both, the table alone.",
        ),
    ] = None,
    connection: Connection = NO_CLUSTER,
) -> JobReport:
    schemas = options.schemas()
    place, keep = options.place(), [] if options.keep is None else parse_keep(options.keep, "--keep")
    if options.vacuum is not None and options.vacuum < LEAST_VACUUM_MS:
        raise OptionError("--vacuum", "younger files may be in use by readers and archivers: 7d at least")
    source = _source(shared, options, path, connection)
    if source is None and not (schemas or options.compact or keep or options.vacuum is not None or options.verify):
        rule = "give PATH or --name-server, or say what to do with the table: --verify, --values, --compact, --keep or --vacuum"
        raise OptionError("--name-server", rule)
    makes = source is not None and not options.dry_run
    table = open_or_make(place) if makes else ArchiveTable.open(place)
    report = _Report()
    if source is not None:
        tasks = _with_spark(write_task, options.master)
        with progress_bar("archiving", "messages") as progress:
            done = archive_once(
                source,
                table,
                tasks,
                max_offsets=options.max_offsets,
                file_rows=options.file_rows,
                dry_run=options.dry_run,
                begins_anew=options.new_incarnation,
                on_commit=lambda report: progress(report.offsets, report.all_offsets),
            )
        report.add_archived(done, dry_run=options.dry_run)
    if schemas and not options.dry_run:
        _write_typed(options, schemas, table, report)
    _keep_up(options, keep, table, report)
    if options.verify:
        report.add_findings(verify(table, options.is_meant()))
    return report.made(table)


def _write_typed(options: Archive, schemas: Mapping[str, ValueSchema], table: ArchiveTable, report: _Report) -> None:
    from spark_mq.archive.typed import SESSION, write_typed
    from spark_mq.session import build_session
    from spark_mq.values import parse_values, value_fields

    for topic, schema in schemas.items():
        spark = build_session("spark_mq archive", master=options.master, config=SESSION)
        fields = value_fields(spark, schema)
        report.add_typed(write_typed(spark, table, topic, partial(parse_values, schema=schema), fields))


def _keep_up(options: Archive, keep: Sequence[Any], table: ArchiveTable, report: _Report) -> None:
    upkeep = UpkeepReport()
    if keep:
        try:
            drop_old_days(table, keep, upkeep, topics=options.is_meant(), dry_run=options.dry_run)
        except ArchiveConflictError:
            upkeep.conflicts += 1
    if options.compact:
        tasks = _with_spark(write_joined, options.master)
        compact(table, tasks, upkeep, topics=options.is_meant(), dry_run=options.dry_run)
    if options.vacuum is not None:
        vacuum(table, options.vacuum, upkeep, dry_run=options.dry_run)
    report.add_upkeep(upkeep, options)


def _source(shared: Shared, options: Archive, path: str | None, connection: Connection) -> SourceOptions | None:
    """The source's options; None if only the table is meant. Raises OptionError."""
    if path is None and not connection.is_given:
        return None
    place: dict[str, str]
    if connection.is_chosen(path):
        if shared.conf is not None:
            raise OptionError("--conf", "is for stores: leave it away with --name-server")
        place = connection.cluster().to_options()
    else:
        place = {"path": path or ""} | ({} if shared.conf is None else {"conf": shared.conf})
    return SourceOptions.parse(place | options.selection(), "batch")


def _with_spark(task: Callable[[T], R], master: str | None) -> Callable[[Sequence[T]], list[R]]:
    """Runs a function for each of its tasks in Spark's; the session begins with the first."""

    def run_tasks(tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []
        from spark_mq.session import build_session

        spark = build_session("spark_mq archive", master=master)
        try:
            found: list[R] = (
                spark.sparkContext.parallelize(list(tasks), min(len(tasks), _MOST_TASKS))
                .map(partial(noting_what_may_pass, task))
                .collect()
            )
        except Exception as error:
            named = from_task(str(error))
            if named is None:
                raise
            raise named from error
        return found

    return run_tasks


class _Report:
    """Lines and figures of a run."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._figures: dict[str, object] = {}
        self._typed: dict[str, object] = {}
        self._is_idle = True
        self._is_busy = False
        self._exit_code = 0

    def add_archived(self, done: ArchiveReport, *, dry_run: bool) -> None:
        rows = sum(done.rows.values())
        if dry_run:
            left = {str(queue): list(bounds) for queue, bounds in done.left.items() if bounds[1] > bounds[0]}
            self._lines += [f"would archive {queue}: offsets [{start}, {end})" for queue, (start, end) in left.items()]
            self._figures["would_archive"] = left
        elif done.commits:
            self._lines.append(
                f"archived {rows:,} messages of {len(done.rows)} topics: {done.files} files of {done.size_bytes:,} bytes, "
                f"{done.commits} commits, version {done.version}"
            )
        for gap in done.gaps:
            self._lines.append(
                f"gap: queue {gap.queue}, offsets [{gap.start}, {gap.end}) expired before they were archived"
            )
        for queue, incarnation in done.new_lives:
            self._lines.append(
                f"queue {queue} begins anew: incarnation {incarnation}; what its log had unarchived before is lost"
            )
        for queue, rule in done.refused.items():
            self._lines.append(f"refused: queue {queue}: {rule}")
        if done.conflict is not None:
            self._lines.append(f"another run archives the same: run again for the rest: {done.conflict}")
            self._is_busy = True
        self._figures |= {
            "rows": dict(done.rows),
            "files": done.files,
            "bytes": done.size_bytes,
            "commits": done.commits,
            "conflicts": done.conflicts,
            "gaps": [[str(gap.queue), gap.incarnation, gap.start, gap.end] for gap in done.gaps],
            "new_incarnations": {str(queue): number for queue, number in done.new_lives},
            "refused": {str(queue): rule for queue, rule in done.refused.items()},
        }
        self._is_idle = self._is_idle and not done.commits
        if done.refused or (done.gaps and not dry_run) or done.new_lives:
            self._exit_code = 1

    def add_typed(self, done: TypedReport) -> None:
        if done.rows:
            self._lines.append(f"typed {done.rows:,} messages of {done.topic}; {done.failed:,} are not of the schema")
        if done.new_fields:
            self._lines.append(f"the typed table of {done.topic} has new fields: {', '.join(done.new_fields)}")
        if done.is_conflict:
            self._lines.append(f"another run typed messages of {done.topic} meanwhile: run again for the rest")
        typed = {"rows": done.rows, "failed": done.failed, "new_fields": list(done.new_fields)}
        self._figures["typed"] = {**self._typed, done.topic: typed}
        self._typed[done.topic] = typed
        self._is_idle = self._is_idle and not done.rows

    def add_upkeep(self, done: UpkeepReport, options: Archive) -> None:
        would = "would have " if options.dry_run else ""
        if options.keep is not None:
            for topic, count in sorted(done.dropped_files.items()):
                self._lines.append(f"{would}dropped {count} files of {done.dropped_rows[topic]:,} messages of {topic}")
            self._figures |= {"dropped_files": done.dropped_files, "dropped_rows": done.dropped_rows}
        if options.compact:
            if done.joined_files:
                self._lines.append(f"{would}joined {done.joined_files} files into {done.into_files}")
            self._figures |= {"joined_files": done.joined_files, "into_files": done.into_files}
        if options.vacuum is not None:
            self._lines.append(f"{would}deleted {len(done.deleted_files)} unused files")
            self._figures["deleted_files"] = done.deleted_files
        for topic, reason in done.unread.items():
            self._lines.append(f"left: topic {topic}: {reason}")
            self._figures["unread_topics"] = done.unread
            self._exit_code = 1
        if done.conflicts:
            self._lines.append(f"{done.conflicts} commits met another process's: run again for the rest")
            self._figures["upkeep_conflicts"] = done.conflicts
        self._is_idle = self._is_idle and not (done.joined_files or done.dropped_files or done.deleted_files)

    def add_findings(self, findings: Sequence[Finding]) -> None:
        self._lines += [f"{each.kind}: {each.text}" for each in findings]
        self._figures["findings"] = [{"kind": each.kind, "text": each.text} for each in findings]
        if findings:
            self._exit_code = 1
        else:
            self._lines.append("verified: no file is missing, no row is doubled, and every gap is named")

    def made(self, table: ArchiveTable) -> JobReport:
        figures = {**self._figures, "version": table.version}
        return JobReport(
            self._lines or ["nothing new"],
            self._exit_code,
            is_idle=self._is_idle,
            is_busy=self._is_busy,
            figures=figures,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
