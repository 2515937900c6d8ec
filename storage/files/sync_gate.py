"""Syncs of the same files, asked for by several threads: one at a time, and none after one that failed.

The kernel reports a write that failed to one sync of a descriptor only (fsync(2)); another one beside it, or behind it, is told that
all is well. So whoever comes through after a failure hears of that failure.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable


class SyncGate:
    """Through which the syncs of one writer go. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, sync: Callable[[], None]) -> None:
        """Raises what `sync` raises, and OSError (EIO) for all that come after."""
        with self._lock:
            if self._failure is not None:
                raise OSError(errno.EIO, f"an earlier sync failed ({self._failure})") from self._failure
            try:
                sync()
            except BaseException as error:
                self._failure = error
                raise
