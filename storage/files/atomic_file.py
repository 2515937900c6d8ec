"""A small state file that is replaced whole, with its predecessor beside it as NAME.bak.

Write: NAME.bak.tmp (old content), fsync, rename to NAME.bak, fsync of the directory · NAME.tmp (new content), fsync,
rename to NAME, fsync of the directory. Old content that readers do not accept as a table goes to NAME.bad instead of NAME.bak.
Commit point: the rename to NAME. A crash before it leaves the old file, a crash after it the new one (or, if the directory was
not synced yet, either); never half of one. Temporary files that a crash leaves are ignored by a broker and overwritten by the next
write.

Java: ConfigManager.load and persist, MixAll.string2File. Departures: Java overwrites NAME and NAME.bak in
place and does not sync, and an empty or torn NAME, as a crash of such a write leaves it, takes the place of a
good NAME.bak with the next write.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage.errors import StateFileError
from storage.failpoints import reach
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson

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
