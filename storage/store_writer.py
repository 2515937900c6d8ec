"""What a put and a commit share: records appended, entered into queues and index, checkpointed. Java: CommitLog.asyncPutMessages,
ReputMessageService, StoreCheckpoint.

The order is the contract (DESIGN 4): the index time in the checkpoint · records · their sync under SYNC_FLUSH · queue entries ·
index. After an error half-way nobody knows what stands on the disk, so the writer takes nothing more: opening the store again
recovers it. Nothing is acknowledged before `append` returns.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage.checkpoint import read_checkpoint, write_checkpoint
from storage.commit_log import CommitLog
from storage.commit_log_writer import CommitLogWriter
from storage.consume_queue_store import ConsumeQueueStore
from storage.consume_queue_writer import ConsumeQueueWriter
from storage.dispatch import IndexKeys, QueueEntries
from storage.errors import StoreNotWritableError
from storage.failpoints import reach
from storage.files.atomic_file import write_with_backup
from storage.files.file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY
from storage.format.record_block import RecordRun, resolved_tags_codes
from storage.hint import LedgerEnds
from storage.index_store import IndexStore
from storage.index_trust import drop_index_trust, has_index_trust, save_index_trust
from storage.index_writer import IndexWriter
from storage.log_tail import RecordIdentity
from storage.names import validate_path_element
from storage.placement import Placement, sorted_by_code
from storage.put_settings import PutSettings
from storage.redo import TornRow
from storage.topics import FILE_NAME as TOPICS_FILE
from storage.topics import TopicConfig, TopicTable

DISPATCH_ROWS = 1 << 20
_LONG_MAX = 2**63 - 1
CHECKPOINT_INTERVAL_MS = 60_000
"""Java: flushConsumeQueueThoroughInterval."""

QueueName = tuple[str, int]


@dataclass(slots=True)
class StoreEnds:
    """Where a store ends, as recovery or the hint found it."""

    log_end: int
    last_record: RecordIdentity | None
    queue_ends: dict[QueueName, int]
    unsynced: set[str] = field(default_factory=set)
    checkpointed_ms: int = 0
    ledger: LedgerEnds | None = None
    index_is_sound: bool = False
    """Whether the slots of the last index file were seen to be whole."""


class StoreWriter:
    """The writing end of one open store. The caller holds the store's lock, and `abort` stands."""

    def __init__(
        self,
        root: str,
        file_system: LocalFileSystem,
        log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexStore | None,
        ends: StoreEnds,
        settings: PutSettings,
        clock: Callable[[], int],
    ) -> None:
        self.root = root
        self.file_system = file_system
        self.log = log
        self.queues = queues
        self.settings = settings
        self.clock = clock
        self.ends = ends
        self._index = index
        self._index_writer: IndexWriter | None = None
        self._queue_writers: dict[QueueName, ConsumeQueueWriter] = {}
        self._log_writer = CommitLogWriter(
            file_system, log, ends.log_end, settings.log_file_size_bytes, settings.log_directories
        )
        self._checkpoint = read_checkpoint(file_system, root)
        self._trust_is_saved = False
        self._failure: BaseException | None = None

    @property
    def log_end(self) -> int:
        return self.ends.log_end

    @property
    def failure(self) -> BaseException | None:
        """Why this writer takes nothing more; None = it does."""
        return self._failure

    # Topics

    def ensure_topics(self, wanted: Mapping[str, int]) -> None:
        """Topics that have no entry get one with so many queues, before their first record. Java: TopicConfigManager."""
        table = before = self.settings.topics
        for topic, queue_count in wanted.items():
            if topic not in table.topics:
                table = table.ensure_topic(
                    topic,
                    queue_count,
                    now_ms=self.clock(),
                    broker_name=self.settings.broker_name,
                    cluster_name=self.settings.cluster,
                )
        if table is not before:
            self._save_topics(table)

    def save_topic(self, topic: TopicConfig) -> None:
        """An entry in topics.json, new or in place of the topic's old one; nothing where it says so already."""
        if self.settings.topics.topics.get(topic.topic) != topic:
            self._save_topics(self.settings.topics.with_topic(topic, now_ms=self.clock()))

    def _save_topics(self, table: TopicTable) -> None:
        write_with_backup(f"{self.root}/config/{TOPICS_FILE}", table.to_text(), self.file_system)
        self.settings = self.settings.with_topics(table)

    # Appending

    def reserve(self, size_bytes: int) -> None:
        """Room in the log for so many bytes, or StoreNotWritableError with nothing written."""
        self._refuse_after_failure()
        try:
            self._log_writer.reserve(size_bytes)
        except OSError as error:
            self._failure = error
            raise

    def append(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]:
        """Append the runs in order and dispatch them; returns their places. All records get one store time.

        On return they are readable, and on the disk under SYNC_FLUSH. `index_lease_ms` is how far ahead the checkpoint's
        index time may run, so that not every small append writes it.
        Raises StoreNotWritableError, OSError; then this writer is at its end.
        """
        self._refuse_after_failure()
        try:
            store_time_ms = max(self.clock(), self.ends.last_record.store_time_ms if self.ends.last_record else 0)
            self._claim_index_time(store_time_ms, index_lease_ms)
            placements: list[Placement] = []
            for group in _groups(runs):
                placements += self._append_group(group, store_time_ms)
            return placements
        except BaseException as error:
            self._failure = error
            raise

    def mend(self, torn: Sequence[TornRow]) -> None:
        """Tags codes and keys of rows that a broker has dispatched while they were torn."""
        self._refuse_after_failure()
        for row in torn:
            if queue := self.queues.get(*row.queue):
                writer = self._queue_writer(*row.queue, self.ends.queue_ends.get(row.queue, 0))
                entry = queue.entries(row.queue_offset, row.queue_offset + 1)
                if entry["commitlog_offset"][0] == row.commitlog_offset and entry["tags_code"][0] != row.tags_code:
                    entry["tags_code"] = row.tags_code
                    writer.rewrite(row.queue_offset, entry)
            missing = [key for key in row.key_hashes if not self._is_entered(key, row.commitlog_offset)]
            if missing:
                self._claim_index_time(self.ends.last_record.store_time_ms if self.ends.last_record else 0, 0)
                count = len(missing)
                places, times = np.full(count, row.commitlog_offset), np.full(count, row.store_time_ms)
                self._indexer().append(IndexKeys(np.array(missing, np.int32), places, times))
                self._indexer().flush()

    def _is_entered(self, key_hash: int, commitlog_offset: int) -> bool:
        hits = self._index.lookup(key_hash, 0, _LONG_MAX) if self._index is not None else ()
        return self._index is None or any(hit.commitlog_offset == commitlog_offset for hit in hits)

    def _append_group(self, runs: list[RecordRun], store_time_ms: int) -> list[Placement]:
        placements = []
        for run in runs:
            names = run.columns.queues
            placement = self._log_writer.append(
                run,
                np.array([self.ends.queue_ends.get(name, 0) for name in names], np.int64),
                store_time_ms,
            )
            if run.columns.is_queued:
                self.ends.queue_ends.update(zip(names, placement.next_queue_offsets.tolist(), strict=True))
            placements.append(placement)
        self.ends.log_end = self._log_writer.end
        self.ends.last_record = RecordIdentity(int(placements[-1].commitlog_offsets[-1]), store_time_ms)
        reach("after-records")
        if self.settings.sync_flush:
            self._log_writer.sync()
        for entries in _queue_entries(runs, placements, store_time_ms):
            self._queue_writer(entries.topic, entries.queue_id, int(entries.queue_offsets[0])).append(entries)
        reach("after-queues")
        self._enter_keys(runs, placements, store_time_ms)
        reach("after-index")
        return placements

    def _queue_writer(self, topic: str, queue_id: int, end: int) -> ConsumeQueueWriter:
        name = topic, queue_id
        if name not in self._queue_writers:
            queue = self.queues.get_or_make(validate_path_element("topic", topic), queue_id)
            if end and not queue.first_file_offset < end <= queue.last_file_end_offset:
                reason = f"queue {queue_id} of topic {topic} has messages and no file that holds the last of them"
                raise StoreNotWritableError(queue.directory, reason, "open the store again: opening recovers it")
            size = queue.file_size_bytes or self.settings.queue_file_size_bytes
            self._queue_writers[name] = ConsumeQueueWriter(self.file_system, queue, end, size)
        return self._queue_writers[name]

    def _enter_keys(self, runs: list[RecordRun], placements: list[Placement], store_time_ms: int) -> None:
        if self._index is None:
            return
        hashes = np.concatenate([run.columns.key_hashes for run in runs])
        places = [
            np.repeat(placement.commitlog_offsets, run.columns.key_counts)
            for run, placement in zip(runs, placements, strict=True)
        ]
        times = np.full(len(hashes), store_time_ms, np.int64)
        self._indexer().append(IndexKeys(hashes, np.concatenate(places), times))
        self._indexer().flush()
        self.ends.index_is_sound = True

    def _indexer(self) -> IndexWriter:
        assert self._index is not None
        if self._index_writer is None:
            sound = self.ends.index_is_sound
            self._index_writer = IndexWriter(self.file_system, self._index, self.clock, trust_slots=sound)
        return self._index_writer

    def _claim_index_time(self, store_time_ms: int, lease_ms: int) -> None:
        if self._index is None:
            return
        known = self._checkpoint.index_msg_timestamp
        if not self._trust_is_saved and not has_index_trust(self.file_system, self.root):
            ended = [file.header().end_time_ms for file in self._index.files()]
            synced = max((end for end in ended if end <= known and end < store_time_ms), default=0)
            save_index_trust(self.file_system, self.root, synced)
        self._trust_is_saved = True
        if known < store_time_ms:
            self._save_checkpoint(index_msg_timestamp=store_time_ms + lease_ms)

    def _save_checkpoint(self, **changes: int) -> None:
        self._checkpoint = self._checkpoint._replace(**changes)
        write_checkpoint(self.file_system, self.root, self._checkpoint)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            reason = f"an earlier write failed ({self._failure}), and what stands on the disk is not known"
            raise StoreNotWritableError(
                self.root, reason, "open the store again: opening recovers it"
            ) from self._failure

    # Making durable

    def sync_log(self) -> None:
        """Every record appended so far, by this writer or by the one before it, onto the disk."""
        self._refuse_after_failure()
        try:
            inherited = {path for path in self.ends.unsynced if path.startswith(tuple(self.log.directories))}
            for path in sorted(inherited, reverse=True):
                self._sync_if_there(path)
            self._log_writer.sync()
            self.ends.unsynced -= inherited
        except BaseException as error:
            self._failure = error
            raise

    def checkpoint(self) -> None:
        """Log, queues and index onto the disk, then the checkpoint's times, which now vouch for all of it."""
        self.sync_log()
        try:
            for path in sorted(self.unsynced_paths(), reverse=True):
                self._sync_if_there(path)
            for writer in self._queue_writers.values():
                writer.paths.clear()
            if self._index_writer is not None:
                self._index_writer.sync()
            self.ends.unsynced.clear()
            last = self.ends.last_record.store_time_ms if self.ends.last_record else 0
            files = self._index.files() if self._index is not None else []
            index_time = files[-1].header().end_time_ms if files else 0
            self._save_checkpoint(
                physic_msg_timestamp=last,
                logics_msg_timestamp=last,
                index_msg_timestamp=index_time,
            )
            drop_index_trust(self.file_system, self.root)
            self._trust_is_saved = False
            self.ends.checkpointed_ms = self.clock()
        except BaseException as error:
            self._failure = error
            raise

    def checkpoint_if_due(self) -> None:
        """A checkpoint a minute bounds what a recovery must walk."""
        if self.clock() - self.ends.checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
            self.checkpoint()

    def unsynced_paths(self) -> set[str]:
        """Files and directories that hold what is not synced, the log's among them."""
        paths = self.ends.unsynced | self._log_writer.unsynced
        for writer in self._queue_writers.values():
            if writer.paths:
                topic_directory = posixpath.dirname(writer.queue.directory)
                paths |= writer.paths | {writer.queue.directory, topic_directory, self.queues.directory}
        if self._index_writer is not None:
            paths |= self._index_writer.unsynced
            if self._index_writer.has_new_file and self._index is not None:
                paths |= {self._index.directory}
        return paths

    def _sync_if_there(self, path: str) -> None:
        if self.file_system.exists(path):  # a file may have expired meanwhile
            self.file_system.sync(path)

    def close(self) -> None:
        """Let go of descriptors; syncs nothing."""
        self._log_writer.close()


