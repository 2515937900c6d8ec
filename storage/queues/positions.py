"""One entry each of many queues: its place, each queue's end, and whether the log has the entry's message.

A store may have 100,000 queues. Opening reads the end of each; all other work is done for all of them together, so that it costs
a few microseconds a queue and not a few hundred.

Java: ConsumeQueue.recover, ConsumeQueueStore.truncateDirty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import OffsetOutOfRangeError
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries, is_entry, is_pre_blank, may_be_torn
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.tiered_queue import TieredConsumeQueue

_RECORD_BYTES = 16 << 20  # how much of the log a remote store fetches at a time
_RECORDS = 8_192
_NOTHING = bytes(ENTRY_SIZE)
_MOST_LOOKED_AT = 8_192  # entries at a time
_GROWTH_ENTRIES = 31  # looked at behind a queue's end
_NO_BLOCK = bytes(ENTRY_SIZE * (1 + _GROWTH_ENTRIES))


class QueuePosition(NamedTuple):
    """The place in the log, size and store time of the message at one queue offset."""

    commitlog_offset: int
    size_bytes: int
    store_time_ms: int

    @property
    def end(self) -> int:
        """Log offset where the record ends."""
        return self.commitlog_offset + self.size_bytes


class TrueEntries(NamedTuple):
    """Which of n entries name a message of the validated log, and when it was stored (0 for the others)."""

    true: np.ndarray
    store_times_ms: np.ndarray


def true_entries(queues: Sequence[ConsumeQueue], entries: np.ndarray, log: CommitLog, log_end: int) -> TrueEntries:
    """Compare entry i of queue i with the record that it points to (`valid_entries` of many queues)."""
    places, sizes = entries["commitlog_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
    true = is_entry(entries) & ~is_pre_blank(entries) & (places >= log.minimum) & (places + sizes <= log_end)
    rows = np.flatnonzero(true)
    true[rows] = False
    times = np.zeros(len(entries), np.int64)
    for some in _portions(rows[np.argsort(places[rows], kind="stable")], sizes):
        topics = pa.array([queues[row].topic.encode() for row in some.tolist()], pa.binary())
        queue_ids = np.array([queues[row].queue_id for row in some.tolist()], np.int64)
        for part, records in log.records(places[some], sizes[some]):
            agrees = records.agree_each(places[some[part]], sizes[some[part]], topics[part], queue_ids[part])
            true[some[part]] = agrees
            times[some[part]] = np.where(agrees, records.column("store_time_ms"), 0)
    return TrueEntries(true, times)


def read_positions(
    queues: Sequence[ConsumeQueue], offsets: Sequence[int], log: CommitLog, log_end: int
) -> list[QueuePosition | None]:
    """The place of the message at each queue's offset; None if none is visible.

    Raises OffsetOutOfRangeError if a file of a queue or of the log expired since it was listed.
    """
    read = (queue.bytes_from(offset, 1) or _NOTHING for queue, offset in zip(queues, offsets, strict=True))
    entries = decode_entries(b"".join(read))
    true, times = true_entries(queues, entries, log, log_end)
    rows = zip(
        true.tolist(),
        entries["commitlog_offset"].tolist(),
        entries["size_bytes"].tolist(),
        times.tolist(),
        strict=True,
    )
    return [QueuePosition(place, size, time) if is_true else None for is_true, place, size, time in rows]


@dataclass(frozen=True, slots=True)
class GrownQueues:
    """By how many entries each of n queues has grown, and the place of its last message.

    A count of None: the queue did not just get a few valid entries. It must be looked at alone.
    """

    counts: list[int | None]
    last: list[QueuePosition]

    @classmethod
    def look(cls, queues: Sequence[tuple[ConsumeQueue, int, int]], log: CommitLog, log_end: int) -> GrownQueues:
        """`queues` with their known ends, and the log offset where the last message before each ends."""
        read = [_read_behind(queue, end) for queue, end, _ in queues]
        blocks = decode_entries(b"".join(data or _NO_BLOCK for data in read)).reshape(-1, 1 + _GROWTH_ENTRIES)
        written = is_entry(blocks) & ~is_pre_blank(blocks)
        before = blocks["commitlog_offset"][:, 0].astype(np.int64) + blocks["size_bytes"][:, 0]
        is_same = written[:, 0] & (before == np.array([last_place for *_, last_place in queues], np.int64))
        free = ~is_entry(blocks[:, 1:])
        counts = np.where(is_same & free.any(axis=1), free.argmax(axis=1), -1)
        last = blocks[np.arange(len(blocks)), np.maximum(counts, 0)]
        rows = np.flatnonzero(counts > 0)
        times = np.zeros(len(blocks), np.int64)
        true, times[rows] = true_entries([queues[row][0] for row in rows.tolist()], last[rows], log, log_end)
        counts[rows[~true]] = -1
        columns = (last["commitlog_offset"].tolist(), last["size_bytes"].tolist(), times.tolist())
        return cls(
            [count if count >= 0 else None for count in counts.tolist()],
            [QueuePosition(*position) for position in zip(*columns, strict=True)],
        )


def _read_behind(queue: ConsumeQueue, end: int) -> bytes | None:
    """The entry before the end and those after it; None if they are not in one file, or that is gone."""
    try:
        data = queue.bytes_from(end - 1, 1 + _GROWTH_ENTRIES) if end else b""
    except OffsetOutOfRangeError:
        return None
    return data if len(data) == len(_NO_BLOCK) else None


def _portions(rows: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Groups of rows whose records need limited memory."""
    while len(rows):
        fitting = int(np.searchsorted(np.cumsum(sizes[rows[:_RECORDS]]), _RECORD_BYTES, side="right"))
        yield rows[: max(1, fitting)]
        rows = rows[max(1, fitting) :]


