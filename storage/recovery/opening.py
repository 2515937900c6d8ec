"""Opening a store for writing, releasing it, closing it. Java: DefaultMessageStore.load, start and shutdown.

    open:     the hint holds → its ends;  else the reading passes of recovery · `abort` · the writing passes · checkpoint
    release:  hint written, `abort` stays: the store is between two commits
    close:    log, queues, index synced · checkpoint · `abort` deleted

The caller holds the store's lock throughout.
"""

from __future__ import annotations

import logging
import os
import posixpath
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from storage.batch.intent import load_intents
from storage.batch.redo import mend_batches
from storage.dispatch.recovery_plan import LoweredOffset, RecoveryPlan, RecoveryReport
from storage.dispatch.store_ends import (
    Hint,
    StoreEnds,
    drop_hint,
    holds,
    index_end,
    load_hint,
    queue_directories,
    save_hint,
)
from storage.errors import CorruptRecordError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import noting_failed_syncs, write_again
from storage.index.store import IndexStore, drop_index_trust
from storage.index.writer import keep_slots, kept_slots
from storage.log.checkpoint import Checkpoint
from storage.log.commit_log import CommitLog
from storage.log.damage import Crash, bridge
from storage.put.store_writer import StoreWriter
from storage.queues.store import ConsumeQueueStore
from storage.recovery.mending import apply_recovery, plan_kept_index
from storage.recovery.offsets_ahead import lower_for_cut, tables_now
from storage.recovery.passes import (
    StoreParts,
    abort_path,
    boot_left,
    count_successors,
    hold_unconfirmed,
    read_plan,
    records_behind,
)
from storage.recovery.quarantine import Quarantine, keep_what_is_cut
from storage.tables.surroundings import refuse_links

_LOG = logging.getLogger(__name__)


class Opening(NamedTuple):
    """What opening for writing found, and what it mended: None if the hint held."""

    plan: RecoveryPlan
    report: RecoveryReport | None
    ends: StoreEnds


def create_store(root: str, directories: tuple[str, ...], file_system: LocalFileSystem) -> None:
    """Make the directories of a store at ROOT, durably; existing ones stay. Files are made with the first message.

    `directories` are the log's, as `find_log` gave them for writing: they are in ROOT, or ROOT is bound to them. The caller holds the
    store's lock, whose file may be all that exists. It syncs ROOT if a process may have been killed that made the directories.
    """
    for directory in (*directories, f"{root}/consumequeue", f"{root}/index", f"{root}/config"):
        if posixpath.dirname(directory) != root or not file_system.exists(directory):
            file_system.make_directories(directory)


def sync_new_store(root: str, file_system: LocalFileSystem) -> None:
    """Sync ROOT's name, and those of the directories in it."""
    file_system.sync(root)
    file_system.sync(posixpath.dirname(root) or ".")


