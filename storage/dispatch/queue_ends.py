"""Where each queue begins and ends, followed while another process writes. Java: getMinOffsetInQueue, getMaxOffsetInQueue.

A look costs one read at the log's end if nothing happened, and otherwise in proportion to the queues that got messages: the log's new
records name them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.dispatch.recovery_plan import RecoveryPlan
from storage.dispatch.writer import StoreEnds
from storage.errors import OffsetOutOfRangeError
from storage.log.commit_log import CommitLog, LogTail, RecordIdentity
from storage.names import QueueName
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.store import ConsumeQueueStore, GrownQueues, QueuePosition

_PAUSES = 20
"""After a listing of all queues, the next one waits this many times as long as it took."""
_LONGEST_PAUSE_MS = 60_000
_TOPICS_A_LOOK = 4_096
_QUEUES_TOGETHER = 8_192
DISCOVERY_INTERVAL_MS = 1_000


class QueueEnds:
    """The visible ends of all queues: as opening found them, then moved on by `follow`."""

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
        queues.follow(plan.log_end)
        self._ends = dict(plan.visible_ends)
        self._last_places = dict(plan.last_places)
        self._positions: dict[QueueName, tuple[tuple[int, QueuePosition], ...]] = {}
        self._minimums: dict[tuple[str, int], int] = {}
        self._minimums_of = -1
        self._next_discovery_ms = 0
        self._discovered_ms = clock()  # opening has just listed them
        self.dispatched_end = plan.greatest_end
        """The log offset where the last record ends that a queue knows, or knew."""

    @property
    def log_end(self) -> int:
        """End of the validated log."""
        return self._tail.end

    @property
    def last_record(self) -> RecordIdentity | None:
        """The last known record of the validated log; None if there is none."""
        return self._tail.last_record

    def log_was_cut(self) -> bool:
        """Whether the log lost a part that was seen: then all ends here are wrong."""
        return self._tail.was_cut()

    def follow(self) -> bool:
        """Look for new records, queues and topics; returns whether anything changed."""
        changed = self._tail.advance()
        self._queues.follow(self._tail.end)
        changed |= self._discover()
        found = ((name, self._queues.look_for(*name)) for name in list(self._tail.pending))
        pending = [(name, queue) for name, queue in found if queue is not None]
        for start in range(0, len(pending), _QUEUES_TOGETHER):
            changed |= self._follow_queues(pending[start : start + _QUEUES_TOGETHER])
        return changed

    def _follow_queues(self, pending: Sequence[tuple[QueueName, ConsumeQueue]]) -> bool:
        """Move the ends of many queues on: one read each, and one read of the log for all of them.

        A queue that did not just get a few more entries is followed alone.
        """
        grown = GrownQueues.look(
            [(queue, self._ends.get(name, 0), self._last_places.get(name, -1)) for name, queue in pending],
            self._log,
            self._tail.end,
        )
        changed = False
        for (name, queue), count, last in zip(pending, grown.counts, grown.last, strict=True):
            if count is None:
                self._positions.pop(name, None)
                changed |= self._follow_queue(name, queue)
            elif count:
                changed = True
                self._moved(name, self._ends[name] + count, last.end)
                self.note_position(name, self._ends[name] - 1, last)
        return changed

    def position(self, name: QueueName, offset: int) -> QueuePosition | None:
        """The place of the message at that offset, if it was noted and is still valid."""
        for at, position in self._positions.get(name, ()):
            if at == offset and position.commitlog_offset >= self._log.minimum:
                return position
        return None

    def note_position(self, name: QueueName, offset: int, position: QueuePosition) -> None:
        """Remember a message if it is its queue's last one, until the queue has grown twice: a stream requests the place that it has
        read up to, and the new end.

        A note is valid as long as the queue's end: `follow` compares the entry before the end when there are new ones.
        """
        if offset == self._ends.get(name, 0) - 1:
            self._positions[name] = (offset, position), *self._positions.get(name, ())[:1]

    def maximum(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message; 0 if the queue does not exist."""
        return self._ends.get((topic, queue_id), 0)

    def last_message_end(self, topic: str, queue_id: int) -> int | None:
        """The log offset where the message before the maximum ends; None if unknown or there is no message."""
        place = self._last_places.get((topic, queue_id), -1)
        return place if place >= 0 else None

    def minimum(self, queue: ConsumeQueue) -> int:
        """The first queue offset whose message the log still holds; the maximum if it holds none."""
        if self._minimums_of != self._log.minimum:
            self._minimums, self._minimums_of = {}, self._log.minimum
        name = queue.topic, queue.queue_id
        if name in self._minimums:
            return self._minimums[name]
        try:
            found = queue.first_offset_at(self._log.minimum, self.maximum(*name))
        except OffsetOutOfRangeError:  # since the listing its files expired, or the topic was deleted
            self._next_discovery_ms = self._discovered_ms = 0
            self._discover()
            queue.list_files()
            found = queue.first_offset_at(self._log.minimum, self.maximum(*name))
        found = queue.held_minimum(found)
        if found < self.maximum(*name):
            self._minimums[name] = found
        return found

    def forget_minimum(self, name: QueueName) -> int | None:
        """Look it up again next time; returns what was known."""
        return self._minimums.pop(name, None)

    def known_bounds(self, name: QueueName) -> tuple[int, int] | None:
        """Minimum and maximum of a queue whose minimum is known for the log's present files; else None."""
        minimum = self._minimums.get(name) if self._minimums_of == self._log.minimum else None
        return None if minimum is None else (minimum, self._ends[name])

    def _discover(self) -> bool:
        """List the queue directories now and then, to find deleted topics and queues without messages; returns whether any changed.

        With very many topics each look covers a share: all within a minute, or at the next look after it.
        """
        now_ms = self._clock()
        if now_ms < self._next_discovery_ms:
            return False
        of_a_minute = (now_ms - self._discovered_ms) * len(self._queues.topics()) // _LONGEST_PAUSE_MS
        new = self._queues.discover(max(_TOPICS_A_LOOK, of_a_minute))
        names = self._queues.names()
        done_ms = self._clock()
        pause_ms = _PAUSES * (done_ms - now_ms)
        self._discovered_ms = now_ms
        self._next_discovery_ms = done_ms + max(DISCOVERY_INTERVAL_MS, min(pause_ms, _LONGEST_PAUSE_MS))
        for name in new:
            self._tail.pending.setdefault(name, -1)
        if not new and len(names) == len(self._ends):
            return False
        self._ends = {name: self._ends.get(name, 0) for name in names}
        for known in (self._last_places, self._minimums, self._positions):
            for gone in known.keys() - self._ends.keys():
                del known[gone]
        return True

    def _follow_queue(self, name: tuple[str, int], queue: ConsumeQueue) -> bool:
        before = self._ends.get(name)
        self._ends.setdefault(name, 0)
        queue.list_files()
        try:
            if self._is_another(name, queue):
                self._ends[name] = 0
                self._minimums.pop(name, None)
            start = max(self._ends[name], queue.first_file_offset)
            end = queue.written_end(start)
            if end > start:
                end = queue.visible_end(end, self._log, self._tail.end)
            last_place = queue.greatest_end(end)
        except OffsetOutOfRangeError:  # a file expired meanwhile: the next look finds it gone
            return self._ends[name] != before
        self._moved(name, end, last_place)
        return end != before

    def _moved(self, name: QueueName, end: int, last_place: int) -> None:
        self._ends[name], self._last_places[name] = end, last_place
        self.dispatched_end = max(self.dispatched_end, last_place)
        if last_place > self._tail.pending[name]:
            del self._tail.pending[name]

    def _is_another(self, name: tuple[str, int], queue: ConsumeQueue) -> bool:
        """Whether another record is at the queue's old end: its topic was deleted and made again."""
        return name in self._last_places and queue.greatest_end(self._ends[name]) != self._last_places[name]


