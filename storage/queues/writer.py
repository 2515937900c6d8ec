"""Writing consume queues: append entries at their queue offsets, cut and zero dirty ones. Java: ConsumeQueue.putMessagePositionInfo,
truncateDirtyLogicFiles.

No checksum covers a record's queue offset, so `put_in_order` first compares those of neighbours. A queue's records follow each other in
the log, each numbered one more than the last. If one record breaks the sequence and the next one continues it, the number in between
is wrong, and the right one is known:

    97  98  16483  100  101        the third is 99: one bit of it was flipped
    97  98  0  1  2                the topic was deleted and made again
    97  98  4711  4712             messages are missing: their log file is gone

Java never compares them: it enters a record at the queue's end, whatever the record says, and skips one whose number the
queue has (ConsumeQueue.putMessagePositionInfo).
"""

from __future__ import annotations

import posixpath
from itertools import pairwise
from operator import lt
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import is_few
from storage.format.consume_queue import (
    ENTRY,
    ENTRY_SIZE,
    PRE_BLANK,
    hole_filler,
    is_entry,
    is_ext_address,
    may_be_torn,
)
from storage.log.dispatch import QueueEntries
from storage.log.flush import is_worth_it
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExtWriter


class Misnumbered(NamedTuple):
    """A record whose own queue offset (`stated`) differs from the one that its neighbours show."""

    topic: str
    queue_id: int
    queue_offset: int
    stated: int
    commitlog_offset: int

    def __str__(self) -> str:
        return (
            f"{self.topic} queue {self.queue_id} offset {self.queue_offset}: the record at {self.commitlog_offset} of "
            f"the log says that its queue offset is {self.stated}"
        )


class Renumbered(NamedTuple):
    """Records of one queue with their right queue offsets."""

    rows: QueueEntries
    held: QueueEntries | None
    """A last record that breaks the sequence: the next one shows what that means."""
    misnumbered: tuple[Misnumbered, ...]


def put_in_order(rows: QueueEntries, previous: int | None, *, is_all: bool = False) -> Renumbered:
    """Records of one queue in log order, with wrong queue offsets corrected.

    `previous` is the queue offset before the first of them: −1 for a queue's first message, None if unknown.
    `is_all` = no record follows, so none is held.
    """
    stated = rows.queue_offsets.astype(np.int64)
    if not len(stated):
        return Renumbered(rows, None, ())
    offsets = stated.copy()
    before = np.concatenate(([stated[0] - 1 if previous is None else previous], stated[:-1]))
    for row in np.flatnonzero(stated[:-1] != before[:-1] + 1).tolist():
        last = int(offsets[row - 1]) if row else int(before[0])
        if offsets[row] != last + 1 and stated[row + 1] == last + 2:
            offsets[row] = last + 1
    wrong = np.flatnonzero(offsets != stated)
    places = rows.entries["commitlog_offset"]
    misnumbered = tuple(
        Misnumbered(rows.topic, rows.queue_id, int(offsets[row]), int(stated[row]), int(places[row]))
        for row in wrong.tolist()
    )
    rows = rows._replace(queue_offsets=offsets) if len(wrong) else rows
    last = int(offsets[-2]) if len(offsets) > 1 else int(before[0])
    if is_all or offsets[-1] == last + 1:
        return Renumbered(rows, None, misnumbered)
    is_last = np.arange(len(offsets)) == len(offsets) - 1
    return Renumbered(rows.rows(~is_last), rows.rows(is_last), misnumbered)


def joined(first: QueueEntries | None, second: QueueEntries) -> QueueEntries:
    """Records of one queue, concatenated."""
    if first is None:
        return second
    return QueueEntries(
        second.topic,
        second.queue_id,
        np.concatenate((first.queue_offsets, second.queue_offsets)),
        np.concatenate((first.entries, second.entries)).astype(ENTRY),
        np.concatenate((first.store_times_ms, second.store_times_ms)),
    )


MAX_HOLE_ENTRIES = 10_000_000  # a queue offset further ahead is a wrong number, not a gap of lost messages


