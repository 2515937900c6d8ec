"""The queues that a query reads, the end of one micro-batch in each, and ranges of offsets as splits. Pure.

Queues are selected again at each look at the cluster, so that new topics and queues join a running query.

Limits are divided over queues; a query can wait for a minimum of rows; ends can be frozen. A position is the next offset of a queue;
`starts` holds every queue of `available` (a new one at its minimum, a recreated one at its new beginning).

Sizes of ranges are offsets, an upper bound of rows: some offsets hold no visible message.

Spark: ConsumerStrategy; KafkaMicroBatchStream (rateLimit, delayBatch, verifyEndOffsetForTriggerAvailableNow); KafkaOffsetRange,
KafkaOffsetRangeCalculator (with SPARK-36576 and SPARK-49259).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from spark_mq.conditions import AvailableNowError
from spark_mq.source.offsets import NamedQueue, QueueId, with_brokers
from storage.epoch_times import is_time


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
        """Named topics or assigned queues that do not exist. A pattern names nothing."""
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


class MessageSizes(Protocol):
    """Sizes as the consume queue's entries tell them: whole records, in bytes."""

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        """The bytes of the messages from `start` (inclusive) to `end` (exclusive)."""
        ...

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        """The greatest offset such that the messages from `start` up to it have at most `size_bytes`.

        Need not look further than that, and may give any offset at or behind the queue's end when all fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one micro-batch; None = none. Rows are offsets, gaps included."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60 * 1000
    max_bytes: int | None = None

    def without_minimum(self) -> ReadLimits:
        """For Trigger.AvailableNow, where waiting for more would end the query early."""
        return replace(self, min_offsets=None)


def is_delayed(
    starts: Mapping[QueueId, int],
    available: Mapping[QueueId, int],
    limits: ReadLimits,
    *,
    now_ms: int,
    last_batch_ms: int | None,
) -> bool:
    """Whether to wait because fewer than `min_offsets` are there and `max_delay_ms` has not passed.

    `last_batch_ms` is when this function last said no, None at first: then nothing is held back, as with
    Kafka's. The same if the clock was set back since: the elapsed time is unknown.
    """
    if limits.min_offsets is None or last_batch_ms is None:
        return False
    if is_time(now_ms, last_batch_ms, limits.max_delay_ms):
        return False
    return sum(available[queue] - starts[queue] for queue in available) < limits.min_offsets


def plan_end(
    starts: Mapping[QueueId, int],
    available: Mapping[QueueId, int],
    limits: ReadLimits,
    sizes: MessageSizes,
) -> dict[QueueId, int]:
    """The end of the next micro-batch: one offset for each queue of `available`, never past it.

    Each queue gets its part of a limit in proportion to its backlog. A queue with a backlog always gets at
    least one message, so a batch is over `max_offsets` by less than one offset a queue, and over `max_bytes`
    by at most one message a queue: both limits are soft by that much, and no large message blocks a query.
    `sizes` is used only if there is a limit in bytes.
    """
    ends = dict(available)
    if limits.max_offsets is not None:
        ends = _prorate_offsets(starts, ends, limits.max_offsets)
    if limits.max_bytes is not None:
        ends = _prorate_bytes(starts, ends, limits.max_bytes, sizes)
    return ends


def _prorate_offsets(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], max_offsets: int
) -> dict[QueueId, int]:
    backlog = _backlog(starts, ends)
    total = sum(backlog.values())
    if total <= max_offsets:
        return dict(ends)
    # Whole numbers where Kafka's takes a double: the same parts, without its rounding error at the edges.
    parts = {queue: max(max_offsets * size // total, 1) for queue, size in backlog.items()}
    return {queue: starts[queue] + parts[queue] if queue in parts else end for queue, end in ends.items()}


def _prorate_bytes(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], max_bytes: int, sizes: MessageSizes
) -> dict[QueueId, int]:
    # No queue can get more than the whole limit, so none is looked at further: with a long backlog this
    # reads the entries of a few batches and not of all that is there.
    reach = {
        queue: min(ends[queue], max(sizes.offset_at_bytes(queue, starts[queue], max_bytes), starts[queue] + 1))
        for queue in _backlog(starts, ends)
    }
    weight = {queue: sizes.bytes_between(queue, starts[queue], end) for queue, end in reach.items()}
    total = sum(weight.values())
    if total <= max_bytes:
        return {queue: reach.get(queue, end) for queue, end in ends.items()}
    planned = dict(ends)
    for queue in reach:
        within = sizes.offset_at_bytes(queue, starts[queue], max_bytes * weight[queue] // total)
        planned[queue] = max(within, starts[queue] + 1)
    return planned


def _backlog(starts: Mapping[QueueId, int], ends: Mapping[QueueId, int]) -> dict[QueueId, int]:
    return {queue: end - starts[queue] for queue, end in ends.items() if end > starts[queue]}


@dataclass(frozen=True, slots=True)
class FrozenEnd:
    """The target of Trigger.AvailableNow: the ends at its first look, and no queue that appears later."""

    ends: Mapping[QueueId, int]

    def check_available(self, available: Mapping[QueueId, int]) -> None:
        """Raises AvailableNowError if a queue has vanished, or now ends before its frozen end."""
        _refuse("queues have gone since the query started", [q for q in self.ends if q not in available])
        _refuse(
            "queues have become shorter than they were when the query started",
            [q for q, end in self.ends.items() if available[q] < end],
        )

    def check_end(self, end: Mapping[QueueId, int], available: Mapping[QueueId, int]) -> None:
        """Verify a batch that is about to be planned.

        Raises AvailableNowError unless `end` has exactly the frozen queues, passes no frozen end, and all of
        it is still there.
        """
        _refuse("the batch and the frozen ends differ in queues", sorted(self.ends.keys() ^ end.keys()))
        _refuse("the batch passes the frozen end", [q for q in end if end[q] > self.ends[q]])
        _refuse("queues have gone since the query started", [q for q in end if q not in available])
        _refuse(
            "queues have become shorter than the batch to be read",
            [q for q in end if end[q] > available[q]],
        )


def _refuse(rule: str, queues: list[QueueId]) -> None:
    if queues:
        raise AvailableNowError(rule, *map(str, queues))
