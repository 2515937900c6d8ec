"""Looks at the brokers of a running cluster, Apache's or ours of any release.

The requests of one look, for B brokers:

| what | requests |
| --- | --- |
| the cluster's brokers, from a name server (106) | 1 |
| all groups: ends, offsets, rates of reading (317), and which offsets are stored (43) | 2 B |
| in place of these for G named groups (208); and 14 for each queue where the answer is 0, which may mean that nothing is stored | G B |
| the first look alone: how fast messages come, by topic (315) | topics × B |
| how old the oldest unread message is, by group and topic that are behind (303) | `ages_a_look` at most |

So for 100 topics × 100 groups at one broker a look takes 3 requests and those for ages. An age that is known stays known while the
group's offset does not move, for a minute. Where more ages are missing than may be asked for, those of the longest lags come first;
the others are unknown until the next look.

Rare: a queue that is read and not written any more is asked for its end (30). A query's queues are asked for their ends (30), and, where
they are behind, for their oldest unread message (a pull). 317 counts the queues that are written, at brokers of Apache.

Java: AdminBrokerProcessor.fetchAllConsumeStatsInBroker, getAllConsumerOffset, queryConsumeTimeSpan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from spark_mq.client.admin import AsyncAdmin, brokers_of
from spark_mq.client.errors import (
    AccessDeniedError,
    ClientError,
    MalformedResponseError,
    ResponseError,
    request_text,
)
from spark_mq.client.event_loop import run
from spark_mq.client.message import MessageQueue
from spark_mq.client.routes import read_address
from spark_mq.client.settings import ClientSettings, with_namespace, without_namespace
from spark_mq.lag.checkpoints import QueryPosition, read_position
from spark_mq.lag.figures import LagReport, Look, Looks, Position, Reader
from spark_mq.remoting import RequestCode
from spark_mq.remoting.administration import ConsumeStats, QueueTimeSpan
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms
from storage.errors import StateFileError
from storage.rules.response_codes import ResponseCode
from storage.tables.consumer_groups import ConsumerOffsets

AGES_A_LOOK = 1_000
_AT_A_TIME = 32
"""Requests in flight; a broker refuses more than it has room for."""
_AGE_HOLDS_MS = 60_000
_PUT_NUMS = "TOPIC_PUT_NUMS"

T = TypeVar("T")


class _Place(NamedTuple):
    """One reader in one queue, by the names that this client uses."""

    reader: Reader
    queue: QueueId


class _Age(NamedTuple):
    """When the message at `group_offset` was stored, as it was found at a time."""

    group_offset: int
    since_ms: int
    found_ms: int


@dataclass(slots=True)
class _Found:
    """What the brokers have answered in one look."""

    now_ms: int
    positions: dict[_Place, Position] = field(default_factory=dict)
    get_rates: dict[tuple[Reader, str], float] = field(default_factory=dict)
    put_rates: dict[tuple[str, str], float] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)


class ClusterLag:
    """Who is behind in a running cluster. Not for several threads at a time; each call raises ClientError."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        cluster: str | None = None,
        checkpoints: Sequence[str] = (),
        ages_a_look: int = AGES_A_LOOK,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """One of the clusters that the name server knows, or all. `checkpoints` are directories of Spark queries."""
        self._admin = AsyncAdmin(settings)
        self._namespace = settings.namespace
        self._cluster = cluster
        self._checkpoints = checkpoints
        self._ages_a_look = ages_a_look
        self._clock = clock
        self._looks = Looks()
        self._ages: dict[_Place, _Age] = {}
        self._is_first = True
        self._requests = 0
        self._room: asyncio.Semaphore | None = None

    def close(self) -> None:
        """Give back the connections; a second call does nothing."""
        self._admin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def look(self, groups: Collection[str] | None = None) -> LagReport:
        """All readers, or some groups and all queries. A group without any offset is not listed.

        A broker that does not answer is an error of the report, which then has the figures of the others. Raises ClientError if no name
        server answers, OptionError for what is no checkpoint.
        """
        queries = [read_position(directory) for directory in self._checkpoints]
        return self._looks.report(run(self._look(groups, queries)))

    async def _look(self, groups: Collection[str] | None, queries: Sequence[QueryPosition]) -> Look:
        self._requests, self._room = 0, asyncio.Semaphore(_AT_A_TIME)
        info = await self._ask(self._admin.cluster_info())
        addresses = {name: read_address(found) for name, found in brokers_of(info, self._cluster).items() if found}
        found = _Found(self._clock())
        wanted = None if groups is None else sorted(with_namespace(self._namespace, group) for group in groups)
        for name, outcome in await self._at_each(addresses, lambda name: self._at_broker(name, addresses[name], wanted)):
            if isinstance(outcome, ClientError):
                found.errors.append(outcome)
            else:
                self._add(found, name, outcome)
        await self._add_queries(found, queries)
        await self._add_ages(found, addresses)
        if self._is_first:
            await self._add_put_rates(found, addresses)
            self._is_first = False
        return Look(
            found.now_ms,
            {(place.reader, place.queue): position for place, position in found.positions.items()},
            found.put_rates,
            found.get_rates,
            tuple(found.errors),
            self._requests,
        )

    async def _ask(self, call: Awaitable[T]) -> T:
        """One request, in its turn."""
        assert self._room is not None
        async with self._room:
            self._requests += 1
            return await call

    async def _at_each(
        self, wanted: Iterable[str], call: Callable[[str], Awaitable[T]]
    ) -> list[tuple[str, T | ClientError]]:
        """The result or the error of each, in order."""

        async def one(name: str) -> tuple[str, T | ClientError]:
            try:
                return name, await call(name)
            except ClientError as error:
                return name, error

        return list(await asyncio.gather(*map(one, wanted)))

    # Groups

    async def _at_broker(self, name: str, address: str, groups: Sequence[str] | None) -> _Answer:
        if groups is None:
            stats, text = await asyncio.gather(
                self._ask(self._admin.all_stats(address)), self._ask(self._admin.all_offsets(address))
            )
            stored = _parse_offsets(text, address)
            rows = [row for group, of_group in stats.items() for row in _rows(group, of_group, stored)]
            rows += await self._unwritten(name, rows, stored)
            return _Answer(rows, {group: _read_rate(of_group) for group, of_group in stats.items()})
        stats = dict(zip(groups, await asyncio.gather(*(self._stats_of(address, group) for group in groups)), strict=True))
        rows = [row for group, of_group in stats.items() for row in _rows(group, of_group, None)]
        checked = await asyncio.gather(*map(self._checked, rows))
        return _Answer(checked, {group: _read_rate(of_group) for group, of_group in stats.items()})

    async def _stats_of(self, address: str, group: str) -> tuple[ConsumeStats, ...]:
        return (await self._ask(self._admin.group_stats(address, group)),)

    async def _checked(self, row: _Row) -> _Row:
        """Ask whether a 0 is stored: 208 says 0 also of a queue in which nothing is."""
        if row.position.group_offset != 0 or row.position.broker_offset == 0:
            return row
        stored = await self._ask(self._admin.group_offset(row.group, row.queue))
        return row._replace(position=row.position._replace(group_offset=stored))

    async def _unwritten(self, name: str, rows: Sequence[_Row], stored: ConsumerOffsets) -> list[_Row]:
        """The queues with offsets that an Apache broker leaves out, because they are not written any more."""
        listed: dict[tuple[str, str], set[int]] = {}
        for row in rows:
            listed.setdefault((row.queue.topic, row.group), set()).add(row.queue.queue_id)
        found = []
        for (topic, group), queue_ids in listed.items():
            for queue_id, offset in stored.offsets.get((topic, group), {}).items():
                if queue_id not in queue_ids:
                    queue = MessageQueue(topic, name, queue_id)
                    end = await self._ask(self._admin.max_offset(queue))
                    found.append(_Row(group, queue, Position(end, offset)))
        return found

    def _add(self, found: _Found, name: str, answer: _Answer) -> None:
        for group, queue, position in answer.rows:
            reader, topic = self._here(group), self._here(queue.topic)
            if reader is not None and topic is not None:
                place = _Place(Reader(reader), QueueId(topic, queue.broker_name, queue.queue_id))
                found.positions[place] = position
        for group, rate in answer.rates.items():
            if (reader := self._here(group)) is not None:
                found.get_rates[Reader(reader), name] = rate

    def _here(self, name: str) -> str | None:
        """A name without the namespace; None for one of another namespace."""
        here = without_namespace(self._namespace, name)
        return here if self._namespace is None or here != name else None

    def _at_brokers(self, queue: QueueId) -> MessageQueue:
        return MessageQueue(with_namespace(self._namespace, queue.topic), queue.broker_name, queue.queue_id)

    # Queries

    async def _add_queries(self, found: _Found, queries: Sequence[QueryPosition]) -> None:
        places = {
            _Place(Reader(query.name, "query"), queue): offset
            for query in queries
            for queue, offset in query.offsets.items()
        }

        async def position(place: _Place) -> Position:
            queue, offset = self._at_brokers(place.queue), places[place]
            end = await self._ask(self._admin.max_offset(queue))
            since_ms = await self._ask(self._admin.store_time_ms(queue, offset)) if offset < end else None
            return Position(end, offset, since_ms)

        for place, outcome in await self._at_each(places, position):
            if isinstance(outcome, ClientError):
                found.errors.append(outcome)
                outcome = Position(None, places[place])
            found.positions[place] = outcome

    # Ages

    async def _add_ages(self, found: _Found, addresses: Mapping[str, str]) -> None:
        """The ages that hold, and those of the longest lags that are missing."""
        missing: dict[_Span, int] = {}
        for place, position in found.positions.items():
            if place.reader.kind != "group" or not position.lag:
                continue
            age = self._ages.get(place)
            if age and age.group_offset == position.group_offset and 0 <= found.now_ms - age.found_ms < _AGE_HOLDS_MS:
                found.positions[place] = position._replace(unread_since_ms=age.since_ms)
            elif place.queue.broker_name in addresses:
                span = _Span(place.reader, place.queue.topic, place.queue.broker_name)
                missing[span] = missing.get(span, 0) + position.lag
        wanted = sorted(missing, key=lambda span: (-missing[span], span))[: self._ages_a_look]

        async def ask(span: _Span) -> tuple[QueueTimeSpan, ...]:
            topic = with_namespace(self._namespace, span.topic)
            group = with_namespace(self._namespace, span.reader.name)
            return await self._ask(self._admin.time_spans(addresses[span.broker_name], topic, group))

        kept = {place: age for place, age in self._ages.items() if place in found.positions}
        for span, outcome in await self._at_each(wanted, ask):
            if isinstance(outcome, ClientError):
                if not (isinstance(outcome, ResponseError) and outcome.code == ResponseCode.TOPIC_NOT_EXIST):
                    found.errors.append(outcome)  # else it was deleted meanwhile
                continue
            for each in outcome:
                queue_id = -1 if each.queue is None else each.queue.queue_id
                place = _Place(span.reader, QueueId(span.topic, span.broker_name, queue_id))
                position, since_ms = found.positions.get(place), unread_since_ms(each, found.now_ms)
                if position is not None and position.lag and since_ms is not None:
                    found.positions[place] = position._replace(unread_since_ms=since_ms)
                    kept[place] = _Age(position.group_offset or 0, since_ms, found.now_ms)
        self._ages = kept

    async def _add_put_rates(self, found: _Found, addresses: Mapping[str, str]) -> None:
        """How many messages of each topic came a second in the last minute. Where the user may not ask they stay unknown."""
        places = {(place.queue.topic, place.queue.broker_name) for place in found.positions}

        async def ask(place: tuple[str, str]) -> float:
            topic, name = with_namespace(self._namespace, place[0]), place[1]
            stats = await self._ask(self._admin.broker_stats(addresses[name], _PUT_NUMS, topic))
            return 0.0 if stats is None or stats.minute is None else stats.minute.tps

        for place, outcome in await self._at_each(sorted(each for each in places if each[1] in addresses), ask):
            if isinstance(outcome, float):
                found.put_rates[place] = outcome
            elif not isinstance(outcome, AccessDeniedError):
                found.errors.append(outcome)


