"""Check that driver, tasks and commit of a write see the same directory: tasks stage files there, and the commit appends them.

    driver   sees the store and takes a fingerprint of its log; none if the store does not exist yet
    task     compares it with what it sees, before it judges a row by the store's topics and settings
    commit   looks for the files that the tasks have staged; their names are unique to each task

If the commit does not see a file, the two directories differ, or the file was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from spark_mq.conditions import writing_conditions
from spark_mq.sink.options import SinkOptions
from storage.errors import OffsetOutOfRangeError, StoreNotSharedError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import host_name
from storage.log.commit_log import LOOKS, CommitLog
from storage.log.fingerprint import LogFingerprint, difference, record_head, take_fingerprint
from storage.settings.load import load_config
from storage.tables.surroundings import OF_A_SINK, find_log

_T = TypeVar("_T")


class SeenStore(NamedTuple):
    """The log of the store that the driver saw, with the directories that may hold its files."""

    log_directories: tuple[str, ...]
    fingerprint: LogFingerprint


def check_place(options: SinkOptions) -> SeenStore | None:
    """Before any task stages rows: the store that is there; None where there is none yet, or one without a message.

    Raises SPARK_MQ_STORE_NOT_FOUND where the path is no store and none may be made there, SPARK_MQ_FOREIGN_LOG where the log may be
    another store's.
    """
    files = LocalFileSystem()
    with writing_conditions(options.root):
        config = load_config(options.root, options.conf, read_bytes=files.read_file)
        directories = find_log(
            options.root, config, files, may_be_empty=not options.send_back, writer=OF_A_SINK
        ).directories
        size = config.commit_log.mapped_file_size_commit_log
        found = _looked_at(
            directories, size, lambda log: take_fingerprint(log, log.files[-1].end if log.files else 0, None)
        )
    return None if found is None else SeenStore(directories, found)


def check_task_place(root: str, seen: SeenStore) -> None:
    """In a task: raises StoreNotSharedError unless this machine sees the store that the driver saw."""
    try:
        reason = _looked_at(
            seen.log_directories, None, lambda log: difference(seen.fingerprint, log.files, partial(record_head, log))
        )
    except StoreRefusedError as error:  # the driver has seen nothing wrong
        reason = error.reason
    if reason is not None:
        raise StoreNotSharedError(host_name(), root, reason)


def _looked_at(directories: tuple[str, ...], file_size_bytes: int | None, look: Callable[[CommitLog], _T]) -> _T:
    """The result of a look at the log; repeated if files expired meanwhile."""
    left = LOOKS
    while True:
        log = CommitLog(LocalFileSystem(), directories, file_size_bytes)
        left -= 1
        try:
            return look(log)
        except OffsetOutOfRangeError:
            if not left:
                raise
        finally:
            log.close()


def not_shared(task_host: str, directory: str, path: str) -> StoreNotSharedError:
    """The error for a staged file below the directory that the commit, which runs here, does not see."""
    reason = f"its task wrote {path}, and the commit on {host_name()} does not find that file"
    return StoreNotSharedError(task_host, directory, reason)
