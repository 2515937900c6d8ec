"""Expressions by which groups filter topics: `config/consumerFilter.json`.

A filter is born when its expression is first told, and dies when its group has left. Both are times of the broker's clock (ms);
`dead_ms` 0 = it lives. The version is the client's, by which it tells a newer subscription.

Java: ConsumerFilterManager, ConsumerFilterData.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storage.errors import StateFileError
from storage.format import fastjson
from storage.format.typed_json import Long, WireBody, wire
from storage.tables.document import decode_entry, encode_entry, parse_document, section

FILE_NAME = "consumerFilter.json"
_TABLE, _GROUPS, _BITS, _DEAD = "filterDataByTopic", "groupFilterData", "bloomFilterData", "dead"
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
    """What one group wants of one topic."""

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
        """As operators are shown it."""
        return _laid_out(_encoded(self))

    @property
    def bloom(self) -> BloomData | None:
        """None where the file has none, or what nobody can use."""
        count, positions = self.bloom_document.get("bitNum"), self.bloom_document.get("bitPos")
        if not isinstance(count, int) or not isinstance(positions, list):
            return None
        if not all(isinstance(bit, int) and 0 <= bit < count for bit in positions):
            return None
        return BloomData(count, tuple(positions))


@dataclass(frozen=True, slots=True)
class ConsumerFilterTable:
    """All of them, by topic and group."""

    topics: Mapping[str, Mapping[str, ConsumerFilter]] = field(default_factory=dict, hash=False)

    @classmethod
    def load(cls, text: str, file: str | None = None) -> ConsumerFilterTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none."""
        topics: dict[str, dict[str, ConsumerFilter]] = {}
        for topic, of_topic in section(parse_document(text, file), _TABLE, file).items():
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
        return _laid_out({_TABLE: tables})

    def __iter__(self) -> Iterator[ConsumerFilter]:
        return (found for groups in self.topics.values() for found in groups.values())


def _laid_out(document: Mapping[str, Any]) -> str:
    """Positions stand in one line."""
    return _POSITIONS.sub(lambda found: _BLANK.sub("", found[0]), fastjson.to_text(document))


def _encoded(config: ConsumerFilter) -> dict[str, Any]:
    entry = encode_entry(config, {_DEAD: config.is_dead})
    return {key: entry[key] for key in sorted(entry) if key != _BITS or entry[key]}
