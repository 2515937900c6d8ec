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
Where we leave Java's way: damage is refused (DESIGN 8); a record exactly at the queues' greatest end is dispatched on a clean
load too; a queue that lost its first files is rebuilt whole; the index is complete and has no doubles.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from storage.commit_log import CommitLog, LogFile
from storage.consume_queue import ConsumeQueue
from storage.consume_queue_store import ConsumeQueueStore
from storage.consume_queue_writer import ConsumeQueueWriter
from storage.dispatch import DispatchBatch, dispatch, queue_entries
from storage.errors import CorruptRecordError, StoreDamagedError
from storage.failpoints import reach
from storage.files.file_system import LocalFileSystem, end_of_data
from storage.format.checkpoint import Checkpoint
from storage.format.consume_queue import may_be_torn
from storage.format.record import (
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    STORE_TIME_POSITION,
    SYS_FLAG_POSITION,
)
from storage.format.sys_flag import BORN_HOST_V6
from storage.index_recovery import Indexer, plan_index
from storage.index_store import IndexStore
from storage.index_trust import IndexTrust
from storage.intact_records import intact_records
from storage.log_tail import RecordIdentity
from storage.names import validate_path_element
from storage.quarantine import Quarantine
from storage.queue_tails import read_tails


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the four reading passes found. Queue ends are queue offsets, the others places in the log."""

    was_clean: bool
    walk_start: int
    log_end: int
    greatest_end: int  # where the last record that any queue knows ends, the log's end at most
    last_record: RecordIdentity | None  # the last valid one walked over
    failure: CorruptRecordError | None  # why the walk stopped; None at free space
    damage: StoreDamagedError | None
    written_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    visible_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    last_places: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where in the log the last message before a visible end ends, −1 of a queue without messages; of queues of which it is known."""
    maybe_torn: frozenset[tuple[str, int]] = frozenset()
    """After an unclean stop: queues of whose last entry place and size may be there, and not the tags code."""

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last valid record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0


@dataclass(slots=True)
class RecoveryReport:
    """What opening for writing did. Sizes in bytes."""

    was_clean: bool
    log_end: int
    cut_bytes: int = 0
    cut_at: str | None = None
    cut_entries: int = 0
    added_entries: int = 0
    rebuilt_queues: list[tuple[str, int]] = field(default_factory=list)
    holes: list[tuple[str, int, int, int]] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    indexed_keys: int = 0
    quarantine: str | None = None
    """The directory to which what was cut was copied first; None where nothing of it may have been a message."""
    quarantined_records: int = 0
    """Intact records in it."""
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where the queues end."""
    dispatched_end: int = 0
    """Where in the log the last record ends that any queue knows."""
    torn_records: int = 0
    """Records whose topic has NULs, as a power loss leaves them: no checksum covers it. They are in no queue."""


def plan_recovery(
    log: CommitLog,
    queues: ConsumeQueueStore,
    checkpoint: Checkpoint,
    *,
    was_clean: bool,
    check_crc: bool = True,
    index_safe: bool = False,
    from_greatest_end: bool = False,
) -> RecoveryPlan:
    """Where the log and each queue end, and whether the log is damaged. Reads only.

    `from_greatest_end` walks from the queues' greatest end instead of from a whole file back: for remote stores, where a file
    is dear. Stale records of equal length behind a truncated log's end would not be told apart then.
    """
    tails = read_tails(list(queues))
    written_ends, greatest = tails.ends_by_name(), int(max(tails.greatest_ends(), default=-1))
    if not log.files:
        return RecoveryPlan(was_clean, 0, 0, 0, None, None, None, written_ends, dict.fromkeys(written_ends, 0))
    start = _walk_start(log, checkpoint, greatest, was_clean=was_clean, index_safe=index_safe)
    if from_greatest_end and log.minimum < greatest <= log.files[-1].end:
        start = greatest
    walk = log.walk(start, check_crc=check_crc)
    last = None
    for offsets, records in walk:
        last = RecordIdentity(int(offsets[-1]), int(records.column("store_time_ms")[-1]))
    damage = (
        None
        if from_greatest_end
        else _find_damage(
            log, walk.end, walk.failure, last.store_time_ms if last else 0, checkpoint, was_clean=was_clean
        )
    )
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
    for times in _times_behind(log, end, last_store_time_ms):
        intact += int(np.count_nonzero(times <= vouched_ms))
        is_damage |= bool((times < vouched_ms + was_clean).any())
    if not is_damage:
        return None
    number = log.file_index(end)
    file = log.files[number]
    return StoreDamagedError(file.path, end - file.start, failure.field if failure else "magic", intact, end)


def count_successors(log: CommitLog, plan: RecoveryPlan) -> int:
    """How many intact records behind the log's end are not older than its last one: messages that may have followed it."""
    return sum(len(times) for times in _times_behind(log, plan.log_end, plan.last_store_time_ms))


