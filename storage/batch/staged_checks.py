"""What a commit asks of staged rows before it decides their batch: are they as they were staged, and may their queues be written?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter

import numpy as np

from storage.batch.slices import SLICE_BYTES
from storage.batch.staged_runs import StagedRuns, open_runs
from storage.batch.staged_segment import StagedSegment
from storage.errors import CorruptRecordError, NameIllegalError, StoreNotWritableError, TopicChangedError
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.record_block import RecordRun
from storage.messages.delays import TIMER_TOPIC
from storage.messages.half_messages import HALF_TOPIC
from storage.put.half_ends import halves_and_rest
from storage.put.store_writer import StoreWriter
from storage.rules.row_topics import RowWish

_LEDGER_ROOM_BYTES = 64 << 10
_SLICE_ROOM_BYTES = 4 << 10  # of 4 MiB; they may be two slices
_OP_ROOM_BYTES = 24  # a half's queue offset in an op message, and its part of that record
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


def open_segments(writer: StoreWriter, segments: Sequence[StagedSegment], resources: ExitStack) -> StagedRuns:
    """The segments opened, until `resources` end, and their columns compared with their sums."""
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
    """Whether the segments hold what the tasks have staged, while nothing is decided yet. The appending sums them up once more."""
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


def room_for(runs: Sequence[RecordRun]) -> tuple[int, int]:
    """Bytes of log that a batch may need, and those of its largest record."""
    halves, _ = halves_and_rest(runs)
    ops = sum(run.columns.row_count for run in halves) * _OP_ROOM_BYTES
    rows = sum(int(run.columns.sizes_bytes.sum(dtype=np.int64)) for run in runs)
    largest = max((int(run.columns.sizes_bytes.max(initial=0)) for run in runs), default=0)
    ledger = _LEDGER_ROOM_BYTES + rows // SLICE_BYTES * _SLICE_ROOM_BYTES
    return rows + ops + ledger, max(largest, _OP_ROOM_BYTES, _LEDGER_ROOM_BYTES)
