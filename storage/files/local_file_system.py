"""The local file system, for reading and for writing; also how full its disks are.

A small state file is replaced whole, with its predecessor beside it as NAME.bak (`write_with_backup`):
NAME.bak.tmp (old content), fsync, rename to NAME.bak, fsync of the directory · NAME.tmp (new content), fsync,
rename to NAME, fsync of the directory. Old content that readers do not accept as a table goes to NAME.bad instead of NAME.bak.
Commit point: the rename to NAME. A crash before it leaves the old file, a crash after it the new one (or, if the directory was
not synced yet, either); never half of one. Temporary files that a crash leaves are ignored by a broker and overwritten by the next
write.

Java: ConfigManager.load and persist, MixAll.string2File. Departures: Java overwrites NAME and NAME.bak in
place and does not sync, and an empty or torn NAME, as a crash of such a write leaves it, takes the place of a
good NAME.bak with the next write.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import logging
import os
import platform
import re
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np

from storage.errors import StateFileError, StoreLockedError, StoreServedError
from storage.failpoints import reach
from storage.files.file_system import (
    DirectoryEntry,
    FileSystem,
    LocalFile,
    LocalFileInMemory,
    LocalSmallReads,
    LocalWriter,
    check_small,
)
from storage.files.lock import (
    BROKER_BYTE,
    PATIENCE_S,
    Holder,
    Turn,
    is_held_by_broker,
    is_held_by_own_broker,
    lock_byte,
    lock_holder,
)
from storage.format import fastjson

_CHUNK = 1 << 20
_MEMORY = "/dev/shm"
_LOCK_INTERVAL_S = 0.05
_UNSAID_WAIT_S = 0.25  # a commit of another sink holds the lock for less
_LOG = logging.getLogger("storage.lock")
SYNCED_TOGETHER = 256
FILE_MODE = 0o660
DIRECTORY_MODE = 0o770
"""The most permissions of new files and directories, less the umask: only the store's owner and group may read messages.

Departure: Java makes both readable by all users.
"""
PRIVATE_MODE = 0o600
"""Mode of a file with passwords."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_KERNEL = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
REPORTS_ALL_ERRORS = platform.system() == "Linux" and _KERNEL >= (5, 8)
"""Older kernels do not report to syncfs(2) pages that could not be written."""


