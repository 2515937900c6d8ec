"""What a query reads: which queues of a cluster, of each a range of offsets, and the ranges as splits for Spark's partitions. Pure.

Queues are selected anew at each look at the cluster, so that new topics and queues join a running query.
Sizes are offsets, an upper bound of rows: some offsets hold no visible message.

Spark: ConsumerStrategy, KafkaOffsetRange, KafkaOffsetRangeCalculator (with SPARK-36576 and SPARK-49259).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


MOST_PARTITIONS = 1_000
"""Of more splits small ones share a partition: each is a task, which costs Spark some milliseconds whatever it reads."""


class QueueRange(NamedTuple):
    """The offsets from `start` (inclusive) to `end` (exclusive) of one queue."""

    queue: QueueId
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(starts: Mapping[QueueId, int], ends: Mapping[QueueId, int]) -> list[QueueRange]:
    """The ranges that are not empty, in the order of their queues.

    Every queue of `ends` needs a start: a new queue's minimum, a recreated one's new beginning. Queues of
    `starts` alone are gone and have no range.
    """
    ranges = [QueueRange(queue, starts[queue], end) for queue, end in sorted(ends.items())]
    return [queue_range for queue_range in ranges if queue_range.size > 0]


def split_ranges(
    ranges: Iterable[QueueRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[QueueRange]:
    """Cut ranges into splits that cover exactly the same offsets, in the same order; empty ranges vanish.

    First each range is cut evenly into as many as `max_records_per_partition` asks for: a hard limit. If
    these are then still fewer than `min_partitions`, large ones are cut in proportion to their size: a hint,
    more or fewer may come of it. Small ranges that get one split anyway are set aside first, so that they do
    not dilute the share of the large ones.
    """
    pieces = [queue_range for queue_range in ranges if queue_range.size > 0]
    if max_records_per_partition is not None:
        pieces = [
            part
            for piece in pieces
            for part in _divide(piece, -(-piece.size // max_records_per_partition))  # rounded up
        ]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces

    total = sum(piece.size for piece in pieces)
    large = [piece for piece in pieces if _share(piece.size, total, min_partitions) > 1]
    large_total = sum(piece.size for piece in large)
    for_large = max(min_partitions - (len(pieces) - len(large)), 1)
    is_large = set(large)
    return [
        part
        for piece in pieces
        for part in _divide(piece, _share(piece.size, large_total, for_large) if piece in is_large else 1)
    ]


def _share(size: int, total: int, count: int) -> int:
    """`size / total` of `count`, rounded half up (as Scala's `math.round`), at least one."""
    return max((2 * size * count + total) // (2 * total), 1)


def _divide(queue_range: QueueRange, count: int) -> list[QueueRange]:
    """`count` parts whose sizes differ by at most one, or as many as there are offsets."""
    parts = []
    start = queue_range.start
    for i in range(min(count, queue_range.size)):
        end = start + (queue_range.end - start) // (min(count, queue_range.size) - i)
        parts.append(QueueRange(queue_range.queue, start, end))
        start = end
    return parts


def pack(sizes: Sequence[int], most: int, most_size: int | None = None) -> list[tuple[int, int]]:
    """Runs [start, end) of neighbours that share a partition: each alone if there are no more than `most`, else about so many runs.

    No run of several is larger than `most_size`, or than twice its part of the whole.
    """
    if len(sizes) <= most:
        return [(number, number + 1) for number in range(len(sizes))]
    limit = -(-2 * sum(sizes) // most)
    limit = limit if most_size is None else min(limit, most_size)
    runs, start, filled = [], 0, 0
    for number, size in enumerate(sizes):
        if number > start and filled + size > limit:
            runs.append((start, number))
            start, filled = number, 0
        filled += size
    return [*runs, (start, len(sizes))]
