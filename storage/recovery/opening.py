"""Opening a store for writing, releasing it, closing it. Java: DefaultMessageStore.load, start and shutdown.

    open:     the hint holds → its ends;  else the reading passes of recovery · `abort` · the writing passes · checkpoint
    release:  hint written, `abort` stays: the store is between two commits
    close:    log, queues, index synced · checkpoint · `abort` deleted

The caller holds the store's lock throughout.

A store may be bound to a log outside of its directory. Each opening for writing proves that the two still belong together:

    bind:     ROOT's lock · no process has the log open for writing · queues and checkpoint agree with it · the binding, durably
    opening:  ROOT's lock · the binding names ROOT and the log · no process has the log open for writing · a few queues agree with it

Nothing outside of ROOT is changed.
"""

from __future__ import annotations

import logging
import os
import posixpath
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from storage.batch.intent import load_intents, mend_batches
from storage.dispatch.recovery_plan import LoweredOffset, RecoveryPlan, RecoveryReport
from storage.dispatch.writer import (
    Hint,
    StoreEnds,
    drop_hint,
    hint_holds,
    index_end,
    load_hint,
    queue_directories,
    save_hint,
)
from storage.errors import CorruptRecordError, ForeignLogError, StorageError, StoreNotFoundError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.files.lock import is_open_for_writing
from storage.files.syncs import noting_failed_syncs, write_again
from storage.format.consume_queue import is_entry, is_pre_blank
from storage.index.store import IndexStore, drop_index_trust, keep_slots, kept_slots
from storage.log.commit_log import Checkpoint, CommitLog, abort_path, boot_left, read_checkpoint
from storage.log.damage import Crash, bridge
from storage.names import MULTI_DISPATCH_PREFIX
from storage.put.store_writer import StoreWriter
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.store import ConsumeQueueStore
from storage.recovery.mending import apply_recovery, plan_kept_index
from storage.recovery.offsets_ahead import lower_for_cut, tables_now
from storage.recovery.passes import StoreParts, count_successors, hold_unconfirmed, read_plan, records_behind
from storage.recovery.quarantine import Quarantine, keep_what_is_cut
from storage.settings.load import StoreConfig
from storage.tables.log_place import Binding, LogPlace, decide
from storage.tables.surroundings import look_around, refuse_links, refuse_writing, save_binding

_PATIENCE_S = 1.0
"""A killed writer gives up its lock a little before its files."""
_OWN_LOG = "move the log into the store's own directory instead, as commitlog/"
_QUEUES_LOOKED_AT = 16


def bind_log(
    root: str, config: StoreConfig, file_system: LocalFileSystem, *, lock_timeout_ms: int = 0
) -> tuple[str, ...] | None:
    """Bind the store at ROOT, which may not exist yet, to the log outside of it that its configuration or a link names.

    Returns the real paths of the log's directories outside of ROOT; None, without a change, if there are none. Raises ForeignLogError
    if the log is another store's or disagrees with this one, StoreNotFoundError if it is missing, StoreRefusedError, StoreLockedError.
    """
    refuse_writing(root, config, file_system)
    seen = look_around(root, config, file_system)
    place = decide(seen)
    if not place.outside:
        return None
    _refuse_what_cannot_be_bound(root, place)
    used = next((outside.path for outside in place.outside if outside.has_files), None)
    if used is not None and not seen.is_store:  # check before anything is made
        raise ForeignLogError(root, used, f"{used} holds messages, and {root} has no queues that name them", _OWN_LOG)
    refuse_links(file_system, root)
    file_system.make_directories(root)
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        seen = look_around(root, config, file_system)
        place = decide(seen)
        _refuse_what_cannot_be_bound(root, place)
        log = CommitLog(file_system, place.directories, config.commit_log.mapped_file_size_commit_log)
        queues = ConsumeQueueStore(
            file_system, root, file_size_bytes=config.consume_queue.mapped_file_size_consume_queue
        )
        try:
            refuse_open_log(root, log)
            checkpoint, was_clean = read_checkpoint(file_system, root), boot_left(file_system, root) is None
            plan = read_plan(config, file_system, log, queues, checkpoint, was_clean=was_clean)
            problem = find_disagreement(log, queues, plan, checkpoint)
        finally:
            log.close()
            queues.close()
        if problem is not None:
            raise ForeignLogError(
                root, place.outside[0].path, f"{place.outside[0].path} is not its log: {problem}", _OWN_LOG
            )
        bound = tuple((outside.real_path, outside.number[1]) for outside in place.outside if outside.number is not None)
        save_binding(root, Binding(seen.real_root, bound), file_system)
    return tuple(path for path, _ in bound)


def _refuse_what_cannot_be_bound(root: str, place: LogPlace) -> None:
    for outside in place.outside:
        if outside.owner is not None:
            assert place.refusal is not None
            raise ForeignLogError(root, *place.refusal)
        if not outside.is_there:
            raise StoreNotFoundError(root, f"{outside.path}/")


def prove_binding(root: str, place: LogPlace, log: CommitLog, queues: ConsumeQueueStore) -> None:
    """Check the binding when a store with a log outside of ROOT is opened for writing. Raises ForeignLogError."""
    if not place.outside:
        return
    refuse_open_log(root, log)
    if is_another_log(log, queues):
        path = place.outside[0].path
        raise ForeignLogError(
            root, path, f"{path} is not its log any more: no queue has an entry for one of its records", _OWN_LOG
        )