def open_for_writing(
    parts: StoreParts,
    *,
    truncate_damage: bool,
    on_progress: Callable[[int, int], None] | None = None,
    cuts_torn: bool = False,
    holds_back: bool = False,
    finishes: bool = True,
) -> Opening:
    """Prepare the store for appending; afterwards `abort` exists.

    What is cut is copied to a quarantine first if it may hold messages (`quarantine.py`). Raises StoreDamagedError, or
    LogFileMissingError if the log lacks a file, unless `truncate_damage`. Raises StoreRefusedError for a link under ROOT/spark_mq,
    and StoreNotWritableError if the copy has no room, with nothing changed except the checkpoint's index time.
    With `cuts_torn` the log ends before records that a crash has torn (`plan_recovery`): a follower gets them again.
    With `holds_back` only confirmed records are dispatched, unless the opening `finishes` decided batches and there are some: then the
    queues must show which of their rows are present.
    In a log with a `committed_end`, which is a DLedger group's, nothing is written.
    """
    root, config, file_system = parts.root, parts.config, parts.file_system
    log, queues, index = parts.log, parts.queues, parts.index
    refuse_links(file_system, root)
    # A process that renamed a table may have been killed, or have failed, before it synced that.
    if file_system.exists(f"{root}/config"):
        file_system.sync(f"{root}/config")
    hint = load_hint(file_system, root)
    is_own_log = log.committed_end is None
    if is_own_log and hint is not None and not log.has_gaps and holds(hint, file_system, root, log, index):
        drop_hint(file_system, root)  # it does not cover what is written from now on
        reach("hint-dropped")
        opening = _opening_of_hint(root, hint, keeps_index=index is not None)
        if holds_back:  # only a fully dispatched store leaves a hint
            opening.ends.held_from = hint.log_end
        return opening
    left = boot_left(file_system, root)
    if left == "":  # Apache's broker had it open last
        log.has_own_queues = False
    is_restarted = has_restarted(file_system, left)
    torn_by = (Crash.MACHINE if is_restarted else Crash.PROCESS) if cuts_torn and is_own_log else None

    def plan_now() -> RecoveryPlan:
        checkpoint = parts.checkpoint()
        return read_plan(config, file_system, log, queues, checkpoint, was_clean=left is None, torn_by=torn_by)

    plan = plan_now()
    if plan.gaps:
        if not truncate_damage:
            raise plan.gaps[0].error()
        bridge(file_system, log, plan.gaps)
        plan = plan_now()
    if plan.damage is not None and not truncate_damage:
        raise plan.damage
    if holds_back:
        is_decided = finishes and bool(load_intents(file_system, root))
        confirmed = plan.log_end if is_decided else parts.checkpoint().confirm_phy_offset
        plan = hold_unconfirmed(plan, log, confirmed)
    if plan.was_clean:
        _vouch_for_index(parts)
    quarantine = _keep_what_is_cut(parts, plan) if is_own_log else None
    _remove_empty_files(
        file_system, (*(log.directories if is_own_log else ()), *(() if index is None else (index.directory,)))
    )
    drop_hint(file_system, root)
    mark_open(file_system, root, left)
    reach("abort-set")
    write_again(file_system, root)
    lowered: tuple[LoweredOffset, ...] = ()
    # Nothing was counted behind a torn tail; a follower's tables are its master's.
    if finishes and plan.damage is not None:
        behind = records_behind(log, plan.log_end, plan.last_store_time_ms)
        lowered = lower_for_cut(root, file_system, behind, now_ms=parts.clock())
    with noting_failed_syncs(file_system, root, lambda: _recovered_paths(plan, log, queues, index)):
        if log.files and is_own_log:
            mend_batches(root, file_system, log, plan.log_end, log.file_size_bytes or 0)
        report = apply_recovery(
            plan,
            parts,
            truncate_damage=truncate_damage,
            quarantine=quarantine,
            on_progress=on_progress,
            cuts_log=is_own_log,
        )
        report.lowered = lowered
        ends = report.queue_ends
        if report.cut_entries:
            _LOG.info(
                "%s: %d entries of queues that pointed behind the log's end %d, or to no record, were cut",
                *(root, report.cut_entries, plan.log_end),
            )
        plan = replace(plan, visible_ends=ends, greatest_end=report.dispatched_end, last_places={})
        _write_checkpoint(parts, plan)
        drop_index_trust(file_system, root)
    if is_restarted:
        note_start(file_system, root)  # incomplete records are cut, or kept for good; new ones are complete
    return Opening(
        plan,
        report,
        StoreEnds(
            plan.log_end,
            plan.last_record,
            dict(ends),
            checkpointed_ms=parts.clock(),
            checkpointed_end=plan.log_end,
            index_is_sound=True,
            indexed_from=None if index is None else plan.dispatch_end,  # a broker may have left gaps before that
            held_from=plan.held_from,
        ),
    )


