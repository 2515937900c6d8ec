"""Changes to the tables of a store whose broker is not running: a consumer group's progress, a new topic, a changed one.

All changes are made under the store's lock. A running broker holds that lock, and would overwrite every change from its memory. Only
the named tables and their `.bak` are touched: no recovery, no `abort`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem, read_table, write_with_backup
from storage.names import GROUP_LENGTH_LIMIT, validate_user_topic
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import ConsumerOffsets, SubscriptionGroupTable, ensure_group
from storage.tables.document import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE
from storage.tables.surroundings import refuse_foreign_log
from storage.tables.topics import (
    MAPPINGS_FILE,
    TopicConfig,
    TopicQueueMappingTable,
    TopicTable,
    broker_names,
    with_names,
)

_T = TypeVar("_T")


class _Table(Protocol):
    def to_text(self) -> str: ...


def write_group_offsets(
    root: str,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    now_ms: int,
    file_system: LocalFileSystem,
    longest: int = GROUP_LENGTH_LIMIT,
) -> bool:
    """Store the group's next offsets by (topic, queue id) in the store at ROOT = `root`; returns whether a file changed.

    Offsets are set as given, even if they decrease; other queues and groups keep theirs. A new group gets its entry and its
    `%RETRY%` topic, and has at most `longest` characters (`Release.longest_group`). Each changed table's version is raised.

    Order of writes, each file replaced whole and synced, and only where it changes: topics.json (the group's `%RETRY%` topic) ·
    subscriptionGroup.json (its entry) · consumerOffset.json. Commit point: the rename to consumerOffset.json. A crash before it
    leaves the group visible with its former offsets, or with none, and the same call again finishes; tools fail on a group
    without its retry topic, hence the order. The lock is not waited for.
    Java: ConsumerOffsetManager.commitOffset and persist; a broker makes entry and topic at a consumer's first heartbeat.

    Raises StoreLockedError at once if another writer or a broker has the store, StoreServedError if it is a broker of ours,
    StateFileError for an unreadable table, which is left as it is, NameIllegalError, ValueError for a negative offset, OSError.
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
        new_groups, new_topics = ensure_group(groups, topics, group, now_ms=now_ms, longest=longest)
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


def create_topic(
    root: str,
    config: StoreConfig,
    topic: TopicConfig,
    *,
    now_ms: int,
    file_system: LocalFileSystem,
    lock_timeout_ms: int = 0,
) -> TopicConfig | None:
    """Enter the topic in topics.json, and return None; or return the entry that it has already, unchanged.

    Commit point: the rename to topics.json. Java: AdminBrokerProcessor.updateAndCreateTopic, TopicConfigManager.updateTopicConfig.

    Raises NameIllegalError for a name that a user's topic must not have, StoreLockedError, StoreRefusedError, StateFileError, OSError.
    """
    refuse_foreign_log(root, config, file_system)
    path = f"{root}/config/{TOPICS_FILE}"
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        table = read_table(path, TopicTable.load, file_system.read_file) or TopicTable()
        names = broker_names(config, table)
        validate_user_topic(topic.topic, broker_name=names.broker, cluster_name=names.cluster)
        if topic.topic in table.topics:
            return table.topics[topic.topic]
        table = with_names(table.with_topic(topic, now_ms=now_ms), names, config.send, now_ms=now_ms)
        table.refuse_batches(root)
        write_with_backup(path, table.to_text(), file_system)
    return None


def alter_topic(
    root: str,
    config: StoreConfig,
    topic: str,
    change: Callable[[TopicConfig], TopicConfig],
    *,
    now_ms: int,
    file_system: LocalFileSystem,
    lock_timeout_ms: int = 0,
) -> tuple[TopicConfig, TopicConfig] | None:
    """Change the topic's entry in topics.json; returns it as it was and as it is now, None where there is none. Queues stay.

    Commit point: the rename to topics.json. Java: AdminBrokerProcessor.updateAndCreateTopic, TopicConfigManager.updateTopicConfig.

    Raises NameIllegalError for a topic that users must not change, StoreLockedError, StoreRefusedError, StateFileError, OSError, and
    what `change` raises.
    """
    refuse_foreign_log(root, config, file_system)
    path = f"{root}/config/{TOPICS_FILE}"
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        table = read_table(path, TopicTable.load, file_system.read_file) or TopicTable()
        names = broker_names(config, table)
        validate_user_topic(topic, broker_name=names.broker, cluster_name=names.cluster)
        present = table.topics.get(topic)
        if present is None:
            return None
        wanted = change(present)
        mappings = read_table(f"{root}/config/{MAPPINGS_FILE}", TopicQueueMappingTable.load, file_system.read_file)
        if mappings is not None and topic in mappings.mappings:
            raise StoreRefusedError(root, f"topic {topic} is static: mqadmin updateStaticTopic changes its queues")
        if wanted != present:
            table = with_names(table.with_topic(wanted, now_ms=now_ms), names, config.send, now_ms=now_ms)
            table.refuse_batches(root)
            write_with_backup(path, table.to_text(), file_system)
    return present, wanted
