"""What a broker with tiered storage has moved away, as its `config/tieredStoreMetadata.json` says.

    "consumeQueueFileSegmentTable": {"broker-a/TopicA/0": {0: {"baseOffset": 0, "size": 2000, "status": 0, …}, …}, …}

The key is also the files' place in the storage. Places and sizes count bytes of entries.
Java: DefaultMetadataStore, FileSegmentMetadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import read_table
from storage.format.consume_queue import ENTRY_SIZE
from storage.settings.load import StoreConfig
from storage.tables.document import integer, parse_document, section

METADATA_FILE = "tieredStoreMetadata.json"
_DELETED = 2
_POSIX = "PosixFileSegment"
_QUEUES_NAMED = 3


class MovedRange(NamedTuple):
    """The queue offsets [start, end) of one queue that tiered storage has, and where there."""

    start: int
    end: int
    place: str

    def describe(self) -> str:
        return f"offsets {self.start} to {self.end - 1} lie in tiered storage, file {self.place}"


MovedRanges = Mapping[tuple[str, int], MovedRange]
"""By topic and queue id."""


def parse_moved(text: str, file: str | None = None) -> MovedRanges:
    """The ranges of the table. Raises StateFileError if it is none."""
    found: dict[tuple[str, int], MovedRange] = {}
    for place, segments in section(parse_document(text, file), "consumeQueueFileSegmentTable", file).items():
        parts = place.split("/")
        if len(parts) != 3 or not parts[2].isdigit() or not isinstance(segments, dict):
            raise StateFileError(
                file, 0, 0, f"consumeQueueFileSegmentTable: a queue's files are expected, found {place!r:.40}"
            )
        files = [segment for segment in segments.values() if isinstance(segment, dict)]
        kept = [
            (integer(segment, "baseOffset", 0, file), integer(segment, "size", 0, file))
            for segment in files
            if integer(segment, "status", 0, file) != _DELETED
        ]
        if kept:
            start, end = min(base for base, _ in kept), max(base + size for base, size in kept)
            if start < end:
                found[parts[1], int(parts[2])] = MovedRange(start // ENTRY_SIZE, end // ENTRY_SIZE, place)
    return found


def load_moved(root: str, file_system: FileSystem) -> MovedRanges:
    """What has moved away from the store at ROOT. Raises StateFileError for an unreadable table."""
    return read_table(f"{root}/config/{METADATA_FILE}", parse_moved, file_system.read_file) or {}


def moved_warning(root: str, away: Sequence[tuple[tuple[str, int], MovedRange]], *, in_rocksdb: bool) -> str:
    """Which messages of a store cannot be read, where they lie, and the cure. `away` is by topic and queue id, and not empty."""
    named = [
        f"{topic} queue {queue_id} offsets {found.start} to {found.end - 1} ({found.place})"
        for (topic, queue_id), found in away[:_QUEUES_NAMED]
    ]
    more = f" and {len(away) - len(named)} more queues" if len(away) > len(named) else ""
    text = f"store {root}: messages lie in tiered storage and are not read, nor found by key: {', '.join(named)}{more}"
    cure = "they are read where broker.conf names their directory (tieredStoreFilePath, PosixFileSegment)"
    if in_rocksdb:
        cure = "they are not read where consume queues lie in RocksDB"
    return f"{text}; {cure}; its broker serves them (nameServer)"


def moved_directory(config: StoreConfig) -> str | None:
    """The directory with a directory for each topic that has moved; None where it is no directory, or is not configured.

    Java: the path of PosixFileSegment, MessageStoreUtil.getHash.
    """
    tiered, identity = config.tiered, config.identity
    if not tiered.tiered_backend_service_provider.endswith(f".{_POSIX}") or not identity.broker_name:
        return None
    cluster = identity.broker_cluster_name
    prefix = hashlib.md5(cluster.encode(), usedforsecurity=False).hexdigest()[:8]
    path = (tiered.tiered_store_file_path or "").rstrip("/")
    return f"{path}/{prefix}_{cluster}/{identity.broker_name}" if path else None
