"""The writing part of puts and commits: appends records, enters them into queues and index, writes checkpoints. Java:
CommitLog.asyncPutMessages, ReputMessageService, StoreCheckpoint.

The order is the contract: the index time in the checkpoint · records · their sync under SYNC_FLUSH · queue entries ·
index. `append` does all of it. `append_records` stops after the records, for a sync that serves many puts
(`put_service.py`); `dispatch` then continues with exactly what the flush policy makes readable. After an error
half-way the content of the disk is unknown, so the writer accepts nothing more: opening the store again recovers it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from storage.dispatch.writer import AppendedRun, Confirmed, DerivedSync, DerivedWriter, StoreEnds, groups_of_runs
from storage.epoch_times import is_time
from storage.errors import CorruptRecordError, StoreNotWritableError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.files.locked_memory import LockedMemory, WarmFile
from storage.files.syncs import note_failed_sync, try_disk
from storage.format.record_block import RecordRun
from storage.index.store import IndexStore, OpenSlots, drop_index_trust, has_index_trust, save_index_trust
from storage.log.commit_log import CommitLog, RecordIdentity, read_checkpoint, write_checkpoint
from storage.log.damage import TornRow
from storage.log.dispatch import DISPATCHED, DispatchBatch, RawCheck, RawRecords, dispatch, index_keys, queue_entries
from storage.log.group_log import GroupLog, GroupLogWriter
from storage.log.writer import AnyLogSync, CommitLogWriter, NextFile, Placement, RunningSync
from storage.names import validate_path_element
from storage.put.settings import PutSettings, TopicEntries
from storage.queues.store import ConsumeQueueStore
from storage.tables.put_statistics import PutStatistics, Sum

_LOG = logging.getLogger(__name__)
_LITTLE_ROOM_BYTES = 1 << 16
INDEX_LEASE_MS = 1_000
"""How far the checkpoint's index time may be ahead of the records."""
CHECKPOINT_INTERVAL_MS = 60_000
"""Our own interval, for a store without a service, whose turns would follow flushConsumeQueueThoroughInterval."""
_COMMITTED_BYTES = 64 << 20
"""So much of a group's committed log is entered at a time."""
_MAJORITY_SECONDS = 0.5
"""How long a put that keeps others waiting waits for a group's majority."""


class HeldRecords(NamedTuple):
    """Records that are in no queue yet, and their end in the log."""

    end: int
    batch: DispatchBatch
    is_counted: bool


