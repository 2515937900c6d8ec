"""Under SYNC_FLUSH, the log of a long batch: another thread brings it to the disk while more is appended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from storage.files.early_sync import EarlySync
from storage.log.writer import RunningSync
from storage.put.store_writer import StoreWriter


class EarlyLogSync:
    """A context manager, at whose end no sync is running. It dispatches nothing, and leaves what was appended last to the writer."""

    def __init__(self, writer: StoreWriter, turn: Callable[[], AbstractContextManager[object]]) -> None:
        """`turn` takes the put lock."""
        self._writer = writer
        self._turn = turn
        self._early = EarlySync(self._begin, self._end)
        self._sync: RunningSync | None = None

    def note(self, size_bytes: int) -> None:
        """So many bytes more have been appended. Under the put lock. Raises OSError where a sync has failed."""
        if self._writer.settings.sync_flush:
            self._early.note(size_bytes)

    def _begin(self) -> Callable[[], None]:
        self._sync = self._writer.begin_log_sync()
        return self._sync.log.run

    def _end(self, error: BaseException | None) -> None:
        assert self._sync is not None
        self._writer.end_log_sync(self._sync, error)
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._early.wait()
        if self._sync is not None:
            with self._turn():
                self._early.end()
