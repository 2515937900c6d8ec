"""Making an empty store, which a broker would open as its own. Java: a broker's first start."""

from __future__ import annotations

import posixpath

from storage.errors import ForeignLogError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import name_server
from storage.settings.load import StoreConfig
from storage.tables.log_place import LogPlace
from storage.tables.store_signs import is_file, no_store
from storage.tables.surroundings import log_place


def create_store(root: str, directories: tuple[str, ...], file_system: LocalFileSystem) -> None:
    """Make the directories of a store at ROOT, durably; what is there stays. Files come with the first message.

    `directories` are the log's, as `find_log` gave them for writing: they lie in ROOT, or ROOT is bound to them. The caller holds the
    store's lock, whose file may be all that is there, and syncs ROOT where a process may have been killed that made them.
    """
    for directory in (*directories, f"{root}/consumequeue", f"{root}/index", f"{root}/config"):
        if posixpath.dirname(directory) != root or not file_system.exists(directory):
            file_system.make_directories(directory)


def sync_new_store(root: str, file_system: LocalFileSystem) -> None:
    """Put ROOT's name on the disk, and those of the directories in it."""
    file_system.sync(root)
    file_system.sync(posixpath.dirname(root) or ".")


def is_empty_place(root: str, file_system: FileSystem) -> bool:
    """Whether a store may be made at ROOT: nothing is there, or nothing but what this package puts there before.

    Not at `host:port`: who writes that means no directory.
    """
    names = {entry.name for entry in file_system.list_directory(root)}
    if not names and (is_file(root, file_system) or name_server(root)):
        return False
    return names <= {"spark_mq", "lock", "commitlog", "consumequeue", "index", "config", "broker.conf"}


def find_log(
    root: str, config: StoreConfig, file_system: FileSystem, *, may_be_empty: bool = False, to_write: bool = False
) -> LogPlace:
    """The log of the store at ROOT, or, with `may_be_empty`, of the one that could be made there. Changes nothing.

    Raises StoreNotFoundError where neither is so; with `to_write` ForeignLogError where the log may be another store's.
    """
    place = log_place(root, config, file_system)
    if place.missing:
        is_empty = is_empty_place(root, file_system)
        if not (may_be_empty and is_empty):
            error = no_store(root, " or ".join(place.missing), file_system, to_make=may_be_empty)
            if to_write and is_empty and not may_be_empty:
                error.hint = f"{error.hint}; in Python, open_store with create=True makes a new one"
            raise error
    if to_write and place.refusal is not None:
        raise ForeignLogError(root, *place.refusal)
    return place
