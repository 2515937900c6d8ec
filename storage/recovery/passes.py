"""What opening a store finds and mends. Java: DefaultMessageStore.load and recover, CommitLog.recoverNormally, recoverAbnormally.

Passes, in order:
  1. queues: where each one's entries end, and the greatest place in the log that one of them points to
  2. log: from a file known to be dispatched, record by record with body CRC, to the first that is not valid: the log's end
  3. damage: is the bad record a torn tail, or do intact records of before the last checkpoint stand behind it?
     What is cut and may hold messages is copied first (`quarantine.py`); the caller does that
  4. queues again: without entries at or behind the log's end, without stale ones
`plan_recovery` does these four and changes nothing; a read-only open is done then. `apply_recovery` goes on:
  5. cut: the log and the queues behind their ends, zeroed (Java only moves positions, and stale records come back)
  6. dispatch: records that have no queue entry, or no index keys, yet
  7. sync everything, then the checkpoint
Where we leave Java's way: damage is refused; a record exactly at the queues' greatest end is dispatched on a clean
load too; a queue that lost its first files is rebuilt whole; the index is complete and has no doubles.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from storage.dispatch.recovery_plan import RecoveryPlan, RecoveryReport
from storage.errors import CorruptRecordError, StoreDamagedError
from storage.failpoints import reach
from storage.files.file_system import end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.keys import ITEM
from storage.format.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    STORE_TIME_POSITION,
    SYS_FLAG_POSITION,
)
from storage.format.record_batch import Records
from storage.index.store import IndexFile, IndexStore
from storage.index.trust import IndexTrust, load_index_trust
from storage.index.writer import IndexWriter, mend_chains
from storage.log.checkpoint import Checkpoint
from storage.log.commit_log import CommitLog, LogFile, RecordIdentity
from storage.log.damage import Crash, find_gaps, first_torn, intact_records, is_unfinished
from storage.log.dispatch import DISPATCHED, DispatchBatch, IndexKeys, dispatch, index_keys
from storage.queues.consume_queue import valid_entries
from storage.queues.store import ConsumeQueueStore
from storage.queues.tails import read_tails
from storage.recovery.parts import StoreParts
from storage.recovery.quarantine import Quarantine
from storage.recovery.queues import QueueWriters

_LOG = logging.getLogger(__name__)


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

    `from_greatest_end` walks from the queues' greatest end instead of from a whole file back: for remote stores, where a file
    is dear. Stale records of equal length behind a truncated log's end would not be told apart then. With `torn_by` an unclean log
    ends before the first record that such a crash may have left without a part: a follower gets it again (`log/damage.py`). What
    queues know was written whole before they heard of it; that counts where the machine goes on.
    """
    tails = read_tails(list(queues))
    written_ends, greatest = tails.ends_by_name(), int(max(tails.greatest_ends(), default=-1))
    zero_until = tails.zero_until_by_name()
    if not log.files:
        return RecoveryPlan(
            was_clean, 0, 0, 0, None, None, None, written_ends, dict.fromkeys(written_ends, 0), zero_until=zero_until
        )
    start = _walk_start(log, checkpoint, greatest, was_clean=was_clean, index_safe=index_safe)
    if from_greatest_end and log.minimum < greatest <= log.files[-1].end:
        start = greatest
    walk = log.walk(start, check_crc=check_crc)
    last = before = None
    is_unfinished_end = False
    for offsets, records in walk:
        times = records.column("store_time_ms")
        vouched = int(np.searchsorted(times, checkpoint.physic_msg_timestamp))
        torn = first_torn(offsets, records, vouched) if torn_by is Crash.MACHINE and not was_clean else None
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
        if from_greatest_end
        else _find_damage(
            log, walk.end, walk.failure, last.store_time_ms if last else 0, checkpoint, was_clean=was_clean
        )
    )
    # After a crash entries may have reached the disk whose records did not.
    gaps = tuple(find_gaps(log, walk.end, greatest if was_clean else 0, is_local=not from_greatest_end))
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
    """Store time of a file's first record; None if it begins with none. Java: isMappedFileMatchedRecover."""
    head = log.open_file(file).view(0, MINIMUM_RECORD_SIZE).tobytes()
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
    """Damage: an intact record behind the bad one was stored between the last good record and the checkpoint's log time.

    Records of a life before a truncation are older than the last good one, those of a torn tail younger than the checkpoint.
    A record of the checkpoint's own millisecond is vouched for only after a clean stop: more may have come within it.
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
    """How many intact records behind the log's end are not older than its last one: messages that may have followed it."""
    return sum(map(len, records_behind(log, plan.log_end, plan.last_store_time_ms)))