class _Row(NamedTuple):
    """A group in a queue, by the brokers' names."""

    group: str
    queue: MessageQueue
    position: Position


class _Answer(NamedTuple):
    """What one broker knows of groups. Rates are messages a second that a group reads there."""

    rows: Sequence[_Row]
    rates: Mapping[str, float]


class _Span(NamedTuple):
    """What one request 303 answers for."""

    reader: Reader
    topic: str
    broker_name: str


def unread_since_ms(span: QueueTimeSpan, now_ms: int) -> int | None:
    """When the group's next message was stored, by the broker's clock against ours. Pure.

    Where that message has expired it is when the queue's first one was. 0 as the delay: there is none meanwhile.
    """
    if 0 <= span.delay_ms < now_ms // 2:
        return now_ms - span.delay_ms
    return span.min_time_ms if span.min_time_ms > 0 else None  # the broker has subtracted −1, the time of no message


def _rows(group: str, stats: Iterable[ConsumeStats], stored: ConsumerOffsets | None) -> list[_Row]:
    """The group's queues. With `stored` an offset 0 that is not among these is unknown, as is one below 0 always."""
    rows = []
    for each in stats:
        for queue, found in sorted(each.offset_table.items()):
            offset: int | None = found.consumer_offset
            if found.consumer_offset < 0:
                offset = None
            elif offset == 0 and stored is not None:
                offset = stored.get(queue.topic, group, queue.queue_id)
            rows.append(_Row(group, queue, Position(found.broker_offset, offset)))
    return rows


def _read_rate(stats: Iterable[ConsumeStats]) -> float:
    return sum(each.consume_tps for each in stats)


def _parse_offsets(text: bytes, address: str) -> ConsumerOffsets:
    try:
        return ConsumerOffsets.load(text.decode())
    except (StateFileError, UnicodeDecodeError) as error:
        what = request_text(RequestCode.GET_ALL_CONSUMER_OFFSET)
        raise MalformedResponseError(address, what, str(error)) from None
