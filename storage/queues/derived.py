"""Queues without files of their own (storeType=defaultRocksDB): entries from RocksDB, completed from the log. Read-only.

A broker keeps new entries in memory, up to 128 MiB of them, and RocksDB has no write-ahead log for them. So a running broker's RocksDB
lags behind, and a killed broker's has lost its last entries for good: the next start dispatches the log again. Readers do the same:

    RocksDB   entries of records up to the log offset that RocksDB names          (none if it cannot be read)
    the log   entries of the records from there to the log's end, kept in memory  (`rebuild` would write the same ones)

Bytes of the log that are no record end its file, and the next file goes on, as beside queues in files: a warning names them.

Each queue is a `ConsumeQueue` of one file, so scans, positions and ends need nothing else. Java: RocksDBConsumeQueueStore.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from operator import itemgetter

import numpy as np

from storage.errors import CorruptRecordError, OffsetOutOfRangeError, StoreRefusedError
from storage.files.file_system import FileSystem
from storage.files.rocksdb import RocksDB, RocksDBUnreadable
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, ROCKSDB_ENTRY, rocksdb_ends, rocksdb_prefix
from storage.format.record import INNER_BATCH, Message
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog, LogWalk
from storage.log.dispatch import DISPATCHED, QueueEntries, dispatch, queue_entries
from storage.queues.consume_queue import ConsumeQueue, QueueFiles
from storage.queues.store import ConsumeQueueStore, RocksDBPlace
from storage.queues.writer import put_in_order

_ENTRIES, _OFFSETS = "default", "offset"
_ROOM_ENTRIES = 4096
"""Free entries behind a queue's end, as a file has them."""
_BATCHES_HINT = "read the other topics; this topic's messages come through its broker"
_MOST_KEPT = 1 << 20
"""Entries from the log, of all queues, after which RocksDB is opened again: it may have them by then."""


