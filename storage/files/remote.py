"""Stores on object storage or any other file system that fsspec knows, for reading: coalesced range reads.

Features that such a file system may lack are requested, or the read is refused: sizes in listings, only files and directories,
fresh listings instead of cached ones, answers as long as the range. A file of unknown size is never taken for an empty one.

Not supported: chained URLs (`zip://…::https://…`), and for a web server those with a query.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from storage.errors import FileSystemUnavailableError
from storage.files.file_system import DirectoryEntry, FileSystem, GatheredWindow, Scratch, check_small, coalesce
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import host_name, remote_errors
from storage.format.window_decoder import WindowLayout

COALESCE_GAP_BYTES = 128 << 10  # reading a smaller gap is cheaper than a second request
_NAME_SERVERS = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(;.*)?", re.ASCII)
BLOCK_BYTES = 64 << 10  # a small read fetches so much, for the next one nearby


def file_system_of(path: str) -> FileSystem:
    """The local file system for a plain path or file://, an fsspec one for another URL."""
    scheme, separator, _ = path.partition("://")
    return RemoteFileSystem(path) if separator and scheme not in ("file", "local") else LocalFileSystem()


def plain_path(path: str) -> str:
    """A local file's URL as a path; anything else unchanged."""
    scheme, separator, rest = path.partition("://")
    return rest if separator and scheme in ("file", "local") else path


def absolute_path(path: str) -> str:
    """A local path as an absolute one, from this process's directory; a URL unchanged.

    For paths that go to processes in other directories. Links are not resolved, so `..` keeps its meaning.
    """
    if "://" in path or path.startswith("/"):
        return path
    joined = posixpath.join(os.getcwd(), path)
    return joined if ".." in path.split("/") else posixpath.normpath(joined)


def unexpanded_home(path: str) -> str | None:
    """The rule against a path that begins with `~`: it does not mean a home directory here. None if it does not begin so."""
    if not plain_path(path).startswith("~"):
        return None
    return "~ is not expanded by Spark or Python, only by a shell; write the home directory out"


def name_server(path: str) -> str | None:
    """The rule against a path that is `host:port`, or a list of them as RocketMQ's clients take. None if it is not."""
    if not _NAME_SERVERS.fullmatch(path):
        return None
    return (
        "a path names a store's directory, and this looks like a name server; a running cluster is read with the option "
        "nameServer, by spark-mq with --name-server"
    )


def only_for_reading(path: str) -> str | None:
    """The rule against writing to a path that is not local. None if it is local; the file system is not accessed."""
    if plain_path(path) != path or "://" not in path:
        return None
    return f"only a local or mounted directory is written; {path.partition('://')[0]}:// is for reading"


