"""Appending to the commit log: place records, stamp them, write them in slices that fit the cache, roll to new files, sync.

    end            where the next record goes
    written_end    end of the records in the files; later ones are held in memory (Java: committedWhere)
    synced_end     end of the records on the disk (Java: flushedWhere)

A file is made at its full length, sparse, as a broker expects it; disk space is reserved before a commit starts, so that
a full disk is an error then and not half-way. No other process may touch the last file meanwhile: a broker that is
*started* on this store recovers, and deletes files, before it finds the lock held.

Java: CommitLog.DefaultAppendMessageCallback, assignQueueOffset.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from storage.errors import LogFileNotMadeError, MessageIllegalError, StoreNotWritableError
from storage.failpoints import reach
from storage.files.file_system import LocalWriter, Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.files.locked_memory import LockedMemory, WarmFile
from storage.files.syncs import SyncGate
from storage.format.arrays import is_few, sorted_by_code
from storage.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from storage.format.record_block import OwnBlock, RecordRun, stamp, stamp_crcs
from storage.log.commit_log import FILE_NAME_DIGITS, CommitLog


class Filler(NamedTuple):
    """The unused rest of a log file."""

    commitlog_offset: int
    size_bytes: int


class Placement(NamedTuple):
    """The places of n records, in record order."""

    commitlog_offsets: np.ndarray
    """int64, ascending."""
    queue_offsets: np.ndarray
    """int64."""
    next_queue_offsets: np.ndarray
    """int64: for each queue, the offset after its last record."""
    fillers: tuple[Filler, ...]
    end: int
    """The log's new end."""


def place(
    sizes_bytes: np.ndarray,
    queue_codes: np.ndarray,
    next_queue_offsets: np.ndarray,
    log_end: int,
    file_end: int,
    file_size_bytes: int,
) -> Placement:
    """The places of records that follow `log_end`, in the file that ends at `file_end`. Pure.

    A record is never split over two files. If it and the eight bytes of a blank filler do not fit into a file's
    rest, the rest becomes a filler and the record begins the next file.

    `queue_codes` number the queues, `next_queue_offsets` has each one's next offset. Raises MessageIllegalError for a record
    that fits into no file.
    """
    if is_few(len(sizes_bytes)):
        few = _place_few(sizes_bytes, queue_codes, next_queue_offsets, log_end, file_end)
        if few is not None:
            return few
    commitlog_offsets, fillers, end = _commitlog_offsets(sizes_bytes, log_end, file_end, file_size_bytes)
    queue_offsets, counts = _ranks(queue_codes, len(next_queue_offsets))
    queue_offsets += next_queue_offsets[queue_codes]
    return Placement(commitlog_offsets, queue_offsets, next_queue_offsets + counts, fillers, end)


def _place_few(
    sizes_bytes: np.ndarray, queue_codes: np.ndarray, next_queue_offsets: np.ndarray, log_end: int, file_end: int
) -> Placement | None:
    """Like `place` for a few records, for which arrays would be slower; None if they do not fit into the file."""
    ends = list(accumulate(sizes_bytes.tolist(), initial=log_end))
    if ends[-1] > file_end - BLANK_SIZE:
        return None
    nexts = next_queue_offsets.tolist()
    queue_offsets = []
    for code in queue_codes.tolist():
        queue_offsets.append(nexts[code])
        nexts[code] += 1
    places, offsets, after = (np.array(values, np.int64) for values in (ends[:-1], queue_offsets, nexts))
    return Placement(places, offsets, after, (), ends[-1])


def _commitlog_offsets(
    sizes_bytes: np.ndarray, log_end: int, file_end: int, file_size_bytes: int
) -> tuple[np.ndarray, tuple[Filler, ...], int]:
    ends = np.cumsum(sizes_bytes, dtype=np.int64)
    offsets = ends - sizes_bytes
    fillers = []
    first, position = 0, log_end
    while first < len(sizes_bytes):
        before = int(offsets[first])
        last = int(np.searchsorted(ends, before + file_end - BLANK_SIZE - position, side="right"))
        if last == first and position == file_end - file_size_bytes:
            raise MessageIllegalError("record", file_size_bytes - BLANK_SIZE, int(sizes_bytes[first]))
        if last > first:
            offsets[first:last] += position - before
            position += int(ends[last - 1]) - before
        if last < len(sizes_bytes):
            fillers.append(Filler(position, file_end - position))
            position, file_end = file_end, file_end + file_size_bytes
        first = last
    return offsets, tuple(fillers), position


