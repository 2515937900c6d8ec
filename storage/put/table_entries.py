"""The entries of an open store's topics.json and subscriptionGroup.json: read by any thread, made and changed by one at a time.

Java: TopicConfigManager, SubscriptionGroupManager.

The table in memory is a frozen value, replaced when the file holds the new one. So a reader needs no lock, and sees no entry
that a crash could take back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType

from storage.files.atomic_file import read_table, write_with_backup
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.put.settings import PutSettings
from storage.tables.subscription_groups import FILE_NAME as GROUPS_FILE
from storage.tables.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable


class TopicEntries:
    """The settings of a writer, of which the topics change. Thread-safe."""

    def __init__(
        self,
        root: str,
        file_system: LocalFileSystem,
        settings: PutSettings,
        clock: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` is told of an error after which nobody knows whether the disk holds the table."""
        self.settings = settings
        self._path = f"{root}/config/{TOPICS_FILE}"
        self._file_system = file_system
        self._clock = clock
        self._fail = fail
        self._lock = threading.Lock()

    def ensure(self, wanted: Mapping[str, int], grown: Mapping[str, int] = MappingProxyType({})) -> None:
        """Topics that have no entry get one with so many queues; those of `grown` get more where they have fewer.

        Raises NameIllegalError, OSError.
        """
        if not grown and wanted.keys() <= self.settings.topics.topics.keys():
            return
        with self._lock:
            table, rules = self.settings.topics, self.settings.topic_rules
            for topic, queue_count in (*wanted.items(), *grown.items()):
                if topic not in table.topics or topic in grown:
                    table = table.ensure_topic(
                        topic,
                        queue_count,
                        now_ms=self._clock(),
                        broker_name=self.settings.broker_name,
                        cluster_name=self.settings.cluster,
                        new=rules.new_topic(topic, queue_count),
                    )
            if table is not self.settings.topics:
                self._change(table)

    def save(self, topic: TopicConfig) -> None:
        """The topic's entry, new or in place of its old one; nothing where it says so already. Raises OSError."""
        with self._lock:
            if self.settings.topics.topics.get(topic.topic) != topic:
                self._change(self.settings.topics.with_topic(topic, now_ms=self._clock()))

    def make(self, topic: TopicConfig) -> TopicConfig:
        """The topic's entry: this one where there was none, else the one that somebody else has made meanwhile. Raises OSError."""
        with self._lock:
            present = self.settings.topics.topics.get(topic.topic)
            if present is None:
                self._change(self.settings.topics.with_topic(topic, now_ms=self._clock()))
            return present or topic

    def remove(self, topic: str) -> None:
        """No entry for the topic; nothing where it has none. Raises OSError."""
        with self._lock:
            if topic in self.settings.topics.topics:
                self._change(self.settings.topics.without_topic(topic, now_ms=self._clock()))

    def replace(self, table: TopicTable) -> None:
        """Another table in place of this one. Raises OSError."""
        with self._lock:
            self._save(table)

    def tell_names(self) -> None:
        """What tells the names of broker and cluster, where it is missing and the broker's is known. Raises OSError."""
        with self._lock:
            if self.settings.named(self.settings.topics, self._clock()) is not self.settings.topics:
                self._change(self.settings.topics)

    def _change(self, table: TopicTable) -> None:
        """Save a table of this store's own, with the topics that are named after broker and cluster, as Java does at each change."""
        self._save(self.settings.named(table, self._clock()))

    def _save(self, table: TopicTable) -> None:
        text = table.to_text()
        try:
            write_with_backup(self._path, text, self._file_system)
        except OSError as error:
            if self._says(text):  # though nobody knows whether the disk does
                self._fail(error)
            raise
        self.settings = self.settings.with_topics(table)

    def _says(self, text: str) -> bool:
        try:
            return self._file_system.read_file(self._path) == text.encode()
        except OSError:
            return True


class GroupEntries:
    """The consumer groups of one store, read when first asked for. Thread-safe."""

    def __init__(self, root: str, file_system: FileSystem, lock: AbstractContextManager[object]) -> None:
        """`lock` can be taken again by the thread that has it."""
        self._path = f"{root}/config/{GROUPS_FILE}"
        self._read = file_system.read_file
        self._lock = lock
        self._table: SubscriptionGroupTable | None = None

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """As they are now. Raises StateFileError."""
        return self._known().groups

    @property
    def table(self) -> SubscriptionGroupTable:
        """The whole table as it is now. Raises StateFileError."""
        return self._known()

    def remove(self, group: str, file_system: LocalFileSystem, now_ms: int) -> None:
        """No entry for the group; nothing where it has none. Raises OSError."""
        self._replace(lambda table: table.without_group(group, now_ms=now_ms), file_system)

    def forbid(self, group: str, topic: str, bits: int, file_system: LocalFileSystem, now_ms: int) -> None:
        """What is forbidden to the group in the topic, as `SubscriptionGroupTable.with_forbidden`. Raises OSError."""
        self._replace(lambda table: table.with_forbidden(group, topic, bits, now_ms=now_ms), file_system)

    def save(self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int) -> None:
        """The group's entry, new or in place of the old one. Raises OSError."""
        self._replace(lambda table: table.with_group(group, now_ms=now_ms), file_system)

    def make(
        self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int
    ) -> SubscriptionGroupConfig:
        """The group's entry: this one where there was none, else the one that somebody else has made meanwhile. Raises OSError."""
        with self._lock:
            present = self._known().groups.get(group.group)
            if present is None:
                self.save(group, file_system, now_ms)
            return present or group

    def replace(self, table: SubscriptionGroupTable, file_system: LocalFileSystem) -> None:
        """Another table in place of this one. Raises OSError."""
        self._replace(lambda _: table, file_system)

    def _replace(
        self, change: Callable[[SubscriptionGroupTable], SubscriptionGroupTable], file_system: LocalFileSystem
    ) -> None:
        with self._lock:
            known = self._known()
            table = change(known)
            if table is not known:
                write_with_backup(self._path, table.to_text(), file_system)
                self._table = table

    def _known(self) -> SubscriptionGroupTable:
        if (table := self._table) is not None:
            return table
        with self._lock:
            if self._table is None:
                table = read_table(self._path, SubscriptionGroupTable.load, self._read)
                self._table = table or SubscriptionGroupTable()
            return self._table
