"""The commit log for reading: its files, records by offset, a validating walk, and the end that another process moves on.

In a DLedger group's log each record lies in an entry, behind the entry's head. Its offset counts the heads too, so that only a walk,
which goes from record to record, must know of them.

The checkpoint beside it says what is known to be on the disk. It is read at opening, and written after everything that it covers is
synced: a page of 4096 bytes with six longs.

The sixth, since 5.5.0, is the log offset of the last record whose queue entry is on the disk. After an unclean stop that broker begins
in the log file where it lies; with enableAcceleratedRecovery at that record, and a 0 stops it. So a value must never be where no record
begins, nor ahead of the queues; 0, or less, makes the broker compare times, as older ones do. Those neither read nor write it. A store
does not say which release opens it. So the position is written if a broker has written one, or if the named release reads it. −1 is
ours: the position is unknown now, and a broker has written one.

Java: CommitLog, MappedFileQueue; DLedgerCommitLog; StoreCheckpoint. Appending is not here.
"""

from __future__ import annotations

import posixpath
import struct
import sys
from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError, StoreRefusedError
from storage.failpoints import reach
from storage.files.file_system import FileSystem, ReadableFile, Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import view_at
from storage.format.dledger import (
    ENTRY_HEAD_SIZE,
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE,
    EntryNumber,
    decode_entry_head,
    entries_in,
)
from storage.format.record import (
    BLANK,
    BLANK_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    EndOfFile,
    Message,
    NeedMoreBytes,
    chain,
    decode_record,
    find_candidates,
)
from storage.format.record_batch import Records
from storage.format.window_decoder import NOTHING, Decoding, Walker, Wanted

FILE_NAME_DIGITS = 20
LOOKS = 20
"""How often a reader lists the files before it gives up on a log whose files keep expiring."""
MOST_OPEN_FILES = 64
"""Files held open at a time, each with a descriptor and a map; a log may have thousands."""
WINDOW_BYTES = 8 << 20  # a walk's step: thousands of records share the cost of its calls
_GIVE_BACK_BYTES = 8 << 20
"""How much of a file a walk has mapped at a time; otherwise a file's whole size would count as the process's memory."""
_HEAD_BYTES = 16 << 10  # the first read of a record: most are no longer
_SIZE = np.dtype(">i4")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log: its bytes are the log's bytes `start` to `end`."""

    start: int
    end: int
    path: str
    head_size_bytes: int = 0
    """How many bytes lie before each record: the head of an entry in DLedger's files."""

    @property
    def first_record(self) -> int:
        """The log offset of its first record."""
        return self.start + self.head_size_bytes


