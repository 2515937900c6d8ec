"""Who holds the lock that we wait for, as far as this machine tells.

The kernel names the process of a lock as Java takes it (fcntl(2), F_OFD_GETLK). A lock of ours belongs to an open file and to no
process, so the processes that have the file open are looked through (/proc/PID/fdinfo). A process of another user, container or machine
is not seen.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

Holder = Literal["writer", "sink", "job", "broker", "follower"]
"""Who asks for a store's lock, and so whom it waits for: a writer for everybody, a sink for all but a broker of ours (which takes its
batches), a job, a broker and a follower for no broker.
"""
BROKER_BYTE = 1
"""Of ROOT/lock: a broker of ours holds it beside byte 0. Java's locks byte 0 alone."""
_FLOCK = struct.Struct("hhqqi4x")
_COMMAND_SHOWN = 80
_OPEN_FILE = -1
"""The process number of a lock that belongs to an open file (fcntl(2)); a process of another container is 0."""
_F_SETSIG = 10
_CANNOT_TELL = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def lock_holder(descriptor: int) -> str | None:
    """The process that holds byte 0 of the open file, with its command and this host's name; None where none is seen."""
    pid = _of_kernel(descriptor) or next(_of_open_files(descriptor), None)
    return None if pid is None else f"process {pid} ({_command(pid)}) on {socket.gethostname()}"


def is_held_by_broker(descriptor: int) -> bool:
    """Whether a broker has byte 0 of the open file: Java locks it for a process, we do for an open file; ours has byte 1 besides."""
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
    """Kind and process of another's lock of a byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return kind, pid


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
    """What lies there; nothing where we may not look, and where no /proc is."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(4_096).replace(b"\0", b" ").decode(errors="replace").split()
        text = " ".join(words)  # one line, also of a program that was given with -c
        return text if len(text) <= _COMMAND_SHOWN else text[:_COMMAND_SHOWN] + "…"
    return "its command is not to be seen"


def is_open_for_writing(path: str) -> bool | None:
    """Whether anybody writes, or could; None where the system cannot tell (another user's file, some network file systems).

    Raises OSError where the file cannot be opened.

    A broker locks only ROOT/lock, so the lock says nothing about a log that lies elsewhere. Linux does: it grants a read lease
    (fcntl(2), F_SETLEASE) on a file only while nobody has it open for writing.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Who opens the file while the lease stands makes the kernel send a signal; this one is ignored unless somebody handles it.
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
