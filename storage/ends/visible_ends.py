"""What a reader of a store asks about ends, whoever knows them: a follower of the files, or the writer in the same process."""

from __future__ import annotations

from typing import Protocol

from storage.ends.queue_ends import QueueName
from storage.log.tail import RecordIdentity
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.positions import QueuePosition


class VisibleEnds(Protocol):
    """Where log and queues begin and end, as far as messages can be read."""

    @property
    def dispatched_end(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    @property
    def last_record(self) -> RecordIdentity | None: ...

    def maximum(self, topic: str, queue_id: int) -> int: ...

    def minimum(self, queue: ConsumeQueue) -> int: ...

    def known_bounds(self, name: QueueName) -> tuple[int, int] | None: ...

    def last_message_end(self, topic: str, queue_id: int) -> int | None: ...

    def position(self, name: QueueName, offset: int) -> QueuePosition | None: ...

    def note_position(self, name: QueueName, offset: int, position: QueuePosition) -> None: ...