QueueName = tuple[str, int]

_FIRST_LOOK_ENTRIES = 205  # a page: most queues have nothing after it
_LONGEST_LOOK_ENTRIES = 4096
_READ_BYTES = 8 << 20  # how much of all queues' ends is held at a time


@dataclass(frozen=True, slots=True)
class QueueTails:
    """For n queues, by topic and id: the first queue offset without an entry, and the entry before it (zeros if there is none)."""

    queues: Sequence[ConsumeQueue]
    ends: np.ndarray
    last: np.ndarray
    zero_until: np.ndarray
    """The queue offset up to which only zeros follow the end."""

    def ends_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.ends)

    def zero_until_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.zero_until)

    def greatest_ends(self) -> np.ndarray:
        """Log offset where each queue's last message ends; −1 for a queue without messages."""
        ends = self.last["commitlog_offset"].astype(np.int64) + self.last["size_bytes"]
        return np.where(is_entry(self.last) & ~is_pre_blank(self.last), ends, -1)

    def places_by_name(self) -> dict[QueueName, int]:
        """`greatest_ends` by queue name."""
        return _by_name(self.queues, self.greatest_ends())

    def maybe_torn(self) -> frozenset[QueueName]:
        """Queues whose last entry may, after a crash, have place and size only."""
        torn = is_entry(self.last) & ~is_pre_blank(self.last) & may_be_torn(self.last["tags_code"])
        return frozenset((self.queues[row].topic, self.queues[row].queue_id) for row in np.flatnonzero(torn).tolist())

    def visible(self, log: CommitLog, log_end: int) -> QueueTails:
        """The tails without stale entries (`ConsumeQueue.visible_end`)."""
        sound = (
            true_entries(self.queues, self.last, log, log_end).true
            | is_pre_blank(self.last)
            | (self.last["commitlog_offset"] < log.minimum)
        )
        ends, last = self.ends.copy(), self.last.copy()
        for row in np.flatnonzero(~sound & is_entry(self.last)).tolist():
            queue = self.queues[row]
            ends[row] = queue.visible_end(int(self.ends[row]), log, log_end)
            last[row] = _entry_before(queue, int(ends[row]))
        return QueueTails(self.queues, ends, last, self.zero_until)


