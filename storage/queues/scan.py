"""A range of one queue as slices of decoded records: the bulk read path. No Python loop over messages.

Each slice is in one log file and holds only what may be served: entries inside the validated log whose record agrees.
Other offsets (pre-blank, stale, rolled back) are gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from storage.errors import OffsetOutOfRangeError
from storage.format.arrays import Memory
from storage.format.batch_items import single_records
from storage.format.consume_queue import is_entry, is_pre_blank
from storage.format.record_batch import Records
from storage.format.window_decoder import Claims, Decoding, Wanted, decoding_of
from storage.log.commit_log import CommitLog
from storage.queues.batch_queue import BatchConsumeQueue, entries_of_units
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.ext import ConsumeQueueExt
from storage.queues.tiered_queue import TieredConsumeQueue

SLICE_ROWS = 8_192  # with 1 KiB bodies the plateau of Spark's transfer is 5,000 to 10,000 rows
SLICE_BYTES = 12 << 20
_SYS_FLAG = Wanted(fields=frozenset({"sys_flag"}))
TORN_TAGS_CODES = frozenset((0, -(1 << 32)))  # of a half-written entry: a page may end four bytes into the code


class QueueSlice(NamedTuple):
    """Records of one queue in queue order; row i has queue offset `queue_offsets[i]`."""

    queue_offsets: np.ndarray
    records: Records


class TagsWanted(NamedTuple):
    """Selects entries with one of these tags codes, or with a code that a half-written entry may show: a superset of the messages
    with these tags.
    """

    codes: frozenset[int]
    ext: ConsumeQueueExt | None = None
    """Needed for a queue with extension files."""

    def rows(self, entries: np.ndarray) -> np.ndarray:
        """The selected entries as a mask."""
        codes = entries["tags_code"] if self.ext is None else self.ext.tags_codes(entries["tags_code"])
        return np.isin(codes, [*TORN_TAGS_CODES, *self.codes])


def scan_queue(
    queue: ConsumeQueue,
    log: CommitLog,
    log_end: int,
    start: int,
    end: int,
    *,
    tags: TagsWanted | None = None,
    verify_crc: bool = False,
    wanted: Wanted | None = None,
) -> Iterator[QueueSlice]:
    """The messages at queue offsets [start, end). The `wanted` columns are decoded while reading, if that is faster.

    Raises OffsetOutOfRangeError if messages expired meanwhile. With `verify_crc` CorruptMessageError for a body with a wrong CRC, or
    a record whose checksum differs from its `__CRC32#`; under forceVerifyPropCRC also for a record without one.
    """
    if isinstance(queue, BatchConsumeQueue):
        yield from _scan_batches(queue, log, log_end, start, end, verify_crc=verify_crc)
        return
    if isinstance(queue, TieredConsumeQueue) and start < (border := min(end, queue.border(log, end))):
        yield from _scan_moved(queue, start, border, verify_crc=verify_crc, log=log)
        start = border
    if queue.refuses_batches and wanted is not None:
        wanted |= _SYS_FLAG
    claims, memory = Claims(queue.topic.encode(), queue.queue_id), Memory()
    at = start
    while at < end:
        if at < queue.first_file_offset or not queue.file_starts:
            first = queue.first_file_offset if queue.file_starts else end
            raise OffsetOutOfRangeError(queue.topic, queue.queue_id, first, end, at)
        entries = queue.entries(at, min(end, at + SLICE_ROWS))
        sizes = record_sizes(entries)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), SLICE_BYTES, side="right")))
        entries, sizes, offsets = entries[:count], sizes[:count], np.arange(at, at + min(count, len(entries)))
        at += len(entries)
        if tags is not None:
            rows = tags.rows(entries)
            entries, sizes, offsets = entries[rows], sizes[rows], offsets[rows]
        decoding = decoding_of(len(entries), claims, wanted, memory)
        yield from _slices(queue, log, log_end, entries, sizes, offsets, verify_crc, decoding)


def _scan_moved(
    queue: TieredConsumeQueue, start: int, end: int, *, verify_crc: bool, log: CommitLog
) -> Iterator[QueueSlice]:
    """`scan_queue` of what lies in tiered storage. Its tags codes are not looked at: rows are compared by text afterwards."""
    if start < queue.first_file_offset:
        raise OffsetOutOfRangeError(queue.topic, queue.queue_id, queue.first_file_offset, end, start)
    for offsets, records in queue.moved.slices(start, end):
        if verify_crc:
            for _, error in records.corrupt_sums(force_property_crc=log.force_property_crc):
                raise error
        yield QueueSlice(offsets, records)


def _scan_batches(
    queue: BatchConsumeQueue,
    log: CommitLog,
    log_end: int,
    start: int,
    end: int,
    *,
    verify_crc: bool,
) -> Iterator[QueueSlice]:
    """`scan_queue` of a batch queue: each record is read once, and gives a row for each of its messages in [start, end).

    Units know the tags of records, and not of their messages, so nothing is left out by tags.
    """
    at = start
    while at < end:
        first = queue.first_file_offset if queue.file_starts else end
        if at < first:
            raise OffsetOutOfRangeError(queue.topic, queue.queue_id, first, end, at)
        stop = min(end, at + SLICE_ROWS)
        units = queue.units(at, stop)
        sizes = units["size_bytes"].astype(np.int64)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), SLICE_BYTES, side="right")))
        at = stop if count >= len(units) else at
        units, sizes = units[:count], sizes[:count]
        bases = units["base_offset"].astype(np.int64)
        at = max(at, int((bases + units["message_count"]).max(initial=0)))  # a record's messages come together
        entries = entries_of_units(units)
        for part in _slices(queue, log, log_end, entries, sizes, bases, verify_crc, None):
            singles = single_records(part.records)
            offsets = part.queue_offsets[singles.rows] + singles.numbers
            inside = (offsets >= start) & (offsets < end)
            if inside.any():
                yield QueueSlice(offsets[inside], singles.records.take(inside))


def record_sizes(entries: np.ndarray) -> np.ndarray:
    """Record sizes; 0 for entries that are no message, whose size field may hold anything."""
    return np.where(is_entry(entries) & ~is_pre_blank(entries), entries["size_bytes"], 0).astype(np.int64)


def _slices(
    queue: ConsumeQueue,
    log: CommitLog,
    log_end: int,
    entries: np.ndarray,
    sizes: np.ndarray,
    offsets: np.ndarray,
    verify_crc: bool,
    decoding: Decoding | None,
) -> Iterator[QueueSlice]:
    places = entries["commitlog_offset"].astype(np.int64)
    inside = (sizes > 0) & (places + sizes <= log_end)
    expired = inside & (places < log.minimum)
    if expired.any():
        raise OffsetOutOfRangeError(
            queue.topic, queue.queue_id, int(offsets[expired][-1]) + 1, int(offsets[-1]) + 1, int(offsets[expired][0])
        )
    if log.has_gaps and (lost := inside & log.is_missing(places)).any():
        first = int(np.argmax(lost))
        if first:
            yield from _slices(
                queue, log, log_end, entries[:first], sizes[:first], offsets[:first], verify_crc, decoding
            )
        end = first + int(np.argmin(lost[first:])) if not lost[first:].all() else len(lost)
        raise OffsetOutOfRangeError(
            queue.topic, queue.queue_id, int(offsets[first]) + end - first, int(offsets[-1]) + 1, int(offsets[first])
        )
    ascends = not (places[1:] <= places[:-1]).any()
    if not ascends:  # some are not valid: each is checked alone first
        inside = valid_entries(entries, queue.topic, queue.queue_id, log, log_end)
    if not inside.all():
        places, sizes, offsets = places[inside], sizes[inside], offsets[inside]
    turns = [] if ascends else (np.flatnonzero(places[1:] <= places[:-1]) + 1).tolist()
    bounds = [0, *turns, len(places)]
    for start, end in pairwise(bounds):
        yield from _ascending_slices(
            queue, log, places[start:end], sizes[start:end], offsets[start:end], verify_crc, decoding
        )


def _ascending_slices(
    queue: ConsumeQueue,
    log: CommitLog,
    places: np.ndarray,
    sizes: np.ndarray,
    offsets: np.ndarray,
    verify_crc: bool,
    decoding: Decoding | None,
) -> Iterator[QueueSlice]:
    topic = queue.topic.encode()
    for part, records in _records(queue, log, places, sizes, offsets, decoding):
        ours = offsets[part]
        if records.decoded is None:
            agrees = records.agree(places[part], sizes[part], topic, queue.queue_id)
            if not agrees.all():
                records, ours = records.take(agrees), ours[agrees]
        if not len(records):
            continue
        queue.refuse_batches(records)
        if verify_crc:
            for _, error in records.corrupt_sums(force_property_crc=log.force_property_crc):
                raise error
        yield QueueSlice(ours, records)


def _records(
    queue: ConsumeQueue,
    log: CommitLog,
    places: np.ndarray,
    sizes: np.ndarray,
    offsets: np.ndarray,
    decoding: Decoding | None,
) -> Iterator[tuple[slice, Records]]:
    """The log's records; if a log file was deleted meanwhile, the error names the queue's offsets."""
    try:
        yield from log.records(places, sizes, decoding)
    except OffsetOutOfRangeError as error:
        expired = int(np.searchsorted(places, error.minimum))
        raise OffsetOutOfRangeError(
            queue.topic, queue.queue_id, int(offsets[0]) + expired, int(offsets[-1]) + 1, error.asked
        ) from error
