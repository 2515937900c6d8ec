"""How opening a store finds and mends faults. Java: DefaultMessageStore.load and recover, CommitLog.recoverNormally, recoverAbnormally.

Passes, in order:
  1. queues: the end of each queue's entries, and the greatest log offset that one of them points to
  2. log: from a file known to be dispatched, record by record with body CRC, to the first invalid one: the log's end
  3. damage: is the bad record a torn tail, or do intact records from before the last checkpoint follow it?
     What is cut and may hold messages is copied first (`quarantine.py`); the caller does that
  4. queues again: without entries at or after the log's end, and without stale ones
`plan_recovery` does these four and changes nothing; a read-only open ends there. `apply_recovery` (`mending.py`) continues:
  5. cut: the log and the queues behind their ends, zeroed (Java only moves positions, and stale records come back)
  6. dispatch: records that have no queue entry, or no index keys, yet
  7. sync everything, then the checkpoint
Departures from Java: damage is refused; a record exactly at the queues' greatest end is dispatched also after a clean
stop; a queue that lost its first files is rebuilt completely; the index is complete and has no doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from storage.dispatch.recovery_plan import RecoveryPlan
from storage.errors import CorruptRecordError, StoreDamagedError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import parse_delay_levels
from storage.format.record import (
    BORN_HOST_V6,
    INNER_BATCH,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    STORE_TIME_POSITION,
    SYS_FLAG_POSITION,
)
from storage.format.record_batch import Records
from storage.index.store import IndexStore
from storage.log.commit_log import Checkpoint, CommitLog, LogFile, RecordIdentity, read_checkpoint, write_checkpoint
from storage.log.damage import Crash, LogGap, find_gaps, first_torn, intact_records, is_unfinished
from storage.queues.store import ConsumeQueueStore, queue_file_size, read_tails
from storage.settings.load import StoreConfig


@dataclass(slots=True)
class StoreParts:
    """The parts of one store that a recovery works on; the caller holds the store's lock.

    `index` is None where the store keeps none; `clock` gives milliseconds.
    """

    root: str
    config: StoreConfig
    file_system: LocalFileSystem
    log: CommitLog
    queues: ConsumeQueueStore
    index: IndexStore | None
    clock: Callable[[], int]
    _checkpoint: Checkpoint | None = None
    """The checkpoint as last read or written: under the lock no other process writes it."""

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level, from level 1."""
        return parse_delay_levels(self.config.delay.message_delay_level)

    @property
    def queue_file_size_bytes(self) -> int:
        """The size of the queues' files, else the configured one."""
        return queue_file_size(self.file_system, self.root, self.config.consume_queue.mapped_file_size_consume_queue)

    def checkpoint(self) -> Checkpoint:
        """The store's checkpoint. Read once."""
        if self._checkpoint is None:
            self._checkpoint = read_checkpoint(self.file_system, self.root)
        return self._checkpoint

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint durably."""
        write_checkpoint(self.file_system, self.root, checkpoint)
        self._checkpoint = checkpoint


def read_plan(
    config: StoreConfig,
    file_system: FileSystem,
    log: CommitLog,
    queues: ConsumeQueueStore,
    checkpoint: Checkpoint,
    *,
    was_clean: bool,
    torn_by: Crash | None = None,
) -> RecoveryPlan:
    """The reading passes with the store's settings; changes nothing. `was_clean` and `torn_by` are those of `plan_recovery`."""
    return plan_recovery(
        log,
        queues,
        checkpoint,
        was_clean=was_clean,
        check_crc=config.commit_log.check_crc_on_recover,
        index_safe=config.index.has_files and config.index.message_index_safe,
        from_greatest_end=not file_system.is_local,
        torn_by=torn_by,
    )


