"""Which queues of a cluster a query reads: topic | subscribe | subscribePattern | assign, and queueId.

Asked anew at each look at the cluster, so that new topics and queues join a running query.

Spark: ConsumerStrategy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from spark_mq.source.offsets import NamedQueue, QueueId, with_brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Exactly one of `topics`, `pattern` and `assigned` is given; `queue_ids` narrows each of them.

    A pattern matches whole topic names and passes over RocketMQ's own topics unless `include_system_topics`;
    topics that are named are read whatever they are.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[NamedQueue] = frozenset()
    queue_ids: tuple[int, ...] = ()
    include_system_topics: bool = False

    def select(
        self,
        queues: Iterable[QueueId],
        *,
        brokers: Collection[str],
        is_system_topic: Callable[[str], bool],
    ) -> list[QueueId]:
        """The queues to read, of all `queues` there are, in order.

        `brokers` are all brokers of the cluster. Raises OffsetJsonError if `assign` does not say which broker
        where there are several.
        """
        if self.assigned:
            chosen = set(queues) & self.assigned_queues(brokers)
        elif self.pattern is not None:
            chosen = {q for q in queues if self._matches(self.pattern, q.topic, is_system_topic)}
        else:
            chosen = {q for q in queues if q.topic in self.topics}
        return sorted(q for q in chosen if not self.queue_ids or q.queue_id in self.queue_ids)

    def missing(self, queues: Iterable[QueueId], *, brokers: Collection[str]) -> list[str]:
        """What was named, topics or assigned queues, and is not there. A pattern names nothing."""
        there = set(queues)
        if self.assigned:
            return [str(queue) for queue in sorted(self.assigned_queues(brokers) - there)]
        topics = {queue.topic for queue in there}
        return [topic for topic in self.topics if topic not in topics]

    def assigned_queues(self, brokers: Collection[str]) -> set[QueueId]:
        """The queues of `assign`, with their brokers."""
        return set(with_brokers(sorted(self.assigned, key=str), brokers, "assign"))

    def _matches(self, pattern: re.Pattern[str], topic: str, is_system_topic: Callable[[str], bool]) -> bool:
        if is_system_topic(topic) and not self.include_system_topics:
            return False
        return pattern.fullmatch(topic) is not None
