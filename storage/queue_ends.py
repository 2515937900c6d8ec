"""Where each queue of a store begins and ends, followed while another process writes. Java: getMinOffsetInQueue, getMaxOffsetInQueue.

A look costs one read at the log's end while nothing happens, and otherwise in proportion to the queues that got messages: the
log's new records name them.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.consume_queue_store import ConsumeQueueStore
from storage.errors import OffsetOutOfRangeError
from storage.log_tail import LogTail
from storage.recovery import RecoveryPlan

DISCOVERY_INTERVAL_MS = 1_000


class QueueEnds:
    """The visible ends of all queues, as the plan of opening found them and `follow` moves them on."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueStore,
        plan: RecoveryPlan,
        clock: Callable[[], int],
        *,
        check_crc: bool,
    ) -> None:
        self._log = log
        self._queues = queues
        self._clock = clock
        self._tail = LogTail(log, plan.greatest_end, plan.log_end, plan.last_record, check_crc=check_crc)
        self._ends = dict(plan.visible_ends)
        self._last_places = dict(plan.last_places)
        self._next_discovery_ms = 0

    @property
    def log_end(self) -> int:
        """Where the validated log ends."""
        return self._tail.end

    def log_was_cut(self) -> bool:
        """Whether the log no longer holds what was seen of it: then nothing here is true any more."""
        return self._tail.was_cut()

    def follow(self) -> bool:
        """Look at new records, queues and topics; returns whether anything changed."""
        before = self._tail.end, dict(self._ends)
        self._tail.advance()
        self._discover()
        for name in list(self._tail.pending):
            if (queue := self._queues.get(*name)) is not None:
                self._follow_queue(name, queue)
        return (self._tail.end, self._ends) != before

    def maximum(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last message; 0 of a queue that is not there."""
        return self._ends.get((topic, queue_id), 0)

    def minimum(self, queue: ConsumeQueue) -> int:
        """The first queue offset whose message the log still holds; the maximum if it holds none."""
        try:
            return queue.first_offset_at(self._log.minimum, self.maximum(queue.topic, queue.queue_id))
        except OffsetOutOfRangeError:  # its files expired, or the topic was deleted, since they were listed
            self._next_discovery_ms = 0
            self._discover()
            queue.list_files()
            return queue.first_offset_at(self._log.minimum, self.maximum(queue.topic, queue.queue_id))

    def greatest_end(self, queue: ConsumeQueue) -> int:
        """Where in the log the queue's last message ends; −1 of a queue without messages."""
        return queue.greatest_end(self.maximum(queue.topic, queue.queue_id))

    def _discover(self) -> None:
        """List the queue directories, if a record names an unknown queue, and once a second for deleted topics."""
        now_ms = self._clock()
        if now_ms < self._next_discovery_ms and all(name in self._ends for name in self._tail.pending):
            return
        self._next_discovery_ms = now_ms + DISCOVERY_INTERVAL_MS
        for name in self._queues.discover():
            self._tail.pending.setdefault(name, -1)
        self._ends = {name: self._ends.get(name, 0) for name in self._queues.names()}

    def _follow_queue(self, name: tuple[str, int], queue: ConsumeQueue) -> None:
        queue.list_files()
        try:
            if self.greatest_end(queue) != self._last_places.get(name, -1):
                self._ends[name] = 0  # another record stands there: the topic was deleted and made again
            start = max(self._ends[name], queue.first_file_offset)
            end = queue.written_end(start)
            if end > start:
                end = queue.visible_end(end, self._log, self._tail.end)
        except OffsetOutOfRangeError:  # a file expired under our eyes: the next look finds it gone
            return
        self._ends[name] = end
        self._last_places[name] = self.greatest_end(queue)
        if self._last_places[name] > self._tail.pending[name]:
            del self._tail.pending[name]
