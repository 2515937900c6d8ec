"""Entering appended records into queues and index, which are derived from the log. Java: ReputMessageService."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from storage.dispatch.store_ends import QueueName, StoreEnds
from storage.errors import StoreNotWritableError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import SyncGate
from storage.format.bloom_filter import MapRule
from storage.format.record_block import BlockColumns, RecordRun, resolved_tags_codes
from storage.index.store import IndexStore
from storage.index.writer import IndexWriter, OpenSlots
from storage.log.commit_log import CommitLog, RecordIdentity
from storage.log.dispatch import (
    DispatchBatch,
    IndexKeys,
    QueueEntries,
    entries_by_queue,
    entries_of,
    index_keys,
    queue_entries,
)
from storage.log.writer import Placement
from storage.names import validate_path_element
from storage.queues.store import ConsumeQueueStore
from storage.queues.writer import ConsumeQueueWriter

_LONG_MAX = 2**63 - 1
Arrived = Callable[[Sequence[QueueEntries]], None]
"""Called with entries that can be read from now on, with their keys."""
_LOG = logging.getLogger(__name__)
DISPATCH_ROWS = 1 << 20


class DerivedWriter:
    """The writers of one store's queues and index; `index` is None where there is none. Not thread-safe."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queues: ConsumeQueueStore,
        index: IndexStore | None,
        ends: StoreEnds,
        queue_file_size_bytes: int,
        clock: Callable[[], int],
        *,
        indexes_tags: bool = False,
    ) -> None:
        self._file_system = file_system
        self._indexes_tags = indexes_tags
        self._queues = queues
        self._index = index
        self._ends = ends
        self._started_at = ends.log_end
        self._gate = SyncGate()
        self._queue_file_size_bytes = queue_file_size_bytes
        self._clock = clock
        self._index_writer: IndexWriter | None = None
        self._queue_writers: dict[QueueName, ConsumeQueueWriter] = {}
        self._forgotten: dict[str, int] = {}
        ends.readable_ends = dict(ends.queue_ends)
        self.arrived: Arrived | None = None
        """Called in the writer's thread; it must be quick and raise nothing."""
        self.bit_maps: BitMaps | None = None
        """Gives the extension units of new entries their maps; None = they have none."""
        self._unpublished: list[QueueName] = []
        self._entered: list[QueueEntries] = []  # kept for `arrived`

    def enter(self, runs: Sequence[AppendedRun]) -> None:
        """Enter queue entries, then keys, of runs in log order. Visible only after `publish`."""
        maps = self.bit_maps if self._queues.writes_ext else None
        for new in queue_entries_of_runs(runs):
            entries = self._kept(new if maps is None else maps.mapped(new))
            if not len(entries.queue_offsets):
                continue
            self._queue_writer(entries.topic, entries.queue_id, int(entries.queue_offsets[0])).append(entries)
            self._unpublished.append((entries.topic, entries.queue_id))
            if self.arrived is not None:
                self._entered.append(entries)
        reach("after-queues")
        self.enter_keys(index_keys_of_runs(runs))
        reach("after-index")

    def enter_records(self, batch: DispatchBatch, *, is_counted: bool = False) -> None:
        """Enter whole records of a log, which have their queue offsets. Visible only after `publish`.

        `is_counted`: `count` has already moved the queues' next offsets past them.
        An offset that goes back replaces the queue's entries from there on: its topic was deleted and made again.
        """
        for entries in map(self._kept, queue_entries(batch)):
            if not len(entries.queue_offsets):
                continue
            name = entries.topic, entries.queue_id
            writer = self._queue_writer(*name, self._ends.readable_ends.get(name, 0), is_followed=True)
            cut_count = writer.cut_count
            writer.append(entries)
            self._ends.cut_count += writer.cut_count - cut_count
            if not is_counted:
                self._ends.queue_ends[name] = writer.end
            self._unpublished.append(name)
            if self.arrived is not None:
                self._entered.append(entries)
        reach("after-queues")
        self.enter_keys(index_keys(batch, indexes_tags=self._indexes_tags))
        reach("after-index")

    def count(self, batch: DispatchBatch) -> None:
        """Reserve queue offsets for records that are entered later: puts meanwhile come after them. Java: recoverTopicQueueTable."""
        for entries in queue_entries(batch):
            self._ends.queue_ends[entries.topic, entries.queue_id] = int(entries.queue_offsets[-1]) + 1

    def publish(self) -> None:
        """Make the entered records readable, and notify waiting pulls.

        A reader that sees a queue's new end must see that the log reaches it: so the caller publishes the log's end first.
        """
        names, self._unpublished = self._unpublished, []
        entered, self._entered = self._entered, []
        self._ends.readable_ends.update((name, self._queue_writers[name].end) for name in names)
        if entered and self.arrived is not None:
            self.arrived(entered)

    def forget(self, topic: str) -> None:
        """A topic's queues are deleted: new messages begin at offset 0. Its records in the log that no queue has yet enter none."""
        self._forgotten[topic] = self._ends.log_end
        self._ends.compared_tables = None  # tables may count its former messages
        for name in [name for name in self._ends.queue_ends.keys() | self._queue_writers if name[0] == topic]:
            self._ends.queue_ends.pop(name, None)
            self._ends.readable_ends.pop(name, None)
            if (writer := self._queue_writers.pop(name, None)) is not None:
                writer.queue.close()
        self._queues.discover()

    def _kept(self, entries: QueueEntries) -> QueueEntries:
        """Drop entries that were appended before their topic was deleted."""
        since = self._forgotten.get(entries.topic)
        return entries if since is None else entries.rows(entries.entries["commitlog_offset"] >= since)

    def enter_keys(self, keys: IndexKeys) -> None:
        """Enter keys, visible on return. The checkpoint's index time must be later than theirs."""
        if self._index is not None:
            self._indexer().append(keys)
            self._indexer().flush()
            self._ends.index_is_sound = True

    def mend_entries(self, right: QueueEntries) -> None:
        """Correct the tags codes of a queue's existing entries."""
        name = right.topic, right.queue_id
        if queue := self._queues.get(*name):
            writer = self._queue_writer(*name, self._ends.queue_ends.get(name, 0))
            for row, queue_offset in enumerate(right.queue_offsets.tolist()):
                entry = right.entries[row : row + 1]
                there, whole = queue.entries(queue_offset, queue_offset + 1)[0], entry[0]
                if there.item()[:2] == whole.item()[:2] and there != whole:  # the same record's
                    writer.set_tags_code(queue_offset, int(there["tags_code"]), int(whole["tags_code"]))

    def missing_keys(self, keys: IndexKeys) -> IndexKeys:
        """The keys that the index lacks."""
        claims = zip(keys.key_hashes.tolist(), keys.commitlog_offsets.tolist(), strict=True)
        missing = np.array([not self._is_entered(*claim) for claim in claims], bool)
        return IndexKeys(*(column[missing] for column in keys))

    def _is_entered(self, key_hash: int, commitlog_offset: int) -> bool:
        hits = self._index.lookup(key_hash, 0, _LONG_MAX) if self._index is not None else ()
        return self._index is None or any(hit.commitlog_offset == commitlog_offset for hit in hits)

    def _queue_writer(self, topic: str, queue_id: int, end: int, *, is_followed: bool = False) -> ConsumeQueueWriter:
        name = topic, queue_id
        if name not in self._queue_writers:
            queue = self._queues.get_or_make(validate_path_element("topic", topic), queue_id)
            if end and not queue.first_file_offset < end <= queue.last_file_end_offset:
                reason = f"queue {queue_id} of topic {topic} has messages and no file that holds the last of them"
                raise StoreNotWritableError(queue.directory, reason, "open the store again: opening recovers it")
            size = queue.file_size_bytes or self._queue_file_size_bytes
            ext = self._queues.ext_writer(self._file_system, topic, queue_id)
            writer = ConsumeQueueWriter(self._file_system, queue, end, size, rebuilt=is_followed, ext=ext)
            # A last entry that points beyond it is wrong, and must not make new records look old.
            writer.greatest_end = min(writer.greatest_end, self._started_at)
            self._queue_writers[name] = writer
        return self._queue_writers[name]

    def _indexer(self) -> IndexWriter:
        assert self._index is not None
        if self._index_writer is None:
            sound = self._ends.index_is_sound
            slots, self._ends.index_slots = self._ends.index_slots, None
            self._index_writer = IndexWriter(
                self._file_system, self._index, self._clock, trust_slots=sound, slots=slots
            )
        return self._index_writer

    @property
    def index_slots(self) -> OpenSlots | None:
        """The slots of the last index file, if they are in memory."""
        return self._ends.index_slots if self._index_writer is None else self._index_writer.slots

    def begin_sync(self, least_pages: int, last_record: RecordIdentity) -> DerivedSync:
        """A sync of queues with at least `least_pages` dirty pages; 0 = of everything. `last_record` is the last entered one."""
        return begin_sync(
            self._file_system,
            self._queue_writers.values(),
            self._index_writer,
            self._ends.unsynced,
            self._gate,
            least_pages=least_pages,
            last_record=last_record,
        )

    def end_sync(self, sync: DerivedSync) -> None:
        """Record that the sync is done."""
        end_sync(sync, self._index_writer)
        if sync.is_thorough:
            self._ends.unsynced.clear()

    def unsynced_paths(self) -> set[str]:
        """Files and directories with unsynced data, also those of an earlier writer."""
        writers = list(self._queue_writers.values())  # other threads may add to them meanwhile
        paths = {path for writer in writers for path in set(writer.paths)} | unsynced_directories(writers)
        return set(self._ends.unsynced) | paths | (self._index_writer.unsynced_paths if self._index_writer else set())


