"""The writing passes of a recovery: cut, dispatch, sync. They apply what `passes.py` has found.

Java: DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally; ConsumeQueue.recover, truncateDirtyLogicFiles;
IndexService.load.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from storage.dispatch.recovery_plan import RecoveryPlan, RecoveryReport
from storage.failpoints import reach
from storage.files.file_system import end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import may_be_torn
from storage.format.keys import ITEM
from storage.index.store import IndexFile, IndexStore, IndexTrust, IndexWriter, load_index_trust, mend_chains
from storage.log.commit_log import CommitLog
from storage.log.dispatch import (
    DISPATCHED,
    DispatchBatch,
    IndexKeys,
    QueueEntries,
    dispatch,
    index_keys,
    queue_entries,
    refuse_inner_batches,
)
from storage.names import validate_path_element
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.store import ConsumeQueueStore
from storage.queues.writer import ConsumeQueueWriter, joined, put_in_order
from storage.recovery.passes import StoreParts
from storage.recovery.quarantine import Quarantine

_LOG = logging.getLogger(__name__)


def apply_recovery(
    plan: RecoveryPlan,
    parts: StoreParts,
    *,
    truncate_damage: bool = False,
    quarantine: Quarantine | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    cuts_log: bool = True,
) -> RecoveryReport:
    """Cut, dispatch, sync: the passes that write. `abort` must exist already.

    Before work that an unclean start from the present checkpoint would not repeat if this recovery were killed, the checkpoint is
    lowered: to the queue entries known to be on disk, and to the last kept index file.
    `quarantine` is the copy of what is cut, for the report. Without `cuts_log` the log is a DLedger group's, and stays. `on_progress`
    gets how many bytes of how many are dispatched. Raises the plan's StoreDamagedError, before any change, unless `truncate_damage`.
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
    lacks_entries = bool(wrongly_cut) or (plan.was_clean and plan.greatest_end < plan.log_end)
    position = checkpoint.logics_physical_offset
    honest = checkpoint._replace(
        logics_msg_timestamp=0 if lacks_entries else checkpoint.logics_msg_timestamp,
        logics_physical_offset=checkpoint.queue_position(
            None if lacks_entries or position >= plan.log_end else position
        ),
        index_msg_timestamp=min(checkpoint.index_msg_timestamp, index_plan.kept_until_ms if index_plan else 0),
    )
    if honest != checkpoint:
        parts.save_checkpoint(honest)
    reach("before-cut")
    why = "no record stands there" if plan.failure is None else plan.failure.describe()
    if cuts_log:
        report.cut_bytes, report.removed_files = cut_log(file_system, log, plan.log_end, f"recovery: {why}")
    reach("log-cut")
    if cuts_log and not plan.was_clean:
        _sync_unsynced_log(plan, file_system, log)
    writers = QueueWriters(file_system, queues, plan, parts.queue_file_size_bytes, log.minimum, report, data_ends)
    indexer = (
        Indexer(file_system, index_plan, parts.clock, indexes_tags=parts.config.release.indexes_tags)
        if index_plan is not None
        else None
    )
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
        position = honest.queue_position(None)
        parts.save_checkpoint(honest._replace(logics_msg_timestamp=0, logics_physical_offset=position))
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
    """Sync the log of a killed writer before queues show it to readers (apache/rocketmq#8239)."""
    for file in log.files:
        if file.end > plan.walk_start:
            file_system.sync(file.path)
    file_system.sync_all(log.directories)  # a new file's name may be in the page cache only, too


def plan_kept_index(parts: StoreParts, plan: RecoveryPlan) -> IndexPlan | None:
    """Which index files may be kept, also after a clean stop; None if the store keeps no index."""
    if parts.index is None:
        return None
    known_ms = parts.checkpoint().index_msg_timestamp
    trust = load_index_trust(parts.file_system, parts.root, known_ms, was_clean=plan.was_clean)
    return plan_index(parts.index, plan.dispatch_end, trust)


