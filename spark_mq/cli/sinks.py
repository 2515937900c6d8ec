"""Commands about what sinks have written, and what they left: sink-status, close."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spark_mq.cli.places import AsJson
from spark_mq.cli.stores import OneStorePath, one_store
from spark_mq.cli.upkeep import say_lowered
from spark_mq.command_options import LOCK_TIMEOUT_MS, Conf, LockTimeout
from spark_mq.options import parse_duration_ms
from spark_mq.terminal import (
    CommandError,
    duration_in_words,
    print_json,
    print_table,
    progress_bar,
    say,
    time_text,
)
from storage import MessageStore, open_store
from storage.batch.ledger import QUEUE_ID, TOPIC, BatchLedger
from storage.batch.sink_progress import (
    SinkProgress,
    SinkStatus,
    StagedFile,
    confirm_progress,
    read_sink_status,
    remove_orphans,
)
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import load_config
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.sink_notes import BatchNote, BatchNotes, load_batch_notes, load_ledger_notes, unmarked_end_of
from storage.tables.surroundings import OF_A_SINK, refuse_foreign_log


def sink_status(
    path: OneStorePath,
    remove: Annotated[
        bool, typer.Option("--remove-orphans", help="First delete old staged files that no intent names.")
    ] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="With --remove-orphans: not written to for so long.")
    ] = "1d",
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Show what Spark sinks have written to a store.

    That is the last batches of each sink, decided batches and staged files. The command only reads, and takes no lock. A staged file
    that no intent names belongs to a running task, waits for its commit, or was left by a task that died: its age shows which.
    """
    root = one_store(path)
    age_ms = parse_duration_ms(older_than, "--older-than")
    removed = None
    if remove:
        files = LocalFileSystem()
        refuse_foreign_log(root, load_config(root, conf, read_bytes=files.read_file), files, OF_A_SINK)
        removed = remove_orphans(root, files, before_ms=current_time_ms() - age_ms, lock_timeout_ms=lock_timeout_ms)
    status, notes = status_of(root, conf=conf), load_batch_notes(LocalFileSystem(), root)
    if as_json:
        found = {"store": root, **_status_json(status), "batches": _batches_json(notes)}
        print_json(found if removed is None else {**found, "removed": _files(removed)})
        return
    if removed is not None:
        size = sum(file.size_bytes for file in removed)
        say(f"{len(removed)} staged file(s) of {size:,} bytes removed")
    now_ms = current_time_ms()
    print_status(status, now_ms=now_ms, has_batches=bool(notes))
    _print_batches(notes, now_ms)


def _print_batches(notes: BatchNotes, now_ms: int) -> None:
    """A line for each topic of each batch."""
    rows = [
        (sink, note.batch_id, topic or "others", put.messages, put.size_bytes, *_times(note, now_ms))
        for sink, batches in notes.items()
        for note in batches
        for topic, put in note.topics.items()
    ]
    if rows:
        columns = ("sink", "batch", "topic", "messages", "bytes", "waited ms", "took ms", "ago")
        print_table(columns, rows, title="\nlast batches")


def _times(note: BatchNote, now_ms: int) -> tuple[int, int, str]:
    return note.waited_ms, note.took_ms, duration_in_words(max(0, now_ms - note.done_ms))


def _batches_json(notes: BatchNotes) -> list[dict[str, Any]]:
    return [
        {
            "sink_id": sink,
            "query_id": note.query_id,
            "batch": note.batch_id,
            "done": time_text(note.done_ms),
            "rows": note.rows,
            "waited_ms": note.waited_ms,
            "took_ms": note.took_ms,
            "topics": {
                topic: {"messages": put.messages, "bytes": put.size_bytes} for topic, put in note.topics.items()
            },
        }
        for sink, batches in notes.items()
        for note in batches
    ]


def status_of(root: str, *, conf: str | None = None) -> SinkStatus:
    """The sinks of the store at ROOT. Raises CommandError for a store that cannot have any."""
    with open_store(root, config=conf) as store:
        if not LocalFileSystem().exists(root):
            raise CommandError(f"{root} is not local, and sinks write local stores only")
        return status_in(store)


def status_in(store: MessageStore) -> SinkStatus:
    """The sinks of an open store on a local disk, as far as it was followed."""
    notes = load_ledger_notes(LocalFileSystem(), store.root)
    ledger = BatchLedger(
        store.log,
        store.queues.get(TOPIC, QUEUE_ID),
        store.max_offset(TOPIC, QUEUE_ID),
        store.log_end,
        unmarked_end=unmarked_end_of(notes, store.log_end),
    )
    offsets = store.state(OFFSETS_FILE, ConsumerOffsets.load) or ConsumerOffsets()
    return read_sink_status(store.root, ledger, notes, offsets, LocalFileSystem())


