"""A count for each topic in a state file: how many of its messages wait for something. A gauge, not a promise: nobody decides by it.

Java: TimerMetrics and TransactionMetrics, which differ in the name of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from storage.format import fastjson
from storage.tables.document import DataVersion, integer, parse_document, section


@dataclass(frozen=True, slots=True)
class CountedTopics:
    """The counts of all topics; a kind of file is a class that names its table. Every change gives a new one."""

    table: ClassVar[str]

    version: DataVersion = field(default_factory=DataVersion)
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Topic → its count."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> Self:
        """The counts that the file's text holds; StateFileError (naming `file`) if it holds none."""
        document = parse_document(text, file)
        table = section(document, cls.table, file)
        counts = {topic: integer(section(table, topic, file), "count", 0, file) for topic in table}
        return cls(DataVersion.from_document(document, file), counts, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_changes(self, changes: Mapping[str, int], *, now_ms: int) -> Self:
        """The counts with these added; itself if nothing changes.

        Java raises the version with every message, here it is raised once for all of them.
        """
        changes = {topic: change for topic, change in changes.items() if change}
        if not changes:
            return self
        counts = {**self.counts, **{topic: self.counts.get(topic, 0) + change for topic, change in changes.items()}}
        entries = dict(self.document.get(self.table) or {})
        for topic in changes:
            entries[topic] = {**(entries.get(topic) or {}), "count": counts[topic], "timeStamp": now_ms}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), self.table: entries}
        return type(self)(version, counts, document)