def _recovered_paths(
    plan: RecoveryPlan, log: CommitLog, queues: ConsumeQueueStore, index: IndexStore | None
) -> list[str]:
    """The files that a recovery syncs."""
    of_log = [file.path for file in log.files if file.end > plan.walk_start]
    of_queues = [queue.path_of(start) for queue in queues for start in queue.file_starts[-1:]]
    of_queues += [path for queue in queues for path in queues.last_ext_paths(queue.topic, queue.queue_id)[:1]]
    return of_log + of_queues + ([file.path for file in index.files()] if index is not None else [])


def _keep_what_is_cut(parts: StoreParts, plan: RecoveryPlan) -> Quarantine | None:
    """Copy what recovery will cut, if it has intact records that may have followed the log's last one. None if it has none.

    Also for a torn tail: its bad record may be one that a disk spoilt after it was acknowledged.
    """
    if not parts.log.files or (plan.damage is None and not count_successors(parts.log, plan)):
        return None
    reason = plan.damage or plan.failure or _no_record(parts.log, plan.log_end)
    kept = plan_kept_index(parts, plan)
    dropped = [] if kept is None else [file.path for file in kept.dropped]
    return keep_what_is_cut(parts, plan, dropped, reason=reason)


def _no_record(log: CommitLog, log_end: int) -> CorruptRecordError:
    file = log.files[max(0, log.file_index(log_end))]
    return CorruptRecordError("magic", log_end - file.start, "a record, as others follow", "zeros", file=file.path)


def _opening_of_hint(root: str, hint: Hint, *, keeps_index: bool) -> Opening:
    ends = {(topic, queue_id): end for topic, queues in hint.queue_ends.items() for queue_id, end in queues.items()}
    plan = RecoveryPlan(False, hint.log_end, hint.log_end, hint.log_end, hint.last_record, None, None, ends, dict(ends))
    found = StoreEnds(
        hint.log_end,
        hint.last_record,
        dict(ends),
        set(hint.unsynced),
        hint.checkpointed_ms,
        hint.checkpointed_end,
        hint.marked_ends,
        open_batches=hint.open_batches,
        index_is_sound=True,
        indexed_from=(hint.log_end if hint.indexed_from is None else hint.indexed_from) if keeps_index else None,
        synced_entries=set(hint.synced_entries),
        finished_intents=set(hint.finished_intents),
        compared_tables=hint.compared_tables,
        index_slots=kept_slots(root, hint.name) if keeps_index else None,
    )
    return Opening(plan, None, found)


def release(writer: StoreWriter, index: IndexStore | None) -> None:
    """Leave the store as it is, with `abort`, and a hint for the next opening. After a failed write without a hint."""
    writer.close()
    if writer.failure is not None:
        return
    files, ends = writer.file_system, writer.ends
    queue_ends: dict[str, dict[int, int]] = {}
    for (topic, queue_id), end in ends.queue_ends.items():
        queue_ends.setdefault(topic, {})[queue_id] = end
    last_file = (
        writer.log.files[max(0, writer.log.file_index(max(0, ends.log_end - 1)))].path if writer.log.files else None
    )
    identity = None if last_file is None else files.identity(last_file)
    hint = Hint(
        abort=(files.read_file(abort_path(writer.root)) or b"").decode(errors="replace"),
        boot_id=files.boot_id(),
        log_end=ends.log_end,
        last_record=ends.last_record,
        log_file=None if last_file is None or identity is None else (last_file, identity),
        index_file=index_end(index),
        queue_directories=queue_directories(files, writer.root),
        queue_ends=queue_ends,
        unsynced=tuple(sorted(writer.unsynced_paths())),
        checkpointed_ms=ends.checkpointed_ms,
        checkpointed_end=ends.checkpointed_end,
        marked_ends=ends.ledger,
        indexed_from=ends.indexed_from,
        open_batches=ends.open_batches,
        synced_entries=tuple(sorted(ends.synced_entries)),
        finished_intents=tuple(sorted(ends.finished_intents)),
        compared_tables=None if ends.compared_tables is None else tables_now(writer.root, files),
        name=secrets.token_hex(8),
    )
    try:
        save_hint(files, writer.root, hint)
        keep_slots(writer.root, hint.name, writer.index_slots)
    except OSError:  # a full disk: what was committed stays so, and the next opening recovers
        drop_hint(files, writer.root)
    reach("hint-saved")


