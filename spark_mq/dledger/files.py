"""One member's disk: DLedger's own files, and what makes them safe against a power loss.

    DIRECTORY/data/00000000000000000000     entries, in files of one size; a filler ends each but the last
    DIRECTORY/index/00000000000000000000    a unit for each entry
    DIRECTORY/currterm                      term and vote
    DIRECTORY/checkpoint                    committed index; its first line says that this package wrote the log last
    DIRECTORY/spark_mq/sums                 the sum of each entry behind a base, up to which the log was durable before
    DIRECTORY/lock                          byte 0 is locked by the process that has these files open

The first four are Java's, byte for byte but for the checkpoint's first line. Layouts: `storage/format/dledger.py`.

    operation     writes and syncs, in order                                       a crash leaves
    append        entries, index, sums                                             what recovery finds to have its sum
    sync          data and sums; of a new file the directory, and the index, too   all that was written before
    save_vote     currterm replaced (file, rename, directory)                      the old vote or the new one
    cut           sync; sums replaced: its base is the new end; files cut, synced  the old end or the new one
    restart       checkpoint without index; sums replaced: its base is nothing;    the old log, none, or the new one
                  files deleted, synced; the first entry appended, synced
    trim          sums replaced: it has the new begin; files deleted               the old begin or a later one

Commit point of cut and restart: the sums. Behind its base an entry without a sum does not count, so recovery completes the cut. A log
that is lost amid a restart is no harm: its leader has committed later entries without this member.

Recovery walks the last three data files, as Java does, and stops where an entry is not whole. What stands behind is a torn end, and is
cut off. If what is known to be durable does not end before it, the disk is damaged: the opening is refused, and nothing is changed.
Known to be durable is the base, what a sum says of the time when it was written, and the checkpoint's committed index. Entries have no
CRC in Java's format, so a torn one with a whole head is recognised by its sum alone. In a log that Java wrote last there are no sums,
and recovery believes what Java believes. Java replaces the checkpoint three seconds after its start: what it writes before, and is
killed, is cut off here.

Java: DLedgerMmapFileStore, MmapFileList, MemberState.persistTerm (DLedger 0.3.1.2). Departures: what is cut is overwritten with zeros,
else entries that were cut may stand behind later ones at the next start; damage is refused and not cut; votes are synced.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spark_mq.dledger.messages import NO_INDEX, LedgerEntry
from spark_mq.dledger.state import Append, Cut, Order, Restored, SaveVote
from storage.errors import CorruptRecordError, StateFileError, StoreRefusedError
from storage.files.file_system import LocalWriter, ReadableFile, end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import SyncGate, noting_failed_syncs, write_again
from storage.format.dledger import (
    ENTRY_HEAD_SIZE,
    ENTRY_MAGIC,
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    SUM_SIZE,
    EntryHead,
    EntryNumber,
    EntrySum,
    IndexUnit,
    LogBase,
    Vote,
    committed_index,
    decode_entry_head,
    decode_index_unit,
    decode_sums,
    decode_vote,
    encode_base,
    encode_checkpoint,
    encode_entry_head,
    encode_index_unit,
    encode_sum,
    encode_vote,
    place_of_next,
)

DATA_FILE_BYTES = 1 << 30
"""mappedFileSizeForEntryData"""
INDEX_FILE_BYTES = INDEX_UNIT_SIZE * 5 * 1024 * 1024
"""mappedFileSizeForEntryIndex"""
MOST_SUMS = 8_192
"""So many, and their file is replaced by one with a later base."""
_OWN = b"#spark_mq\n"
_FOREIGN_QUEUES = b"#queues of Apache's broker\n"
"""Behind the first line, until a store has cut its queues: Apache's broker enters the whole log at its start, committed or not."""
_WINDOW_BYTES = 8 << 20
_WALKED_FILES = 3
_MOST_OPEN = 16
_NAME_DIGITS = 20
_MAGIC_ZEROS = 3
"""An entry's magic is 00 00 00 01."""
_CURE = (
    "bring its files back from a copy of this member; or, while all other members have their logs, move data, index, checkpoint and "
    "spark_mq away, but not currterm: the leader sends everything again"
)