class CommitLog:
    """The files of one log, in one or several directories, opened when first needed."""

    def __init__(
        self,
        file_system: FileSystem,
        directories: tuple[str, ...],
        file_size_bytes: int | None = None,
        scratch: Scratch | None = None,
        *,
        force_property_crc: bool = False,
        entry_directories: tuple[str, ...] = (),
    ) -> None:
        """`file_size_bytes` None = read it off the files. Those of `directories` that are `entry_directories` hold DLedger's files.
        With `force_property_crc` (forceVerifyPropCRC) a check of the CRC uses the record's own in its properties, not the body's.

        Raises StoreRefusedError if lengths disagree (Java: load), or two directories have a file of one name.

        Departure: Java reads from the first listed of two such files, and logs an error when files expire
        (MappedFileQueue.checkSelf): it is unknown which of them holds the messages."""
        self.directories = directories
        self.entry_directories = entry_directories
        self._file_system = file_system
        self._configured_size = file_size_bytes
        self._scratch = scratch
        self.force_property_crc = force_property_crc
        self.committed_end: int | None = None
        """Where the log ends for the store of a DLedger group's member, as it is opened: what stands behind is the group's. None: where
        its records end.
        """
        self.has_own_queues = True
        """Whether the queues of such a store have committed records only; else they end at the `committed_end`, too."""
        self._open_files: dict[str, ReadableFile] = {}
        self.files: tuple[LogFile, ...] = ()
        self.list_files()

    def list_files(self) -> None:
        """List the files again: a running broker rolls to new ones and deletes old ones."""
        found = []
        for directory in self.directories:
            for entry in self._file_system.list_directory(directory):
                if not entry.is_directory and entry.size_bytes > 0:
                    found.append((_start_of(directory, entry.name), entry.size_bytes, f"{directory}/{entry.name}"))
        found = sorted(set(found))  # a directory may be named twice
        size = self._configured_size or (found[0][1] if found else 0)
        for _, length, path in found:
            if length != size:
                rule = "mappedFileSizeCommitLog says" if self._configured_size else "the first one has"
                raise StoreRefusedError(
                    self.directories[0],
                    f"commit log file {path} has {length} bytes, not {size} as {rule}",
                    hint="a real broker does not start on such a store either; give the right broker.conf, or move the file away",
                )
        for (start, _, path), (other_start, _, other_path) in pairwise(found):
            if start == other_start:
                raise StoreRefusedError(
                    self.directories[0],
                    f"{path} and {other_path} are the same file of the log",
                    hint="move one of them away, the one without messages; if both have some, copy both first and look which is right",
                )
        self.files = tuple(LogFile(start, start + length, path, self._head_size(path)) for start, length, path in found)
        for path in self._open_files.keys() - {file.path for file in self.files}:
            self._open_files.pop(path, None)  # its map would keep disk space; its present readers still have it

    def _head_size(self, path: str) -> int:
        return ENTRY_HEAD_SIZE if self.entry_directories and posixpath.dirname(path) in self.entry_directories else 0

    def see(self, end: int) -> None:
        """List the files again if the log, which ends at `end` now, has grown out of the known ones."""
        if end > (self.files[-1].end if self.files else 0):
            self.list_files()

    @property
    def minimum(self) -> int:
        """The first byte that is still there; 0 for an empty log."""
        return self.files[0].start if self.files else 0

    @property
    def has_gaps(self) -> bool:
        """Whether files are missing between others."""
        return (
            bool(self.files) and sum(file.end - file.start for file in self.files) != self.files[-1].end - self.minimum
        )

    def is_missing(self, commitlog_offsets: np.ndarray) -> np.ndarray:
        """Which log offsets are inside the log where no file is."""
        starts = np.array([file.start for file in self.files], np.int64)
        ends = np.array([file.end for file in self.files], np.int64)
        numbers = np.searchsorted(starts, commitlog_offsets, side="right") - 1
        amid = (numbers >= 0) & (numbers < len(starts) - 1)
        return np.asarray(amid & (commitlog_offsets >= ends[numbers]))

    @property
    def file_size_bytes(self) -> int | None:
        return self.files[0].end - self.files[0].start if self.files else self._configured_size

    def file_index(self, commitlog_offset: int) -> int:
        """Number of the last file that begins at or before an offset; -1 if none does."""
        return bisect_right(self.files, commitlog_offset, key=lambda file: file.start) - 1

    def file_end(self, commitlog_offset: int, file_size_bytes: int) -> int:
        """The end of the file that holds an offset, or will hold it after the last one."""
        base = self.files[max(0, self.file_index(commitlog_offset))].start if self.files else 0
        return base + ((commitlog_offset - base) // file_size_bytes + 1) * file_size_bytes

    def open_file(self, file: LogFile) -> ReadableFile:
        """The open file; OffsetOutOfRangeError if it was deleted since it was listed."""
        opened = self._open_files.pop(file.path, None)
        if opened is None:
            if len(self._open_files) >= MOST_OPEN_FILES:
                del self._open_files[next(iter(self._open_files))]  # a walk may be reading it still
            try:
                opened = self._file_system.open_file(file.path)
            except FileNotFoundError as error:
                raise self._deleted(file) from error
        self._open_files[file.path] = opened  # the most recently used one is the last to be closed
        return opened

    def forget_open(self, end: int) -> None:
        """Let go of the open files that go on behind a place: a DLedger group may cut its log there, and make them anew."""
        for file in self.files:
            if file.end > end:
                self._open_files.pop(file.path, None)

    def _deleted(self, file: LogFile) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError("commit log", None, file.end, self.files[-1].end, file.start)

    def message_at(self, commitlog_offset: int, end: int, *, check_crc: bool = False) -> Message:
        """The record that begins there and ends at or before `end`.

        Raises OffsetOutOfRangeError outside the log, CorruptRecordError if no record begins there, or one that names another place.
        """
        number = self.file_index(commitlog_offset)
        if number < 0 or commitlog_offset >= min(end, self.files[number].end):
            raise OffsetOutOfRangeError("commit log", None, self.minimum, end, commitlog_offset)
        file = self.files[number]
        opened = self.open_file(file)
        position = commitlog_offset - file.start
        outcome = _decode_at(opened, position, check_crc=check_crc, force_property_crc=self.force_property_crc)
        if isinstance(outcome, Message) and commitlog_offset + outcome.size_bytes > end:
            raise OffsetOutOfRangeError("commit log", None, self.minimum, end, commitlog_offset)
        if not isinstance(outcome, Message):
            raise CorruptRecordError("size", position, "a record that ends inside the file", outcome, file=file.path)
        if outcome.commitlog_offset != commitlog_offset:
            raise CorruptRecordError(
                "physical offset", position, commitlog_offset, outcome.commitlog_offset, file=file.path
            )
        return outcome

    def has_file_of(self, start: int, end: int) -> bool:
        """Whether bytes [start, end) lie within one of the files."""
        number = self.file_index(start)
        return number >= 0 and end <= self.files[number].end

    def bytes_at(self, commitlog_offset: int, size_bytes: int) -> bytes:
        """A range of the log within one file."""
        file = self.files[self.file_index(commitlog_offset)]
        return self.open_file(file).view(commitlog_offset - file.start, size_bytes).tobytes()

    def records(
        self, offsets: np.ndarray, sizes: np.ndarray, decoding: Decoding | None = None
    ) -> Iterator[tuple[slice, Records]]:
        """The records at ascending offsets, a file at a time: which of them, and the records themselves.

        Offsets outside the files are omitted. Rows are not checked; `Records.is_whole` says which are records. With `decoding` they
        are decoded while they are read, if all of them are regular and agree with its expectations: `Records.decoded` says so.
        Raises OffsetOutOfRangeError if a file was deleted meanwhile.
        """
        starts = np.array([file.start for file in self.files], np.int64)
        numbers = np.searchsorted(starts, offsets, side="right") - 1
        first = 0
        while first < len(offsets):
            number = int(numbers[first])
            last = int(np.searchsorted(numbers, number, side="right"))
            if number >= 0:
                file = self.files[number]
                inside = first + int(np.searchsorted(offsets[first:last], file.end - MINIMUM_RECORD_SIZE, side="right"))
                if inside > first:
                    rows = slice(first, inside)
                    yield rows, self._records_of_file(file, offsets[rows], sizes[rows], decoding)
            first = last

    def _records_of_file(
        self, file: LogFile, offsets: np.ndarray, sizes: np.ndarray, decoding: Decoding | None
    ) -> Records:
        opened = self.open_file(file)
        positions, room = offsets - file.start, np.maximum(sizes, MINIMUM_RECORD_SIZE)
        try:
            decoder = None if decoding is None else decoding.decoder(offsets, sizes)
            if decoding is None or decoder is None or self._scratch is None:
                return Records(*opened.gather(positions, room, self._scratch))
            window = None
            for window in opened.gather_windows(positions, room, self._scratch, decoding.layout):
                if not decoder.add(window.buffer, window.places, window.rows) and not window.has_all:
                    break
            decoded = decoder.finish()
            if window is not None and window.has_all:
                return Records(window.buffer, window.places, decoded)
            if decoded is None:
                return Records(*opened.gather(positions, room, self._scratch))
            own = Scratch()  # they may be read after the log's scratch was reused
            return Records.of_decoded(decoded, len(offsets), partial(opened.gather, positions, room, own))
        except FileNotFoundError as error:  # a remote file is not held open
            raise self._deleted(file) from error

    def walk(
        self, start: int, *, check_crc: bool = True, wanted: Wanted = NOTHING, limit: int | None = None
    ) -> LogWalk:
        """A validating walk over all records from `start`, which must be where a record, its entry or a file begins.

        The `wanted` columns are decoded on the way, if that is faster. With `limit` no byte after that place is read: a
        record that continues there ends the walk, as free space does.
        """
        return LogWalk(self, start, check_crc, wanted, limit)

    def begins_with_record(self, file: LogFile) -> bool:
        _, magic = BLANK.unpack(self.open_file(file).view(file.head_size_bytes, BLANK_SIZE).data)
        return magic in (MAGIC_V1, MAGIC_V2)

    def close(self) -> None:
        for opened in self._open_files.values():
            opened.close()
        self._open_files.clear()


class LogWalk:
    """Windows of valid records that follow each other without a gap, in order.

    Valid as in Java's recovery (CommitLog.checkMessageAndReturnSize), also with forceVerifyPropCRC. After the iteration `end` is
    the first byte that belongs to no valid record (after a blank filler the next file's start), and `failure` says why it
    stopped there: None at free space or at the last file's end, else the fault in the bytes.
    """

    def __init__(self, log: CommitLog, start: int, check_crc: bool, wanted: Wanted, limit: int | None = None) -> None:
        self._log = log
        self._limit = sys.maxsize if limit is None else limit
        self._check_crc = check_crc
        self._walker = Walker(wanted)
        self._entry: EntryNumber | None = None
        self.end = start
        self.failure: CorruptRecordError | None = None

    def __iter__(self) -> Iterator[tuple[np.ndarray, Records]]:
        """Yields (commit log offsets, records)."""
        number = self._log.file_index(self.end)
        while 0 <= number < len(self._log.files):
            file = self._log.files[number]
            rolls = yield from (self._walk_entries(file) if file.head_size_bytes else self._walk_file(file))
            number = self._log.file_index(file.start) + 1  # the files may have been listed again meanwhile
            if not rolls or number == len(self._log.files):  # like Java, treat a last file's filler as free space
                return
            if self._log.files[number].start != file.end and not self._log.begins_with_record(self._log.files[number]):
                return  # nothing was written after the missing files
            self.end = self._log.files[number].start

    def _walk_file(self, file: LogFile) -> Generator[tuple[np.ndarray, Records], None, bool]:
        """Returns whether the walk continues in the next file."""
        opened, given_back = self._log.open_file(file), self.end
        while self.end + BLANK_SIZE <= self._limit or self.end + BLANK_SIZE > file.end:
            if self.end >= given_back + _GIVE_BACK_BYTES:
                opened.give_pages_back()
                given_back = self.end
            position = self.end - file.start
            head = opened.view(position, BLANK_SIZE)
            if len(head) < BLANK_SIZE:
                self.failure = CorruptRecordError(
                    "size", position, "a blank filler before the file's end", len(head), file=file.path
                )
                return False
            size, magic = BLANK.unpack(head.data)
            if magic == MAGIC_BLANK:
                return True
            if magic == 0 and size == 0:
                return False
            if magic not in (MAGIC_V1, MAGIC_V2) or not MINIMUM_RECORD_SIZE <= size <= opened.size_bytes - position:
                self.failure = self._failure_at(opened, position)
                return False
            room = self._limit - self.end
            if size > room:
                return False
            window = opened.view(position, min(max(WINDOW_BYTES, size), room))
            records, valid = self._valid_records(window)
            if len(records):
                offsets = records.positions + self.end
                self.end = int(offsets[-1] + records.column("size_bytes")[-1])
                yield offsets, records
            if not valid:
                self.failure = self._failure_at(opened, self.end - file.start)
                return False
        return False

    def _walk_entries(self, file: LogFile) -> Generator[tuple[np.ndarray, Records], None, bool]:
        """`_walk_file` for a file of DLedger. Java: DLedgerMmapFileStore.recover, DLedgerCommitLog.checkMessageAndReturnSize."""
        opened = self._log.open_file(file)
        given_back = self.end = _entry_start(opened, file, self.end)
        while self.end + FILLER_SIZE <= min(self._limit, file.end):
            if self.end >= given_back + _GIVE_BACK_BYTES:
                opened.give_pages_back()
                given_back = self.end
            position = self.end - file.start
            magic, size = FILLER.unpack(opened.view(position, FILLER_SIZE).data)
            if magic == FILLER_MAGIC:
                return True
            if magic == 0 and size == 0:
                return False
            room = min(self._limit, file.end) - self.end
            if size > room and self.end + size <= file.end:
                return False
            window = opened.view(position, min(max(WINDOW_BYTES, size), room))
            entries = entries_in(window, self.end, self._entry)
            found = Records(window, entries.record_positions)
            records = self._with_sums(_head(found, found.is_whole))
            if not len(records):
                self.failure = self._failure_of_entry(opened, file, position)
                return False
            last = entries.heads[len(records) - 1]
            self._entry = EntryNumber(int(last["entry_index"]), int(last["term"]))
            offsets = records.positions + self.end
            self.end = int(offsets[-1] + records.column("size_bytes")[-1])
            yield offsets, records
        return False

    def _failure_of_entry(self, opened: ReadableFile, file: LogFile, position: int) -> CorruptRecordError:
        """Why no record is at a place where entries end."""
        rest = opened.size_bytes - position
        if rest < ENTRY_HEAD_SIZE + MINIMUM_RECORD_SIZE:
            return CorruptRecordError(
                "entry's size", position, f"at most {rest}, or a filler", "an entry", file=file.path
            )
        try:
            head = decode_entry_head(opened.view(position, ENTRY_HEAD_SIZE).data, file.start + position, self._entry)
        except CorruptRecordError as error:
            return CorruptRecordError(error.field, position, error.expected, error.found, file=file.path)
        if head.size_bytes > rest:
            return CorruptRecordError("entry's size", position, f"at most {rest}", head.size_bytes, file=file.path)
        failure = self._failure_at(opened, position + ENTRY_HEAD_SIZE)
        if isinstance(failure.found, Message):
            what = failure.found.size_bytes
            return CorruptRecordError("entry's body size", position, what, head.body_size_bytes, file=file.path)
        return failure

    def _valid_records(self, window: np.ndarray) -> tuple[Records, bool]:
        """The valid records at the window's head, and whether the following ones may be valid too."""
        if (walked := self._walker.walk(window)) is not None:
            found = Records(window, *walked)
            records = self._with_sums(found)
            return records, len(records) == len(found)
        candidates = find_candidates(window, 0, len(window) - MINIMUM_RECORD_SIZE + 1)
        sizes = view_at(window, candidates, _SIZE).astype(np.int64)
        plausible = (sizes >= MINIMUM_RECORD_SIZE) & (candidates + sizes <= len(window))
        candidates, sizes = candidates[plausible], sizes[plausible]
        follow, _ = chain(candidates, sizes, 0)
        records = Records(window, candidates[follow])
        records = self._with_sums(_head(records, records.is_whole))
        return records, len(records) == len(follow) > 0

    def _with_sums(self, records: Records) -> Records:
        """The records before the first with a wrong checksum."""
        if not self._check_crc:
            return records
        forced = self._log.force_property_crc
        return _head(records, records.property_crc_agrees(required=True) if forced else records.crc_agrees())

    def _failure_at(self, file: ReadableFile, position: int) -> CorruptRecordError:
        """The error of the one-record decoder at that place."""
        rest = file.size_bytes - position
        try:
            outcome = _decode_at(file, position, check_crc=True, force_property_crc=self._log.force_property_crc)
        except CorruptRecordError as error:
            return CorruptRecordError(error.field, position, error.expected, error.found, file=file.path)
        if isinstance(outcome, NeedMoreBytes):
            return CorruptRecordError("size", position, f"at most {rest}", outcome.size_bytes, file=file.path)
        return CorruptRecordError("size", position, "a record that both decoders judge alike", outcome, file=file.path)


def _decode_at(
    file: ReadableFile, position: int, *, check_crc: bool, force_property_crc: bool
) -> Message | EndOfFile | NeedMoreBytes:
    """`decode_record` at a place of a file; reads no more than the record's size."""
    head = file.view(position, _HEAD_BYTES)
    outcome = decode_record(head.data, check_crc=check_crc, force_property_crc=force_property_crc)
    if isinstance(outcome, NeedMoreBytes) and outcome.size_bytes <= file.size_bytes - position:
        whole = file.view(position, outcome.size_bytes)
        outcome = decode_record(whole.data, check_crc=check_crc, force_property_crc=force_property_crc)
    return outcome


def _entry_start(opened: ReadableFile, file: LogFile, place: int) -> int:
    """Where the entry begins that has its head, or its record, at a place of a DLedger file. Java distinguishes the two alike: an entry
    has its size where a record has its magic, and no size is that number."""
    head = opened.view(place - file.start, BLANK_SIZE)
    is_record = len(head) == BLANK_SIZE and BLANK.unpack(head.data)[1] in (MAGIC_V1, MAGIC_V2)
    return place - file.head_size_bytes if is_record else place


def _head(records: Records, valid: np.ndarray) -> Records:
    """The records before the first invalid one."""
    return records if valid.all() else records.take(np.arange(int(np.argmin(valid))))


def _start_of(directory: str, name: str) -> int:
    if not (len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit()):
        raise StoreRefusedError(
            directory,
            f"{name} is not a commit log file: its name is not {FILE_NAME_DIGITS} digits",
            hint="a real broker does not start on such a store either; move the file away",
        )
    return int(name)


class RecordIdentity(NamedTuple):
    """A known record: another one at its place means that the log was cut."""

    commitlog_offset: int
    store_time_ms: int


class LogTail:
    """The validated end of a log that another process writes, moved on by `advance`, and the queues that still lack entries.

    A broker writes the record first and its queue entry a moment later; a broker that recovers may cut the log below a known
    end. Both are detected here.
    """

    def __init__(
        self, log: CommitLog, dispatched_end: int, end: int, last: RecordIdentity | None, *, check_crc: bool
    ) -> None:
        """`end` is the validated end, `last` the record before it; records from `dispatched_end` on may lack queue entries."""
        self.end = max(dispatched_end, log.minimum)
        self.pending: dict[tuple[str, int], int] = {}
        """Queues whose entries were not seen yet: (topic, queue id) → log offset of their last record."""
        self._log = log
        self._last = last
        self._check_crc = False  # it was checked up to `end`
        if end > self.end:
            self.advance()
        self.end = end
        self._check_crc = check_crc

    @property
    def last_record(self) -> RecordIdentity | None:
        """The last known record; None if there is none."""
        return self._last

    def advance(self) -> bool:
        """Validate what was appended since; returns whether there was anything."""
        before = self.end
        walk = self._log.walk(max(self.end, self._log.minimum), check_crc=self._check_crc)
        for offsets, records in walk:
            self.pending.update(last_records(offsets, records))
            self._last = RecordIdentity(int(offsets[-1]), int(records.column("store_time_ms")[-1]))
        self.end = max(self.end, walk.end)
        return self.end > before

    def was_cut(self) -> bool:
        """Whether another record is at the last known record's place, though its file is there."""
        if self._last is None or self._last.commitlog_offset < self._log.minimum:
            return False
        try:
            message = self._log.message_at(self._last.commitlog_offset, self.end)
        except StorageError:
            return True
        return message.store_time_ms != self._last.store_time_ms


def last_records(offsets: np.ndarray, records: Records) -> dict[tuple[str, int], int]:
    """For each queue of whole records, the place of its last one; records without queue entry are omitted."""
    transaction = records.column("sys_flag") & TRANSACTION_MASK
    rows = np.flatnonzero((transaction != TRANSACTION_PREPARED) & (transaction != TRANSACTION_ROLLBACK))
    topics = records.topics().dictionary_encode()
    queues = topics.indices.to_numpy()[rows].astype(np.int64) << 32 | records.column("queue_id")[rows].astype(np.uint32)
    distinct, from_end = np.unique(queues[::-1], return_index=True)
    last = offsets[rows][::-1][from_end]
    return {
        (topics.dictionary[queue >> 32].as_py().decode(errors="replace"), queue & 0xFFFFFFFF): place
        for queue, place in zip(distinct.tolist(), last.tolist(), strict=True)
    }


CHECKPOINT_SIZE = 4096
_CHECKPOINT_FIELDS = struct.Struct(">6q")
_POSITION_UNKNOWN = -1


class Checkpoint(NamedTuple):
    """Store times (ms) up to which log, queues and index are known flushed, two replication offsets, and a place in the log."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0
    """The last record whose queue entry is on the disk; 0 or less = unknown."""

    @property
    def recovery_timestamp(self) -> int:
        """An unclean recovery starts at a log file whose first record is not younger (Java: getMinTimestamp)."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - 3_000)

    def queue_position(self, record: int | None, *, is_read: bool = False) -> int:
        """The next `logics_physical_offset`, where that record (None = unknown) is the last one whose queue entry is on the disk.

        `is_read`: the release of the store's broker reads it. The log's first byte is a record that a broker takes for unknown.
        """
        if not is_read and not self.logics_physical_offset:
            return 0
        return record if record is not None and record > 0 else _POSITION_UNKNOWN


def decode_checkpoint(page: bytes) -> Checkpoint:
    """The six fields; a too short page reads as zero, as a missing file does."""
    return Checkpoint(*_CHECKPOINT_FIELDS.unpack_from(page)) if len(page) >= _CHECKPOINT_FIELDS.size else Checkpoint()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """One page of 4096 bytes."""
    return _CHECKPOINT_FIELDS.pack(*checkpoint).ljust(CHECKPOINT_SIZE, b"\0")


def read_checkpoint(file_system: FileSystem, root: str) -> Checkpoint:
    """The checkpoint of a store; all zero if the file is missing or short, as Java reads it."""
    return decode_checkpoint(file_system.read_file(f"{root}/checkpoint") or b"")


def write_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: Checkpoint) -> None:
    """Overwrite the page in place and sync it; 48 bytes of one sector, as Java does."""
    path = f"{root}/checkpoint"
    page = encode_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.create_file(path, len(page))
        file_system.sync(root)
    file_system.write(path, 0, page)
    reach("checkpoint-written")
    file_system.sync(path)


def abort_path(root: str) -> str:
    """Path of the abort file."""
    return f"{root}/abort"


def boot_left(files: FileSystem, root: str) -> str | None:
    """The machine start that an open store's file names, empty if it names none; None = the store was closed."""
    content = files.read_file(abort_path(root))
    return None if content is None else "".join(content.decode(errors="replace").split(" ", 2)[2:])
