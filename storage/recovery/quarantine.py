"""Copies of what a recovery cuts: ROOT/spark_mq/quarantine/TIME-PLACE/. Java has none: it overwrites what it cuts.

    manifest.json                        why, when, and of each part: where from, position, size, SHA-256; written last
    commitlog/PLACE                      the log from that place to the end of the data in its file, 20 digits; all of a later file
    consumequeue/TOPIC/QUEUEID/PLACE     entries of a queue, from that byte of the queue on
    index/NAME                           index files that go

A directory without a manifest is an unfinished copy; nothing was cut then, and the next copy deletes it. Only `read_quarantine` reads a
quarantine; it stays until an operator deletes it. Its messages may have been acknowledged.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from storage.dispatch.recovery_plan import RecoveryPlan
from storage.errors import StateFileError, StorageError, StoreNotWritableError
from storage.files.file_system import FileSystem, ReadableFile, end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY_SIZE
from storage.format.record import Message, decode_record
from storage.log.commit_log import CommitLog
from storage.log.damage import intact_records
from storage.queues.store import ConsumeQueueStore
from storage.recovery.passes import StoreParts

_LOG = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QuarantinedPart:
    """Bytes [position, position + size) of the file `source`, as `path` within the quarantine."""

    path: str
    source: str
    position: int
    size_bytes: int
    sha256: str
    commitlog_offset: int | None = None
    """The log offset of its first byte, for a part of the log."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One copy of what was cut. `commitlog_offset` is where the log was cut, `reason` why."""

    directory: str
    made_ms: int
    commitlog_offset: int
    reason: str
    intact_records: int
    parts: tuple[QuarantinedPart, ...]

    @property
    def name(self) -> str:
        return self.directory.rpartition("/")[2]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def quarantine_directory(root: str) -> str:
    return f"{root}/spark_mq/quarantine"


def keep_what_is_cut(
    parts: StoreParts, plan: RecoveryPlan, index_paths: Sequence[str], *, reason: StorageError
) -> Quarantine:
    """Copy log and queues after the plan's ends, and these index files. Durable on return, directories too.

    The caller holds the store's lock and has cut nothing yet. Raises StoreNotWritableError if the copy has no room or otherwise
    fails; the incomplete copy is deleted then.
    """
    root, file_system, log_end = parts.root, parts.file_system, plan.log_end
    _remove_unfinished(file_system, root)
    made_ms = parts.clock()
    while file_system.exists(directory := f"{quarantine_directory(root)}/{_name(made_ms, log_end)}"):
        made_ms += 1
    copy = _Copy(file_system, directory)
    try:
        copy.copy_log(parts.log, log_end)
        copy.copy_queues(parts.queues, plan.visible_ends)
        for path in index_paths:
            opened = file_system.open_file(path)
            copy.copy(f"index/{path.rpartition('/')[2]}", opened, 0, opened.size_bytes)
            opened.close()
        copy.sync()
        made = Quarantine(directory, made_ms, log_end, reason.describe(), copy.intact_records, tuple(copy.parts))
        file_system.replace(f"{directory}/{_MANIFEST}", json.dumps(_document(made), indent=1).encode())
    except OSError as error:
        with suppress(OSError):
            _remove(file_system, directory)
        cause = f"the part to cut could not be copied to {directory} first: {error.strerror or error}"
        raise StoreNotWritableError(root, cause, "nothing was cut; make room on the disk and try again") from error
    _LOG.warning(
        "%s: what recovery cuts behind %d, with %d intact records, was copied to %s: %s",
        *(root, log_end, made.intact_records, directory, made.reason),
    )
    return made


def list_quarantines(file_system: FileSystem, root: str) -> list[Quarantine]:
    """All complete quarantines, oldest first. Raises StateFileError for an unreadable manifest."""
    directories = [f"{quarantine_directory(root)}/{name}" for name in _names(file_system, root)]
    found = (load_quarantine(file_system, directory) for directory in directories)
    return [quarantine for quarantine in found if quarantine is not None]


def load_quarantine(file_system: FileSystem, directory: str) -> Quarantine | None:
    """The quarantine in a directory; None if it is not complete. Raises StateFileError."""
    path = f"{directory}/{_MANIFEST}"
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        return _from_document(json.loads(content), directory)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateFileError(path, 0, 0, f"it is no manifest of a quarantine: {error}") from error


def read_quarantine(file_system: FileSystem, quarantine: Quarantine) -> Iterator[Message]:
    """The intact messages, by log offset: also records that no queue shows, such as prepared ones.

    After the log of a store that a broker has recovered they may be records from before that recovery.
    """
    for part in quarantine.parts:
        if part.commitlog_offset is not None:
            opened = file_system.open_file(f"{quarantine.directory}/{part.path}")
            for records in intact_records(opened, part.commitlog_offset):
                for position, size in zip(
                    records.positions.tolist(), records.column("size_bytes").tolist(), strict=True
                ):
                    message = decode_record(opened.view(position, size).tobytes())
                    if isinstance(message, Message):
                        yield message
            opened.close()