def _sync_unflushed(plan: RecoveryPlan, file_system: LocalFileSystem, queues: ConsumeQueueStore) -> None:
    """Sync what a killed writer left of queues in the page cache: the next checkpoint vouches for it."""
    paths = set()
    for name, place in plan.last_places.items():
        queue = queues.get(*name) if place > plan.walk_start else None
        if queue is not None and queue.file_starts:
            paths |= {queue.path_of(queue.file_starts[-1]), queue.directory, posixpath.dirname(queue.directory)}
            paths |= set(queues.last_ext_paths(*name))
    file_system.sync_all(paths | {queues.directory} if paths else ())


def _wrongly_cut(plan: RecoveryPlan, queues: ConsumeQueueStore) -> dict[tuple[str, int], int]:
    """Queues that lose entries though the log lost none of their records: an entry has wrong bits, or is stale.

    The value is the log offset where each queue's last kept entry ends, −1 for none: the lost entries are after it. After a clean stop
    any lost entry counts. After an unclean stop entries beyond the log's end do not count: the log lost their records.
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
    """Queues with data after their end, and the queue offset after the last data."""
    return {
        name: data_end
        for name, start in plan.zero_until.items()
        if (queue := queues.get(*name)) is not None and (data_end := queue.data_end(start)) > start
    }


def _interrupted(
    plan: RecoveryPlan, queues: ConsumeQueueStore, log: CommitLog, data_ends: dict[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Queues that continue after their end with entries of the log's records: the entries in between are wrong or lost.

    The value is the log offset where the last entry before them ends. Without this a new message would get the queue offset of an
    existing one. After a clean stop also queues with data right at the end: their last entry is wrong.
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
    """Zero the log after its end and delete later files; Java only moves positions. Returns bytes cut and files deleted.

    The cut and its reason `why` are logged; as a warning if files with content were deleted.
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
    """What happens to the files of `index`; oldest first."""

    index: IndexStore
    kept: list[IndexFile]
    unsynced: list[IndexFile]
    """Kept files whose chains may be incomplete, or not on the disk."""
    dropped: list[IndexFile]

    @property
    def kept_until_ms(self) -> int:
        """End time of the last kept file; 0 if none is kept."""
        return self.kept[-1].header().end_time_ms if self.kept else 0


def plan_index(index: IndexStore, log_end: int, trust: IndexTrust) -> IndexPlan:
    """All files go from the first that may be incomplete on the disk, reaches beyond the log's end, or is empty. Reads only."""
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

    Java deletes files that may not be on the disk, and re-enters only what its own recovery reads. Here the index is completed from
    the last record that a kept file knows to the log's end, with no key of a record twice. Java: IndexService.load.
    """

    def __init__(
        self, file_system: LocalFileSystem, plan: IndexPlan, clock: Callable[[], int], *, indexes_tags: bool
    ) -> None:
        """Delete and mend files as `plan` says; durable on return."""
        self._indexes_tags = indexes_tags
        self.removed = [file.path for file in plan.dropped]
        for path in reversed(self.removed):  # so that after a kill in between the first file still shows that all go
            file_system.unlink(path)
        for file in plan.unsynced:
            mend_chains(file_system, file)
        if plan.unsynced or plan.dropped:
            file_system.sync(plan.index.directory)
        self._writer = IndexWriter(file_system, plan.index, clock, trust_slots=True)
        items = plan.kept[-1].items() if plan.kept else np.empty(0, ITEM)
        # a header torn between its end and its count names an end that no item has
        self._end = min(self._writer.end_commitlog_offset, int(items["commitlog_offset"].max(initial=-1)))
        self._entered = items["key_hash"][items["commitlog_offset"] == self._end]

    def start(self, log: CommitLog) -> int:
        """Log offset of the first record whose keys may be missing."""
        return max(self._end, log.minimum)

    def append(self, batch: DispatchBatch) -> None:
        """Enter the missing keys of a batch's records."""
        keys = index_keys(batch, self._end, indexes_tags=self._indexes_tags)
        if len(keys.key_hashes) and keys.commitlog_offsets[0] == self._end:
            new = (keys.commitlog_offsets != self._end) | ~np.isin(keys.key_hashes, self._entered)
            keys = IndexKeys(*(column[new] for column in keys))
        self._writer.append(keys)

    def finish(self) -> int:
        """Flush and sync; returns how many keys were entered."""
        self._writer.finish()
        return self._writer.key_count