class LocalFileSystem:
    """The local file system, for reading and for writing."""

    is_local = True

    @cached_property
    def _locked(self) -> dict[int, int]:
        """Device → descriptor of a store's lock that is held there: it is older than any write under the lock."""
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
                        continue  # an entry that is deleted meanwhile must not hide the others
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
        """Whether there is such a file or directory. OSError if that is unknown, which does not count as False."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def create_file(self, path: str, size_bytes: int) -> None:
        """Make a sparse file of that length, and its directory; the caller syncs that. FileExistsError if it exists.

        An existing empty file is used: a power loss can leave a new file's name without its length.
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
        """Write all of `data` at a position of an existing file."""
        writer = self.open_for_writing(path)
        try:
            writer.write(position, data)
        finally:
            writer.close()

    def write_pieces(self, path: str, pieces: Iterable[tuple[int, bytes | memoryview | np.ndarray]]) -> None:
        """`write` for many positions, one after the other."""
        writer = self.open_for_writing(path)
        try:
            for position, data in pieces:
                writer.write(position, data)
        finally:
            writer.close()

    def zero(self, path: str, position: int, length: int) -> None:
        """Overwrite a range with zeros; holes stay holes."""
        end = position + length
        opened = self.open_file(path)
        ranges = opened.data_ranges(position)
        opened.close()
        for start, stop in ranges:
            for at in range(start, min(stop, end), _CHUNK):
                self.write(path, at, bytes(min(_CHUNK, stop - at, end - at)))

    def sync(self, path: str) -> None:
        """Sync a file's content, or a directory's entries."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, paths: Iterable[str]) -> None:
        """Sync all of the paths, files before their directories; missing ones are skipped.

        Very many are synced by whole file systems, as each sync waits for the disk. That is done only if errors of all writes since the
        store's lock was taken are reported to us (syncfs(2)).
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
        """An existing file for writing at many positions."""
        return LocalWriter(path)

    def replace(self, path: str, content: bytes, *, is_private: bool = False) -> None:
        """Replace a small file's whole content, durably: NAME.tmp, sync, rename, sync of the directory (made if missing).

        A crash leaves the old content or the new one, never a part. The new file has the permissions of the old one; with `is_private`
        only the owner's.
        """
        directory, temporary = os.path.dirname(path) or ".", f"{path}.tmp"
        if not os.path.isdir(directory):
            self.make_directories(directory)
        mode = PRIVATE_MODE if is_private else FILE_MODE
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        try:
            if is_private:
                os.fchmod(descriptor, mode)
            else:
                _take_mode(descriptor, path)
        finally:
            os.close(descriptor)
        self.write(temporary, 0, content)
        self.sync(temporary)
        reach("file-staged")
        self.rename(temporary, path)
        reach("file-replaced")
        self.sync(directory)

    def make_private(self, path: str) -> None:
        """Restrict an existing file to its owner, as far as the system permits."""
        with suppress(FileNotFoundError, PermissionError):
            os.chmod(path, PRIVATE_MODE)

    def make_directories(self, path: str) -> None:
        """Make a directory and its parents; its entry, and those of new parents, are synced, even if another process made it."""
        parent = os.path.dirname(path) or "."
        if not os.path.isdir(parent):
            self.make_directories(parent)
        with suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)
        self.sync(parent)

    def first_link(self, path: str) -> str | None:
        """The first symbolic link, by name, at this path or below it; None if there is none."""
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
        """Rename atomically; durable after the caller has synced the directories."""
        os.replace(path, new_path)

    def memory_path(self, root: str) -> str | None:
        """A path in memory for one file of this user about the directory `root`. It lives as long as the page cache, however bad the
        disk is; None if the system has no such place.
        """
        digest = hashlib.sha256(os.path.realpath(root).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        path = f"{_MEMORY}/spark_mq-{os.geteuid()}-{digest}"
        try:
            return path if os.lstat(path).st_uid == os.geteuid() else None
        except OSError:
            return path if os.path.isdir(_MEMORY) else None

    def reserve(self, path: str, position: int, length: int) -> None:
        """Reserve disk space for a part of an existing file; OSError (ENOSPC) if there is none. The content does not change."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, position, length)
        finally:
            os.close(descriptor)

    def identity(self, path: str) -> tuple[int, int, int] | None:
        """Identifies a file among those of that name: device, number, length; None if there is none."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size

    def real_path(self, path: str) -> str:
        """The absolute path without links, also for a missing file."""
        return os.path.realpath(path)

    def real_child(self, real_directory: str, name: str) -> str:
        """`real_path` of an entry of a directory whose real path is known."""
        path = f"{real_directory.rstrip('/')}/{name}"
        return os.path.realpath(path) if os.path.islink(path) else path

    def directory_number(self, path: str) -> tuple[int, int] | None:
        """Device and inode of a directory, equal for all of its names; None if it does not exist."""
        found = _stat(path)
        return None if found is None or not stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino)

    def link_count(self, path: str) -> int:
        """How many names (hard links) a file has; 0 if it does not exist."""
        found = _stat(path)
        return 0 if found is None else found.st_nlink

    def modified_ms(self, path: str) -> int | None:
        """When the file's content was last changed; None if it does not exist."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def version(self, path: str) -> tuple[int, ...] | None:
        """Shows whether a file has changed: device, number, length, time of the last change (ns); None if there is none."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def boot_id(self) -> str:
        """Identifies the time since the machine started: within it, written data is there whether it was synced or not."""
        return (self.read_file("/proc/sys/kernel/random/boot_id") or b"").decode().strip()

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory; a missing or nonempty one stays as it is."""
        with suppress(OSError):
            os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    @contextmanager
    def locked(
        self, path: str, timeout_ms: int = 0, *, turns: str | None = None, holder: Holder = "writer"
    ) -> Iterator[bool]:
        """Holds byte 0 of the file, as a running broker does; StoreLockedError if another process holds it longer than `timeout_ms`.

        An open-file-description lock: the only kind that conflicts with Java's and is not lost when another descriptor closes. A
        process that waits logs that, and for which process (logger `storage.lock`), unless the lock is soon free. `turns` is the
        file of a queue (`Turn`): processes that name it get the lock in the order in which they started to wait. `holder` says for
        which holders it does not wait; a sink gets StoreServedError if a broker of ours has the lock. Yields whether it had to wait.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        device = os.fstat(descriptor).st_dev
        outer = self._locked.get(device)
        try:
            has_waited = _take(descriptor, path, timeout_ms, turns, holder)
            if REPORTS_ALL_ERRORS:
                self._locked[device] = descriptor
            yield has_waited
        finally:
            if outer is None:
                self._locked.pop(device, None)
            else:
                self._locked[device] = outer
            os.close(descriptor)

    @contextmanager
    def left_alone(self, path: str) -> Iterator[bool]:
        """Holds a shared lock on byte 0 of the file, so that no broker takes it; StoreLockedError if a process has it. Writes nothing.

        Yields whether there is such a file: without one there is nothing to hold, and a process that starts makes it.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            yield False
            return
        try:
            if not lock_byte(descriptor, 0, is_shared=True):
                raise StoreLockedError(path, 0, lock_holder(descriptor))
            yield True
        finally:
            os.close(descriptor)


def _take(descriptor: int, path: str, timeout_ms: int, turns: str | None, holder: Holder) -> bool:
    """Lock byte 0 of the open file, when it is our turn, or raise StoreLockedError. Returns whether it had to wait."""
    start, said, has_waited = time.monotonic(), False, False
    patience_s = min(PATIENCE_S, timeout_ms / 2_000)
    with Turn(turns, mode=FILE_MODE, patience_s=patience_s) if turns and timeout_ms else nullcontext() as turn:
        while True:
            if (turn is None or turn.has_come(descriptor)) and _lock(descriptor):
                if holder == "broker":
                    lock_byte(descriptor, BROKER_BYTE)
                return has_waited
            has_waited = True
            if holder == "sink" and is_held_by_own_broker(descriptor):
                raise StoreServedError(path, "it takes batches", lock_holder(descriptor))
            now = time.monotonic()
            if holder in ("job", "broker", "follower") and is_held_by_broker(descriptor):
                raise StoreLockedError(path, int((now - start) * 1_000), lock_holder(descriptor))
            if now >= start + timeout_ms / 1_000:
                raise StoreLockedError(path, timeout_ms, lock_holder(descriptor))
            if turn is not None:
                turn.queue_up()
            if not said and now >= start + _UNSAID_WAIT_S:
                said = True
                by = lock_holder(descriptor) or "a process that is not seen from here"
                _LOG.warning("waiting for %s, up to %d s: %s has it", path, timeout_ms // 1_000, by)
            time.sleep(_LOCK_INTERVAL_S)


def _lock(descriptor: int) -> bool:
    """Lock byte 0, which a running broker holds."""
    return lock_byte(descriptor, 0)


def _make_directories(path: str) -> None:
    """`os.makedirs`, which gives only the last directory a mode."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        _make_directories(parent)
    with suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)


