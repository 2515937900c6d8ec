"""What to write again because a sync of it failed: ROOT/spark_mq/failed_sync.json.

After a failed sync the kernel takes the pages for clean, though they are not on the disk (fsync(2), EIO): the next sync says that all
is well and writes nothing. So recovery, which finds the bytes in the page cache, would serve and vouch for what a power loss takes
away. Whoever sees a sync fail notes which files held something unsynced; the next opening writes what they hold in its place once more,
syncs that, and only then recovers. The note is not synced: it is about the page cache, and lives as long. Where the disk does not even
take the note, it goes into a file in memory (`LocalFileSystem.memory_path`). Java 5.3.3 goes on as if nothing had been
(apache/rocketmq#2706, #9713).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from storage.files.local_file_system import LocalFileSystem

_CHUNK_BYTES = 1 << 20


def note_failed_sync(file_system: LocalFileSystem, root: str, paths: Iterable[str]) -> None:
    """Note files and directories that were to be synced, besides those that are noted already."""
    noted = set(paths)
    for place in _places(file_system, root):
        with suppress(OSError):
            noted.update(_noted(file_system, place))
    for place in _places(file_system, root):
        with suppress(OSError):
            _note(file_system, place, noted)
            return


def _note(file_system: LocalFileSystem, place: str, paths: set[str]) -> None:
    temporary = f"{place}.tmp"
    if not file_system.exists(posixpath.dirname(place)):
        file_system.make_directories(posixpath.dirname(place))
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    file_system.create_file(temporary, 0)
    file_system.write(temporary, 0, json.dumps({"boot_id": file_system.boot_id(), "paths": sorted(paths)}).encode())
    file_system.rename(temporary, place)


@contextmanager
def noting_failed_syncs(file_system: LocalFileSystem, root: str, paths: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Notes `paths` where an OSError comes out: one of them may be from a sync."""
    try:
        yield
    except OSError:
        note_failed_sync(file_system, root, paths())
        raise


def write_again(file_system: LocalFileSystem, root: str) -> None:
    """Make what is noted dirty once more, and sync it. Changes no byte. Raises OSError; then all stays noted."""
    for place in _places(file_system, root):
        for path in _noted(file_system, place):
            if _is_file(file_system, path):
                _write_again(file_system, path)
            if file_system.exists(path):
                file_system.sync(path)
        if file_system.exists(place):
            file_system.unlink(place)


def try_disk(file_system: LocalFileSystem, root: str, room_bytes: int) -> None:
    """Do what the next opening will ask of the disk first: `write_again`, then a new file with so much room. Raises OSError.

    For who has the store alone, and appends nothing meanwhile.
    """
    write_again(file_system, root)
    tried = f"{root}/spark_mq/tried_disk"
    try:
        file_system.replace(tried, b"\0")
        file_system.reserve(tried, 0, room_bytes)
    finally:
        if file_system.exists(tried):
            file_system.unlink(tried)


def _write_again(file_system: LocalFileSystem, path: str) -> None:
    opened = file_system.open_file(path)
    try:
        for start, stop in opened.data_ranges(0):
            for at in range(start, stop, _CHUNK_BYTES):
                file_system.write(path, at, opened.view(at, min(_CHUNK_BYTES, stop - at)).tobytes())
    finally:
        opened.close()


def _is_file(file_system: LocalFileSystem, path: str) -> bool:
    directory, name = posixpath.split(path)
    return any(entry.name == name and not entry.is_directory for entry in file_system.list_directory(directory))


def _noted(file_system: LocalFileSystem, place: str) -> list[str]:
    """Files before their directories; nothing after a start of the machine, or where the note cannot be read."""
    try:
        document = json.loads(file_system.read_file(place) or b"{}")
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict) or document.get("boot_id") != file_system.boot_id():
        return []
    paths = document.get("paths")
    return sorted(filter(_is_path, paths), reverse=True) if isinstance(paths, list) else []


def _is_path(value: object) -> bool:
    """Whether the system takes it for one: a str without NULs and lone surrogates."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _places(file_system: LocalFileSystem, root: str) -> list[str]:
    """Of notes: the first that takes one has it."""
    in_memory = file_system.memory_path(root)
    return [f"{root}/spark_mq/failed_sync.json", *([in_memory] if in_memory else [])]
