"""How far a sink is, from the ledger, the notes and the mirror, and which of them decides.

    ledger     ENDs in the log, ours by their mark (`ledger.py`): decides
    notes      the last batch of each sink beside the log (`sink_notes.py`): decides if retention has deleted its END
    mirror     the sink's next batch as a consumer offset: slaves copy it, tools show it, and any client may set it

So the mirror never makes a batch count as done. If it is ahead of ledger and notes, then a client has set it, or the log
has lost its end: SinkProgressError, for an operator to decide (`spark-mq confirm-sink`). If it is behind, the next commit corrects it.
If neither ledger nor notes know the sink (a copy without spark_mq/, with expired ENDs), batches from the mirror's on are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from storage.batch.intent import Intent, intent_path, load_intents
from storage.batch.ledger import (
    END,
    GROUP_PREFIX,
    KINDS,
    OPENING,
    QUEUE_ID,
    TOPIC,
    Batch,
    BatchLedger,
    LedgerMessage,
    outgoing_ledger_message,
)
from storage.batch.staged_segment import (
    SUFFIX,
    SegmentPool,
    StagedBatch,
    StagedSegment,
    list_segments,
    staged_directory,
)
from storage.errors import SinkAheadError, SinkProgressError, SinkTakenError, StorageError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem, read_table, write_with_backup
from storage.put.store_writer import StoreWriter
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.sink_notes import LedgerNotes, SinkNote, load_ledger_notes, save_ledger_notes

_SHORTEST_RETENTION_MS = 3_600_000  # fileReservedTime is in hours
_NOTHING_NOTED = LedgerNotes(0)
"""The only notes that are in memory before they are in a file."""
_FORGOTTEN_QUERY = "one whose ledger entries have expired"


def ledger_of(writer: StoreWriter) -> BatchLedger:
    """The ledger of an open store."""
    return _ledger(writer, notes_of(writer).unmarked_end)


def notes_of(writer: StoreWriter) -> LedgerNotes:
    """The notes of an open store. Without any, its ledger is that of a version before the mark, and is taken over, durably."""
    if writer.ends.ledger_notes is None:
        notes = load_ledger_notes(writer.file_system, writer.root)
        writer.ends.ledger_notes = notes if notes is not None else _taken_over(writer)
    return writer.ends.ledger_notes


def claim_ledger(writer: StoreWriter) -> None:
    """Before a store's first batch: from here on messages count only with a mark."""
    notes = notes_of(writer)
    if notes == _NOTHING_NOTED and load_ledger_notes(writer.file_system, writer.root) is None:
        save_ledger_notes(writer.file_system, writer.root, notes)


def is_done(writer: StoreWriter, staged: StagedBatch, takeover: bool) -> bool:
    """Whether the store holds the batch.

    Raises SinkTakenError and SinkAheadError, unless `takeover`, and SinkProgressError.
    """
    batch = staged.batch
    known = _known_batches(writer, batch.sink_id)
    mirrored = _next_mirrored(_consumer_offsets(writer), batch.sink_id) - 1
    if not known:
        _refuse_what_only_the_mirror_says(writer, batch, mirrored, takeover)
        return False
    owner, last = next(iter(known.items()))
    if mirrored > last:
        raise SinkProgressError(writer.root, batch.sink_id, mirrored, last, batch.query_id)
    if owner != batch.query_id and not takeover:
        raise SinkTakenError(writer.root, batch.sink_id, owner, batch.query_id)
    known_batch = known.get(batch.query_id, -1)
    if batch.batch_id <= known_batch and not takeover:
        _refuse_another_run(writer, staged, known_batch)
    return batch.batch_id <= known_batch


def _refuse_another_run(writer: StoreWriter, staged: StagedBatch, known: int) -> None:
    """Raises SinkAheadError for a batch whose rows may differ from those that the store holds under its number.

    Spark repeats a query's last batch, from the same start. So a batch with as many rows is the same; a run that planned it anew
    brings others. Dead letters count: the repeated batch may find their topic existing. An earlier batch comes from a checkpoint that
    is a copy or an older one, or from a driver that was replaced. A write with a name (`writeId`) is never written again under that
    name, whatever its rows are.
    """
    batch = staged.batch
    is_last = batch.batch_id == known and not staged.is_write
    came_before = _rows_that_came(writer, batch) if is_last else None
    if batch.batch_id < known or came_before not in (None, staged.came):
        raise SinkAheadError(writer.root, batch.sink_id, batch.batch_id, staged.came, known, came_before)


