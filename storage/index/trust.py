"""What of the index is known to be on the disk, kept where only this package looks: ROOT/spark_mq/index_synced.json.

Before a commit's first index write the checkpoint's `indexMsgTimestamp` is raised to the store time of that commit, because a broker
deletes, on an unclean start, every index file that ends later. So the field runs ahead of what is synced. After a killed
process that is right, for the system still has every byte. After a power loss it is not: then this file's time counts, and what
is younger is entered again from the log. That holds after a clean stop too, for a broker that started and stopped in between has
believed the checkpoint.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from storage.files.local_file_system import LocalFileSystem


class IndexTrust(NamedTuple):
    """Which index files are as they should be; both by their end time in ms."""

    keep_until_ms: int | None
    """Files that end later were lost in part; None = none was."""
    synced_until_ms: int
    """Files that end then or later may have been left between their header and their slots."""

    def keeps(self, end_time_ms: int) -> bool:
        return self.keep_until_ms is None or end_time_ms <= self.keep_until_ms

    def is_synced(self, end_time_ms: int) -> bool:
        return end_time_ms < self.synced_until_ms  # what came later in that very millisecond is not


_ALL = IndexTrust(None, 2**63 - 1)


def _path(root: str) -> str:
    return f"{root}/spark_mq/index_synced.json"


def save_index_trust(file_system: LocalFileSystem, root: str, synced_time_ms: int) -> None:
    """Index files that end at or before this store time are on the disk. Durable on return."""
    document = {"bootId": file_system.boot_id(), "indexSyncedTime": synced_time_ms}
    file_system.replace(_path(root), json.dumps(document).encode())


def has_index_trust(file_system: LocalFileSystem, root: str) -> bool:
    """Whether the checkpoint runs ahead already. What is known to be synced does not change until a checkpoint is written."""
    return file_system.exists(_path(root))


def drop_index_trust(file_system: LocalFileSystem, root: str) -> None:
    """All of the index is on the disk, and the checkpoint says so."""
    if file_system.exists(_path(root)):
        file_system.unlink(_path(root))


def load_index_trust(
    file_system: LocalFileSystem, root: str, index_msg_timestamp: int, *, was_clean: bool = False
) -> IndexTrust:
    """What to believe of the index. Where this package never ran ahead of the checkpoint: all of it after a clean stop,
    the checkpoint's `index_msg_timestamp` after an unclean one.
    """
    content = file_system.read_file(_path(root))
    if content is None:
        return _ALL if was_clean else IndexTrust(index_msg_timestamp, index_msg_timestamp)
    try:
        document = json.loads(content)
        boot_id, synced = document["bootId"], min(int(document["indexSyncedTime"]), index_msg_timestamp)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return IndexTrust(0, 0)
    return IndexTrust(None if boot_id == file_system.boot_id() else synced, synced)
