"""Messages cut into send batches: each for one queue, as large as a request may be, in the order of the rows. Pure.

    messages of a frame ──add──▶ the batches that are full          finish ──▶ what is left
        by queue, then in order       (encoded items back to back)

A batch of several rows is one request (320), a batch of one an ordinary send (310): so rows that fit no batch go alone, and so do those
that wait, that are tried again and that are halves of transactions. All rows of a batch have the envelope's sysFlag, so a batch ends
where it changes (compressed bodies among plain ones). Java: MessageBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.batch_items import BatchItems, encode_items
from storage.format.record import COMPRESSED, COMPRESSION_MASK, TRANSACTION_PREPARED
from storage.format.record_block import OutgoingMessages
from storage.rules.retries import RECONSUME_TIMES

Queue = tuple[str, int]
"""Topic, and the queue's place among those that the topic's route lets be written."""

_SENT_FLAGS = COMPRESSED | COMPRESSION_MASK | TRANSACTION_PREPARED
_ALONE = 1 << 30
"""Beside a sysFlag: the row goes alone. Not sent."""
_SINGLE = rf"(^|\x02)(DELAY|TIMER_DELIVER_MS|{RECONSUME_TIMES})\x01"


class WireBatch(NamedTuple):
    """One request's worth of rows for one queue."""

    queue: Queue
    sys_flag: int
    body: bytes
    """Its items back to back (`storage/format/batch_items.py`)."""
    ranks: np.ndarray
    """int64: the rank of each row in its task."""
    waits: bool = False
    """Whether it is a row that goes alone: its broker may put it elsewhere first."""

    @property
    def row_count(self) -> int:
        return len(self.ranks)


class _Open:
    """A batch that may grow."""

    __slots__ = ("pieces", "ranks", "size_bytes", "sys_flag")

    def __init__(self, sys_flag: int) -> None:
        self.sys_flag = sys_flag
        self.pieces: list[memoryview] = []
        self.ranks: list[np.ndarray] = []
        self.size_bytes = 0


class BatchCutter:
    """Cuts the messages of one task, frame after frame."""

    def __init__(self, limit_bytes: int, limit_rows: int, limit_of: Callable[[str], int] | None = None) -> None:
        """Limits of a batch, and what a topic's brokers take of one; a row that is larger is one by itself."""
        self._limit_bytes = limit_bytes
        self._limit_of = limit_of
        self._limit_rows = limit_rows
        self._open: dict[Queue, _Open] = {}
        self._rank = 0

    def add(self, messages: OutgoingMessages, *, may_wait: bool = False) -> Iterator[WireBatch]:
        """The batches that are full with these messages. With `may_wait` those that ask for a delay, or for another try, go alone: no
        batch can. Halves always do.
        """
        count = len(messages.queue_codes)
        first_rank, self._rank = self._rank, self._rank + count
        order = np.argsort(messages.queue_codes, kind="stable")
        taken = pa.array(order)
        items = encode_items(messages.bodies.take(taken), messages.properties.take(taken), messages.flags[order])
        flags = messages.sys_flags[order] & _SENT_FLAGS
        codes = messages.queue_codes[order]
        changes = (np.diff(codes) != 0) | (np.diff(flags) != 0)
        alone = (flags & TRANSACTION_PREPARED) != 0
        if may_wait:
            single = pc.match_substring_regex(messages.properties.take(taken), _SINGLE)
            alone |= single.to_numpy(zero_copy_only=False)
        if alone.any():
            changes |= alone[1:] | alone[:-1]
            flags = np.where(alone, flags | _ALONE, flags)
        changes = np.flatnonzero(changes) + 1
        bounds = [0, *changes.tolist(), count] if count else []
        for start, end in pairwise(bounds):
            queue = messages.queues[codes[start]]
            yield from self._add_run(queue, int(flags[start]), items, start, end, order + first_rank)

    def finish(self) -> Iterator[WireBatch]:
        """The batches that are not full, at the end."""
        for queue in list(self._open):
            yield self._closed(queue)

    def _add_run(
        self, queue: Queue, sys_flag: int, items: BatchItems, start: int, end: int, ranks: np.ndarray
    ) -> Iterator[WireBatch]:
        limit_bytes = self._limit_bytes if self._limit_of is None else min(self._limit_bytes, self._limit_of(queue[0]))
        while start < end:
            if queue in self._open and (self._open[queue].sys_flag != sys_flag or sys_flag & _ALONE):
                yield self._closed(queue)
            open_ = self._open.setdefault(queue, _Open(sys_flag))
            begin = int(items.ends[start - 1]) if start else 0
            room_bytes, room_rows = limit_bytes - open_.size_bytes, self._limit_rows - sum(map(len, open_.ranks))
            fitting = int(np.searchsorted(items.ends, begin + room_bytes, side="right"))
            stop = min(max(fitting, start), end, start + room_rows)
            if stop == start:
                if open_.size_bytes:
                    yield self._closed(queue)
                    continue
                stop = start + 1  # larger than any batch
            finish = int(items.ends[stop - 1])
            open_.pieces.append(items.data[begin:finish].data)
            open_.ranks.append(ranks[start:stop])
            open_.size_bytes += finish - begin
            if stop < end or open_.size_bytes >= limit_bytes:
                yield self._closed(queue)
            start = stop

    def _closed(self, queue: Queue) -> WireBatch:
        open_ = self._open.pop(queue)
        flags, ranks = open_.sys_flag, np.concatenate(open_.ranks)
        return WireBatch(queue, flags & ~_ALONE, b"".join(open_.pieces), ranks, bool(flags & _ALONE))
