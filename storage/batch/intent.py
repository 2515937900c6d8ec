"""Intents: what a commit has decided to append, so that it is appended, or completed later, whatever happens in between.

ROOT/spark_mq/intents/SINK-BATCH.json is two lines: the intent as JSON, and the CRC-32 of the first line in hex. Written as NAME.tmp,
synced, renamed, directory synced: the rename is the commit point of a batch. From then on the batch will be in the log, if necessary
by a later opening; before it, nothing of it is. A `.tmp` that a crash left was never decided.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any, NamedTuple

from isal import isal_zlib

from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedSegment, sink_digest
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem

_STAGED = re.compile(r"\.(?P<batch>[0-9a-f]{16}-[0-9]+)-(?P<partition>[0-9]+)-[0-9a-zA-Z-]{1,200}\.staged")


class DeadLetterFile(NamedTuple):
    """The two names of a task's file of dead letters, as full paths: the hidden one under which it is written, and the one that its
    batch's commit gives it. As JSON a list.

        DIRECTORY/.SINK-BATCH-PARTITION-ATTEMPT.staged      written and synced by a task
        DIRECTORY/SINK-BATCH-PARTITION.parquet              renamed by the commit, or by the opening that finishes the batch later

    SINK is `sink_digest` in hex. An opening of the store obeys the names in an intent, so they must have this form: only a staged file
    of the intent's own batch is ever renamed, and only within its directory.
    """

    staged: str
    final: str

    @classmethod
    def of(cls, directory: str, sink_directory: str, batch_id: int, partition: int, attempt: str) -> DeadLetterFile:
        """`sink_directory` is the hex `sink_digest`, `attempt` is unique."""
        name = f"{sink_directory}-{batch_id}-{partition}"
        return cls(f"{directory}/.{name}-{attempt}.staged", f"{directory}/{name}.parquet")

    @classmethod
    def from_json(cls, values: Any, sink_id: str, query_id: str, batch_id: int) -> DeadLetterFile:
        """From the list of its values; ValueError for another value, or names that are not those of this batch's dead letters."""
        if not isinstance(values, list) or [type(value) for value in values] != [str, str]:
            raise ValueError(f"dead letters are a list of two paths, found {values!r:.200}")
        file = cls(*values)
        directory, _, name = file.staged.rpartition("/")
        found = _STAGED.fullmatch(name)
        batch = f"{sink_digest(sink_id, query_id).hex()}-{batch_id}"
        if (
            found is None
            or found["batch"] != batch
            or file.final != f"{directory}/{batch}-{found['partition']}.parquet"
        ):
            raise ValueError(
                f"{file.staged!r:.200} and {file.final!r:.200} are no names of dead letters of batch {batch_id}"
            )
        return file


_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+\.json")
_TEMPORARY = ".tmp"
INTENT_DIRECTORIES = "spark_mq", "spark_mq/intents"
"""The directories of intents in ROOT, the outer one first."""
_KINDS = {
    **dict.fromkeys(("sink_id", "query_id"), str),
    **dict.fromkeys(("batch_id", "lower_bound", "decided_ms", "refused"), int),
    "mirrored": bool,
}


class Intent(NamedTuple):
    """One decided batch of one sink. It names no place in the log, so other writes before it is done do not matter."""

    sink_id: str
    query_id: str
    batch_id: int
    lower_bound: int
    """The log's end at the decision; nothing of the batch lies before."""
    segments: tuple[StagedSegment, ...]
    """In the order in which they are appended."""
    dead_letters: tuple[DeadLetterFile, ...] = ()
    """Files to rename."""
    mirrored: bool = True
    """Whether the sink's last batch is also kept as a consumer offset."""
    decided_ms: int = 0
    refused: int = 0
    """How many rows the dead letters have."""

    @property
    def batch(self) -> Batch:
        return Batch(self.sink_id, self.query_id, self.batch_id)

    @property
    def row_count(self) -> int:
        return sum(segment.rows for segment in self.segments)


