"""The growing end of a log that another process writes: how far it is validated, and which queues still lack entries.

A broker puts the record first and its queue entry a moment later; a broker that recovers may cut the log below an end that
we have seen. Both are noticed here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.errors import StorageError
from storage.format.record_batch import Records
from storage.format.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.log.commit_log import CommitLog


class RecordIdentity(NamedTuple):
    """A record that was seen: another one at its place means that the log was cut."""

    commitlog_offset: int
    store_time_ms: int


class LogTail:
    """The validated end of a log, moved on by `advance`."""

    def __init__(
        self, log: CommitLog, dispatched_end: int, end: int, last: RecordIdentity | None, *, check_crc: bool
    ) -> None:
        """`end` is the validated end, `last` the record before it; records from `dispatched_end` on may lack queue entries."""
        self.end = max(dispatched_end, log.minimum)
        self.pending: dict[tuple[str, int], int] = {}
        """Queues whose entries were not seen yet: (topic, queue id) → place of their last record in the log."""
        self._log = log
        self._last = last
        self._check_crc = False  # up to `end` it was checked
        if end > self.end:
            self.advance()
        self.end = end
        self._check_crc = check_crc

    @property
    def last_record(self) -> RecordIdentity | None:
        """The last record that was seen; None where none was."""
        return self._last

    def advance(self) -> bool:
        """Validate what was appended since; returns whether anything was."""
        before = self.end
        walk = self._log.walk(max(self.end, self._log.minimum), check_crc=self._check_crc)
        for offsets, records in walk:
            self.pending.update(last_records(offsets, records))
            self._last = RecordIdentity(int(offsets[-1]), int(records.column("store_time_ms")[-1]))
        self.end = max(self.end, walk.end)
        return self.end > before

    def was_cut(self) -> bool:
        """Whether the last record seen is no longer what stands at its place, though its file is there."""
        if self._last is None or self._last.commitlog_offset < self._log.minimum:
            return False
        try:
            message = self._log.message_at(self._last.commitlog_offset, self.end)
        except StorageError:
            return True
        return message.store_time_ms != self._last.store_time_ms


def last_records(offsets: np.ndarray, records: Records) -> dict[tuple[str, int], int]:
    """For each queue that whole records belong to, the place of its last one; records without queue entry left out."""
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