def _rows_that_came(writer: StoreWriter, batch: Batch) -> int | None:
    """The rows of the batch, including dead letters, by its END; None if that has expired."""
    ends = ledger_of(writer).newest_end_messages()
    return next((message.row_count + message.refused for message in ends if message.batch == batch), None)


def place_of_end(writer: StoreWriter, intent: Intent) -> int | None:
    """Log offset of the END of this batch after the bound, even if it has expired since; None = the batch must be written.

    Raises StoreNotWritableError if it may have expired and only the mirror says so.
    """
    end_place = end_behind(writer, intent.batch, intent.segments, intent.lower_bound)
    if end_place is not None:
        return end_place
    if not intent.mirrored or not _has_expired(writer, intent) or messages_of(writer, intent.batch, intent.lower_bound):
        return None  # no END expires before its SLICEs
    note = notes_of(writer).expired(intent.sink_id, writer.log.minimum)
    if note is not None and note.query_id == intent.query_id and note.batch_id >= intent.batch_id:
        return note.end_place
    if intent.batch_id < _next_mirrored(_consumer_offsets(writer), intent.sink_id):
        group = GROUP_PREFIX + intent.sink_id
        raise StoreNotWritableError(
            writer.root,
            f"batch {intent.batch_id} of sink {intent.sink_id} is decided; the part of the log that may have held it has expired, and "
            f"only the consumer offset of group {group}, which any client may set, says that it was there",
            f"delete {intent_path(writer.root, intent)} if the rows of the batch were in the store; if not, delete the entry of that "
            f"group in {_offsets_path(writer)}, and the next opening writes them",
        )
    return None


def end_behind(writer: StoreWriter, batch: Batch, segments: Sequence[StagedSegment], start: int) -> int | None:
    """Log offset after `start` of the END of the batch with the rows of exactly these segments; None = there is none."""
    last_key, row_count = segments[-1].last_unique_key, sum(segment.rows for segment in segments)
    for message in messages_of(writer, batch, start, (END,)):
        if message.row_count == row_count and message.last is not None and message.last[1] == last_key:
            return message.commitlog_offset
    return None


def messages_of(writer: StoreWriter, batch: Batch, start: int, kinds: Sequence[str] = KINDS) -> list[LedgerMessage]:
    """The ledger's messages of these kinds about a batch after a log offset, oldest first."""
    return [message for message in ledger_of(writer).messages_from(start, kinds) if message.batch == batch]


def slices_left(writer: StoreWriter, batch: Batch) -> list[LedgerMessage]:
    """The SLICEs and BEGINs of a batch without END and without intent, oldest first.

    They came with the log: from the master whose replica this store was, or with a copy that has no spark_mq/.
    """
    if writer.ends.open_batches is None:
        writer.ends.open_batches = ledger_of(writer).open_batches()
    start = writer.ends.open_batches.get(batch.sink_id, {}).get(batch.query_id)
    return [] if start is None else messages_of(writer, batch, start, OPENING)


def keep_progress(writer: StoreWriter, sink_id: str, query_id: str, batch_id: int, end_place: int) -> None:
    """Mirror durably that this batch is the sink's last, and note it. `end_place` is that of `SinkNote`.

    The mirror comes first, so that after a crash in between the former note explains it. A mirror ahead of this batch and the
    former note is left as it is, and `is_done` refuses it.
    """
    former = notes_of(writer).sinks.get(sink_id)
    explained = max(batch_id, former.batch_id if former is not None else -1)
    table = _consumer_offsets(writer)
    if _next_mirrored(table, sink_id) <= explained + 1:
        _mirror(writer, table, sink_id, batch_id)
    _note(writer, sink_id, SinkNote(query_id, batch_id, end_place))


def _mirror(writer: StoreWriter, table: ConsumerOffsets, sink_id: str, batch_id: int) -> None:
    changed = table.with_offsets(GROUP_PREFIX + sink_id, {(TOPIC, QUEUE_ID): batch_id + 1}, now_ms=writer.clock())
    if changed is not table:
        write_with_backup(_offsets_path(writer), changed.to_text(), writer.file_system)


