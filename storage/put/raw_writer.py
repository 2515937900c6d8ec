"""The half of a `StoreWriter` that appends what another store has written: bytes as they come, then the records among them.

Of a log that must be confirmed (`confirmed.py`), records wait here until they are, those too that an opening has found so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from storage.derived.writer import AppendedRun, DerivedWriter
from storage.ends.store_ends import StoreEnds
from storage.log.commit_log import CommitLog
from storage.log.dispatch import DISPATCHED, DispatchBatch, dispatch
from storage.log.writer import CommitLogWriter
from storage.put.confirmed import Confirmed
from storage.put.raw_records import RawRecords
from storage.put.settings import PutSettings

INDEX_LEASE_MS = 1_000
"""How far ahead of the records the checkpoint's index time may run."""


class HeldRecords(NamedTuple):
    """Records that are in no queue yet, and where in the log they end."""

    end: int
    batch: DispatchBatch
    is_counted: bool


class RawWriter(ABC):
    """Not thread-safe. After an error half-way it takes nothing more, as the writer of which it is a half."""

    ends: StoreEnds
    log: CommitLog
    derived: DerivedWriter
    dispatched_end: int
    confirmed: Confirmed | None
    """Up to where others have the log; None = nobody must."""
    _held: deque[HeldRecords]
    _undispatched: deque[AppendedRun]
    _log_writer: CommitLogWriter
    _written_ms: int
    _dispatched_ms: int

    @property
    @abstractmethod
    def settings(self) -> PutSettings: ...

    @abstractmethod
    def fail(self, error: BaseException) -> None: ...

    @abstractmethod
    def _refuse_after_failure(self) -> None: ...

    @abstractmethod
    def _claim_index_time(self, store_time_ms: int, lease_ms: int) -> None: ...

    @abstractmethod
    def _sync_records(self) -> None: ...

    def append_raw(self, commitlog_offset: int, data: bytes | memoryview) -> None:
        """Bytes that follow all that the log has, within one file; `enter_raw` makes records of them.

        Raises StoreNotWritableError where there is no room, with nothing written: then it may be called again. OSError.
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
        """Whole records of what was appended raw: on the disk under SYNC_FLUSH, in queues and index, readable.

        Of a log that must be confirmed those that are; the others as soon as they are.
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
        """What the log has from that place on waits to be confirmed."""
        for offsets, records in self.log.walk(start, check_crc=False, wanted=DISPATCHED, limit=self.ends.log_end):
            batch = dispatch(offsets, records, delays_ms)
            self.derived.count(batch)
            self._held.append(_held(batch, is_counted=True))

    def _enter_held(self, end: int) -> None:
        """Those that end there, or before."""
        while self._held and self._held[0].end <= end:
            held = self._held.popleft()
            self._claim_index_time(int(held.batch.store_times_ms.max()), INDEX_LEASE_MS)
            self.derived.enter_records(held.batch, is_counted=held.is_counted)
            self._dispatched_ms = max(self._dispatched_ms, int(held.batch.store_times_ms[-1]))
            self.dispatched_end = held.end
        if not self._held and not self._undispatched and end >= self.ends.log_end:  # also a filler
            self.dispatched_end = self.ends.log_end
        self.derived.publish()

    def cut_raw(self, end: int) -> None:
        """What was appended raw behind a place, where no whole record stands, goes. Raises OSError."""
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


def _held(batch: DispatchBatch, *, is_counted: bool) -> HeldRecords:
    return HeldRecords(int(batch.commitlog_offsets[-1] + batch.sizes_bytes[-1]), batch, is_counted)
