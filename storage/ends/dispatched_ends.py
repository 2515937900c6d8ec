"""The ends of a store that this process writes, for readers beside the writer: it publishes them, so nothing is looked for.

Java: ConsumeQueue.getMinOffsetInQueue, getMaxOffsetInQueue.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.ends.queue_ends import QueueName
from storage.ends.store_ends import StoreEnds
from storage.log.commit_log import CommitLog
from storage.log.tail import RecordIdentity
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.positions import QueuePosition


class DispatchedEnds:
    """What the writer of a store has dispatched. `log` is the reader's own, whose first file says what has expired.

    For one thread at a time, beside the writer's.
    """

    def __init__(self, ends: StoreEnds, dispatched_end: Callable[[], int], log: CommitLog) -> None:
        """`dispatched_end` says up to where queues know the log."""
        self._ends = ends
        self._dispatched_end = dispatched_end
        self._log = log
        self._minimums: dict[QueueName, int] = {}
        self._minimums_of = -1, 0

    @property
    def dispatched_end(self) -> int:
        """Up to where queues know the log."""
        return self._dispatched_end()

    @property
    def log_end(self) -> int:
        """Behind it nothing is read."""
        return self._dispatched_end()

    @property
    def last_record(self) -> RecordIdentity | None:
        """The last record that was appended."""
        return self._ends.last_record

    def maximum(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last entry; 0 of a queue that is not there."""
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

    def known_bounds(self, name: QueueName) -> tuple[int, int] | None:
        """None: they are looked up."""
        return None

    def last_message_end(self, topic: str, queue_id: int) -> int | None:
        """None: it is looked up."""
        return None

    def position(self, name: QueueName, offset: int) -> QueuePosition | None:
        """None: it is looked up."""
        return None

    def note_position(self, name: QueueName, offset: int, position: QueuePosition) -> None:
        """Remembers nothing."""

    def forget(self, topic: str) -> None:
        """Its queues may begin anew."""
        for name in [name for name in self._minimums if name[0] == topic]:
            del self._minimums[name]
