"""Exactly once: a batch of staged segments is appended to the log completely, and never twice.

    the lock is held, the store is open (open intents are finished then)
    1. has the ledger an END of this batch, or of a later one (`sink_progress.py`)? then nothing is left to do
    2. segments are compared with their checksums, queues checked, missing topics made, room in the log reserved: up to here nothing of
       the batch is written
    3. INTENT, durably: the commit point
    4. SLICE · some rows · SLICE · more rows · … · dispatch · dead letters · END · dispatch (`slices.py`)
       for transactions: halves in slices · their commits in slices · dead letters · op messages · END
    5. the sink's last batch: noted beside the log, and mirrored as a consumer offset (`sink_progress.py`)
    6. intent dropped, segments given back: under SYNC_FLUSH now, else by the next commit or close, after it has synced the log

A crash before 3 leaves segments that no intent names; Spark stages and commits the batch again. A crash after 3 leaves the intent, and
the next process that opens the store for writing finishes the batch: it finds the first missing row (`intent.py`), and appends from
that one. So a half is there once and committed once; op messages are written again, as ending a half twice has no further effect.
Writes in between do not matter, nor how often this is interrupted. After a power loss the same, from what is left of the log.

A store that has the log and no intent (a promoted replica, a copy without spark_mq/) may hold slices of a batch without END. When Spark
repeats the batch, its newly staged rows are compared with the slices' checksums, and the first missing row is found in the same way.

The put lock of the open store (`turn`) is held for 1, for the checks in 2 that follow the segments, for 3, for each slice, and for the
steps after the last slice. Others may put in between. Only this commit uses the segments, so the lock protects them from no change: a
change is found by the second check, while they are appended.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from storage.batch.intent import (
    INTENT_DIRECTORIES,
    DeadLetterFile,
    Intent,
    Progress,
    commit_places,
    drop_intent,
    drop_torn_rows,
    first_missing,
    intent_directory,
    intent_path,
    load_intents,
    places_behind,
    remove_undecided,
    save_intent,
)
from storage.batch.ledger import (
    END,
    GROUP_PREFIX,
    OPENING,
    SLICE,
    UNNAMED_PREFIX,
    Batch,
    LedgerMessage,
    LedgerStatement,
    outgoing_ledger_message,
)
from storage.batch.ledger import TOPIC as LEDGER
from storage.batch.sink_progress import (
    claim_ledger,
    is_done,
    keep_progress,
    messages_of,
    notes_of,
    place_of_end,
    slices_left,
)
from storage.batch.slices import (
    SLICE_BYTES,
    SharedLog,
    Tail,
    Turn,
    append_slices,
    content_of,
    runs_between,
    runs_from,
    stretches_of,
)
from storage.batch.staged_segment import (
    SegmentPool,
    StagedBatch,
    StagedRuns,
    StagedSegment,
    check_staged,
    delete_orphans,
    open_runs,
    remove_directory,
    sink_digest,
)
from storage.errors import (
    CorruptRecordError,
    HalvesGoneError,
    SliceMismatchError,
    StorageError,
    StoreNotWritableError,
    TopicChangedError,
)
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.format.record_block import RecordRun
from storage.log.damage import TornRow
from storage.names import validate_group
from storage.put.half_ends import HalfPlaces, commit_runs, op_runs, states_of
from storage.put.settings import refuse_before_start
from storage.put.store_writer import StoreWriter
from storage.rules.delays import TIMER_TOPIC
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC
from storage.rules.topics import RowWish

_NO_WISH = RowWish()
_LOG = logging.getLogger(__name__)
_LEDGER_ROOM_BYTES = 64 << 10
_SLICE_ROOM_BYTES = 4 << 10  # for each 4 MiB; they may be two slices
_OP_ROOM_BYTES = 24  # a half's queue offset in an op message, and its part of that record
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class CommitOutcome(NamedTuple):
    """The result of a commit."""

    already_done: bool
    """The log held the batch before; nothing was written."""
    row_count: int


def commit_batch(
    writer: StoreWriter,
    staged: StagedBatch,
    *,
    wish: RowWish | None = _NO_WISH,
    takeover: bool = False,
    mirrored: bool = True,
    turn: Turn = nullcontext,
) -> CommitOutcome:
    """Append the rows of the segments, in order, as one batch; for transactions all halves, then their commits, in the same order.

    `wish` are the user's options for topics that are made or get more queues (None: rows are sent back, which no start gate delays).
    `mirrored`: the sink's last batch is kept as a consumer offset too. `turn` takes the put lock if others put into the open
    store meanwhile (`PutService.exclusive`).

    Raises, with nothing written: NameIllegalError for an id that cannot be a group's; SinkTakenError if another query owns the sink's
    id; SinkAheadError if another run of the query has written the batch with other rows, or later ones (both unless `takeover`);
    SinkProgressError if the sink's consumer offset is ahead of its ledger; StagedRowsGoneError if a staged file is missing;
    TopicChangedError if rows were staged for missing queues; SliceMismatchError if the log holds slices of the batch with other rows;
    HalvesGoneError if its first halves have expired; StoreNotWritableError if the disk is full, staged rows have changed or lack a
    checksum that the store's records now must have, or another commit of this batch is running.
    Any other error after the commit point leaves the batch to the next opening.
    """
    batch, segments, dead_letters = staged.batch, staged.segments, staged.dead_letters
    for name in (batch.sink_id, batch.query_id):
        validate_group(GROUP_PREFIX + name)
    with ExitStack() as resources:
        with turn():
            if is_done(writer, staged, takeover):
                _drop_staged(writer, batch, segments)
                return CommitOutcome(True, 0)
            not_published = (path for path, final in dead_letters if not writer.file_system.exists(final))
            check_staged(writer.file_system, not_published)
            if not staged.has_rows:
                _publish(writer, dead_letters)
                return CommitOutcome(False, 0)
        opened = open_segments(writer, segments, resources)
        check_segments(writer, opened)
        runs = opened.runs
        with turn():
            if turn is not nullcontext and is_done(writer, staged, takeover):  # another commit was faster
                _drop_staged(writer, batch, segments)
                return CommitOutcome(True, 0)
            if wish is not None:
                refuse_before_start(writer.root, writer.settings, writer.clock())
            queues = {*staged.destinations, *(name for run in runs for name in run.columns.queues)}
            check_queues(writer, queues, staged.topics, staged.grown, wish or _NO_WISH)
            started = slices_left(writer, batch)
            check_started(writer, started, runs)
            writer.topic_entries.ensure(staged.topics, staged.grown)
            room = room_for(runs)
            writer.reserve(*room)
            settle(writer)
            intent = Intent(
                *batch,
                started[0].commitlog_offset if started else writer.log_end,
                tuple(segments),
                tuple(DeadLetterFile(*names) for names in dead_letters),
                mirrored,
                writer.clock(),
                staged.refused,
            )
            _decide(writer, intent)
            shared = SharedLog(writer, turn, room, started[0].commitlog_offset if started else None)
        try:
            end_place = _append(writer, intent, runs, started, shared)
            with turn():
                _finish(writer, intent, end_place)
        except BaseException as error:
            writer.fail(error)  # the intent must not be settled before an opening has finished it
            raise
    return CommitOutcome(False, intent.row_count)


def _decide(writer: StoreWriter, intent: Intent) -> None:
    """Save the intent: the commit point. It is marked as running, as the put lock is released between slices."""
    path = intent_path(writer.root, intent)
    if path in writer.ends.open_commits:
        reason = f"batch {intent.batch_id} of sink {intent.sink_id} is being committed"
        raise StoreNotWritableError(writer.root, reason, "wait until that commit has ended, and ask again")
    claim_ledger(writer)
    reach("before-intent")
    writer.ends.open_commits.add(path)
    try:
        save_intent(writer.file_system, writer.root, intent, writer.ends.synced_entries)
        writer.ends.synced_entries.update(INTENT_DIRECTORIES)
        reach("after-intent")
    except BaseException as error:
        writer.fail(error)  # the batch may be decided
        raise


def finish_open_intents(writer: StoreWriter, torn: Sequence[TornRow]) -> int:
    """When a store is opened, append decided but unfinished batches of earlier commits; returns how many there were.

    `torn` are rows that this opening or one before has written again: their entries in queues and index are corrected, and synced,
    before an intent is dropped.
    """
    remove_undecided(writer.file_system, writer.root)
    if torn:
        writer.mend(torn)
        writer.checkpoint()
        drop_torn_rows(writer.file_system, writer.root)
    notes_of(writer)
    count = 0
    for intent in load_intents(writer.file_system, writer.root):
        if intent_path(writer.root, intent) in writer.ends.finished_intents:
            continue
        end_place = place_of_end(writer, intent)
        if end_place is None:
            _redo(writer, intent)
            count += 1
        elif intent.mirrored:  # a crash may have come between the END and this
            keep_progress(writer, intent.sink_id, intent.query_id, intent.batch_id, end_place)
        writer.ends.finished_intents.add(intent_path(writer.root, intent))
    return count


def forget_open_intents(writer: StoreWriter, torn: Sequence[TornRow]) -> None:
    """Drop intents of a former master that follows another one now: the sink's query repeats the batch there, if it is not done."""
    remove_undecided(writer.file_system, writer.root)
    for intent in load_intents(writer.file_system, writer.root):
        _LOG.warning(
            "%s follows a master: batch %d of sink %s, which was decided here, is its master's to finish",
            writer.root,
            intent.batch_id,
            intent.sink_id,
        )
        _drop(writer, intent)
    if torn:
        drop_torn_rows(writer.file_system, writer.root)


