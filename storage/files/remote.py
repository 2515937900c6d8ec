"""Stores on object storage or any other file system that fsspec knows, for reading: coalesced range reads."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator

import numpy as np

from storage.files.file_system import DirectoryEntry, FileSystem, GatheredWindow, Scratch, check_small, coalesce
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import remote_errors
from storage.format.window_layout import WindowLayout

COALESCE_GAP_BYTES = 128 << 10  # a gap smaller than this is cheaper to read than a second request
_NAME_SERVERS = re.compile(r"[\w.-]+:[0-9]{1,5}(;.*)?", re.ASCII)
BLOCK_BYTES = 64 << 10  # single small reads fetch so much, for the next one nearby


def file_system_of(path: str) -> FileSystem:
    """The local file system for a plain path or file://, an fsspec one for another URL."""
    scheme, separator, _ = path.partition("://")
    return RemoteFileSystem(path) if separator and scheme not in ("file", "local") else LocalFileSystem()


def plain_path(path: str) -> str:
    """A local file's URL as a path; anything else as it is."""
    scheme, separator, rest = path.partition("://")
    return rest if separator and scheme in ("file", "local") else path


def absolute_path(path: str) -> str:
    """A local path from the root on, seen from this process's directory; a URL as it is.

    For what is handed to processes that run elsewhere. Links are not followed, so that `..` means what it means to the system.
    """
    if "://" in path or path.startswith("/"):
        return path
    joined = posixpath.join(os.getcwd(), path)
    return joined if ".." in path.split("/") else posixpath.normpath(joined)


def unexpanded_home(path: str) -> str | None:
    """The rule that a path breaks which begins with `~`: nothing here means a home directory by it. None if it does not."""
    if not plain_path(path).startswith("~"):
        return None
    return "~ is not expanded by Spark or Python, only by a shell; write the home directory out"


def name_server(path: str) -> str | None:
    """The rule that a path breaks which is `host:port`, or several of them as RocketMQ's clients take them. None if it is not."""
    if not _NAME_SERVERS.fullmatch(path):
        return None
    return "a path names a store's directory, and this looks like a name server; a running cluster is read with the option nameServer"


def only_for_reading(path: str) -> str | None:
    """The rule that a path breaks which is to be written and is not local. None if it is local; nothing is asked of the place."""
    if plain_path(path) != path or "://" not in path:
        return None
    return f"only a local or mounted directory is written; {path.partition('://')[0]}:// is for reading"


class RemoteFileSystem:
    """An fsspec file system. Paths are whole URLs. What it raises becomes AccessDeniedError or FileSystemUnavailableError."""

    is_local = False

    def __init__(self, url: str) -> None:
        import fsspec  # only stores that lie elsewhere need it, and it is slow to import

        with remote_errors(url):
            self._inner = fsspec.core.url_to_fs(url)[0]

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        try:
            with remote_errors(path):
                found = self._inner.ls(path, detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = self._inner._strip_protocol(path).rstrip("/")
        entries = [
            DirectoryEntry(
                entry["name"].rstrip("/").rpartition("/")[2], entry["type"] == "directory", entry["size"] or 0
            )
            for entry in found
            if entry["name"].rstrip("/") != own
        ]
        return sorted(entries)

    def read_file(self, path: str) -> bytes | None:
        try:
            with remote_errors(path):
                check_small(path, self._inner.size(path) or 0)
            content: bytes = self._inner.cat_file(path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        return content

    def open_file(self, path: str) -> RemoteFile:
        return RemoteFile(self._inner, path)

    def open_small_reads(self, path: str) -> RemoteFile:
        return RemoteFile(self._inner, path)


class RemoteFile:
    """A file read by ranges. Nothing is kept but the last block, for reads that lie close together, and of it nothing
    behind the last byte that is not zero: there a running broker writes on.
    """

    def __init__(self, inner, path: str) -> None:  # type: ignore[no-untyped-def]
        self.path = path
        with remote_errors(path):
            self.size_bytes: int = inner.size(path)
        self._inner = inner
        self._block_start = 0
        self._block = np.empty(0, np.uint8)

    def view(self, position: int, length: int) -> np.ndarray:
        end = min(position + length, self.size_bytes)
        if end <= position:
            return np.empty(0, np.uint8)
        start = position - self._block_start
        if start >= 0 and start + end - position <= len(self._block):
            return self._block[start : start + end - position]
        fetched = self._read(position, min(max(end, position + BLOCK_BYTES), self.size_bytes))
        written = np.flatnonzero(fetched)
        self._block_start = position
        self._block = fetched[: int(written[-1]) + 1 if len(written) else 0]
        return fetched[: end - position]

    def _read(self, start: int, end: int) -> np.ndarray:
        with remote_errors(self.path):
            return np.frombuffer(self._inner.cat_file(self.path, start=start, end=end), np.uint8)

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, COALESCE_GAP_BYTES)
        if not len(starts):
            return np.empty(0, np.uint8), places
        with remote_errors(self.path):
            fetched = self._inner.cat_ranges(
                [self.path] * len(starts), starts.tolist(), stops.tolist(), on_error="raise"
            )
        return np.frombuffer(b"".join(fetched), np.uint8), places

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        """One: a window each would be a request each."""
        yield GatheredWindow(*self.gather(positions, sizes, scratch), slice(0, len(positions)), True)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        return [(position, self.size_bytes)] if position < self.size_bytes else []

    def give_pages_back(self) -> None:
        """Holds no more than the last block."""

    def close(self) -> None:
        self._block = np.empty(0, np.uint8)
