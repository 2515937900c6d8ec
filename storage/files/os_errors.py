"""The only place where errors of an operating system, or of a file system of fsspec, become storage errors.

Their texts are written for programmers of file systems: a path without a reason, or thousands of characters of a client's. A user
needs the machine, the path, the user and a cure. Also here: the limit of open files, which a server checks before it starts.
"""

from __future__ import annotations

import errno
import os
import pwd
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import (
    AccessDeniedError,
    ConfigurationError,
    FileFailedError,
    FileSystemUnavailableError,
    StorageError,
)

_DENIED = (errno.EACCES, errno.EPERM)
_REASON_LENGTH = 120
_ABSENT = (404, 410)  # a web server's answers for a missing file

_CURES = {
    errno.EIO: "the disk or the mount is failing: look into the system's log, and copy the store while it can be read",
    errno.ELOOP: "the path leads through a circle of symbolic links; name the store's own directory",
    errno.ENAMETOOLONG: "a name in a path has at most 255 bytes, a path 4,095; check the path that was given",
    errno.ESTALE: "the file was removed on the server of the mount; mount it again",
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space, or have the quota raised",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EISDIR: "a directory stands where a file belongs",
    errno.ENOTDIR: "a file stands where a directory belongs; check the path that was given",
    errno.EROFS: "mount its file system for writing, or write to another path",
}
_OTHER_CURE = "check the path, and that its disk or mount answers on this machine"

# The names of credential errors in clients of object stores; s3fs turns the servers' refusals into PermissionErrors.
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "NoAuthTokenError")
_CREDENTIALS = {
    "s3": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile, or the machine's role) where Spark's workers run; "
        """for a public bucket set FSSPEC_S3='{"anon": true}'"""
    ),
}
_CLIENTS = {
    "hdfs": "set HADOOP_HOME, and CLASSPATH to what `hadoop classpath --glob` prints, on each machine; or mount the store",
}
_SCHEMES = "give a local path, or a scheme that fsspec knows and whose package is installed: s3, gs, abfs, hdfs, http …"


def from_os_error(error: OSError, path: str | None = None) -> StorageError:
    """The storage error for an operating system's error. `path` is used if the error names no path."""
    named = path if error.filename is None else os.fsdecode(error.filename)
    place = named or "a file"
    reason = error.strerror or _first_line(error)
    if error.errno in _DENIED:
        blocking = _blocking(place)
        return AccessDeniedError(
            place,
            host_name(),
            _user(),
            reason if blocking is None else blocking,
            f"give user {_user()} the right to read there, and to write if the store is written (chmod, chown, an ACL), "
            "or run as the user that the broker runs as",
        )
    return FileFailedError(place, host_name(), reason, _CURES.get(error.errno or 0, _OTHER_CURE))


def is_of_system(error: BaseException | None) -> bool:
    """Whether the operating system refused something: the error, or one in its chain of causes, is an OSError."""
    return error is not None and (isinstance(error, OSError) or is_of_system(error.__cause__))


def from_remote_error(error: Exception, url: str) -> StorageError:
    """The storage error for what fsspec, or the client behind it, raised at a URL."""
    scheme = url.partition("://")[0]
    reason = _first_line(error)
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS:
        cure = _CREDENTIALS.get(
            scheme.removesuffix("a"), f"give the credentials that fsspec's driver of {scheme}:// asks for"
        )
        return AccessDeniedError(url, host_name(), _user(), reason, cure)
    if isinstance(error, ImportError):
        cure = f"pip install the package that is named, on every machine that reads {scheme}://"
    elif isinstance(error, ValueError) and "rotocol" in reason:
        cure = _SCHEMES
    else:
        cure = _CLIENTS.get(scheme, "check the address, the network and the credentials from that machine")
    return FileSystemUnavailableError(url, host_name(), reason, cure)


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Inside it a remote file system's errors become storage errors; a missing path and a directory are no error.

    If a server fails, fsspec's web file system raises FileNotFoundError: then the server's failure becomes the error.
    """
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(error.__cause__, Exception) and _is_failure(error.__cause__):
            raise from_remote_error(error.__cause__, url) from None
        raise
    except (IsADirectoryError, NotADirectoryError, StorageError):
        raise
    except Exception as error:
        raise from_remote_error(error, url) from None


def _is_failure(cause: Exception) -> bool:
    """Whether this cause of a FileNotFoundError is not an answer that the file is missing."""
    if isinstance(cause, OSError):
        return not isinstance(cause, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
    return type(cause).__module__.startswith("aiohttp") and getattr(cause, "status", None) not in _ABSENT


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= _REASON_LENGTH else line[:_REASON_LENGTH] + "…"


def _blocking(path: str) -> str | None:
    """The part of a path that blocks this user, with its owner and mode.

    It is the first directory that the user may not enter, else the file if it may not be read or written, else the nearest directory
    if it may not be written: nothing can be made, renamed or deleted in it.
    """
    place = Path(os.path.abspath(path))
    with suppress(OSError):
        for part in reversed(place.parents):
            if part.is_dir() and not _may(part, os.X_OK):
                return _owned(part)
        there = [part for part in (place, *place.parents) if part.exists()]
        for part in there[:2]:
            if not _may(part, os.R_OK | os.W_OK):
                return _owned(part)
    return None


def _may(path: Path, wanted: int) -> bool:
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _owned(path: Path) -> str:
    found = path.stat()
    return f"{path} is {_name_of(found.st_uid)}'s with mode {stat.filemode(found.st_mode)}"


def host_name() -> str:
    """The machine's name in errors."""
    return socket.gethostname()


def _user() -> str:
    return _name_of(os.geteuid())


def _name_of(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


_UNLIMITED = 1 << 20


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, as a JVM does; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the system's own limit may be lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limit()


def file_limit() -> int:
    """How many files the process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _UNLIMITED


def need_files(count: int, who: str) -> int:
    """How many files and connections the process may have open (`ulimit -n`), raised to the hard limit if there are fewer.

    Raises ConfigurationError if that is still too few: such a server would start, and then refuse every connection.
    Departure: Java's servers start, and accept nothing.
    """
    found = file_limit()
    if found < count:
        found = raise_file_limit()
    if found < count:
        rule = f"this process may open {found} files, and {who} needs {count} at least: raise the limit (ulimit -n {count})"
        raise ConfigurationError(None, None, None, rule)
    return found