def records_behind(log: CommitLog, end: int, after_ms: int) -> Iterator[Records]:
    """The intact records behind a place, those of a life before, which are older, left out."""
    for file in log.files[max(0, log.file_index(end)) :]:
        for records in intact_records(log.open_file(file), file.start, max(0, end - file.start)):
            yield records.take(records.column("store_time_ms") >= after_ms)


def hold_unconfirmed(plan: RecoveryPlan, log: CommitLog, confirmed: int) -> RecoveryPlan:
    """The plan, but dispatched only up to the place that is known to be confirmed; what a queue knows is.

    Java: CommitLog.recoverAbnormally in controller mode.
    """
    known = max(plan.walk_start, plan.greatest_end, min(confirmed, plan.log_end))
    walk = log.walk(plan.walk_start, check_crc=False, limit=known)
    for _ in walk:
        pass
    return replace(plan, held_from=min(walk.end, plan.log_end))


def apply_recovery(
    plan: RecoveryPlan,
    parts: StoreParts,
    *,
    truncate_damage: bool = False,
    quarantine: Quarantine | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RecoveryReport:
    """Cut, dispatch, sync: the passes that write. `abort` must stand in the store already.

    Before work that an unclean start from the present checkpoint would not do again, should this recovery be killed, the
    checkpoint is lowered: to no queue entry known to be on disk, to the last index file that is kept.
    `quarantine` holds what is cut, for the report. `on_progress` is told how many bytes of how many are dispatched. Raises the plan's
    StoreDamagedError, before anything is changed, unless `truncate_damage`.
    """
    if plan.damage is not None and not truncate_damage:
        raise plan.damage
    file_system, log, queues, delays_ms = parts.file_system, parts.log, parts.queues, parts.delays_ms
    checkpoint = parts.checkpoint()
    report = RecoveryReport(plan.was_clean, plan.log_end, cut_at=str(plan.failure) if plan.failure else None)
    report.queue_ends, report.dispatched_end = dict(plan.visible_ends), plan.greatest_end
    if quarantine is not None:
        report.quarantine, report.quarantined_records = quarantine.directory, quarantine.intact_records
    index_plan = plan_kept_index(parts, plan)
    data_ends = _data_ends(plan, queues)
    interrupted = _interrupted(plan, queues, log, data_ends)
    wrongly_cut = _wrongly_cut(plan, queues) | interrupted
    report.rebuilt_queues.extend(sorted(interrupted))
    honest = checkpoint._replace(
        logics_msg_timestamp=0
        if wrongly_cut or (plan.was_clean and plan.greatest_end < plan.log_end)
        else checkpoint.logics_msg_timestamp,
        index_msg_timestamp=min(checkpoint.index_msg_timestamp, index_plan.kept_until_ms if index_plan else 0),
    )
    if honest != checkpoint:
        parts.save_checkpoint(honest)
    reach("before-cut")
    why = "no record stands there" if plan.failure is None else plan.failure.describe()
    report.cut_bytes, report.removed_files = cut_log(file_system, log, plan.log_end, f"recovery: {why}")
    reach("log-cut")
    if not plan.was_clean:
        _sync_unsynced_log(plan, file_system, log)
    writers = QueueWriters(file_system, queues, plan, parts.queue_file_size_bytes, log.minimum, report, data_ends)
    indexer = Indexer(file_system, index_plan, parts.clock) if index_plan is not None else None
    dispatch_start = plan.greatest_end if plan.was_clean else plan.walk_start
    index_start = indexer.start(log) if indexer is not None else plan.dispatch_end
    if wrongly_cut:
        start = max(log.minimum, min(wrongly_cut.values()))
        for batch in _batches(log, start, plan.dispatch_end, delays_ms):
            writers.append(batch, start, wrongly_cut)
        writers.enter_held()
    for batch in _batches(log, min(plan.walk_start, index_start), plan.dispatch_end, delays_ms, on_progress):
        writers.append(batch, dispatch_start)
        if indexer is not None:
            indexer.append(batch)
    writers.enter_held()
    if writers.broken:
        parts.save_checkpoint(honest._replace(logics_msg_timestamp=0))
        writers.rebuild_broken_queues(_batches(log, log.minimum, plan.dispatch_end, delays_ms))
    writers.finish()
    reach("queues-recovered")
    if indexer is not None:
        report.indexed_keys = indexer.finish()
        report.removed_files += indexer.removed
    reach("index-recovered")
    if not plan.was_clean:
        _sync_unflushed(plan, file_system, queues)
    return report


def _sync_unsynced_log(plan: RecoveryPlan, file_system: LocalFileSystem, log: CommitLog) -> None:
    """Before queues tell readers of what a killed writer had not synced (apache/rocketmq#8239)."""
    for file in log.files:
        if file.end > plan.walk_start:
            file_system.sync(file.path)
    file_system.sync_all(log.directories)  # a new file's name too may be in the page cache only


def plan_kept_index(parts: StoreParts, plan: RecoveryPlan) -> IndexPlan | None:
    """Which index files may be kept, after a clean stop too; None where the store keeps no index."""
    if parts.index is None:
        return None
    known_ms = parts.checkpoint().index_msg_timestamp
    trust = load_index_trust(parts.file_system, parts.root, known_ms, was_clean=plan.was_clean)
    return plan_index(parts.index, plan.dispatch_end, trust)


def _sync_unflushed(plan: RecoveryPlan, file_system: LocalFileSystem, queues: ConsumeQueueStore) -> None:
    """What a killed writer left of queues in the page cache: the checkpoint to come vouches for all of it."""
    paths = set()
    for name, place in plan.last_places.items():
        queue = queues.get(*name) if place > plan.walk_start else None
        if queue is not None and queue.file_starts:
            paths |= {queue.path_of(queue.file_starts[-1]), queue.directory, posixpath.dirname(queue.directory)}
            paths |= set(queues.last_ext_paths(*name))
    file_system.sync_all(paths | {queues.directory} if paths else ())


def _wrongly_cut(plan: RecoveryPlan, queues: ConsumeQueueStore) -> dict[tuple[str, int], int]:
    """Queues that lose entries though the log has lost no record of theirs: bits of an entry are wrong, or it is stale.

    With the place in the log where the last entry that each of them keeps ends, −1 for none: what they lose stands behind it. After a
    clean stop that is any entry; after an unclean one those that point behind the log's end are what the end of the log took along.
    """
    found = {}
    for name, end in plan.visible_ends.items():
        queue = queues.get(*name) if plan.written_ends[name] > end else None
        if queue is not None:
            cut = queue.blocks(end, plan.written_ends[name])
            if plan.was_clean or any((block["commitlog_offset"] < plan.log_end).any() for block in cut):
                found[name] = queue.greatest_end(end)
    return found


def _data_ends(plan: RecoveryPlan, queues: ConsumeQueueStore) -> dict[tuple[str, int], int]:
    """Queues behind whose end anything stands, and the queue offset behind the last of it."""
    return {
        name: data_end
        for name, start in plan.zero_until.items()
        if (queue := queues.get(*name)) is not None and (data_end := queue.data_end(start)) > start
    }


def _interrupted(
    plan: RecoveryPlan, queues: ConsumeQueueStore, log: CommitLog, data_ends: dict[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Queues that go on behind their end with entries of the log's records: those in between are wrong or lost. With the place in the
    log where the last entry before them ends. Else a new message would get the queue offset of one that is there.

    After a clean stop also those where anything stands right at the end: their last entry is wrong.
    """
    found = {}
    for name, data_end in data_ends.items():
        start, queue = plan.zero_until[name], queues.get(*name)
        if queue is not None and (
            (plan.was_clean and start == plan.written_ends[name])
            or any(valid_entries(block, *name, log, plan.log_end).any() for block in queue.blocks(start, data_end))
        ):
            found[name] = queue.greatest_end(plan.visible_ends[name])
    return found


def cut_log(file_system: LocalFileSystem, log: CommitLog, end: int, why: str) -> tuple[int, list[str]]:
    """Zero the log behind its end and delete later files; Java moves positions only. Returns bytes cut and files deleted.

    The log of this process says what was cut and `why`; as a warning where files with content went.
    """
    cut_bytes, removed = 0, []
    for file in reversed(log.files[max(0, log.file_index(end)) :]):
        position = max(0, end - file.start)
        last = end_of_data(log.open_file(file), position)
        cut_bytes = max(cut_bytes, last + file.start - end) if last > position else cut_bytes
        if file.start > end:
            log.close()
            file_system.unlink(file.path)
            removed.append(file.path)
        elif last > position:
            file_system.zero(file.path, position, last - position)
            file_system.sync(file.path)
    if removed:
        file_system.sync_all(log.directories)
        log.list_files()
    if cut_bytes or removed:
        files = f"; deleted {', '.join(removed)}" if removed else ""
        _LOG.log(
            logging.WARNING if removed and cut_bytes else logging.INFO,
            "%s: the log was cut at %d, %d bytes behind it zeroed%s: %s",
            *(log.directories[0], end, cut_bytes, files, why),
        )
    return cut_bytes, removed


def _batches(
    log: CommitLog,
    start: int,
    end: int,
    delays_ms: tuple[int, ...],
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[DispatchBatch]:
    for offsets, records in log.walk(start, check_crc=False, wanted=DISPATCHED, limit=end) if start < end else ():
        yield dispatch(offsets, records, delays_ms)
        if on_progress is not None:
            on_progress(int(offsets[-1]) - start, end - start)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What is to become of the files of `index`; oldest first."""

    index: IndexStore
    kept: list[IndexFile]
    unsynced: list[IndexFile]
    """Those of the kept ones whose chains may not be whole, or not on the disk."""
    dropped: list[IndexFile]

    @property
    def kept_until_ms(self) -> int:
        """Where the last file that is kept ends; 0 if none is."""
        return self.kept[-1].header().end_time_ms if self.kept else 0


def plan_index(index: IndexStore, log_end: int, trust: IndexTrust) -> IndexPlan:
    """From the first file on that may not be on the disk whole, reaches behind the log's end or holds nothing, all go. Reads only."""
    plan = IndexPlan(index, [], [], [])
    for file in index.files():
        header = file.header()
        is_of_the_log = header.index_count > 1 and header.end_commitlog_offset < log_end
        if plan.dropped or not is_of_the_log or not trust.keeps(header.end_time_ms):
            plan.dropped.append(file)
            continue
        plan.kept.append(file)
        if not trust.is_synced(header.end_time_ms):
            plan.unsynced.append(file)
    return plan


class Indexer:
    """Brings the index up to the log's end.

    Java: IndexService.load.

    Java deletes what may not be on the disk and enters again only what its own recovery walks over. Here the index is brought up to
    the log's end from the last record that a kept file knows, so that it is complete, with no key of a record twice.
    """

    def __init__(self, file_system: LocalFileSystem, plan: IndexPlan, clock: Callable[[], int]) -> None:
        """Deletes and mends what `plan` says; durable on return."""
        self.removed = [file.path for file in plan.dropped]
        for path in reversed(self.removed):  # killed in between, the first one still tells that all go
            file_system.unlink(path)
        for file in plan.unsynced:
            mend_chains(file_system, file)
        if plan.unsynced or plan.dropped:
            file_system.sync(plan.index.directory)
        self._writer = IndexWriter(file_system, plan.index, clock, trust_slots=True)
        items = plan.kept[-1].items() if plan.kept else np.empty(0, ITEM)
        # a header cut between its end and its count names an end that no item has
        self._end = min(self._writer.end_commitlog_offset, int(items["commitlog_offset"].max(initial=-1)))
        self._entered = items["key_hash"][items["commitlog_offset"] == self._end]

    def start(self, log: CommitLog) -> int:
        """Where in the log the first record lies whose keys may be missing."""
        return max(self._end, log.minimum)

    def append(self, batch: DispatchBatch) -> None:
        """Enter the keys of a batch's records that are missing."""
        keys = index_keys(batch, self._end)
        if len(keys.key_hashes) and keys.commitlog_offsets[0] == self._end:
            new = (keys.commitlog_offsets != self._end) | ~np.isin(keys.key_hashes, self._entered)
            keys = IndexKeys(*(column[new] for column in keys))
        self._writer.append(keys)

    def finish(self) -> int:
        """Flush and sync; returns how many keys were entered."""
        self._writer.finish()
        return self._writer.key_count
