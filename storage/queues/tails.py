"""The last entries of many queues at once: where each one's entries end, and whether the log has the message that the last one names.

A store may have 100,000 queues. What opening asks of each is a read of its end; the rest is done for all of them together, so that
its cost is a few microseconds a queue and not a few hundred.

Java: ConsumeQueue.recover, ConsumeQueueStore.truncateDirty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries, is_entry, is_pre_blank, may_be_torn
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.positions import true_entries

QueueName = tuple[str, int]

_FIRST_LOOK_ENTRIES = 205  # a page: of most queues nothing is written behind it
_LONGEST_LOOK_ENTRIES = 4096
_READ_BYTES = 8 << 20  # what is held of all queues' ends at a time


@dataclass(frozen=True, slots=True)
class QueueTails:
    """Of n queues, by topic and id, the first queue offset that holds no entry, and what stands before it: zeros where nothing does."""

    queues: Sequence[ConsumeQueue]
    ends: np.ndarray
    last: np.ndarray
    zero_until: np.ndarray
    """Up to where from that offset on nothing but zeros was seen."""

    def ends_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.ends)

    def zero_until_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.zero_until)

    def greatest_ends(self) -> np.ndarray:
        """Where in the log each queue's last message ends; −1 of a queue without messages."""
        ends = self.last["commitlog_offset"].astype(np.int64) + self.last["size_bytes"]
        return np.where(is_entry(self.last) & ~is_pre_blank(self.last), ends, -1)

    def places_by_name(self) -> dict[QueueName, int]:
        """`greatest_ends`, of each queue."""
        return _by_name(self.queues, self.greatest_ends())

    def maybe_torn(self) -> frozenset[QueueName]:
        """Queues of whose last entry a crash may have left place and size only."""
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
    """Look for the end of each queue, as `ConsumeQueue.written_end` does."""
    ends = np.array([queue.recovery_start for queue in queues], np.int64)
    limits = np.array([queue.last_file_end_offset for queue in queues], np.int64)
    last, is_known = np.zeros(len(queues), ENTRY), limits == 0
    zero_until = ends.copy()
    rows, count = np.flatnonzero(ends < limits), _FIRST_LOOK_ENTRIES
    while len(rows):
        going_on = []
        for some in np.array_split(rows, -(-len(rows) * count * ENTRY_SIZE // _READ_BYTES)):
            blocks, asked = _blocks(queues, some, ends, count)
            free = ~is_entry(blocks)
            found = np.where(free.any(axis=1), free.argmax(axis=1), count)
            has_any = np.flatnonzero(found)
            last[some[has_any]] = blocks[has_any, found[has_any] - 1]
            is_known[some[has_any]] = True
            behind = ~_is_zero(blocks) & (np.arange(count) >= found[:, np.newaxis])
            zero_until[some] = ends[some] + np.where(behind.any(axis=1), behind.argmax(axis=1), asked)
            ends[some] += found
            going_on.append(some[(found == asked) & (asked > 0) & (ends[some] < limits[some])])
        rows, count = np.concatenate(going_on), min(4 * count, _LONGEST_LOOK_ENTRIES)
    for row in np.flatnonzero(~is_known).tolist():
        last[row] = _entry_before(queues[row], int(ends[row]))
    for queue in queues:
        queue.close()
    return QueueTails(queues, ends, last, zero_until)


def _blocks(
    queues: Sequence[ConsumeQueue], rows: np.ndarray, starts: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """A row of `count` entries of each queue, zeros behind the end of its file; and how many of them lie in the file."""
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
