"""Whether a directory is a store, and what a path that is none is more likely to be. Reads only."""

from __future__ import annotations

from storage.errors import StoreNotFoundError
from storage.files.file_system import FileSystem
from storage.files.remote import absolute_path

HOME = "store"
"""What a broker's home calls its store, unless its configuration says otherwise."""
_STORE_DIRECTORIES = {"commitlog", "consumequeue"}
_PARTS = {"commitlog", "consumequeue", "config", "index"}
_MADE_BY_BROKERS = {*_PARTS, "abort", "checkpoint"}


def is_store(path: str, file_system: FileSystem) -> bool:
    return any(entry.is_directory and entry.name in _STORE_DIRECTORIES for entry in file_system.list_directory(path))


def is_file(path: str, file_system: FileSystem) -> bool:
    parent, _, name = path.rpartition("/")
    return any(
        entry.name == name and not entry.is_directory for entry in file_system.list_directory(parent or _root(path))
    )


def no_store(path: str, missing: str, file_system: FileSystem, *, to_make: bool = False) -> StoreNotFoundError:
    """The error for a path where no store is, because `missing` is; `to_make`: a store would have been made in an empty directory.

    It says more where the path is a file, a part of a store, or a broker's home. A local path is told from the root on.
    """
    shown = absolute_path(path)
    names = {entry.name for entry in file_system.list_directory(path)}
    if file_system.is_local and not names and is_file(path, file_system):
        return StoreNotFoundError(shown, missing, found="it is a file")
    parent, _, name = shown.rpartition("/")
    if name in _PARTS and is_store(parent, file_system):
        return StoreNotFoundError(
            shown, missing, found="it is a part of a store", hint=f"give the directory that holds it: {parent}"
        )
    if HOME in names and is_store(f"{path}/{HOME}", file_system):
        home = f"{shown}/{HOME}"
        return StoreNotFoundError(shown, missing, found=f"the store is {home}", hint=f"give {home}")
    if to_make and names and not names & _MADE_BY_BROKERS:
        hint = "give an empty or new directory, or the store itself"
        return StoreNotFoundError(shown, missing, found="the directory is not empty and holds no store", hint=hint)
    return StoreNotFoundError(shown, missing)


def _root(path: str) -> str:
    return "/" if path.startswith("/") else "."