def plan_recovery(
    log: CommitLog,
    queues: ConsumeQueueStore,
    checkpoint: Checkpoint,
    *,
    was_clean: bool,
    check_crc: bool = True,
    index_safe: bool = False,
    from_greatest_end: bool = False,
    torn_by: Crash | None = None,
) -> RecoveryPlan:
    """Where the log and each queue end, and whether the log is damaged. Reads only.

    `from_greatest_end` walks from the queues' greatest end instead of from the start of a file: for remote stores, where reading a file
    is expensive. Then stale records of equal length after a truncated log's end are not recognised. With `torn_by` an unclean log
    ends before the first record that such a crash may have left incomplete: a follower gets it again (`log/damage.py`). Records
    that queues know were complete before their entries were made; this holds if the machine did not stop. It also ends before a
    record of a batch queue: the follower that wrote it has died before it could cut it.

    At the `committed_end` of a DLedger group's log the log ends for the store, or where its queues end, if they have committed records
    only. What stands behind is the group's, and neither damage nor cut. Apache's broker enters its whole log into queues at its start.
    """
    tails = read_tails(list(queues))
    written_ends, greatest = tails.ends_by_name(), int(max(tails.greatest_ends(), default=-1))
    zero_until = tails.zero_until_by_name()
    if not log.files:
        return RecoveryPlan(
            was_clean, 0, 0, 0, None, None, None, written_ends, dict.fromkeys(written_ends, 0), zero_until=zero_until
        )
    committed_end = limit = log.committed_end
    if committed_end is not None:
        greatest = greatest if log.has_own_queues else min(greatest, committed_end)
        limit = max(committed_end, greatest)
    start = _walk_start(log, checkpoint, greatest, was_clean=was_clean, index_safe=index_safe)
    if from_greatest_end and log.minimum < greatest <= log.files[-1].end:
        start = greatest
    walk = log.walk(start, check_crc=check_crc, limit=limit)
    last = before = None
    is_unfinished_end = False
    for offsets, records in walk:
        times = records.column("store_time_ms")
        vouched = int(np.searchsorted(times, checkpoint.physic_msg_timestamp))
        torn = None if torn_by is None or was_clean else _first_cut(offsets, records, vouched, greatest, torn_by)
        if torn is not None:
            last = RecordIdentity(int(offsets[torn - 1]), int(times[torn - 1])) if torn else last
            walk.end = int(offsets[torn])
            break
        before = RecordIdentity(int(offsets[-2]), int(times[-2])) if len(offsets) > 1 else last
        last = RecordIdentity(int(offsets[-1]), int(times[-1]))
        end = last.commitlog_offset + int(records.column("size_bytes")[-1])
        is_unfinished_end = is_unfinished(records)
    if (
        torn_by is Crash.PROCESS
        and not was_clean
        and is_unfinished_end
        and last is not None
        and greatest < end == walk.end
    ):
        walk.end, last = last.commitlog_offset, before
    damage = (
        None
        if from_greatest_end or committed_end is not None
        else _find_damage(
            log, walk.end, walk.failure, last.store_time_ms if last else 0, checkpoint, was_clean=was_clean
        )
    )
    # After a crash entries may be on the disk without their records.
    gaps: tuple[LogGap, ...] = ()
    if committed_end is None:
        gaps = tuple(find_gaps(log, walk.end, greatest if was_clean else 0, is_local=not from_greatest_end))
    elif walk.end < committed_end:
        raise walk.failure or CorruptRecordError("committed entry", walk.end, f"records up to {committed_end}", "none")
    visible = tails.visible(log, walk.end)
    greatest = int(max(visible.greatest_ends(), default=-1))
    visible_ends, last_places = visible.ends_by_name(), visible.places_by_name()
    return RecoveryPlan(
        was_clean,
        start,
        walk.end,
        greatest,
        last,
        walk.failure,
        damage,
        written_ends,
        visible_ends,
        last_places,
        frozenset() if was_clean else visible.maybe_torn(),
        zero_until,
        gaps,
    )