class DerivedQueue(ConsumeQueue):
    """One queue, as one file from its first entry on."""

    refuses_batches = True

    def __init__(
        self, store: DerivedQueueStore, file_system: FileSystem, directory: str, topic: str, queue_id: int
    ) -> None:
        super().__init__(file_system, directory, topic, queue_id)
        self._store = store
        self._prefix = rocksdb_prefix(topic, queue_id)
        self._pieces: list[tuple[int, np.ndarray]] = []
        """Entries from the log, each with the queue offset of its first one, ascending. There are few: they are joined as they grow."""
        self.is_alone = False
        """Whether the store was opened for this queue, and is closed with it."""
        self.begin(None, 0)

    def begin(self, database: RocksDB | None, end: int) -> None:
        """Drop what the log gave; the entries before `end` are in RocksDB."""
        self._database, self._stored_end, self.end = database, end, end
        self._pieces.clear()
        self._first: int | None = None

    def enter(self, offset: int, entries: np.ndarray) -> None:
        """Entries of records that follow each other, the first of them at a queue offset.

        An offset that goes back replaces what is there: the topic was deleted and made again.
        """
        if offset < self.end:
            self._stored_end = min(self._stored_end, offset)
            self._pieces = [(at, piece[: offset - at]) for at, piece in self._pieces if at < offset]
            self._first = None
        self._pieces.append((offset, entries))
        self.end = offset + len(entries)
        while len(self._pieces) > 1 and self._pieces[-2][0] + len(self._pieces[-2][1]) == self._pieces[-1][0]:
            (at, first), (_, second) = self._pieces[-2:]
            if len(first) > 2 * len(second):
                break
            self._pieces[-2:] = [(at, np.concatenate((first, second)))]

    @property
    def first(self) -> int:
        """The queue offset of the first entry; the end if there is none."""
        if self._first is None:
            self._first = self._stored_first()
        return min(self._first, self.end)

    def _stored_first(self) -> int:
        if self._database is not None and self._stored_end:
            start, end = self._key(0), self._key(self._stored_end)
            try:
                key = self._database.first_key(_ENTRIES, start, end)
            except RocksDBUnreadable as error:
                self._store.give_up(error)
                return self._stored_first()
            if key is not None:
                return int.from_bytes(key[-8:], "big")
        return self._pieces[0][0] if self._pieces else self.end

    def _key(self, offset: int) -> bytes:
        return self._prefix + offset.to_bytes(8, "big")

    def list_files(self) -> QueueFiles:
        self._first = None
        return self._files

    @property
    def _files(self) -> QueueFiles:
        first = self.first
        return QueueFiles([first * ENTRY_SIZE] if self.end else [], (self.end - first + _ROOM_ENTRIES) * ENTRY_SIZE)

    @property
    def _starts(self) -> list[int]:
        return self._files.starts

    @property
    def recovery_start(self) -> int:
        return max(self.first, self.end - 1)

    def bytes_from(self, start: int, count: int) -> bytes:
        if not self.end or start < self.first:
            return b""
        end = min(start + count, self.last_file_end_offset)
        found = np.zeros(max(0, end - start), ENTRY)
        if start < (stored_end := min(end, self._stored_end)) and self._database is not None:
            try:
                self._read_stored(self._database, start, stored_end, found)
            except RocksDBUnreadable as error:
                self._store.give_up(error)
                return self.bytes_from(start, count)
        for at, piece in self._pieces[max(0, bisect_right(self._pieces, start, key=itemgetter(0)) - 1) :]:
            if at >= end:
                break
            low, high = max(start, at), min(end, at + len(piece))
            if low < high:
                found[low - start : high - start] = piece[low - at : high - at]
        return found.tobytes()

    def refuse_batches(self, records: Records) -> None:
        if (records.column("sys_flag") & INNER_BATCH).any():
            raise self._has_batches()

    def message_at(self, queue_offset: int, log: CommitLog, log_end: int, place: int | None = None) -> Message:
        """Raises StoreRefusedError for a batch."""
        message = super().message_at(queue_offset, log, log_end, place)
        if message.sys_flag & INNER_BATCH:
            raise self._has_batches()
        return message

    def _has_batches(self) -> StoreRefusedError:
        """RocksDB names the first message of a batch alone, so a broker may give the others' offsets to later messages."""
        rule = f"queue {self.queue_id} of topic {self.topic} holds batches (queue.type=BatchCQ), and lies in RocksDB"
        return StoreRefusedError(self._store.root, f"{rule}: they are read from batch queues only", hint=_BATCHES_HINT)

    def _read_stored(self, database: RocksDB, start: int, end: int, into: np.ndarray) -> None:
        unit = np.dtype([("prefix", f"V{len(self._prefix)}"), ("offset", ">u8"), ("value", ROCKSDB_ENTRY)])
        read = database.joined(_ENTRIES, self._key(start), self._key(end), unit.itemsize, end - start)
        if len(read) % unit.itemsize:
            raise RocksDBUnreadable("an entry has another length than a broker writes")
        units = np.frombuffer(read, unit)
        into[units["offset"].astype(np.int64) - start] = units["value"]["entry"]

    def data_end(self, start: int) -> int:
        return max(start, self.end)

    def close(self) -> None:
        """RocksDB stays open for the other queues."""
        if self.is_alone:
            self._store.close()

    @classmethod
    def alone(
        cls, file_system: FileSystem, root: str, place: RocksDBPlace, log: CommitLog, name: tuple[str, int]
    ) -> DerivedQueue:
        """One queue without the others. `log` becomes its own."""
        store = DerivedQueueStore(file_system, root, place, log, only=name)
        queue = store.get_or_make(*name)
        assert isinstance(queue, DerivedQueue)
        queue.is_alone = True
        return queue


