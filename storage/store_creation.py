"""Making an empty store, which a broker would open as its own. Java: a broker's first start."""

from __future__ import annotations

from storage.config import StoreConfig, commit_log_directories
from storage.files.file_system import FileSystem, LocalFileSystem


def create_store(root: str, config: StoreConfig, file_system: LocalFileSystem) -> None:
    """Make the directories of a store at ROOT, durably; what is there stays. Files come with the first message.

    The caller holds the store's lock, whose file may be all that is there.
    """
    directories = commit_log_directories(root, config, is_directory=file_system.exists)
    for directory in (*directories, f"{root}/consumequeue", f"{root}/index", f"{root}/config"):
        file_system.make_directories(directory)


def is_empty_place(root: str, file_system: FileSystem) -> bool:
    """Whether a store may be made at ROOT: nothing is there, or nothing but what this package puts there before."""
    names = {entry.name for entry in file_system.list_directory(root)}
    return names <= {"spark_mq", "lock", "commitlog", "consumequeue", "index", "config", "broker.conf"}
