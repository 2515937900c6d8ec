"""The one door to the disk: what the engine asks of a file system, and the local one.

Reading takes `ReadableFile`s: `view` gives a byte range as a `uint8` array (of a local file a slice of its read-only map, of a
remote one and on a tmpfs a copy), `gather` gives one buffer that holds many small ranges. Writing takes `pwrite` at positions, never
a writable map, so that a full disk is an error from a call and not a signal. Tests put a failing disk in this place.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import platform
import re
import stat
import struct
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from storage.errors import StateFileError, StoreLockedError
from storage.failpoints import reach
from storage.files.disk_use import is_memory
from storage.files.lock_holder import lock_holder

_CHUNK = 1 << 20
_LOCK_INTERVAL_S = 0.05
_UNSAID_WAIT_S = 0.25  # a commit of another sink holds the lock for less
_LOG = logging.getLogger("storage.lock")
_MEMORY = "/dev/shm"
SYNCED_TOGETHER = 256
SMALL_FILE_LIMIT_BYTES = 64 << 20
"""What a file has at most that is read whole: tables, settings, intents. Those of 100,000 queues have 20 MB."""
FILE_MODE = 0o660
DIRECTORY_MODE = 0o770
"""What new files and directories may be at most, less the umask: messages are for the store's owner and group, and nobody else.

Departure: Java makes both readable by everybody.
"""
_LIBC = ctypes.CDLL(None, use_errno=True)
REPORTS_ALL_ERRORS = platform.system() == "Linux" and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (
    5,
    8,
)
"""Older kernels do not tell syncfs(2) of pages that could not be written."""


class DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool
    size_bytes: int


class ReadableFile(Protocol):
    """A file opened for reading; it keeps what it mapped even if the file is unlinked."""

    path: str

    @property
    def size_bytes(self) -> int: ...

    def view(self, position: int, length: int) -> np.ndarray:
        """`length` bytes as a `uint8` array, fewer where the file ends."""
        ...

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A buffer that holds all the ranges, and where each begins in it. `positions` ascend.

        With `scratch` the buffer may be that memory, good until the next gather into it.
        """
        ...

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The parts [start, end) of the file from `position` on that are not holes."""
        ...

    def give_pages_back(self) -> None:
        """Holds no memory for what was read until it is read again; views that were handed out stay valid."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the engine needs to read a store. Paths are strings with '/'."""

    is_local: bool

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """What lies in a directory, sorted by name; empty if it does not exist."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """A small file whole; None if it does not exist. Raises StateFileError over SMALL_FILE_LIMIT_BYTES, with nothing read."""
        ...

    def open_file(self, path: str) -> ReadableFile:
        """A file to read much of, whatever becomes of its name. FileNotFoundError if it is not there."""
        ...

    def open_small_reads(self, path: str) -> ReadableFile:
        """A file to read a little of now and then; its views raise FileNotFoundError once it is deleted."""
        ...


def check_small(path: str, size_bytes: int) -> None:
    """Raises StateFileError for a file that is too large to be what it is read as."""
    if size_bytes > SMALL_FILE_LIMIT_BYTES:
        rule = f"it has {size_bytes} bytes, and no file of its kind has more than {SMALL_FILE_LIMIT_BYTES}; it was not read"
        raise StateFileError(path, 0, 0, rule)


LOCAL_GAP_BYTES = 16 << 10


class Scratch:
    """Memory that one reader uses again and again, so that its pages are touched for the first time only once."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> np.ndarray:
        """So many bytes, holding anything. What was taken before is overwritten."""
        if len(self._buffer) < size_bytes:
            self._buffer = np.empty(max(size_bytes, 2 * len(self._buffer)), np.uint8)
        return self._buffer[:size_bytes]


