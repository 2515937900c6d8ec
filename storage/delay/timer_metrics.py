"""How many messages of each topic wait in the timer: `config/timermetrics`. Nobody decides by it. Java: TimerMetrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.data_version import DataVersion
from storage.format import fastjson
from storage.state_document import integer, parse_document, section

FILE_NAME = "timermetrics"
_TABLE = "timingCount"


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """The counts of all topics. Every change gives a new table."""

    version: DataVersion = field(default_factory=DataVersion)
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Topic → messages that wait, less deletions that wait for theirs."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> TimerMetrics:
        """The counts that the file's text holds; StateFileError (naming `file`) if it holds none."""
        document = parse_document(text, file)
        table = section(document, _TABLE, file)
        counts = {topic: integer(section(table, topic, file), "count", 0, file) for topic in table}
        return cls(DataVersion.from_document(document, file), counts, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_changes(self, changes: Mapping[str, int], *, now_ms: int) -> TimerMetrics:
        """The table with so many messages more (or fewer) of each topic; itself if nothing changes.

        Java raises the version with every message, here it is raised once.
        """
        changes = {topic: change for topic, change in changes.items() if change}
        if not changes:
            return self
        counts = {**self.counts, **{topic: self.counts.get(topic, 0) + change for topic, change in changes.items()}}
        entries = dict(self.document.get(_TABLE) or {})
        for topic in changes:
            entries[topic] = {**(entries.get(topic) or {}), "count": counts[topic], "timeStamp": now_ms}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _TABLE: entries}
        return TimerMetrics(version, counts, document)