def read_tails(queues: Sequence[ConsumeQueue]) -> QueueTails:
    """Find the end of each queue, as `ConsumeQueue.written_end` does."""
    ends = np.array([queue.recovery_start for queue in queues], np.int64)
    limits = np.array([queue.last_file_end_offset for queue in queues], np.int64)
    last, is_known = np.zeros(len(queues), ENTRY), limits == 0
    zero_until = ends.copy()
    rows, count = np.flatnonzero(ends < limits), _FIRST_LOOK_ENTRIES
    while len(rows):
        going_on = []
        for some in np.array_split(rows, -(-len(rows) * count * ENTRY_SIZE // _READ_BYTES)):
            blocks, counts = _blocks(queues, some, ends, count)
            free = ~is_entry(blocks)
            found = np.where(free.any(axis=1), free.argmax(axis=1), count)
            has_any = np.flatnonzero(found)
            last[some[has_any]] = blocks[has_any, found[has_any] - 1]
            is_known[some[has_any]] = True
            behind = ~_is_zero(blocks) & (np.arange(count) >= found[:, np.newaxis])
            zero_until[some] = ends[some] + np.where(behind.any(axis=1), behind.argmax(axis=1), counts)
            ends[some] += found
            going_on.append(some[(found == counts) & (counts > 0) & (ends[some] < limits[some])])
        rows, count = np.concatenate(going_on), min(4 * count, _LONGEST_LOOK_ENTRIES)
    for row in np.flatnonzero(~is_known).tolist():
        last[row] = _entry_before(queues[row], int(ends[row]))
    for queue in queues:
        queue.close()
    return QueueTails(queues, ends, last, zero_until)


def _blocks(
    queues: Sequence[ConsumeQueue], rows: np.ndarray, starts: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """`count` entries of each queue as rows, zeros after the end of its file; and how many of them are in the file."""
    read = [
        queues[row].bytes_from(start, count) for row, start in zip(rows.tolist(), starts[rows].tolist(), strict=True)
    ]
    lengths = np.array([len(block) for block in read], np.int64)
    joined = b"".join(block.ljust(count * ENTRY_SIZE, b"\0") for block in read)
    return decode_entries(joined).reshape(len(rows), count), lengths // ENTRY_SIZE


def _is_zero(entries: np.ndarray) -> np.ndarray:
    return (entries["commitlog_offset"] == 0) & (entries["size_bytes"] == 0) & (entries["tags_code"] == 0)


def _entry_before(queue: ConsumeQueue, end: int) -> np.ndarray | np.void:
    return queue.entries(end - 1, end)[0] if end > queue.first_file_offset else np.zeros((), ENTRY)


def _by_name(queues: Sequence[ConsumeQueue], values: np.ndarray) -> dict[QueueName, int]:
    return {(queue.topic, queue.queue_id): value for queue, value in zip(queues, values.tolist(), strict=True)}


def offset_by_time(
    queue: ConsumeQueue,
    log: CommitLog,
    log_end: int,
    bounds: tuple[int, int],
    timestamp_ms: int,
    *,
    upper: bool = False,
) -> int:
    """The first offset within `bounds` (minimum and maximum) whose store time is not before `timestamp_ms`, or the maximum.

    With `upper` the last offset whose store time is not after it, or the minimum. Java: getOffsetInQueueByTime, BoundaryType.

    Raises OffsetOutOfRangeError if a file of the queue or of the log expired since it was listed.
    """
    low, high = bounds
    if isinstance(queue, TieredConsumeQueue) and low < (border := min(high, queue.border(log, high))):
        found = queue.offset_by_time((low, border), timestamp_ms, upper=upper)
        if found is not None:
            return found
        low = border
        bounds = border - 1 if upper else border, high
    last_before, first_not_before = bounds
    while low < high:
        middle = (low + high) // 2
        offset = _visible_from(queue, middle, high, log, log_end)
        if offset is None:
            high = middle
            continue
        position = read_positions([queue], [offset], log, log_end)[0]
        store_time = -1 if position is None else position.store_time_ms
        if store_time < timestamp_ms or (upper and store_time == timestamp_ms):
            low, last_before = offset + 1, offset
        else:
            high, first_not_before = middle, offset
    return last_before if upper else first_not_before


def _visible_from(queue: ConsumeQueue, start: int, end: int, log: CommitLog, log_end: int) -> int | None:
    """The first offset in [start, end) with a message: other offsets have no time to compare."""
    block_size = 1
    while start < end:
        entries = queue.entries(start, min(end, start + block_size))
        valid = valid_entries(entries, queue.topic, queue.queue_id, log, log_end)
        if valid.any():
            return start + int(np.argmax(valid))
        start, block_size = start + len(entries), min(8 * block_size, _MOST_LOOKED_AT)
    return None