def close_cleanly(writer: StoreWriter) -> None:
    """Sync everything, then delete `abort`. After a failed write `abort` stays, and the next opening recovers."""
    if writer.failure is None:
        writer.checkpoint()
        drop_hint(writer.file_system, writer.root)
        reach("before-abort-drop")
        writer.file_system.unlink(abort_path(writer.root))
        reach("after-abort-drop")
        writer.file_system.sync(writer.root)
    writer.close()


def _remove_empty_files(file_system: LocalFileSystem, directories: Sequence[str]) -> None:
    """Delete files without content, which a power loss leaves of new files. A broker does not start on an empty log file."""
    for directory in directories:
        for entry in file_system.list_directory(directory):
            if not entry.is_directory and entry.size_bytes == 0 and entry.name.isdigit():
                file_system.unlink(f"{directory}/{entry.name}")


def _vouch_for_index(parts: StoreParts) -> None:
    """After a clean stop the index is complete on disk; the checkpoint says so before `abort` is made.

    A broker that found `abort` and an older time would delete index files whose keys it cannot make again.
    """
    files = parts.index.files() if parts.index is not None else []
    checkpoint = parts.checkpoint()
    if files and files[-1].header().end_time_ms > checkpoint.index_msg_timestamp:
        parts.save_checkpoint(checkpoint._replace(index_msg_timestamp=files[-1].header().end_time_ms))


def _write_checkpoint(parts: StoreParts, plan: RecoveryPlan) -> None:
    """Log, queues and index must be synced before."""
    before = parts.checkpoint()
    files = parts.index.files() if parts.index is not None else []
    last = plan.last_store_time_ms
    index_time = files[-1].header().end_time_ms if files else 0
    is_dispatched = plan.dispatch_end == plan.log_end
    queues_time = last if is_dispatched else min(last, before.logics_msg_timestamp)
    confirmed = before.confirm_phy_offset if plan.held_from is None else plan.held_from
    record = before.logics_physical_offset if before.logics_physical_offset < plan.dispatch_end else None
    if is_dispatched and plan.last_record is not None:
        record = plan.last_record.commitlog_offset
    position = before.queue_position(record, is_read=parts.config.release.checkpoint_has_queue_position)
    checkpoint = Checkpoint(last, queues_time, index_time, before.master_flushed_offset, confirmed, position)
    parts.save_checkpoint(checkpoint)


def mark_open(files: LocalFileSystem, root: str, boot: str | None = None) -> None:
    """Write ROOT/abort anew, so that no hint matches any more. Its machine start is this one, or `boot`. Durable on return.

    ROOT/abort exists while a store is open for writing: an opening that finds it recovers. Java: getAbortFile.

    Its text is ours: process id, a random name, and the machine start since which no incomplete record has been recovered
    (`storage/log/damage.py`). A process that dies leaves all but its last write complete; a machine that does may not.
    """
    name = files.boot_id() if boot is None else boot
    files.replace(abort_path(root), f"{os.getpid()} {secrets.token_hex(8)} {name}".encode())


def note_start(files: LocalFileSystem, root: str) -> None:
    """Note that a store left by another machine start is recovered: this start counts from now on. Durable on return."""
    mark_open(files, root)


def has_restarted(files: LocalFileSystem, left: str | None) -> bool:
    """Whether the machine has started since an open store's file was written, or that is unknown. `left` comes from `boot_left`."""
    return left is not None and (not left or left != files.boot_id())
