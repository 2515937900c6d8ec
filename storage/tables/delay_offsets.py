"""Progress of the delay levels: `config/delayOffset.json`.

The offset of a level is the next one to deliver from its queue, level − 1 of SCHEDULE_TOPIC_XXXX. A broker writes the file every
ten seconds and overwrites it from memory. To a level that the file does not name it delivers everything that is retained.

Java: ScheduleMessageService.encode and decode, DelayOffsetSerializeWrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.format import fastjson
from storage.tables.document import DataVersion, integer, number_of, parse_document, section

FILE_NAME = "delayOffset.json"
_TABLE = "offsetTable"


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """The offsets of all levels, those that broker.conf no longer has among them. Every change gives a new table."""

    version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Level → next offset."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> DelayOffsets:
        """The offsets that the file's text holds; StateFileError (naming `file`) if it holds none."""
        document = parse_document(text, file)
        offsets = {}
        for level, offset in (table := section(document, _TABLE, file)).items():
            if offset is not None:  # no offset, which is not the offset 0
                offsets[number_of(level, f"{_TABLE}: a level", file)] = integer(table, level, 0, file)
        return cls(DataVersion.from_document(document, file), offsets, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def get(self, level: int) -> int | None:
        """The next offset of the level; None if the file does not name it."""
        return self.offsets.get(level)

    def with_offsets(self, offsets: Mapping[int, int], *, now_ms: int) -> DelayOffsets:
        """The table with the offsets of some levels set and its version raised; itself if nothing changes.

        Java raises the version at every 200th change only (delayOffsetUpdateVersionStep).
        """
        changed = {**self.offsets, **offsets}
        if changed == self.offsets:
            return self
        entries = {**(self.document.get(_TABLE) or {}), **{str(level): offsets[level] for level in sorted(offsets)}}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _TABLE: entries}
        return DelayOffsets(version, changed, document)