class RemoteFileSystem:
    """An fsspec file system. Paths are whole URLs, below the one that it was made for or beside it.

    Its errors become AccessDeniedError or FileSystemUnavailableError. Its caches are not used.
    """

    is_local = False

    def __init__(self, url: str) -> None:
        """Raises FileSystemUnavailableError also for a URL that can have no paths below it."""
        import fsspec  # only remote stores need it, and it is slow to import

        self._web_base = url if url.startswith(("http://", "https://")) else None
        if rule := _no_directory(url, is_web=self._web_base is not None):
            raise _unavailable(url, *rule)
        with remote_errors(url):
            self._inner = fsspec.core.url_to_fs(url)[0]
        self._listed_sizes: dict[str, dict[str, int]] = {}
        """Directory → its files' sizes, until the next listing: they save one request for each of very many queues."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        place = self._place(path)
        self._listed_sizes.pop(path, None)
        try:
            with remote_errors(path):
                self._inner.invalidate_cache(place)
                found = self._inner.ls(place, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        named = {name: entry for entry in found if (name := self._name_in(place, entry["name"])) is not None}
        with remote_errors(path):
            entries = {name: self._with_known_kind(entry) for name, entry in named.items()}
            sizes = self._sizes([e["name"] for e in entries.values() if e is not None and _is_unsized(e)])
        listed = []
        for name, entry in entries.items():
            if entry is not None and entry["name"] not in sizes:
                listed.append(DirectoryEntry(name, entry["type"] == "directory", entry.get("size") or 0))
            elif entry is not None and (size := sizes[entry["name"]]) is not _GONE:
                listed.append(DirectoryEntry(name, False, _known(size, f"{path}/{name}")))
        self._listed_sizes[path] = {entry.name: entry.size_bytes for entry in listed if not entry.is_directory}
        return sorted(listed)

    def read_file(self, path: str) -> bytes | None:
        try:
            size = self._size(path)
            check_small(path, size)
            with remote_errors(path):
                content: bytes = self._inner.cat_file(self._place(path))
            if len(content) != size and len(content) != self._size(path):  # written meanwhile, or an incomplete answer
                raise _wrong_length(path, 0, size, len(content))
        except (FileNotFoundError, IsADirectoryError):
            return None
        return content

    def open_file(self, path: str) -> RemoteFile:
        return RemoteFile(self._inner, path, self._place(path), self._size(path))

    def open_small_reads(self, path: str) -> RemoteFile:
        """A file with the size of its directory's last listing, which readers use. Views report if the file is gone since."""
        directory, _, name = path.rpartition("/")
        size = self._listed_sizes.get(directory, {}).get(name)
        return self.open_file(path) if size is None else RemoteFile(self._inner, path, self._place(path), size)

    def _size(self, path: str) -> int:
        """A file's present size. FileNotFoundError if it does not exist; FileSystemUnavailableError if the size is unknown."""
        with remote_errors(path):
            place = self._place(path)
            self._inner.invalidate_cache(self._inner._parent(place))
            return _known(self._inner.size(place), path)

    def _place(self, path: str) -> str:
        """The path as fsspec takes it: on a web server the part below the store is quoted, as topics may hold `%`."""
        if self._web_base is not None and path.startswith(self._web_base):
            path = self._web_base + quote(path[len(self._web_base) :])
        stripped: str = self._inner._strip_protocol(path)
        return stripped

    def _name_in(self, place: str, found: str) -> str | None:
        """The name of a listed entry; None for one that is not directly below the place.

        That is the place itself, and on a web page links to anywhere: to the directory above, to the same page in another order.
        """
        own = place.rstrip("/")
        found = found.rstrip("/")
        if self._web_base is None:
            return found.rpartition("/")[2] if found != own else None
        above, _, name = found.partition("://")[2].rpartition("/")
        is_below = above == own.partition("://")[2] and not re.search("[?#]", name)
        return unquote(name) if is_below and name not in ("", ".", "..") else None

    def _with_known_kind(self, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The entry; for a link, or a listing without a kind, what `info` says of its target; None if that is gone."""
        if entry.get("type") in _KINDS:
            return entry
        try:
            return {**self._inner.info(entry["name"]), "name": entry["name"]}
        except FileNotFoundError:
            return None

    def _sizes(self, names: Sequence[str]) -> dict[str, Any]:
        """The sizes of files whose listing lacks them, in one request if the file system can; `_GONE` for missing files."""
        try:
            return dict(zip(names, self._inner.sizes(list(names)) if names else (), strict=True))
        except FileNotFoundError:
            return {name: self._size_or_gone(name) for name in names}

    def _size_or_gone(self, name: str) -> Any:
        try:
            with remote_errors(name):
                return self._inner.size(name)
        except FileNotFoundError:
            return _GONE


class RemoteFile:
    """A file read by ranges. Only the last block is kept, for reads that lie close together, and only up to its last nonzero byte:
    a running broker writes after that.
    """

    def __init__(self, inner: Any, path: str, place: str, size_bytes: int) -> None:
        """`place` is the path as `inner`, the fsspec file system, takes it."""
        self.path = path
        self.size_bytes = size_bytes
        self._inner = inner
        self._place = place
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
            content = self._inner.cat_file(self._place, start=start, end=end)
        self._check_length(content, start, end)
        return np.frombuffer(content, np.uint8)

    def _check_length(self, content: bytes, start: int, end: int) -> None:
        if len(content) != end - start:
            raise _wrong_length(self.path, start, end, len(content))

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, COALESCE_GAP_BYTES)
        if not len(starts):
            return np.empty(0, np.uint8), places
        with remote_errors(self.path):
            fetched = self._inner.cat_ranges(
                [self._place] * len(starts), starts.tolist(), stops.tolist(), on_error="raise"
            )
        for content, start, stop in zip(fetched, starts.tolist(), stops.tolist(), strict=True):
            self._check_length(content, start, stop)
        return np.frombuffer(b"".join(fetched), np.uint8), places

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        """One window: several would be several requests."""
        yield GatheredWindow(*self.gather(positions, sizes, scratch), slice(0, len(positions)), True)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        return [(position, self.size_bytes)] if position < self.size_bytes else []

    def give_pages_back(self) -> None:
        """Does nothing: it holds only the last block."""

    def close(self) -> None:
        self._block = np.empty(0, np.uint8)


_KINDS = ("file", "directory")
_GONE = object()
_RANGES = (
    "serve it by a server that answers byte ranges (nginx, Apache httpd, Caddy), or copy the store and read the copy"
)


def _is_unsized(entry: Mapping[str, Any]) -> bool:
    return entry["type"] != "directory" and entry.get("size") is None


def _known(size: Any, path: str) -> int:
    if size is None:
        raise _unavailable(path, "nothing there tells how large the file is", _RANGES)
    return int(size)


def _wrong_length(path: str, start: int, end: int, found: int) -> FileSystemUnavailableError:
    if found > end - start:
        return _unavailable(path, f"{found} bytes came where bytes {start} to {end} were requested", _RANGES)
    reason = f"only {found} bytes came where bytes {start} to {end} were requested"
    return _unavailable(
        path, reason, "the answer was cut, or the file is shorter now: read again, from a copy if it goes on"
    )


def _no_directory(url: str, *, is_web: bool) -> tuple[str, str] | None:
    """Why a URL can have no paths below it, and the cure; None if it can."""
    if "::" in url:
        return (
            "it names one file system inside another, and only plain URLs are read",
            "unpack or mount it, and give that path",
        )
    if is_web and re.search("[?#]", url):
        return "it has a query, below which no file can be named", "give the address of the store's directory alone"
    return None


def _unavailable(url: str, reason: str, cure: str) -> FileSystemUnavailableError:
    return FileSystemUnavailableError(url, host_name(), reason, cure)
