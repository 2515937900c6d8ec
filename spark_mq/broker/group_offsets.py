"""Committed offsets of groups in a running broker: in memory, written to config/consumerOffset.json every few seconds.

A reset is the offset at which the group's next pull of the queue starts; until then commits of the queue are dropped.
Java: ConsumerOffsetManager. Departure: offsets of the broker's own groups (`CID_RMQ_SYS_…`) are left as the broker's duties wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.format.typed_json import DataVersion
from storage.names import is_system_group
from storage.settings.nouns import ClientsConfig
from storage.tables.consumer_groups import ConsumerOffsets

Key = tuple[str, str]
"""(topic, group)"""


class GroupOffsets:
    """The offsets of all groups. For one thread at a time. −1 = none."""

    def __init__(
        self, table: ConsumerOffsets | None = None, *, version_step: int = 500, uses_resets: bool = True
    ) -> None:
        """`version_step`: so many commits raise the table's version; `uses_resets` is useServerSideResetOffset."""
        found = table or ConsumerOffsets()
        self.version: DataVersion = found.version
        self._document = found.document
        self._offsets: dict[Key, dict[int, int]] = {key: dict(queues) for key, queues in found.offsets.items()}
        self._pulled: dict[Key, dict[int, int]] = {}
        self._resets: dict[Key, dict[int, int]] = {}
        self.version_step = max(1, version_step)
        self.uses_resets = uses_resets
        self._commits = 0
        self._is_changed = False

    def configure(self, config: ClientsConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        self.version_step = max(1, config.consumer_offset_update_version_step)
        self.uses_resets = config.use_server_side_reset_offset

    # One queue

    def commit(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """The group's next offset; it may go back."""
        self._offsets.setdefault((topic, group), {})[queue_id] = offset
        self._is_changed = True
        self._commits += 1
        if self._commits % self.version_step == 0:
            self.version = self.version.raised(now_ms)

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Up to where the group has pulled."""
        self._pulled.setdefault((topic, group), {})[queue_id] = offset

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """The pending reset, else what was committed."""
        if self.uses_resets:
            reset = self._resets.get((topic, group), {}).get(queue_id)
            if reset is not None:
                return reset
        return self._offsets.get((topic, group), {}).get(queue_id, -1)

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Up to where the group has pulled, else its offset."""
        found = self._pulled.get((topic, group), {}).get(queue_id)
        return self.offset(group, topic, queue_id) if found is None else found

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group shall go on there. Nothing for a negative queue or offset."""
        if topic and group and queue_id >= 0 and offset >= 0:
            self._resets.setdefault((topic, group), {})[queue_id] = offset
            self._offsets.setdefault((topic, group), {})[queue_id] = offset
            self._is_changed = True

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset waits for the group's next pull."""
        return queue_id in self._resets.get((topic, group), {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that waits; it waits no more."""
        return self._resets.get((topic, group), {}).pop(queue_id, None)

    # Many queues

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has offsets."""
        return [topic for topic, name in self._offsets if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in the topic."""
        return [group for name, group in self._offsets if name == topic]

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """By queue id; empty where the group has none."""
        return self._offsets.get((topic, group), {})

    def places(self) -> set[tuple[str, int, int]]:
        """Topic, queue and offset of all groups, each once."""
        return {(topic, *each) for (topic, _), queues in self._offsets.items() for each in queues.items()}

    def clone(self, source: str, destination: str, topic: str) -> None:
        """A group's offsets of a topic become another's; nothing where it has none."""
        if (found := self._offsets.get((topic, source))) is not None:
            self._offsets[topic, destination] = dict(found)
            self._is_changed = True

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted, with what waits for pulls of it.

        Departure: Java keeps a reset that waits, and a topic that is made again under the name is read from there.
        """
        for table in (self._offsets, self._resets, self._pulled):
            for key in [key for key in table if key[0] == topic]:
                del table[key]
                self._is_changed = True

    def forget_group(self, group: str) -> None:
        """A group is deleted, with its resets."""
        for table in (self._offsets, self._resets, self._pulled):
            for key in [key for key in table if key[1] == group]:
                del table[key]
                self._is_changed = True

    def smallest(self, topic: str, minimums: Mapping[int, int], without: frozenset[str]) -> dict[int, int]:
        """By queue, the smallest offset of any group that lies not before the queue's minimum. Java: queryMinOffsetInAllGroup.

        Departure: Java deletes the offsets of the groups that are left out.
        """
        smallest: dict[int, int] = {}
        for (name, group), queues in self._offsets.items():
            for queue_id, offset in queues.items() if name == topic and group not in without else ():
                if offset >= minimums.get(queue_id, 0):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        return smallest

    # The file

    def table(self) -> ConsumerOffsets:
        """The table as it is in memory."""
        return _table(self._offsets, self.version, self._document)

    def raise_to(self, other: ConsumerOffsets) -> None:
        """For each queue, the greater of both offsets."""
        for key, queues in other.offsets.items():
            own = self._offsets.setdefault(key, {})
            own.update({queue_id: offset for queue_id, offset in queues.items() if offset > own.get(queue_id, -1)})

    def note_unsaved(self) -> None:
        """The table that was taken is not in the file."""
        self._is_changed = True

    def take_change(self) -> bool:
        """Whether anything has changed since the last call."""
        was_changed, self._is_changed = self._is_changed, False
        return was_changed


def with_own_groups(table: ConsumerOffsets, on_disk: ConsumerOffsets | None) -> ConsumerOffsets:
    """The table for the file: the broker's own groups as they are `on_disk`, or as in the table if the file is unreadable."""
    if on_disk is None:
        return table
    offsets = {key: queues for key, queues in table.offsets.items() if not is_system_group(key[1])}
    offsets |= {key: queues for key, queues in on_disk.offsets.items() if is_system_group(key[1])}
    return _table(offsets, table.version, table.document)


def _table(
    offsets: Mapping[Key, Mapping[int, int]], version: DataVersion, document: Mapping[str, Any]
) -> ConsumerOffsets:
    kept = {name: value for name, value in document.items() if name != "groupTopicMap"}
    found = {key: dict(queues) for key, queues in offsets.items() if queues or is_system_group(key[1])}
    entries = {
        f"{topic}@{group}": {str(queue_id): queues[queue_id] for queue_id in sorted(queues)}
        for (topic, group), queues in sorted(found.items())
    }
    return ConsumerOffsets(version, found, {**kept, "dataVersion": version.to_document(), "offsetTable": entries})
