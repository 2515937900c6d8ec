"""Tables of config/ that a broker with storeType=defaultRocksDB keeps in RocksDB instead: topics, groups and groups' offsets.

    config/metadata/                                                      all three (useSingleRocksDBForAllConfigs, from 5.5.0 on)
    config/topics/, config/subscriptionGroups/, config/consumerOffsets/     a directory each

A key's value is the entry's JSON. Where a table is in several places, JSON files included, that with the greatest version counts: a
broker takes it over at its next start. Read-only. Java: RocksDBTopicConfigManager, RocksDBSubscriptionGroupManager,
RocksDBConsumerOffsetManager.

With configManagerVersion=v2 they lie in config/rdb/, in a form of its own, which is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from storage.errors import StateFileError
from storage.files.atomic_file import read_table
from storage.files.file_system import FileSystem
from storage.files.rocksdb import RocksDB, RocksDBUnreadable
from storage.format import fastjson
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import GROUPS_FILE, OFFSETS_FILE
from storage.tables.document import DataVersion, parse_document
from storage.tables.topics import TOPICS_FILE

_T = TypeVar("_T")
_VERSION_KEY = b"kvDataVersionKey"
_VERSION = "dataVersion"
_UNREAD = "rdb"
"""The directory of configManagerVersion=v2."""
TABLES_IN_ROCKSDB = "its topics, groups and offsets lie in RocksDB, which only its broker writes"


class _Place(NamedTuple):
    directory: str
    entries: str
    version: str


class _Table(NamedTuple):
    name: str
    """The key of its entries in the JSON file."""
    places: tuple[_Place, ...]


def _table(name: str, directory: str, family: str) -> _Table:
    return _Table(name, (_Place("metadata", family, f"{family}Version"), _Place(directory, "default", "kvDataVersion")))


_TABLES = {
    TOPICS_FILE: _table("topicConfigTable", "topics", "topic"),
    GROUPS_FILE: _table("subscriptionGroupTable", "subscriptionGroups", "subscriptionGroup"),
    OFFSETS_FILE: _table("offsetTable", "consumerOffsets", "consumerOffset"),
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
    file_system: FileSystem, root: str, config: StoreConfig, name: str, table: _Table
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
                found.append((_read(place._replace(directory=directory), table.name), directory))
            except RocksDBUnreadable as error:
                raise _UnreadTable(directory, str(error)) from error
    if not found:
        return None
    document, directory = max(found, key=lambda one: _counter(one[0]))
    in_file = _document(file_system, f"{beside}/{name}")
    if in_file is not None and _counter(in_file) > _counter(document):
        return None
    return fastjson.to_text(document), directory


def _read(place: _Place, name: str) -> dict[str, Any]:
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
        document[_VERSION] = fastjson.parse(version.decode(), place.directory)
    return document


def _document(file_system: FileSystem, path: str) -> dict[str, Any] | None:
    content = file_system.read_file(path)
    try:
        return None if not content else parse_document(content.decode(errors="replace"), path)
    except StateFileError:
        return None


def _counter(document: dict[str, Any]) -> int:
    return DataVersion.from_document(document, None).counter
