"""Consumer groups of a store: `config/subscriptionGroup.json`.

A group without an entry appears on its first heartbeat or pull where the broker may create it. Tools show a
group only with its entry and its `%RETRY%` topic: `ensure_group` makes both.

Java: SubscriptionGroupManager, SubscriptionGroupConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from storage.files.atomic_file import read_table, write_with_backup
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson
from storage.format.table_entries import SubscriptionGroupConfig as SubscriptionGroupConfig
from storage.names import retry_topic, validate_group
from storage.tables.document import DataVersion, decode_entry, encode_entry, integer, parse_document, section
from storage.tables.topics import TopicTable

FILE_NAME = "subscriptionGroup.json"
_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable:
    """All entries of the file, by group. Every change gives a new table with its version raised."""

    version: DataVersion = field(default_factory=DataVersion)
    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> SubscriptionGroupTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none.

        Names are not judged.
        """
        document = parse_document(text, file)
        entries = section(document, _TABLE, file).items()
        groups = {group: decode_entry(SubscriptionGroupConfig, group, entry, file) for group, entry in entries}
        if forbidden := section(document, _FORBIDDEN, file):
            document[_FORBIDDEN] = {group: _bits_by_topic(forbidden, group, file) for group in forbidden}
        return cls(DataVersion.from_document(document, file), groups, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_group(self, config: SubscriptionGroupConfig, *, now_ms: int) -> SubscriptionGroupTable:
        """The table with that entry, new or in place of the group's old one."""
        entries: dict[str, Any] = dict(self.document.get(_TABLE) or {})
        entries[config.group] = encode_entry(config, entries.get(config.group))
        return self._changed({**self.groups, config.group: config}, entries, self.forbidden, now_ms)

    def without_group(self, group: str, *, now_ms: int) -> SubscriptionGroupTable:
        """The table without the group's entry, and without what is forbidden to it; itself if there is none."""
        if group not in self.groups:
            return self
        entries = {name: entry for name, entry in self.document[_TABLE].items() if name != group}
        groups = {name: config for name, config in self.groups.items() if name != group}
        forbidden = {name: topics for name, topics in self.forbidden.items() if name != group}
        return self._changed(groups, entries, forbidden, now_ms)

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """By group and topic, what is forbidden: bit 0 reading. Java: forbiddenTable."""
        found = self.document.get(_FORBIDDEN)
        return found if isinstance(found, dict) else {}

    def with_forbidden(self, group: str, topic: str, bits: int, *, now_ms: int) -> SubscriptionGroupTable:
        """The table with what is forbidden to the group in the topic; 0 allows the group all topics again, as Java's does.

        Java: SubscriptionGroupManager.updateForbiddenValue.
        """
        forbidden = {name: dict(topics) for name, topics in self.forbidden.items()}
        if bits <= 0:
            forbidden.pop(group, None)
        else:
            forbidden.setdefault(group, {})[topic] = bits
        return self._changed(self.groups, self.document.get(_TABLE) or {}, forbidden, now_ms)

    def _changed(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        entries: Mapping[str, Any],
        forbidden: Mapping[str, Mapping[str, int]],
        now_ms: int,
    ) -> SubscriptionGroupTable:
        version = self.version.raised(now_ms)
        changed = {"dataVersion": version.to_document(), _FORBIDDEN: forbidden, _TABLE: entries}
        return SubscriptionGroupTable(version, groups, {**self.document, **changed})


def _bits_by_topic(forbidden: Mapping[str, Any], group: str, file: str | None) -> dict[str, int]:
    table = section(forbidden, group, file)
    return {topic: integer(table, topic, 0, file) for topic, bits in table.items() if bits is not None}


def ensure_group(
    groups: SubscriptionGroupTable, topics: TopicTable, group: str, *, now_ms: int
) -> tuple[SubscriptionGroupTable, TopicTable]:
    """Both tables with what makes the group visible to tools: its entry and the entry of its `%RETRY%` topic.

    A table that has its entry already is returned itself. Raises NameIllegalError for an illegal group, also
    for one whose retry topic would be too long. Write the topics first: a group without its retry topic makes
    tools fail, the topic alone does not.
    """
    validate_group(group)
    config = groups.groups.get(group, SubscriptionGroupConfig(group))
    with_retry_topic = topics.ensure_topic(retry_topic(group), config.retry_queue_count, now_ms=now_ms)
    if group not in groups.groups:
        groups = groups.with_group(config, now_ms=now_ms)
    return groups, with_retry_topic


class GroupEntries:
    """The consumer groups of one store, read when first needed. Thread-safe.

    The table in memory is a frozen value, replaced when the file holds the new one. So a reader needs no lock, and sees no entry
    that a crash could take back. Java: SubscriptionGroupManager.
    """

    def __init__(self, root: str, file_system: FileSystem, lock: AbstractContextManager[object]) -> None:
        """`lock` can be taken again by the thread that has it."""
        self._path = f"{root}/config/{FILE_NAME}"
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