def leave_open_intents(writer: StoreWriter) -> None:
    """This opening neither finishes nor forgets them."""
    writer.ends.open_commits.update(
        intent_path(writer.root, intent) for intent in load_intents(writer.file_system, writer.root)
    )


def settle(writer: StoreWriter) -> None:
    """Sync the log and drop the intents whose batches are in it: all of an open store except those of running commits."""
    left = load_intents(writer.file_system, writer.root)
    done = [intent for intent in left if intent_path(writer.root, intent) not in writer.ends.open_commits]
    if not done:
        return
    writer.sync_log()
    for intent in done:
        left.remove(intent)
        _drop(writer, intent, left)


def abort_batch(file_system: LocalFileSystem, root: str, segments: Sequence[StagedSegment]) -> None:
    """Give back segments of a failed commit, except those that an intent names. The caller holds the lock."""
    named = {segment.path for intent in load_intents(file_system, root) for segment in intent.segments}
    pool = SegmentPool(file_system, root)
    for segment in segments:
        if segment.path not in named:
            pool.give_back(segment.path)


def _redo(writer: StoreWriter, intent: Intent) -> None:
    # A killed process may have decided it without a sync; a power loss could then leave rows in the log and no intent.
    writer.file_system.sync(intent_directory(writer.root))
    # A power loss removed the log's end; the batch starts anew before its bound.
    if writer.log_end < intent.lower_bound:
        intent = intent._replace(lower_bound=writer.log_end)
        save_intent(writer.file_system, writer.root, intent)
    with ExitStack() as resources:
        try:
            staged = open_runs(writer.file_system, writer.root, intent.segments, resources)
            staged.verify_data()
        except StorageError as error:
            path = intent_path(writer.root, intent)
            hint = f"bring the file back; or delete {path}, and what stands of the batch in the log is all there will be of it"
            reason = (
                f"batch {intent.batch_id} of sink {intent.sink_id} is decided, and its rows are not to be had: {error}"
            )
            raise StoreNotWritableError(writer.root, reason, hint) from error
        runs = staged.runs
        if writer.log.force_property_crc and not all(run.columns.has_crc for run in runs):
            reason = f"batch {intent.batch_id} of sink {intent.sink_id} is decided, and has no records with the property __CRC32#"
            hint = "open the store once with forceVerifyPropCRC=false, as it was when the batch was decided"
            raise StoreNotWritableError(writer.root, reason, hint)
        started = messages_of(writer, intent.batch, intent.lower_bound, OPENING)
        try:
            check_halves(writer.root, started, runs)
        except HalvesGoneError as error:
            hint = f"delete {intent_path(writer.root, intent)}; what stands of the batch in the log is all there will be of it"
            raise StoreNotWritableError(writer.root, error.describe(), hint) from error
        room = room_for(runs)
        writer.reserve(*room)
        shared = SharedLog(writer, nullcontext, room, started[0].commitlog_offset if started else None)
        end_place = _append(writer, intent, runs, started, shared)
    _finish(writer, intent, end_place)


