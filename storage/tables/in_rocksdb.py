"""Tables of config/ that a broker with storeType=defaultRocksDB keeps in RocksDB instead: topics, groups and groups' offsets.

    config/topics/, config/subscriptionGroups/, config/consumerOffsets/     a directory each
    config/metadata/                                                      all three (useSingleRocksDBForAllConfigs, from 5.5.0 on)

A key's value is the entry's JSON. A JSON file beside it counts only if its version is greater: a broker then takes it over at its next
start. Read-only. Java: RocksDBTopicConfigManager, RocksDBSubscriptionGroupManager, RocksDBConsumerOffsetManager.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.rocksdb import RocksDB, RocksDBUnreadable
from storage.format import fastjson
from storage.tables.consumer_groups import GROUPS_FILE, OFFSETS_FILE
from storage.tables.document import DataVersion, parse_document
from storage.tables.topics import TOPICS_FILE

_VERSION_KEY = b"kvDataVersionKey"
_VERSION = "dataVersion"


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


def text_in_rocksdb(root: str, name: str, file_system: FileSystem) -> tuple[str, str] | None:
    """The text that config/NAME would have, and where it was read; None where the file itself counts.

    Without the package `rocksdict` None for topics, which queues show too. Raises StateFileError where RocksDB has the table and cannot
    be read.
    """
    table = _TABLES.get(name)
    if table is None:
        return None
    places = (place._replace(directory=f"{root}/config/{place.directory}") for place in table.places)
    place = next((each for each in places if file_system.read_file(f"{each.directory}/CURRENT") is not None), None)
    if place is None:
        return None
    try:
        document = _read(place, table.name)
    except RocksDBUnreadable as error:
        if name == TOPICS_FILE:
            return None
        raise StateFileError(place.directory, 0, 0, f"this table lies in RocksDB: {error}") from error
    beside = _document(file_system, f"{root}/config/{name}")
    if beside is not None and _counter(beside) > _counter(document):
        return None
    return fastjson.to_text(document), place.directory


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
