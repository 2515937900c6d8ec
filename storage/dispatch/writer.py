"""Entering appended records into queues and index, which are derived from the log; and the ends of all three in an open store.

The writer moves the ends on, and keeps them in ROOT/spark_mq/hint.json for the next opening. Between two commits the store is not
closed: `abort` exists, and without a hint every opening would be a recovery. A hint is valid if everything around the ends is as it
says: `abort` was not written anew, the machine has not started again (so all written data is there, synced or not), no queue was made
or deleted, the last files of log and index are the same, the last record is at its place with free space after it. The hint is written
without a sync: after a power loss it is not valid anyway.

Java: ReputMessageService.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from storage.errors import StorageError, StoreNotWritableError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem, load_loose, save_loose
from storage.files.syncs import SyncGate
from storage.format.bloom_filter import MapRule
from storage.format.record import BLANK_SIZE
from storage.format.record_block import BlockColumns, RecordRun, resolved_tags_codes
from storage.index.store import IndexStore, IndexWriter, OpenSlots
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
from storage.names import QueueName, validate_path_element
from storage.queues.store import ConsumeQueueStore
from storage.queues.writer import ConsumeQueueWriter
from storage.tables.sink_notes import LedgerNotes

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
                reason = f"queue {queue_id} of topic {topic} has messages and no file that hint_holds the last of them"
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
        known = np.array([codes_by_name.setdefault(name, len(codes_by_name)) for name in run.columns.queues], np.int32)
        codes.append(known[run.columns.queue_codes])
    yield from entries_by_queue(
        list(codes_by_name),
        np.concatenate(codes),
        np.concatenate([run.placement.commitlog_offsets for run in runs]),
        np.concatenate([run.columns.sizes_bytes for run in runs]),
        np.concatenate([resolved_tags_codes(run.columns.tags_codes, run.store_time_ms) for run in runs]),
        np.concatenate([run.placement.queue_offsets for run in runs]),
        np.repeat(_store_times_ms(runs), [run.columns.row_count for run in runs]),
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
    hashes = np.concatenate([run.columns.key_hashes for run in runs])
    times = np.repeat(_store_times_ms(runs), [len(run.columns.key_hashes) for run in runs])
    return IndexKeys(hashes, np.concatenate(places), times)


def _store_times_ms(runs: Sequence[AppendedRun]) -> np.ndarray:
    return np.array([run.store_time_ms for run in runs], np.int64)


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


LedgerEnds = dict[str, dict[str, int]]
"""Sink id → query id → its last batch id; the query that wrote last comes first."""
OpenBatches = dict[str, dict[str, int]]
"""Sink id → query id → place of its oldest SLICE after its newest END. Empty unless an intent was lost, as on a replica."""
TableVersions = dict[str, tuple[int, ...] | None]
"""Path of a file → its `LocalFileSystem.version`."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The ends of a store that no process has open, but that was not closed."""

    abort: str
    """Content of the abort file."""
    boot_id: str
    log_end: int
    last_record: RecordIdentity | None
    log_file: tuple[str, tuple[int, int, int]] | None
    """Path and identity of the last file with records."""
    index_file: tuple[str, int, int] | None
    """Name, item count and end place of the last index file."""
    queue_directories: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """For consumequeue/ ("") and each topic in it: device, number, time of the last change of its entries (ms)."""
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    unsynced: tuple[str, ...] = ()
    """Paths that a checkpoint must sync first."""
    checkpointed_ms: int = 0
    checkpointed_end: int = 0
    marked_ends: LedgerEnds | None = None
    """The newest END of every sink; None = not looked for yet. The name is new since ENDs have marks: before, a forged one counted."""
    indexed_from: int | None = None
    """The index has every key from this log offset on; None = unknown."""
    open_batches: OpenBatches | None = None
    """None = not looked for yet. The name is new since BEGINs count: before, `open_slices`."""
    compared_tables: TableVersions | None = None
    """The tables as the releasing process left them; None = the next opening must compare them (`recovery/offsets_ahead.py`)."""
    synced_entries: tuple[str, ...] = ()
    """`StoreEnds.synced_entries`. Without the lock only a task makes ROOT/spark_mq anew; if that was deleted, so was this file. A
    writer that is killed while it makes the directory leaves no hint."""
    finished_intents: tuple[str, ...] = ()
    """`StoreEnds.finished_intents`."""
    name: str = ""
    """Unique for each hint; "" from a version without names."""