def _append(
    writer: StoreWriter,
    intent: Intent,
    runs: Sequence[RecordRun],
    started: Sequence[LedgerMessage],
    shared: SharedLog,
) -> int:
    """Append the missing rows in slices, dead letters, op messages and END. `started` are slices of earlier attempts.

    Returns the log offset of the END.
    """
    now_ms = writer.clock()
    with shared.turn():
        log_end = writer.log_end
        there = first_missing(writer.log, log_end, writer.settings.log_file_size_bytes, started, runs)
    tail = Tail(there.lacking, log_end)  # used only if nothing was put after it since
    halves, commits = halves_and_rest(runs)
    if halves:
        last_place, places = append_transactions(writer, intent.batch, halves, commits, there, started, tail, shared)
    else:
        last_place = there.last_place
        if rest := runs_from(runs, there.row_count):
            placements = append_slices(writer, intent.batch, rest, there.row_count, shared, tail)
            last_place = int(placements[-1].commitlog_offsets[-1])
    with shared.turn():
        _publish(writer, intent.dead_letters)
        if halves:
            reach("before-ops")
            writer.append(op_runs(halves, places, writer.settings, now_ms))
        reach("before-end")
        last = last_place, intent.segments[-1].last_unique_key
        said = LedgerStatement(END, intent.batch, intent.row_count, last=last, refused=intent.refused)
        end = outgoing_ledger_message(said, now_ms=now_ms)
        (placement,) = writer.append([writer.settings.encode(end)])
        reach("after-end")
    return int(placement.commitlog_offsets[0])