def save_intent(file_system: LocalFileSystem, root: str, intent: Intent, synced: Container[str] = frozenset()) -> None:
    """Decide it. Durable on return; if it raises, the batch may be decided or not, and opening the store shows which.

    `synced`: the `INTENT_DIRECTORIES` whose names are known to be on the disk.
    """
    for name in INTENT_DIRECTORIES:  # a killed process may have made them, unsynced
        if name not in synced or not file_system.exists(f"{root}/{name}"):
            file_system.make_directories(f"{root}/{name}")
    line = json.dumps(intent._asdict(), ensure_ascii=True).encode()
    file_system.replace(intent_path(root, intent), line + b"\n" + f"{isal_zlib.crc32(line):08x}\n".encode())


def load_intents(file_system: LocalFileSystem, root: str) -> list[Intent]:
    """All open intents, in the order of their decisions. Raises StateFileError for a file that is no intent of ours."""
    directory = intent_directory(root)
    found = []
    for entry in file_system.list_directory(directory):
        path = f"{directory}/{entry.name}"
        if not entry.name.endswith(_TEMPORARY):
            content = file_system.read_file(path)
            if content is not None:
                intent = _decode(content, path)
                if path != intent_path(root, intent):
                    raise StateFileError(path, 0, 0, f"it holds the intent of {intent_path(root, intent)}")
                found.append(intent)
    return sorted(found, key=lambda intent: (intent.lower_bound, intent.sink_id, intent.query_id, intent.batch_id))


def drop_intent(file_system: LocalFileSystem, root: str, intent: Intent) -> None:
    """Delete an intent whose batch is on the disk. Durable on return, so that its segments may be reused."""
    file_system.unlink(intent_path(root, intent))
    file_system.sync(intent_directory(root))


def remove_undecided(file_system: LocalFileSystem, root: str) -> None:
    """Delete the remains of writers that died before their commit point. The caller holds the store's lock."""
    directory = intent_directory(root)
    for entry in file_system.list_directory(directory):
        if entry.name.endswith(_TEMPORARY):
            file_system.unlink(f"{directory}/{entry.name}")


def intent_directory(root: str) -> str:
    return f"{root}/{INTENT_DIRECTORIES[-1]}"


def intent_path(root: str, intent: Intent) -> str:
    """Path of an intent."""
    return f"{intent_directory(root)}/{sink_digest(intent.sink_id, intent.query_id).hex()}-{intent.batch_id}.json"


def _decode(content: bytes, path: str) -> Intent:
    line, _, checksum = content.partition(b"\n")
    if not _NAME.fullmatch(path.rpartition("/")[2]):
        raise StateFileError(path, 0, 0, "no intent has this name, and nothing else belongs here")
    if checksum != f"{isal_zlib.crc32(line):08x}\n".encode():
        raise StateFileError(path, 2, 1, "the checksum is not that of the first line; the file was changed or torn")
    try:
        return _from_document(json.loads(line))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateFileError(path, 1, 1, f"it is no intent of this version: {error}") from error


def _from_document(document: dict[str, Any]) -> Intent:
    document = {"refused": 0} | document  # earlier versions omit it
    if set(document) != set(Intent._fields):
        raise ValueError(f"its fields are {sorted(document)}")
    for name, kind in _KINDS.items():
        if type(document[name]) is not kind:
            raise ValueError(f"{name} is {document[name]!r:.40}")
    return Intent(
        sink_id=document["sink_id"],
        query_id=document["query_id"],
        batch_id=document["batch_id"],
        lower_bound=document["lower_bound"],
        segments=tuple(StagedSegment.from_json(segment) for segment in document["segments"]),
        dead_letters=tuple(
            DeadLetterFile.from_json(values, document["sink_id"], document["query_id"], document["batch_id"])
            for values in document["dead_letters"]
        ),
        mirrored=document["mirrored"],
        decided_ms=document["decided_ms"],
        refused=document["refused"],
    )