def _hint_path(root: str) -> str:
    return f"{root}/spark_mq/hint.json"


def save_hint(file_system: LocalFileSystem, root: str, hint: Hint) -> None:
    """Replace the hint; not durable, and need not be."""
    content = json.dumps({part.name: getattr(hint, part.name) for part in fields(hint)}, separators=(",", ":")).encode()
    if not file_system.exists(f"{root}/spark_mq"):
        file_system.make_directories(f"{root}/spark_mq")
    save_loose(file_system, _hint_path(root), content)


def drop_hint(file_system: LocalFileSystem, root: str) -> None:
    if file_system.exists(_hint_path(root)):
        file_system.unlink(_hint_path(root))


def load_hint(file_system: LocalFileSystem, root: str) -> Hint | None:
    """The hint; None if there is none, only half of one, or one from another version."""
    content = load_loose(file_system, _hint_path(root))
    try:
        return None if content is None else _from_document(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _from_document(document: dict[str, Any]) -> Hint:
    last, log_file, index_file = document["last_record"], document["log_file"], document["index_file"]
    tables = document.get("compared_tables")
    return Hint(
        abort=document["abort"],
        boot_id=document["boot_id"],
        log_end=document["log_end"],
        last_record=None if last is None else RecordIdentity(*last),
        log_file=None if log_file is None else (log_file[0], tuple(log_file[1])),
        index_file=None if index_file is None else tuple(index_file),
        queue_directories={topic: tuple(found) for topic, found in document["queue_directories"].items()},
        queue_ends={
            topic: {int(queue): end for queue, end in ends.items()} for topic, ends in document["queue_ends"].items()
        },
        unsynced=tuple(document["unsynced"]),
        checkpointed_ms=document["checkpointed_ms"],
        checkpointed_end=int(document.get("checkpointed_end", 0)),
        marked_ends=document.get("marked_ends"),
        indexed_from=document.get("indexed_from"),
        open_batches=document.get("open_batches"),
        synced_entries=tuple(map(str, document.get("synced_entries", ()))),
        finished_intents=tuple(map(str, document.get("finished_intents", ()))),
        name=str(document.get("name", "")),
        compared_tables=None if tables is None else {path: found and tuple(found) for path, found in tables.items()},
    )


def index_end(index: IndexStore | None) -> tuple[str, int, int] | None:
    """Name, item count and end place of the last index file."""
    files = index.files() if index is not None else []
    if not files:
        return None
    header = files[-1].header()
    return files[-1].name, header.index_count, header.end_commitlog_offset


def queue_directories(file_system: LocalFileSystem, root: str) -> dict[str, tuple[int, int, int]]:
    """Identities of the queue directories: they show whether queues were made or deleted since."""
    directory = f"{root}/consumequeue"
    names = ["", *(entry.name for entry in file_system.list_directory(directory) if entry.is_directory)]
    found = {}
    for name in names:
        path = f"{directory}/{name}".rstrip("/")
        identity, modified_ms = file_system.identity(path), file_system.modified_ms(path)
        if identity is not None and modified_ms is not None:
            found[name] = identity[0], identity[1], modified_ms
    return found


def hint_holds(hint: Hint, file_system: LocalFileSystem, root: str, log: CommitLog, index: IndexStore | None) -> bool:
    """Whether the store is as the hint says."""
    if (file_system.read_file(f"{root}/abort") or b"").decode(errors="replace") != hint.abort:
        return False
    if hint.boot_id != file_system.boot_id() or not hint.boot_id:
        return False
    if hint.log_file is not None and file_system.identity(hint.log_file[0]) != hint.log_file[1]:
        return False
    if queue_directories(file_system, root) != hint.queue_directories:
        return False
    return index_end(index) == hint.index_file and _ends_there(hint, log)


def _ends_there(hint: Hint, log: CommitLog) -> bool:
    if hint.last_record is not None:
        try:
            message = log.message_at(hint.last_record.commitlog_offset, hint.log_end, check_crc=True)
        except StorageError:
            return False
        if message.store_time_ms != hint.last_record.store_time_ms:
            return False
        if message.commitlog_offset + message.size_bytes != hint.log_end:
            return False
    elif any(log.bytes_at(file.start, BLANK_SIZE).strip(b"\0") for file in log.files):
        return False
    number = log.file_index(hint.log_end)
    if number >= 0 and hint.log_end < log.files[number].end:
        head = log.bytes_at(hint.log_end, min(BLANK_SIZE, log.files[number].end - hint.log_end))
        if head.strip(b"\0"):
            return False
    return not any(log.bytes_at(file.start, BLANK_SIZE).strip(b"\0") for file in log.files[number + 1 :])


@dataclass(slots=True)
class StoreEnds:
    """The ends of a store, as recovery or the hint found them."""

    log_end: int
    last_record: RecordIdentity | None
    queue_ends: dict[QueueName, int]
    """The next offset of each queue, after its appended messages."""
    unsynced: set[str] = field(default_factory=set)
    checkpointed_ms: int = 0
    checkpointed_end: int = 0
    """The end of the log when the last checkpoint was written."""
    ledger: LedgerEnds | None = None
    ledger_notes: LedgerNotes | None = None
    """None = not read yet."""
    open_batches: OpenBatches | None = None
    """None = not looked for yet."""
    open_commits: set[str] = field(default_factory=set)
    """Paths of the intents of running commits: other threads, which may put between two slices, must not settle them."""
    finished_intents: set[str] = field(default_factory=set)
    """Paths of intents whose batches were found in the log, with END, mirror and note."""
    index_is_sound: bool = False
    """Whether the slots of the last index file were found complete."""
    indexed_from: int | None = None
    """The index has every key from this log offset on; None if no index is kept."""
    synced_entries: set[str] = field(default_factory=set)
    """Directories of ROOT whose names are known to be on the disk; "" is ROOT and what a new store has in it."""
    index_slots: OpenSlots | None = None
    """The slots of the last index file, if this process has kept them."""
    held_from: int | None = None
    """From this log offset on records wait to be confirmed; None = they never wait."""
    readable_ends: dict[QueueName, int] = field(default_factory=dict)
    """The end of each queue's entries. The writer sets and moves them; other threads may read meanwhile."""
    compared_tables: TableVersions | None = None
    """The tables that were compared with the queues' ends, if only the ends have grown since; None = not compared."""
    cut_count: int = 0
    """How often a queue was cut to begin anew: its topic was deleted and made again in the store that this log comes from."""

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0


EVERYTHING = float("inf")
NOTHING_NEW = -1
"""A store that must have a copy is not connected."""


class Confirmed:
    """The log offset up to which readers may see a log that other stores must have first. The dispatching thread moves it; any thread
    may set `reached`.

    Java: CommitLog.getConfirmOffset.

        master   the least place that a replica of the SyncStateSet has acknowledged; the log's end if no other replica is in it
        slave    the offset that its master sends, as far as it has the log itself

    Unconfirmed records are in the log, but in no queue and no index: a fail-over may remove them. The offset never decreases.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        """The confirmed offset at the last look."""
        self.reached: float = NOTHING_NEW
        """The offset that all required stores have; `EVERYTHING` if none is required."""

    def within(self, end: int) -> int:
        """The confirmed offset of a log that ends at `end`."""
        return int(min(end, max(self.end, self.reached)))

    def move(self, end: int) -> int:
        """Like `within`, and keep the result. `end` was read before the call, so a store that is added meanwhile misses nothing."""
        self.end = max(self.end, self.within(end))
        return min(self.end, end)