class QueueWriters:
    """Writers of the queues that a recovery changes: at once for queues to cut, for others when they lack a record."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queues: ConsumeQueueStore,
        plan: RecoveryPlan,
        file_size_bytes: int,
        log_minimum: int,
        report: RecoveryReport,
        followed: Collection[tuple[str, int]],
    ) -> None:
        """`followed` names the queues with data after their end."""
        self._file_system = file_system
        self._queues = queues
        self._plan = plan
        self._file_size_bytes = file_size_bytes
        self._report = report
        self._writers: dict[tuple[str, int], ConsumeQueueWriter] = {}
        self._held: dict[tuple[str, int], QueueEntries] = {}
        self.broken: set[tuple[str, int]] = set()
        self._log_minimum = log_minimum
        self._checks_units = queues.writes_ext and not plan.was_clean
        for name, end in plan.visible_ends.items():
            if plan.written_ends[name] > end or (not plan.was_clean and name in followed):
                self._truncate(*name, end)

    def _truncate(self, topic: str, queue_id: int, end: int) -> None:
        writer = self._writer(topic, queue_id)
        self._report.cut_entries += writer.truncate(end)
        if end and not writer.queue.file_starts:  # no file is left to continue
            writer.sync()
            self._writers[topic, queue_id] = self._writer_from(writer.queue, 0)

    def _writer(self, topic: str, queue_id: int) -> ConsumeQueueWriter:
        name = topic, queue_id
        if name not in self._writers:
            queue = self._queues.get_or_make(validate_path_element("topic", topic), queue_id)
            self._writers[name] = self._writer_from(queue, self._plan.visible_ends.get(name, 0))
        return self._writers[name]

    def _writer_from(self, queue: ConsumeQueue, end: int) -> ConsumeQueueWriter:
        size = queue.file_size_bytes or self._file_size_bytes
        ext = self._queues.ext_writer(self._file_system, queue.topic, queue.queue_id)
        return ConsumeQueueWriter(self._file_system, queue, end, size, rebuilt=end == 0, ext=ext)

    def append(self, batch: DispatchBatch, start: int, only: Collection[tuple[str, int]] | None = None) -> None:
        """Enter the records of a batch at or after log offset `start`, of all queues or `only` of these."""
        if not len(batch) or int(batch.commitlog_offsets[-1]) < start:
            return
        refuse_inner_batches(batch, posixpath.dirname(self._queues.directory))
        for new in queue_entries(batch, self._may_change_queues(batch, start)):
            if only is not None and (new.topic, new.queue_id) not in only:
                continue
            if "\0" in new.topic:
                self._report.torn_records += len(new.entries)
                continue
            late = new.entries["commitlog_offset"] >= start
            if late.any():
                self._enter(new, new.rows(late), start)

    def _enter(self, new: QueueEntries, late: QueueEntries, start: int) -> None:
        writer = self._writer(new.topic, new.queue_id)
        if self._checks_units and (end := writer.end_of_sound_units(late)) < writer.end:
            self._report.cut_entries += writer.truncate(end)
        fresh = self._in_order(writer, late)
        first = int(late.queue_offsets[0])
        next_offset = int(fresh.queue_offsets[0]) if len(fresh.queue_offsets) else first
        if (next_offset > writer.end and start > self._log_minimum) or first < writer.queue.first_file_offset:
            self.broken.add((new.topic, new.queue_id))
        writer.mend_last(new)
        writer.append(fresh)

    def _in_order(self, writer: ConsumeQueueWriter, late: QueueEntries, *, is_all: bool = False) -> QueueEntries:
        """Of these records and the one held before them: those that the queue lacks, with their queue offsets.

        A last record that cannot be judged yet is held.
        """
        name = late.topic, late.queue_id
        rows = joined(self._held.pop(name, None), late)
        rows = rows.rows(rows.entries["commitlog_offset"] + rows.entries["size_bytes"] > writer.greatest_end)
        begins_at_0 = self._log_minimum == 0 and not writer.queue.file_starts
        previous = writer.end - 1 if writer.end or begins_at_0 else None
        found = put_in_order(rows, previous, is_all=is_all)
        if found.held is not None:
            self._held[name] = found.held
        self._report.misnumbered.extend(found.misnumbered)
        return found.rows

    def enter_held(self) -> None:
        """No record follows: enter the held records at the offsets that they name."""
        for name, held in list(self._held.items()):
            writer = self._writer(*name)
            del self._held[name]
            writer.append(self._in_order(writer, held, is_all=True))

    def _may_change_queues(self, batch: DispatchBatch, start: int) -> np.ndarray:
        """Records of queues that lack one of them, that do not continue at it, or whose last entry is torn. After a crash these are
        very few.
        """
        is_late = batch.is_queued & (batch.commitlog_offsets >= start)
        rows = np.flatnonzero(is_late)
        codes, first, numbers = np.unique(batch.queue_codes[rows], return_index=True, return_inverse=True)
        known = np.array([self._known(batch.queue_name(code)) for code in codes.tolist()], np.int64).reshape(-1, 4)
        ends, greatest_ends, first_file_offsets, maybe_torn = known.T
        offsets = batch.queue_offsets[rows[first]]
        changes = (offsets < first_file_offsets) | ((offsets > ends) & (start > self._log_minimum))
        record_ends = batch.commitlog_offsets[rows] + batch.sizes_bytes[rows]
        is_new = record_ends > greatest_ends[numbers]
        is_torn = (
            (record_ends == greatest_ends[numbers]) & (maybe_torn[numbers] == 1) & ~may_be_torn(batch.tags_codes[rows])
        )
        changes[numbers[is_new | is_torn]] = True
        changes |= self._checks_units
        is_late[rows] = changes[numbers]
        return is_late

    def _known(self, name: tuple[str, int]) -> tuple[int, int, int, bool]:
        """A queue's end, the log offset where its last message ends, the first offset of its first file, and whether its last entry
        may be torn.
        """
        maybe_torn = name in self._plan.maybe_torn
        if writer := self._writers.get(name):
            return writer.end, writer.greatest_end, writer.queue.first_file_offset, maybe_torn
        queue = self._queues.get(*name)
        first = queue.first_file_offset if queue is not None else 0
        return self._plan.visible_ends.get(name, 0), self._plan.last_places.get(name, -1), first, maybe_torn

    def rebuild_broken_queues(self, whole_log: Iterable[DispatchBatch]) -> None:
        """Rebuild queues whose new records did not continue them: they lost some or all files."""
        if not self.broken:
            return
        for name in self.broken:
            writer = self._writers[name]
            writer.truncate(0)
            self._writers[name] = self._writer_from(writer.queue, 0)
        self._report.misnumbered[:] = [
            found for found in self._report.misnumbered if (found.topic, found.queue_id) not in self.broken
        ]
        for batch in whole_log:
            for new in queue_entries(batch):
                if (new.topic, new.queue_id) in self.broken:
                    writer = self._writers[new.topic, new.queue_id]
                    writer.append(self._in_order(writer, new))
        self.enter_held()
        self._report.rebuilt_queues.extend(sorted(self.broken))

    def finish(self) -> None:
        """Sync what was written, and add it to the report."""
        paths = set()
        for (topic, queue_id), writer in self._writers.items():
            paths |= writer.paths | writer.directories()
            writer.paths.clear()
            self._report.queue_ends[topic, queue_id] = writer.end
            self._report.dispatched_end = max(self._report.dispatched_end, writer.greatest_end)
            self._report.added_entries += writer.appended
            self._report.holes.extend((topic, queue_id, *hole) for hole in writer.holes)
        self._file_system.sync_all(paths)
        self._file_system.sync(posixpath.dirname(self._queues.directory))
