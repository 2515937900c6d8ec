"""Syncs of what is still being written, in another thread: the sync at the end finds little left, and nobody waits for the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from storage.files.local_files import LocalWriter

EARLY_BYTES = 32 << 20
"""After so many more bytes, if no sync is running; what is shorter is synced once."""


class EarlySync:
    """Syncs one after the other, in another thread. Not thread-safe. `wait`, then `end` come last."""

    def __init__(self, begin: Callable[[], Callable[[], None]], end: Callable[[BaseException | None], None]) -> None:
        """`begin` looks at what is to be synced and gives what does it, for the other thread; `end` is told how that ended."""
        self._begin = begin
        self._end = end
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._unsynced_bytes = 0

    def note(self, size_bytes: int) -> None:
        """So many bytes more have been written. Raises what `end` does."""
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= EARLY_BYTES and (self._running is None or self._running.done()):
            self.end()
            self._running = self._started(self._begin())
            self._unsynced_bytes = 0

    def _started(self, sync: Callable[[], None]) -> Future[None]:
        """The sync in the other thread; done already, by this one, where no thread is to be had."""
        thread = self._thread or ThreadPoolExecutor(1)
        try:
            running = thread.submit(sync)
        except RuntimeError:
            running = Future()
            try:
                sync()
            except BaseException as error:
                running.set_exception(error)
            else:
                running.set_result(None)
        else:
            self._thread = thread
        return running

    def wait(self) -> None:
        """Returns when none is running."""
        if self._thread is not None:
            self._thread.shutdown()

    def end(self) -> None:
        """Returns when none is running, and `end` has been told of the last. Raises what `end` does."""
        if self._running is not None:
            running, self._running = self._running, None
            self._end(running.exception())


class EarlyFileSync:
    """The syncs of one file. `finish` or `give_up` comes last."""

    def __init__(self, file: LocalWriter) -> None:
        self._file = file
        self._failure: BaseException | None = None
        self._early = EarlySync(lambda: file.sync, self._end)

    def note(self, size_bytes: int) -> None:
        """So many bytes more have been written."""
        self._early.note(size_bytes)

    def finish(self) -> None:
        """Returns when all that was written is on the disk. Raises OSError where any sync has failed."""
        self.give_up()
        if self._failure is not None:  # a system tells of it once; the next sync would say that all is well
            raise self._failure
        self._file.sync()

    def give_up(self) -> None:
        """Returns when nobody syncs the file any more."""
        self._early.wait()
        self._early.end()

    def _end(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