def _publish(writer: StoreWriter, dead_letters: Sequence[tuple[str, str]]) -> None:
    """Give staged dead letters their names, durably. A repetition gives the same names, so none is there twice."""
    for staged, final in dead_letters:
        with suppress(FileNotFoundError):  # done before a crash
            writer.file_system.rename(staged, final)
        writer.file_system.sync(posixpath.dirname(final))


def _finish(writer: StoreWriter, intent: Intent, end_place: int) -> None:
    writer.ends.open_commits.discard(intent_path(writer.root, intent))
    if writer.ends.open_batches is not None:
        writer.ends.open_batches.get(intent.sink_id, {}).pop(intent.query_id, None)
    if writer.ends.ledger is not None and not intent.sink_id.startswith(UNNAMED_PREFIX):
        others = writer.ends.ledger.pop(intent.sink_id, {})
        writer.ends.ledger[intent.sink_id] = {intent.query_id: 0, **others, intent.query_id: intent.batch_id}
    if intent.mirrored:
        keep_progress(writer, intent.sink_id, intent.query_id, intent.batch_id, end_place)
    writer.ends.finished_intents.add(intent_path(writer.root, intent))
    reach("after-mirror")
    if writer.settings.sync_flush or not intent.mirrored:  # without a mirror an END that expires is forgotten
        writer.sync_log()
        reach("before-drop")
        _drop(writer, intent)
        reach("after-drop")
    reach("after-commit")


def _drop(writer: StoreWriter, intent: Intent, left: Sequence[Intent] | None = None) -> None:
    """The batch is on the disk: delete its intent, and what other attempts at it have staged.

    `left` are the other intents; None = look them up.
    """
    drop_intent(writer.file_system, writer.root, intent)
    writer.ends.finished_intents.discard(intent_path(writer.root, intent))
    _drop_staged(writer, intent.batch, intent.segments, left)


def _drop_staged(
    writer: StoreWriter, batch: Batch, segments: Sequence[StagedSegment], left: Sequence[Intent] | None = None
) -> None:
    """Give back the segments, and delete what other attempts at this batch, or at earlier ones of the query, have left beside them.

    Only the segments of a commit are known to be finished and can be reused: a forgotten attempt may still be writing.
    """
    intents = load_intents(writer.file_system, writer.root) if left is None else left
    named = {segment.path for intent in intents for segment in intent.segments}
    pool = SegmentPool(writer.file_system, writer.root)
    for segment in segments:
        if segment.path not in named:
            pool.give_back(segment.path)
    directory = sink_digest(batch.sink_id, batch.query_id).hex()
    delete_orphans(writer.file_system, writer.root, directory, batch.batch_id, keep=named)
    if batch.sink_id.startswith(UNNAMED_PREFIX):
        remove_directory(writer.file_system, writer.root, directory)


def halves_and_rest(runs: Sequence[RecordRun]) -> tuple[list[RecordRun], list[RecordRun]]:
    """The runs of half messages, which come first, and the others."""
    halves = [run for run in runs if run.columns.transaction_states is not None]
    return halves, list(runs[len(halves) :])


