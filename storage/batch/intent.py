"""Intents: what a commit has decided to append, so that it is appended, or completed later, whatever happens in between.

ROOT/spark_mq/intents/SINK-BATCH.json is two lines: the intent as JSON, and the CRC-32 of the first line in hex. Written as NAME.tmp,
synced, renamed, directory synced: the rename is the commit point of a batch. From then on the batch will be in the log, if necessary
by a later opening; before it, nothing of it is. A `.tmp` that a crash left was never decided.

Every commit and every opening needs one number: how much of a decided batch the log holds, its first missing row (`first_missing`).
The rows of a slice follow its SLICE without a gap, because the put lock is held for both, and a SLICE is written only after all earlier
rows are in the log. So only the last slice's rows are compared with the staged ones, byte by byte except the stamped fields
(`record_block.stamp`). Unique keys are not used, so rows may have keys of their own. A BEGIN of a version before slices is a slice of
all remaining rows.

A record counts as valid by its lengths and its body's CRC; its topic and properties have no checksum. A page of them
that a power loss took reads as zeros, and recovery, like a broker's, would take the row for a message without topic or tags. So
such rows get their bytes again before recovery (`mend_batches`), and after it their queue entries and keys (`StoreWriter.mend`).

A mended row looks like any other, but its entry may still be wrong. So the places of torn rows are noted in
ROOT/spark_mq/torn_rows.json, before the first of them is written, and deleted when entries and keys are on the disk: after a crash
in between the next opening continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from isal import isal_zlib

from storage.batch.ledger import BEGIN, SLICE, Batch, LedgerMessage, OwnRecord, own_record
from storage.batch.slices import runs_between, runs_from
from storage.batch.staged_segment import StagedSegment, open_runs, sink_digest
from storage.errors import StateFileError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import view_at, words_of
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.format.record_batch import Records
from storage.format.record_block import (
    RecordRun,
    copy_halves,
    copy_origins,
    read_stamps,
    stamp,
    stamp_crcs,
)
from storage.log.commit_log import CommitLog
from storage.log.damage import TornRow
from storage.log.writer import place, slices
from storage.put.half_ends import HalfPlaces
from storage.tables.sink_notes import load_ledger_notes, unmarked_end_of

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


_INTENT_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+\.json")
_TEMPORARY = ".tmp"
INTENT_DIRECTORIES = "spark_mq", "spark_mq/intents"
"""The directories of intents in ROOT, the outer one first."""
_FIELD_KINDS = {
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
    if not _INTENT_NAME.fullmatch(path.rpartition("/")[2]):
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
    for name, kind in _FIELD_KINDS.items():
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


_COMPARED_BYTES = 4 << 20
_LEDGER_BODY = b'{"sink":'  # the start of every ledger message's body
_LEDGER_BODY_LIMIT = 4_096


class Progress(NamedTuple):
    """How much of a batch the log holds."""

    row_count: int
    """How many of its first rows; also the number of the first missing one."""
    last_place: int
    """Log offset of the last of these rows; −1 if none was seen."""
    lacking: int = 0
    """How many rows the last slice lacks, if nothing follows it in the log."""


NOTHING = Progress(0, -1)


class _Difference(NamedTuple):
    """A row at its right place with other bytes than the staged ones."""

    commitlog_offset: int
    logged: np.ndarray
    staged: np.ndarray
    """With the stamps of the one in the log."""

    @property
    def is_torn(self) -> bool:
        """Whether the difference consists only of zeros after the body."""
        body_end = Records(self.staged, np.zeros(1, np.int64)).body_ends[0]
        differs = self.logged != self.staged
        return not differs[:body_end].any() and not self.logged[differs].any()


def first_missing(
    log: CommitLog, log_end: int, file_size_bytes: int, started: Sequence[LedgerMessage], runs: Sequence[RecordRun]
) -> Progress:
    """The number of a batch's first row that the log lacks. `started` are its SLICEs and BEGINs, in order.

    Rows may have been staged anew since: their born times and born hosts are not compared.
    """
    if not started:
        return NOTHING
    return _compare(log, log_end, file_size_bytes, started[-1], runs, lambda difference: False, restaged=True)


def places_behind(
    log: CommitLog, file_size_bytes: int, started: Sequence[LedgerMessage], halves: Sequence[RecordRun], row_count: int
) -> HalfPlaces:
    """Places of the batch's first rows, halves that the log holds: each after the last SLICE that begins at or before it."""
    commitlog_offsets, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ends = [*(begin.first_row for begin in started[1:]), row_count]
    for begin, end in zip(started, ends, strict=False):
        at, left = begin.end, min(end, begin.end_row, row_count) - begin.first_row
        for run in runs_from(halves, begin.first_row):
            columns = run.columns
            no_offsets = np.zeros(len(columns.queues), np.int64)
            file_end = log.file_end(at, file_size_bytes)
            placed = place(columns.sizes_bytes, columns.queue_codes, no_offsets, at, file_end, file_size_bytes)
            commitlog_offsets.append(placed.commitlog_offsets[: max(left, 0)])
            sizes.append(columns.sizes_bytes[: max(left, 0)].astype(np.int64))
            at, left = placed.end, left - columns.row_count
    places = np.concatenate(commitlog_offsets)
    queue_offsets = np.zeros(len(places), np.int64)
    for rows, records in log.records(places, np.concatenate(sizes)):
        queue_offsets[rows] = records.column("queue_offset")
    return HalfPlaces(places, queue_offsets)


