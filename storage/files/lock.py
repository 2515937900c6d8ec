"""The store's lock: its holder, as far as this machine shows it, and the queue of those that wait for it.

For a lock as Java takes it, the kernel names the process (fcntl(2), F_OFD_GETLK). A lock of ours belongs to an open file, not to a
process, so all processes that have the file open are examined (/proc/PID/fdinfo). A process of another user, container or machine
is not visible.

The lock has no queue of its own, so a sink that commits without pause would get it again and again before a job that looks every 50 ms.
The queue is an empty file beside the lock (ROOT/spark_mq/turns). Each process that waits locks a byte of it:

    byte 0            the door: held for the moment in which a number is taken
    byte 1, 2, 3, …   ticket 1, 2, 3, … of a process that waits; the next number is the greatest held one plus one

A ticket is a lock of an open file (F_OFD_SETLK). It ends with its process, so no process waits for a dead one; nothing is written, and
nothing is left. A waiting process that does not take the free lock (a stopped process) is skipped after PATIENCE_S, or after
half of our own time limit. A writer without a ticket, such as a broker or one that does not wait, uses the lock as if there
were no queue.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

Holder = Literal["writer", "sink", "job", "broker", "follower"]
"""Kind of process that wants a store's lock, which says what it waits for: a writer for all, a sink for all but a broker of ours (which
takes its batches), a job, a broker and a follower for no broker.
"""
BROKER_BYTE = 1
"""Byte of ROOT/lock that a broker of ours holds besides byte 0. Java's locks byte 0 alone."""
_FLOCK = struct.Struct("hhqqi4x")
_COMMAND_SHOWN = 80
_OPEN_FILE = -1
"""The process number of a lock that belongs to an open file (fcntl(2)); for a process of another container it is 0."""
_F_SETSIG = 10
_CANNOT_TELL = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def lock_holder(descriptor: int) -> str | None:
    """The process that holds byte 0 of the open file, with its command and this host's name; None if none is visible."""
    pid = _of_kernel(descriptor) or next(_of_open_files(descriptor), None)
    return None if pid is None else f"process {pid} ({_command(pid)}) on {socket.gethostname()}"


def is_held_by_broker(descriptor: int) -> bool:
    """Whether a broker has byte 0 of the open file: Java locks it for a process, we do for an open file; ours also has byte 1."""
    kind, pid = _lock_of(descriptor, 0)
    return kind != fcntl.F_UNLCK and (pid != _OPEN_FILE or is_held_by_own_broker(descriptor))


def is_held_by_own_broker(descriptor: int) -> bool:
    """Whether a broker of this package has the open file locked."""
    kind, _ = _lock_of(descriptor, BROKER_BYTE)
    return kind != fcntl.F_UNLCK


def _of_kernel(descriptor: int) -> int | None:
    kind, pid = _lock_of(descriptor, 0)
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _lock_of(descriptor: int, byte: int) -> tuple[int, int]:
    """Kind and process of a foreign lock of a byte."""
    kind, _, _, _, pid = _first_lock(descriptor, byte, 1)
    return kind, pid


def _first_lock(descriptor: int, start: int, length: int) -> tuple[int, int, int, int, int]:
    """The first lock that another open file holds in a range, as fcntl(2) names it: kind, whence, start, length, process.

    Length 0 is up to the end.
    """
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, whence, found, size, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))
    return kind, whence, found, size, pid


def _of_open_files(descriptor: int) -> Iterator[int]:
    wanted = os.fstat(descriptor)
    for name in _names("/proc"):
        if name.isdigit():
            for number in _names(f"/proc/{name}/fd"):
                with suppress(OSError):  # ended or closed meanwhile
                    found = os.stat(f"/proc/{name}/fd/{number}")
                    if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                        with open(f"/proc/{name}/fdinfo/{number}", encoding="ascii", errors="replace") as file:
                            if "OFDLCK" in file.read():
                                yield int(name)


