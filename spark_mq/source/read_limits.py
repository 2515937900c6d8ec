"""How far one micro-batch reads: limits prorated over queues, a minimum worth waiting for, a frozen end.

Pure. Positions are next offsets a queue; `starts` holds every queue of `available` (a new one at its
minimum, a recreated one at its new beginning).

Spark: KafkaMicroBatchStream (rateLimit, delayBatch, verifyEndOffsetForTriggerAvailableNow).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from spark_mq.conditions import AvailableNowError
from spark_mq.source.offsets import QueueId
from storage.epoch_times import is_time


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
    Kafka's. Neither is it where the clock was set back since: nobody knows how long that is.
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
    `sizes` is asked only if there is a limit in bytes.
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
    """What Trigger.AvailableNow reads up to: the ends at its first look, and no queue that appears later."""

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