def check_started(writer: StoreWriter, started: Sequence[LedgerMessage], runs: Sequence[RecordRun]) -> None:
    """Check that the rows of the runs can continue after `started`, the batch's SLICEs and BEGINs, oldest first.

    For a batch that the log holds in part, without an intent.

        SLICE   its rows' checksum shows whether they are the same
        BEGIN   from a version before slices, without a checksum: the rows after it are compared with the staged ones

    A difference is refused before the commit point: continuing would mix two batches, starting anew would write rows twice.
    Raises SliceMismatchError if the rows are not those of the log, HalvesGoneError as `check_halves` does.
    """
    row_count = sum(run.columns.row_count for run in runs)
    for message, end_row in _with_ends(started):
        is_same = _holds_slice if message.kind == SLICE else _holds_begin
        if not is_same(writer, message, end_row, runs, row_count):
            raise SliceMismatchError(
                writer.root, *message.batch, message.first_row, end_row, message.commitlog_offset, row_count
            )
    check_halves(writer.root, started, runs)


def check_halves(root: str, started: Sequence[LedgerMessage], runs: Sequence[RecordRun]) -> None:
    """Check that the log shows the places of all halves that it has held, as their commits name them; else HalvesGoneError."""
    halves, _ = halves_and_rest(runs)
    if halves and started and started[0].first_row:
        raise HalvesGoneError(root, *started[0].batch, started[0].first_row, started[0].commitlog_offset)


def _with_ends(started: Sequence[LedgerMessage]) -> Iterator[tuple[LedgerMessage, int]]:
    """Each with the end of its rows that must be compared: a BEGIN has as many as the next message says."""
    for message, following in pairwise(started):
        yield message, message.end_row if message.kind == SLICE else min(message.end_row, following.first_row)
    if started:
        yield started[-1], started[-1].end_row


def _holds_slice(
    writer: StoreWriter, message: LedgerMessage, end_row: int, runs: Sequence[RecordRun], row_count: int
) -> bool:
    if not 0 <= message.first_row <= end_row <= row_count:
        return False
    return content_of(runs, message.first_row, end_row) == (message.size_bytes, message.checksum)


def _holds_begin(
    writer: StoreWriter, message: LedgerMessage, end_row: int, runs: Sequence[RecordRun], row_count: int
) -> bool:
    if message.row_count != row_count:
        return False
    file_size = writer.settings.log_file_size_bytes
    there = first_missing(writer.log, writer.log_end, file_size, [message], runs)
    if there.row_count >= end_row:
        return True
    half_count = sum(run.columns.row_count for run in halves_and_rest(runs)[0])
    if end_row < row_count:  # a SLICE says that they are there
        return False
    if half_count and there.row_count >= half_count:  # commits are recognised by the halves that they name
        return True
    return not _is_followed_by_ours(writer, message.commitlog_offset if there.last_place < 0 else there.last_place)


def _is_followed_by_ours(writer: StoreWriter, place: int) -> bool:
    """Whether the record after the one at `place` may be a row of the batch: its born host is the store host, as no client's is."""
    for offsets, _ in writer.log.walk(place, check_crc=False):
        for following in offsets[(offsets > place) & (offsets < writer.log_end)][:1].tolist():
            found = writer.log.message_at(following, writer.log_end)
            is_commit = found.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            return found.born_host == found.store_host and found.topic not in (LEDGER, OP_TOPIC) and not is_commit
    return False


def open_segments(writer: StoreWriter, segments: Sequence[StagedSegment], resources: ExitStack) -> StagedRuns:
    """Open the segments, until `resources` end, and compare their columns with their checksums."""
    try:
        staged = open_runs(writer.file_system, writer.root, segments, resources)
    except CorruptRecordError as error:
        raise _changed(writer, error) from error
    if writer.settings.appends_crc and not all(run.columns.has_crc for run in staged.runs):
        reason = "rows were staged without the property __CRC32# that the store's records must have by now"
        hint = "enabledAppendPropCRC was set meanwhile: start the query again, so that it stages them anew"
        raise StoreNotWritableError(writer.root, reason, hint)
    return staged


