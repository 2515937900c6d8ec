"""The commit log of a DLedger group: a record becomes the body of an entry, which counts when a majority of the group has it.

    put ─▶ GroupLogWriter: places and stamps ─▶ GroupLog.propose ─▶ a majority has it ─▶ committed_end ─▶ queues, index

A store writes no byte of such a log: its member of the group does. Only the leader's store proposes. Every member's store, the leader's
too, enters records into queues and index up to `committed_end`, and reads them from its own files.

Java: DLedgerCommitLog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from storage.errors import MessageIllegalError, StoreNotWritableError
from storage.format.dledger import ENTRY_HEAD_SIZE
from storage.format.record import BLANK_SIZE
from storage.format.record_block import OwnBlock, RecordRun, stamp, stamp_crcs
from storage.log.writer import AnyLogSync, NextFile, Placement, place


class GroupLog(Protocol):
    """A group's log as the store of one member has it in one role. Its methods are for any thread."""

    @property
    def leads(self) -> bool:
        """Whether the member led the group when the store was opened; else nothing is proposed."""

    @property
    def committed_end(self) -> int:
        """The log offset before which all is committed and stands in this member's files. It never decreases."""

    @property
    def has_own_queues(self) -> bool:
        """Whether the store's queues have committed records only: not where Apache's broker has filled them since."""

    @property
    def is_full(self) -> bool:
        """Whether too much waits for a majority."""

    def refuse(self) -> None:
        """Raises StoreNotWritableError where the member is known to take no proposal now, also where it is full."""

    def propose(self, bodies: Sequence[bytes], place: int) -> None:
        """Append an entry for each body; the first one's head stands at `place`, the log's end. It waits for nothing.

        Raises StoreNotWritableError where the member is known to lead no more; nothing was appended then.
        """

    def wait(self, end: int, seconds: float | None = None) -> bool:
        """Returns True when the log up to `end` is committed, and on this member's disk; False if it is not in so many seconds.

        Raises StoreNotWritableError where that is not known to come: another one may lead, and it is not known what of the log stays.
        OSError if a sync fails.
        """

    def trim(self, minimum: int) -> None:
        """Delete the files before this place; its records are committed. Raises StoreNotWritableError, OSError."""


@dataclass(frozen=True, slots=True)
class GroupSync:
    """What a sync of the log is for a member's store: a majority has everything before `end`, and so has this disk."""

    end: int
    log: GroupLog

    def run(self) -> None:
        """Returns when that is so. Raises what `GroupLog.wait` raises."""
        self.log.wait(self.end)


class GroupLogWriter:
    """Appends to a group's log: in the place of a `CommitLogWriter`, with its methods. Not thread-safe, except for a `GroupSync`."""

    def __init__(self, log: GroupLog, root: str, end: int, file_size_bytes: int) -> None:
        """`end` is the end of the committed log, and of a leader's whole log."""
        self._log = log
        self._root = root
        self.end = end
        self.file_size_bytes = file_size_bytes
        self.synced_end = end
        self.unsynced: set[str] = set()
        """Of the log's files none: the member syncs them."""
        self.held_bytes = 0
        self.wants_next_file = False
        self.pool: Any = None
        """Not used, as in Java: transientStorePoolEnable has no effect."""
        self.warms: Any = None
        """Not used: warmMapedFileEnable has no effect."""

    @property
    def written_end(self) -> int:
        """What can be read: committed records."""
        return min(self.end, self._log.committed_end)

    def append(
        self, run: RecordRun, next_queue_offsets: np.ndarray, store_time_ms: int, *, hold: bool = False
    ) -> Placement:
        """Propose all records of a run. `next_queue_offsets` has the next offset of each of the run's queues.

        Raises MessageIllegalError for a record that fits into no file, StoreNotWritableError.
        """
        columns, size = run.columns, self.file_size_bytes
        sizes = columns.sizes_bytes.astype(np.int64)
        file_end = (self.end // size + 1) * size
        entries = place(
            sizes + ENTRY_HEAD_SIZE, columns.queue_codes, next_queue_offsets, self.end, file_end, size
        )  # an entry leaves as much room for a filler as a record does
        placement = entries._replace(commitlog_offsets=entries.commitlog_offsets + ENTRY_HEAD_SIZE)
        if not columns.is_queued:
            placement = placement._replace(queue_offsets=np.zeros(columns.row_count, np.int64))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if isinstance(run, OwnBlock):
            data = run.data
        else:
            data = np.empty(int(ends[-1]), np.uint8)
            run.read(0, len(data), data)
        stamp(data, starts, placement.queue_offsets, placement.commitlog_offsets, store_time_ms, columns.host_size)
        if columns.has_crc:
            stamp_crcs(data, starts, sizes)
        whole = data.tobytes()
        bodies = [whole[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._log.propose(bodies, int(entries.commitlog_offsets[0]))
        self.end = placement.end
        return placement

    def follow(self, end: int) -> None:
        """The committed log ends there now; for the store of a member that proposes nothing."""
        self.end = max(self.end, end)

    def reserve(self, size_bytes: int, largest_bytes: int) -> None:
        """Refuse what the member would refuse later, when queue offsets are counted. The member makes its files.

        Raises StoreNotWritableError; MessageIllegalError for a record that fits into no file.
        """
        self._log.refuse()
        limit = self.file_size_bytes - ENTRY_HEAD_SIZE - BLANK_SIZE
        if largest_bytes > limit:
            raise MessageIllegalError("record", limit, largest_bytes)

    def write_held(self) -> None:
        """Nothing is held."""

    def begin_sync(self) -> GroupSync:
        """Of everything appended so far, by a member that leads; else of what is committed. End it with `end_sync`."""
        return GroupSync(self.end if self._log.leads else self.written_end, self._log)

    def end_sync(self, sync: AnyLogSync, *, is_done: bool) -> None:
        """Record a sync's result."""
        if is_done:
            self.synced_end = max(self.synced_end, sync.end)

    def next_file(self) -> NextFile | None:
        """None: the member makes its files."""
        return None

    def drop_next_file(self) -> None:
        """Nothing."""

    def reserve_raw(self, commitlog_offset: int, size_bytes: int) -> None:
        """Raises StoreNotWritableError: no other store's log is appended to a group's."""
        raise StoreNotWritableError(self._root, "its log is a DLedger group's, whose members have it from their leader")

    def append_raw(self, commitlog_offset: int, data: bytes | memoryview) -> None:
        """Like `reserve_raw`."""
        self.reserve_raw(commitlog_offset, len(data))

    def cut_raw(self, end: int) -> None:
        """Like `reserve_raw`."""
        self.reserve_raw(end, 0)

    def close(self) -> None:
        """Nothing is open."""

    def release_memory(self) -> None:
        """Nothing."""