class StoreWriter:
    """The writer of one open store. The caller holds the store's lock, and `abort` exists. Not thread-safe."""

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
        self.clock = clock
        self.topic_entries = TopicEntries(
            root, file_system, settings, clock, refuse=self._refuse_after_failure, fail=self.fail
        )
        """The table of topics.json, for changes. Thread-safe."""
        self.ends = ends
        self._index = index
        self.derived = DerivedWriter(
            file_system,
            queues,
            index,
            ends,
            settings.queue_file_size_bytes,
            clock,
            indexes_tags=settings.release.indexes_tags,
        )
        of_log = {path for path in ends.unsynced if path.startswith(tuple(log.directories))}
        ends.unsynced -= of_log
        self._group: GroupLog | None = None
        self._overdue: int | None = None
        """A place up to which a wait for the group's majority was given up."""
        self._log_writer: CommitLogWriter | GroupLogWriter = CommitLogWriter(
            file_system, log, ends.log_end, settings.log_file_size_bytes, settings.log_directories, of_log
        )
        self._undispatched: deque[AppendedRun] = deque()
        self._undispatched_rows = 0
        last_ms = ends.last_store_time_ms
        self._written_ms = self._dispatched_ms = last_ms
        self.dispatched_end = ends.log_end if ends.held_from is None else ends.held_from
        """The log offset up to which queues and index know the log."""
        self._dispatched_record = 0 if ends.last_record is None else ends.last_record.commitlog_offset
        self._synced_ms = 0 if of_log else last_ms
        self._checkpoint = read_checkpoint(file_system, root)
        self._trust_is_saved = False
        self._failure: BaseException | None = None
        self.confirmed = None if ends.held_from is None else Confirmed(ends.held_from)
        """How far required replicas have the log; None = none is required."""
        self._held: deque[HeldRecords] = deque()
        if ends.held_from is not None and ends.held_from < ends.log_end:
            self._dispatched_ms = self._dispatched_record = 0
            self._hold(ends.held_from, settings.delays_ms)
        self.statistics = PutStatistics(settings.broker_name, settings.cluster)
        """What was appended. Replace it to count only later appends."""
        self.appended = Sum()
        """Bytes and number of all records since the opening, also a follower's. Java: StoreStatsService."""

    @property
    def log_end(self) -> int:
        return self.ends.log_end

    @property
    def failure(self) -> BaseException | None:
        """Why this writer accepts nothing more; None = it does."""
        return self._failure

    def join(self, group: GroupLog) -> None:
        """The log is that of a DLedger group: this writer appends by its member, and only what is committed becomes readable. Before
        anything else is called.
        """
        self._group = group
        self.log.forget_open(self.ends.log_end)
        self._log_writer = GroupLogWriter(group, self.root, self.ends.log_end, self.settings.log_file_size_bytes)
        self.confirmed = Confirmed(self.ends.log_end)

    @property
    def is_of_group(self) -> bool:
        """Whether its log is a DLedger group's: then a put counts when a majority has it, and not before."""
        return self._group is not None

    # Topics

    @property
    def settings(self) -> PutSettings:
        """The current settings of puts, including topics: a frozen value that a new topic replaces."""
        return self.topic_entries.settings

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's entry, then its queues; does nothing for a missing topic. Java: DefaultMessageStore.deleteTopics.

        Order: everything put is synced and dispatched · topics.json · topicQueueMapping.json, if it is static · the queues' files,
        oldest first · their directories. Commit point: topics.json. A crash after it leaves queues without an entry, which are not
        readable. The records stay in the log until they expire. A topic of the same name that is made later begins at queue offset 0.
        """
        self.sync_log()
        self.topic_entries.remove(topic)
        self.delete_queues(topic)

    def delete_queues(self, topic: str) -> None:
        """Delete the queues of a topic without an entry. Raises NameIllegalError, OSError."""
        validate_path_element("topic", topic)
        try:
            self.queues.delete(self.file_system, topic)
        except OSError as error:
            self.fail(error)
            raise
        self.derived.forget(topic)
        text = "%s: the queues of topic %s were deleted; its records stay in the log until they expire"
        _LOG.info(text, self.root, topic)

    # Appending

    def reserve(self, size_bytes: int, largest_bytes: int) -> None:
        """Reserve room in the log for records of this total size and largest size; else StoreNotWritableError, with nothing written."""
        self._refuse_after_failure()
        try:
            self._log_writer.reserve(size_bytes, largest_bytes)
        except OSError as error:
            self.fail(error)
            raise

    @property
    def wants_next_file(self) -> bool:
        """Whether the log will need its next file soon, and it was not requested yet."""
        return self._log_writer.wants_next_file

    def next_file(self) -> NextFile | None:
        """The log's next file, which the caller must `make` in parallel to this writer; None if there is nothing to make."""
        return None if self._failure is not None else self._log_writer.next_file()

    def hold_in_locked_memory(self, size_bytes: int) -> None:
        """Records that are not written yet lie in locked memory from now on. Raises OSError if so much cannot be locked."""
        self._log_writer.pool = LockedMemory(size_bytes)

    def warm_next_files(self, sync_pages: int | None) -> None:
        """Bring the pages of each next file into memory; `sync_pages` as of `WarmFile`."""
        self._log_writer.warms = partial(WarmFile, sync_pages=sync_pages)

    def drop_next_file(self) -> None:
        """Delete an unused log file that was made ahead."""
        self._log_writer.drop_next_file()

    def append(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]:
        """Append the runs in order and dispatch them; returns their places. All records get one store time.

        On return they are readable, and on the disk under SYNC_FLUSH. `index_lease_ms` is how far the checkpoint's
        index time may be ahead, so that not every small append writes it.
        Raises StoreNotWritableError, OSError; then this writer is unusable. Only if no majority of its group has them in time it is
        usable, and they may come to be readable (`refuse_while_late`).
        """
        placements: list[Placement] = []
        store_time_ms = self._next_store_time_ms()
        for group in groups_of_runs(runs):
            placements += self._append_group(group, store_time_ms, index_lease_ms)
            self.make_readable()
        return placements

    def append_records(
        self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0, hold: bool = False
    ) -> list[Placement]:
        """Append the runs in order, without the later steps of `append`. Returns and raises what `append` does.

        With `hold` they stay in memory until `write_held` or any `append`.
        """
        placements: list[Placement] = []
        store_time_ms = self._next_store_time_ms()
        for group in groups_of_runs(runs):
            placements += self._append_group(group, store_time_ms, index_lease_ms, hold=hold)
        return placements

    def make_readable(self, least_rows: int = 0) -> None:
        """Sync under SYNC_FLUSH and dispatch what `append_records` has appended, if it is at least so many rows."""
        if self._undispatched_rows < least_rows:
            return
        if self.settings.sync_flush:
            self._sync_records()
        self.dispatch()

    def dispatch(self) -> bool:
        """Enter readable records into queues and index: everything before the policy's `readable_end`, in a log that must be
        confirmed only confirmed records.

        Returns whether more is readable now: a member that does not lead its group enters a part at a time.
        """
        self._refuse_after_failure()
        try:
            if self._group is not None:
                while is_left := self._enter_committed(self._group):
                    if not self._group.leads:
                        break
                return is_left
            end = self.settings.flush.readable_end(self._log_writer.written_end, self._log_writer.synced_end)
            if self.confirmed is not None:
                end = self.confirmed.move(end)
                self._enter_held(end)
            runs = []
            while not self._held and self._undispatched and self._undispatched[0].placement.end <= end:
                runs.append(self._undispatched.popleft())
                self._undispatched_rows -= runs[-1].columns.row_count
            if runs:
                self.derived.enter(runs)
                self._dispatched_ms = runs[-1].store_time_ms
                self._dispatched_record = int(runs[-1].placement.commitlog_offsets[-1])
                self.dispatched_end = runs[-1].placement.end
                self.derived.publish()
            return False
        except BaseException as error:
            self.fail(error)
            raise

    def _enter_committed(self, group: GroupLog) -> bool:
        """Enter a part of the group's committed records from the log. Returns whether more is left."""
        end = group.committed_end
        if end <= self.dispatched_end:
            return False
        self.log.see(end)
        check = RawCheck(self.log, self.settings.delays_ms, check_crc=not group.leads, root=self.root)
        found = check.whole_records(self.dispatched_end, min(self.dispatched_end + _COMMITTED_BYTES, end))
        if found.end <= self.dispatched_end:
            raise CorruptRecordError("committed entry", found.end, f"records up to {end}", "none")
        self._enter_whole(found, is_counted=group.leads)
        return self.dispatched_end < end

    def _enter_whole(self, found: RawRecords, *, is_counted: bool) -> None:
        """Enter committed records; `is_counted` where this writer has appended them."""
        for batch in found.batches:
            self._claim_index_time(int(batch.store_times_ms.max()), INDEX_LEASE_MS)
            self.derived.enter_records(batch, is_counted=is_counted)
            if not is_counted:
                self.appended.add(int(batch.sizes_bytes.sum()), len(batch))
        if found.last_record is not None:
            self._dispatched_ms = found.last_record.store_time_ms
            self._dispatched_record = found.last_record.commitlog_offset
            if not is_counted:
                self._written_ms, self.ends.last_record = self._dispatched_ms, found.last_record
        if isinstance(self._log_writer, GroupLogWriter):
            self._log_writer.follow(found.end)
        self.ends.log_end = max(self.ends.log_end, found.end)
        self.dispatched_end = found.end
        if self.confirmed is not None:
            self.confirmed.end = found.end
        self.derived.publish()

    def trim_log(self, minimum: int) -> None:
        """Let the member delete its log's files before a place. For any thread: puts go on meanwhile. Raises as `GroupLog.trim`."""
        assert self._group is not None, "others delete their files themselves"
        self._group.trim(minimum)

    def mend(self, torn: Sequence[TornRow]) -> None:
        """Correct tags codes and keys of rows, in log order, that a broker may have dispatched while they were torn."""
        self._refuse_after_failure()
        places, sizes = np.array(torn, np.int64).reshape(-1, 2).T
        try:
            for rows, records in self.log.records(places, sizes):
                is_there = records.is_whole & (records.column("commitlog_offset") == places[rows])
                there = np.flatnonzero(is_there & (records.column("size_bytes") == sizes[rows]))
                if not len(there):  # a power loss removed them, and they are written anew
                    continue
                batch = dispatch(places[rows][there], records.take(there), self.settings.delays_ms)
                for entries in queue_entries(batch):
                    self.derived.mend_entries(entries)
                if len(
                    (
                        missing := self.derived.missing_keys(
                            index_keys(batch, indexes_tags=self.settings.release.indexes_tags)
                        )
                    ).key_hashes
                ):
                    self._claim_index_time(self.ends.last_store_time_ms, 0)
                    self.derived.enter_keys(missing)
        except BaseException as error:
            self.fail(error)
            raise

    def _next_store_time_ms(self) -> int:
        return max(self.clock(), self.ends.last_store_time_ms)

    def _append_group(
        self, runs: Sequence[RecordRun], store_time_ms: int, index_lease_ms: int, *, hold: bool = False
    ) -> list[Placement]:
        self._refuse_after_failure()
        try:
            self._claim_index_time(store_time_ms, index_lease_ms)
            reach("before-records")
            placements = [self._append_run(run, store_time_ms, hold) for run in runs]
            reach("after-records")
            return placements
        except BaseException as error:
            self.fail(error)
            raise

    def _append_run(self, run: RecordRun, store_time_ms: int, hold: bool) -> Placement:
        names = run.columns.queues
        next_offsets = np.array([self.ends.queue_ends.get(name, 0) for name in names], np.int64)
        placement = self._log_writer.append(run, next_offsets, store_time_ms, hold=hold)
        if run.columns.is_queued:
            self.ends.queue_ends.update(zip(names, placement.next_queue_offsets.tolist(), strict=True))
        self.ends.log_end = self._log_writer.end
        self.ends.last_record = RecordIdentity(int(placement.commitlog_offsets[-1]), store_time_ms)
        self._written_ms = self._written_ms if hold else store_time_ms
        self.statistics.put_columns(names, run.columns.queue_codes, run.columns.sizes_bytes)
        self.appended.add(int(run.columns.sizes_bytes.sum()), run.columns.row_count)
        if self._group is None:  # else they are dispatched from the log, as they are at the other members
            self._undispatched.append(AppendedRun(run.columns, placement, store_time_ms))
            self._undispatched_rows += run.columns.row_count
        return placement

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

    # Bytes of another store's log, then the records among them. If the log must be confirmed, records wait in `_held` until they
    # are, including those that an opening has found so.

    def append_raw(self, commitlog_offset: int, data: bytes | memoryview) -> None:
        """Append bytes that directly follow the log, within one file; `enter_raw` makes records of them.

        Raises StoreNotWritableError if there is no room, with nothing written: then it may be called again. OSError.
        """
        self._refuse_after_failure()
        try:
            self._log_writer.reserve_raw(commitlog_offset, len(data))
        except OSError as error:
            self.fail(error)
            raise
        with self._failing():
            self._log_writer.append_raw(commitlog_offset, data)

    def enter_raw(self, found: RawRecords) -> None:
        """Sync (under SYNC_FLUSH) and dispatch whole records of the raw bytes, which makes them readable.

        If the log must be confirmed, only confirmed ones; the others as soon as they are.
        """
        with self._failing():
            if found.last_record is not None:
                self._written_ms = max(self._written_ms, found.last_record.store_time_ms)
                self.ends.last_record = found.last_record
            self.ends.log_end = found.end
            if self.settings.sync_flush:
                self._sync_records()
            self._held += (_held(batch, is_counted=False) for batch in found.batches)
            self._enter_held(found.end if self.confirmed is None else self.confirmed.move(found.end))

    def _hold(self, start: int, delays_ms: tuple[int, ...]) -> None:
        """The log from that place on waits to be confirmed."""
        for offsets, records in self.log.walk(start, check_crc=False, wanted=DISPATCHED, limit=self.ends.log_end):
            batch = dispatch(offsets, records, delays_ms)
            self.derived.count(batch)
            self._held.append(_held(batch, is_counted=True))

    def _enter_held(self, end: int) -> None:
        """Enter held records up to `end`."""
        while self._held and self._held[0].end <= end:
            held = self._held.popleft()
            self._claim_index_time(int(held.batch.store_times_ms.max()), INDEX_LEASE_MS)
            self.derived.enter_records(held.batch, is_counted=held.is_counted)
            self.appended.add(int(held.batch.sizes_bytes.sum()), len(held.batch))
            self._dispatched_ms = max(self._dispatched_ms, int(held.batch.store_times_ms[-1]))
            self._dispatched_record = int(held.batch.commitlog_offsets[-1])
            self.dispatched_end = held.end
        if not self._held and not self._undispatched and end >= self.ends.log_end:  # also for a filler
            self.dispatched_end = self.ends.log_end
        self.derived.publish()

    def cut_raw(self, end: int) -> None:
        """Remove raw bytes after a place, which are no whole record. Raises OSError."""
        with self._failing():
            self._log_writer.cut_raw(end)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        self._refuse_after_failure()
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    # Making durable

    @property
    def held_bytes(self) -> int:
        """Bytes of records that are only in memory."""
        return self._log_writer.held_bytes

    @property
    def written_end(self) -> int:
        """End of the log's records in its files."""
        return self._log_writer.written_end

    @property
    def synced_end(self) -> int:
        """End of the log's records on the disk."""
        return self._log_writer.synced_end

    def fail(self, error: BaseException) -> None:
        """Accept nothing more because of this error; the first one stays. Any OSError may be from a sync, also one that comes later."""
        if self._failure is None:
            self._failure = error
        if isinstance(error, OSError):
            note_failed_sync(self.file_system, self.root, self.unsynced_paths())

    def try_disk(self) -> None:
        """Returns if the disk, which has failed, does what an opening of this store needs. Raises OSError if it still fails."""
        try_disk(self.file_system, self.root, self.settings.queue_file_size_bytes + _LITTLE_ROOM_BYTES)

    def write_held(self) -> None:
        """Write out the records held in memory; `dispatch` then enters the readable ones."""
        self._refuse_after_failure()
        try:
            self._log_writer.write_held()
            self._written_ms = self.ends.last_store_time_ms
        except BaseException as error:
            self.fail(error)
            raise

    def begin_log_sync(self) -> RunningSync:
        """A sync of everything written; its `log.run` may run while this writer continues. End it with `end_log_sync`."""
        self._refuse_after_failure()
        return RunningSync(self._log_writer.begin_sync(), self._written_ms)

    def end_log_sync(self, sync: RunningSync, error: BaseException | None) -> None:
        """Record the sync's result. After an error no more is known to be on the disk than before."""
        self._log_writer.end_sync(sync.log, is_done=error is None)
        if error is not None:
            self.fail(error)
        else:
            self._synced_ms = max(self._synced_ms, sync.store_time_ms)

    def sync_log(self) -> None:
        """Sync and make readable every record appended so far, also those of an earlier writer."""
        self.write_held()
        self._sync_records()
        self.dispatch()

    def _sync_records(self) -> None:
        sync = self.begin_log_sync()
        try:
            is_late = self._is_late(sync.log)
        except BaseException as error:
            self.end_log_sync(sync, error)
            raise
        if is_late:
            self._overdue = sync.log.end
            raise self._no_majority()
        reach("log-synced")
        self.end_log_sync(sync, None)

    def _is_late(self, sync: AnyLogSync) -> bool:
        """Sync the log. Returns whether a group's majority lacks it still: puts wait for the caller, so it waits a moment only."""
        if self._group is not None:
            return not self._group.wait(sync.end, _MAJORITY_SECONDS)
        sync.run()
        return False

    def _no_majority(self) -> StoreNotWritableError:
        reason = f"no majority of its DLedger group has the log up to {self._overdue} yet; what was put may come to be readable"
        return StoreNotWritableError(self.root, reason, "look whether the group's other brokers run")

    def refuse_while_late(self) -> None:
        """After an own put that no majority had in time nothing is planned until it is readable: what it did would be done again.

        Raises StoreNotWritableError, OSError.
        """
        if self._group is None or self._overdue is None:
            return
        if self._group.committed_end < self._overdue:
            raise self._no_majority()
        self.dispatch()
        self._overdue = None

    @property
    def is_full(self) -> bool:
        """Whether too much waits for a majority of its group."""
        return self._group is not None and self._group.is_full

    def begin_derived_sync(self, least_pages: int) -> DerivedSync:
        """A sync of queues with at least so many dirty pages; 0 = of all derived files. End it with `end_derived_sync`."""
        self._refuse_after_failure()
        return self.derived.begin_sync(least_pages, RecordIdentity(self._dispatched_record, self._dispatched_ms))

    def end_derived_sync(self, sync: DerivedSync, error: BaseException | None) -> None:
        """Record the sync's result; after a thorough one write the checkpoint: log and queues are on the disk up to its times.

        The index may not be on the disk up to the checkpoint's time; the trust file has the right time.
        """
        if error is not None:
            self.fail(error)
            return
        self._refuse_after_failure()
        self.derived.end_sync(sync)
        if not sync.is_thorough or not (sync.paths or self._synced_ms > self._checkpoint.physic_msg_timestamp):
            return
        try:
            if self._index is not None and sync.index_end_ms:
                save_index_trust(self.file_system, self.root, sync.index_end_ms - 1)
            self._save_checkpoint(
                physic_msg_timestamp=max(self._synced_ms, self._checkpoint.physic_msg_timestamp),
                logics_msg_timestamp=max(sync.last_record.store_time_ms, self._checkpoint.logics_msg_timestamp),
                confirm_phy_offset=self._confirmed_end(),
                logics_physical_offset=self._queue_position(sync.last_record.commitlog_offset),
            )
            self.ends.checkpointed_ms, self.ends.checkpointed_end = self.clock(), sync.last_record.commitlog_offset
        except BaseException as failed:
            self.fail(failed)
            raise

    def _queue_position(self, dispatched_record: int) -> int:
        record = max(self._checkpoint.logics_physical_offset, dispatched_record)
        return self._checkpoint.queue_position(record, is_read=self.settings.release.checkpoint_has_queue_position)

    def _confirmed_end(self) -> int:
        return self._checkpoint.confirm_phy_offset if self.confirmed is None else self.dispatched_end

    def checkpoint(self) -> None:
        """Sync log, queues and index, then write the checkpoint's times, which vouch for all of it."""
        self.sync_log()
        sync = self.begin_derived_sync(0)
        try:
            sync.run()
            self.derived.end_sync(sync)
            last = self.ends.last_store_time_ms
            files = self._index.files() if self._index is not None else []
            index_time = files[-1].header().end_time_ms if files else 0
            waits = self._held or self._undispatched
            in_queues = max(self._dispatched_ms, self._checkpoint.logics_msg_timestamp) if waits else last
            self._save_checkpoint(
                physic_msg_timestamp=last,
                logics_msg_timestamp=in_queues,
                index_msg_timestamp=index_time,
                confirm_phy_offset=self._confirmed_end(),
                logics_physical_offset=self._queue_position(sync.last_record.commitlog_offset),
            )
            self.ends.checkpointed_end = self.ends.log_end
            drop_index_trust(self.file_system, self.root)
            self._trust_is_saved = False
            self.ends.checkpointed_ms = self.clock()
        except BaseException as error:
            self.fail(error)
            raise

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint once a minute, which limits the work of a recovery.

        Also before so many log files are full that a broker's recovery would not reach the first (`Release.recovered_log_files`).
        """
        most = self.settings.release.recovered_log_files
        is_far = (
            most is not None
            and self.ends.log_end - self.ends.checkpointed_end > most // 2 * self.settings.log_file_size_bytes
        )
        if is_far or is_time(self.clock(), self.ends.checkpointed_ms, CHECKPOINT_INTERVAL_MS):
            self.checkpoint()

    @property
    def index_slots(self) -> OpenSlots | None:
        """The slots of the last index file, if they are in memory."""
        return self.derived.index_slots

    def unsynced_paths(self) -> set[str]:
        """Files and directories with unsynced data, including the log's. Thread-safe."""
        return self._log_writer.unsynced | self.derived.unsynced_paths()

    def close(self) -> None:
        """Close descriptors; syncs nothing. The next opening recovers records that wait for their sync."""
        if (self._undispatched or self._held) and self._failure is None:
            reason = "it was let go of while records waited to be readable"
            self.fail(StoreNotWritableError(self.root, reason))
        self._log_writer.close()
        self._log_writer.release_memory()


def _held(batch: DispatchBatch, *, is_counted: bool) -> HeldRecords:
    return HeldRecords(int(batch.commitlog_offsets[-1] + batch.sizes_bytes[-1]), batch, is_counted)