def coalesce(
    positions: np.ndarray, sizes: np.ndarray, limit: int, gap_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs [start, stop) that hold all ranges, gaps up to `gap_bytes` read along, and each range's place in the runs laid end to end.

    `positions` ascend; nothing behind `limit` is in a run.
    """
    if not len(positions):
        return positions, positions, positions
    reach = np.maximum.accumulate(np.minimum(positions + sizes, limit))
    first = np.concatenate(([0], np.flatnonzero(positions[1:] > reach[:-1] + gap_bytes) + 1))
    starts, stops = positions[first], reach[np.append(first[1:], len(positions)) - 1]
    shift = np.concatenate(([0], np.cumsum(stops - starts)[:-1])) - starts
    return starts, stops, positions + np.repeat(shift, np.diff(np.append(first, len(positions))))


class LocalFile:
    """A local file through a read-only map, which stays whole when the file is unlinked. Its descriptor is the map's."""

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.size_bytes = os.fstat(descriptor).st_size
            self._mapped = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ) if self.size_bytes else None
            self._map = np.frombuffer(self._mapped or b"", np.uint8)
        finally:
            os.close(descriptor)

    def view(self, position: int, length: int) -> np.ndarray:
        return self._map[position : position + length]

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if scratch is None:
            return self._map, positions
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, LOCAL_GAP_BYTES)
        try:
            with _opened(self.path) as descriptor:
                return _read_runs(descriptor, starts, stops, scratch), places
        except FileNotFoundError:  # unlinked since: the map holds it still
            return self._map, positions

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        try:
            with _opened(self.path) as descriptor:
                return _data_ranges(descriptor, position)
        except FileNotFoundError:  # unlinked since: any byte of the map may be one that was written
            return [(position, self.size_bytes)] if position < self.size_bytes else []

    def give_pages_back(self) -> None:
        """They stay in the page cache, and count no longer as this process's."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Lets go of the map; views that were handed out stay valid."""
        self._mapped, self._map = None, np.empty(0, np.uint8)


class LocalFileInMemory:
    """A file on a tmpfs, read through a descriptor of its own: the map of a hole would take room (`is_memory`)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def view(self, position: int, length: int) -> np.ndarray:
        """A copy, but for the holes of a long range: they are memory that nobody has touched."""
        stop = max(position, min(position + length, self.size_bytes))
        if stop - position <= _CHUNK:
            return np.frombuffer(os.pread(self._descriptor, stop - position, position), np.uint8)
        copy = np.zeros(stop - position, np.uint8)
        for start, end in self.data_ranges(position):
            if start < stop:
                _read_into(self._descriptor, copy.data[start - position : min(end, stop) - position], start)
        return copy

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, LOCAL_GAP_BYTES)
        return _read_runs(self._descriptor, starts, stops, scratch or Scratch()), places

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        return _data_ranges(self._descriptor, position)

    def give_pages_back(self) -> None:
        """Holds none."""

    def close(self) -> None:
        """Nothing can be read any more; views that were handed out stay valid."""
        self._closing()
        self._descriptor = -1


class LocalSmallReads:
    """A local file of which little is read: opened for each read, so that a store of many queues needs no descriptors."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def size_bytes(self) -> int:
        return os.stat(self.path).st_size

    def view(self, position: int, length: int) -> np.ndarray:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return np.frombuffer(os.pread(descriptor, length, position), np.uint8)
        finally:
            os.close(descriptor)

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.view(0, self.size_bytes), positions

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        with _opened(self.path) as descriptor:
            return _data_ranges(descriptor, position)

    def give_pages_back(self) -> None:
        """Holds none."""

    def close(self) -> None:
        """Holds nothing."""


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_runs(descriptor: int, starts: np.ndarray, stops: np.ndarray, scratch: Scratch) -> np.ndarray:
    buffer = scratch.take(int((stops - starts).sum()))
    filled = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        _read_into(descriptor, buffer.data[filled : filled + stop - start], start)
        filled += stop - start
    return buffer


def _read_into(descriptor: int, buffer: memoryview, position: int) -> None:
    while buffer:
        count = os.preadv(descriptor, [buffer], position)
        if not count:
            raise OSError(errno.EIO, "the file was cut while it was read")
        buffer, position = buffer[count:], position + count


def _data_ranges(descriptor: int, position: int) -> list[tuple[int, int]]:
    ranges = []
    size_bytes = os.fstat(descriptor).st_size
    try:
        while position < size_bytes:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            ranges.append((start, position))
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data behind the position
            raise
    return ranges


