"""What sinks have left in a store: the last batch of each, what is decided and not forgotten yet, what tasks have staged.

Read without the store's lock, beside running sinks: each part is as it was at its own moment. A staged file that no intent names
belongs to a task that is running, to a batch whose commit is to come, or to nobody any more; only its age tells. `remove_orphans`
takes the lock, so that no batch is decided meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from storage.batch.intent import load_intents
from storage.batch.ledger import END, GROUP_PREFIX, QUEUE_ID, TOPIC, Batch, BatchLedger
from storage.batch.staged_segment import SUFFIX, SegmentPool, list_segments, staged_directory
from storage.files.local_file_system import LocalFileSystem
from storage.tables.consumer_offsets import ConsumerOffsets
from storage.tables.ledger_notes import LedgerNotes


class SinkProgress(NamedTuple):
    """The last batch that the store holds of a sink and one of its queries."""

    sink_id: str
    query_id: str | None
    """None, and `last_batch_id` too, where the consumer offset is all that tells of the sink: nothing believes it."""
    last_batch_id: int | None
    mirrored_batch_id: int | None
    """What its consumer offset says. More than `last_batch_id` is an error of its next commit; None of a query that is not the last."""


class OpenIntent(NamedTuple):
    """A batch that is decided and not forgotten yet."""

    batch: Batch
    row_count: int
    size_bytes: int
    is_finished: bool
    """Its END stands in the log: kept only against a power loss. Else the next opening for writing finishes it."""


class StagedFile(NamedTuple):
    """A file that some task has staged, and no intent names."""

    path: str
    """Relative to ROOT/spark_mq/staged."""
    size_bytes: int
    modified_ms: int


class SinkStatus(NamedTuple):
    """All of it."""

    sinks: tuple[SinkProgress, ...]
    """By sink id; of one sink the query that owns it first."""
    intents: tuple[OpenIntent, ...]
    orphans: tuple[StagedFile, ...]
    """The oldest first."""
    pool_files: int
    pool_bytes: int


def read_sink_status(
    root: str, ledger: BatchLedger, notes: LedgerNotes | None, offsets: ConsumerOffsets, file_system: LocalFileSystem
) -> SinkStatus:
    """The state of the store at ROOT. Raises StateFileError for an intent that is none."""
    pooled = file_system.list_directory(SegmentPool(file_system, root).directory)
    return SinkStatus(
        tuple(_sinks(ledger, notes or LedgerNotes(0), offsets)),
        tuple(_open_intents(root, ledger, file_system)),
        tuple(_orphans(root, file_system)),
        len(pooled),
        sum(entry.size_bytes for entry in pooled),
    )


def remove_orphans(
    root: str, file_system: LocalFileSystem, *, before_ms: int, lock_timeout_ms: int = 0
) -> list[StagedFile]:
    """Delete segments that no intent names and nobody has written to since `before_ms`; returns them.

    They do not go to the pool: a forgotten task might write to one after all. Raises StoreLockedError.
    """
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        removed = [file for file in _orphans(root, file_system) if file.modified_ms < before_ms]
        for file in removed:
            with suppress(FileNotFoundError):
                file_system.unlink(f"{staged_directory(root)}/{file.path}")
    return removed


def _sinks(ledger: BatchLedger, notes: LedgerNotes, offsets: ConsumerOffsets) -> list[SinkProgress]:
    ends = ledger.newest_ends()
    mirrored = {group.removeprefix(GROUP_PREFIX): group for group in offsets.groups() if group.startswith(GROUP_PREFIX)}
    found: list[SinkProgress] = []
    for sink_id in sorted(ends.keys() | notes.sinks.keys() | mirrored.keys()):
        next_batch = offsets.get(TOPIC, mirrored[sink_id], QUEUE_ID) if sink_id in mirrored else None
        mirror = next_batch - 1 if next_batch else None
        note = notes.expired(sink_id, ledger.log_minimum)
        if sink_id in ends:
            for number, (query_id, batch_id) in enumerate(ends[sink_id].items()):
                found.append(SinkProgress(sink_id, query_id, batch_id, None if number else mirror))
        elif note is not None:
            found.append(SinkProgress(sink_id, note.query_id, note.batch_id, mirror))
        elif mirror is not None:
            found.append(SinkProgress(sink_id, None, None, mirror))
    return found


def _open_intents(root: str, ledger: BatchLedger, file_system: LocalFileSystem) -> list[OpenIntent]:
    found = []
    for intent in load_intents(file_system, root):
        batch = intent.batch
        is_finished = any(message.batch == batch for message in ledger.messages_from(intent.lower_bound, (END,)))
        size = sum(segment.data_size_bytes for segment in intent.segments)
        found.append(OpenIntent(batch, intent.row_count, size, is_finished))
    return found


def _orphans(root: str, file_system: LocalFileSystem) -> list[StagedFile]:
    # Listed before the intents are read: what a commit decides in between is then named by one.
    staged = [(path, size) for path, size in list_segments(file_system, root) if path.endswith(SUFFIX)]
    named = {segment.path for intent in load_intents(file_system, root) for segment in intent.segments}
    found = []
    for path, size in staged:
        if path not in named:
            modified_ms = file_system.modified_ms(f"{staged_directory(root)}/{path}")
            if modified_ms is not None:  # else given back meanwhile
                found.append(StagedFile(path, size, modified_ms))
    return sorted(found, key=lambda file: (file.modified_ms, file.path))