def print_status(status: SinkStatus, *, now_ms: int, has_batches: bool = False) -> None:
    """As tables; what there is nothing of is left out. `has_batches`: a table of batches follows, writes without a name among them."""
    if not status.sinks and not status.intents:
        say("no sink with a name has written here" if has_batches else "no sink has written here")
    if status.sinks:
        print_table(("sink", "query", "last batch"), [_shown(sink) for sink in status.sinks])
    for sink in status.sinks:
        known = -1 if sink.last_batch_id is None else sink.last_batch_id
        if sink.mirrored_batch_id is not None and sink.mirrored_batch_id > known:
            say(
                f"sink {sink.sink_id}: its consumer offset says batch {sink.mirrored_batch_id}, the ledger does not; "
                "its next commit fails until `spark-mq confirm-sink`"
            )
    if status.intents:
        print_table(
            ("sink", "query", "batch", "rows", "bytes", "state"),
            [
                (*intent.batch, intent.row_count, intent.size_bytes, _state(intent.is_finished))
                for intent in status.intents
            ],
            title="\ndecided batches",
        )
    if status.orphans:
        print_table(
            ("file", "bytes", "untouched for"),
            [
                (file.path, file.size_bytes, duration_in_words(max(0, now_ms - file.modified_ms)))
                for file in status.orphans
            ],
            title="\nstaged, and named by no decided batch",
        )
    if status.pool_files:
        say(f"{status.pool_files} used file(s) of {status.pool_bytes:,} bytes wait to be written over")


def _shown(sink: SinkProgress) -> tuple[str, str | None, int | str]:
    return sink.sink_id, sink.query_id, "not known" if sink.last_batch_id is None else sink.last_batch_id


def _state(is_finished: bool) -> str:
    return "in the log; kept until that is synced" if is_finished else "the next opening for writing finishes it"


def _status_json(status: SinkStatus) -> dict[str, Any]:
    return {
        "sinks": [
            {
                "sink_id": sink.sink_id,
                "query_id": sink.query_id,
                "last_batch": sink.last_batch_id,
                "consumer_offset_batch": sink.mirrored_batch_id,
            }
            for sink in status.sinks
        ],
        "intents": [
            {
                "sink_id": intent.batch.sink_id,
                "query_id": intent.batch.query_id,
                "batch": intent.batch.batch_id,
                "rows": intent.row_count,
                "bytes": intent.size_bytes,
                "finished": intent.is_finished,
            }
            for intent in status.intents
        ],
        "orphans": _files(status.orphans),
        "pool": {"files": status.pool_files, "bytes": status.pool_bytes},
    }


def _files(files: list[StagedFile] | tuple[StagedFile, ...]) -> list[dict[str, Any]]:
    return [{"path": file.path, "bytes": file.size_bytes, "modified": time_text(file.modified_ms)} for file in files]


def close(
    path: OneStorePath,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Close a store that sinks have written to.

    The command recovers the store, finishes decided batches, syncs everything and removes `abort`. A broker that starts afterwards
    finds a clean stop. It is not needed between a query's batches.
    """
    root = one_store(path, to_write=True)
    with (
        progress_bar("closing") as progress,
        open_store(root, config=conf, read_only=False, lock_timeout_ms=lock_timeout_ms, on_progress=progress) as store,
    ):
        finished, report, log_end = store.finished_batches, store.recovery, store.log_end
        lowered = store.lowered
    if as_json:
        print_json(
            {
                "store": root,
                "finished_batches": finished,
                "was_clean": report is not None and report.was_clean,
                "cut_bytes": 0 if report is None else report.cut_bytes,
                "lowered_offsets": [each._asdict() for each in lowered],
                "log_end": log_end,
            }
        )
        return
    rows = [
        ("before", "closed" if report is not None and report.was_clean else "open"),
        ("decided batches finished", f"{finished:,}"),
        ("cut from the log", f"{0 if report is None else report.cut_bytes:,} bytes"),
        ("offsets ahead of the log, lowered", f"{len(lowered):,}"),
        ("end of the log", f"{log_end:,}"),
    ]
    print_table(("closed", root), rows)
    say_lowered(lowered)


def confirm_sink(
    path: OneStorePath,
    sink_id: Annotated[str, typer.Argument(metavar="SINK", help="As sink-status shows it.")],
    last_batch: Annotated[
        int | None,
        typer.Option(
            "--last-batch", min=-1, help="Its last batch in the store, -1 = none; where the ledger cannot tell."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="The query that wrote it, if it is not named as the sink.")
    ] = None,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
) -> None:
    """Set which batch of a sink is the last in the store.

    This is the answer to SPARK_MQ_SINK_PROGRESS. If the ledger knows the batch, the sink's consumer offset is set to it. Else
    --last-batch gives it, and counts from now on.
    """
    root = one_store(path, to_write=True)
    with open_store(root, config=conf, read_only=False, lock_timeout_ms=lock_timeout_ms) as store:
        confirmed = confirm_progress(store.writer, sink_id, query or sink_id, last_batch)
    if confirmed is None and last_batch is None:
        raise CommandError(
            f"the ledger does not know sink {sink_id}; say with --last-batch which batch is its last in the store"
        )
    if confirmed is None:
        raise CommandError(
            f"the ledger knows another last batch of sink {sink_id}; leave --last-batch out to go by the ledger"
        )
    say(f"sink {sink_id}: the last batch in the store is {confirmed}")