def refuse_open_log(
    root: str, log: CommitLog, *, sleep: Callable[[float], None] = time.sleep, patience_s: float = _PATIENCE_S
) -> None:
    """Raises ForeignLogError if another process has the log's last file open for writing; waits a moment for that to end."""
    if not log.files:
        return
    path, waited_s = log.files[-1].path, 0.0
    while is_open_for_writing(path):
        if waited_s >= patience_s:
            reason = f"another process has {path} open for writing, and it has not the lock of this store"
            raise ForeignLogError(root, path, reason, "stop the broker that writes this log")
        sleep(0.05)
        waited_s += 0.05


class _Entry(NamedTuple):
    queue_offset: int
    commitlog_offset: int
    size_bytes: int


def find_disagreement(
    log: CommitLog, queues: ConsumeQueueStore, plan: RecoveryPlan, checkpoint: Checkpoint
) -> str | None:
    """Why a log cannot be this store's; None if everything comparable agrees.

    Compared are the last entry of each queue (after an unclean stop, the last one that a crash cannot have torn) and the checkpoint's
    time. If the log has records, at least one entry must name one of them.

    An entry identifies a record by place, size, topic, queue id and queue offset; a checkpoint by its store time. Another store's log
    has other records there. Reads only.
    """
    if plan.damage is not None:
        return plan.damage.describe()
    if plan.gaps:
        return plan.gaps[0].error().describe()
    agreeing = 0
    for queue in _ordinary(queues):
        name = (queue.topic, queue.queue_id)
        written, visible = plan.written_ends.get(name, 0), plan.visible_ends.get(name, 0)
        found = [
            _names_its_record(log, queue, entry)
            for end in dict.fromkeys((visible, written))
            if (entry := _entry_before(queue, end)) is not None and entry.commitlog_offset >= log.minimum
        ]
        agreeing += any(found)
        if found and not any(found) and (plan.was_clean or _points_into(log, plan, queue, written)):
            return f"{queue.topic} queue {queue.queue_id} ends with an entry for a record that the log does not have"
    if plan.log_end > log.minimum and not agreeing:
        return "no queue has an entry for any of the log's records"
    time_ms = checkpoint.physic_msg_timestamp
    if time_ms > 0 and not _holds_time(log, time_ms):
        return f"the checkpoint names a record that was stored at {time_ms} ms, and the log has none of that time"
    return None


def is_another_log(log: CommitLog, queues: ConsumeQueueStore) -> bool:
    """A cheap check of a few queues at each opening: whether they have entries, and none names a record of the log.

    It looks at more than the last entry of each queue, as a crash may have left that without its record.
    """
    looked_at = 0
    for queue in _ordinary(queues)[:_QUEUES_LOOKED_AT]:
        end, back = queue.written_end(), 1
        while (entry := _entry_before(queue, end - back + 1)) is not None and entry.commitlog_offset >= log.minimum:
            looked_at += 1
            if _names_its_record(log, queue, entry):
                return False
            back *= 2
    return looked_at > 0


def _ordinary(queues: ConsumeQueueStore) -> list[ConsumeQueue]:
    return [queue for queue in queues if not queue.topic.startswith(MULTI_DISPATCH_PREFIX)]


def _entry_before(queue: ConsumeQueue, end: int) -> _Entry | None:
    """The entry before a queue offset; None if there is none, or only a filler."""
    if end <= queue.first_file_offset:
        return None
    entry = queue.entries(end - 1, end)
    if not len(entry) or not is_entry(entry)[0] or is_pre_blank(entry)[0]:
        return None
    return _Entry(end - 1, int(entry["commitlog_offset"][0]), int(entry["size_bytes"][0]))


def _names_its_record(log: CommitLog, queue: ConsumeQueue, entry: _Entry) -> bool:
    try:
        message = log.message_at(entry.commitlog_offset, log.files[-1].end if log.files else 0)
    except StorageError:
        return False
    claimed = (queue.topic, queue.queue_id, entry.queue_offset, entry.size_bytes)
    return claimed == (message.topic, message.queue_id, message.queue_offset, message.size_bytes)


def _points_into(log: CommitLog, plan: RecoveryPlan, queue: ConsumeQueue, end: int) -> bool:
    """Whether a queue's last entry points before the log's end: then no crash explains that it names no record."""
    entry = _entry_before(queue, end)
    return entry is not None and entry.commitlog_offset < plan.log_end


def _holds_time(log: CommitLog, store_time_ms: int) -> bool:
    """Whether the log has a record with that store time; store times are assumed to ascend from file to file."""
    for file in reversed(log.files):
        for number, (_, records) in enumerate(log.walk(file.start, check_crc=False)):
            times = records.column("store_time_ms")
            if number == 0 and int(times[0]) > store_time_ms:
                break  # an earlier file
            if bool((times == store_time_ms).any()):
                return True
            if int(times[-1]) > store_time_ms:
                return False
    return False


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
    if is_own_log and hint is not None and not log.has_gaps and hint_holds(hint, file_system, root, log, index):
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