def commit_places(log: CommitLog, start: int, log_end: int, half_offsets: np.ndarray) -> np.ndarray:
    """For each half place the log offset of its commit, by any writer, from `start` on; −1 if there is none."""
    found = np.full(len(half_offsets), -1, np.int64)
    order = np.argsort(half_offsets)
    ascending = half_offsets[order]
    for offsets, records in log.walk(max(start, log.minimum), check_crc=False):
        flags = records.column("sys_flag").astype(np.int64)
        rows = np.flatnonzero((flags & TRANSACTION_MASK == TRANSACTION_COMMIT) & (offsets < log_end))
        named = records.column("prepared_transaction_offset").astype(np.int64)[rows]
        places = np.searchsorted(ascending, named)
        ours = ascending[np.minimum(places, len(ascending) - 1)] == named
        found[order[places[ours]]] = offsets[rows[ours]]
        if offsets[-1] >= log_end:
            break
    return found


def mend_batches(root: str, file_system: LocalFileSystem, log: CommitLog, log_end: int, file_size_bytes: int) -> None:
    """Write rows of all open intents again, in their places, and note those that were torn. Called before recovery, with `abort`.

    Sound rows are written again too: a sync may have failed, after which the system marks pages clean that are not on the
    disk. All of it is synced on return. An intent with changed segments is skipped; the code that needs them reports it.
    """
    intents = load_intents(file_system, root)
    unmarked_end = unmarked_end_of(load_ledger_notes(file_system, root) if intents else None, log_end)
    for intent in intents:
        with ExitStack() as resources:
            try:
                staged = open_runs(file_system, root, intent.segments, resources)
                staged.verify_data()
            except StorageError:
                continue
            looking = _Looking()
            _visit(
                log, log_end, file_size_bytes, _own_records(log, log_end, intent, unmarked_end), staged.runs, looking
            )
            if looking.torn:
                _save_torn_rows(file_system, root, {*load_torn_rows(file_system, root), *looking.torn})
            mending = _Mending(file_system, log)
            _visit(
                log, log_end, file_size_bytes, _own_records(log, log_end, intent, unmarked_end), staged.runs, mending
            )
            mending.sync()


def load_torn_rows(file_system: LocalFileSystem, root: str) -> list[TornRow]:
    """Rows whose entries and keys may be wrong, in log order. Raises StateFileError for a file that is no note of ours."""
    path = _torn_rows_path(root)
    content = file_system.read_file(path)
    try:
        rows = np.array(json.loads(content or b"[]"), np.int64).reshape(-1, 2)
        return [TornRow(*row) for row in sorted(rows.tolist())]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateFileError(path, 1, 1, f"it is no note of torn rows of this version: {error}") from error


def drop_torn_rows(file_system: LocalFileSystem, root: str) -> None:
    """Delete the note: entries and keys are on the disk. Not synced: mending them again changes nothing."""
    file_system.unlink(_torn_rows_path(root))


def _save_torn_rows(file_system: LocalFileSystem, root: str, rows: set[TornRow]) -> None:
    file_system.replace(_torn_rows_path(root), json.dumps(sorted(rows)).encode())


def _torn_rows_path(root: str) -> str:
    return f"{root}/spark_mq/torn_rows.json"


class _Looking:
    """Finds torn rows without a change."""

    def __init__(self) -> None:
        self.torn: list[TornRow] = []

    def mend(self, difference: _Difference) -> bool:
        """Returns whether the row could be mended."""
        if is_torn := difference.is_torn:
            self.torn.append(TornRow(difference.commitlog_offset, len(difference.staged)))
        return is_torn

    def write(self, commitlog_offset: int, data: np.ndarray) -> None:
        """Ignore correct bytes."""


class _Mending:
    """Writes rows again, including torn ones, which are noted before."""

    def __init__(self, file_system: LocalFileSystem, log: CommitLog) -> None:
        self._file_system = file_system
        self._log = log
        self._paths: set[str] = set()

    def sync(self) -> None:
        self._file_system.sync_all(self._paths)

    def mend(self, difference: _Difference) -> bool:
        """Write the row again if it is torn; returns whether it was."""
        if is_torn := difference.is_torn:
            self.write(difference.commitlog_offset, difference.staged)
        return is_torn

    def write(self, commitlog_offset: int, data: np.ndarray) -> None:
        """Write also correct bytes, to make their pages dirty again."""
        file = self._log.files[self._log.file_index(commitlog_offset)]
        self._paths.add(file.path)
        self._file_system.write(file.path, commitlog_offset - file.start, data.copy())


