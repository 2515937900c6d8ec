"""Syncs that fail, syncs of several threads, and early syncs.

After a failed sync the kernel marks the pages clean, though they are not on the disk (fsync(2), EIO): the next sync succeeds and writes
nothing. So recovery, which finds the bytes in the page cache, would serve data and vouch for it, until a power loss removes it.
Therefore a writer whose sync fails notes in ROOT/spark_mq/failed_sync.json which files held unsynced data. The next opening
rewrites their content in place, syncs that, and only then recovers. The note is not synced: it is about the page cache, and lives as
long. If the disk does not even take the note, it goes into a file in memory (`LocalFileSystem.memory_path`).
Java 5.3.3 goes on as if the sync had succeeded (apache/rocketmq#2706, #9713).
"""

from __future__ import annotations

import errno
import json
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem

_CHUNK_BYTES = 1 << 20


def note_failed_sync(file_system: LocalFileSystem, root: str, paths: Iterable[str]) -> None:
    """Note files and directories whose sync failed, in addition to those already noted."""
    noted = set(paths)
    for place in _places(file_system, root):
        with suppress(OSError):
            noted.update(_noted(file_system, place))
    for place in _places(file_system, root):
        with suppress(OSError):
            _note(file_system, place, noted)
            return


def _note(file_system: LocalFileSystem, place: str, paths: set[str]) -> None:
    temporary = f"{place}.tmp"
    if not file_system.exists(posixpath.dirname(place)):
        file_system.make_directories(posixpath.dirname(place))
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    file_system.create_file(temporary, 0)
    file_system.write(temporary, 0, json.dumps({"boot_id": file_system.boot_id(), "paths": sorted(paths)}).encode())
    file_system.rename(temporary, place)


@contextmanager
def noting_failed_syncs(file_system: LocalFileSystem, root: str, paths: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Notes `paths` if an OSError comes out: it may be from a sync."""
    try:
        yield
    except OSError:
        note_failed_sync(file_system, root, paths())
        raise


def write_again(file_system: LocalFileSystem, root: str) -> None:
    """Make the noted files dirty again, and sync them. Changes no byte. Raises OSError; then all stays noted."""
    for place in _places(file_system, root):
        for path in _noted(file_system, place):
            if _is_file(file_system, path):
                _write_again(file_system, path)
            if file_system.exists(path):
                file_system.sync(path)
        if file_system.exists(place):
            file_system.unlink(place)


def try_disk(file_system: LocalFileSystem, root: str, room_bytes: int) -> None:
    """Do what the next opening needs of the disk first: `write_again`, then a new file of that size. Raises OSError.

    The caller has exclusive access to the store, and appends nothing meanwhile.
    """
    write_again(file_system, root)
    tried = f"{root}/spark_mq/tried_disk"
    try:
        file_system.replace(tried, b"\0")
        file_system.reserve(tried, 0, room_bytes)
    finally:
        if file_system.exists(tried):
            file_system.unlink(tried)


def _write_again(file_system: LocalFileSystem, path: str) -> None:
    opened = file_system.open_file(path)
    try:
        for start, stop in opened.data_ranges(0):
            for at in range(start, stop, _CHUNK_BYTES):
                file_system.write(path, at, opened.view(at, min(_CHUNK_BYTES, stop - at)).tobytes())
    finally:
        opened.close()


def _is_file(file_system: LocalFileSystem, path: str) -> bool:
    directory, name = posixpath.split(path)
    return any(entry.name == name and not entry.is_directory for entry in file_system.list_directory(directory))


def _noted(file_system: LocalFileSystem, place: str) -> list[str]:
    """The noted paths, files before their directories; none after a start of the machine, or if the note cannot be read."""
    try:
        document = json.loads(file_system.read_file(place) or b"{}")
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict) or document.get("boot_id") != file_system.boot_id():
        return []
    paths = document.get("paths")
    return sorted(filter(_is_path, paths), reverse=True) if isinstance(paths, list) else []


def _is_path(value: object) -> bool:
    """Whether the system accepts it as a path: a str without NULs and lone surrogates."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _places(file_system: LocalFileSystem, root: str) -> list[str]:
    """Places for notes: the first that accepts one has it."""
    in_memory = file_system.memory_path(root)
    return [f"{root}/spark_mq/failed_sync.json", *([in_memory] if in_memory else [])]


EARLY_BYTES = 32 << 20
"""An early sync starts after so many more bytes, if none is running; a shorter file is synced once."""


class EarlySync:
    """Syncs, one after the other in another thread, of data that is still being written: the final sync finds little left.

    Not thread-safe. Call `wait`, then `end` at last.
    """

    def __init__(self, begin: Callable[[], Callable[[], None]], end: Callable[[BaseException | None], None]) -> None:
        """`begin` collects what to sync and returns the function that syncs it in the other thread; `end` gets that one's error."""
        self._begin = begin
        self._end = end
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._unsynced_bytes = 0

    def note(self, size_bytes: int) -> None:
        """Report that so many more bytes were written. Raises what `end` does."""
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= EARLY_BYTES and (self._running is None or self._running.done()):
            self.end()
            self._running = self._started(self._begin())
            self._unsynced_bytes = 0

    def _started(self, sync: Callable[[], None]) -> Future[None]:
        """Start the sync in the other thread; if no thread can be started, run it in this one."""
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
        """Returns when no sync is running."""
        if self._thread is not None:
            self._thread.shutdown()

    def end(self) -> None:
        """Returns when no sync is running, and `end` has got the result of the last. Raises what `end` does."""
        if self._running is not None:
            running, self._running = self._running, None
            self._end(running.exception())


class EarlyFileSync:
    """The syncs of one file. Call `finish` or `give_up` at last."""

    def __init__(self, file: LocalWriter) -> None:
        self._file = file
        self._failure: BaseException | None = None
        self._early = EarlySync(lambda: file.sync, self._end)

    def note(self, size_bytes: int) -> None:
        """Report that so many more bytes were written."""
        self._early.note(size_bytes)

    def finish(self) -> None:
        """Returns when all written data is on the disk. Raises OSError if any sync has failed."""
        self.give_up()
        if self._failure is not None:  # the system reports it once; the next sync would succeed
            raise self._failure
        self._file.sync()

    def give_up(self) -> None:
        """Returns when no sync of the file is running."""
        self._early.wait()
        self._early.end()

    def _end(self, error: BaseException | None) -> None:
        self._failure = self._failure or error


class SyncGate:
    """The syncs of one writer, requested by several threads: one at a time, and none after one that failed. Thread-safe.

    The kernel reports a failed write to only one sync of a descriptor (fsync(2)); another sync, beside it or later, gets no error.
    So every caller after a failure gets that failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, sync: Callable[[], None]) -> None:
        """Raises what `sync` raises, and OSError (EIO) in all later calls."""
        with self._lock:
            if self._failure is not None:
                raise OSError(errno.EIO, f"an earlier sync failed ({self._failure})") from self._failure
            try:
                sync()
            except BaseException as error:
                self._failure = error
                raise