class MemberFiles:
    """The open files of one member; a `Ledger`. Everything in it happens on one thread, but `sync`, `save_checkpoint` and `entry`,
    which any thread may call.
    """

    def __init__(
        self,
        directory: str,
        *,
        file_size_bytes: int = DATA_FILE_BYTES,
        index_file_size_bytes: int = INDEX_FILE_BYTES,
        file_system: LocalFileSystem | None = None,
        most_sums: int = MOST_SUMS,
    ) -> None:
        """Open the files of `directory`, Java's storeBaseDir/dledger-ID, or make them; recover, and sync what is found.

        Raises StoreLockedError if a process has them open, StoreRefusedError and StateFileError if they are damaged, or not of these
        sizes. Nothing is changed then. Raises OSError.
        """
        if index_file_size_bytes % INDEX_UNIT_SIZE:
            raise ValueError(f"{index_file_size_bytes} bytes do not hold whole units of {INDEX_UNIT_SIZE}")
        self.directory = directory
        self._files = files = file_system or LocalFileSystem()
        self._data = _Folder(files, f"{directory}/data", file_size_bytes, "mappedFileSizeForEntryData")
        self._index = _Folder(files, f"{directory}/index", index_file_size_bytes, "mappedFileSizeForEntryIndex")
        self._sums = _Sums(files, f"{directory}/spark_mq/sums", most_sums)
        self._gate = SyncGate()
        self._begin_index = self._end_index = NO_INDEX
        self._end_place = 0
        self._end_term = -1
        self._durable_index = self._committed = NO_INDEX
        self._checkpoint = b""
        self.has_own_queues = True
        """Whether the store's queues have committed entries only, as far as this log's writers say."""
        self._open = ExitStack()
        try:
            files.make_directories(directory)
            self._open.enter_context(files.locked(f"{directory}/lock"))
            with self._noting():
                self._restored = self._recover()
        except BaseException:
            self.close()
            raise

    def restored(self) -> Restored:
        """What was found when the files were opened. All of it is durable."""
        return self._restored

    # Reading

    def entry(self, index: int) -> LedgerEntry:
        """An entry between begin and end. Raises CorruptRecordError if its bytes are wrong."""
        unit = self._unit(index)
        content = self._data.read(unit.place, unit.size_bytes)
        try:
            head = decode_entry_head(content, unit.place, EntryNumber(index - 1, unit.term))
        except CorruptRecordError as error:
            raise self._data.located(error, unit.place) from None
        return LedgerEntry(
            body=bytes(content[ENTRY_HEAD_SIZE:]),
            body_crc=head.body_crc,
            chain_crc=head.chain_crc,
            channel=head.channel,
            index=index,
            magic=head.magic,
            place=head.place,
            size_bytes=head.size_bytes,
            term=head.term,
        )

    def end_of(self, index: int) -> int:
        """Where the entry of that index ends in the log; 0 for none. Raises CorruptRecordError."""
        if index == NO_INDEX:
            return 0
        unit = self._unit(index)
        return unit.place + unit.size_bytes

    def last_index_by(self, end: int, last: int) -> int:
        """The last entry, of those up to `last`, that ends at this place of the log or before. Raises CorruptRecordError."""
        first = max(self._begin_index, 0)
        if last < first or self.end_of(last) <= end:
            return last
        count = bisect_right(range(first, last), end, key=self.end_of)
        return first + count - 1 if count else NO_INDEX

    def first_index_in(self, place: int) -> int:
        """The index of the first entry of the data file that has this place. Raises CorruptRecordError."""
        return self._head_at(self._data.start_of(place)).entry_index

    def _unit(self, index: int) -> IndexUnit:
        place = index * INDEX_UNIT_SIZE
        unit = decode_index_unit(self._index.read(place, INDEX_UNIT_SIZE))
        if unit.magic != ENTRY_MAGIC or unit.entry_index != index or unit.size_bytes < ENTRY_HEAD_SIZE:
            raise self._index.located(CorruptRecordError("unit of entry", 0, index, unit.entry_index), place)
        return unit

    # Orders

    def write(self, order: Order) -> None:
        """Carry out an order of the member's. It is durable after the next `sync`. After an OSError only `close` may be called."""
        if isinstance(order, Append):
            self.append(order.entries)
        elif isinstance(order, SaveVote):
            self.save_vote(order.vote)
        elif isinstance(order, Cut):
            self.cut(order.last_index)
        else:
            self.restart(order.first)

    def save_vote(self, vote: Vote) -> None:
        """Replace `currterm`; durable when it returns."""
        with self._noting():
            self._files.replace(self._vote_path, encode_vote(vote))

    def append(self, entries: Sequence[LedgerEntry]) -> None:
        """Write entries that follow the end; they can be read at once, and are durable after the next `sync`."""
        index, place, size = self._end_index, self._end_place, self._data.size_bytes
        pieces: list[tuple[int, bytes]] = []
        units = bytearray()
        sums: list[EntrySum] = []
        for each in entries:
            start = place_of_next(place, each.size_bytes, size)
            if start != each.place or (index != NO_INDEX and each.index != index + 1):
                raise ValueError(f"entry {each.index} at {each.place} does not follow {index}, which ends at {place}")
            if start != place:
                pieces.append((place, FILLER.pack(FILLER_MAGIC, start - place)))
            content = _head_of(each) + (each.body or b"")
            pieces.append((start, content))
            units += encode_index_unit(IndexUnit(each.magic, start, each.size_bytes, each.index, each.term))
            sums.append(EntrySum(each.index, each.term, self._durable_index, zlib.crc32(content)))
            index, place = each.index, start + each.size_bytes
        for start, content in _joined(pieces):
            self._data.write(start, content)
        self._index.write(entries[0].index * INDEX_UNIT_SIZE, bytes(units))
        if self._end_index == NO_INDEX:
            self._begin_index = entries[0].index
        if not self._sums.has_room(len(sums)):
            self._run(lambda: self._roll_sums(len(sums)))
        self._sums.append(sums)
        self._end_index, self._end_place, self._end_term = index, place, entries[-1].term

    def sync(self) -> None:
        """All that was written before is durable when it returns. Any thread may call it beside the one that writes."""
        self._run(self._sync)

    def cut(self, last_index: int) -> None:
        """Remove the entries behind this one; durable when it returns."""
        self._run(lambda: self._cut(last_index))

    def restart(self, first: LedgerEntry) -> None:
        """The log is this entry; durable when it returns."""
        self._run(lambda: self._restart(first))

    def save_checkpoint(self, committed: int) -> None:
        """Replace the checkpoint: `committed` is the state's `durable_committed_index`. Any thread may call it."""
        self._run(lambda: self._write_checkpoint(committed))

    def own_queues(self) -> None:
        """The store's queues have committed entries only from now on; durable when it returns. Any thread may call it."""
        if not self.has_own_queues:
            self.has_own_queues = True
            self._run(lambda: self._write_checkpoint(self._committed))

    def trim(self, begin_index: int) -> int:
        """Delete the files all of whose entries come before this one, which is durable and committed. Returns the log's new begin,
        for `Member.trimmed`.
        """
        self._run(lambda: self._trim(begin_index))
        return self._begin_index

    def close(self) -> None:
        """Close the files, as they are: nothing is written or synced."""
        self._data.close()
        self._index.close()
        self._sums.close()
        self._open.close()

    # Under the gate

    def _run(self, act: Callable[[], None]) -> None:
        with self._noting():
            self._gate.run(act)

    def _noting(self) -> AbstractContextManager[None]:
        """After a failed sync the next opening writes all again: a recovery's own sync would succeed, and write nothing."""
        return noting_failed_syncs(self._files, self.directory, self._paths)

    def _paths(self) -> list[str]:
        own = (self._sums.path, self._checkpoint_path, self._vote_path, self.directory)
        return [*self._data.paths(), *self._index.paths(), *own]

    def _sync(self) -> None:
        end = self._end_index
        if self._data.sync():
            self._index.sync()  # recovery compares it with the last files only
        self._sums.sync()
        self._durable_index = max(self._durable_index, end)
        self._sums.forget(self._durable_index)

    def _roll_sums(self, room: int) -> None:
        self._sums.replace(LogBase(self._durable_index, self._begin_index), room)

    def _cut(self, last_index: int) -> None:
        self._sync()
        last = self._unit(last_index)
        self._durable_index = last_index
        self._end_index, self._end_term, self._end_place = last_index, last.term, last.place + last.size_bytes
        self._sums.replace(LogBase(last_index, self._begin_index))
        self._cut_files()

    def _cut_files(self) -> None:
        """Nothing stands behind the log's end."""
        self._data.cut(self._end_place)
        self._index.cut((self._end_index + 1) * INDEX_UNIT_SIZE)

    def _restart(self, first: LedgerEntry) -> None:
        self._write_checkpoint(NO_INDEX)
        self._begin_index = self._end_index = self._durable_index = NO_INDEX
        self._sums.drop()
        self._sums.replace(LogBase(NO_INDEX, NO_INDEX))
        self._data.cut(0)
        self._index.cut(0)
        self._end_place = first.place
        self.append((first,))
        self._sync()

    def _trim(self, begin_index: int) -> None:
        start = self._data.start_of(self._unit(begin_index).place)
        if start <= self._data.starts[0]:
            return
        head = decode_entry_head(self._data.read(start, ENTRY_HEAD_SIZE), start, None)
        if head.entry_index > self._durable_index:
            return
        self._begin_index = head.entry_index
        self._sums.replace(LogBase(self._durable_index, self._begin_index))
        self._data.delete_before(start)
        self._index.delete_before(self._index.start_of(self._begin_index * INDEX_UNIT_SIZE))

    def _write_checkpoint(self, committed: int) -> None:
        self._committed = committed
        first = _OWN if self.has_own_queues else _OWN + _FOREIGN_QUEUES
        content = first + encode_checkpoint(self._durable_index, committed)
        if content != self._checkpoint:
            self._index.sync()
            self._files.replace(self._checkpoint_path, content)
            self._checkpoint = content

    @property
    def _checkpoint_path(self) -> str:
        return f"{self.directory}/checkpoint"

    @property
    def _vote_path(self) -> str:
        return f"{self.directory}/currterm"

    # Recovery

    def _recover(self) -> Restored:
        for path in (self._data.path, self._index.path, f"{self.directory}/spark_mq"):
            self._files.make_directories(path)
        write_again(self._files, self.directory)
        vote = self._load_vote()
        self._data.load()
        self._index.load()
        checkpoint = self._files.read_file(self._checkpoint_path) or b""
        found = committed_index(checkpoint)
        committed = NO_INDEX if found is None else found
        sums = self._sums.load() if checkpoint.startswith(_OWN) else None
        walked = self._walk(sums)
        known = committed if sums is None else max(committed, sums.durable_index)
        if walked.end_index < known or (sums is not None and sums.begin_index < walked.begin_index):
            lost = f"entries {walked.end_index + 1} to {known}" if walked.end_index < known else "the first entries"
            reason = f"{lost} were durable and cannot be read, nothing was changed: {walked.why}"
            raise StoreRefusedError(self.directory, reason, _CURE)
        self._begin_index, self._end_index = walked.begin_index, walked.end_index
        self._end_place, self._end_term = walked.end_place, walked.end_term
        self._durable_index = walked.end_index
        is_own = checkpoint.startswith(_OWN) and not checkpoint.startswith(_OWN + _FOREIGN_QUEUES)
        self.has_own_queues = is_own or self._end_index == NO_INDEX
        self._cut_files()
        self._mend_index(walked)
        self._data.sync_all()
        self._index.sync_all()
        self._sums.replace(LogBase(self._end_index, self._begin_index))
        self._write_checkpoint(min(committed, self._end_index))
        begin = max(self._begin_index, 0)
        return Restored(vote, begin, self._end_index, self._end_term, self._end_place, min(committed, self._end_index))

    def _load_vote(self) -> Vote:
        """Java: MemberState.loadTerm. Departures: a file without a term is refused, not taken for term 0; and a crash of Java's between
        the old file's deletion and the new one's renaming is seen.
        """
        content = self._files.read_file(self._vote_path)
        vote = None if content is None else decode_vote(content)
        if vote is None and content is not None:
            error = StateFileError(
                self._vote_path, 0, 0, "it has no term, and this member may have voted: nothing was changed"
            )
            error.hint = (
                "write currTerm= with the highest term that any member's currterm has, plus one, and voteLeader="
            )
            raise error
        if vote is not None:
            self._files.sync(self._vote_path)
            self._files.sync(self.directory)
            return vote
        beside = [self._files.read_file(self._vote_path + end) for end in (".tmp", ".bak")]
        votes = [found for each in beside if each is not None and (found := decode_vote(each)) is not None]
        vote = max(votes, key=lambda each: (each.term, each.voted_for is not None), default=Vote(0, None))
        self.save_vote(vote)
        return vote

    def _walk(self, sums: _FoundSums | None) -> _Walked:
        """From the third last file on, or from an earlier one whose first entry is sound, and durable for certain."""
        starts = self._data.connected()
        at = max(len(starts) - _WALKED_FILES, 0)
        while at and not self._may_begin(starts[at], sums):
            at -= 1
        while not (walked := _walked(self._data, starts[at:], sums)).indexes and at:
            at -= 1
        if walked.indexes:
            walked.begin_index = walked.indexes[0] if not at else self._head_at(starts[0]).entry_index
        return walked

    def _may_begin(self, start: int, sums: _FoundSums | None) -> bool:
        try:
            first, before = self._head_at(start).entry_index, self._head_at(self._data.starts[0]).entry_index
        except CorruptRecordError:
            return False
        has_index = self._index.has(before * INDEX_UNIT_SIZE, first * INDEX_UNIT_SIZE)
        return 0 <= before <= first and has_index and (sums is None or first <= sums.base_index)

    def _head_at(self, start: int) -> EntryHead:
        """The head at the beginning of a data file."""
        return decode_entry_head(self._data.read(start, ENTRY_HEAD_SIZE), start, None)

    def _mend_index(self, walked: _Walked) -> None:
        """The units of what was walked are as its heads say."""
        if not walked.indexes:
            return
        units = np.empty(len(walked.indexes), INDEX_UNIT)
        units["magic"] = ENTRY_MAGIC
        units["place"], units["size_bytes"] = walked.places, walked.sizes
        units["entry_index"], units["term"] = walked.indexes, walked.terms
        self._index.delete_before(self._index.start_of(self._begin_index * INDEX_UNIT_SIZE))
        self._index.make_equal(walked.indexes[0] * INDEX_UNIT_SIZE, units.tobytes())