def _times_behind(log: CommitLog, end: int, after_ms: int) -> Iterator[np.ndarray]:
    for file in log.files[max(0, log.file_index(end)) :]:
        for records in intact_records(log.open_file(file), file.start, max(0, end - file.start)):
            times = records.column("store_time_ms")
            yield times[times >= after_ms]


def apply_recovery(
    plan: RecoveryPlan,
    file_system: LocalFileSystem,
    log: CommitLog,
    queues: ConsumeQueueStore,
    index: IndexStore | None,
    checkpoint: Checkpoint,
    *,
    delays_ms: tuple[int, ...],
    queue_file_size_bytes: int,
    clock: Callable[[], int],
    save_checkpoint: Callable[[Checkpoint], None],
    trust: IndexTrust,
    truncate_damage: bool = False,
    quarantine: Quarantine | None = None,
) -> RecoveryReport:
    """Cut, dispatch, sync: the passes that write. `abort` must stand in the store already.

    `trust` says which index files may be kept, after a clean stop too.
    Before work that an unclean start from the present checkpoint would not do again, should this recovery be killed, the
    checkpoint is lowered by `save_checkpoint`: to no queue entry known to be on disk, to the last index file that is kept.
    `quarantine` holds what is cut, for the report. Raises the plan's StoreDamagedError, before anything is changed, unless
    `truncate_damage`.
    """
    if plan.damage is not None and not truncate_damage:
        raise plan.damage
    report = RecoveryReport(plan.was_clean, plan.log_end, cut_at=str(plan.failure) if plan.failure else None)
    report.queue_ends, report.dispatched_end = dict(plan.visible_ends), plan.greatest_end
    if quarantine is not None:
        report.quarantine, report.quarantined_records = quarantine.directory, quarantine.intact_records
    index_plan = plan_index(index, plan.log_end, trust) if index is not None else None
    wrongly_cut = _wrongly_cut(plan, queues)
    honest = checkpoint._replace(
        logics_msg_timestamp=0
        if wrongly_cut or (plan.was_clean and plan.greatest_end < plan.log_end)
        else checkpoint.logics_msg_timestamp,
        index_msg_timestamp=min(checkpoint.index_msg_timestamp, index_plan.kept_until_ms if index_plan else 0),
    )
    if honest != checkpoint:
        save_checkpoint(honest)
    reach("before-cut")
    report.cut_bytes, report.removed_files = cut_log(file_system, log, plan.log_end)
    reach("log-cut")
    if not plan.was_clean:  # before queues tell readers of what a killed writer had not synced (apache/rocketmq#8239)
        for file in log.files:
            if file.end > plan.walk_start:
                file_system.sync(file.path)
        for directory in log.directories:  # a new file's name too may be in the page cache only
            file_system.sync(directory)
    writers = _QueueWriters(file_system, queues, plan, queue_file_size_bytes, log.minimum, report)
    indexer = Indexer(file_system, index_plan, clock) if index_plan is not None else None
    dispatch_start = plan.greatest_end if plan.was_clean else plan.walk_start
    index_start = indexer.start(log) if indexer is not None else plan.log_end
    if wrongly_cut:
        start = max(log.minimum, min(wrongly_cut.values()))
        for batch in _batches(log, start, plan.log_end, delays_ms):
            writers.append(batch, start, wrongly_cut)
    for batch in _batches(log, min(plan.walk_start, index_start), plan.log_end, delays_ms):
        writers.append(batch, dispatch_start)
        if indexer is not None:
            indexer.append(batch)
    if writers.broken:
        save_checkpoint(honest._replace(logics_msg_timestamp=0))
        writers.rebuild_broken_queues(log, plan.log_end, delays_ms)
    writers.finish()
    reach("queues-recovered")
    if indexer is not None:
        report.indexed_keys = indexer.finish()
        report.removed_files += indexer.removed
    reach("index-recovered")
    if not plan.was_clean:
        _sync_unflushed(plan, file_system, queues)
    return report


def _sync_unflushed(plan: RecoveryPlan, file_system: LocalFileSystem, queues: ConsumeQueueStore) -> None:
    """What a killed writer left of queues in the page cache: the checkpoint to come vouches for all of it."""
    paths = set()
    for name, place in plan.last_places.items():
        queue = queues.get(*name) if place > plan.walk_start else None
        if queue is not None and queue.file_starts:
            paths |= {queue.path_of(queue.file_starts[-1]), queue.directory, posixpath.dirname(queue.directory)}
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
            cut = queue.entries(end, plan.written_ends[name])
            if plan.was_clean or (cut["commitlog_offset"] < plan.log_end).any():
                found[name] = queue.greatest_end(end)
    return found


