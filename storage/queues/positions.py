"""One entry each of many queues, compared with the log's records: a few microseconds a queue, where one alone takes hundreds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import OffsetOutOfRangeError
from storage.format.consume_queue import ENTRY_SIZE, decode_entries, is_entry, is_pre_blank
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue

_RECORD_BYTES = 16 << 20  # what of the log a remote store fetches at a time
_RECORDS = 8_192
_NOTHING = bytes(ENTRY_SIZE)
_GROWTH_ENTRIES = 31  # looked at behind a queue's end
_NO_BLOCK = bytes(ENTRY_SIZE * (1 + _GROWTH_ENTRIES))


class QueuePosition(NamedTuple):
    """The place in the log, size and store time of the message at one queue offset."""

    commitlog_offset: int
    size_bytes: int
    store_time_ms: int

    @property
    def end(self) -> int:
        """Where in the log the record ends."""
        return self.commitlog_offset + self.size_bytes


class TrueEntries(NamedTuple):
    """Which of n entries name a message of the validated log, and when that was stored (0 of the others)."""

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
    """Where the message at each queue's offset lies; None where none is to be seen.

    Raises OffsetOutOfRangeError where a file of a queue or of the log expired since it was listed.
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
    """By how many entries each of n queues has grown, and where the message of the last of them lies.

    A count of None: the queue did not just get a few entries, or they are not true. Then it is to be looked at alone.
    """

    counts: list[int | None]
    last: list[QueuePosition]

    @classmethod
    def look(cls, queues: Sequence[tuple[ConsumeQueue, int, int]], log: CommitLog, log_end: int) -> GrownQueues:
        """`queues` with their ends as they are known, and where in the log the last message before each ends."""
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
    """The entry before the end and those behind it; None where they do not lie in one file, or that has gone."""
    try:
        data = queue.bytes_from(end - 1, 1 + _GROWTH_ENTRIES) if end else b""
    except OffsetOutOfRangeError:
        return None
    return data if len(data) == len(_NO_BLOCK) else None


def _portions(rows: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in turn, so many at a time that their records need not much memory."""
    while len(rows):
        fitting = int(np.searchsorted(np.cumsum(sizes[rows[:_RECORDS]]), _RECORD_BYTES, side="right"))
        yield rows[: max(1, fitting)]
        rows = rows[max(1, fitting) :]
