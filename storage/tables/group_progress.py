"""A consumer group's progress, written into a store whose broker is not running.

Order of writes, each file replaced whole and synced, and only where it changes: topics.json (the group's `%RETRY%` topic) ·
subscriptionGroup.json (its entry) · consumerOffset.json. Commit point: the rename to consumerOffset.json. A crash before it
leaves the group visible with its former offsets, or with none, and the same call again finishes; tools fail on a group
without its retry topic, hence the order. All of it is done under the store's lock, which is not waited for: a running broker
would write its own memory over every change.

Touches these three files and their `.bak`, nothing else: no recovery, no `abort`.

Java: ConsumerOffsetManager.commitOffset and persist; a broker makes entry and topic at a consumer's first heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from storage.files.atomic_file import read_table, write_with_backup
from storage.files.local_file_system import LocalFileSystem
from storage.tables.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.tables.consumer_offsets import ConsumerOffsets
from storage.tables.subscription_groups import FILE_NAME as GROUPS_FILE
from storage.tables.subscription_groups import SubscriptionGroupTable, ensure_group
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicTable

_T = TypeVar("_T")


class _Table(Protocol):
    def to_text(self) -> str: ...


def write_group_offsets(
    root: str, group: str, offsets: Mapping[tuple[str, int], int], *, now_ms: int, file_system: LocalFileSystem
) -> bool:
    """Store the group's next offsets by (topic, queue id) in the store at ROOT = `root`; returns whether a file changed.

    Offsets are set as given, also lower ones; other queues and groups keep theirs. A new group gets its entry and its
    `%RETRY%` topic. The version of every table that changes is raised.
    Raises StoreLockedError at once where another writer or a broker has the store, StoreServedError where it is a broker of ours,
    StateFileError where a table cannot be read (it is then left as it is), NameIllegalError, ValueError for a negative offset, OSError.
    """
    directory = f"{root}/config"
    with file_system.locked(f"{root}/lock", holder="sink"):
        topics = read_table(f"{directory}/{TOPICS_FILE}", TopicTable.load, file_system.read_file) or TopicTable()
        groups = (
            read_table(f"{directory}/{GROUPS_FILE}", SubscriptionGroupTable.load, file_system.read_file)
            or SubscriptionGroupTable()
        )
        progress = (
            read_table(f"{directory}/{OFFSETS_FILE}", ConsumerOffsets.load, file_system.read_file) or ConsumerOffsets()
        )
        new_groups, new_topics = ensure_group(groups, topics, group, now_ms=now_ms)
        new_progress = progress.with_offsets(group, offsets, now_ms=now_ms)
        changes: list[tuple[str, _Table, _Table]] = [
            (TOPICS_FILE, topics, new_topics),
            (GROUPS_FILE, groups, new_groups),
            (OFFSETS_FILE, progress, new_progress),
        ]
        changed = [(name, table) for name, old, table in changes if table is not old]
        for name, table in changed:
            write_with_backup(f"{directory}/{name}", table.to_text(), file_system)
    return bool(changed)
