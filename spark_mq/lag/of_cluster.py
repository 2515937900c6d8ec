"""Looks at the brokers of a running cluster, Apache's or ours of any release.

The requests of one look, for B brokers:

| what | requests |
| --- | --- |
| the cluster's brokers, from a name server (106) | 1 |
| all groups: ends, offsets, rates of reading (317), and which offsets are stored (43) | 2 B |
| in place of these for G named groups (208); and (14) for each queue where it answers 0, which may mean that nothing is stored | G B |
| the first look alone: how fast messages come, by topic (315), and how fast named groups read, by topic (315) | topics × B |
| how old the oldest unread message is, by group and topic that are behind (303) | `ages_a_look` at most |

So for 100 topics × 100 groups at one broker a look takes 3 requests and those for ages. An age that is known stays known while the
group's offset does not move, for a minute. Where more ages are missing than may be asked for, those of the longest lags come first;
the others are unknown until a later look.

Rare: a queue that is read and not written any more is asked for its end (30), because 317 counts the written ones at Apache's brokers.
A topic with offsets that 317 does not name is looked up at a name server (105), once a minute.
A query's queues are asked for their ends (30), and, where they are behind, for their oldest unread message (a pull).
Not counted: the routes of topics that this client asks for the first time.

Java: AdminBrokerProcessor (fetchAllConsumeStatsInBroker, getAllConsumerOffset, getConsumeStats, queryConsumeTimeSpan).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from spark_mq.client.admin import AsyncAdmin, brokers_of
from spark_mq.client.errors import (
    AccessDeniedError,
    BrokerNotFoundError,
    ClientError,
    MalformedResponseError,
    NoBrokerError,
    ResponseError,
    TopicRouteNotFoundError,
    request_text,
)
from spark_mq.client.event_loop import run
from spark_mq.client.message import MessageQueue
from spark_mq.client.routes import read_address
from spark_mq.client.settings import ClientSettings, with_namespace, without_namespace
from spark_mq.lag.checkpoints import Checkpoints, QueryPosition
from spark_mq.lag.figures import Keep, LagReport, Look, Looks, Reader
from spark_mq.remoting import RequestCode
from spark_mq.remoting.administration import ConsumeStats, QueueTimeSpan
from spark_mq.source.lag import Position
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms
from storage.errors import StateFileError
from storage.names import MASTER_ID
from storage.rules.response_codes import ResponseCode
from storage.tables.consumer_groups import ConsumerOffsets

AGES_A_LOOK = 1_000
_AT_A_TIME = 32
"""Requests in flight; a broker refuses more than it has room for."""
_AGE_HOLDS_MS = 60_000
_PUT_NUMS, _GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"

K = TypeVar("K")
T = TypeVar("T")


class _Place(NamedTuple):
    """One reader in one queue, by the names that this client uses."""

    reader: Reader
    queue: QueueId


class _Span(NamedTuple):
    """What one request 303 answers for, or one 315."""

    reader: Reader
    topic: str
    broker_name: str


class _Age(NamedTuple):
    """When the message at `group_offset` was stored, as it was found at a time."""

    group_offset: int
    since_ms: int
    found_ms: int


class _Closed(NamedTuple):
    """Whether a broker has a topic without written queues, as it was found at a time."""

    is_closed: bool
    found_ms: float


class _Row(NamedTuple):
    """A group in a queue, by the brokers' names."""

    group: str
    queue: MessageQueue
    position: Position


class _Answer(NamedTuple):
    """What one broker knows of groups. Rates are messages a second that a group reads of a topic there."""

    rows: Sequence[_Row]
    rates: Mapping[tuple[str, str], float]


@dataclass(slots=True)
class _Found:
    """What is known so far in one look."""

    now_ms: int
    addresses: Mapping[str, str]
    """By broker name."""
    room: asyncio.Semaphore
    requests: int = 0
    positions: dict[_Place, Position] = field(default_factory=dict)
    put_rates: dict[tuple[str, str], float] = field(default_factory=dict)
    get_rates: dict[tuple[Reader, str, str], float] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    async def ask(self, call: Awaitable[T]) -> T:
        """The result of one request, which waits for its turn."""
        async with self.room:
            self.requests += 1
            return await call

    @property
    def spans(self) -> list[_Span]:
        """The groups with their topics, at brokers that are known."""
        found = {
            _Span(reader, queue.topic, queue.broker_name)
            for reader, queue in self.positions
            if reader.kind == "group" and queue.broker_name in self.addresses
        }
        return sorted(found)