class _FoundSums(NamedTuple):
    """What the sums say about the log."""

    base_index: int
    begin_index: int
    by_index: Mapping[int, EntrySum]

    @property
    def durable_index(self) -> int:
        """What was durable for certain."""
        return max([self.base_index, *(each.durable_index for each in self.by_index.values())])

    def vouch_for(self, head: EntryHead, content: memoryview, before: EntryNumber | None) -> bool:
        """Whether these bytes are the entry that was written there."""
        if head.entry_index <= self.base_index:
            return True
        if before is None and head.entry_index != self.begin_index:
            return False
        own = self.by_index.get(head.entry_index)
        return own is not None and (own.term, own.entry_crc) == (head.term, zlib.crc32(content))


@dataclass(slots=True)
class _Walked:
    """The sound entries at the end of the log, and why they end."""

    begin_index: int = NO_INDEX
    """The log's."""
    end_place: int = 0
    why: str = "there is no data file"
    indexes: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def end_index(self) -> int:
        return self.indexes[-1] if self.indexes else NO_INDEX

    @property
    def end_term(self) -> int:
        return self.terms[-1] if self.terms else -1

    def take(self, head: EntryHead) -> EntryNumber:
        self.indexes.append(head.entry_index)
        self.terms.append(head.term)
        self.places.append(head.place)
        self.sizes.append(head.size_bytes)
        self.end_place = head.place + head.size_bytes
        return EntryNumber(head.entry_index, head.term)


