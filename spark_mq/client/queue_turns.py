"""Whose turn it is among a topic's queues: round robin, without the broker of the try before and those that are banned.

Java: TopicPublishInfo.selectOneMessageQueue, MQFaultStrategy.selectOneMessageQueue. Owned by one thread; Java counts in each
thread of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from spark_mq.client.latency_faults import LatencyFaults
from spark_mq.client.message import MessageQueue


class QueueTurns:
    """The turns of one topic, beginning with any queue."""

    def __init__(self, start: int | None = None) -> None:
        self._turn = random.getrandbits(31) if start is None else start

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The next queue; `queues` is not empty."""
        self._turn += 1
        return queues[self._turn % len(queues)]

    def next_of(self, queues: Sequence[MessageQueue], admits: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """The next queue that is admitted; None where none is."""
        for _ in queues:
            queue = self.next(queues)
            if admits(queue):
                return queue
        return None

    def choose(
        self, queues: Sequence[MessageQueue], last_broker: str | None, faults: LatencyFaults | None
    ) -> MessageQueue:
        """The queue of the next try: of an available broker, else of one that was reached, else of any."""
        if last_broker is None and faults is None:
            return self.next(queues)
        if faults is None:
            found = self.next_of(queues, lambda queue: queue.broker_name != last_broker)
            return found or self.next(queues)
        for admits in (faults.is_available, faults.is_reachable):
            found = self.next_of(
                queues,
                lambda queue, admits=admits: admits(queue.broker_name) and queue.broker_name != last_broker,  # type: ignore[misc]
            )
            if found is not None:
                return found
        return self.next(queues)
