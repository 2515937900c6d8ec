"""What an appended put waits for before it is acknowledged: its disk, and its copies. Java: CommitLog.handleDiskFlushAndHA."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from storage.put_status import PutStatus
from storage.service.replica_acks import CopiesWanted


class Promise(NamedTuple):
    """None = it does not wait for that."""

    flush: Future[None] | None
    """Its log's sync."""
    copies: CopiesWanted | None
    """Replicas."""
    made_s: float
    """When it was appended, and both times began."""

    def outcome(self, root: str, flush_timeout_ms: int, slave_timeout_ms: int) -> PutStatus:
        """How it ended; what came of the replicas counts more than what came of the disk, as in Java.

        Raises OSError where the sync failed: nobody knows what the disk holds.
        """
        status = PutStatus.PUT_OK
        if self.flush is not None:
            try:
                error = self.flush.exception(self._left_ms(flush_timeout_ms) / 1_000)
            except TimeoutError:
                status = PutStatus.FLUSH_DISK_TIMEOUT
            else:
                if error is not None:
                    raise OSError(errno.EIO, f"the log was not synced ({error})", root) from error
        if self.copies is not None:
            copied = self.copies.wait(self._left_ms(slave_timeout_ms))
            status = status if copied is PutStatus.PUT_OK else copied
        return status

    def when_settled(self, call: Callable[[], None], flush_timeout_ms: int, slave_timeout_ms: int) -> float | None:
        """The first thing that `outcome` would wait for now: as `Settling`."""
        copied = None if self.copies is None else self.copies.done
        for future, timeout_ms in ((self.flush, flush_timeout_ms), (copied, slave_timeout_ms)):
            left_ms = self._left_ms(timeout_ms)
            if future is not None and left_ms and not future.done():
                future.add_done_callback(lambda _: call())
                return left_ms / 1_000
        return None

    def _left_ms(self, timeout_ms: int) -> int:
        gone_ms = round((time.monotonic() - self.made_s) * 1_000)
        return max(timeout_ms - gone_ms, 0)


NOTHING = Promise(None, None, 0.0)


def promise_of(flush: Future[None] | None, copies: CopiesWanted | None) -> Promise:
    """What a put that was appended now waits for."""
    return NOTHING if flush is None and copies is None else Promise(flush, copies, time.monotonic())
