"""A table of config/ as a document: the parsed JSON is kept whole, typed values are a view of it.

So fields that this package does not know survive a change, and unchanged fields are written as they were found. Values are read as
fastjson reads them: null and missing mean the class's default, and a number may be quoted.

A broker with storeType=defaultRocksDB keeps topics, groups and groups' offsets in RocksDB instead (`read_state`, read-only):

    config/metadata/                                                      all three (useSingleRocksDBForAllConfigs, from 5.5.0 on)
    config/topics/, config/subscriptionGroups/, config/consumerOffsets/     a directory each

A key's value is the entry's JSON. Where a table is in several places, JSON files included, that with the greatest version counts: a
broker takes it over at its next start. With configManagerVersion=v2 they lie in config/rdb/, in a form of its own, which is not read.

Java: ConfigManager; RocksDBTopicConfigManager, RocksDBSubscriptionGroupManager, RocksDBConsumerOffsetManager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import read_table
from storage.files.rocksdb import RocksDB, RocksDBUnreadable
from storage.format import fastjson
from storage.format.typed_json import BadValueError, DataVersion, WireBody, codec_of, wire_name
from storage.settings.load import StoreConfig

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"

_Entry = TypeVar("_Entry", bound=WireBody)
_T = TypeVar("_T")
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


_VERSION_KEY = b"kvDataVersionKey"
_JSON_VERSION = "dataVersion"
_UNREAD = "rdb"
"""The directory of configManagerVersion=v2."""
TABLES_IN_ROCKSDB = "its topics, groups and offsets lie in RocksDB, which only its broker writes"


class _RocksDBPlace(NamedTuple):
    directory: str
    entries: str
    version: str


class _RocksDBTable(NamedTuple):
    name: str
    """The key of its entries in the JSON file."""
    places: tuple[_RocksDBPlace, ...]


def _rocksdb_table(name: str, directory: str, family: str) -> _RocksDBTable:
    return _RocksDBTable(
        name,
        (_RocksDBPlace("metadata", family, f"{family}Version"), _RocksDBPlace(directory, "default", "kvDataVersion")),
    )


_TABLES = {
    TOPICS_FILE: _rocksdb_table("topicConfigTable", "topics", "topic"),
    GROUPS_FILE: _rocksdb_table("subscriptionGroupTable", "subscriptionGroups", "subscriptionGroup"),
    OFFSETS_FILE: _rocksdb_table("offsetTable", "consumerOffsets", "consumerOffset"),
}


def read_state(
    file_system: FileSystem, root: str, config: StoreConfig, name: str, parse: Callable[[str, str], _T]
) -> _T | None:
    """A table of config/NAME, or of its `.bak`, or of RocksDB where the configuration says so; without one what is there decides.

    None where there is no such table, and for topics in a RocksDB that cannot be read: queues show topics, too. Raises StateFileError
    for other tables there, and for a file that is none.
    """
    table = _TABLES.get(name)
    if table is not None and (config.file is None or config.mode.is_rocksdb_store or config.mode.has_unread_tables):
        try:
            found = _in_rocksdb(file_system, root, config, name, table)
        except _UnreadTable as error:
            if name == TOPICS_FILE:
                return None
            raise StateFileError(error.directory, 0, 0, f"this table lies in RocksDB: {error}") from error
        if found is not None:
            return parse(*found)
    return read_table(f"{root}/config/{name}", parse, file_system.read_file)


def tables_directory(file_system: FileSystem, root: str, config: StoreConfig) -> str | None:
    """The RocksDB directory with tables of the store at ROOT; None where they are files.

    As in `read_state` the configuration decides, and without one what is there.
    """
    if config.file is not None and not (config.mode.is_rocksdb_store or config.mode.has_unread_tables):
        return None
    names = (_UNREAD, *dict.fromkeys(place.directory for table in _TABLES.values() for place in table.places))
    directories = (f"{root}/config/{name}" for name in names)
    return next((path for path in directories if file_system.read_file(f"{path}/CURRENT") is not None), None)


class _UnreadTable(Exception):
    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(reason)
        self.directory = directory


def _in_rocksdb(
    file_system: FileSystem, root: str, config: StoreConfig, name: str, table: _RocksDBTable
) -> tuple[str, str] | None:
    """The text that config/NAME would have, and where it was read; None where the file itself counts."""

    mode, beside = config.mode, f"{root}/config"
    there = {entry.name for entry in file_system.list_directory(beside) if entry.is_directory}
    if mode.has_unread_tables or (config.file is None and _UNREAD in there):
        raise _UnreadTable(f"{beside}/{_UNREAD}", "the tables of configManagerVersion=v2 are not read")
    found: list[tuple[dict[str, Any], str]] = []
    for place in table.places if config.file is None or mode.use_single_rocksdb_for_all_configs else table.places[1:]:
        directory = f"{beside}/{place.directory}"
        if place.directory in there and file_system.read_file(f"{directory}/CURRENT") is not None:
            try:
                if not file_system.is_local:
                    raise RocksDBUnreadable("RocksDB is read from a local file system only")
                found.append((_read_rocksdb(place._replace(directory=directory), table.name), directory))
            except RocksDBUnreadable as error:
                raise _UnreadTable(directory, str(error)) from error
    if not found:
        return None
    document, directory = max(found, key=lambda one: _counter(one[0]))
    in_file = _document(file_system, f"{beside}/{name}")
    if in_file is not None and _counter(in_file) > _counter(document):
        return None
    return fastjson.to_text(document), directory


def _read_rocksdb(place: _RocksDBPlace, name: str) -> dict[str, Any]:
    database = RocksDB(place.directory, (place.entries, place.version))
    try:
        versions = dict(database.items(place.version))
        entries = {
            key.decode(): fastjson.parse(value.decode(), place.directory)
            for key, value in database.items(place.entries)
        }
    finally:
        database.close()
    version = versions.get(_VERSION_KEY)
    if name == "offsetTable":
        entries = {key: value.get(name) or {} for key, value in entries.items()}
    document = {name: entries}
    if version is not None:
        document[_JSON_VERSION] = fastjson.parse(version.decode(), place.directory)
    return document


def _document(file_system: FileSystem, path: str) -> dict[str, Any] | None:
    content = file_system.read_file(path)
    try:
        return None if not content else parse_document(content.decode(errors="replace"), path)
    except StateFileError:
        return None


def _counter(document: dict[str, Any]) -> int:
    return DataVersion.from_document(document, None).counter
