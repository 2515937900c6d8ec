"""Entering records into queues and index, which are derived from the log, as they are appended. Java: ReputMessageService."""

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
from storage.log.commit_log import CommitLog
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
"""Told of entries that can be read from now on, with their keys."""
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
    ) -> None:
        self._file_system = file_system
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
        """Who gives the extension units of new entries their maps; None = they have none."""
        self._unpublished: list[QueueName] = []
        self._entered: list[QueueEntries] = []  # kept for `arrived`

    def enter(self, runs: Sequence[AppendedRun]) -> None:
        """Queue entries, then keys, of runs in log order. Not visible yet: that is `publish`."""
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
        """The same of whole records of a log, which bring their queue offsets. Not visible yet: that is `publish`.

        `is_counted`: the queues' next offsets are behind them already (`count`).
        An offset that goes back takes the place of what the queue has there and behind: its topic was deleted and made again.
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
        self.enter_keys(index_keys(batch))
        reach("after-index")

    def count(self, batch: DispatchBatch) -> None:
        """Records that are entered later: what is put meanwhile gets the queue offsets behind theirs. Java: recoverTopicQueueTable."""
        for entries in queue_entries(batch):
            self._ends.queue_ends[entries.topic, entries.queue_id] = int(entries.queue_offsets[-1]) + 1

    def publish(self) -> None:
        """What was entered can be read from now on, and waiting pulls are notified.

        A reader that sees a queue's new end must see that the log goes so far: so the caller publishes that first.
        """
        names, self._unpublished = self._unpublished, []
        entered, self._entered = self._entered, []
        self._ends.readable_ends.update((name, self._queue_writers[name].end) for name in names)
        if entered and self.arrived is not None:
            self.arrived(entered)

    def forget(self, topic: str) -> None:
        """Its queues are deleted: what comes begins at offset 0. What the log has of it, and no queue yet, comes into none."""
        self._forgotten[topic] = self._ends.log_end
        self._ends.compared_tables = None  # tables may count what it had
        for name in [name for name in self._ends.queue_ends.keys() | self._queue_writers if name[0] == topic]:
            self._ends.queue_ends.pop(name, None)
            self._ends.readable_ends.pop(name, None)
            if (writer := self._queue_writers.pop(name, None)) is not None:
                writer.queue.close()
        self._queues.discover()

    def _kept(self, entries: QueueEntries) -> QueueEntries:
        """Those that were appended after their topic was deleted, if it was."""
        since = self._forgotten.get(entries.topic)
        return entries if since is None else entries.rows(entries.entries["commitlog_offset"] >= since)

    def enter_keys(self, keys: IndexKeys) -> None:
        """Keys that can be found when this returns. The checkpoint's index time must be ahead of theirs."""
        if self._index is not None:
            self._indexer().append(keys)
            self._indexer().flush()
            self._ends.index_is_sound = True

    def mend_entries(self, right: QueueEntries) -> None:
        """The tags codes of a queue's entries, of those that are there."""
        name = right.topic, right.queue_id
        if queue := self._queues.get(*name):
            writer = self._queue_writer(*name, self._ends.queue_ends.get(name, 0))
            for row, queue_offset in enumerate(right.queue_offsets.tolist()):
                entry = right.entries[row : row + 1]
                there, whole = queue.entries(queue_offset, queue_offset + 1)[0], entry[0]
                if there.item()[:2] == whole.item()[:2] and there != whole:  # the same record's
                    writer.set_tags_code(queue_offset, int(there["tags_code"]), int(whole["tags_code"]))

    def missing_keys(self, keys: IndexKeys) -> IndexKeys:
        """Those of the keys that the index lacks."""
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
            # A last entry that points further is wrong, and must not make new records look old.
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
        """Those of the last index file, as far as they are in memory."""
        return self._ends.index_slots if self._index_writer is None else self._index_writer.slots

    def begin_sync(self, least_pages: int, store_time_ms: int) -> DerivedSync:
        """A sync of queues with so many pages to be synced; for 0 of everything. `store_time_ms` is the last entered record's."""
        return begin_sync(
            self._file_system,
            self._queue_writers.values(),
            self._index_writer,
            self._ends.unsynced,
            self._gate,
            least_pages=least_pages,
            store_time_ms=store_time_ms,
        )

    def end_sync(self, sync: DerivedSync) -> None:
        """Take note that it is done."""
        end_sync(sync, self._index_writer)
        if sync.is_thorough:
            self._ends.unsynced.clear()

    def unsynced_paths(self) -> set[str]:
        """Files and directories that hold what is not synced, those of an earlier writer among them."""
        writers = list(self._queue_writers.values())  # others may add to them meanwhile
        paths = {path for writer in writers for path in set(writer.paths)} | unsynced_directories(writers)
        return set(self._ends.unsynced) | paths | (self._index_writer.unsynced_paths if self._index_writer else set())