class ClusterLag:
    """Who is behind in a running cluster. Not for several threads at a time."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        cluster: str | None = None,
        checkpoints: Sequence[str] = (),
        brokers: Collection[str] = (),
        ages_a_look: int = AGES_A_LOOK,
        with_rates: bool = True,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """One of the clusters that the name server knows, or all. `checkpoints` are directories of Spark queries. Without `with_rates`
        the first look does not ask for the rates that brokers count.

        `brokers` are those that must be there, by name. A name server forgets a broker that is gone, so its name must be
        known. Each look adds the brokers that it has found. Raises OptionError for what is no checkpoint.
        """
        self._checkpoints = Checkpoints(checkpoints)
        self._admin = AsyncAdmin(settings)
        self._namespace = settings.namespace
        self._cluster = cluster
        self._expected = set(brokers)
        self._ages_a_look = ages_a_look
        self._clock = clock
        self._looks = Looks()
        self._ages: dict[_Place, _Age] = {}
        self._closed: dict[tuple[str, str], _Closed] = {}
        """By topic and broker name."""
        self._needs_rates = with_rates

    def close(self) -> None:
        """Give back the connections; a second call does nothing."""
        self._admin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self, groups: Collection[str] | None = None, keep: Keep | None = None) -> LagReport:
        """All readers, or some groups and all queries; of these the queues that `keep` admits. A group without an offset is not listed.

        A broker that does not answer, or is expected and not registered, is an error of the report, which then has the figures of the
        others; so is a query whose position cannot be read. Raises ClientError if no name server answers, or none knows a broker, or
        there is no such cluster.
        """
        queries, errors = self._checkpoints.look()
        found = run(self._found(groups, queries))
        found.errors += errors
        if keep is not None:  # it may ask a broker itself, so it is not called on the client's thread
            found.positions = {place: position for place, position in found.positions.items() if keep(*place)}
        return self._looks.report(run(self._look(found)))

    async def _found(self, groups: Collection[str] | None, queries: Sequence[QueryPosition]) -> _Found:
        info = await self._admin.cluster_info()
        brokers = brokers_of(info, self._cluster)
        addresses = {name: read_address(found) for name, found in brokers.items() if found}
        if not addresses:
            raise NoBrokerError
        self._expected.update(brokers)
        found = _Found(self._clock(), addresses, asyncio.Semaphore(_AT_A_TIME), requests=1)
        found.errors += [BrokerNotFoundError(name, MASTER_ID) for name in sorted(self._expected - addresses.keys())]
        wanted = None if groups is None else sorted(with_namespace(self._namespace, group) for group in groups)
        for name, answer in await _of_each(addresses, lambda name: self._at_broker(found, name, wanted)):
            if isinstance(answer, ClientError):
                found.errors.append(answer)
            else:
                self._add(found, name, answer)
        await self._add_queries(found, queries)
        return found

    async def _look(self, found: _Found) -> Look:
        await self._add_ages(found)
        if self._needs_rates:
            await self._add_rates(found)
            self._needs_rates = False
        positions = {(place.reader, place.queue): position for place, position in found.positions.items()}
        return Look(found.now_ms, positions, found.put_rates, found.get_rates, tuple(found.errors), found.requests)

    # Groups

    async def _at_broker(self, found: _Found, name: str, groups: Sequence[str] | None) -> _Answer:
        address = found.addresses[name]
        if groups is None:
            stats, text = await asyncio.gather(
                found.ask(self._admin.all_stats(address)), found.ask(self._admin.all_offsets(address))
            )
            stored = _parse_offsets(text, address)
            rows = [row for group, of_group in stats.items() for row in _rows(group, of_group, stored)]
            return _Answer([*rows, *await self._unwritten(found, name, stats, rows, stored)], _read_rates(stats))
        asked = [found.ask(self._admin.group_stats(address, group)) for group in groups]
        of_groups = zip(groups, await asyncio.gather(*asked), strict=True)
        rows = [row for group, of_group in of_groups for row in _rows(group, [of_group], None)]
        return _Answer(await asyncio.gather(*(self._checked(found, row) for row in rows)), {})

    async def _checked(self, found: _Found, row: _Row) -> _Row:
        """Ask whether a 0 is stored: 208 says 0 also of a queue in which nothing is."""
        if row.position.group_offset != 0 or row.position.broker_offset == 0:
            return row
        stored = await found.ask(self._admin.group_offset(row.group, row.queue, or_zero=False))
        return row._replace(position=row.position._replace(group_offset=stored))

    async def _unwritten(
        self, found: _Found, name: str, groups: Collection[str], known: Sequence[_Row], stored: ConsumerOffsets
    ) -> list[_Row]:
        """The queues with offsets that an Apache broker leaves out, because they are not written any more.

        Of a topic none of whose queues is written it names no group at all, neither those whose consumers do not subscribe to it any
        more. Here all are listed that the broker has and that have offsets there.
        """
        listed: dict[tuple[str, str], set[int]] = {}
        for row in known:
            listed.setdefault((row.queue.topic, row.group), set()).add(row.queue.queue_id)
        topics = {topic for topic, _ in listed}
        hidden = [(topic, group) for topic, group in stored.offsets if topic not in topics and group in groups]
        closed = await self._closed_topics(found, name, {topic for topic, _ in hidden})
        listed |= {(topic, group): set() for topic, group in hidden if topic in closed}
        missing = [
            (group, MessageQueue(topic, name, queue_id), offset)
            for (topic, group), queue_ids in listed.items()
            for queue_id, offset in stored.offsets.get((topic, group), {}).items()
            if queue_id not in queue_ids
        ]
        rows: list[_Row] = []
        for (group, queue, offset), end in await _of_each(
            missing, lambda each: found.ask(self._admin.max_offset(each[1]))
        ):
            if isinstance(end, ClientError) and not _is_gone(end):
                found.errors.append(end)
            rows.append(_Row(group, queue, Position(None if isinstance(end, ClientError) else end, offset)))
        return rows

    async def _closed_topics(self, found: _Found, name: str, topics: Collection[str]) -> set[str]:
        """Those of the topics that the broker has, and of which it takes no message: no queue is written. Others are deleted, or no
        consumer of any group reads them.
        """
        asked = [
            topic
            for topic in sorted(topics)
            if not 0
            <= found.now_ms - self._closed.get((topic, name), _Closed(False, -math.inf)).found_ms
            < _AGE_HOLDS_MS
        ]
        for topic, route in await _of_each(asked, lambda topic: found.ask(self._admin.route(topic))):
            if isinstance(route, ClientError) and not _is_gone(route):
                found.errors.append(route)
                continue
            datas = () if isinstance(route, ClientError) else route.data.queue_datas
            is_closed = any(data.broker_name == name and data.write_queue_count == 0 for data in datas)
            self._closed[topic, name] = _Closed(is_closed, found.now_ms)
        return {topic for topic in topics if (known := self._closed.get((topic, name))) is not None and known.is_closed}

    def _add(self, found: _Found, name: str, answer: _Answer) -> None:
        for group, queue, position in answer.rows:
            reader, topic = self._here(group), self._here(queue.topic)
            if reader is not None and topic is not None:
                place = _Place(Reader(reader), QueueId(topic, queue.broker_name, queue.queue_id))
                found.positions[place] = position
        for (group, named), rate in answer.rates.items():
            reader, topic = self._here(group), self._here(named)
            if reader is not None and topic is not None:
                found.get_rates[Reader(reader), topic, name] = rate

    def _here(self, name: str) -> str | None:
        """A name without the namespace; None for one of another namespace."""
        here = without_namespace(self._namespace, name)
        return here if self._namespace is None or here != name else None

    def _named(self, name: str) -> str:
        return with_namespace(self._namespace, name)

    # Queries

    async def _add_queries(self, found: _Found, queries: Sequence[QueryPosition]) -> None:
        places = {
            _Place(Reader(query.name, "query"), queue): offset
            for query in queries
            for queue, offset in query.offsets.items()
        }

        async def position(place: _Place) -> Position:
            queue, offset = place.queue, places[place]
            at_broker = MessageQueue(self._named(queue.topic), queue.broker_name, queue.queue_id)
            end = await found.ask(self._admin.max_offset(at_broker))
            since_ms = await found.ask(self._admin.store_time_ms(at_broker, offset)) if offset < end else None
            return Position(end, offset, since_ms)

        for place, answer in await _of_each(places, position):
            if isinstance(answer, ClientError):
                found.errors.append(answer)
                answer = Position(None, places[place])
            found.positions[place] = answer

    # Ages

    async def _add_ages(self, found: _Found) -> None:
        """The ages that hold, and those of the longest lags that are missing."""
        missing: dict[_Span, int] = {}
        for place, position in found.positions.items():
            if place.reader.kind != "group" or not position.lag:
                continue
            age = self._ages.get(place)
            if age and age.group_offset == position.group_offset and 0 <= found.now_ms - age.found_ms < _AGE_HOLDS_MS:
                found.positions[place] = position._replace(unread_since_ms=age.since_ms)
            elif place.queue.broker_name in found.addresses:
                span = _Span(place.reader, place.queue.topic, place.queue.broker_name)
                missing[span] = missing.get(span, 0) + position.lag
        wanted = sorted(missing, key=lambda span: (-missing[span], span))[: self._ages_a_look]

        async def ask(span: _Span) -> tuple[QueueTimeSpan, ...]:
            address = found.addresses[span.broker_name]
            return await found.ask(
                self._admin.time_spans(address, self._named(span.topic), self._named(span.reader.name))
            )

        ages = {place: age for place, age in self._ages.items() if place in found.positions}
        for span, answer in await _of_each(wanted, ask):
            if isinstance(answer, ClientError):
                if not _is_gone(answer):
                    found.errors.append(answer)
                continue
            for each in answer:
                queue_id = -1 if each.queue is None else each.queue.queue_id
                place = _Place(span.reader, QueueId(span.topic, span.broker_name, queue_id))
                known, since_ms = found.positions.get(place), unread_since_ms(each, found.now_ms)
                if known is not None and known.lag and since_ms is not None:
                    found.positions[place] = known._replace(unread_since_ms=since_ms)
                    ages[place] = _Age(known.group_offset or 0, since_ms, found.now_ms)
        self._ages = ages

    # Rates that brokers count

    async def _add_rates(self, found: _Found) -> None:
        """Messages a second of the last minute: how many came, by topic, and how many named groups have read.

        Where the user may not ask for them they stay unknown.
        """
        put = {(queue.topic, queue.broker_name): self._named(queue.topic) for _, queue in found.positions}
        get = {
            span: f"{self._named(span.topic)}@{self._named(span.reader.name)}"
            for span in found.spans
            if tuple(span) not in found.get_rates
        }

        async def ask(broker_name: str, name: str, key: str) -> float | None:
            """None where the broker has no sample yet."""
            stats = await found.ask(self._admin.broker_stats(found.addresses[broker_name], name, key))
            return None if stats is None or stats.minute is None else stats.minute.tps

        known = [place for place in sorted(put) if place[1] in found.addresses]
        for place, rate in await _of_each(known, lambda place: ask(place[1], _PUT_NUMS, put[place])):
            if isinstance(rate, ClientError):
                _note(found, rate)
            elif rate is not None:
                found.put_rates[place] = rate
        for span, rate in await _of_each(get, lambda span: ask(span.broker_name, _GET_NUMS, get[span])):
            if isinstance(rate, ClientError):
                _note(found, rate)
            elif rate is not None:
                found.get_rates[span.reader, span.topic, span.broker_name] = rate


def _note(found: _Found, error: ClientError) -> None:
    if not isinstance(error, AccessDeniedError):
        found.errors.append(error)


def _is_gone(error: ClientError) -> bool:
    """Whether the topic was deleted meanwhile."""
    is_refused = isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST
    return is_refused or isinstance(error, TopicRouteNotFoundError)


async def _of_each(wanted: Iterable[K], call: Callable[[K], Awaitable[T]]) -> list[tuple[K, T | ClientError]]:
    """The result or the error of each, in order."""

    async def one(key: K) -> tuple[K, T | ClientError]:
        try:
            return key, await call(key)
        except ClientError as error:
            return key, error

    return list(await asyncio.gather(*map(one, wanted)))


def unread_since_ms(span: QueueTimeSpan, now_ms: int) -> int | None:
    """When the group's next message was stored, by the broker's clock against ours. Pure.

    Where that message has expired it is when the queue's first one was. 0 as the delay: there is none meanwhile.
    """
    if 0 <= span.delay_ms < now_ms // 2:
        return now_ms - span.delay_ms
    return span.min_time_ms if span.min_time_ms > 0 else None  # the broker has subtracted −1, the time of no message


def _rows(group: str, stats: Iterable[ConsumeStats], stored: ConsumerOffsets | None) -> list[_Row]:
    """The group's queues. With `stored` an offset 0 that is not among these is unknown; one below 0 always is."""
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


def _read_rates(stats: Mapping[str, Sequence[ConsumeStats]]) -> dict[tuple[str, str], float]:
    """By group and topic; 317 has an entry a topic."""
    rates = {}
    for group, of_group in stats.items():
        for each in of_group:
            for topic in {queue.topic for queue in each.offset_table}:
                rates[group, topic] = each.consume_tps
    return rates


def _parse_offsets(text: bytes, address: str) -> ConsumerOffsets:
    try:
        return ConsumerOffsets.load(text.decode())
    except (StateFileError, UnicodeDecodeError) as error:
        what = request_text(RequestCode.GET_ALL_CONSUMER_OFFSET)
        raise MalformedResponseError(address, what, str(error)) from None