def _walked(data: _Folder, starts: Sequence[int], sums: _FoundSums | None) -> _Walked:
    """Walk these data files, which follow each other. Java: DLedgerMmapFileStore.recover."""
    found, before = _Walked(), None
    try:
        for start in starts:
            at = start + (data.first_byte(start) if before is None else 0)
            window = _Window(data, start)
            while (first := FILLER.unpack(window.take(at, FILLER_SIZE)))[0] != FILLER_MAGIC:
                if first[1] == 0:
                    found.why = f"the log ends in {data.path_of(start)} at byte {at - start}"
                    return found
                head = decode_entry_head(window.take(at, ENTRY_HEAD_SIZE), at, before)
                content = window.take(at, head.size_bytes)
                if head.body_size_bytes < 0:
                    raise CorruptRecordError("entry's body size", 0, "0 or more", head.body_size_bytes)
                if not 0 <= head.entry_index <= at // ENTRY_HEAD_SIZE:  # so many can stand before it
                    raise CorruptRecordError("entry's index", 0, f"at most {at // ENTRY_HEAD_SIZE}", head.entry_index)
                if sums is not None and not sums.vouch_for(head, content, before):
                    raise CorruptRecordError("entry's sum", 0, "that of the entry that was written", "none, or another")
                before = found.take(head)
                at += head.size_bytes
            found.why = f"the log ends with {data.path_of(start)}"
    except CorruptRecordError as error:
        found.why = str(data.located(error, at))
    return found


