"""A log as its master sends it: where it begins and ends, where a frame is to end, and its bytes.

Has files of its own, so that no put waits for it; for one thread. Java: DefaultMessageStore.getCommitLogData.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage.errors import OffsetOutOfRangeError
from storage.format.replication import EpochEntry
from storage.ha.master_session import MOST_SENT_BYTES
from storage.log.commit_log import CommitLog

_NOTHING = np.empty(0, np.int64)


class LogReader:
    """What may be sent of a log that grows: it is an `LogExtent`, as it was when `look` was called last."""

    def __init__(
        self,
        open_log: Callable[[], CommitLog],
        end: Callable[[], int],
        file_size_bytes: int,
        epochs: Callable[[], tuple[EpochEntry, ...]] = tuple,
        confirm_offset: Callable[[], int] | None = None,
    ) -> None:
        """`end` says up to where the log may be sent: the end of a record. `file_size_bytes` of a file that is yet to be made."""
        self._open_log = open_log
        self._end = end
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._file_size_bytes = file_size_bytes
        self.log = open_log()
        self.end = 0
        self.epochs: tuple[EpochEntry, ...] = ()
        self._ends = _NOTHING
        self._ends_from = 0
        self.look()

    def look(self, *, at_files: bool = False) -> None:
        """See how far the log goes now; with `at_files` also where it begins."""
        self.end, self.epochs = self._end(), self._epochs()
        if at_files:
            self.log.list_files()
        else:
            self.log.see(self.end)

    @property
    def confirm_offset(self) -> int:
        return self.end if self._confirm_offset is None else self._confirm_offset()

    @property
    def minimum(self) -> int:
        return self.log.minimum

    @property
    def last_file_start(self) -> int:
        return self._file_end(max(self.minimum, self.end)) - self._size

    @property
    def _size(self) -> int:
        return self.log.file_size_bytes or self._file_size_bytes

    def _file_end(self, place: int) -> int:
        return self.log.file_end(place, self._size)

    def cut(self, start: int, most_bytes: int) -> int:
        """As `LogExtent.cut`: records of more than `most_bytes` have a frame of their own, of more than a frame holds several."""
        stop = min(self.end, self._file_end(start))
        if stop - start <= most_bytes:
            return stop
        if not len(self._ends) or not self._ends_from <= start < self._ends[-1]:
            self._ends, self._ends_from = self._record_ends(start, stop), start
        number = int(np.searchsorted(self._ends, start + most_bytes, side="right"))
        if number and self._ends[number - 1] > start:
            return int(self._ends[number - 1])
        following = self._ends[number : number + 1]
        if len(following) and start < following[0] <= start + MOST_SENT_BYTES:
            return int(following[0])
        return min(stop, start + (MOST_SENT_BYTES if len(following) else most_bytes))

    def _record_ends(self, start: int, stop: int) -> np.ndarray:
        """Where the records end that follow `start`, some of them; nothing where none begins there, or none any more."""
        if self.log.file_index(start) < 0:
            return _NOTHING
        for offsets, records in self.log.walk(start, check_crc=False, limit=stop):
            return np.asarray(offsets + records.column("size_bytes"))
        return _NOTHING

    def view(self, start: int, size_bytes: int) -> memoryview:
        """Bytes of one file of the log. Raises OffsetOutOfRangeError if they have expired."""
        number = self.log.file_index(start)
        file = self.log.files[number] if number >= 0 else None
        if file is None or start + size_bytes > file.end:
            raise OffsetOutOfRangeError("commit log", None, self.minimum, self.end, start)
        return self.log.open_file(file).view(start - file.start, size_bytes).data

    def is_boundary(self, place: int) -> bool:
        """Whether a record begins, or a file, at a place of the log; walks from its file's start. For any thread."""
        log = self._open_log()
        try:
            number = log.file_index(place)
            if number < 0:
                return False
            start = log.files[number].start
            if place == start:
                return True
            walk = log.walk(start, check_crc=False, limit=place)
            for _ in walk:
                pass
            return walk.end == place
        finally:
            log.close()

    def close(self) -> None:
        self.log.close()