class BitMaps:
    """Gives entries the bit maps that a rule makes of their records, which are in the log's files already.

    An unknown record gets no map: a filter reads the message then. Java: CommitLogDispatcherCalcBitMap.
    """

    def __init__(self, log: CommitLog, rule: MapRule) -> None:
        self._log = log
        self._rule = rule

    def mapped(self, new: QueueEntries) -> QueueEntries:
        """The entries with their maps; unchanged if there are none, or on an error. Raises nothing."""
        try:
            maps_of = self._rule(new.topic)
            if maps_of is None:
                return new
            places, sizes = (new.entries[name].astype(np.int64) for name in ("commitlog_offset", "size_bytes"))
            properties: list[bytes] = []
            for _, records in self._log.records(places, sizes):
                properties += records.raw_properties().to_pylist()
            return new._replace(bit_maps=maps_of(properties)) if len(properties) == len(places) else new
        except Exception:  # the messages are stored, and are filtered one by one
            _LOG.exception("messages of topic %s have no bit maps", new.topic)
            return new


class AppendedRun(NamedTuple):
    """Records that are in the log and in no queue yet.

    Their runs' columns give the same entries and keys as records that are read from the log (`dispatch.entries_by_queue`,
    `message_keys`). Java: DispatchRequest.
    """

    columns: BlockColumns
    placement: Placement
    store_time_ms: int