def _visit(
    log: CommitLog,
    log_end: int,
    file_size_bytes: int,
    own: Iterable[OwnRecord],
    runs: Sequence[RecordRun],
    visitor: _Looking | _Mending,
) -> None:
    """Pass to the visitor what the log holds of a batch: its ledger messages and the rows after each SLICE."""
    for record in own:
        place_of_record = record.message.commitlog_offset
        if (record.logged != record.whole).any():
            visitor.mend(_Difference(place_of_record, record.logged, record.whole))
        else:
            visitor.write(place_of_record, record.logged)
        if record.message.kind in (SLICE, BEGIN):
            # A slice that was completed in its place begins with rows of an earlier staging.
            _compare(log, log_end, file_size_bytes, record.message, runs, visitor.mend, visitor.write, restaged=True)


def _own_records(log: CommitLog, log_end: int, intent: Intent, unmarked_end: int) -> Iterator[OwnRecord]:
    """Our ledger messages of an intent's batch after its bound, found by their bodies, as topic and properties may be torn."""
    batch = intent.batch
    start = max(intent.lower_bound, log.minimum)
    for offsets, records in log.walk(start, check_crc=False) if start < log_end else ():
        sizes = records.column("body_size_bytes")
        rows = np.flatnonzero((sizes > len(_LEDGER_BODY)) & (sizes < _LEDGER_BODY_LIMIT))
        at, word = words_of(_LEDGER_BODY)[0]
        rows = rows[view_at(records.buffer, records.body_starts[rows] + at, word.dtype) == word]
        for row in rows.tolist():
            place_of_row = int(offsets[row])
            if place_of_row >= log_end:
                return
            is_before = place_of_row < unmarked_end
            own = own_record(records.buffer, int(records.positions[row]), place_of_row, unmarked=is_before)
            if own is not None and own.message.batch == batch:
                yield own


def _compare(
    log: CommitLog,
    log_end: int,
    file_size_bytes: int,
    begin: LedgerMessage,
    runs: Sequence[RecordRun],
    mend: Callable[[_Difference], bool],
    equal: Callable[[int, np.ndarray], None] = lambda place, data: None,
    *,
    restaged: bool = False,
) -> Progress:
    """Walk the rows after a SLICE while they equal the staged ones, or `mend` makes them equal."""
    there, at = Progress(begin.first_row, -1), begin.end
    for run in runs_between(runs, begin.first_row, begin.end_row):
        columns = run.columns
        no_offsets = np.zeros(len(columns.queues), np.int64)
        file_end = log.file_end(at, file_size_bytes)
        placed = place(columns.sizes_bytes, columns.queue_codes, no_offsets, at, file_end, file_size_bytes)
        count = _equal_rows(log, log_end, run, placed.commitlog_offsets, mend, equal, restaged)
        if count:
            there = Progress(there.row_count + count, int(placed.commitlog_offsets[count - 1]))
            at = there.last_place + int(columns.sizes_bytes[count - 1])
        if count < columns.row_count:
            if begin.kind == SLICE and log_end in (at, placed.commitlog_offsets[count]):
                there = there._replace(lacking=begin.end_row - there.row_count)
            break
        at = placed.end
    return there


def _equal_rows(
    log: CommitLog,
    log_end: int,
    run: RecordRun,
    commitlog_offsets: np.ndarray,
    mend: Callable[[_Difference], bool],
    equal: Callable[[int, np.ndarray], None],
    restaged: bool,
) -> int:
    """How many rows of a run, from its first, are at these places."""
    sizes, host_size = run.columns.sizes_bytes, run.columns.host_size
    sources = np.cumsum(sizes, dtype=np.int64) - sizes
    inside = int(np.searchsorted(commitlog_offsets + sizes, log_end, side="right"))
    for first, last in slices(commitlog_offsets[:inside], sizes[:inside], _COMPARED_BYTES):
        start, end = int(commitlog_offsets[first]), int(commitlog_offsets[last - 1] + sizes[last - 1])
        if not log.has_file_of(start, end):  # a power loss removed this file, and left a later one
            return first
        logged = np.frombuffer(log.bytes_at(start, end - start), np.uint8)
        staged = np.empty(end - start, np.uint8)
        run.read(int(sources[first]), int(sources[first]) + len(staged), staged)
        positions = commitlog_offsets[first:last] - start
        queue_offsets, store_times = read_stamps(logged, positions, host_size)
        stamp(staged, positions, queue_offsets, commitlog_offsets[first:last], store_times, host_size)
        copy_halves(logged, staged, positions)
        if restaged:
            copy_origins(logged, staged, positions)
        if run.columns.has_crc:
            stamp_crcs(staged, positions, sizes[first:last])
        differing = np.flatnonzero(logged != staged)
        for row in np.unique(np.searchsorted(positions, differing, side="right") - 1).tolist():
            place_of_row, begin = start + int(positions[row]), int(positions[row])
            record = slice(begin, begin + int(sizes[first + row]))
            if not mend(_Difference(place_of_row, logged[record], staged[record])):
                return first + row
        equal(start, staged)
    return inside