def _note(writer: StoreWriter, sink_id: str, note: SinkNote) -> None:
    before = notes_of(writer)
    notes = before.with_sink(sink_id, note)
    if notes is not before:
        save_ledger_notes(writer.file_system, writer.root, notes)
        writer.ends.ledger_notes = notes


def confirm_progress(writer: StoreWriter, sink_id: str, query_id: str, last_batch: int | None) -> int | None:
    """An operator's decision that ends a SinkProgressError; returns the sink's last batch from now on.

    If ledger or notes know it, the mirror is set to that, and `last_batch` must be it or None. Else `last_batch` (−1 = none) of
    `query_id` is noted and mirrored. Returns None, with nothing changed, if it is unknown or the two differ.
    """
    known = _known_batches(writer, sink_id)
    if known:
        last = next(iter(known.values()))
        if last_batch not in (None, last):
            return None
        _mirror(writer, _consumer_offsets(writer), sink_id, last)
        return last
    if last_batch is None:
        return None
    _note(writer, sink_id, SinkNote(query_id, last_batch, -1))
    _mirror(writer, _consumer_offsets(writer), sink_id, last_batch)
    return last_batch


def _ledger(writer: StoreWriter, unmarked_end: int) -> BatchLedger:
    end = writer.ends.readable_ends.get((TOPIC, QUEUE_ID), 0)
    queue = writer.queues.get(TOPIC, QUEUE_ID)
    return BatchLedger(writer.log, queue, end, writer.log_end, unmarked_end=unmarked_end)


def _taken_over(writer: StoreWriter) -> LedgerNotes:
    if not writer.ends.queue_ends.get((TOPIC, QUEUE_ID), 0):
        return _NOTHING_NOTED
    notes = LedgerNotes(writer.log_end, sinks_of(_ledger(writer, writer.log_end)))
    save_ledger_notes(writer.file_system, writer.root, notes)
    return notes


def sinks_of(ledger: BatchLedger) -> dict[str, SinkNote]:
    """The last batch of each sink with an END in the ledger."""
    sinks: dict[str, SinkNote] = {}
    for message in ledger.newest_end_messages():
        batch = message.batch
        sinks.setdefault(batch.sink_id, SinkNote(batch.query_id, batch.batch_id, message.commitlog_offset))
    return sinks


def _known_batches(writer: StoreWriter, sink_id: str) -> dict[str, int]:
    """Queries of the sink with their last batches, the one that wrote last first; empty if only the mirror may know the sink."""
    if writer.ends.ledger is None:
        writer.ends.ledger = ledger_of(writer).newest_ends()
    if known := writer.ends.ledger.get(sink_id):
        return known
    note = notes_of(writer).expired(sink_id, writer.log.minimum)
    return {} if note is None else {note.query_id: note.batch_id}


def _refuse_what_only_the_mirror_says(writer: StoreWriter, batch: Batch, mirrored: int, takeover: bool) -> None:
    """Raises SinkProgressError for a batch that only the mirror counts as done, SinkTakenError for another query's.

    A sink that is named after its query has no other. For a given name, a batch that continues at the mirror's end counts as the
    same query's, and so does the last one itself, which Spark may not know to be done; an earlier one counts as another query's.
    """
    if mirrored < 0:
        return
    was_cut = batch.sink_id in notes_of(writer).sinks  # its END has not expired, but is missing
    if not was_cut and batch.sink_id != batch.query_id and batch.batch_id < max(1, mirrored):
        if not takeover:
            raise SinkTakenError(writer.root, batch.sink_id, _FORGOTTEN_QUERY, batch.query_id)
    elif was_cut or batch.batch_id <= mirrored:
        raise SinkProgressError(writer.root, batch.sink_id, mirrored, None, batch.query_id)


def _next_mirrored(table: ConsumerOffsets, sink_id: str) -> int:
    return table.get(TOPIC, GROUP_PREFIX + sink_id, QUEUE_ID) or 0


def _consumer_offsets(writer: StoreWriter) -> ConsumerOffsets:
    return read_table(_offsets_path(writer), _parsed_offsets, writer.file_system.read_file) or ConsumerOffsets()


@lru_cache(maxsize=1)
def _parsed_offsets(text: str, file: str) -> ConsumerOffsets:
    """Cached: a commit reads the same text several times."""
    return ConsumerOffsets.load(text, file)


def _offsets_path(writer: StoreWriter) -> str:
    return f"{writer.root}/config/{OFFSETS_FILE}"