class DerivedQueueStore(ConsumeQueueStore):
    """All queues of such a store, or one of them."""

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        place: RocksDBPlace,
        log: CommitLog,
        *,
        only: tuple[str, int] | None = None,
    ) -> None:
        """`log` becomes this object's own. With `only` entries of that queue alone are kept."""
        self.root, self._place, self._log, self._only = root, place, log, only
        self._database: RocksDB | None = None
        self._said: set[tuple[str, int]] = set()
        self._said_lost: set[int] = set()
        self.note: str | None = None
        """Why RocksDB is not read; None where it is."""
        self._kept, self._walked, self._most_kept = 0, 0, _MOST_KEPT
        super().__init__(file_system, root)
        self.directory = place.directory
        try:
            self._load()
            self._enter_log(self._log.files[-1].end if self._log.files else 0, has_tail=True)
            self.discover()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        """Open RocksDB as it is now, and forget what the log gave."""
        self._close_database()
        ends, self._walked = self._stored_ends()
        self._topics, self._kept = {}, 0
        for topic, queue_id, end in ends:
            queue = self.get_or_make(topic, queue_id)
            assert isinstance(queue, DerivedQueue)
            queue.begin(self._database, end)

    def _stored_ends(self) -> tuple[list[tuple[str, int, int]], int]:
        try:
            if not self._file_system.is_local:
                raise RocksDBUnreadable("RocksDB is read from a local file system only")
            if self._file_system.read_file(f"{self._place.directory}/CURRENT") is None:
                raise RocksDBUnreadable(f"{self._place.directory} has no file CURRENT")
            self._database = RocksDB(self._place.directory, (_ENTRIES, _OFFSETS))
            ends, dispatched = rocksdb_ends(self._database.items(_OFFSETS))
        except RocksDBUnreadable as error:
            self._fall_back(error)
            return [], 0
        return [end for end in ends if self._only in (None, end[:2])], dispatched

    def give_up(self, error: RocksDBUnreadable) -> None:
        """Take all queues from the log from now on: RocksDB has a damaged block.

        Raises CorruptRecordError if the log is damaged, too: messages that RocksDB has named would be missing.
        """
        self._fall_back(error)
        log_end = self._walked
        for queue in self:
            assert isinstance(queue, DerivedQueue)
            queue.begin(None, 0)
        self._walked = self._kept = 0
        if (damage := self._enter_log(log_end)) is not None:
            raise damage

    def _fall_back(self, error: RocksDBUnreadable) -> None:
        """Say why RocksDB is not read, whenever that shows. A task says nothing: the driver has read the same files."""
        self._close_database()
        note = (
            f"store {self.root}: the consume queues lie in RocksDB, which was not read: {error}. They were made from the whole log, in "
            "memory; each reading task does so again"
        )
        if self._only is None and note != self.note:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        self.note = note

    def follow(self, log_end: int) -> None:
        """Enter the log's records up to `log_end`. If that is less than before, begin anew."""
        if log_end < self._walked and self._kept:
            self._load()
        self._enter_log(log_end)
        if self._kept > self._most_kept and self._database is not None:
            self._load()
            self._enter_log(log_end)
            self._most_kept = max(_MOST_KEPT, 2 * self._kept)

    def _enter_log(self, log_end: int, *, has_tail: bool = False) -> CorruptRecordError | None:
        """Enter the records before `log_end`; returns the first fault between them. With `has_tail` the log may end before."""
        found: CorruptRecordError | None = None
        if log_end <= self._walked:
            return found
        self._log.list_files()
        while True:
            start = max(self._walked, self._log.minimum)
            walk = self._log.walk(start, check_crc=False, wanted=DISPATCHED, limit=log_end)
            try:
                for offsets, records in walk:
                    for new in queue_entries(dispatch(offsets, records, self._place.delays_ms)):
                        if self._only in (None, (new.topic, new.queue_id)):
                            self._enter(new)
            except OffsetOutOfRangeError:  # a file has expired since the listing
                before = self._log.files
                self._log.list_files()
                if self._log.files == before:
                    raise
                continue
            finally:
                self._walked = max(self._walked, walk.end)
            behind = self._next_records(walk.end, log_end)
            if walk.end >= log_end or (behind is None and has_tail):
                return found
            found = found or self._lost(walk, behind or log_end)
            self._walked = behind or log_end

    def _next_records(self, place: int, log_end: int) -> int | None:
        """Where the next file of the log that begins with a record does; None if none before `log_end` does."""
        for file in self._log.files[self._log.file_index(place) + 1 :]:
            if file.start < log_end and self._log.begins_with_record(file):
                return file.start
        return None

    def _lost(self, walk: LogWalk, end: int) -> CorruptRecordError:
        """The fault at which a walk ended. A warning names it once; a task says nothing, as in `_fall_back`."""
        file = self._log.files[max(0, self._log.file_index(walk.end))]
        at = walk.end - file.start
        fault = walk.failure or CorruptRecordError("magic", at, "a record", "zeros", file=file.path)
        if self._only is None and walk.end not in self._said_lost:
            self._said_lost.add(walk.end)
            text = f"store {self.root}: bytes {walk.end} to {end} of the log cannot be read, so their messages are in no queue"
            warnings.warn(f"{text}: {fault.describe()}", RuntimeWarning, stacklevel=2)
        return fault

    def _enter(self, new: QueueEntries) -> None:
        queue = self.get_or_make(new.topic, new.queue_id)
        assert isinstance(queue, DerivedQueue)
        rows = put_in_order(new, queue.end - 1 if queue.end else None, is_all=True).rows
        offsets = rows.queue_offsets.astype(np.int64)
        breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
        for start, stop in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            queue.enter(int(offsets[start]), rows.entries[start:stop])
        self._kept += len(offsets)

    def discover(self, most_topics: int | None = None) -> list[tuple[str, int]]:
        """The queues that are new since the last call."""
        names = set(self.names())
        new, self._said = names - self._said, names
        return sorted(new)

    def look_for(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.get(topic, queue_id)

    def make(self, topic: str, queue_id: int) -> DerivedQueue:
        return DerivedQueue(self, self._file_system, f"{self._place.directory}/{topic}/{queue_id}", topic, queue_id)

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> None:
        self._close_database()
        self._log.close()
