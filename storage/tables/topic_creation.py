"""Giving a topic its entry in topics.json, in a store whose broker is not running.

Under the store's lock, which a running broker holds: it would write its own table over every change. Touches `config/topics.json`
and its `.bak`, nothing else: no recovery, no `abort`. Commit point: the rename to topics.json.

Java: AdminBrokerProcessor.updateAndCreateTopic, TopicConfigManager.updateTopicConfig.
"""

from __future__ import annotations

from storage.errors import StoreRefusedError
from storage.files.atomic_file import read_table, write_with_backup
from storage.files.local_file_system import LocalFileSystem
from storage.names import validate_user_topic
from storage.settings.load import StoreConfig, refuse_for_writing
from storage.tables.broker_names import broker_names, with_names
from storage.tables.surroundings import refuse_foreign_log
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable


def create_topic(
    root: str,
    config: StoreConfig,
    topic: TopicConfig,
    *,
    now_ms: int,
    file_system: LocalFileSystem,
    lock_timeout_ms: int = 0,
) -> TopicConfig | None:
    """Enter the topic, and return None; or the entry that it has already, which is left as it is.

    Raises NameIllegalError for a name that no user's topic may have, StoreLockedError, StoreRefusedError, StateFileError, OSError.
    """
    if reasons := refuse_for_writing(config):
        raise StoreRefusedError(root, "; ".join(reasons))
    refuse_foreign_log(root, config, file_system)
    path = f"{root}/config/{TOPICS_FILE}"
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        table = read_table(path, TopicTable.load, file_system.read_file) or TopicTable()
        names = broker_names(config, table)
        validate_user_topic(topic.topic, broker_name=names.broker, cluster_name=names.cluster)
        if topic.topic in table.topics:
            return table.topics[topic.topic]
        table = with_names(table.with_topic(topic, now_ms=now_ms), names, config.send, now_ms=now_ms)
        write_with_backup(path, table.to_text(), file_system)
    return None
