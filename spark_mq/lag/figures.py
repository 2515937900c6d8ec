"""Lag of readers, by queue and in total: values, and what follows from one look or from several. Pure.

    look ──┐
           ├─▶ QueueLag (a line a queue) ─▶ GroupLag (a line a reader)
    looks before, for rates

A reader is a consumer group, or a Spark query by its checkpoint. Its offset in a queue is the next one to read. An unknown value is
None, never 0.

Java: ConsumeStats, ConsumerLagCalculator, `mqadmin consumerProgress`. Departures: a queue in which a group has stored nothing is
unknown, as is one whose end is before the group's offset; Java counts from 0, from the end, or below 0. The age is that of the
oldest message that is *not* read, as in ConsumerLagCalculator; consumerProgress has the time of the last one that is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeAlias

from spark_mq.source.lag import Position
from spark_mq.source.offsets import QueueId

RATES_OVER_MS = 60_000
"""Rates are those of so long a time at most, as those of a broker are."""
LEAST_MS = 5_000
"""Two looks that are closer together give no rates: consumers store their offsets every five seconds."""


class Reader(NamedTuple):
    """Who reads: a consumer group, or a Spark query."""

    name: str
    kind: Literal["group", "query"] = "group"


@dataclass(frozen=True, slots=True)
class Look:
    """All readers at one moment. Rates are those that brokers counted themselves over the last minute, in messages a second."""

    time_ms: int
    positions: Mapping[tuple[Reader, QueueId], Position]
    put_rates: Mapping[tuple[str, str], float]
    """By topic and broker name."""
    get_rates: Mapping[tuple[Reader, str, str], float]
    """By reader, topic and broker name."""
    errors: tuple[Exception, ...] = ()
    """Why brokers are missing in this look."""
    requests: int = 0
    """How many requests it took."""


class QueueLag(NamedTuple):
    """One reader in one queue. None = unknown.

    Rates are messages a second, between two looks. `catch_up_ms` is infinite where the reader is not faster than the writers.
    """

    reader: Reader
    queue: QueueId
    broker_offset: int | None
    group_offset: int | None
    lag: int | None
    bytes: int | None
    oldest_unread_ms: int | None
    """Age of the oldest unread message; 0 where nothing is unread."""
    in_per_second: float | None
    out_per_second: float | None
    catch_up_ms: float | None


class GroupLag(NamedTuple):
    """One reader over its queues. Sums and maxima are of the queues whose value is known; None where none is.

    Rates are those between two looks; after the first look those that the brokers counted.
    """

    reader: Reader
    topics: tuple[str, ...]
    queues: tuple[QueueLag, ...]
    unknown_queues: int
    """Number of queues whose lag is unknown."""
    lag: int | None
    bytes: int | None
    worst: QueueLag | None
    """The queue with most unread messages; None where nothing is unread."""
    oldest_unread_ms: int | None
    in_per_second: float | None
    out_per_second: float | None
    catch_up_ms: float | None


class LagReport(NamedTuple):
    """All readers, sorted by name."""

    time_ms: int
    groups: tuple[GroupLag, ...]
    errors: tuple[Exception, ...] = ()
    """Why some brokers are missing. Where there are any, figures are those of the other brokers alone."""
    requests: int = 0


Keep: TypeAlias = Callable[[Reader, QueueId], bool]
"""Whether a reader's queue is looked at."""


class LagLooks(Protocol):
    """Looks at readers, one after another: at a cluster, or at stores."""

    def look(self, groups: Collection[str] | None = None, keep: Keep | None = None) -> LagReport:
        """All readers, or some groups and all queries; of these the queues that `keep` admits."""
        ...

    def close(self) -> None: ...


class Looks:
    """The looks of the last minute, from which rates come. Not for several threads at a time."""

    def __init__(self, rates_over_ms: int = RATES_OVER_MS) -> None:
        self._rates_over_ms = rates_over_ms
        self._looks: deque[Look] = deque()

    def report(self, look: Look) -> LagReport:
        """What the look says, with rates since the oldest look of the last minute, or since the one before where looks are rarer.

        A clock that was set back forgets the looks before.
        """
        looks = self._looks = deque(each for each in self._looks if each.time_ms <= look.time_ms)
        while len(looks) > 1 and looks[0].time_ms < look.time_ms - self._rates_over_ms:
            looks.popleft()
        before = looks[0] if looks and look.time_ms - looks[0].time_ms >= LEAST_MS else None
        if before is None and looks:  # those that brokers counted serve until then
            rates = looks[-1].put_rates, looks[-1].get_rates
            look = replace(look, put_rates=look.put_rates or rates[0], get_rates=look.get_rates or rates[1])
        looks.append(look)
        return LagReport(look.time_ms, tuple(group_lags(look, before)), look.errors, look.requests)