def _has_expired(writer: StoreWriter, intent: Intent) -> bool:
    """Whether retention has deleted the log after the bound. A power loss can lose a file too, but leaves no much younger one."""
    if intent.lower_bound >= writer.log.minimum:
        return False
    try:
        oldest = writer.log.message_at(writer.log.minimum, writer.log_end)
    except StorageError:
        return False
    return oldest.store_time_ms - intent.decided_ms >= _SHORTEST_RETENTION_MS


class SinkProgress(NamedTuple):
    """The last batch that the store holds of a sink and one of its queries."""

    sink_id: str
    query_id: str | None
    """None, as `last_batch_id`, if only the consumer offset knows the sink: it does not count."""
    last_batch_id: int | None
    mirrored_batch_id: int | None
    """The batch by its consumer offset; above `last_batch_id` the next commit fails. None for a query that is not the last."""


class OpenIntent(NamedTuple):
    """A batch that is decided and not forgotten yet."""

    batch: Batch
    row_count: int
    size_bytes: int
    is_finished: bool
    """Its END is in the log: the intent is kept only against a power loss. Else the next opening for writing finishes the batch."""


class StagedFile(NamedTuple):
    """A file that a task has staged, and no intent names."""

    path: str
    """Relative to ROOT/spark_mq/staged."""
    size_bytes: int
    modified_ms: int


class SinkStatus(NamedTuple):
    """What sinks have left in a store: the last batch of each, open intents, staged files.

    Read without the store's lock, beside running sinks: each part is as it was at its own moment. A staged file that no intent
    names belongs to a running task, to a batch that will be committed, or to none; only its age shows which.
    `remove_orphans` takes the lock, so that no batch is decided meanwhile.
    """

    sinks: tuple[SinkProgress, ...]
    """By sink id; within a sink the query that owns it comes first."""
    intents: tuple[OpenIntent, ...]
    orphans: tuple[StagedFile, ...]
    """The oldest first."""
    pool_files: int
    pool_bytes: int


def read_sink_status(
    root: str, ledger: BatchLedger, notes: LedgerNotes | None, offsets: ConsumerOffsets, file_system: LocalFileSystem
) -> SinkStatus:
    """The state of the store at ROOT. Raises StateFileError for an invalid intent."""
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
    """Delete segments that no intent names and that were not written since `before_ms`; returns them.

    They do not go to the pool: a forgotten task might still write to one. Raises StoreLockedError.
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
    # List before reading the intents: a commit that decides in between then names its files.
    staged = [(path, size) for path, size in list_segments(file_system, root) if path.endswith(SUFFIX)]
    named = {segment.path for intent in load_intents(file_system, root) for segment in intent.segments}
    found = []
    for path, size in staged:
        if path not in named:
            modified_ms = file_system.modified_ms(f"{staged_directory(root)}/{path}")
            if modified_ms is not None:  # else given back meanwhile
                found.append(StagedFile(path, size, modified_ms))
    return sorted(found, key=lambda file: (file.modified_ms, file.path))


def plan_renewals(newest_ends: Iterable[LedgerMessage], minimum: int) -> list[LedgerMessage]:
    """The newest END of each sink if it is before `minimum`, the log's first byte that stays; oldest first.

    `newest_ends` are one for each sink and query, newest first, as `BatchLedger.newest_end_messages` gives them.

    So the ledger survives retention: the newest END of each sink is written again before its file is deleted. Otherwise a sink that
    paused for longer than the store keeps its files would be known only by its consumer offset, which has its last batch but not its
    query.
    """
    of_sinks: dict[str, LedgerMessage] = {}
    for message in newest_ends:
        of_sinks.setdefault(message.batch.sink_id, message)
    expiring = [message for message in of_sinks.values() if message.commitlog_offset < minimum]
    return sorted(expiring, key=lambda message: message.commitlog_offset)


def apply_renewals(writer: StoreWriter, renewals: Iterable[LedgerMessage]) -> None:
    """Append these ENDs again: same batch, rows and last row; with a mark, even if the old ones had none. The caller syncs."""
    for message in renewals:
        end = outgoing_ledger_message(message, now_ms=writer.clock())
        writer.append([writer.settings.encode(end)])


def newest_ends(writer: StoreWriter) -> list[LedgerMessage]:
    """The input of `plan_renewals`; reads the whole ledger."""
    return list(ledger_of(writer).newest_end_messages())