def _names(directory: str) -> list[str]:
    """The names in a directory; none if it is not readable, or there is no /proc."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(4_096).replace(b"\0", b" ").decode(errors="replace").split()
        text = " ".join(words)  # one line, also for a program given with -c
        return text if len(text) <= _COMMAND_SHOWN else text[:_COMMAND_SHOWN] + "…"
    return "its command is not to be seen"


def is_open_for_writing(path: str) -> bool | None:
    """Whether a process writes the file, or could; None if the system cannot tell (another user's file, some network file systems).

    Raises OSError if the file cannot be opened.

    A broker locks only ROOT/lock, so the lock says nothing about a log in another place. Linux shows it: a read lease
    (fcntl(2), F_SETLEASE) on a file is granted only while no process has it open for writing.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # If a process opens the file during the lease, the kernel sends a signal; this one is ignored by default.
        with suppress(OSError):
            fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EBUSY):
            return True
        if error.errno in _CANNOT_TELL:
            return None
        raise
    finally:
        os.close(descriptor)
    return False


_TO_THE_END = 0
_DOOR_TRIES = 50
_DOOR_INTERVAL_S = 0.001
PATIENCE_S = 1.0
"""How long the lock may be free before the process whose turn it is is skipped; it looks twenty times in that."""


class Turn:
    """One writer's place in the queue of the file `path`; a context manager that gives it back.

    If the file's directory is missing or a symbolic link, or the file is not writable, there is no queue, and it is
    always this writer's turn.
    """

    def __init__(
        self, path: str, *, mode: int, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._mode = mode
        self._patience_s = patience_s
        self._clock = clock
        self._descriptor: int | None = None
        self._number = 0
        self._free_since_s: float | None = None

    def has_come(self, lock: int) -> bool:
        """Whether no process waits before us, or the one that does leaves the lock free too long. `lock` is the lock file."""
        descriptor = self._open(create=False)
        if descriptor is None or not self._is_anybody_before(descriptor):
            return True
        if _held(lock, 0, 1) is not None:
            self._free_since_s = None
            return False
        if self._free_since_s is None:
            self._free_since_s = self._clock()
        return self._clock() - self._free_since_s >= self._patience_s

    def queue_up(self) -> None:
        """Take a ticket after all that are held; does nothing if we have one."""
        descriptor = None if self._number else self._open(create=True)
        if descriptor is None:
            return
        for _ in range(_DOOR_TRIES):
            if lock_byte(descriptor, 0):
                break
            time.sleep(_DOOR_INTERVAL_S)
        else:
            return  # try again with the next look
        try:
            number = 1
            while (held := _held(descriptor, number, _TO_THE_END)) is not None:
                number = max(number, held) + 1
            if lock_byte(descriptor, number):
                self._number = number
        finally:
            _unlock(descriptor, 0)

    def _is_anybody_before(self, descriptor: int) -> bool:
        if self._number == 1:
            return False
        return _held(descriptor, 1, self._number - 1 if self._number else _TO_THE_END) is not None

    def _open(self, *, create: bool) -> int | None:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            with suppress(OSError):
                directory = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    self._descriptor = os.open(os.path.basename(self._path), flags, self._mode, dir_fd=directory)
                finally:
                    os.close(directory)
        return self._descriptor

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            if self._number:
                _unlock(self._descriptor, self._number)  # a child forked meanwhile has the open file too
            os.close(self._descriptor)
            self._descriptor, self._number = None, 0


def _held(descriptor: int, start: int, length: int) -> int | None:
    """The first byte of a lock that another open file holds in a range; None if there is none. Length 0 = up to the end."""
    kind, _, found, _, _ = _first_lock(descriptor, start, length)
    return None if kind == fcntl.F_UNLCK else found


def lock_byte(descriptor: int, byte: int, *, is_shared: bool = False) -> bool:
    """Lock a byte of an open file, for that open file; returns whether it was free. Open for reading is enough for a shared lock."""
    kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