def check_segments(writer: StoreWriter, staged: StagedRuns) -> None:
    """Check that the segments hold what the tasks have staged, before anything is decided. The append checks once more."""
    try:
        staged.verify_data()
    except CorruptRecordError as error:
        raise _changed(writer, error) from error


def _changed(writer: StoreWriter, error: CorruptRecordError) -> StoreNotWritableError:
    reason = f"rows that a task has staged have changed since: {error}"
    hint = "nothing was written; start the query again, so that it stages them anew, and see who writes below spark_mq/staged"
    return StoreNotWritableError(writer.root, reason, hint)


def check_queues(
    writer: StoreWriter,
    queues: Collection[tuple[str, int]],
    topics: Mapping[str, int],
    grown: Mapping[str, int],
    wish: RowWish,
) -> None:
    """Check that every queue that rows were staged for can be written; no other thread changes the topics now."""
    rules = writer.settings.topic_rules
    for topic, named in groupby(sorted(queues), itemgetter(0)):
        if topic in _WAITING_TOPICS:
            continue
        queue_ids = [queue_id for _, queue_id in named]
        refused = rules.refusal_of_staged(topic, queue_ids, wish, topics.get(topic), grown.get(topic, 0))
        if refused is not None:
            raise TopicChangedError(topic, *refused)


def room_for(runs: Sequence[RecordRun]) -> tuple[int, int]:
    """The bytes of log that a batch may need, and those of its largest record."""
    halves, _ = halves_and_rest(runs)
    ops = sum(run.columns.row_count for run in halves) * _OP_ROOM_BYTES
    rows = sum(int(run.columns.sizes_bytes.sum(dtype=np.int64)) for run in runs)
    largest = max((int(run.columns.sizes_bytes.max(initial=0)) for run in runs), default=0)
    ledger = _LEDGER_ROOM_BYTES + rows // SLICE_BYTES * _SLICE_ROOM_BYTES
    return rows + ops + ledger, max(largest, _OP_ROOM_BYTES, _LEDGER_ROOM_BYTES)


def append_transactions(
    writer: StoreWriter,
    batch: Batch,
    halves: Sequence[RecordRun],
    commits: Sequence[RecordRun],
    there: Progress,
    started: Sequence[LedgerMessage],
    tail: Tail,
    shared: SharedLog,
) -> tuple[int, HalfPlaces]:
    """Append the missing halves and then the missing commits; returns the last row's place, and the places of all halves.

    A half that is committed already stays so: a broker that was started in between may have checked its producer, and other threads
    with the put lock may have committed it between two slices.

    Rows of an earlier attempt are not written again: halves are recognised by comparison with the staged ones, commits by the halves
    that they name.
    """
    half_count = sum(run.columns.row_count for run in halves)
    file_size = writer.settings.log_file_size_bytes
    with shared.turn():
        places = places_behind(writer.log, file_size, started, halves, min(there.row_count, half_count))
    if rest := runs_from(halves, there.row_count):
        tail = tail._replace(row_count=min(tail.row_count, half_count - there.row_count))
        appended = append_slices(writer, batch, rest, there.row_count, shared, tail)
        places = places.followed_by(HalfPlaces.of(appended))
        reach("after-halves")
    runs = commit_runs(halves, commits, places)
    half_offsets = places.commitlog_offsets[states_of(halves) == TRANSACTION_COMMIT]
    committed = np.full(len(half_offsets), -1, np.int64)

    def no_commit_by_others() -> bool:
        """Under the put lock: whether no half was committed by others since the last call."""
        stretches = shared.take_stretches() if len(half_offsets) else []
        if not stretches:
            return True
        open_before = np.count_nonzero(committed < 0)
        for start, end in stretches:
            theirs = commit_places(writer.log, start, end, half_offsets)
            committed[:] = np.where(committed < 0, theirs, committed)
        return int(np.count_nonzero(committed < 0)) == open_before

    with shared.turn():
        no_commit_by_others()
    while open_stretches := stretches_of(committed < 0):
        first, end = open_stretches[0]
        rest = runs_between(runs, first, end)
        appended = append_slices(writer, batch, rest, half_count + first, shared, goes_on=no_commit_by_others)
        offsets = [placement.commitlog_offsets for placement in appended]
        count = sum(map(len, offsets))
        committed[first : first + count] = np.concatenate([committed[:0], *offsets])
    last = committed if len(committed) else places.commitlog_offsets
    return int(last[-1]), places
