"""Notes about a store's sinks besides the log: `ledger.json`, which decides, and `batches.json`, for display.

Both lie in ROOT/spark_mq, where no client of a broker can write.

ledger.json holds what the log cannot say about the ledger:

    {"unmarkedEnd": place, "sinks": {SINK: [query, batch, place of its END], …}}
    CRC-32 of the first line in hex

`unmarked_end`: ledger messages before this log offset count without a mark (`storage.batch.ledger.MARK`), because a version without
marks may have written them. The first opening for writing that finds a ledger and no notes sets it to the log's end; it is never
raised. `sinks`: the last batch of each sink, needed after retention has deleted its END. A note is ignored while its END has not
expired: the log decides, and a cut of the log removes ENDs with their rows.

batches.json holds rows, bytes and time of the last batches. A commit replaces the file without a sync, so the commit does not wait. A
power loss may lose the notes of the last seconds, or all of them. No decision depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from isal import isal_zlib

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem, load_loose, save_loose
from storage.tables.put_statistics import TopicSum
from storage.tables.surroundings import own_directory

_NO_SINKS: Mapping[str, SinkNote] = MappingProxyType({})


class SinkNote(NamedTuple):
    """The last batch of a sink."""

    query_id: str
    batch_id: int
    end_place: int
    """The log offset where its END begins; −1 = an operator has declared the batch written, and there is no END."""


class LedgerNotes(NamedTuple):
    """The whole content of ledger.json."""

    unmarked_end: int
    sinks: Mapping[str, SinkNote] = _NO_SINKS

    def with_sink(self, sink_id: str, note: SinkNote) -> LedgerNotes:
        """The notes with this one in place of the sink's former note; the same notes if nothing changes."""
        return self if self.sinks.get(sink_id) == note else self._replace(sinks={**self.sinks, sink_id: note})

    def expired(self, sink_id: str, minimum: int) -> SinkNote | None:
        """The sink's note if its END was before `minimum`, where the log begins."""
        note = self.sinks.get(sink_id)
        return note if note is not None and note.end_place < minimum else None


def load_ledger_notes(file_system: FileSystem, root: str) -> LedgerNotes | None:
    """The notes; None if there are none. Raises StateFileError for a file with other content, or only half of it."""
    path = _ledger_path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    line, _, checksum = content.partition(b"\n")
    if checksum != f"{isal_zlib.crc32(line):08x}\n".encode():
        rule = "the checksum is not that of the first line; the file was changed or torn"
        raise StateFileError(path, 2, 1, rule)
    try:
        return _from_document(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateFileError(path, 1, 1, f"it holds no notes of this version: {error}") from error


def save_ledger_notes(file_system: LocalFileSystem, root: str, notes: LedgerNotes) -> None:
    """Replace the notes durably."""
    document = {"unmarkedEnd": notes.unmarked_end, "sinks": {name: list(note) for name, note in notes.sinks.items()}}
    line = json.dumps(document, separators=(",", ":")).encode()
    file_system.replace(_ledger_path(root), line + b"\n" + f"{isal_zlib.crc32(line):08x}\n".encode())


def unmarked_end_of(notes: LedgerNotes | None, log_end: int) -> int:
    """The log offset before which unmarked messages count: in a store that this version has not opened yet, its end."""
    return log_end if notes is None else notes.unmarked_end


def _ledger_path(root: str) -> str:
    return f"{own_directory(root)}/ledger.json"


def _from_document(document: dict[str, Any]) -> LedgerNotes:
    sinks = {}
    for name, (query_id, batch_id, end_place) in document["sinks"].items():
        if type(query_id) is not str or type(batch_id) is not int or type(end_place) is not int:
            raise ValueError(f"the note of sink {name!r:.80} is {document['sinks'][name]!r:.80}")
        sinks[name] = SinkNote(query_id, batch_id, end_place)
    if type(document["unmarkedEnd"]) is not int:
        raise ValueError(f"unmarkedEnd is {document['unmarkedEnd']!r:.80}")
    return LedgerNotes(document["unmarkedEnd"], sinks)


BATCHES = 10
"""How many batches of a sink are kept."""
SINKS = 50
"""How many sinks are kept: those that wrote last."""
TOPICS = 50
"""How many topics of a batch are kept: those with the most bytes; the others are one sum under the name ""."""


class BatchNote(NamedTuple):
    """One batch that was committed."""

    query_id: str
    batch_id: int
    done_ms: int
    """When the commit ended."""
    rows: int
    waited_ms: int
    """Until the store was open: waiting for its lock, and for a recovery if one was due."""
    took_ms: int
    """From the opening until the batch was in the log, in queues and index."""
    topics: Mapping[str, TopicSum]
    """What was put into each topic."""


BatchNotes = Mapping[str, tuple[BatchNote, ...]]
"""Sink id → its last batches, newest last; the sink that wrote last is last."""


def load_batch_notes(file_system: FileSystem, root: str) -> BatchNotes:
    """The notes; empty if there are none in a known form."""
    content = load_loose(file_system, _batches_path(root))
    try:
        document = json.loads(content) if content else {}
        return {sink: tuple(_from_row(row) for row in rows) for sink, rows in document.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def add_batch_note(file_system: LocalFileSystem, root: str, sink_id: str, note: BatchNote) -> None:
    """Add the note of one batch; `file_system` holds the store's lock."""
    notes = dict(load_batch_notes(file_system, root))
    same = (note.query_id, note.batch_id)
    before = [one for one in notes.pop(sink_id, ()) if (one.query_id, one.batch_id) != same]
    notes[sink_id] = (*before, note._replace(topics=_largest(note.topics)))[-BATCHES:]
    document = {sink: [_to_row(one) for one in kept] for sink, kept in [*notes.items()][-SINKS:]}
    save_loose(file_system, _batches_path(root), json.dumps(document, separators=(",", ":")).encode())


def _largest(topics: Mapping[str, TopicSum]) -> Mapping[str, TopicSum]:
    if len(topics) <= TOPICS:
        return topics
    ordered = sorted(topics.items(), key=lambda item: -item[1].size_bytes)
    rest = [one for _, one in ordered[TOPICS:]]
    others = TopicSum(sum(one.messages for one in rest), sum(one.size_bytes for one in rest))
    return {**dict(ordered[:TOPICS]), "": others}


def _batches_path(root: str) -> str:
    return f"{own_directory(root)}/batches.json"


def _to_row(note: BatchNote) -> list[Any]:
    return [*note[:-1], {topic: list(one) for topic, one in note.topics.items()}]


def _from_row(row: list[Any]) -> BatchNote:
    note = BatchNote(*row)
    return note._replace(topics={topic: TopicSum(*one) for topic, one in note.topics.items()})
