"""Whether a directory is a store, and what a path that is none is more likely to be. Reads only."""

from __future__ import annotations

import posixpath
from contextlib import suppress

from storage.errors import StorageError, StoreNotFoundError
from storage.files.file_system import DirectoryEntry, FileSystem
from storage.files.remote import absolute_path, name_server

HOME = "store"
"""What a broker's home calls its store, unless its configuration says otherwise."""
_STORE_DIRECTORIES = {"commitlog", "consumequeue"}
_MADE_BY_BROKERS = {"commitlog", "consumequeue", "config", "index", "abort", "checkpoint"}


def is_store(path: str, file_system: FileSystem) -> bool:
    return any(entry.is_directory and entry.name in _STORE_DIRECTORIES for entry in file_system.list_directory(path))


def is_file(path: str, file_system: FileSystem) -> bool:
    entry = _entry(path, file_system)
    return entry is not None and not entry.is_directory


def no_store(path: str, missing: str, file_system: FileSystem, *, to_make: bool = False) -> StoreNotFoundError:
    """The error for a path where no store is, because `missing` is; `to_make`: a store would have been made in an empty directory.

    It says more where the path is a file, lies in a store, is a broker's home or a name server. A local path is told from the root on.
    """
    shown = absolute_path(path)
    names = {entry.name for entry in file_system.list_directory(path)}
    around = _store_around(shown, file_system)
    hint = None if around is None else f"give the directory that holds it: {around}"
    if file_system.is_local and not names and is_file(path, file_system):
        return StoreNotFoundError(shown, missing, found="it is a file", hint=hint)
    if around is not None and (names or _entry(path, file_system) is not None):
        return StoreNotFoundError(shown, missing, found="it is a part of a store", hint=hint)
    if HOME in names and is_store(f"{path}/{HOME}", file_system):
        home = f"{shown}/{HOME}"
        return StoreNotFoundError(shown, missing, found=f"the store is {home}", hint=f"give {home}")
    if to_make and names and not names & _MADE_BY_BROKERS:
        hint = "give an empty or new directory, or the store itself"
        return StoreNotFoundError(shown, missing, found="the directory is not empty and holds no store", hint=hint)
    return StoreNotFoundError(shown, missing, found=None if names else name_server(path), hint=hint)


def _store_around(path: str, file_system: FileSystem) -> str | None:
    """The nearest directory above a path that is a store. One that may not be listed is passed over."""
    scheme, separator, place = path.rpartition("://")
    if ".." in place.split("/"):  # what lies above it, the system alone knows
        return None
    while (parent := posixpath.dirname(place)) not in ("", place):
        place = parent
        with suppress(OSError, StorageError):
            if is_store(f"{scheme}{separator}{place}", file_system):
                return f"{scheme}{separator}{place}"
    return None


def _entry(path: str, file_system: FileSystem) -> DirectoryEntry | None:
    parent, _, name = path.rpartition("/")
    directory = parent or ("/" if path.startswith("/") else ".")
    return next((entry for entry in file_system.list_directory(directory) if entry.name == name), None)