def group_lags(look: Look, before: Look | None = None) -> list[GroupLag]:
    """A line a reader, sorted by name, its queues in order."""
    of_reader: dict[Reader, list[QueueLag]] = {}
    for (reader, queue), position in look.positions.items():
        earlier = None if before is None else before.positions.get((reader, queue))
        elapsed_ms = 0 if before is None else look.time_ms - before.time_ms
        found = _queue_lag(reader, queue, position, look.time_ms, _rates(earlier, position, elapsed_ms))
        of_reader.setdefault(reader, []).append(found)
    return [_total(reader, sorted(queues, key=_place), look) for reader, queues in sorted(of_reader.items())]


def _place(lag: QueueLag) -> QueueId:
    return lag.queue


def _rates(before: Position | None, now: Position, elapsed_ms: int) -> tuple[float | None, float | None]:
    """Messages a second, in and out. None for an offset that went back: the topic is another, or the group was reset."""
    if before is None or elapsed_ms <= 0:
        return None, None
    return (
        _per_second(before.broker_offset, now.broker_offset, elapsed_ms),
        _per_second(before.group_offset, now.group_offset, elapsed_ms),
    )


def _per_second(before: int | None, now: int | None, elapsed_ms: int) -> float | None:
    if before is None or now is None or now < before:
        return None
    return (now - before) * 1_000 / elapsed_ms


def _queue_lag(
    reader: Reader, queue: QueueId, position: Position, now_ms: int, rates: tuple[float | None, float | None]
) -> QueueLag:
    lag, since_ms = position.lag, position.unread_since_ms
    age_ms = 0 if lag == 0 else None if lag is None or since_ms is None else max(0, now_ms - since_ms)
    size = 0 if lag == 0 else None if lag is None else position.unread_bytes
    broker_offset, group_offset = position.broker_offset, position.group_offset
    return QueueLag(reader, queue, broker_offset, group_offset, lag, size, age_ms, *rates, catch_up_ms(lag, *rates))


def catch_up_ms(lag: int | None, in_per_second: float | None, out_per_second: float | None) -> float | None:
    """How long until nothing is unread, at these rates; infinite where that never comes."""
    if lag == 0:
        return 0.0
    if lag is None or in_per_second is None or out_per_second is None:
        return None
    gain = out_per_second - in_per_second
    return lag * 1_000 / gain if gain > 0 else math.inf


def _total(reader: Reader, queues: Sequence[QueueLag], look: Look) -> GroupLag:
    behind = [each for each in queues if each.lag]
    worst = max(behind, key=lambda each: each.lag or 0, default=None)
    lag = _sum(each.lag for each in queues)
    put, got = (
        _sum_of_rates(each.in_per_second for each in queues),
        _sum_of_rates(each.out_per_second for each in queues),
    )
    is_between_looks = put is not None or got is not None
    is_partial = is_between_looks and any(None in (each.in_per_second, each.out_per_second) for each in behind)
    places = dict.fromkeys((each.queue.topic, each.queue.broker_name) for each in queues)
    if put is None:
        put = _sum_of_rates(look.put_rates.get(place) for place in places)
    if got is None:
        got = _sum_of_rates(look.get_rates.get((reader, *place)) for place in places)
    ages = [each.oldest_unread_ms for each in (behind or queues) if each.oldest_unread_ms is not None]
    return GroupLag(
        reader=reader,
        topics=tuple(sorted({each.queue.topic for each in queues})),
        queues=tuple(queues),
        unknown_queues=sum(each.lag is None for each in queues),
        lag=lag,
        bytes=_sum(each.bytes for each in queues),
        worst=worst,
        oldest_unread_ms=max(ages, default=None),
        in_per_second=put,
        out_per_second=got,
        catch_up_ms=None if is_partial else catch_up_ms(lag, put, got),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_of_rates(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
