"""Memory that stays: locked (mlock(2)), so that no page of it is swapped out or written back and fetched again.

    LockedMemory    a pool for records that are not written yet          Java: TransientStorePool
    WarmFile        a log file's pages, in memory before the first put   Java: DefaultMappedFile.warmMappedFile, mlock

A process may lock so much as `ulimit -l` says (RLIMIT_MEMLOCK), unless it has CAP_IPC_LOCK.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import resource

import numpy as np

from storage.files.file_system import PIECE_BYTES

PAGE_BYTES = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_LOG = logging.getLogger(__name__)


def lock_pages(pages: np.ndarray) -> None:
    """Touches each page. Raises OSError with the figures if so much cannot be locked, or is not free."""
    size_bytes, available = pages.nbytes, _available_bytes()
    if size_bytes > available:  # the system would end a process to make room
        raise OSError(errno.ENOMEM, f"{size_bytes} bytes cannot be locked in memory: {available} are free")
    if _mlock(pages.ctypes.data, size_bytes) != 0:
        number = ctypes.get_errno()
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        allowed = "all" if limit == resource.RLIM_INFINITY else f"{limit} (ulimit -l)"
        text = f"{size_bytes} bytes cannot be locked in memory ({os.strerror(number)}): this process may lock {allowed}"
        raise OSError(number, text)


def _mlock(address: int, size_bytes: int) -> int:
    return int(_LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes)))


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) << 10
    except (OSError, StopIteration):
        return 1 << 62


class LockedMemory:
    """A piece of locked memory that is filled from its start, and cleared as a whole. Not thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError if so much cannot be locked."""
        mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages = np.frombuffer(mapped, np.uint8)
        lock_pages(self._pages)
        self._used = 0

    def keep(self, data: bytes | np.ndarray) -> bytes | np.ndarray:
        """A copy of the data, valid until `clear`; outside of this memory if it is full."""
        end = self._used + len(data)
        if end > len(self._pages):
            return bytes(data)
        copy = self._pages[self._used : end]
        copy[:] = np.frombuffer(data, np.uint8)
        self._used = end
        return copy

    def clear(self) -> None:
        """All of it is free again."""
        self._used = 0

    def close(self) -> None:
        """Give it back, as soon as no copy is used any more."""
        self._pages, self._used = np.empty(0, np.uint8), 0


class WarmFile:
    """A new file's pages in memory, as long as this object lives: each was written once with zeros, so the disk has room for all."""

    def __init__(self, path: str, size_bytes: int, sync_pages: int | None) -> None:
        """`sync_pages`: sync after so many pages, and at the end; None = not at all. Raises OSError if that or a write fails.

        A full disk or too low a limit ends it with a warning: the file can be used all the same.
        """
        zeros, unsynced = bytes(PIECE_BYTES), 0
        self._pages = np.empty(0, np.uint8)
        descriptor = os.open(path, os.O_RDWR)
        try:
            for start in range(0, size_bytes, PIECE_BYTES):
                piece = min(PIECE_BYTES, size_bytes - start)
                try:
                    os.pwrite(descriptor, zeros[:piece], start)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    _LOG.warning("%s is not warm: %s (warmMapedFileEnable)", path, error.strerror)
                    break
                unsynced += piece
                if sync_pages is not None and unsynced >= sync_pages * PAGE_BYTES:
                    os.fdatasync(descriptor)
                    unsynced = 0
            if sync_pages is not None:
                os.fdatasync(descriptor)
            self._lock(path, descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def _lock(self, path: str, descriptor: int, size_bytes: int) -> None:
        try:
            mapped = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
            self._pages = np.frombuffer(mapped, np.uint8)
            mapped.madvise(mmap.MADV_WILLNEED)
            lock_pages(self._pages)
        except OSError as error:
            _LOG.warning("%s is warm, and not locked (warmMapedFileEnable): %s", path, error.strerror)