def groups_of_runs(runs: Sequence[RecordRun]) -> Iterator[list[RecordRun]]:
    """Groups of runs with about DISPATCH_ROWS rows, a limit for the memory between log and queues. Empty runs are omitted."""
    group: list[RecordRun] = []
    rows = 0
    for run in runs:
        if run.columns.row_count:
            group.append(run)
            rows += run.columns.row_count
        if rows >= DISPATCH_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def queue_entries_of_runs(runs: Sequence[AppendedRun]) -> Iterator[QueueEntries]:
    """The queue entries of all runs, one queue at a time."""
    runs = [run for run in runs if run.columns.is_queued]
    if not runs:
        return
    if len(runs) == 1 and len(runs[0].columns.queues) == 1:
        yield _entries_of_one(runs[0])
        return
    codes_by_name: dict[QueueName, int] = {}
    codes = []
    for run in runs:
        known = np.array([codes_by_name.setdefault(name, len(codes_by_name)) for name in run.columns.queues], np.int64)
        codes.append(known[run.columns.queue_codes])
    yield from entries_by_queue(
        list(codes_by_name),
        np.concatenate(codes),
        np.concatenate([run.placement.commitlog_offsets for run in runs]),
        np.concatenate([run.columns.sizes_bytes for run in runs]),
        np.concatenate([resolved_tags_codes(run.columns.tags_codes, run.store_time_ms) for run in runs]),
        np.concatenate([run.placement.queue_offsets for run in runs]),
        np.concatenate([np.full(run.columns.row_count, run.store_time_ms, np.int64) for run in runs]),
    )