class LocalWriter:
    """A file open for writing at positions."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR)

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        """All of `data` at a position."""
        view = (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")
        while view:
            try:
                written = os.pwrite(self._descriptor, view, position)
            except OSError as error:
                error.filename = self.path  # a full disk is told of with the file that had no room
                raise
            view, position = view[written:], position + written

    def sync(self) -> None:
        """The content onto the disk, and the length; not the directory's entry."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalFileSystem:
    """The machine's own file system, for reading and for writing."""

    is_local = True

    @cached_property
    def _locked(self) -> dict[int, int]:
        """Devices on which a store's lock is held, and the lock's descriptor: it is older than any write under it."""
        return {}

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        is_directory = entry.is_dir()
                        size = 0 if is_directory else entry.stat().st_size
                    except FileNotFoundError:
                        continue  # an entry that is deleted meanwhile must not make the others disappear
                    found.append(DirectoryEntry(entry.name, is_directory, size))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                check_small(path, os.fstat(file.fileno()).st_size)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_file(self, path: str) -> LocalFile | LocalFileInMemory:
        return LocalFileInMemory(path) if is_memory(os.stat(path).st_dev) else LocalFile(path)

    def open_small_reads(self, path: str) -> LocalSmallReads:
        return LocalSmallReads(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory. OSError where that cannot be told: it is not a no."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def create_file(self, path: str, size_bytes: int) -> None:
        """A sparse file of that length. Its directory is made; the caller syncs it. FileExistsError if there is one.

        An empty file is taken over: a power loss can leave a new file's name without its length.
        """
        _make_directories(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        try:
            if os.fstat(descriptor).st_size:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            os.ftruncate(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        """All of `data` at a position of an existing file."""
        writer = self.open_for_writing(path)
        try:
            writer.write(position, data)
        finally:
            writer.close()

    def zero(self, path: str, position: int, length: int) -> None:
        """Zeros in place of what stands there; holes stay holes."""
        end = position + length
        opened = self.open_file(path)
        ranges = opened.data_ranges(position)
        opened.close()
        for start, stop in ranges:
            for at in range(start, min(stop, end), _CHUNK):
                self.write(path, at, bytes(min(_CHUNK, stop - at, end - at)))

    def sync(self, path: str) -> None:
        """Content of a file, or entries of a directory, onto the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, paths: Iterable[str]) -> None:
        """All of the paths, as `sync` does, files before their directories; what is not there any more is left out.

        Very many are synced by whole file systems: a sync each takes a wait each. That is done only where an error of any write since
        the store's lock was taken is reported to us (syncfs(2)).
        """
        there = {path: found.st_dev for path in sorted(paths, reverse=True) if (found := _stat(path)) is not None}
        counts = Counter(there.values())
        together = {device for device, count in counts.items() if count >= SYNCED_TOGETHER and device in self._locked}
        for path, device in there.items():
            if device not in together:
                with suppress(FileNotFoundError):
                    self.sync(path)
        for device in together:
            _sync_file_system(self._locked[device])

    def open_for_writing(self, path: str) -> LocalWriter:
        """An existing file to write to in many places."""
        return LocalWriter(path)

    def replace(self, path: str, content: bytes) -> None:
        """A small file's whole content, durably: NAME.tmp, sync, rename, sync of the directory (made if it is not there).

        A crash leaves the old content or the new one, never a part. Who may read the old one may read the new one.
        """
        directory, temporary = os.path.dirname(path) or ".", f"{path}.tmp"
        if not os.path.isdir(directory):
            self.make_directories(directory)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        try:
            _take_mode(descriptor, path)
        finally:
            os.close(descriptor)
        self.write(temporary, 0, content)
        self.sync(temporary)
        reach("file-staged")
        self.rename(temporary, path)
        reach("file-replaced")
        self.sync(directory)

    def make_directories(self, path: str) -> None:
        """A directory with its parents; its entry, and those of new parents, are synced, also if somebody else has made it."""
        parent = os.path.dirname(path) or "."
        if not os.path.isdir(parent):
            self.make_directories(parent)
        with suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)
        self.sync(parent)

    def first_link(self, path: str) -> str | None:
        """A symbolic link at this path or below it, the first in the order of names; None if there is none."""
        if os.path.islink(path):
            return path
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        for entry in entries:
            if entry.is_symlink():
                return entry.path
            link = self.first_link(entry.path) if entry.is_dir(follow_symlinks=False) else None
            if link is not None:
                return link
        return None

    def rename(self, path: str, new_path: str) -> None:
        """At once for every onlooker; durable when the caller has synced the directories."""
        os.replace(path, new_path)

    def memory_path(self, root: str) -> str | None:
        """A path for one file of this user's about the directory `root` that lives as long as the page cache, however bad the disk is;
        None where the system has no such place.
        """
        digest = hashlib.sha256(os.path.realpath(root).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        path = f"{_MEMORY}/spark_mq-{os.geteuid()}-{digest}"
        try:
            return path if os.lstat(path).st_uid == os.geteuid() else None
        except OSError:
            return path if os.path.isdir(_MEMORY) else None

    def reserve(self, path: str, position: int, length: int) -> None:
        """Room on the disk for a part of an existing file; OSError (ENOSPC) if there is none. What it reads as does not change."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, position, length)
        finally:
            os.close(descriptor)

    def identity(self, path: str) -> tuple[int, int, int] | None:
        """What tells a file from another one of that name: device, number, length; None if there is none."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size

    def real_path(self, path: str) -> str:
        """The absolute path without links; of what is not there too."""
        return os.path.realpath(path)

    def directory_number(self, path: str) -> tuple[int, int] | None:
        """Device and inode of a directory, equal for all of its names; None if none is there."""
        found = _stat(path)
        return None if found is None or not stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino)

    def link_count(self, path: str) -> int:
        """How many names (hard links) a file has; 0 if it is not there."""
        found = _stat(path)
        return 0 if found is None else found.st_nlink

    def modified_ms(self, path: str) -> int | None:
        """When the file's content was last changed; None if there is none."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def boot_id(self) -> str:
        """A name for the time since the machine started: within it, what was written is there whether it was synced or not."""
        return (self.read_file("/proc/sys/kernel/random/boot_id") or b"").decode().strip()

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory; one that is not there or not empty stays as it is."""
        with suppress(OSError):
            os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    @contextmanager
    def locked(self, path: str, timeout_ms: int = 0) -> Iterator[None]:
        """Holds byte 0 of the file, as a running broker does; StoreLockedError where another has it for longer than `timeout_ms`.

        An open-file-description lock: the only kind that conflicts with Java's and is not lost when another descriptor closes. Who
        waits says so, and for whom (logger `storage.lock`), unless the lock is free again at once.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        device = os.fstat(descriptor).st_dev
        outer = self._locked.get(device)
        try:
            request = struct.pack("hhqqhh", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0, 0)
            start = time.monotonic()
            deadline, said = start + timeout_ms / 1_000, False
            while True:
                try:
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
                    break
                except (BlockingIOError, PermissionError) as error:
                    now = time.monotonic()
                    if now >= deadline:
                        raise StoreLockedError(path, timeout_ms, lock_holder(descriptor)) from error
                    if not said and now >= start + _UNSAID_WAIT_S:
                        said = True
                        holder = lock_holder(descriptor) or "a process that is not seen from here"
                        _LOG.warning("waiting for %s, up to %d s: %s has it", path, timeout_ms // 1_000, holder)
                time.sleep(_LOCK_INTERVAL_S)
            if REPORTS_ALL_ERRORS:
                self._locked[device] = descriptor
            yield
        finally:
            if outer is None:
                self._locked.pop(device, None)
            else:
                self._locked[device] = outer
            os.close(descriptor)


def _make_directories(path: str) -> None:
    """`os.makedirs`, which gives only the last directory a mode."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        _make_directories(parent)
    with suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)


def _take_mode(descriptor: int, path: str) -> None:
    """Give a new file the mode of the one whose place it takes, as far as the system lets us."""
    with suppress(FileNotFoundError, PermissionError):
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode) & 0o777)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync_file_system(descriptor: int) -> None:
    if _LIBC.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_of_data(file: ReadableFile, position: int) -> int:
    """Where the last byte from `position` on that is not zero ends; `position` if all are zero."""
    for start, end in reversed(file.data_ranges(position)):
        for at in range(end - (end - start - 1) % _CHUNK - 1, start - 1, -_CHUNK):
            written = np.flatnonzero(file.view(at, min(_CHUNK, end - at)))
            if len(written):
                return at + int(written[-1]) + 1
    return position
