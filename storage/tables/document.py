"""A state file as a document: the parsed JSON is kept whole, typed values are a view of it.

So what this package does not know survives a change, and what it does not change is written as it was found.
Values are taken as fastjson takes them: null and missing mean the class's default, a number may stand in
quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from storage.errors import StateFileError
from storage.format import fastjson

_Entry = TypeVar("_Entry")
_NUMBER = re.compile(r"-?[0-9]{1,10}")


def java(name: str) -> dict[str, str]:
    """Metadata of a dataclass field: the name of its counterpart in the file."""
    return {"java": name}


def parse_document(text: str, file: str | None) -> dict[str, Any]:
    """The object that the text holds; StateFileError if it holds something else."""
    document = fastjson.parse(text, file)
    if not isinstance(document, dict):
        raise StateFileError(file, 1, 1, f"an object is expected, found {type(document).__name__}")
    return document


def section(document: Mapping[str, Any], key: str, file: str | None) -> dict[str, Any]:
    """The object under a key, empty if it is missing or null."""
    found = document.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise StateFileError(file, 0, 0, f"{key}: an object is expected, found {found!r:.40}")
    return found


def integer(document: Mapping[str, Any], key: str, default: int, file: str | None) -> int:
    """The whole number under a key, as a Java long holds it."""
    found = document.get(key)
    if found is None:
        return default
    try:
        if isinstance(found, int | str) and not isinstance(found, bool) and -(1 << 63) <= int(found) < 1 << 63:
            return int(found)
    except ValueError:
        pass  # text that is no number is refused like every other value
    raise StateFileError(file, 0, 0, f"{key:.40}: a whole number is expected, found {found!r:.40}")


def number_of(key: str, what: str, file: str | None) -> int:
    """A table's key that is a number, as a Java int holds it; `what` it stands for is for the message."""
    if not _NUMBER.fullmatch(key) or not -(1 << 31) <= int(key) < 1 << 31:
        raise StateFileError(file, 0, 0, f"{what} is expected, found {key!r:.40}")
    return int(key)


def decode_entry(cls: type[_Entry], name: str, entry: object, file: str | None) -> _Entry:
    """A dataclass from its entry in a table. `name` is the key in the table, which rules, and the dataclass's
    first field.

    The other fields carry `java(…)` metadata and a default whose type is theirs.
    """
    if not isinstance(entry, dict):
        raise StateFileError(file, 0, 0, f"{name}: an object is expected, found {entry!r:.40}")
    values: dict[str, Any] = {}
    for field_name, key, default in _declared(cls):  # type: ignore[arg-type]
        found = entry.get(key)
        if found is None:
            continue
        if isinstance(default, int) and not isinstance(default, bool):
            found = integer(entry, key, default, file)
        if not isinstance(found, type(default)):
            expected = type(default).__name__
            raise StateFileError(file, 0, 0, f"{name}.{key}: {expected} is expected, found {found!r:.40}")
        values[field_name] = found
    return cls(name, **values)  # type: ignore[call-arg]


@cache
def _declared(cls: type) -> list[tuple[str, str, Any]]:
    """Of each field but the first its name, its counterpart's and its default."""
    defaults = cls("")
    return [(each.name, each.metadata["java"], getattr(defaults, each.name)) for each in fields(cls)[1:]]


def encode_entry(config: object, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entry of a dataclass: the fields of `found` in their order with the dataclass's values, new fields
    by name.
    """
    known = {declared.metadata["java"]: getattr(config, declared.name) for declared in fields(config)}  # type: ignore[arg-type]
    return {**(found or {}), **{key: known[key] for key in sorted(known)}}


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a state file: `counter` changes so far, the last one at `timestamp_ms`. Java: DataVersion.

    Name servers and slaves notice a change by it: two tables are the same if all three numbers are. Outside controller mode
    `state_version` is 0.
    """

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def raised(self, now_ms: int) -> DataVersion:
        """The version after one more change (Java: nextVersion)."""
        return DataVersion(self.counter + 1, now_ms)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], file: str | None = None) -> DataVersion:
        """The `dataVersion` of a state file's document; a missing one or a missing number is 0."""
        found = section(document, "dataVersion", file)
        return cls(
            counter=integer(found, "counter", 0, file),
            timestamp_ms=integer(found, "timestamp", 0, file),
            state_version=integer(found, "stateVersion", 0, file),
        )

    def to_document(self) -> dict[str, int]:
        """The fields in the order of a broker's file."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }


@dataclass(frozen=True, slots=True)
class CountedTopics:
    """A count for each topic: how many of its messages wait for something. A gauge, not a promise: nothing is decided by it.

    A kind of file is a class that names its table. Every change gives a new one. Java: TimerMetrics and TransactionMetrics, which
    differ in the name of the table.
    """

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
