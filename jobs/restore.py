"""Put archived messages back into a store or a cluster, each once, with an audit table of what was put where.

    python -m jobs.restore PATH --table URL --topic TOPIC --audit URL [--to TOPIC] [--since TIME] [--until TIME]
        [--keep-unique-key] [--any-queue] [--dry-run]

Messages of the window are those stored in [since, until). They keep body, tags, keys, properties, flag, time of birth and queue;
`--any-queue` lets the broker's rules choose the queue. Without `--keep-unique-key` each gets a new unique key. They are read from the
table alone, by Spark, and written by the sink in one commit a plan (`spark_mq/archive/restore.py`). With `--name-server` in place of
PATH they are sent to a running cluster, and `--staging` names the directory that its exactly-once sends need.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.run import JobReport, Shared, StorePathUnlessCluster, run_job
from spark_mq.archive.restore import (
    ANY_QUEUE,
    COLUMNS,
    KEEP_UNIQUE_KEY,
    RestoreAudit,
    RestorePlan,
    RestoreReport,
    read_options,
    restore_once,
    target_of,
)
from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.conditions import OptionError
from spark_mq.source.archive_table import ArchiveTable, Place
from spark_mq.source.options import SourceOptions
from storage.files.remote import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Which messages are put back, and where: the job's own options."""

    table: Annotated[
        str, typer.Option("--table", metavar="URL", show_default=False, help="The archive: a Delta table.")
    ]
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", show_default=False, help="The archived topic.")]
    audit: Annotated[
        str, typer.Option("--audit", metavar="URL", show_default=False, help="Delta table of what was put where.")
    ]
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Into this topic; without it the same.")] = (
        None
    )
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Stored since: ISO-8601, ms, or -2h.")
    ] = None
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stored before; as --since.")] = None
    keep_unique_key: Annotated[
        bool, typer.Option("--keep-unique-key", help="Keep unique keys; without it each message gets a new one.")
    ] = False
    any_queue: Annotated[bool, typer.Option("--any-queue", help="Into any queue; without it into the same.")] = False
    staging: Annotated[
        str | None,
        typer.Option("--staging", metavar="DIR", help="With --name-server: a directory that driver and workers share."),
    ] = None
    storage: Annotated[
        list[str] | None,
        typer.Option("--storage", metavar="NAME=VALUE", help="A storage option of delta-rs; may be repeated."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be put back, and write nothing.")] = False
    master: Annotated[
        str | None, typer.Option("--master", help="Spark's master; without it spark-submit's, else local[*].")
    ] = None

    def window(self, place: Place) -> SourceOptions:
        """The source's options for the archive alone."""
        given = {"archive": place.url, "topic": self.topic, "startingOffsetsByTimestampStrategy": "latest"}
        for name, text in (("startingTimestamp", self.since), ("endingTimestamp", self.until)):
            if text is not None:
                given[name] = text
        if place.storage:
            import json

            given["archiveStorage"] = json.dumps(dict(place.storage))
        return SourceOptions.parse(given, "batch")


def run(
    shared: Shared,
    options: Restore,
    *,
    path: StorePathUnlessCluster = None,
    connection: Connection = NO_CLUSTER,
) -> JobReport:
    sink = _sink(shared, options, path, connection)
    place, audit_place = Place.given(options.table, options.storage), Place.given(options.audit, options.storage)
    topic = options.to or options.topic
    target = target_of(sink, topic)
    chosen = {KEEP_UNIQUE_KEY: options.keep_unique_key, ANY_QUEUE: options.any_queue}
    table = ArchiveTable.open(place)
    audit = RestoreAudit(audit_place, options.topic, target)

    def write(plan: RestorePlan) -> None:
        from spark_mq.replay_audit import failures_in_one_line
        from spark_mq.session import build_session

        settings = plan.settings.split(",")
        spark = build_session("spark_mq restore", master=options.master)
        reader = spark.read.format("spark_mq").options(**read_options(place, plan)).option("columns", COLUMNS)
        with failures_in_one_line(f"plan {plan.plan_id}"):
            rows: DataFrame = reader.load()
            if ANY_QUEUE in settings:
                rows = rows.drop("queue_id")
            rows.write.format("spark_mq").mode("append").options(**sink).option("topic", topic).option(
                KEEP_UNIQUE_KEY, KEEP_UNIQUE_KEY in settings
            ).option("writeId", plan.plan_id).save()

    done = restore_once(
        options.window(place),
        table,
        audit,
        target,
        write,
        settings=[name for name, is_chosen in chosen.items() if is_chosen],
        dry_run=options.dry_run,
    )
    return _told(done, dry_run=options.dry_run)


def _told(done: RestoreReport, *, dry_run: bool) -> JobReport:
    would = "would put back" if dry_run else "put back"
    finished = "would finish" if dry_run else "finished"
    lines = [f"{finished} {done.finished} plans of earlier runs"] if done.finished else []
    lines += [f"{would} queue {each.queue}: offsets [{each.start}, {each.end})" for each in done.ranges]
    lines += [f"gap: {loss}" for loss in done.losses]
    lines += [
        f"left: plan {name} of an earlier run cannot be finished, and nothing says whether it was written: {reason}"
        for name, reason in done.stuck.items()
    ]
    if done.conflict is not None:
        lines.append(f"another run restores the same: run again for the rest: {done.conflict}")
    figures = {
        "finished": done.finished,
        "ranges": [[str(each.queue), each.incarnation, each.start, each.end] for each in done.ranges],
        "gaps": [[str(loss.queue), loss.incarnation, loss.start, loss.end] for loss in done.losses],
        "unfinished_plans": done.stuck,
        "conflict": done.conflict,
    }
    return JobReport(
        lines or ["nothing to put back"],
        exit_code=1 if done.stuck else 0,
        is_idle=not (done.finished or done.ranges),
        is_busy=done.conflict is not None,
        figures=figures,
    )


def _sink(shared: Shared, options: Restore, path: str | None, connection: Connection) -> dict[str, str]:
    """The sink's options. Raises OptionError."""
    if not connection.is_chosen(path):
        if options.staging is not None:
            raise OptionError("--staging", "belongs to --name-server, and a store is named")
        conf = {} if shared.conf is None else {"conf": absolute_path(shared.conf)}
        return {"path": absolute_path(path or ""), **conf}
    if shared.conf is not None:
        raise OptionError("--conf", "is for stores: leave it away with --name-server")
    if options.staging is None:
        raise OptionError("--staging", "each once at a cluster needs a directory that driver and workers share")
    return {
        **connection.cluster().to_options(),
        "stagingPath": absolute_path(options.staging),
        "guarantee": "exactlyOnce",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