@dataclass(slots=True)
class _Copy:
    """Copies parts into a quarantine."""

    file_system: LocalFileSystem
    directory: str
    parts: list[QuarantinedPart] = field(default_factory=list)
    intact_records: int = 0
    _directories: set[str] = field(default_factory=set)

    def copy_log(self, log: CommitLog, end: int) -> None:
        for file in log.files[max(0, log.file_index(end)) :]:
            opened, position = log.open_file(file), max(0, end - file.start)
            stop = end_of_data(opened, position)
            if stop > position:
                place = file.start + position
                self.copy(f"commitlog/{place:020d}", opened, position, stop, place)
                self.intact_records += sum(len(records) for records in intact_records(opened, file.start, position))

    def copy_queues(self, queues: ConsumeQueueStore, ends: dict[tuple[str, int], int]) -> None:
        for queue in queues:
            end = ends.get((queue.topic, queue.queue_id), 0) * ENTRY_SIZE
            for start in queue.file_starts:
                position = max(0, end - start)
                if position < queue.file_size_bytes:
                    opened = self.file_system.open_small_reads(queue.path_of(start))
                    stop = end_of_data(opened, position)
                    if stop > position:
                        name = f"consumequeue/{queue.topic}/{queue.queue_id}/{start + position:020d}"
                        self.copy(name, opened, position, stop)

    def copy(
        self, name: str, source: ReadableFile, position: int, stop: int, commitlog_offset: int | None = None
    ) -> None:
        """Copy one part; holes stay holes."""
        path, digest = f"{self.directory}/{name}", hashlib.sha256()
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self.file_system.make_directories(directory)
            self._directories.add(directory)
        self.file_system.create_file(path, stop - position)
        for at in range(position, stop, _CHUNK):
            data = source.view(at, min(_CHUNK, stop - at))
            digest.update(data.data)
            if data.any():
                self.file_system.write(path, at - position, data)
        self.file_system.sync(path)
        size = stop - position
        self.parts.append(QuarantinedPart(name, source.path, position, size, digest.hexdigest(), commitlog_offset))

    def sync(self) -> None:
        for directory in sorted(self._directories, reverse=True):
            self.file_system.sync(directory)


def _name(made_ms: int, log_end: int) -> str:
    made = datetime.fromtimestamp(made_ms / 1_000, UTC)
    return f"{made:%Y%m%dT%H%M%S}{made_ms % 1_000:03d}-{log_end:020d}"


def _names(file_system: FileSystem, root: str) -> list[str]:
    return [entry.name for entry in file_system.list_directory(quarantine_directory(root)) if entry.is_directory]


def _remove_unfinished(file_system: LocalFileSystem, root: str) -> None:
    for name in _names(file_system, root):
        directory = f"{quarantine_directory(root)}/{name}"
        if not file_system.exists(f"{directory}/{_MANIFEST}"):
            _remove(file_system, directory)


def _remove(file_system: LocalFileSystem, directory: str) -> None:
    for entry in file_system.list_directory(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            _remove(file_system, path)
        else:
            file_system.unlink(path)
    file_system.remove_directory(directory)


def _document(made: Quarantine) -> dict[str, Any]:
    return {
        "version": 1,
        "madeMs": made.made_ms,
        "commitlogOffset": made.commitlog_offset,
        "reason": made.reason,
        "intactRecords": made.intact_records,
        "parts": [
            {
                "path": part.path,
                "source": part.source,
                "position": part.position,
                "sizeBytes": part.size_bytes,
                "sha256": part.sha256,
                "commitlogOffset": part.commitlog_offset,
            }
            for part in made.parts
        ],
    }


def _from_document(document: dict[str, Any], directory: str) -> Quarantine:
    if document["version"] != 1:
        raise ValueError(f"its version is {document['version']}")
    return Quarantine(
        directory,
        _value(document, "madeMs", int),
        _value(document, "commitlogOffset", int),
        _value(document, "reason", str),
        _value(document, "intactRecords", int),
        tuple(_part_from(part) for part in document["parts"]),
    )


def _part_from(part: dict[str, Any]) -> QuarantinedPart:
    path = _value(part, "path", str)
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"path {path!r} does not stay in the quarantine")
    return QuarantinedPart(
        path,
        _value(part, "source", str),
        _value(part, "position", int),
        _value(part, "sizeBytes", int),
        _value(part, "sha256", str),
        None if part["commitlogOffset"] is None else _value(part, "commitlogOffset", int),
    )


def _value(document: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = document[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}")
    return value
