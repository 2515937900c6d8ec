"""Making an empty store, which a broker would open as its own. Java: a broker's first start."""

from __future__ import annotations

from storage.config import StoreConfig, commit_log_directories
from storage.errors import StoreNotFoundError
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
    if not names and _is_there(root, file_system, as_directory=False):
        return False
    return names <= {"spark_mq", "lock", "commitlog", "consumequeue", "index", "config", "broker.conf"}


def find_log_directories(
    root: str, config: StoreConfig, file_system: FileSystem, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    """The log's directories of the store at ROOT, or, with `may_be_empty`, of the one that could be made there.

    Raises StoreNotFoundError where neither is so.
    """
    directories = commit_log_directories(root, config, is_directory=lambda path: _is_there(path, file_system))
    if any(_is_there(directory, file_system) for directory in directories):
        return directories
    if may_be_empty and is_empty_place(root, file_system):
        return directories
    raise StoreNotFoundError(root, " or ".join(f"{directory}/" for directory in directories))


def _is_there(path: str, file_system: FileSystem, *, as_directory: bool = True) -> bool:
    parent, _, name = path.rpartition("/")
    return any(
        entry.name == name and entry.is_directory == as_directory for entry in file_system.list_directory(parent or "/")
    )
