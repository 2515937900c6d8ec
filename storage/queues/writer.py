"""Writing consume queues: append entries at their queue offsets, cut and zero what is dirty. Java: ConsumeQueue.putMessagePositionInfo,
truncateDirtyLogicFiles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from storage.errors import CorruptRecordError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, PRE_BLANK, hole_filler, is_entry, may_be_torn
from storage.log.dispatch import QueueEntries
from storage.log.flush import is_worth_it
from storage.queues.consume_queue import ConsumeQueue

MAX_HOLE_ENTRIES = 10_000_000  # a queue offset further ahead is not a lost stretch but a wrong number


class ConsumeQueueWriter:
    """Appends to one queue. `end` is the next queue offset, `greatest_end` where in the log the last entry's record ends."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queue: ConsumeQueue,
        end: int,
        file_size_bytes: int,
        *,
        rebuilt: bool = False,
    ) -> None:
        self._file_system = file_system
        self.queue = queue
        self.end = end
        self.greatest_end = queue.greatest_end(end)
        self._file_size_bytes = file_size_bytes
        self._rebuilt = rebuilt
        self.appended = 0
        self.holes: list[tuple[int, int]] = []
        self.paths: set[str] = set()
        """Files that hold what is not synced."""
        self.synced_end = end
        """Up to which queue offset entries are known to be on the disk."""
        self.has_new_file = False
        """Whether the directories that lead to a new file are not synced."""

    def append(self, new: QueueEntries) -> None:
        """Enter records in log order; those that are in already are passed over, as Java does.

        In a queue that is being rebuilt from nothing, an offset that goes back takes the place of what was entered there and
        behind: the topic was deleted and made again, from 0 on, or a broker lost the queue's last file and gave its offsets
        again. Offsets that go forward by more than one leave a hole, filled (`hole_filler`) so that every later message lies
        at its own offset.
        """
        fresh = new.entries["commitlog_offset"] + new.entries["size_bytes"] > self.greatest_end
        offsets, entries = new.queue_offsets[fresh], new.entries[fresh]
        if not self._rebuilt:
            ahead = np.maximum.accumulate(np.concatenate(([self.end - 1], offsets)))[:-1] < offsets
            self._append(offsets[ahead], entries[ahead])
            return
        back = np.flatnonzero(np.diff(offsets, prepend=self.end - 1 if len(offsets) else 0) <= 0)
        for start, end in pairwise([0, *back.tolist(), len(offsets)]):
            if start < end:
                if offsets[start] < self.end:
                    self.truncate(int(offsets[start]))
                self._append(offsets[start:end], entries[start:end])

    def _append(self, offsets: np.ndarray, entries: np.ndarray) -> None:
        """Enter records whose offsets ascend, from the queue's end on."""
        if not len(offsets):
            return
        first, last = int(offsets[0]), int(offsets[-1])
        if self.queue.file_starts and last - self.end > len(offsets) + MAX_HOLE_ENTRIES:
            raise CorruptRecordError("queue offset", int(entries["commitlog_offset"][-1]), f"about {self.end}", last)
        is_begun = bool(self.queue.file_starts)
        start = min(first, self.end if is_begun else self._first_offset_of_file(first))
        block = np.full(last + 1 - start, PRE_BLANK, ENTRY)
        holes = [(self.end, first)] if first > self.end and (is_begun or self.end) else []
        gaps = np.flatnonzero(np.diff(offsets) > 1) if last + 1 - first > len(offsets) else ()
        holes += [(int(offsets[gap]) + 1, int(offsets[gap + 1])) for gap in gaps]
        for begin, end in holes:
            block[max(0, begin - start) : end - start] = hole_filler(begin)
        block[offsets - start] = entries
        self.holes += holes
        self._write(start, block)
        self.end, self.greatest_end = last + 1, int(entries["commitlog_offset"][-1] + entries["size_bytes"][-1])
        self.appended += len(entries)

    def mend_last(self, new: QueueEntries) -> None:
        """Write the queue's last entry again, if it is that of one of these records and a crash has left its tags code out."""
        rows = np.flatnonzero(new.entries["commitlog_offset"] + new.entries["size_bytes"] == self.greatest_end)
        if len(rows) != 1 or new.queue_offsets[rows[0]] != self.end - 1:
            return
        there, whole = self.queue.entries(self.end - 1, self.end)["tags_code"], new.entries["tags_code"][rows]
        if may_be_torn(there)[0] and there[0] != whole[0]:
            self.rewrite(self.end - 1, new.entries[rows])

    def rewrite(self, queue_offset: int, entries: np.ndarray) -> None:
        """Put entries in place of those that stand at queue offsets before `end`."""
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
                self.has_new_file = True
                self.queue.list_files()
            part = data[: start + self._file_size_bytes - position]
            self._file_system.write(path, position - start, part)
            self.paths.add(path)
            position, data = position + len(part), data[len(part) :]

    def _keep_file(self, start: int) -> None:
        """Make a full file durable before the next one is made: of a queue, a power loss takes from the last file only."""
        if start in self.queue.file_starts:
            path = self.queue.path_of(start)
            self._file_system.sync(path)
            self._file_system.sync(self.queue.directory)
            self.paths.discard(path)

    def is_worth_syncing(self, least_pages: int) -> bool:
        """Whether the file in which unsynced entries begin is full, or has so many pages of them. Java: ConsumeQueue.flush."""
        done, until = self.synced_end * ENTRY_SIZE, self.end * ENTRY_SIZE
        start = done // self._file_size_bytes * self._file_size_bytes
        return is_worth_it(done, until, least_pages, start, self._file_size_bytes)

    def truncate(self, end: int) -> int:
        """Cut the queue at a queue offset: later files are deleted, the rest of its file zeroed. Returns entries cut."""
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
        self.end = min(self.end, end)
        self.holes = [(begin, min(stop, end)) for begin, stop in self.holes if begin < end]
        self.synced_end = min(self.synced_end, end)
        self.greatest_end = self.queue.greatest_end(self.end)
        return cut

    def sync(self) -> None:
        """Everything written onto the disk, new files' directory entries too."""
        for path in sorted(self.paths):
            self._file_system.sync(path)
        if self.paths:
            self._file_system.sync(self.queue.directory)
        self.paths.clear()