def _entries_of_one(run: AppendedRun) -> QueueEntries:
    """The entries of a run for one queue, already in that queue's order."""
    (name,), placement = run.columns.queues, run.placement
    codes = resolved_tags_codes(run.columns.tags_codes, run.store_time_ms)
    entries = entries_of(placement.commitlog_offsets, run.columns.sizes_bytes, codes)
    return QueueEntries(*name, placement.queue_offsets, entries, np.full(len(entries), run.store_time_ms, np.int64))


def index_keys_of_runs(runs: Sequence[AppendedRun]) -> IndexKeys:
    """The keys of all runs, in log order."""
    if len(runs) == 1:
        (run,), hashes = runs, runs[0].columns.key_hashes
        offsets, counts = run.placement.commitlog_offsets, run.columns.key_counts
        return IndexKeys(hashes, np.repeat(offsets, counts), np.full(len(hashes), run.store_time_ms, np.int64))
    places = [np.repeat(run.placement.commitlog_offsets, run.columns.key_counts) for run in runs]
    times = [np.full(len(run.columns.key_hashes), run.store_time_ms, np.int64) for run in runs]
    hashes = np.concatenate([run.columns.key_hashes for run in runs])
    return IndexKeys(hashes, np.concatenate(places), np.concatenate(times))


class _QueueState(NamedTuple):
    writer: ConsumeQueueWriter
    end: int
    paths: frozenset[str]
    open_paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class DerivedSync:
    """What a sync covers.

    It syncs queues and index while both go on growing. Java: FlushConsumeQueueService, IndexService.flush.

    `begin_sync` collects what is not synced, `DerivedSync.run` syncs it, `end_sync` records the result. The first and the last need
    exclusive access to the store; the slow part in the middle does not.
    """

    paths: tuple[str, ...]
    """Files before their directories."""
    is_thorough: bool
    """Whether it covers everything: entries and keys of every record up to `last_record`."""
    last_record: RecordIdentity
    index_end_ms: int
    queues: tuple[_QueueState, ...]
    index_key_count: int
    file_system: LocalFileSystem
    gate: SyncGate

    def run(self) -> None:
        """Returns when all is on the disk. Raises OSError; then it is unknown what is."""
        self.gate.run(lambda: self.file_system.sync_all(self.paths))  # a file may have expired meanwhile


def begin_sync(
    file_system: LocalFileSystem,
    writers: Iterable[ConsumeQueueWriter],
    index_writer: IndexWriter | None,
    inherited: Iterable[str],
    gate: SyncGate,
    *,
    least_pages: int,
    last_record: RecordIdentity,
) -> DerivedSync:
    """Collect the queues with at least `least_pages` to sync; 0 = all, with directories, index and what an earlier writer left.

    `last_record` is the last dispatched one.
    """
    is_thorough = least_pages == 0
    states = [
        _QueueState(writer, writer.end, frozenset(writer.paths), writer.open_paths())
        for writer in writers
        if (writer.paths or writer.has_new_file) and (is_thorough or writer.is_worth_syncing(least_pages))
    ]
    paths = {path for state in states for path in state.paths}
    if is_thorough:
        paths |= set(inherited) | unsynced_directories(state.writer for state in states)
        if index_writer is not None:
            paths |= index_writer.unsynced_paths
    return DerivedSync(
        tuple(sorted(paths, reverse=True)),
        is_thorough,
        last_record,
        0 if index_writer is None else index_writer.end_time_ms,
        tuple(states),
        0 if index_writer is None else index_writer.key_count,
        file_system,
        gate,
    )


def unsynced_directories(writers: Iterable[ConsumeQueueWriter]) -> set[str]:
    """Directories of the writers with unsynced names of new files and queues."""
    return {directory for writer in writers if writer.has_new_file for directory in writer.directories()}


def end_sync(sync: DerivedSync, index_writer: IndexWriter | None) -> None:
    """Record that everything in `sync` is synced."""
    for state in sync.queues:
        state.writer.note_synced(state.paths, state.end)
        if sync.is_thorough and state.writer.open_paths() == state.open_paths:
            state.writer.note_directories_synced()
    if sync.is_thorough and index_writer is not None and index_writer.key_count == sync.index_key_count:
        index_writer.unsynced.clear()
        index_writer.has_new_file = False
