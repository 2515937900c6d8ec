"""Remembers which halves op messages have ended, in the broker that ends more: each op message is read at most once.

    op queue   … | from the start of the first checked half: read then | written by others: read once | own: known unread

Java keeps no such memory: a second END_TRANSACTION commits once more (apache/rocketmq#5574).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from storage.queues.scan import scan_queue
from storage.rules.half_messages import OP_TOPIC, QUEUE_ID, ended_halves
from storage.store import MessageStore


class OffsetRanges:
    """A set of offsets; a run of neighbours takes as much room as one. Not thread-safe."""

    def __init__(self) -> None:
        self._bounds: list[int] = []
        """Alternating starts and ends, ascending."""

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self._bounds, offset) % 2 == 1

    def add(self, offset: int) -> None:
        self.add_range(offset, offset + 1)

    def add_range(self, start: int, end: int) -> None:
        """All offsets from `start` to before `end`."""
        first, last = bisect_left(self._bounds, start), bisect_right(self._bounds, end)
        inner = ([start] if first % 2 == 0 else []) + ([end] if last % 2 == 0 else [])
        self._bounds[first:last] = inner

    def add_all(self, offsets: np.ndarray) -> None:
        """Many offsets, in any order."""
        ordered = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, breaks) if len(ordered) else ():
            self.add_range(int(run[0]), int(run[-1]) + 1)


class KnownEnds:
    """The halves that op messages after some log offset have ended. Not thread-safe."""

    def __init__(self) -> None:
        self._ended = OffsetRanges()
        self._started_at: int | None = None
        """All op messages after this log offset are known; None = none is."""
        self._first = self._next = 0
        """Op messages at these queue offsets, from the first to before the next one, are known."""
        self._own: set[int] = set()
        """Known ones after `_next`."""

    def __contains__(self, half_queue_offset: int) -> bool:
        return half_queue_offset in self._ended

    def lacks(self, appended_end: int, started_at: int) -> bool:
        """Whether `learn` would read something: op messages after `started_at` in the log, in a queue with this end."""
        return self._started_at is None or started_at < self._started_at or self._next < appended_end

    def wrote(self, op_queue_offset: int, half_queue_offsets: Iterable[int]) -> None:
        """Add an op message that the caller has written, so that it is not read."""
        for offset in half_queue_offsets:
            self._ended.add(offset)
        if self._started_at is not None:  # else `learn` reads it with the others
            self._own.add(op_queue_offset)
            self._pass_own()

    def learn(self, store: MessageStore, started_at: int) -> None:
        """Read the unknown op messages after a log offset, as far as they are readable."""
        queue = store.queues.get(OP_TOPIC, QUEUE_ID)
        end = store.writer.ends.readable_ends.get((OP_TOPIC, QUEUE_ID), 0)
        if queue is None or not end:
            self._started_at = started_at
            return
        if self._started_at is None:
            self._first = self._next = queue.first_offset_at(started_at, end)
        elif started_at < self._started_at:
            first = queue.first_offset_at(started_at, end)
            self._read(store, first, self._first)
            self._first = min(first, self._first)
        self._started_at = started_at if self._started_at is None else min(started_at, self._started_at)
        self._next = max(self._next, self._read(store, self._next, end))
        self._pass_own()

    def _read(self, store: MessageStore, start: int, end: int) -> int:
        """Read a range; returns its readable end."""
        queue = store.queues.get(OP_TOPIC, QUEUE_ID)
        known_end = start
        if queue is not None and start < end:
            for offsets, records in scan_queue(queue, store.log, store.writer.dispatched_end, start, end):
                self._ended.add_all(ended_halves(offsets, records).half_offsets)
                known_end = int(offsets[-1]) + 1
        return known_end

    def _pass_own(self) -> None:
        while self._next in self._own:
            self._own.discard(self._next)
            self._next += 1
        self._own = {offset for offset in self._own if offset > self._next} if len(self._own) > 1_000 else self._own