def _groups(runs: Sequence[RecordRun]) -> Iterator[list[RecordRun]]:
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


def _queue_entries(runs: list[RecordRun], placements: list[Placement], store_time_ms: int) -> Iterator[QueueEntries]:
    """The entries of all runs that enter queues, a queue at a time."""
    placements = [placement for run, placement in zip(runs, placements, strict=True) if run.columns.is_queued]
    runs = [run for run in runs if run.columns.is_queued]
    if not runs:
        return
    codes_by_name: dict[QueueName, int] = {}
    codes = []
    for run in runs:
        known = np.array([codes_by_name.setdefault(name, len(codes_by_name)) for name in run.columns.queues], np.int64)
        codes.append(known[run.columns.queue_codes])
    code_of_row = np.concatenate(codes)
    order = sorted_by_code(code_of_row, len(codes_by_name))
    entries = np.empty(len(order), ENTRY)
    entries["commitlog_offset"] = np.concatenate([placement.commitlog_offsets for placement in placements])[order]
    entries["size_bytes"] = np.concatenate([run.columns.sizes_bytes for run in runs])[order]
    tags_codes = np.concatenate([run.columns.tags_codes for run in runs])[order]
    entries["tags_code"] = resolved_tags_codes(tags_codes, store_time_ms)
    queue_offsets = np.concatenate([placement.queue_offsets for placement in placements])[order]
    times = np.full(len(order), store_time_ms, np.int64)
    ends = np.cumsum(np.bincount(code_of_row, minlength=len(codes_by_name)))
    start = 0
    for (topic, queue_id), end in zip(codes_by_name, ends.tolist(), strict=True):
        if end > start:
            rows = slice(start, end)
            yield QueueEntries(topic, queue_id, queue_offsets[rows], entries[rows], times[rows])
        start = end
