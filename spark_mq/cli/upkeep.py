"""Commands that look after a store and its surroundings: recover, repair, quarantine, verify, convert, bind-log, doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import message_line
from spark_mq.cli.places import AsJson, Topic
from spark_mq.cli.stores import OneStorePath, one_store, store_to_write
from spark_mq.command_options import LOCK_TIMEOUT_MS, Conf, LockTimeout
from spark_mq.doctor import Severity, check_settings, diagnose
from spark_mq.terminal import CommandError, busy, print_json, print_table, progress_bar, say, time_in_words
from storage import open_store
from storage.convert import Conversion
from storage.convert import convert as convert_store
from storage.dispatch.recovery_plan import LoweredOffset, RecoveryReport
from storage.epoch_times import current_time_ms
from storage.errors import StoreDamagedError
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import file_system_of, plain_path
from storage.recovery.opening import bind_log as bind
from storage.recovery.quarantine import Quarantine, list_quarantines, quarantine_directory, read_quarantine
from storage.settings.load import StoreConfig, load_config, parse_config, read_configuration
from storage.tables.surroundings import binding_path


class Policy(StrEnum):
    """The action for a log that is damaged in the middle."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


def recover(
    path: OneStorePath,
    policy: Annotated[
        Policy,
        typer.Option("--policy", help="truncate: what the command repair does."),
    ] = Policy.REFUSE,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Recover a store after a crash.

    The command opens it for writing: that cuts the torn tail, completes queues and index and finishes decided batches of sinks. Then it
    closes the store cleanly. The broker must be stopped. A log that is damaged in the middle is refused, and nothing changes.
    """
    _mend(path, conf, as_json=as_json, truncate_damage=policy is Policy.TRUNCATE)


def repair(path: OneStorePath, conf: Conf = None, as_json: AsJson = False) -> None:
    """Cut a damaged log, and keep a copy of what is cut.

    The cut is at the bad record, as a broker would make it; the rest is as with recover. The copy is a quarantine: a directory under
    spark_mq/quarantine in the store, whose messages the command quarantine prints. If there is no room for it nothing is cut. The
    broker must be stopped.
    """
    _mend(path, conf, as_json=as_json, truncate_damage=True)


def _mend(path: str, conf: str | None, *, as_json: bool, truncate_damage: bool) -> None:
    root = one_store(path, to_write=True)
    try:
        with (
            progress_bar("recovering") as progress,
            open_store(
                root, config=conf, read_only=False, truncate_damage=truncate_damage, on_progress=progress
            ) as store,
        ):
            # Where the last writer's hint held there was nothing to look for.
            report = store.recovery or RecoveryReport(was_clean=False, log_end=store.log_end)
            finished, lowered = store.finished_batches, store.lowered
    except StoreDamagedError as error:
        if not as_json:
            raise
        print_json(
            {
                "store": root,
                "damage": {
                    "file": error.file,
                    "position": error.position,
                    "commitlog_offset": error.commitlog_offset,
                    "field": error.field,
                    "intact_records_behind": error.intact_records_behind,
                },
                "hint": error.hint,
            }
        )
        raise typer.Exit(1) from error
    if as_json:
        print_json(
            {
                "store": root,
                **_recovery_json(report),
                "lowered_offsets": [each._asdict() for each in lowered],
                "finished_batches": finished,
            }
        )
    else:
        _print_recovery(root, report, lowered, finished)


def _recovery_json(report: RecoveryReport) -> dict[str, object]:
    return {
        "was_clean": report.was_clean,
        "log_end": report.log_end,
        "cut_bytes": report.cut_bytes,
        "cut_at": report.cut_at,
        "cut_entries": report.cut_entries,
        "added_entries": report.added_entries,
        "indexed_keys": report.indexed_keys,
        "rebuilt_queues": [{"topic": topic, "queue_id": queue_id} for topic, queue_id in report.rebuilt_queues],
        "holes": [
            {"topic": topic, "queue_id": queue_id, "from": start, "to": end}
            for topic, queue_id, start, end in report.holes
        ],
        "misnumbered": [
            {
                "topic": found.topic,
                "queue_id": found.queue_id,
                "queue_offset": found.queue_offset,
                "stated": found.stated,
                "commitlog_offset": found.commitlog_offset,
            }
            for found in report.misnumbered
        ],
        "removed_files": report.removed_files,
        "quarantine": report.quarantine,
        "quarantined_records": report.quarantined_records,
    }


def _print_recovery(
    root: str, report: RecoveryReport, lowered: tuple[LoweredOffset, ...], finished_batches: int
) -> None:
    rows = [
        ("it was closed", "cleanly" if report.was_clean else "not at all: the abort file stood"),
        ("end of the log", f"{report.log_end:,}"),
        ("cut from the log", f"{report.cut_bytes:,} bytes"),
        ("because of", report.cut_at),
        ("copied before", _quarantine_text(root, report)),
        ("queue entries cut", f"{report.cut_entries:,}"),
        ("queue entries added", f"{report.added_entries:,}"),
        ("index keys added", f"{report.indexed_keys:,}"),
        ("queues built anew", ", ".join(f"{topic} queue {queue_id}" for topic, queue_id in report.rebuilt_queues)),
        (
            "offsets without a message",
            ", ".join(f"{t} queue {q}: {start} to {end}" for t, q, start, end in report.holes),
        ),
        ("records with a wrong queue offset", "; ".join(map(str, report.misnumbered))),
        ("files removed", ", ".join(report.removed_files)),
        ("offsets ahead of the log, lowered", f"{len(lowered):,}"),
        ("decided batches finished", f"{finished_batches:,}"),
    ]
    print_table(("recovered", root), [(what, value or None) for what, value in rows])
    say_lowered(lowered)


def _quarantine_text(root: str, report: RecoveryReport) -> str | None:
    if report.quarantine is None:
        return None
    name = report.quarantine.rpartition("/")[2]
    return f"{report.quarantined_records:,} intact message(s); spark-mq quarantine {root} {name} prints them"


def quarantine(
    path: OneStorePath,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, help="Print the messages of this one.")
    ] = None,
    topic: Topic = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """List and print what was cut from a log.

    A quarantine is a directory with a copy of what was cut. With NAME the command prints its messages, as dump does with --bodies.
    `spark-mq produce PATH --json` reads such lines, so messages can be put back: pick them first, some may be in the store again. The
    command only reads, and takes no lock. Delete a quarantine when it is not needed any more.
    """
    root = one_store(path)
    files = file_system_of(root)
    found = list_quarantines(files, root)
    if name is None:
        _print_quarantines(root, found, as_json=as_json)
        return
    wanted = next((one for one in found if one.name == name), None)
    if wanted is None:
        known = ", ".join(one.name for one in found) or "there is none"
        raise CommandError(f"no quarantine {name} in {quarantine_directory(root)}", f"there: {known}")
    messages = (message for message in read_quarantine(files, wanted) if topic in (None, message.topic))
    for message in islice(messages, limit):
        print_json(message_line(message, body=True))


def _print_quarantines(root: str, found: list[Quarantine], *, as_json: bool) -> None:
    if as_json:
        print_json([_quarantine_json(one) for one in found])
    elif found:
        now_ms = current_time_ms()
        print_table(
            ("name", "made", "intact messages", "bytes", "cut at", "because of"),
            [
                (
                    one.name,
                    time_in_words(one.made_ms, now_ms),
                    one.intact_records,
                    one.size_bytes,
                    one.commitlog_offset,
                    one.reason,
                )
                for one in found
            ],
        )
    else:
        say(f"nothing was cut from {root} that may have been a message")


def _quarantine_json(one: Quarantine) -> dict[str, Any]:
    return {
        "name": one.name,
        "directory": one.directory,
        "made_ms": one.made_ms,
        "intact_records": one.intact_records,
        "size_bytes": one.size_bytes,
        "commitlog_offset": one.commitlog_offset,
        "reason": one.reason,
    }


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False, help="The store of a group's broker.")],
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", show_default=False, help="The new store: nothing yet, or an empty directory."),
    ],
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Make a plain store of a DLedger group's.

    This is the way out of DLedger (enableDLegerCommitLog): a master of Apache RocketMQ or of this package starts on the new store. Stop
    the group, then convert the store of its last leader; the others can follow the new master. The source does not change.

    Messages keep queue offsets, times, keys and bodies; groups keep their offsets. Their places in the log change, and with them the
    offset message ids. A run that was killed leaves TARGET.converting, which the next run makes anew.
    """
    root = one_store(source, to_write=True)
    with progress_bar("converting") as progress:
        made = convert_store(root, plain_path(target), config=conf, on_progress=progress)
    settings = {
        "storePathRootDir": made.target,
        "mappedFileSizeCommitLog": str(made.log_file_size_bytes),
        "mappedFileSizeConsumeQueue": str(made.queue_file_size_bytes),
    }
    if as_json:
        print_json({**_conversion_json(made), "settings": settings})
        return
    say(f"{made.records:,} messages of {made.source} are in {made.target}")
    say(f"the group's last entry is {made.last_index} of term {made.last_term}: no other peer should have a later one")
    if made.uncommitted:
        say(f"{made.uncommitted:,} of its entries came after the last one that this peer knew to be on a majority")
    say_lowered(made.lowered)
    say("a broker.conf for it has, in place of enableDLegerCommitLog and dLeger…:")
    for name, value in settings.items():
        say(f"  {name}={value}")


def _conversion_json(made: Conversion) -> dict[str, object]:
    return {
        "source": made.source,
        "target": made.target,
        "messages": made.records,
        "log_start": made.log_start,
        "log_end": made.log_end,
        "last_index": made.last_index,
        "last_term": made.last_term,
        "uncommitted": made.uncommitted,
        "lowered_offsets": [each._asdict() for each in made.lowered],
    }


def bind_log(
    path: OneStorePath, conf: Conf = None, lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS, as_json: AsJson = False
) -> None:
    """Allow writing to a log outside the store's directory.

    broker.conf names such a log, or the link commitlog leads to it. The broker must be stopped. Queues and checkpoint are compared with
    the log first, and a log of another store is refused. The binding is a file in the store; a copy of the store is not bound.
    """
    root, _ = store_to_write(path)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    with busy("comparing"):
        bound = bind(root, config, files, lock_timeout_ms=lock_timeout_ms)
    if bound is None:
        raise CommandError(f"the log of {root} lies in its own directory", "such a store needs no binding")
    if as_json:
        print_json({"store": root, "log": list(bound), "binding": binding_path(root)})
    else:
        say(f"{root} is bound to {' and '.join(bound)}")


def verify(path: OneStorePath, conf: Conf = None, as_json: AsJson = False) -> None:
    """Compare queues, index and checkpoint with the log.

    The command only reads. Exit code 1 if something differs.
    """
    root = one_store(path)
    with progress_bar("comparing") as progress:
        report = verify_store(root, conf=conf, on_progress=progress)
    if as_json:
        print_json(
            {
                "store": root,
                "log_start": report.log_start,
                "log_end": report.log_end,
                "records": report.records,
                "queue_entries": report.queue_entries,
                "index_keys": report.index_keys,
                "undispatched_bytes": report.undispatched_bytes,
                "torn_records": report.torn_records,
                "deleted_topics": report.deleted_topics,
                "findings": [asdict(finding) for finding in report.findings],
            }
        )
    else:
        say(
            f"{report.records:,} records, {report.queue_entries:,} queue entries and {report.index_keys:,} keys compared"
        )
        for note in (
            f"{report.undispatched_bytes:,} bytes of the log are not dispatched yet"
            if report.undispatched_bytes
            else "",
            f"{report.torn_records} record(s) lost their last bytes in a crash" if report.torn_records else "",
            f"deleted, but still in the log: {', '.join(report.deleted_topics)}" if report.deleted_topics else "",
        ):
            if note:
                say(f"note: {note}")
        if report.findings:
            print_table(
                ("what", "where", "count", "first one"),
                [
                    (finding.kind.replace("_", " "), finding.where, finding.count, finding.example)
                    for finding in report.findings
                ],
            )
        else:
            say("nothing differs")
    if report.findings:
        raise typer.Exit(1)


def doctor(
    path: Annotated[
        str | None, typer.Argument(help="A store, whose broker.conf is looked at too.", show_default=False)
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Find what keeps Spark from working here.

    The command says the cure, too. With a store or --conf it also finds settings that keep spark_mq from the store, or that it does
    not follow. Exit code 1 for an error: Spark will fail, or the store cannot be read. A warning concerns sessions that
    spark_mq.build_session did not make, or a store that cannot be written; a note is worth knowing. With these alone the exit code is
    0.
    """
    with busy("looking"):
        findings = [*diagnose(), *check_settings(_settings_of(path, conf))]
        findings.sort(key=lambda finding: list(Severity).index(finding.severity))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif findings:
        print_table(
            ("", "what", "where", "cure"),
            [(finding.severity, finding.what, finding.where, finding.cure) for finding in findings],
        )
    else:
        say("nothing found: Spark should work here")
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _settings_of(path: str | None, conf: str | None) -> StoreConfig:
    """The settings of broker.conf; the defaults if there is none."""
    if path is None and conf is None:
        return StoreConfig()
    root = one_store(path) if path is not None else "."
    read_bytes = file_system_of(root).read_file
    file, content = read_configuration(root, conf, read_bytes=read_bytes)
    return parse_config(content, file)


_LOWERED = 20


def say_lowered(lowered: Sequence[LoweredOffset]) -> None:
    """The offsets that were ahead of the log, one on a line; of very many, the first ones."""
    for each in lowered[:_LOWERED]:
        say(f"lowered: {each}")
    if len(lowered) > _LOWERED:
        say(f"lowered: {len(lowered) - _LOWERED:,} more; --json lists them")