class ConsumeQueueWriter:
    """Appends to one queue. `end` is the next queue offset, `greatest_end` the log offset where the last entry's record ends."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queue: ConsumeQueue,
        end: int,
        file_size_bytes: int,
        *,
        rebuilt: bool = False,
        ext: ConsumeQueueExtWriter | None = None,
    ) -> None:
        """With `ext` each new entry gets an extension unit, and its address in place of the tags code."""
        self._file_system = file_system
        self.queue = queue
        self.end = end
        self.greatest_end = queue.greatest_end(end)
        self._file_size_bytes = file_size_bytes
        self._rebuilt = rebuilt
        self._ext = ext
        self.appended = 0
        self.cut_count = 0
        """How often the queue was cut."""
        self.holes: list[tuple[int, int]] = []
        self.paths: set[str] = set() if ext is None else ext.paths
        """Files with unsynced data, including extension files."""
        self.synced_end = end
        """Queue offset up to which entries are known to be on the disk."""
        self._has_new_file = False

    @property
    def has_new_file(self) -> bool:
        """Whether the directories of a new file are not synced."""
        return self._has_new_file or (self._ext is not None and self._ext.has_new_file)

    def directories(self) -> set[str]:
        """Directories with the files' names, up to the one of all queues; for extension files up to ROOT."""
        topic = posixpath.dirname(self.queue.directory)
        found = {self.queue.directory, topic, posixpath.dirname(topic)}
        if self._ext is not None and self._ext.has_files:
            topic = posixpath.dirname(self._ext.directory)
            of_ext = posixpath.dirname(topic)
            found |= {self._ext.directory, topic, of_ext, posixpath.dirname(of_ext)}
        return found

    def open_paths(self) -> frozenset[str]:
        """The files that still grow: the last one of the queue, and that of its extension."""
        paths = {self.queue.path_of(start) for start in self.queue.file_starts[-1:]}
        if self._ext is not None and (last := self._ext.last_path) is not None:
            paths.add(last)
        return frozenset(paths)

    def note_synced(self, paths: frozenset[str], end: int) -> None:
        """Record that these files are on the disk as they were when the queue ended at `end`."""
        self.paths -= paths
        self.synced_end = max(self.synced_end, min(end, self.end))
        if self.end > end:  # files that filled up meanwhile are synced already
            self.paths |= self.open_paths()

    def note_directories_synced(self) -> None:
        self._has_new_file = False
        if self._ext is not None:
            self._ext.has_new_file = False

    def append(self, new: QueueEntries) -> None:
        """Enter records in log order; those already entered are skipped, as in Java.

        In a queue that is rebuilt from nothing, an offset that goes back replaces the entries from there on: the topic was deleted and
        made again from 0, or a broker lost the queue's last file and gave its offsets again. Offsets that jump ahead leave a hole,
        filled (`hole_filler`) so that every later message is at its own offset.
        """
        if self._follows(new):
            self._append(new)
            return
        fresh = new.entries["commitlog_offset"] + new.entries["size_bytes"] > self.greatest_end
        if not fresh.all():
            new = new.rows(fresh)
        offsets = new.queue_offsets
        if not self._rebuilt:
            ahead = np.maximum.accumulate(np.concatenate(([self.end - 1], offsets)))[:-1] < offsets
            self._append(new if ahead.all() else new.rows(ahead))
            return
        back = np.flatnonzero(np.diff(offsets, prepend=self.end - 1 if len(offsets) else 0) <= 0)
        for start, end in pairwise([0, *back.tolist(), len(offsets)]):
            if start < end:
                if offsets[start] < self.end:
                    self.truncate(int(offsets[start]))
                self._append(new.rows(slice(start, end)))

    def _follows(self, new: QueueEntries) -> bool:
        """The usual case: few records that directly continue the queue, from log places after all that it has."""
        count = len(new.queue_offsets)
        if not count or not is_few(count) or new.queue_offsets.tolist() != list(range(self.end, self.end + count)):
            return False
        places = new.entries["commitlog_offset"].tolist()
        return places[0] >= self.greatest_end and all(map(lt, places, places[1:]))

    def _append(self, new: QueueEntries) -> None:
        """Enter records with ascending offsets, from the queue's end on."""
        offsets, entries = new.queue_offsets, new.entries
        if not len(offsets):
            return
        first, last = int(offsets[0]), int(offsets[-1])
        if self.queue.file_starts and last - self.end > len(offsets) + MAX_HOLE_ENTRIES:
            raise CorruptRecordError("queue offset", int(entries["commitlog_offset"][-1]), f"about {self.end}", last)
        if self._ext is not None:
            entries = entries.copy()
            entries["tags_code"] = self._ext.put(self.queue, self.end, new)
        has_files = bool(self.queue.file_starts)
        start = min(first, self.end if has_files else self._first_offset_of_file(first))
        if last + 1 - start == len(offsets):
            self._write_entries(start, entries, entries)
            return
        block = np.full(last + 1 - start, PRE_BLANK, ENTRY)
        holes = [(self.end, first)] if first > self.end and (has_files or self.end) else []
        gaps = np.flatnonzero(np.diff(offsets) > 1) if last + 1 - first > len(offsets) else ()
        holes += [(int(offsets[gap]) + 1, int(offsets[gap + 1])) for gap in gaps]
        for begin, end in holes:
            block[max(0, begin - start) : end - start] = hole_filler(begin)
        block[offsets - start] = entries
        self.holes += holes
        self._write_entries(start, block, entries)

    def _write_entries(self, start: int, block: np.ndarray, entries: np.ndarray) -> None:
        """Write a block of entries, and fillers between them, after the queue's end."""
        self._write(start, block)
        self.end = start + len(block)
        self.greatest_end = int(entries["commitlog_offset"][-1] + entries["size_bytes"][-1])
        self.appended += len(entries)

    def mend_last(self, new: QueueEntries) -> None:
        """Rewrite the queue's last entry if it belongs to one of these records and a crash took its tags code."""
        rows = np.flatnonzero(new.entries["commitlog_offset"] + new.entries["size_bytes"] == self.greatest_end)
        if len(rows) != 1 or new.queue_offsets[rows[0]] != self.end - 1:
            return
        there, whole = self.queue.entries(self.end - 1, self.end)["tags_code"], new.entries["tags_code"][rows]
        if may_be_torn(there)[0] and there[0] != whole[0]:
            self.rewrite(self.end - 1, new.entries[rows])

    def end_of_sound_units(self, records: QueueEntries) -> int:
        """The queue offset of the first of these records' entries with another record's unit, or without one; else `end`.

        A power loss can leave an entry without its unit, or with a part of it. Entries that hold a tags code are sound.
        """
        offsets = records.queue_offsets.astype(np.int64)
        rows = np.flatnonzero((offsets >= self.queue.first_file_offset) & (offsets < self.end))
        if self._ext is None or not len(rows):
            return self.end
        offsets = offsets[rows]
        first = int(offsets.min())
        there = self.queue.entries(first, int(offsets.max()) + 1)[offsets - first]
        is_own = there["commitlog_offset"] == records.entries["commitlog_offset"][rows]
        named = np.flatnonzero(is_own & is_ext_address(there["tags_code"]))
        is_wrong = ~self._ext.are_units_of(records.rows(rows[named]), there["tags_code"][named].astype(np.int64))
        return int(offsets[named[is_wrong]].min()) if is_wrong.any() else self.end

    def set_tags_code(self, queue_offset: int, there: int, tags_code: int) -> None:
        """Correct the tags code of the entry at a queue offset, now `there`; if it names a unit, the unit's code."""
        if self._ext is None or not self._ext.set_tags_code(there, tags_code):
            entry = self.queue.entries(queue_offset, queue_offset + 1).copy()
            entry["tags_code"] = tags_code
            self.rewrite(queue_offset, entry)

    def rewrite(self, queue_offset: int, entries: np.ndarray) -> None:
        """Replace the entries at queue offsets before `end`."""
        self._write(queue_offset, entries)

    def _first_offset_of_file(self, queue_offset: int) -> int:
        per_file = self._file_size_bytes // ENTRY_SIZE
        return queue_offset // per_file * per_file

    def _write(self, first: int, block: np.ndarray) -> None:
        position, data = first * ENTRY_SIZE, block.view(np.uint8)
        while len(data):
            start = position // self._file_size_bytes * self._file_size_bytes
            path = self.queue.path_of(start)
            if start not in self.queue.file_starts:
                self._keep_file(start - self._file_size_bytes)
                self._file_system.create_file(path, self._file_size_bytes)
                reach("queue-file-made")
                self._has_new_file = True
                self.queue.list_files()
            part = data[: start + self._file_size_bytes - position]
            self._file_system.write(path, position - start, part)
            self.paths.add(path)
            position, data = position + len(part), data[len(part) :]

    def _keep_file(self, start: int) -> None:
        """Sync a full file before the next one is made: a power loss then affects only a queue's last file."""
        if start in self.queue.file_starts:
            path = self.queue.path_of(start)
            self._file_system.sync(path)
            self._file_system.sync(self.queue.directory)
            self.paths.discard(path)

    def is_worth_syncing(self, least_pages: int) -> bool:
        """Whether the file where unsynced entries begin is full, or has so many pages of them. Java: ConsumeQueue.flush."""
        done, until = self.synced_end * ENTRY_SIZE, self.end * ENTRY_SIZE
        start = done // self._file_size_bytes * self._file_size_bytes
        return is_worth_it(done, until, least_pages, start, self._file_size_bytes)

    def truncate(self, end: int) -> int:
        """Cut the queue at a queue offset: delete later files, zero the rest of its file. Returns entries cut."""
        cut = 0
        self.queue.close()
        for start in reversed(self.queue.file_starts):
            path, position = self.queue.path_of(start), max(0, end * ENTRY_SIZE - start)
            if position >= self._file_size_bytes:
                break
            first = max(end, start // ENTRY_SIZE)
            cut += int(
                np.count_nonzero(is_entry(self.queue.entries(first, (start + self._file_size_bytes) // ENTRY_SIZE)))
            )
            self.queue.close()
            if position == 0:
                self._file_system.unlink(path)
            else:
                self._file_system.zero(path, position, self._file_size_bytes - position)
                self.paths.add(path)
        self.queue.list_files()
        self.cut_count += 1
        self.end = min(self.end, end)
        self.holes = [(begin, min(stop, end)) for begin, stop in self.holes if begin < end]
        self.synced_end = min(self.synced_end, end)
        self.greatest_end = self.queue.greatest_end(self.end)
        if self._ext is not None:
            self._ext.settle(self.queue, self.end)
        return cut

    def sync(self) -> None:
        """Sync everything written, including the directory entries of new files."""
        for path in sorted(self.paths):
            self._file_system.sync(path)
        if self.paths:
            for directory in sorted(self.directories(), reverse=True):
                self._file_system.sync(directory)
        self.paths.clear()