def _first_cut(offsets: np.ndarray, records: Records, vouched: int, greatest_end: int, torn_by: Crash) -> int | None:
    """The row of the first record that a follower must get again, or must not have; None if there is none."""
    is_batch = records.column("sys_flag") & INNER_BATCH != 0
    rows = np.flatnonzero(is_batch & (offsets >= greatest_end))[:1].tolist()
    if torn_by is Crash.MACHINE and (torn := first_torn(offsets, records, vouched)) is not None:
        rows.append(torn)
    return min(rows, default=None)


def _walk_start(log: CommitLog, checkpoint: Checkpoint, greatest_end: int, *, was_clean: bool, index_safe: bool) -> int:
    dispatched = log.files[max(0, log.file_index(greatest_end))].start
    if was_clean:
        return dispatched
    limit = checkpoint.recovery_timestamp
    if index_safe:
        limit = min(limit, checkpoint.index_msg_timestamp)
    for file in reversed(log.files):
        store_time = _first_store_time(log, file)
        if store_time is not None and 0 < store_time <= limit:
            return min(file.start, dispatched)  # Java trusts the checkpoint even where queues are gone
    return log.files[0].start


def _first_store_time(log: CommitLog, file: LogFile) -> int | None:
    """Store time of a file's first record; None if it does not begin with one. Java: isMappedFileMatchedRecover."""
    head = log.open_file(file).view(file.head_size_bytes, MINIMUM_RECORD_SIZE).tobytes()
    if int.from_bytes(head[4:8], "big") not in (MAGIC_V1, MAGIC_V2):
        return None
    sys_flag = int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
    position = STORE_TIME_POSITION[sys_flag & BORN_HOST_V6]
    return int.from_bytes(head[position : position + 8], "big", signed=True)


def _find_damage(
    log: CommitLog,
    end: int,
    failure: CorruptRecordError | None,
    last_store_time_ms: int,
    checkpoint: Checkpoint,
    *,
    was_clean: bool,
) -> StoreDamagedError | None:
    """Damage: an intact record after the bad one was stored between the last good record and the checkpoint's log time.

    Records from before a truncation are older than the last good one, those of a torn tail younger than the checkpoint.
    A record of the checkpoint's own millisecond counts only after a clean stop: more records may have come within it.
    """
    vouched_ms = checkpoint.physic_msg_timestamp
    if last_store_time_ms > vouched_ms:
        return None
    intact, is_damage = 0, False
    for records in records_behind(log, end, last_store_time_ms):
        times = records.column("store_time_ms")
        intact += int(np.count_nonzero(times <= vouched_ms))
        is_damage |= bool((times < vouched_ms + was_clean).any())
    if not is_damage:
        return None
    number = log.file_index(end)
    file = log.files[number]
    return StoreDamagedError(file.path, end - file.start, failure.field if failure else "magic", intact, end)


def count_successors(log: CommitLog, plan: RecoveryPlan) -> int:
    """How many intact records after the log's end are not older than its last one: messages that may have followed it."""
    return sum(map(len, records_behind(log, plan.log_end, plan.last_store_time_ms)))


def records_behind(log: CommitLog, end: int, after_ms: int) -> Iterator[Records]:
    """The intact records after a place, without the older ones from before a truncation."""
    for file in log.files[max(0, log.file_index(end)) :]:
        for records in intact_records(log.open_file(file), file.start, max(0, end - file.start)):
            yield records.take(records.column("store_time_ms") >= after_ms)


def hold_unconfirmed(plan: RecoveryPlan, log: CommitLog, confirmed: int) -> RecoveryPlan:
    """The plan, but dispatched only up to the confirmed log offset, or as far as a queue knows the log.

    Java: CommitLog.recoverAbnormally in controller mode.
    """
    known = max(plan.walk_start, plan.greatest_end, min(confirmed, plan.log_end))
    walk = log.walk(plan.walk_start, check_crc=False, limit=known)
    for _ in walk:
        pass
    return replace(plan, held_from=min(walk.end, plan.log_end))