def _take_mode(descriptor: int, path: str) -> None:
    """Give a new file the mode of the one that it replaces, as far as the system permits."""
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


UNKNOWN = -1


def disk_used_percent(path: str) -> int:
    """Percent in use, rounded up, of the space open to this user (root's reserve is not counted); UNKNOWN if unknown.
    Java: UtilAll.getDiskPartitionSpaceUsedPercent.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return -(-used * 100 // whole) if whole > 0 else UNKNOWN


def disk_room_bytes(path: str) -> tuple[int, int]:
    """A disk's total and free space. Raises OSError."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize


@lru_cache
def is_memory(device: int) -> bool:
    """Whether a device (`st_dev`) is a tmpfs. There reading a hole through a map allocates a page, and on a full one ends the process
    (SIGBUS). read(2) allocates none.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            if place.split()[2] == number:
                return kind.split()[0] == "tmpfs"
    return False


_T = TypeVar("_T")
_SUM_SIZE = 8


@dataclass(frozen=True, slots=True)
class LoadedState(Generic[_T]):
    """What `read_with_backup` found."""

    value: _T | None
    """None: neither file holds anything; start with an empty table."""
    path: str | None
    """The file of `value`."""
    problem: StateFileError | None
    """Why NAME was skipped although it exists; the caller reports it to the operator."""


def read_with_backup(
    path: str,
    parse: Callable[[str, str], _T],
    *,
    read_bytes: Callable[[str], bytes | None] | None = None,
) -> LoadedState[_T]:
    """The state in `path`, or in its .bak if the file is missing, empty, too large or unparsable.

    `parse` takes (text, file name) and raises StateFileError; malformed UTF-8 reaches it as U+FFFD. An
    unparsable `path` without a .bak gives an empty state with the problem, as a broker starts with an empty
    table. Raises StateFileError if the .bak is needed and unparsable too (a broker does not start).
    """
    read = LocalFileSystem().read_file if read_bytes is None else read_bytes
    problem = None
    try:
        content = read(path)
        if content:
            return LoadedState(parse(_decode(content), path), path, None)
        if content is not None:
            problem = StateFileError(path, 0, 0, "the file is empty")
    except StateFileError as error:
        problem = error
    backup = path + ".bak"
    old = read(backup)
    if not old:
        return LoadedState(None, None, problem)
    try:
        return LoadedState(parse(_decode(old), backup), backup, problem)
    except StateFileError as error:
        raise error from problem


def read_table(path: str, parse: Callable[[str, str], _T], read_bytes: Callable[[str], bytes | None]) -> _T | None:
    """The table in `path` or in its .bak; None if there is neither.

    Raises StateFileError if neither can be read, with the cure as its hint: the table is unknown then, not empty.
    A broker starts with an empty table, and its next write replaces both.
    """
    try:
        loaded = read_with_backup(path, parse, read_bytes=read_bytes)
        if loaded.value is None and loaded.problem is not None:
            raise loaded.problem
    except StateFileError as error:
        error.hint = f"put a good copy of {path} there, or move it and its .bak away to begin with an empty table"
        raise
    return loaded.value


def write_with_backup(
    path: str, text: str, file_system: LocalFileSystem | None = None, *, is_private: bool = False
) -> None:
    """Replaces the content of `path` durably and keeps the old content as `path`.bak; makes the directory if needed.

    Old content that is no table, so that readers took `path`.bak, is kept as `path`.bad. An empty file is not kept: `path`.bak
    stays. With `is_private` only the owner may read these files.
    """
    files = file_system or LocalFileSystem()
    old = files.read_file(path)
    if old and old.strip():
        files.replace(path + (".bak" if _is_table(old) else ".bad"), old, is_private=is_private)
        reach("state-backed-up")
    files.replace(path, text.encode("utf-8"), is_private=is_private)


def _is_table(content: bytes) -> bool:
    text = _decode(content)
    try:
        return isinstance(json.loads(text), dict)  # as this package writes it
    except (ValueError, RecursionError):
        pass
    try:
        return isinstance(fastjson.parse(text), dict)  # as a broker writes it
    except StateFileError:
        return False


def _decode(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


def save_loose(file_system: LocalFileSystem, path: str, content: bytes) -> None:
    """Replace a file in an existing directory, atomically but not durably.

    For a small file that may be lost: it is written without a sync, and validated by a checksum.
    After a power loss it is the old one, the new one, or missing: half of one counts as missing. The disk is not waited for.
    """
    temporary = f"{path}.tmp"
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    file_system.create_file(temporary, 0)
    file_system.write(temporary, 0, b"%08x" % zlib.crc32(content) + content)
    file_system.rename(temporary, path)


def load_loose(file_system: FileSystem, path: str) -> bytes | None:
    """The content saved last; None if the file is missing or incomplete."""
    content = file_system.read_file(path) or b""
    return content[_SUM_SIZE:] if content[:_SUM_SIZE] == b"%08x" % zlib.crc32(content[_SUM_SIZE:]) else None
