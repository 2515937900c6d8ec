"""Binding a store to a log outside of its directory, and proving at each opening for writing that the two still belong together.

    bind:     ROOT's lock · no process has the log open for writing · queues and checkpoint agree with it · the binding, durably
    opening:  ROOT's lock · the binding names ROOT and the log · no process has the log open for writing · a few queues agree with it

Nothing outside of ROOT is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from storage.dispatch.recovery_plan import RecoveryPlan
from storage.errors import ForeignLogError, StorageError, StoreNotFoundError
from storage.files.local_file_system import LocalFileSystem
from storage.files.lock import is_open_for_writing
from storage.format.consume_queue import is_entry, is_pre_blank
from storage.log.checkpoint import Checkpoint, read_checkpoint
from storage.log.commit_log import CommitLog
from storage.names import MULTI_DISPATCH_PREFIX
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.store import ConsumeQueueStore
from storage.recovery.passes import boot_left, read_plan
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
