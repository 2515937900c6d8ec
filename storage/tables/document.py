"""A state file as a document: the parsed JSON is kept whole, typed values are a view of it.

So fields that this package does not know survive a change, and unchanged fields are written as they were found. Values are read as
fastjson reads them: null and missing mean the class's default, and a number may be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar

from storage.errors import StateFileError
from storage.format import fastjson
from storage.format.table_entries import DataVersion as DataVersion
from storage.format.typed_json import BadValueError, WireBody, codec_of, wire_name

_Entry = TypeVar("_Entry", bound=WireBody)
_NUMBER = re.compile(r"-?[0-9]{1,10}")


def parse_document(text: str, file: str | None) -> dict[str, Any]:
    """The object that the text holds; StateFileError if it holds something else."""
    document = fastjson.parse(text, file)
    if not isinstance(document, dict):
        raise StateFileError(file, 1, 1, f"an object is expected, found {type(document).__name__}")
    return document


def section(document: Mapping[str, Any], key: str, file: str | None) -> dict[str, Any]:
    """The object under a key, empty if missing or null."""
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
        pass  # text that is no number is refused like any other value
    raise StateFileError(file, 0, 0, f"{key:.40}: a whole number is expected, found {found!r:.40}")


def number_of(key: str, what: str, file: str | None) -> int:
    """A numeric key of a table, as a Java int holds it; `what` names it in the error."""
    if not _NUMBER.fullmatch(key) or not -(1 << 31) <= int(key) < 1 << 31:
        raise StateFileError(file, 0, 0, f"{what} is expected, found {key!r:.40}")
    return int(key)


def decode_entry(cls: type[_Entry], name: str, entry: object, file: str | None) -> _Entry:
    """An object from its entry in a table. `name` is the key in the table, which wins, and becomes the object's first field."""
    first = wire_name(fields(cls)[0])
    try:
        read: _Entry = codec_of(cls).read({**entry, first: name} if isinstance(entry, dict) else entry)
    except BadValueError as error:
        place = f".{error.place}" if error.place else ""
        raise StateFileError(file, 0, 0, f"{name:.40}{place}: {error.rule}, found {error.found!r:.40}") from None
    return read


def encode_entry(config: WireBody, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entry of an object: the fields of `found` in their order, then new ones by name, with the object's values; without nulls."""
    known = {wire_name(each): getattr(config, each.name) for each in fields(config)}
    return {**(found or {}), **{key: known[key] for key in sorted(known) if known[key] is not None}}


@dataclass(frozen=True, slots=True)
class CountedTopics:
    """For each topic, how many of its messages wait for something. For display only: no decision depends on it.

    A kind of file is a subclass that names its table. Every change gives a new object. Java: TimerMetrics and TransactionMetrics, which
    differ only in that name.
    """

    table: ClassVar[str]

    version: DataVersion = field(default_factory=DataVersion)
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Topic → its count."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

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
        """The counts plus these changes; the same object if nothing changes.

        Java raises the version with every message; here it is raised once for all of them.
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