def _ranks(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each element, how many equal ones precede it; and how many there are of each code."""
    if count == 1:
        return np.arange(len(codes), dtype=np.int64), np.array([len(codes)])
    order = sorted_by_code(codes, count)
    counts = np.bincount(codes, minlength=count)
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks, counts


def slices(commitlog_offsets: np.ndarray, sizes_bytes: np.ndarray, slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Row ranges [first, last) without gaps in the log, of at most `slice_bytes` unless one record is larger."""
    ends = commitlog_offsets + sizes_bytes
    breaks = np.flatnonzero(commitlog_offsets[1:] != ends[:-1]) + 1
    first = 0
    for stop in (*breaks.tolist(), len(ends)):
        while first < stop:
            fitting = int(np.searchsorted(ends[:stop], commitlog_offsets[first] + slice_bytes, side="right"))
            last = max(first + 1, fitting)
            yield first, last
            first = last


SLICE_BYTES = 4 << 20
RESERVE_BYTES = 4 << 20
"""Disk space is reserved in steps of so many bytes, if there is so much."""
_FOREIGN = "a broker that is started recovers the store before it looks at the lock; stop it, and open the store again"


@contextmanager
def _room_for(path: str, size_bytes: int, *, in_new_file: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"there is no room for {size_bytes} more bytes of log: {error.strerror}"
        kind = LogFileNotMadeError if in_new_file else StoreNotWritableError
        raise kind(path, reason, "make room on the disk; nothing of this was written") from error


@dataclass(frozen=True, slots=True)
class LogSync:
    """A sync of the log as it was at one moment. It may run while the log grows; `CommitLogWriter.begin_sync` makes it."""

    end: int
    paths: tuple[str, ...]
    writer: LocalWriter | None
    """The writer of the last file, if that is among them."""
    file_system: LocalFileSystem
    gate: SyncGate

    def run(self) -> None:
        """Returns when everything before `end` is on the disk. Raises OSError; then it is unknown what is."""
        self.gate.run(self._sync)

    def _sync(self) -> None:
        if self.writer is not None:
            self.writer.sync()
        for path in self.paths:
            if self.writer is None or path != self.writer.path:
                with suppress(FileNotFoundError):  # it has expired
                    self.file_system.sync(path)


class AnyLogSync(Protocol):
    """A `LogSync`, or that of a DLedger group's log (`group_log.py`)."""

    @property
    def end(self) -> int: ...

    def run(self) -> None:
        """Returns when everything before `end` is safe. Raises OSError, StoreNotWritableError; then it is unknown what is."""


class RunningSync(NamedTuple):
    """A sync of the log, and the store time of the last record that it covers."""

    log: AnyLogSync
    store_time_ms: int


class CommitLogWriter:
    """Appends to the log. Not thread-safe, except for a `LogSync` that runs beside it."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        log: CommitLog,
        end: int,
        file_size_bytes: int,
        directories: tuple[str, ...],
        unsynced: Iterable[str] = (),
    ) -> None:
        """`unsynced` are files of the log that another writer has left unsynced."""
        self._file_system = file_system
        self._log = log
        self.end = end
        self.written_end = end
        self.file_size_bytes = file_size_bytes
        self._directories = directories
        self._scratch = Scratch(), Scratch()
        self._writer: LocalWriter | None = None
        self._identity: tuple[int, int, int] | None = None
        self._lent: list[LocalWriter] = []
        """The file writers that running syncs use."""
        self._held: list[tuple[int, bytes | np.ndarray]] = []
        """Data to write and its places, in order."""
        self.pool: LockedMemory | None = None
        """Where held data lies; None = anywhere in memory."""
        self.warms: Callable[[str, int], WarmFile] | None = None
        """Brings a new file's pages into memory, given path and size."""
        self._warm: dict[str, WarmFile] = {}
        self._unsynced = dict.fromkeys(unsynced, 0)
        """Files with unsynced data, and the offset after their last byte; 0 = before this writer's first."""
        self.synced_end = 0 if self._unsynced else end
        self._gate = SyncGate()
        self._reserved_from = self._reserved_end = end
        """Between these places of the last file disk space is reserved already."""
        self._ahead: NextFile | None = None
        self._looked_ahead_to = 0
        """The end of the log's last file when `next_file` was last called."""

    def append(
        self, run: RecordRun, next_queue_offsets: np.ndarray, store_time_ms: int, *, hold: bool = False
    ) -> Placement:
        """Write all records of a run. `next_queue_offsets` has the next offset of each of the run's queues.

        With `hold` they stay in memory until `write_held`.
        Raises StoreNotWritableError if another process changed the last file, OSError. The log's end is then unknown.
        """
        columns = run.columns
        placement = place(
            columns.sizes_bytes,
            columns.queue_codes,
            next_queue_offsets,
            self.end,
            self._file_end(self.end),
            self.file_size_bytes,
        )
        if not run.columns.is_queued:
            placement = placement._replace(queue_offsets=np.zeros(run.columns.row_count, np.int64))
        pieces = self._stamped(run, placement, store_time_ms)
        if hold:
            keep = bytes if self.pool is None else self.pool.keep
            self._held += ((start, keep(data)) for start, data in pieces)
            self.end = placement.end
            return placement
        self.write_held()
        if placement.end - self.end <= SLICE_BYTES:
            for number, (start, data) in enumerate(pieces):
                if number:
                    reach("amid-records")
                self._write(start, data)
        else:
            self._write_while_stamping(pieces)
        self.end = self.written_end = placement.end
        return placement

    @property
    def unsynced(self) -> set[str]:
        """Files with unsynced data."""
        return set(self._unsynced)

    @property
    def held_bytes(self) -> int:
        return self.end - self.written_end

    def append_raw(self, commitlog_offset: int, data: bytes | memoryview) -> None:
        """Write bytes of another log, within one file, at this one's end; an empty log begins with them at the start of a file.
        Reserves disk space for them.

        Raises StoreNotWritableError if another process changed the last file, OSError. Java: DefaultMessageStore.appendToCommitLog.
        """
        assert commitlog_offset == self.end == self.written_end
        self._write(commitlog_offset, np.frombuffer(data, np.uint8))
        self.end = self.written_end = commitlog_offset + len(data)

    def reserve_raw(self, commitlog_offset: int, size_bytes: int) -> None:
        """Like `reserve`, for bytes of another log that `append_raw` will write: they lie in one file."""
        if not self._log.files:
            self.end = self.written_end = commitlog_offset
        if self._reserved_from <= commitlog_offset and commitlog_offset + size_bytes <= self._reserved_end:
            return
        self._reserve_in_file(commitlog_offset, commitlog_offset + size_bytes, size_bytes)

    def cut_raw(self, end: int) -> None:
        """Zero what `append_raw` has written after a place of the last file, so that it never comes back."""
        if end < self.end:
            start = self._file_end(end) - self.file_size_bytes
            self._file_system.zero(self._path(start), end - start, self.end - end)
            self.end = self.written_end = end
            self.synced_end = min(self.synced_end, end)

    def write_held(self) -> None:
        """Write out the data held in memory. Java: MappedFileQueue.commit."""
        if self._held:
            reach("before-pool-write")
        for start, data in self._held:
            self._write(start, data)
        self._held.clear()
        if self.pool is not None:
            self.pool.clear()
        self.written_end = self.end

    def _stamped(
        self, run: RecordRun, placement: Placement, store_time_ms: int
    ) -> Iterator[tuple[int, bytes | np.ndarray]]:
        """Data to write and its places, in order. A piece is valid until the next but one is requested."""
        sizes = run.columns.sizes_bytes
        sources = np.cumsum(sizes, dtype=np.int64) - sizes
        fillers = list(placement.fillers)
        is_one = not fillers and placement.end - self.end <= SLICE_BYTES
        stretches = [(0, len(sizes))] if is_one else slices(placement.commitlog_offsets, sizes, SLICE_BYTES)
        for number, (first, last) in enumerate(stretches):
            offsets = placement.commitlog_offsets[first:last]
            start = int(offsets[0])
            while fillers and fillers[0].commitlog_offset < start:
                filler = fillers.pop(0)
                yield filler.commitlog_offset, BLANK.pack(filler.size_bytes, MAGIC_BLANK)
            source, size = int(sources[first]), int(offsets[-1]) + int(sizes[last - 1]) - start
            if isinstance(run, OwnBlock):
                data = run.data[source : source + size]
            else:
                data = self._scratch[number % 2].take(size)
                run.read(source, source + size, data)
            stamp(
                data,
                offsets - start,
                placement.queue_offsets[first:last],
                offsets,
                store_time_ms,
                run.columns.host_size,
            )
            if run.columns.has_crc:
                stamp_crcs(data, offsets - start, sizes[first:last])
            yield start, data

    def _write_while_stamping(self, pieces: Iterator[tuple[int, bytes | np.ndarray]]) -> None:
        """Write one piece while the next is read and stamped: the copies into page cache and scratch use a core each."""
        with ThreadPoolExecutor(1) as writing:
            written: Future[None] | None = None
            for start, data in pieces:
                if written is not None:
                    written.result()
                    reach("amid-records")
                written = writing.submit(self._write, start, data)
            if written is not None:
                written.result()

    def reserve(self, size_bytes: int, largest_bytes: int) -> None:
        """Make the files that so many more bytes need, with disk space for them. `largest_bytes` is the largest record's size.

        For small sizes it reserves more, so that not every put needs a system call.

        Raises StoreNotWritableError if the disk is full; nothing was written then. OSError if a new file may not be durable:
        then it is unknown what is.
        """
        start, left = self.end, size_bytes
        if self._reserved_from <= start and start + left <= self._reserved_end - BLANK_SIZE:
            return
        while left > 0:
            file_end = self._file_end(start)
            if start + left > file_end - BLANK_SIZE:
                # The log will roll, and leave less unused than a record and a blank take; of whole files at most every second half.
                rest = file_end - start
                left += min(largest_bytes + BLANK_SIZE, rest if rest < self.file_size_bytes else rest // 2)
            room_end = min(file_end, start + left)
            self._reserve_in_file(start, room_end, size_bytes)
            left -= room_end - start
            start = room_end

    def _reserve_in_file(self, start: int, end: int, size_bytes: int) -> None:
        """Reserve `size_bytes` in total between two places of one file, which is made if missing."""
        file_end = self._file_end(start)
        path, file_start = self._path(file_end - self.file_size_bytes), file_end - self.file_size_bytes
        is_empty = start == file_start
        self._await(path)
        with _room_for(path, size_bytes, in_new_file=is_empty):
            is_new = not self._is_there(path)
            if is_new:
                self._file_system.create_file(path, self.file_size_bytes)
        if is_new:
            self._keep(path)
        if not self._reserve_more(path, file_start, start, min(file_end, start + RESERVE_BYTES), end):
            with _room_for(path, size_bytes, in_new_file=is_empty):
                self._file_system.reserve(path, start - file_start, end - start)

    def _reserve_more(self, path: str, file_start: int, start: int, end: int, needed_end: int) -> bool:
        """Reserve up to `end`, if that is more than needed and the disk has it; small files get no extra."""
        if end <= needed_end or self.file_size_bytes <= RESERVE_BYTES:
            return False
        try:
            self._file_system.reserve(path, start - file_start, end - start)
        except OSError:
            return False
        self._reserved_from, self._reserved_end = start, end
        return True

    def begin_sync(self) -> LogSync:
        """A sync of everything written so far; end it with `end_sync`."""
        writer = self._writer if self._writer is not None and self._writer.path in self._unsynced else None
        if writer is not None:
            self._lent.append(writer)
        return LogSync(self.written_end, tuple(sorted(self._unsynced)), writer, self._file_system, self._gate)

    def end_sync(self, sync: AnyLogSync, *, is_done: bool) -> None:
        """Record the result of a sync that `begin_sync` has made."""
        assert isinstance(sync, LogSync)
        if sync.writer is not None:
            self._lent.remove(sync.writer)
            if sync.writer is not self._writer and sync.writer not in self._lent:
                sync.writer.close()
        if is_done:
            self.synced_end = max(self.synced_end, sync.end)
            for path in sync.paths:
                if self._unsynced.get(path, 0) <= sync.end:  # nothing was written to it meanwhile
                    self._unsynced.pop(path, None)

    def close(self) -> None:
        """Close the last file; a running sync keeps it until it ends."""
        if self._writer is not None and self._writer not in self._lent:
            self._writer.close()
        if self._writer is not None:
            self._warm.pop(self._writer.path, None)
        self._writer = None

    def release_memory(self) -> None:
        """Give locked memory back."""
        self._warm.clear()
        if self.pool is not None:
            self.pool.close()

    # The next file

    @property
    def wants_next_file(self) -> bool:
        """Whether half of the last file is full and the next one was not requested yet."""
        file_end = self._file_end(self.end)
        return self._looked_ahead_to != file_end and file_end - self.end <= self.file_size_bytes // 2

    def next_file(self) -> NextFile | None:
        """The next file, which the caller must `make`, in parallel to this writer; None if there is nothing to make."""
        if not self.wants_next_file or not self._is_there(self._path(self._file_end(self.end) - self.file_size_bytes)):
            return None
        self._looked_ahead_to = self._file_end(self.end)
        path = self._path(self._looked_ahead_to)
        if self._is_there(path):
            return None
        self._ahead = NextFile(self._file_system, path, self.file_size_bytes, self.warms)
        return self._ahead

    def drop_next_file(self) -> None:
        """Delete an unused file that was made ahead, as Java does when it shuts down."""
        if self._ahead is not None:
            with suppress(OSError):
                self._ahead.wait()
                self._file_system.unlink(self._ahead.path)
            self._ahead = None
            self._log.list_files()

    def _await(self, path: str) -> None:
        """Wait until no thread is making that file. Raises OSError if it may not be durable."""
        if self._ahead is not None and self._ahead.path == path:
            self._ahead.wait()
            if self._ahead.warm is not None:
                self._warm[path] = self._ahead.warm
            self._ahead = None
            self._log.list_files()

    def _write(self, commitlog_offset: int, data: bytes | np.ndarray) -> None:
        start = self._file_end(commitlog_offset) - self.file_size_bytes
        path = self._path(start)
        if self._writer is None or self._writer.path != path:
            self.close()
            self._await(path)
            if not self._is_there(path):
                self._file_system.create_file(path, self.file_size_bytes)
                self._keep(path)
            self._writer = self._file_system.open_for_writing(path)
            self._identity = self._file_system.identity(path)
        if self._file_system.identity(path) != self._identity:
            raise StoreNotWritableError(path, "another process replaced or deleted the log's last file", _FOREIGN)
        self._unsynced[path] = commitlog_offset + len(data)
        self._writer.write(commitlog_offset - start, data)

    def _keep(self, path: str) -> None:
        """Make a new file durable with its length, before a later one is made: a power loss leaves no gap between files."""
        reach("log-file-made")
        self._file_system.sync(path)
        self._file_system.sync(posixpath.dirname(path))
        self._log.list_files()

    def _is_there(self, path: str) -> bool:
        found = self._file_system.identity(path)
        return found is not None and found[2] > 0

    def _file_end(self, commitlog_offset: int) -> int:
        return self._log.file_end(commitlog_offset, self.file_size_bytes)

    def _path(self, start: int) -> str:
        """Path of the file that begins at `start`, even if it does not exist. Java: MultiPathMappedFileQueue."""
        number = self._log.file_index(start)
        if number >= 0 and self._log.files[number].start == start:
            return self._log.files[number].path
        directory = self._directories[start // self.file_size_bytes % len(self._directories)]
        return f"{directory}/{start:0{FILE_NAME_DIGITS}d}"


class NextFile:
    """The log's next file, made ahead beside the puts, so that a roll waits for no sync. One thread makes it, another may wait.

    It appears at its full length, of zeros, and is synced with its directory. A dying broker leaves such files, and every recovery
    takes them for free space after the log's end. Java makes it when the file before is started; here when that one is half full.
    Java: AllocateMappedFileService.
    """

    def __init__(
        self,
        file_system: LocalFileSystem,
        path: str,
        size_bytes: int,
        warms: Callable[[str, int], WarmFile] | None = None,
    ) -> None:
        self.path = path
        self.warm: WarmFile | None = None
        """Its pages, if `warms` has brought them into memory."""
        self._warms = warms
        self._file_system = file_system
        self._size_bytes = size_bytes
        self._made: Future[None] = Future()

    def make(self) -> None:
        """Make it durable with its length. If that fails, no file is left: the put that needs it reports the error.

        Raises OSError if a sync failed: then it is unknown what is on the disk.
        """
        try:
            if self._create():
                self._file_system.sync(self.path)
                self._file_system.sync(posixpath.dirname(self.path))
                if self._warms is not None:
                    self.warm = self._warms(self.path, self._size_bytes)
        except BaseException as error:
            self._made.set_exception(error)
            raise
        self._made.set_result(None)

    def wait(self) -> None:
        """Returns when it is made, or cannot be made. Raises what `make` has raised."""
        self._made.result()

    def _create(self) -> bool:
        try:
            self._file_system.create_file(self.path, self._size_bytes)
        except OSError:
            return False
        return True
