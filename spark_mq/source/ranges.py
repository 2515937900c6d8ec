"""What a batch reads: ranges of queue offsets, and the splits that become Spark's partitions.

Pure. Sizes are offsets, an upper bound of rows: some offsets hold no visible message.

Spark: KafkaOffsetRange, KafkaOffsetRangeCalculator (with SPARK-36576 and SPARK-49259).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_mq.source.offsets import QueueId

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
