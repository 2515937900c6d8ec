"""Exactly once: a batch of staged segments goes into the log whole, and never twice (DESIGN 6).

    the lock is held, the store is open (open intents are finished then)
    1. has the ledger an END of this batch, or of a later one (`sink_progress.py`)? then all is done
    2. queues and segments are checked, missing topics made, room in the log reserved: up to here nothing of the batch is written
    3. INTENT, durably: the commit point
    4. BEGIN · the segments · dispatch · dead letters · END · dispatch
       of transactions: BEGIN · halves · their commits · dead letters · op messages · END
    5. the sink's last batch: noted beside the log, and mirrored as a consumer offset (`sink_progress.py`)
    6. intent dropped, segments given back: under SYNC_FLUSH now, else by the next commit or close, when it has synced the log

A crash before 3 leaves segments that nobody names; Spark stages and commits the batch again. A crash after 3 leaves the intent,
and whoever opens the store for writing next finishes the batch: the rows that follow its last BEGIN are compared with the segments,
byte by byte but for what places make known, and appended from the first that is missing. So a half is there once and committed once;
op messages are written again, for to end a half twice is as good as once. Who wrote in between does not matter, nor
how often this is interrupted. After a power loss the same, from what is left of the log.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from storage.batch.dead_letter_file import DeadLetterFile
from storage.batch.intent import (
    Intent,
    drop_intent,
    intent_directory,
    intent_path,
    load_intents,
    remove_undecided,
    save_intent,
)
from storage.batch.ledger import (
    BEGIN,
    END,
    GROUP_PREFIX,
    UNNAMED_PREFIX,
    Batch,
    LedgerMessage,
    outgoing_ledger_message,
)
from storage.batch.redo import NOTHING, drop_torn_rows, progress_behind, runs_from
from storage.batch.sink_progress import claim_ledger, is_done, keep_progress, messages_of, notes_of, place_of_end
from storage.batch.staged_segment import (
    SegmentPool,
    SegmentReader,
    StagedSegment,
    check_staged,
    delete_orphans,
    remove_directory,
    sink_digest,
)
from storage.batch.transactions import append_transactions
from storage.errors import CorruptRecordError, NameIllegalError, StorageError, StoreNotWritableError, TopicChangedError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.record_block import RecordRun
from storage.log.torn_row import TornRow
from storage.messages.delays import TIMER_TOPIC
from storage.messages.half_messages import HALF_TOPIC
from storage.names import validate_group
from storage.put.half_ends import halves_and_rest, op_runs
from storage.put.settings import refuse_before_start
from storage.put.store_writer import StoreWriter
from storage.rules.row_topics import RowWish

_LEDGER_ROOM_BYTES = 64 << 10
_NO_WISH = RowWish()
_OP_ROOM_BYTES = 24  # a half's queue offset in an op message, and its part of that record
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class CommitOutcome(NamedTuple):
    """How a commit ended."""

    already_done: bool
    """The log held the batch before; nothing was written."""
    row_count: int


def commit_batch(
    writer: StoreWriter,
    batch: Batch,
    segments: Sequence[StagedSegment],
    *,
    topics: Mapping[str, int],
    grown: Mapping[str, int] = MappingProxyType({}),
    wish: RowWish | None = _NO_WISH,
    takeover: bool = False,
    mirrored: bool = True,
    dead_letters: Sequence[tuple[str, str]] = (),
    destinations: Collection[tuple[str, int]] = (),
) -> CommitOutcome:
    """Append the rows of the segments, in their order, as one batch; of transactions all halves, then their commits, in the same order.

    `topics` names the topics that may be made if they are missing, with their numbers of queues; `grown` those that are
    there and get more, with how many; `wish` what the user says of both (None: rows are sent back, which no start gate holds up).
    `mirrored`: the sink's last
    batch is kept as a consumer offset too. `destinations` are the queues of rows that wait elsewhere first.
    Raises NameIllegalError for an id that can be no group's, SinkTakenError where another query owns the sink's id (unless
    `takeover`), SinkProgressError where the sink's consumer offset says more than its ledger, StagedRowsGoneError where a staged
    file is not there, TopicChangedError where rows were staged for queues that are not there, StoreNotWritableError where the disk is
    full, where staged rows have changed, or where they were staged without a sum that the store's records must end in by now: nothing
    is written then. Any other error after the commit point leaves the batch to the next opening.
    """
    for name in (batch.sink_id, batch.query_id):
        validate_group(GROUP_PREFIX + name)
    if is_done(writer, batch, takeover):
        _drop_staged(writer, batch, segments)
        return CommitOutcome(True, 0)
    check_staged(writer.file_system, (path for path, final in dead_letters if not writer.file_system.exists(final)))
    if not any(segment.rows for segment in segments):
        _publish(writer, dead_letters)
        return CommitOutcome(False, 0)
    with ExitStack() as resources:
        readers = [
            resources.enter_context(SegmentReader(writer.file_system, writer.root, segment)) for segment in segments
        ]
        if writer.settings.appends_crc and not all(run.columns.has_crc for run in readers):
            reason = "rows were staged without the property __CRC32# that the store's records must have by now"
            raise StoreNotWritableError(
                writer.root,
                reason,
                "enabledAppendPropCRC was set meanwhile: start the query again, so that it stages them anew",
            )
        if wish is not None:
            refuse_before_start(writer.root, writer.settings, writer.clock())
        queues = {*destinations, *(name for run in readers for name in run.columns.queues)}
        _check_queues(writer, queues, topics, grown, wish or _NO_WISH)
        _check_segments(writer, readers)
        writer.ensure_topics(topics, grown)
        writer.reserve(*_room(readers))
        settle(writer)
        intent = Intent(
            *batch,
            writer.log_end,
            tuple(segments),
            tuple(DeadLetterFile(*names) for names in dead_letters),
            mirrored,
            writer.clock(),
        )
        claim_ledger(writer)
        reach("before-intent")
        try:
            save_intent(writer.file_system, writer.root, intent)
            reach("after-intent")
            _finish(writer, intent, _append(writer, intent, readers))
        except BaseException as error:
            writer.fail(error)  # it may be decided: nobody must settle its intent before an opening has finished it
            raise
    return CommitOutcome(False, intent.row_count)


def finish_open_intents(writer: StoreWriter, torn: Sequence[TornRow]) -> int:
    """Append what earlier commits had decided and not finished, when a store is opened; returns how many batches that were.

    `torn` are rows that this opening or one before has written again: what queues and index say of them is put right, and on the
    disk, before an intent goes.
    """
    remove_undecided(writer.file_system, writer.root)
    if torn:
        writer.mend(torn)
        writer.checkpoint()
        drop_torn_rows(writer.file_system, writer.root)
    notes_of(writer)
    count = 0
    for intent in load_intents(writer.file_system, writer.root):
        end_place = place_of_end(writer, intent)
        if end_place is None:
            _redo(writer, intent)
            count += 1
        elif intent.mirrored:  # a crash may have come between the END and this
            keep_progress(writer, intent.sink_id, intent.query_id, intent.batch_id, end_place)
    return count


def settle(writer: StoreWriter) -> None:
    """Sync the log and forget the intents whose batches are in it. All intents are finished when a store is open."""
    intents = load_intents(writer.file_system, writer.root)
    if not intents:
        return
    writer.sync_log()
    for intent in intents:
        _drop(writer, intent)


def abort_batch(file_system: LocalFileSystem, root: str, segments: Sequence[StagedSegment]) -> None:
    """Give back segments that were staged for a commit that failed, but for those that an intent names. The caller holds the lock."""
    named = {segment.path for intent in load_intents(file_system, root) for segment in intent.segments}
    pool = SegmentPool(file_system, root)
    for segment in segments:
        if segment.path not in named:
            pool.give_back(segment.path)


def _redo(writer: StoreWriter, intent: Intent) -> None:
    # Who decided it may have been killed before syncing that; a power loss could then leave rows in the log and no intent.
    writer.file_system.sync(intent_directory(writer.root))
    if writer.log_end < intent.lower_bound:  # a power loss took what was there; the batch begins anew before its bound
        intent = intent._replace(lower_bound=writer.log_end)
        save_intent(writer.file_system, writer.root, intent)
    with ExitStack() as resources:
        try:
            readers = [
                resources.enter_context(SegmentReader(writer.file_system, writer.root, s)) for s in intent.segments
            ]
            for reader in readers:
                reader.verify_data()
        except StorageError as error:
            path = intent_path(writer.root, intent)
            hint = f"bring the file back; or delete {path}, and what stands of the batch in the log is all there will be of it"
            reason = (
                f"batch {intent.batch_id} of sink {intent.sink_id} is decided, and its rows are not to be had: {error}"
            )
            raise StoreNotWritableError(writer.root, reason, hint) from error
        if writer.log.force_property_crc and not all(run.columns.has_crc for run in readers):
            reason = f"batch {intent.batch_id} of sink {intent.sink_id} is decided, and has no records with the property __CRC32#"
            hint = "open the store once with forceVerifyPropCRC=false, as it was when the batch was decided"
            raise StoreNotWritableError(writer.root, reason, hint)
        begun = [message for message in messages_of(writer, intent) if message.kind == BEGIN]
        writer.reserve(*_room(readers))
        end_place = _append(writer, intent, readers, begun)
    _finish(writer, intent, end_place)


def _append(
    writer: StoreWriter, intent: Intent, readers: Sequence[RecordRun], begun: Sequence[LedgerMessage] = ()
) -> int:
    """BEGIN, the rows that are not there yet, dead letters, op messages, END. `begun` are the BEGINs of attempts before.

    Returns the place of the END.
    """
    batch = Batch(intent.sink_id, intent.query_id, intent.batch_id)
    now_ms = writer.clock()
    there = NOTHING
    if begun:
        there = progress_behind(writer.log, writer.log_end, writer.settings.log_file_size_bytes, begun[-1], readers)
    if there.row_count < intent.row_count:
        begin = outgoing_ledger_message(BEGIN, batch, intent.row_count, first_row=there.row_count, now_ms=now_ms)
        writer.append([writer.settings.encode(begin)])
        reach("after-begin")
    halves, commits = halves_and_rest(readers)
    if halves:
        last_place, places = append_transactions(writer, halves, commits, there, begun)
    else:
        rest = runs_from(readers, there.row_count)
        last_place = int(writer.append(rest)[-1].commitlog_offsets[-1]) if rest else there.last_place
    _publish(writer, intent.dead_letters)
    if halves:
        reach("before-ops")
        writer.append(op_runs(halves, places, writer.settings, now_ms))
    reach("before-end")
    last = last_place, intent.segments[-1].last_unique_key
    end = outgoing_ledger_message(END, batch, intent.row_count, last=last, now_ms=now_ms)
    (placement,) = writer.append([writer.settings.encode(end)])
    reach("after-end")
    return int(placement.commitlog_offsets[0])


def _publish(writer: StoreWriter, dead_letters: Sequence[tuple[str, str]]) -> None:
    """Give staged dead letters their names, durably. A replay gives the same names, so none is there twice."""
    for staged, final in dead_letters:
        with suppress(FileNotFoundError):  # done before a crash
            writer.file_system.rename(staged, final)
        writer.file_system.sync(posixpath.dirname(final))


def _finish(writer: StoreWriter, intent: Intent, end_place: int) -> None:
    if writer.ends.ledger is not None and not intent.sink_id.startswith(UNNAMED_PREFIX):
        others = writer.ends.ledger.pop(intent.sink_id, {})
        writer.ends.ledger[intent.sink_id] = {intent.query_id: 0, **others, intent.query_id: intent.batch_id}
    if intent.mirrored:
        keep_progress(writer, intent.sink_id, intent.query_id, intent.batch_id, end_place)
    reach("after-mirror")
    if writer.settings.sync_flush or not intent.mirrored:  # without a mirror an END that expires is forgotten
        writer.sync_log()
        reach("before-drop")
        _drop(writer, intent)
        reach("after-drop")
    reach("after-commit")


def _drop(writer: StoreWriter, intent: Intent) -> None:
    """The batch is on the disk: what could do it again goes, and what other attempts at it have staged."""
    drop_intent(writer.file_system, writer.root, intent)
    _drop_staged(writer, Batch(intent.sink_id, intent.query_id, intent.batch_id), intent.segments)


def _drop_staged(writer: StoreWriter, batch: Batch, segments: Sequence[StagedSegment]) -> None:
    """Give back the segments, and delete what other attempts at this batch, or at earlier ones of the query, have left beside them.

    Only what a commit was told of is known to be finished and can be used again: a forgotten attempt may be writing still.
    """
    named = {segment.path for intent in load_intents(writer.file_system, writer.root) for segment in intent.segments}
    pool = SegmentPool(writer.file_system, writer.root)
    for segment in segments:
        if segment.path not in named:
            pool.give_back(segment.path)
    directory = sink_digest(batch.sink_id, batch.query_id).hex()
    delete_orphans(writer.file_system, writer.root, directory, batch.batch_id, keep=named)
    if batch.sink_id.startswith(UNNAMED_PREFIX):
        remove_directory(writer.file_system, writer.root, directory)


def _room(readers: Sequence[RecordRun]) -> tuple[int, int]:
    """Bytes of log that a batch may need, and those of its largest record."""
    halves, _ = halves_and_rest(readers)
    ops = sum(run.columns.row_count for run in halves) * _OP_ROOM_BYTES
    rows = sum(int(run.columns.sizes_bytes.sum(dtype=np.int64)) for run in readers)
    largest = max((int(run.columns.sizes_bytes.max(initial=0)) for run in readers), default=0)
    return rows + ops + _LEDGER_ROOM_BYTES, max(largest, _OP_ROOM_BYTES, _LEDGER_ROOM_BYTES)


def _check_segments(writer: StoreWriter, readers: Sequence[SegmentReader]) -> None:
    """Whether the segments hold what the tasks have staged, while nothing is decided yet. The appending sums them up once more."""
    for reader in readers:
        try:
            reader.verify_data()
        except CorruptRecordError as error:
            reason = f"rows that a task has staged have changed since: {error}"
            hint = "nothing was written; start the query again, so that it stages them anew, and see who writes below spark_mq/staged"
            raise StoreNotWritableError(writer.root, reason, hint) from error


def _check_queues(
    writer: StoreWriter,
    queues: Collection[tuple[str, int]],
    topics: Mapping[str, int],
    grown: Mapping[str, int],
    wish: RowWish,
) -> None:
    """Whether every queue that rows were staged for can be written, now that nobody else changes the topics."""
    rules = writer.settings.topic_rules
    for topic, named in groupby(sorted(queues), itemgetter(0)):
        if topic in _WAITING_TOPICS:
            continue
        if topic in writer.queues.batch_topics:
            raise NameIllegalError("topic", topic, "it has batch consume queues (queue.type=BatchCQ)")
        queue_ids = [queue_id for _, queue_id in named]
        refused = rules.refusal_of_staged(topic, queue_ids, wish, topics.get(topic), grown.get(topic, 0))
        if refused is not None:
            raise TopicChangedError(topic, *refused)