def cut_log(file_system: LocalFileSystem, log: CommitLog, end: int) -> tuple[int, list[str]]:
    """Zero the log behind its end and delete later files; Java moves positions only. Returns bytes cut and files deleted."""
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
        for directory in log.directories:
            file_system.sync(directory)
        log.list_files()
    return cut_bytes, removed


def _batches(log: CommitLog, start: int, end: int, delays_ms: tuple[int, ...]) -> Iterator[DispatchBatch]:
    for offsets, records in log.walk(start, check_crc=False) if start < end else ():
        yield dispatch(offsets, records, delays_ms)


class _QueueWriters:
    """The writers of the queues that a recovery touches."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queues: ConsumeQueueStore,
        plan: RecoveryPlan,
        file_size_bytes: int,
        log_minimum: int,
        report: RecoveryReport,
    ) -> None:
        self._file_system = file_system
        self._queues = queues
        self._plan = plan
        self._file_size_bytes = file_size_bytes
        self._report = report
        self._writers: dict[tuple[str, int], ConsumeQueueWriter] = {}
        self.broken: set[tuple[str, int]] = set()
        self._log_minimum = log_minimum
        for name, end in plan.visible_ends.items():
            queue = queues.get(*name)
            if plan.written_ends[name] > end or (queue and not plan.was_clean and queue.has_bytes_behind(end)):
                self._truncate(*name, end)

    def _truncate(self, topic: str, queue_id: int, end: int) -> None:
        writer = self._writer(topic, queue_id)
        self._report.cut_entries += writer.truncate(end)
        if end and not writer.queue.file_starts:  # nothing is left that could be continued
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
        return ConsumeQueueWriter(self._file_system, queue, end, size, rebuilt=end == 0)

    def append(self, batch: DispatchBatch, start: int, only: Collection[tuple[str, int]] | None = None) -> None:
        """Enter the records of a batch that lie at or behind `start`, of all queues or `only` of these."""
        if not len(batch) or int(batch.commitlog_offsets[-1]) < start:
            return
        for new in queue_entries(batch, self._may_change_queues(batch, start)):
            if only is not None and (new.topic, new.queue_id) not in only:
                continue
            if "\0" in new.topic:
                self._report.torn_records += len(new.entries)
                continue
            late = new.entries["commitlog_offset"] >= start
            if late.any():
                writer = self._writer(new.topic, new.queue_id)
                first = new.queue_offsets[late][0]
                if (first > writer.end and start > self._log_minimum) or first < writer.queue.first_file_offset:
                    self.broken.add((new.topic, new.queue_id))
                writer.mend_last(new)
                writer.append(new.rows(late))

    def _may_change_queues(self, batch: DispatchBatch, start: int) -> np.ndarray:
        """The records of those queues that lack one of them, that they do not continue, or whose last entry is torn: after a crash,
        of very few.
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
        is_late[rows] = changes[numbers]
        return is_late

    def _known(self, name: tuple[str, int]) -> tuple[int, int, int, bool]:
        """Of a queue its end, where in the log its last message ends, the offset at which its first file begins, and whether its last
        entry may be torn.
        """
        maybe_torn = name in self._plan.maybe_torn
        if writer := self._writers.get(name):
            return writer.end, writer.greatest_end, writer.queue.first_file_offset, maybe_torn
        queue = self._queues.get(*name)
        first = queue.first_file_offset if queue is not None else 0
        return self._plan.visible_ends.get(name, 0), self._plan.last_places.get(name, -1), first, maybe_torn

    def rebuild_broken_queues(self, log: CommitLog, log_end: int, delays_ms: tuple[int, ...]) -> None:
        """A queue whose new records did not continue it lost files, or all: build it again from the whole log."""
        for name in self.broken:
            writer = self._writers[name]
            writer.truncate(0)
            self._writers[name] = self._writer_from(writer.queue, 0)
        for batch in _batches(log, log.minimum, log_end, delays_ms):
            for new in queue_entries(batch):
                if (new.topic, new.queue_id) in self.broken:
                    self._writers[new.topic, new.queue_id].append(new)
        self._report.rebuilt_queues.extend(sorted(self.broken))

    def finish(self) -> None:
        paths = set()
        for (topic, queue_id), writer in self._writers.items():
            directory = writer.queue.directory
            paths |= {*writer.paths, directory, posixpath.dirname(directory), self._queues.directory}
            writer.paths.clear()
            self._report.queue_ends[topic, queue_id] = writer.end
            self._report.dispatched_end = max(self._report.dispatched_end, writer.greatest_end)
            self._report.added_entries += writer.appended
            self._report.holes.extend((topic, queue_id, *hole) for hole in writer.holes)
        self._file_system.sync_all(paths)
        self._file_system.sync(posixpath.dirname(self._queues.directory))
