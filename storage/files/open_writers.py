"""Whether some process has a file open for writing, on this machine. A broker holds the files of its log open as long as it runs.

A broker locks only ROOT/lock, so the lock says nothing about a log that lies elsewhere. Linux does: it grants a read lease
(fcntl(2), F_SETLEASE) on a file only while nobody has it open for writing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from contextlib import suppress

_F_SETSIG = 10
_CANNOT_TELL = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def is_open_for_writing(path: str) -> bool | None:
    """Whether anybody writes, or could; None where the system cannot tell (another user's file, some network file systems).

    Raises OSError where the file cannot be opened.
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
