"""The position of a Spark query, from its checkpoint: `offsets/N` has where batch N ends, `commits/N` says that it is done.

A batch that is planned and not done is unread. A query with `commitOffsets`, which stores its position as a group's, is a group, too.

Spark: OffsetSeqLog, CommitLog.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_mq.conditions import OffsetJsonError, OptionError
from spark_mq.source.offsets import QueueId, QueueOffsets, load_json
from storage.errors import StorageError
from storage.files.file_system import FileSystem
from storage.files.remote import file_system_of, plain_path

OPTION = "--checkpoint"


class QueryPosition(NamedTuple):
    """A query and the next offset that it reads of each queue; no queue before its first batch is done."""

    name: str
    """The path of its checkpoint, as it was given: a checkpoint does not have the name of its query."""
    query_id: str
    offsets: Mapping[QueueId, int]


class NoPositionError(StorageError):
    """A query that has not finished its first batch: nobody knows how much it has not read."""

    template = "{directory}: no batch of this query is done, so how much it has not read is unknown"
    directory: str


class Checkpoints:
    """The positions of queries, look after look."""

    def __init__(self, directories: Sequence[str]) -> None:
        """Raises OptionError for what is no checkpoint now."""
        self._directories = directories
        for each in directories:
            read_position(each)

    def look(self) -> tuple[list[QueryPosition], list[Exception]]:
        """Where each query stands, and why some are missing: one that is spoilt, or has no position, hides no other."""
        found: list[QueryPosition] = []
        errors: list[Exception] = []
        for directory in self._directories:
            try:
                query = read_position(directory)
            except (OptionError, StorageError, OSError) as error:
                errors.append(error)
                continue
            if query.offsets:
                found.append(query)
            else:
                errors.append(NoPositionError(query.name))
        return found, errors


def read_position(directory: str, file_system: FileSystem | None = None) -> QueryPosition:
    """The query whose checkpoint it is. Raises OptionError for what is no checkpoint, or is of a query without a `spark_mq` source."""
    root, files = plain_path(directory).rstrip("/"), file_system or file_system_of(directory)
    content = files.read_file(f"{root}/metadata")
    if content is None:
        raise OptionError(OPTION, f"{root} is no checkpoint of a query: it has no file metadata")
    document = _json(content.decode(errors="replace"), f"{root}/metadata")
    query_id = document.get("id") if isinstance(document, dict) else None
    if not isinstance(query_id, str):
        raise OptionError(OPTION, f"{root}/metadata has no query id")
    done = _newest(files, f"{root}/commits")
    if done is None:
        return QueryPosition(root, query_id, {})
    path = f"{root}/offsets/{done}"
    lines = (files.read_file(path) or b"").decode(errors="replace").splitlines()
    if len(lines) < 3:
        raise OptionError(OPTION, f"{path} has no offsets, though batch {done} is done")
    found: dict[QueueId, int] = {}
    is_ours = False
    for line in lines[2:]:  # after the version and the batch's metadata, a line a source
        try:
            position = QueueOffsets.from_json_dict(load_json(line, OPTION), OPTION)
        except OffsetJsonError:  # of another source
            continue
        is_ours = True
        for queue, offset in position.next_offsets().items():
            found[queue] = min(offset, found.get(queue, offset))
    if not is_ours:
        raise OptionError(OPTION, f"{path} has no offsets of a source spark_mq")
    return QueryPosition(root, query_id, found)


def _json(text: str, path: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(OPTION, f"{path} is no JSON: {error}") from error
    return value


def _newest(files: FileSystem, directory: str) -> int | None:
    names = (entry.name for entry in files.list_directory(directory))
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)
