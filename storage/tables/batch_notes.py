"""What the last batches of each sink were: rows, bytes and time, for people to look at. ROOT/spark_mq/batches.json.

A commit replaces the file without a sync. So it costs the commit no wait, and a power loss may take the notes of the last seconds, or
all of them. Nothing is decided by them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from storage.files.atomic_file import load_loose, save_loose
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.tables.own_directory import own_directory
from storage.tables.put_statistics import TopicSum

BATCHES = 10
"""How many batches of a sink are remembered."""
SINKS = 50
"""And how many sinks: those that wrote last."""
TOPICS = 50
"""And how many topics of a batch: those with the most bytes; the others are one sum under the name ""."""


class BatchNote(NamedTuple):
    """One batch that was committed."""

    query_id: str
    batch_id: int
    done_ms: int
    """When the commit ended."""
    rows: int
    waited_ms: int
    """Until the store was open: for its lock, and for a recovery where one was due."""
    took_ms: int
    """From then on until the batch was in the log, in queues and index."""
    topics: Mapping[str, TopicSum]
    """What was put, by the topic it was stored in."""


BatchNotes = Mapping[str, tuple[BatchNote, ...]]
"""Sink id → its last batches, the newest last; the sink that wrote last comes last."""


def load_batch_notes(file_system: FileSystem, root: str) -> BatchNotes:
    """The notes; empty where there are none that this version knows."""
    content = load_loose(file_system, _path(root))
    try:
        document = json.loads(content) if content else {}
        return {sink: tuple(_from_row(row) for row in rows) for sink, rows in document.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def add_batch_note(file_system: LocalFileSystem, root: str, sink_id: str, note: BatchNote) -> None:
    """Remember one batch more; `file_system` holds the store's lock."""
    notes = dict(load_batch_notes(file_system, root))
    same = (note.query_id, note.batch_id)
    before = [one for one in notes.pop(sink_id, ()) if (one.query_id, one.batch_id) != same]
    notes[sink_id] = (*before, note._replace(topics=_largest(note.topics)))[-BATCHES:]
    document = {sink: [_to_row(one) for one in kept] for sink, kept in [*notes.items()][-SINKS:]}
    save_loose(file_system, _path(root), json.dumps(document, separators=(",", ":")).encode())


def _largest(topics: Mapping[str, TopicSum]) -> Mapping[str, TopicSum]:
    if len(topics) <= TOPICS:
        return topics
    ordered = sorted(topics.items(), key=lambda item: -item[1].size_bytes)
    rest = [one for _, one in ordered[TOPICS:]]
    others = TopicSum(sum(one.messages for one in rest), sum(one.size_bytes for one in rest))
    return {**dict(ordered[:TOPICS]), "": others}


def _path(root: str) -> str:
    return f"{own_directory(root)}/batches.json"


def _to_row(note: BatchNote) -> list[Any]:
    return [*note[:-1], {topic: list(one) for topic, one in note.topics.items()}]


def _from_row(row: list[Any]) -> BatchNote:
    note = BatchNote(*row)
    return note._replace(topics={topic: TopicSum(*one) for topic, one in note.topics.items()})
