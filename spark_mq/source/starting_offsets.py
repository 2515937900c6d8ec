"""The first and last offset that a query reads in each queue, from its options and the bounds of the queue.

The options give one of

    EARLIEST | LATEST    the minimum, the end
    AtOffsets            an offset a queue, -2 earliest, -1 latest
    AtTime, AtTimes      the first message stored at or after a time: one for all, or one a queue
    AtGroup              what a consumer group has stored

which is resolved once, with `Positions`. The meaning is that of Spark's Kafka connector: JSON names every queue of the
query; if no message is new enough for a start time, the strategy gives an error or the queue's end, and for an end time
it is the queue's end; an offset outside the queue is data loss. Departures: an empty queue starts at its end under
either strategy (there is nothing to miss, and most topics have queues without messages), and for a relative time the
strategy's default is `latest` (an idle queue has nothing from the last ten minutes).

Spark: KafkaOffsetRangeLimit, KafkaOffsetReaderAdmin.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spark_mq.conditions import (
    DataLossError,
    NoGroupOffsetsError,
    NoOffsetForTimestampError,
    QueuesNotMatchedError,
    StartBeyondEndError,
)
from spark_mq.options import TimePoint
from spark_mq.source.offsets import EARLIEST, LATEST, NamedQueue, QueueId, QueueOffset, RecordPlace, with_brokers


class Positions(Protocol):
    """The store's or cluster's methods for resolving."""

    def minimum(self, queue: QueueId) -> int:
        """The first offset that is still there."""
        ...

    def earliest(self, queues: Collection[QueueId]) -> Mapping[QueueId, int]:
        """The offset at which a query for all messages starts in each queue: at the first one that is there, or before it, but not at
        one that has expired.
        """
        ...

    def maximum(self, queue: QueueId) -> int:
        """The offset that the next message will get."""
        ...

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        """The first offset whose message was stored at or after the time; None if no message is that new."""
        ...

    def moved_away(self, queue: QueueId) -> str:
        """The end of a text about offsets before the minimum: where tiered storage has them; empty if it does not."""
        ...

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        """The next offset that a consumer group has stored; None if it has stored none."""
        ...


class Edge(enum.Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


class NoMatch(enum.Enum):
    """The result of a starting time for a queue without a message that new."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    option: str
    offsets: Mapping[NamedQueue, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    time: TimePoint
    no_match: NoMatch | None = None

    def strategy(self) -> NoMatch:
        default = NoMatch.LATEST if self.time.before_now else NoMatch.ERROR
        return self.no_match or default


@dataclass(frozen=True, slots=True)
class AtTimes:
    option: str
    times_ms: Mapping[NamedQueue, int]
    no_match: NoMatch | None = None


@dataclass(frozen=True, slots=True)
class AtGroup:
    group: str


Limit = Edge | AtOffsets | AtTime | AtTimes | AtGroup
"""A start or end from the options (KafkaOffsetRangeLimit). An end is never AtGroup."""


class Resolved(NamedTuple):
    """An offset within [minimum, maximum] a queue, and a text for each that had to be moved there."""

    offsets: dict[QueueId, int]
    losses: tuple[str, ...]


def resolve_start(
    limit: Limit,
    queues: Collection[QueueId],
    positions: Positions,
    *,
    brokers: Collection[str],
    now_ms: int,
    fail_on_data_loss: bool,
) -> Resolved:
    """The first offset of a query in each of its queues.

    `brokers` are all brokers of the cluster. Raises QueuesNotMatchedError, NoOffsetForTimestampError,
    NoGroupOffsetsError, and DataLossError unless `fail_on_data_loss` is false: then a queue whose wanted
    offset is gone begins at its minimum.
    """
    wanted: dict[QueueId, int]
    match limit:
        case Edge():
            wanted = dict.fromkeys(queues, EARLIEST if limit is Edge.EARLIEST else LATEST)
        case AtOffsets(option, offsets):
            wanted = _one_each(offsets, queues, brokers, option)
        case AtTime(time):
            strategy = limit.strategy()
            wanted = {q: _start_at(q, time.at(now_ms), strategy, positions) for q in queues}
        case AtTimes(option, times_ms, no_match):
            times = _one_each(times_ms, queues, brokers, option)
            wanted = {q: _start_at(q, ms, no_match or NoMatch.ERROR, positions) for q, ms in times.items()}
        case AtGroup(group):
            wanted = _group_offsets(group, queues, positions)
    return _within_bounds(wanted, positions, "starting", fail_on_data_loss)


def resolve_end(
    limit: Limit,
    queues: Collection[QueueId],
    positions: Positions,
    *,
    brokers: Collection[str],
    now_ms: int,
    fail_on_data_loss: bool,
) -> Resolved:
    """The end of a batch query in each of its queues, exclusive.

    A time is the first message that is *not* read; where none is that new, the queue is read to its end.
    Raises as `resolve_start` does; without `fail_on_data_loss` an end that is not there is the queue's own.
    """
    wanted: dict[QueueId, int]
    match limit:
        case Edge():
            wanted = dict.fromkeys(queues, EARLIEST if limit is Edge.EARLIEST else LATEST)
        case AtOffsets(option, offsets):
            wanted = _one_each(offsets, queues, brokers, option)
        case AtTime(time):
            wanted = {q: _end_at(q, time.at(now_ms), positions) for q in queues}
        case AtTimes(option, times_ms, _):
            times = _one_each(times_ms, queues, brokers, option)
            wanted = {q: _end_at(q, ms, positions) for q, ms in times.items()}
        case AtGroup():
            raise TypeError("a query cannot end at a consumer group's offsets")
    return _within_bounds(wanted, positions, "ending", fail_on_data_loss)


def check_order(starts: Mapping[QueueId, int], ends: Mapping[QueueId, int]) -> None:
    """Raises StartBeyondEndError for the first queue whose start is greater than its end."""
    for queue, start in starts.items():
        if queue in ends and start > ends[queue]:
            raise StartBeyondEndError(str(queue), start, ends[queue])


def _one_each(
    named: Mapping[NamedQueue, int], queues: Collection[QueueId], brokers: Collection[str], option: str
) -> dict[QueueId, int]:
    given = dict(zip(with_brokers(list(named), brokers, option), named.values(), strict=True))
    unknown = sorted(given.keys() - set(queues))
    omitted = sorted(set(queues) - given.keys())
    if unknown or omitted:
        raise QueuesNotMatchedError(option, map(str, unknown), map(str, omitted))
    return given


def _start_at(queue: QueueId, timestamp_ms: int, strategy: NoMatch, positions: Positions) -> int:
    offset = positions.offset_by_time(queue, timestamp_ms)
    if offset is not None:
        return offset
    empty = positions.minimum(queue) >= positions.maximum(queue)
    if strategy is NoMatch.LATEST or empty:
        return LATEST
    raise NoOffsetForTimestampError(str(queue), timestamp_ms)


def _end_at(queue: QueueId, timestamp_ms: int, positions: Positions) -> int:
    offset = positions.offset_by_time(queue, timestamp_ms)
    return LATEST if offset is None else offset


def _group_offsets(group: str, queues: Collection[QueueId], positions: Positions) -> dict[QueueId, int]:
    """The group's stored offsets. Queues that it has not reached yet are new to it and begin at their minimum."""
    stored = {queue: positions.group_offset(group, queue) for queue in queues}
    if queues and all(offset is None for offset in stored.values()):
        raise NoGroupOffsetsError(group)
    return {queue: EARLIEST if offset is None else offset for queue, offset in stored.items()}


_BEHIND_END = (
    "\nNo message has that offset yet: it is another queue's, or it was taken from a newer copy of the store. Correct the offset, "
    "or look whether the right store is read. Set failOnDataLoss to false to go on from the offset that is named"
)


def _within_bounds(
    wanted: Mapping[QueueId, int], positions: Positions, which: str, fail_on_data_loss: bool
) -> Resolved:
    offsets: dict[QueueId, int] = {}
    losses: list[str] = []
    earliest = positions.earliest([queue for queue, offset in wanted.items() if offset == EARLIEST])
    for queue, offset in sorted(wanted.items()):
        minimum = positions.minimum(queue)
        maximum = max(positions.maximum(queue), minimum)
        if offset == EARLIEST:
            offsets[queue] = min(max(earliest[queue], minimum), maximum)
        elif offset == LATEST:
            offsets[queue] = maximum
        elif minimum <= offset <= maximum:
            offsets[queue] = offset
        else:
            # As in Kafka's reset policy: the wanted offset is gone, so take everything that is left.
            offsets[queue] = minimum if which == "starting" or offset < minimum else maximum
            chosen = f"{offsets[queue]} is taken" if not fail_on_data_loss else "correct the option"
            loss = f"queue {queue}: the {which} offset {offset} is outside [{minimum}, {maximum}]; {chosen}"
            losses.append(loss + (_BEHIND_END if offset > maximum else positions.moved_away(queue)))
    if losses and fail_on_data_loss:
        raise DataLossError(*losses)
    return Resolved(offsets, tuple(losses))


class Continuity(enum.Enum):
    """Whether a queue can be read on from where a query stands. Gaps (no visible message) are no loss."""

    UNBROKEN = "unbroken"
    BELOW_MINIMUM = "below minimum"  # messages expired before they were read
    BEYOND_END = "beyond end"  # the queue is shorter than it was: the topic was deleted and made again
    REPLACED = "replaced"  # another record stands before our offset: made again, and already longer
    MISSING = "missing"  # the queue is gone


class QueueFacts(NamedTuple):
    """What a store says of one queue now. `record_before(offset)` is the place of the record at `offset - 1`,
    None if there is none to be seen; `log_end` where the log ends, if that is known; `option` says where the data is.
    """

    minimum: int
    maximum: int
    record_before: Callable[[int], RecordPlace | None]
    log_end: int | None = None
    option: str = "path"


class Verdict(NamedTuple):
    """`resume` is the offset to read on from where loss is tolerated, None for a queue that is gone; `loss`
    describes what was lost and is None only if nothing was.
    """

    continuity: Continuity
    resume: int | None
    loss: str | None = None


_PLACES = {
    "path": ("path leads to another store", "path leads to the right store"),
    "nameServer": ("nameServer leads to another cluster", "nameServer leads to the right cluster"),
}


def check_continuity(queue: QueueId, previous: QueueOffset, facts: QueueFacts | None) -> Verdict:
    """Compare a position with the queue as it is now; `facts` is None if the queue is not there.

    The identity is compared only where both sides have one: the record before may itself have expired, or
    have been a gap. A recreated topic that is by now longer and whose old record cannot be compared is
    therefore not noticed.
    """
    if facts is None:
        return Verdict(Continuity.MISSING, None, f"queue {queue} at offset {previous.next} is gone")
    minimum, maximum, record_before, log_end, option = facts
    other, right = _PLACES[option]
    again = f"Set failOnDataLoss to false to read the queue from offset {minimum} on"
    if previous.next > max(minimum, maximum):
        ends = f"queue {queue} ends at {maximum}, before offset {previous.next} of the checkpoint"
        if log_end is not None and previous.before is not None and previous.before[0] >= log_end:
            loss = (
                f"{ends}: the store is older than the checkpoint (restored from a copy, a replica that lags behind, or one that lost "
                f"its end in a crash); its log ends at {log_end}, and the query has read a record at {previous.before[0]}\n"
                f"Bring the newer store back, or name it in path. If there is none, start with a new checkpoint. {again}; "
                "rows that were read before are then read again"
            )
        else:
            loss = (
                f"{ends}: its topic was deleted and made again, or its end was cut, or {other}\n"
                f"Look whether {right}. {again}"
            )
        return Verdict(Continuity.BEYOND_END, minimum, loss)
    if previous.next < minimum:
        return Verdict(
            Continuity.BELOW_MINIMUM,
            minimum,
            f"queue {queue} begins at {minimum}, {minimum - previous.next} offset(s) behind {previous.next}",
        )
    if previous.before is not None and previous.next > minimum:
        found = record_before(previous.next)
        if found is not None and found != previous.before:
            return Verdict(
                Continuity.REPLACED,
                minimum,
                f"queue {queue} was deleted and made again, or {other}: another record stands before offset "
                f"{previous.next} than the checkpoint has noted\nLook whether {right}. {again}",
            )
    return Verdict(Continuity.UNBROKEN, previous.next)


def check_new_queue(queue: QueueId, minimum: int) -> Verdict:
    """A queue that appears in a running query is read from its minimum; if that is not 0, some expired unseen
    (KafkaOffsetReader reports the same).
    """
    if minimum == 0:
        return Verdict(Continuity.UNBROKEN, minimum)
    return Verdict(
        Continuity.BELOW_MINIMUM,
        minimum,
        f"queue {queue} is new to the query and begins at {minimum}, not at 0",
    )
