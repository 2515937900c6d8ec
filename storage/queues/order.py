"""Queue offsets of records, held against those of their neighbours: no checksum covers the number that a record gives itself.

A queue's records follow each other in the log, each numbered one more than the last. Of a record that breaks the row, while the next
one goes on as if it did not, the number is wrong, and its own is known:

    97  98  16483  100  101        the third is 99: one bit of it was flipped
    97  98  0  1  2                the topic was deleted and made again
    97  98  4711  4712             messages are missing: their log file is gone

Java never holds them against each other: it enters a record where the queue ends, whatever the record says, and passes over one
whose number the queue has (ConsumeQueue.putMessagePositionInfo).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.format.consume_queue import ENTRY
from storage.log.dispatch import QueueEntries


class Misnumbered(NamedTuple):
    """A record that says another queue offset (`stated`) than the one that it stands at between its neighbours."""

    topic: str
    queue_id: int
    queue_offset: int
    stated: int
    commitlog_offset: int

    def __str__(self) -> str:
        return (
            f"{self.topic} queue {self.queue_id} offset {self.queue_offset}: the record at {self.commitlog_offset} of "
            f"the log says that its queue offset is {self.stated}"
        )


class Renumbered(NamedTuple):
    """Records of one queue with the queue offsets that are theirs."""

    rows: QueueEntries
    held: QueueEntries | None
    """A last record that breaks the row: the one to come shows what that means."""
    misnumbered: tuple[Misnumbered, ...]


def put_in_order(rows: QueueEntries, previous: int | None, *, is_all: bool = False) -> Renumbered:
    """Records of one queue in log order, with wrong queue offsets put right.

    `previous` is the queue offset before the first of them: −1 of a queue's first message, None if it is not known.
    `is_all` = no record follows, so none is held.
    """
    stated = rows.queue_offsets.astype(np.int64)
    if not len(stated):
        return Renumbered(rows, None, ())
    offsets = stated.copy()
    before = np.concatenate(([stated[0] - 1 if previous is None else previous], stated[:-1]))
    for row in np.flatnonzero(stated[:-1] != before[:-1] + 1).tolist():
        last = int(offsets[row - 1]) if row else int(before[0])
        if offsets[row] != last + 1 and stated[row + 1] == last + 2:
            offsets[row] = last + 1
    wrong = np.flatnonzero(offsets != stated)
    places = rows.entries["commitlog_offset"]
    misnumbered = tuple(
        Misnumbered(rows.topic, rows.queue_id, int(offsets[row]), int(stated[row]), int(places[row]))
        for row in wrong.tolist()
    )
    rows = rows._replace(queue_offsets=offsets) if len(wrong) else rows
    last = int(offsets[-2]) if len(offsets) > 1 else int(before[0])
    if is_all or offsets[-1] == last + 1:
        return Renumbered(rows, None, misnumbered)
    is_last = np.arange(len(offsets)) == len(offsets) - 1
    return Renumbered(rows.rows(~is_last), rows.rows(is_last), misnumbered)


def joined(first: QueueEntries | None, second: QueueEntries) -> QueueEntries:
    """Records of one queue, one behind the other."""
    if first is None:
        return second
    return QueueEntries(
        second.topic,
        second.queue_id,
        np.concatenate((first.queue_offsets, second.queue_offsets)),
        np.concatenate((first.entries, second.entries)).astype(ENTRY),
        np.concatenate((first.store_times_ms, second.store_times_ms)),
    )
