"""Consumer groups of a store: their entries (`config/subscriptionGroup.json`), progress (`consumerOffset.json`) and filters.

A group without an entry gets one on its first heartbeat or pull if the broker may create it. Tools show a
group only with its entry and its `%RETRY%` topic: `ensure_group` makes both.

Java: SubscriptionGroupManager, SubscriptionGroupConfig, ConsumerOffsetManager, ConsumerFilterManager, ConsumerFilterData.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem, read_table, write_with_backup
from storage.format import fastjson
from storage.format.typed_json import DataVersion, Long, SubscriptionGroupConfig, WireBody, wire
from storage.names import GROUP_LENGTH_LIMIT, is_system_group, retry_topic, validate_group, validate_topic
from storage.tables.document import GROUPS_FILE, decode_entry, encode_entry, integer, number_of, parse_document, section
from storage.tables.topics import TopicTable

_ENTRIES = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable:
    """All entries of the file, by group. Every change gives a new table with its version raised."""

    version: DataVersion = field(default_factory=DataVersion)
    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> SubscriptionGroupTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none.

        Names are not checked.
        """
        document = parse_document(text, file)
        entries = section(document, _ENTRIES, file).items()
        groups = {group: decode_entry(SubscriptionGroupConfig, group, entry, file) for group, entry in entries}
        if forbidden := section(document, _FORBIDDEN, file):
            document[_FORBIDDEN] = {group: _bits_by_topic(forbidden, group, file) for group in forbidden}
        return cls(DataVersion.from_document(document, file), groups, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_group(self, config: SubscriptionGroupConfig, *, now_ms: int) -> SubscriptionGroupTable:
        """The table with that entry, new or in place of the group's old one."""
        entries: dict[str, Any] = dict(self.document.get(_ENTRIES) or {})
        entries[config.group] = encode_entry(config, entries.get(config.group))
        return self._changed({**self.groups, config.group: config}, entries, self.forbidden, now_ms)

    def without_group(self, group: str, *, now_ms: int) -> SubscriptionGroupTable:
        """The table without the group's entry and forbidden bits; itself if there is no entry."""
        if group not in self.groups:
            return self
        entries = {name: entry for name, entry in self.document[_ENTRIES].items() if name != group}
        groups = {name: config for name, config in self.groups.items() if name != group}
        forbidden = {name: topics for name, topics in self.forbidden.items() if name != group}
        return self._changed(groups, entries, forbidden, now_ms)

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Group → topic → forbidden permissions: bit 0 is reading. Java: forbiddenTable."""
        found = self.document.get(_FORBIDDEN)
        return found if isinstance(found, dict) else {}

    def with_forbidden(self, group: str, topic: str, bits: int, *, now_ms: int) -> SubscriptionGroupTable:
        """The table with the group's forbidden bits in the topic; 0 allows the group all topics again, as Java's does.

        Java: SubscriptionGroupManager.updateForbiddenValue.
        """
        forbidden = {name: dict(topics) for name, topics in self.forbidden.items()}
        if bits <= 0:
            forbidden.pop(group, None)
        else:
            forbidden.setdefault(group, {})[topic] = bits
        return self._changed(self.groups, self.document.get(_ENTRIES) or {}, forbidden, now_ms)

    def _changed(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        entries: Mapping[str, Any],
        forbidden: Mapping[str, Mapping[str, int]],
        now_ms: int,
    ) -> SubscriptionGroupTable:
        version = self.version.raised(now_ms)
        changed = {"dataVersion": version.to_document(), _FORBIDDEN: forbidden, _ENTRIES: entries}
        return SubscriptionGroupTable(version, groups, {**self.document, **changed})


def _bits_by_topic(forbidden: Mapping[str, Any], group: str, file: str | None) -> dict[str, int]:
    table = section(forbidden, group, file)
    return {topic: integer(table, topic, 0, file) for topic, bits in table.items() if bits is not None}


def ensure_group(
    groups: SubscriptionGroupTable, topics: TopicTable, group: str, *, now_ms: int, longest: int = GROUP_LENGTH_LIMIT
) -> tuple[SubscriptionGroupTable, TopicTable]:
    """Both tables with the two entries that make the group visible to tools: its own and that of its `%RETRY%` topic.

    A table that already has its entry is returned itself. Raises NameIllegalError for an illegal group, also if the name of its retry
    topic would be too long, or a new one has more than `longest` characters. Write the topics first: a group without its retry topic
    makes tools fail, the topic alone does not.
    """
    validate_group(group, GROUP_LENGTH_LIMIT if group in groups.groups else longest)
    config = groups.groups.get(group, SubscriptionGroupConfig(group))
    with_retry_topic = topics.ensure_topic(retry_topic(group), config.retry_queue_count, now_ms=now_ms)
    if group not in groups.groups:
        groups = groups.with_group(config, now_ms=now_ms)
    return groups, with_retry_topic


class GroupEntries:
    """The consumer groups of one store, read when first needed. Thread-safe.

    The table in memory is a frozen value, replaced after the file holds the new one. So readers need no lock and never see an entry
    that a crash could remove. Java: SubscriptionGroupManager.
    """

    def __init__(self, root: str, file_system: FileSystem, lock: AbstractContextManager[object]) -> None:
        """`lock` must be reentrant."""
        self._path = f"{root}/config/{GROUPS_FILE}"
        self._read = file_system.read_file
        self._lock = lock
        self._table: SubscriptionGroupTable | None = None

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The current groups. Raises StateFileError."""
        return self._known().groups

    @property
    def table(self) -> SubscriptionGroupTable:
        """The current table. Raises StateFileError."""
        return self._known()

    def remove(self, group: str, file_system: LocalFileSystem, now_ms: int) -> None:
        """Remove the group's entry, if there is one. Raises OSError."""
        self._replace(lambda table: table.without_group(group, now_ms=now_ms), file_system)

    def forbid(self, group: str, topic: str, bits: int, file_system: LocalFileSystem, now_ms: int) -> None:
        """Set the group's forbidden bits in the topic, as `SubscriptionGroupTable.with_forbidden`. Raises OSError."""
        self._replace(lambda table: table.with_forbidden(group, topic, bits, now_ms=now_ms), file_system)

    def save(self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int) -> None:
        """Write the group's entry, new or in place of the old one. Raises OSError."""
        self._replace(lambda table: table.with_group(group, now_ms=now_ms), file_system)

    def make(
        self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int
    ) -> SubscriptionGroupConfig:
        """Write the group's entry if there is none; returns the present entry, which another thread may have made. Raises OSError."""
        with self._lock:
            present = self._known().groups.get(group.group)
            if present is None:
                self.save(group, file_system, now_ms)
            return present or group

    def replace(self, table: SubscriptionGroupTable, file_system: LocalFileSystem) -> None:
        """Replace the whole table. Raises OSError."""
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


_OFFSETS = "offsetTable"
_DERIVED = "groupTopicMap"
_SEPARATOR = "@"


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """The offsets of all groups. Every change gives a new table with its version raised.

    An offset is the next one to consume. A broker writes the file every five seconds and overwrites it from
    memory: a change made under a running broker is lost.
    """

    version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict, hash=False)
    """(topic, group) → queue id → next offset."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> ConsumerOffsets:
        """The offsets that the file's text holds; StateFileError (naming `file`) if it holds none.

        A key that is not TOPIC@GROUP is ignored, as in Java, and stays in the file.
        """
        document = parse_document(text, file)
        offsets = {}
        for key in (table := section(document, _OFFSETS, file)):
            parts = key.split(_SEPARATOR)
            if len(parts) == 2:
                offsets[parts[0], parts[1]] = _decode_queues(key, section(table, key, file), file)
        return cls(DataVersion.from_document(document, file), offsets, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The group's next offset in the queue; None if it has none."""
        return self.offsets.get((topic, group), {}).get(queue_id)

    def groups(self) -> list[str]:
        """All groups with an offset, sorted."""
        return sorted({group for _, group in self.offsets})

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has an offset, sorted; including its `%RETRY%` topic if it consumed from it."""
        return sorted(topic for topic, of_group in self.offsets if of_group == group)

    def with_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], *, now_ms: int) -> ConsumerOffsets:
        """The table with the group's offsets by (topic, queue id) set, in one change; an offset may decrease.

        Raises NameIllegalError for an illegal group or topic, ValueError for a negative queue id or offset.
        Returns the same table if nothing changes.
        """
        validate_group(group)
        changed = {key: dict(queues) for key, queues in self.offsets.items()}
        for (topic, queue_id), offset in offsets.items():
            if queue_id < 0 or offset < 0:
                raise ValueError(f"{topic} queue {queue_id}: offset {offset}: neither may be negative")
            changed.setdefault((validate_topic(topic), group), {})[queue_id] = offset
        if changed == self.offsets:
            return self
        entries = dict(self.document.get(_OFFSETS) or {})
        for topic in dict.fromkeys(topic for topic, _ in offsets):
            queues = changed[topic, group]
            entries[topic + _SEPARATOR + group] = {str(key): queues[key] for key in sorted(queues)}
        version = self.version.raised(now_ms)
        # groupTopicMap only repeats the table's keys, and Java does not read it: left in, it would be stale.
        kept = {key: value for key, value in self.document.items() if key != _DERIVED}
        return ConsumerOffsets(version, changed, {**kept, "dataVersion": version.to_document(), _OFFSETS: entries})

    def without_topics(self, topics: Collection[str], *, now_ms: int) -> ConsumerOffsets:
        """The table without these topics' offsets, except those of a broker's own groups. The same table if nothing changes."""
        gone = [key for key in self.offsets if key[0] in topics and not is_system_group(key[1])]
        if not gone:
            return self
        offsets, entries = dict(self.offsets), dict(self.document.get(_OFFSETS) or {})
        for topic, group in gone:
            del offsets[topic, group], entries[topic + _SEPARATOR + group]
        version = self.version.raised(now_ms)
        kept = {key: value for key, value in self.document.items() if key != _DERIVED}
        return ConsumerOffsets(version, offsets, {**kept, "dataVersion": version.to_document(), _OFFSETS: entries})

    def lowered(self, end_of: Callable[[str, int], int | None], *, now_ms: int) -> ConsumerOffsets:
        """The table without offsets beyond their queue's end. `end_of` (topic, queue id) gives it; None = unknown: the offset stays.

        Returns the same table if nothing changes.
        """
        changed: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in self.offsets.items():
            for queue_id, offset in queues.items():
                end = end_of(key[0], queue_id)
                if end is not None and offset > end:
                    changed.setdefault(key, dict(queues))[queue_id] = end
        if not changed:
            return self
        entries = dict(self.document.get(_OFFSETS) or {})
        for (topic, group), queues in changed.items():
            entries[topic + _SEPARATOR + group] = {str(queue_id): queues[queue_id] for queue_id in sorted(queues)}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _OFFSETS: entries}
        return ConsumerOffsets(version, {**self.offsets, **changed}, document)


def _decode_queues(key: str, queues: Mapping[str, Any], file: str | None) -> dict[int, int]:
    decoded = {}
    for queue_id, offset in queues.items():
        if offset is None:
            continue  # a missing offset, not offset 0
        decoded[number_of(queue_id, f"{key:.40}: a queue id", file)] = integer(queues, queue_id, 0, file)
    return decoded


FILTERS_FILE = "consumerFilter.json"
_FILTERS, _GROUPS, _BITS, _DEAD = "filterDataByTopic", "groupFilterData", "bloomFilterData", "dead"
_POSITIONS = re.compile(r'(?<="bitPos":\[)[^\]]*')
_BLANK = re.compile(r"\s")


class BloomData(NamedTuple):
    """A group's positions in the bit maps of a topic's messages, and how many bits a map has."""

    bit_count: int
    positions: tuple[int, ...]

    def to_document(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {"bitNum": self.bit_count, "bitPos": list(self.positions)}


class ConsumerFilter(WireBody, kw_only=False):
    """The expression by which one group filters one topic.

    A filter is born when its expression is first sent, and dies when its group has left. Both are times of the broker's clock (ms);
    `dead_ms` 0 = alive. The version comes from the client, which marks newer subscriptions by it.
    """

    group: str = wire("consumerGroup")
    topic: str = ""
    expression: str = ""
    expression_type: str = ""
    born_ms: Long = wire("bornTime", default=0)
    dead_ms: Long = wire("deadTime", default=0)
    client_version: Long = 0
    bloom_document: Mapping[str, Any] = wire(_BITS, default_factory=dict)

    @property
    def is_dead(self) -> bool:
        """Whether the group has left. Java: isDead."""
        return self.dead_ms >= self.born_ms

    def to_text(self) -> str:
        """The text that operators see."""
        return _laid_out(_encoded(self))

    @property
    def bloom(self) -> BloomData | None:
        """None if the file has none, or an unusable one."""
        count, positions = self.bloom_document.get("bitNum"), self.bloom_document.get("bitPos")
        if not isinstance(count, int) or not isinstance(positions, list):
            return None
        if not all(isinstance(bit, int) and 0 <= bit < count for bit in positions):
            return None
        return BloomData(count, tuple(positions))


@dataclass(frozen=True, slots=True)
class ConsumerFilterTable:
    """All filters of `config/consumerFilter.json`, by topic and group."""

    topics: Mapping[str, Mapping[str, ConsumerFilter]] = field(default_factory=dict, hash=False)

    @classmethod
    def load(cls, text: str, file: str | None = None) -> ConsumerFilterTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none."""
        topics: dict[str, dict[str, ConsumerFilter]] = {}
        for topic, of_topic in section(parse_document(text, file), _FILTERS, file).items():
            if not isinstance(of_topic, dict):
                raise StateFileError(file, 0, 0, f"{topic:.40}: an object is expected, found {of_topic!r:.40}")
            groups = section(of_topic, _GROUPS, file).items()
            topics[topic] = {group: decode_entry(ConsumerFilter, group, entry, file) for group, entry in groups}
        return cls(topics)

    def to_text(self) -> str:
        """The text for the file, as Java lays it out."""
        tables = {
            topic: {_GROUPS: {group: _encoded(groups[group]) for group in sorted(groups)}, "topic": topic}
            for topic, groups in sorted(self.topics.items())
        }
        return _laid_out({_FILTERS: tables})

    def __iter__(self) -> Iterator[ConsumerFilter]:
        return (found for groups in self.topics.values() for found in groups.values())


def _laid_out(document: Mapping[str, Any]) -> str:
    """Positions are written in one line."""
    return _POSITIONS.sub(lambda found: _BLANK.sub("", found[0]), fastjson.to_text(document))


def _encoded(config: ConsumerFilter) -> dict[str, Any]:
    entry = encode_entry(config, {_DEAD: config.is_dead})
    return {key: entry[key] for key in sorted(entry) if key != _BITS or entry[key]}
