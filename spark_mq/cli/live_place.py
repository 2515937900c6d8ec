"""A running cluster, as commands read it: through the requests of an operator (`spark_mq/client/admin.py`).

Nothing is written: pulls store no offset, and their group is the one that Apache's tools have, which every broker knows.
Two kinds of questions go to several brokers. Those that a part of the answers would make wrong (`topic_entries`, `queues`) raise the
first error. The others (`known_entries`, `by_key`) give what the brokers have that answer, and note why others do not in `troubles`. A
broker that does not answer is asked once; one that refuses a request, or whose answer cannot be read, may answer the next.
Not supported: logical queues of static topics, for which a warning says what is shown instead; queues of batches.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from spark_mq.cli.message_lines import Unreadable, message_line
from spark_mq.cli.places import FoundMessage, FoundOffset, KeySearch, topic_entry
from spark_mq.client.admin import AsyncAdmin, all_of
from spark_mq.client.errors import (
    AccessDeniedError,
    ClientError,
    MalformedResponseError,
    ResponseError,
    TopicRouteNotFoundError,
    TornAnswerError,
)
from spark_mq.client.event_loop import run, spawn
from spark_mq.client.message import MessageQueue, decode_records
from spark_mq.client.pulls import PullResult, PullStatus
from spark_mq.client.routes import TopicRoute, read_address
from spark_mq.client.settings import ClientSettings, with_namespace, without_namespace
from spark_mq.lag.figures import LagLooks
from spark_mq.lag.of_cluster import ClusterLag
from spark_mq.remoting.administration import TopicOffset
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledRecordError
from storage import Message
from storage.errors import CorruptRecordError
from storage.format.record import decode_offset_message_id
from storage.names import is_system_topic
from storage.rules.response_codes import ResponseCode

_AT_A_TIME = 32
"""Requests in flight; a broker refuses more than it has room for."""
_NOT_FOUND = "can not find message"
_ANSWERS = (ResponseError, MalformedResponseError)
"""Errors of a broker that does answer: it may answer the next request."""

T = TypeVar("T")


class LivePlace:
    """The place whose data brokers give. Topics and groups are named without the namespace, and others are not shown."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._namespace = settings.namespace
        self.admin = AsyncAdmin(settings)
        self.troubles: dict[str, ClientError] = {}
        """By broker name: why what it has is missing."""
        self._stats: dict[str, dict[QueueId, TopicOffset]] = {}
        """Offsets of topics that were read since the last refresh, by their names here."""
        self._told_static: set[str] = set()
        self._clusters: Mapping[str, Sequence[str]] | None = None

    def refresh(self) -> None:
        self._stats.clear()

    def close(self) -> None:
        run(self.admin.close())

    # What a broker says, or why it does not

    async def asked(self, broker_name: str, call: Callable[[], Awaitable[T]]) -> T | None:
        """The broker's answer; None where there is none, and then `troubles` says why."""
        known = self.troubles.get(broker_name)
        if known is not None and not isinstance(known, _ANSWERS):
            return None
        try:
            return await self.answered(broker_name, call)
        except ClientError as error:
            self.troubles[broker_name] = error
            return None

    async def answered(self, broker_name: str, call: Callable[[], Awaitable[T]]) -> T:
        """The broker's answer. Raises ClientError, also where the records of an answer are cut."""
        try:
            return await call()
        except PulledRecordError as error:
            raise error.at(f"broker {broker_name}") from None
        except CorruptRecordError as error:
            raise TornAnswerError(f"broker {broker_name}", "a request for messages", error.describe()) from None

    def from_each(self, brokers: Sequence[tuple[str, str]], call: Callable[[str], Awaitable[T]]) -> list[tuple[str, T]]:
        """What the call of each address gives, with the broker's name; nothing of those that give nothing."""
        found = together([partial(self.asked, name, partial(call, address)) for name, address in brokers])
        return [(name, each) for (name, _), each in zip(brokers, found, strict=True) if each is not None]

    async def brokers_of(self, topic: str, *, refresh: bool = False) -> list[tuple[str, str]]:
        """Name and an address of each broker of a topic, by its name there; none of one without a route."""
        try:
            route = await self.admin.instance.route(topic, refresh=refresh)
        except TopicRouteNotFoundError:
            return []
        return [(name, read_address(found)) for name, found in sorted(route.brokers.items()) if found]

    # Names

    def known_topics(self) -> list[str]:
        return self._shown(run(self.admin.topics()))

    def is_system_topic(self, topic: str) -> bool:
        """Brokers and clusters have topics of their own names."""
        if self._clusters is None:
            self._clusters = run(self.admin.cluster_info()).cluster_address_table
        return is_system_topic(topic) or any(
            is_system_topic(topic, broker_name=broker, cluster_name=cluster)
            for cluster, brokers in self._clusters.items()
            for broker in brokers
        )

    def at_brokers(self, name: str) -> str:
        """A topic or group by its name at the brokers."""
        return with_namespace(self._namespace, name)

    def here(self, name: str) -> str:
        """A topic or group as this place shows it."""
        return without_namespace(self._namespace, name)

    def _shown(self, names: Iterable[str]) -> list[str]:
        """Those of the namespace, if there is one, without it."""
        shown = ((self.here(name), name) for name in names)
        return sorted(here for here, name in shown if self._namespace is None or here != name)

    # Topics and queues

    def topic_entries(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Of all topics, or of one, for which the brokers of no other are asked."""
        topics = self.known_topics() if topic is None else [topic]
        self._look_at(topics)
        return self._entries(topics, {})

    def known_entries(self, topic: str | None = None) -> list[dict[str, Any]]:
        topics = self.known_topics() if topic is None else [topic]
        answers = together([partial(self.known_stats_of, each) for each in topics])
        self._stats.update((name, found) for name, (found, _) in zip(topics, answers, strict=True))
        for error in self.troubles.values():
            if isinstance(error, AccessDeniedError):  # a broker that answers: the user is wrong
                raise error
        return self._entries(topics, {name: missing for name, (_, missing) in zip(topics, answers, strict=True)})

    def _entries(self, topics: Sequence[str], missing: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
        """Those of brokers that have answered; `missing` names the others by topic."""
        entries = []
        for topic in topics:
            route = self._known_route(topic)
            for queues in () if route is None else sorted(route.data.queue_datas, key=lambda each: each.broker_name):
                bounds = {
                    queue.queue_id: (found.min_offset, found.max_offset)
                    for queue, found in self._stats[topic].items()
                    if queue.broker_name == queues.broker_name
                }
                if queues.broker_name in missing.get(topic, ()):
                    continue
                settings = queues.read_queue_count, queues.write_queue_count, queues.perm
                entries.append(topic_entry(topic, queues.broker_name, settings, bounds))
        return entries

    def queues(self, topic: str | None) -> list[QueueId]:
        topics = self.known_topics() if topic is None else [topic]
        self._look_at(topics)
        return sorted(queue for name in topics for queue in self._stats[name])

    def queue_count(self, topic: str) -> int:
        route = run(self.admin.instance.route(self.at_brokers(topic)))
        counts = (max(each.read_queue_count, each.write_queue_count) for each in route.data.queue_datas)
        return max(counts, default=0)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        self._look_at([queue.topic])
        found = self._stats[queue.topic].get(queue)
        return (0, 0) if found is None else (found.min_offset, found.max_offset)

    def newest_ms(self, queue: QueueId) -> int | None:
        """When the queue's newest message was stored; None if it has none."""
        self._look_at([queue.topic])
        found = self._stats[queue.topic].get(queue)
        return found.last_update_time_ms if found is not None and found.last_update_time_ms > 0 else None

    def _look_at(self, topics: Iterable[str]) -> None:
        """Ask for the queues of those that were not looked at. A topic that has gone meanwhile has none."""
        unseen = [topic for topic in topics if topic not in self._stats]
        found = together([partial(self._stats_of, topic) for topic in unseen])
        self._stats.update(zip(unseen, found, strict=True))
        for topic in unseen:
            self._tell_static(topic)

    def _tell_static(self, topic: str) -> None:
        """Warn, once for each static topic, that its logical queues are not what is shown."""
        route = self._known_route(topic)
        if route is not None and route.leaders and topic not in self._told_static:
            self._told_static.add(topic)
            shown = "what is shown are the physical queues of its brokers, with their own offsets"
            text = f"topic {topic} is static: {shown}; positions and lags of groups, which count logical queues, may be wrong"
            warnings.warn(text, UserWarning, stacklevel=2)

    async def _stats_of(self, topic: str) -> dict[QueueId, TopicOffset]:
        """The topic's queues. Raises the first broker's error."""
        brokers = await self.brokers_of(self.at_brokers(topic), refresh=True)
        answers = await all_of(self._stats_at(topic, address) for _, address in brokers)
        return {queue: offsets for each in answers for queue, offsets in each.items()}

    async def known_stats_of(self, topic: str) -> tuple[dict[QueueId, TopicOffset], set[str]]:
        """The topic's queues at the brokers that answer, and the names of those that do not."""
        brokers = await self.brokers_of(self.at_brokers(topic), refresh=True)
        calls = [self.asked(name, partial(self._stats_at, topic, address)) for name, address in brokers]
        answers = dict(zip((name for name, _ in brokers), await asyncio.gather(*calls), strict=True))
        found = {queue: offsets for each in answers.values() for queue, offsets in (each or {}).items()}
        return found, {name for name, each in answers.items() if each is None}

    async def _stats_at(self, topic: str, address: str) -> dict[QueueId, TopicOffset]:
        """The topic's queues at a broker; none where it has not the topic."""
        try:
            found = await self.admin.topic_stats(self.at_brokers(topic), address=address)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return {}
        return {QueueId(topic, queue.broker_name, queue.queue_id): each for queue, each in sorted(found.items())}

    def _known_route(self, topic: str) -> TopicRoute | None:
        return self.admin.instance.known_route(self.at_brokers(topic))

    # Messages

    def size_between(self, queue: QueueId, start: int, end: int) -> int | None:
        return 0 if start >= end else None

    def lines(self, queue: QueueId, start: int, end: int, *, bodies: bool) -> Iterator[dict[str, Any] | Unreadable]:
        for message in self.messages(queue, start, end):
            yield self.describe(FoundMessage(queue.broker_name, message), bodies=bodies)

    def describe(self, found: FoundMessage, *, bodies: bool) -> dict[str, Any]:
        line = message_line(found.message, broker_name=found.broker_name, body=bodies)
        return line | {"topic": self.here(found.message.topic)}

    def messages(self, queue: QueueId, start: int, end: int) -> Iterator[Message]:
        """The messages at the offsets [start, end) that are there. While some are taken, the next ones are on their way."""
        offset = max(start, self.bounds(queue)[0])
        pulling = self._pull(queue, offset) if offset < end else None
        while pulling is not None:
            result = pulling.result()
            found = decode_records(result.records) if result.status is PullStatus.FOUND else []
            goes_on = offset < result.next_offset < end and result.status is not PullStatus.NO_NEW_MESSAGE
            offset = result.next_offset
            pulling = self._pull(queue, offset) if goes_on else None
            yield from (message for message in found if start <= message.queue_offset < end)

    def _pull(self, queue: QueueId, offset: int, limit: int = 32) -> Future[PullResult]:
        return spawn(self.pulled(queue, offset, limit))

    async def pulled(self, queue: QueueId, offset: int, limit: int, tags: str = "*") -> PullResult:
        """One pull that does not wait; `tags` is "TagA || TagB"."""
        place = MessageQueue(self.at_brokers(queue.topic), queue.broker_name, queue.queue_id)
        return await self.admin.peek(place, offset, limit, tags)

    def by_key(self, search: KeySearch) -> list[FoundMessage]:
        brokers = run(self.brokers_of(self.at_brokers(search.topic)))
        found = [
            FoundMessage(name, message)
            for name, messages in self.from_each(brokers, partial(self._found_by_key, search))
            for message in messages
        ]
        return sorted(found, key=lambda each: each.message.store_time_ms)

    async def _found_by_key(self, search: KeySearch, address: str) -> list[Message]:
        """What the broker of that address finds."""
        topic, begin_ms = self.at_brokers(search.topic), search.begin_ms
        if search.is_unique:
            call = self.admin.query_by_unique_key(topic, search.key, begin_ms=begin_ms, address=address)
        else:
            call = self.admin.query_by_key(
                topic, search.key, limit=search.limit, begin_ms=begin_ms, end_ms=search.end_ms, address=address
            )
        return [each.record for each in (await call).messages if begin_ms <= each.store_time_ms <= search.end_ms]

    def by_message_id(self, msg_id: str, topic: str | None) -> list[FoundMessage]:
        decode_offset_message_id(msg_id)
        run(self.admin.cluster_info())  # so an error names a missing name server first, not the broker of the id
        try:
            found = run(self.admin.view_message(msg_id, None if topic is None else self.at_brokers(topic)))
        except MalformedResponseError:  # no message begins there
            return []
        except ResponseError as error:
            if _NOT_FOUND not in (error.remark or ""):
                raise
            return []
        return [FoundMessage(found.broker_name, found.record)] if found.record.msg_id == msg_id.upper() else []

    def offsets_by_time(self, topic: str, time_ms: int, *, upper: bool, with_times: bool = True) -> list[FoundOffset]:
        queues = self.queues(topic)
        return together(
            [partial(self.offset_by_time, queue, time_ms, upper=upper, with_time=with_times) for queue in queues]
        )

    async def offset_by_time(self, queue: QueueId, time_ms: int, *, upper: bool, with_time: bool) -> FoundOffset:
        """One of `offsets_by_time`."""
        place = MessageQueue(self.at_brokers(queue.topic), queue.broker_name, queue.queue_id)
        offset = await self.admin.search_offset(place, time_ms, upper=upper)
        if not with_time:
            return FoundOffset(queue, offset, None)
        result = await self.pulled(queue, offset, 1)
        found = decode_records(result.records) if result.status is PullStatus.FOUND else []
        times = [message.store_time_ms for message in found if message.queue_offset == offset]
        return FoundOffset(queue, offset, times[0] if times else None)

    # Groups

    def groups(self) -> list[str]:
        return self._shown(run(self.admin.groups()))

    def lag_looks(
        self, checkpoints: Sequence[str] = (), *, brokers: Collection[str] = (), with_bytes: bool = False
    ) -> LagLooks:
        """Brokers tell no bytes."""
        return ClusterLag(self.settings, checkpoints=checkpoints, brokers=brokers)


def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of calls on the client's loop, so many at a time. Raises the first error; the other calls are given up."""
    return run(_gathered(calls))


async def _gathered(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    room = asyncio.Semaphore(_AT_A_TIME)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
