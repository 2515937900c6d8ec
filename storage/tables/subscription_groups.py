"""Consumer groups of a store: `config/subscriptionGroup.json`.

A group without an entry appears on its first heartbeat or pull where the broker may create it. Tools show a
group only with its entry and its `%RETRY%` topic: `ensure_group` makes both.

Java: SubscriptionGroupManager, SubscriptionGroupConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