class _Window:
    """A part of a data file; reads that follow each other share one view."""

    def __init__(self, data: _Folder, start: int) -> None:
        self._data = data
        self._end = start + data.size_bytes
        self._at, self._view = start, memoryview(b"")

    def take(self, at: int, length: int) -> memoryview:
        """The bytes there. Raises CorruptRecordError if the file ends before."""
        if not 0 <= length <= self._end - at:
            raise CorruptRecordError("entry's size", 0, f"at most {self._end - at}", length)
        if at + length > self._at + len(self._view):
            self._at, self._view = at, self._data.read(at, min(max(length, _WINDOW_BYTES), self._end - at))
        return self._view[at - self._at : at - self._at + length]


class _Folder:
    """Files of one size, named by the place at which they begin. Java: MmapFileList."""

    def __init__(self, files: LocalFileSystem, path: str, size_bytes: int, setting: str) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.starts: list[int] = []
        self._files = files
        self._setting = setting
        self._writers: dict[int, LocalWriter] = {}
        self._readers: dict[int, ReadableFile] = {}
        self._unsynced: set[int] = set()
        self._has_new = False
        self._empty: list[str] = []
        """What a power loss can leave of a new file: its name without its length."""
        self._lock = threading.Lock()
        """Between the thread that writes and the one that syncs."""

    def load(self) -> None:
        """List the files. Raises StoreRefusedError for those that Java does not start with, either."""
        empty = []
        for entry in self._files.list_directory(self.path):
            path = f"{self.path}/{entry.name}"
            if entry.is_directory or not (
                len(entry.name) == _NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
            ):
                reason = f"{path} is no file of it: its name is not {_NAME_DIGITS} digits"
                raise StoreRefusedError(self.path, reason, "move it away")
            if entry.size_bytes not in (0, self.size_bytes) or int(entry.name) % self.size_bytes:
                reason = f"{path} has {entry.size_bytes} bytes, and {self._setting} is {self.size_bytes}"
                raise StoreRefusedError(self.path, reason, f"give the {self._setting} with which it was written")
            if entry.size_bytes:
                self.starts.append(int(entry.name))
            else:
                empty.append(path)
        self._empty = empty

    def connected(self) -> list[int]:
        """The files up to the first gap."""
        return [start for at, start in enumerate(self.starts) if start == self.starts[0] + at * self.size_bytes]

    def has(self, place: int, end: int) -> bool:
        """Whether there are files for all of these places."""
        first = self.start_of(place)
        count = -(-max(end - first, 0) // self.size_bytes)
        return sum(first <= start < end for start in self.starts) == count

    def start_of(self, place: int) -> int:
        """Where the file begins that has this place."""
        return place - place % self.size_bytes

    def path_of(self, start: int) -> str:
        return f"{self.path}/{start:0{_NAME_DIGITS}}"

    def paths(self) -> list[str]:
        """The folder and its files."""
        return [self.path, *map(self.path_of, self.starts)]

    def located(self, error: CorruptRecordError, place: int) -> CorruptRecordError:
        """The error with file and byte."""
        start = self.start_of(place)
        return CorruptRecordError(error.field, place - start, error.expected, error.found, file=self.path_of(start))

    # Reading

    def read(self, place: int, length: int) -> memoryview:
        """The bytes there, of one file. Raises CorruptRecordError if it has fewer, or is missing."""
        start = self.start_of(place)
        found = self._reader(start).view(place - start, length).data
        if len(found) < length:
            raise self.located(CorruptRecordError("length", 0, length, len(found)), place)
        return found

    def first_byte(self, start: int) -> int:
        """Where a file's first entry begins: at 0, unless the log began anew behind it."""
        reader = self._reader(start)
        for begin, end in reader.data_ranges(0):
            for at in range(begin, end, _WINDOW_BYTES):
                written = np.flatnonzero(reader.view(at, min(_WINDOW_BYTES, end - at)))
                if len(written):
                    return max(at + int(written[0]) - _MAGIC_ZEROS, 0)
        return 0

    def _reader(self, start: int) -> ReadableFile:
        found = self._readers.get(start)
        if found is None:
            try:
                found = self._files.open_file(self.path_of(start))
            except FileNotFoundError:
                raise self.located(CorruptRecordError("file", 0, "a file", "none"), start) from None
            if len(self._readers) >= _MOST_OPEN:
                self._readers.clear()  # what others still read stays valid
            self._readers[start] = found
        return found

    # Writing

    def write(self, place: int, content: bytes) -> None:
        """Write bytes, into as many files as they need, which are made."""
        while content:
            start = self.start_of(place)
            room = start + self.size_bytes - place
            with self._lock:
                writer = self._writer(start)
                self._unsynced.add(start)
            writer.write(place - start, content[:room])
            with self._lock:
                self._unsynced.add(start)  # a sync amid the write has taken the first mark, which keeps the writer open
            place, content = start + self.size_bytes, content[room:]

    def make_equal(self, place: int, content: bytes) -> None:
        """Write what is not there."""
        while content:
            start = self.start_of(place)
            piece = content[: start + self.size_bytes - place]
            if start not in self.starts or self.read(place, len(piece)) != piece:
                self.write(place, piece)
            place, content = place + len(piece), content[len(piece) :]

    def _writer(self, start: int) -> LocalWriter:
        if start not in self._writers:
            if start not in self.starts:
                self._files.create_file(self.path_of(start), self.size_bytes)
                self.starts = sorted((*self.starts, start))
                self._has_new = True
            self._writers[start] = self._files.open_for_writing(self.path_of(start))
        return self._writers[start]

    def sync(self) -> bool:
        """Sync what was written before. Returns whether a new file is among it."""
        with self._lock:
            unsynced, self._unsynced = self._unsynced, set()
            has_new, self._has_new = self._has_new, False
            writers = [self._writers[start] for start in sorted(unsynced)]
        for writer in writers:
            writer.sync()
        if has_new:
            self._files.sync(self.path)
        with self._lock:
            for start in self._writers.keys() - self._unsynced - {*self.starts[-1:]}:
                self._writers.pop(start).close()
        return has_new

    def sync_all(self) -> None:
        """Sync all files, also those that another process wrote."""
        self._files.sync_all(self.paths())
        self.sync()

    def cut(self, place: int) -> None:
        """Nothing stands at this place or behind it, durably."""
        while self._empty:
            self._files.unlink(self._empty.pop())
        behind = [start for start in self.starts if start >= place]
        self._delete(behind[::-1])
        start = self.start_of(place)
        if start in self.starts and end_of_data(self._reader(start), place - start) > place - start:
            self._files.zero(self.path_of(start), place - start, start + self.size_bytes - place)
            self._files.sync(self.path_of(start))
        if behind:
            self._files.sync(self.path)

    def delete_before(self, start: int) -> None:
        """Delete the files that begin before."""
        self._delete([each for each in self.starts if each < start])

    def _delete(self, starts: Sequence[int]) -> None:
        for start in starts:
            self._readers.pop(start, None)
            with self._lock:
                writer = self._writers.pop(start, None)
                self._unsynced.discard(start)
            if writer is not None:
                writer.close()
            self._files.unlink(self.path_of(start))
        self.starts = [each for each in self.starts if each not in starts]

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        for reader in self._readers.values():
            reader.close()
        self._writers.clear()
        self._readers.clear()


class _Sums:
    """The sums of entries behind a base, in a file that is replaced when it is full, so that appending does not change its length."""

    def __init__(self, files: LocalFileSystem, path: str, most: int) -> None:
        self.path = path
        self._files = files
        self._most = most
        self._room = 0
        self._count = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        """Of entries that are not durable."""
        self._writer: LocalWriter | None = None

    def load(self) -> _FoundSums:
        """What the file says. Raises StateFileError."""
        found = decode_sums(self._files.read_file(self.path) or b"")
        if found is None:
            error = StateFileError(
                self.path, 0, 0, "it is missing or damaged, and tells a torn end of the log from a whole one"
            )
            error.hint = "delete the checkpoint's first line if this member was stopped cleanly; else: " + _CURE
            raise error
        base, sums = found
        begin = sums[0].entry_index if base.end_index == NO_INDEX and sums else base.begin_index
        return _FoundSums(base.end_index, begin, {each.entry_index: each for each in sums})

    def has_room(self, count: int) -> bool:
        return self._count + count <= self._room

    def append(self, sums: Sequence[EntrySum]) -> None:
        """Write them behind the others."""
        assert self._writer is not None
        units = [encode_sum(each) for each in sums]
        self._writer.write(self._count * SUM_SIZE, b"".join(units))
        self._kept.extend((each.entry_index, unit) for each, unit in zip(sums, units, strict=True))
        self._count += len(units)

    def replace(self, base: LogBase, room: int = 0) -> None:
        """A new file with room for so many: what is up to the base is durable. Those of later entries stay. It is durable at once."""
        self.forget(base.end_index)
        units = [unit for _, unit in self._kept]
        self._count = len(units) + 1
        self._room = max(self._most, 2 * self._count + room)
        content = encode_base(base) + b"".join(units)
        self.close()
        self._files.replace(self.path, content.ljust(self._room * SUM_SIZE, b"\0"))
        self._writer = self._files.open_for_writing(self.path)

    def forget(self, durable_index: int) -> None:
        """Entries up to this one are durable."""
        while self._kept and self._kept[0][0] <= durable_index:
            self._kept.popleft()

    def drop(self) -> None:
        """Entries behind the base of the next file are gone."""
        self._kept.clear()

    def sync(self) -> None:
        """Sync what was appended."""
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _head_of(entry: LedgerEntry) -> bytes:
    body = entry.body or b""
    sums = entry.channel, entry.chain_crc, entry.body_crc
    return encode_entry_head(
        EntryHead(entry.magic, entry.size_bytes, entry.index, entry.term, entry.place, *sums, len(body))
    )


def _joined(pieces: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Pieces that touch become one."""
    begin, parts, end = pieces[0][0], list[bytes](), pieces[0][0]
    for place, content in pieces:
        if place != end:
            yield begin, b"".join(parts)
            begin, parts = place, []
        parts.append(content)
        end = place + len(content)
    yield begin, b"".join(parts)