class BitMaps:
    """Gives entries the maps that a rule makes, of records that stand in the log's files already.

    Java: CommitLogDispatcherCalcBitMap.

    What is not known gets no map: a filter looks at the message then.
    """

    def __init__(self, log: CommitLog, rule: MapRule) -> None:
        self._log = log
        self._rule = rule

    def mapped(self, new: QueueEntries) -> QueueEntries:
        """The entries with their maps; as they are where there are none, or where they cannot be had. Raises nothing."""
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
    """Records that stand in the log and in no queue yet.

    What they say to queues and index the columns of their runs tell, by the same lines as of records that are read from the log
    (`dispatch.entries_by_queue`, `message_keys`). Java: DispatchRequest.
    """

    columns: BlockColumns
    placement: Placement
    store_time_ms: int


def groups_of_runs(runs: Sequence[RecordRun]) -> Iterator[list[RecordRun]]:
    """Runs by about DISPATCH_ROWS rows: what is kept in memory between log and queues. Empty runs are left out."""
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
    """The entries of all runs that enter queues, a queue at a time."""
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
    """Those of a run for one queue, as they stand in it already."""
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
    """What is to be synced, and what is known of it then.

    Syncing what is derived from the log, queues and index, while both go on growing. Java: FlushConsumeQueueService,
    IndexService.flush.

    `begin_sync` looks at what is not synced, `DerivedSync.run` syncs that, `end_sync` takes note of it. The first and the last need
    the store for themselves, the one in the middle takes the time.
    """

    paths: tuple[str, ...]
    """Files before their directories."""
    is_thorough: bool
    """Whether that is all: entries and keys of every record up to `store_time_ms`, but for those of its own millisecond."""
    store_time_ms: int
    index_end_ms: int
    queues: tuple[_QueueState, ...]
    index_key_count: int
    file_system: LocalFileSystem
    gate: SyncGate

    def run(self) -> None:
        """Returns when all is on the disk. Raises OSError; then nobody knows what is."""
        self.gate.run(lambda: self.file_system.sync_all(self.paths))  # a file may have expired meanwhile


def begin_sync(
    file_system: LocalFileSystem,
    writers: Iterable[ConsumeQueueWriter],
    index_writer: IndexWriter | None,
    inherited: Iterable[str],
    gate: SyncGate,
    *,
    least_pages: int,
    store_time_ms: int,
) -> DerivedSync:
    """Of the queues those with `least_pages` to sync; for 0 all, with their directories, the index and what an earlier writer left.

    `store_time_ms` is that of the last record that was dispatched.
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
        store_time_ms,
        0 if index_writer is None else index_writer.end_time_ms,
        tuple(states),
        0 if index_writer is None else index_writer.key_count,
        file_system,
        gate,
    )


def unsynced_directories(writers: Iterable[ConsumeQueueWriter]) -> set[str]:
    """Those with entries of new files and queues that are not synced."""
    return {directory for writer in writers if writer.has_new_file for directory in writer.directories()}


def end_sync(sync: DerivedSync, index_writer: IndexWriter | None) -> None:
    """Take note that what was to be synced is."""
    for state in sync.queues:
        state.writer.note_synced(state.paths, state.end)
        if sync.is_thorough and state.writer.open_paths() == state.open_paths:
            state.writer.note_directories_synced()
    if sync.is_thorough and index_writer is not None and index_writer.key_count == sync.index_key_count:
        index_writer.unsynced.clear()
        index_writer.has_new_file = False
