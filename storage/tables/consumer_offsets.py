"""Progress of consumer groups: `config/consumerOffset.json`.

An offset is the next one to consume. A broker writes the file every five seconds and overwrites it from
memory: a change made under a running broker is lost.

Java: ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.format import fastjson
from storage.format.table_entries import DataVersion
from storage.names import is_system_group, validate_group, validate_topic
from storage.tables.document import integer, number_of, parse_document, section

FILE_NAME = "consumerOffset.json"
_TABLE = "offsetTable"
_DERIVED = "groupTopicMap"
_SEPARATOR = "@"


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """The offsets of all groups. Every change gives a new table with its version raised."""

    version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict, hash=False)
    """(topic, group) → queue id → next offset."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> ConsumerOffsets:
        """The offsets that the file's text holds; StateFileError (naming `file`) if it holds none.

        A key that is not TOPIC@GROUP is passed over, as in Java, and stays in the file.
        """
        document = parse_document(text, file)
        offsets = {}
        for key in (table := section(document, _TABLE, file)):
            parts = key.split(_SEPARATOR)
            if len(parts) == 2:
                offsets[parts[0], parts[1]] = _decode_queues(key, section(table, key, file), file)
        return cls(DataVersion.from_document(document, file), offsets, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The next offset of the queue for the group; None if the group has none there."""
        return self.offsets.get((topic, group), {}).get(queue_id)

    def groups(self) -> list[str]:
        """All groups with an offset, sorted."""
        return sorted({group for _, group in self.offsets})

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has an offset, sorted; its `%RETRY%` topic among them if it consumed
        from it.
        """
        return sorted(topic for topic, of_group in self.offsets if of_group == group)

    def with_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], *, now_ms: int) -> ConsumerOffsets:
        """The table with the group's offsets by (topic, queue id) set, in one change; they may go back.

        Raises NameIllegalError for an illegal group or topic, ValueError for a negative queue id or offset.
        Itself if nothing changes.
        """
        validate_group(group)
        changed = {key: dict(queues) for key, queues in self.offsets.items()}
        for (topic, queue_id), offset in offsets.items():
            if queue_id < 0 or offset < 0:
                raise ValueError(f"{topic} queue {queue_id}: offset {offset}: neither may be negative")
            changed.setdefault((validate_topic(topic), group), {})[queue_id] = offset
        if changed == self.offsets:
            return self
        entries = dict(self.document.get(_TABLE) or {})
        for topic in dict.fromkeys(topic for topic, _ in offsets):
            queues = changed[topic, group]
            entries[topic + _SEPARATOR + group] = {str(key): queues[key] for key in sorted(queues)}
        version = self.version.raised(now_ms)
        # groupTopicMap only repeats the table's keys, and Java does not read it: left in, it would be stale.
        kept = {key: value for key, value in self.document.items() if key != _DERIVED}
        return ConsumerOffsets(version, changed, {**kept, "dataVersion": version.to_document(), _TABLE: entries})

    def without_topics(self, topics: Collection[str], *, now_ms: int) -> ConsumerOffsets:
        """The table without the offsets that groups have in these topics, but for a broker's own groups. Itself if nothing changes."""
        gone = [key for key in self.offsets if key[0] in topics and not is_system_group(key[1])]
        if not gone:
            return self
        offsets, entries = dict(self.offsets), dict(self.document.get(_TABLE) or {})
        for topic, group in gone:
            del offsets[topic, group], entries[topic + _SEPARATOR + group]
        version = self.version.raised(now_ms)
        kept = {key: value for key, value in self.document.items() if key != _DERIVED}
        return ConsumerOffsets(version, offsets, {**kept, "dataVersion": version.to_document(), _TABLE: entries})

    def lowered(self, end_of: Callable[[str, int], int | None], *, now_ms: int) -> ConsumerOffsets:
        """The table without an offset behind its queue's end, as `end_of` (topic, queue id) says; None = nobody knows, so it stays.

        Itself if nothing changes.
        """
        changed: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in self.offsets.items():
            for queue_id, offset in queues.items():
                end = end_of(key[0], queue_id)
                if end is not None and offset > end:
                    changed.setdefault(key, dict(queues))[queue_id] = end
        if not changed:
            return self
        entries = dict(self.document.get(_TABLE) or {})
        for (topic, group), queues in changed.items():
            entries[topic + _SEPARATOR + group] = {str(queue_id): queues[queue_id] for queue_id in sorted(queues)}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _TABLE: entries}
        return ConsumerOffsets(version, {**self.offsets, **changed}, document)


def _decode_queues(key: str, queues: Mapping[str, Any], file: str | None) -> dict[int, int]:
    decoded = {}
    for queue_id, offset in queues.items():
        if offset is None:
            continue  # no offset, which is not the offset 0
        decoded[number_of(queue_id, f"{key:.40}: a queue id", file)] = integer(queues, queue_id, 0, file)
    return decoded