class DispatchedEnds:
    """The ends that a store's own writer has dispatched. `log` is the reader's own, whose first file says what has expired.

    For one thread at a time, besides the writer's. Java: ConsumeQueue.getMinOffsetInQueue, getMaxOffsetInQueue.
    """

    def __init__(self, ends: StoreEnds, dispatched_end: Callable[[], int], log: CommitLog) -> None:
        """`dispatched_end` gives the log offset up to which queues know the log."""
        self._ends = ends
        self._dispatched_end = dispatched_end
        self._log = log
        self._minimums: dict[QueueName, int] = {}
        self._minimums_of = -1, 0

    @property
    def dispatched_end(self) -> int:
        """The log offset up to which queues know the log."""
        return self._dispatched_end()

    def maximum(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last entry; 0 if the queue does not exist."""
        return self._ends.readable_ends.get((topic, queue_id), 0)

    def minimum(self, queue: ConsumeQueue) -> int:
        """The first queue offset whose message the log still holds; the maximum if it holds none."""
        if self._minimums_of != (now := (self._log.minimum, self._ends.cut_count)):
            self._minimums, self._minimums_of = {}, now
        name = queue.topic, queue.queue_id
        found = self._minimums.get(name)
        if found is None:
            maximum = self.maximum(*name)
            found = queue.first_offset_at(self._log.minimum, maximum)
            if found < maximum:
                self._minimums[name] = found
        return found

    def forget(self, topic: str) -> None:
        """Drop what is known of a topic: its queues may begin anew."""
        for name in [name for name in self._minimums if name[0] == topic]:
            del self._minimums[name]
