"""A running cluster as the console shows it, by the requests of an operator. Nothing is written, and no group gets an offset."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from spark_mq.cli.cluster import connection_of, figures_at, first_number
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.places import FoundMessage, KeySearch
from spark_mq.client.admin import address_of_id
from spark_mq.client.errors import ClientError, ResponseError, TopicRouteNotFoundError
from spark_mq.client.event_loop import run
from spark_mq.client.message import MessageQueue, decode_records
from spark_mq.client.pulls import PullStatus
from spark_mq.client.routes import read_address
from spark_mq.client.settings import ClientSettings
from spark_mq.console.store_view import open_transactions
from spark_mq.console.views import (
    HALVES_LOOKED_AT,
    LONGEST_WAIT_S,
    OFFSETS_LOOKED_AT,
    PAGE_BYTES,
    VIEWS_AT_A_TIME,
    BrokerState,
    BusyError,
    DelayLevel,
    NotThereError,
    Page,
    Timers,
    Transactions,
)
from spark_mq.lag.figures import LagReport
from spark_mq.lag.of_cluster import ClusterLag
from spark_mq.remoting.administration import ConsumerConnection, TopicOffset
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledPart, slice_of
from storage import Message
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import decode_offset_message_id
from storage.names import MASTER_ID, same_address
from storage.queues.scan import QueueSlice
from storage.rules.half_messages import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE_ID, ended_halves
from storage.rules.response_codes import ResponseCode
from storage.transaction.half_queue import halves_of

_PULLED = 32
_PULLS_OF_TAGS = 64
_LEVELS = "scheduleMessageOffset_"
_TROUBLES = ("storeFailure", "followingTrouble")
_FIGURES = {
    "log begins at": "commitLogMinOffset",
    "log ends at": "commitLogMaxOffset",
    "bytes not dispatched yet": "dispatchBehindBytes",
    "not flushed yet": "remainHowManyDataToFlush",
    "sends that wait": "sendThreadPoolQueueSize",
    "the first of them for ms": "sendThreadPoolQueueHeadWaitTimeMills",
    "pulls that wait": "pullThreadPoolQueueSize",
    "messages today": "msgPutTotalTodayNow",
    "disk": "commitLogDirCapacity",
}
_TIMER = {
    "behind in its queue (messages)": "timerOffsetBehind",
    "behind in its queue (s)": "timerReadBehind",
    "crowded messages": "timerCongestNum",
    "in a second": "timerEnqueueTps",
    "out a second": "timerDequeueTps",
}


class ClusterViews:
    """The connections to a cluster; each request has a view of its own."""

    is_cluster = True

    def __init__(self, name: str, settings: ClientSettings, checkpoints: Sequence[str] = ()) -> None:
        """`name` is what pages call the cluster. Raises ClientError if no name server answers."""
        self.name = name
        self._settings = settings
        self._kept = LivePlace(settings)  # its connections stay while no request has a view
        try:
            self._kept.known_topics()  # so a wrong address is said before anything is served
        except BaseException:
            self._kept.close()
            raise
        self._lag = ClusterLag(settings, checkpoints=checkpoints)
        self._lag_lock = threading.Lock()
        self._room = threading.BoundedSemaphore(VIEWS_AT_A_TIME)

    @contextmanager
    def opened(self) -> Iterator[ClusterView]:
        if not self._room.acquire(timeout=LONGEST_WAIT_S):
            raise BusyError
        try:
            with closing(_Place(self._settings)) as place:
                yield ClusterView(place)
        finally:
            self._room.release()

    def lags(self) -> LagReport:
        with self._lag_lock:
            return self._lag.look()

    def close(self) -> None:
        self._lag.close()
        self._kept.close()


class _Place(LivePlace):
    """A place that goes on without a broker that does not answer: its queues are missing, and `troubles` has the reason.

    A command raises the first error instead. A topic of which no broker answers has no queues here.
    """

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.troubles: dict[str, ClientError] = {}
        """By broker name. Such a broker is not asked again by this place."""
        self.incomplete: set[str] = set()
        """The topics that miss queues."""

    def by_key(self, search: KeySearch) -> list[FoundMessage]:
        return [each._replace(message=self.shown(each.message)) for each in super().by_key(search)]

    def by_message_id(self, msg_id: str, topic: str | None) -> list[FoundMessage]:
        return [each._replace(message=self.shown(each.message)) for each in super().by_message_id(msg_id, topic)]

    def messages(self, queue: QueueId, start: int, end: int) -> Iterator[Message]:
        return map(self.shown, super().messages(queue, start, end))

    def shown(self, message: Message) -> Message:
        """With the topic's name as this place has it, so that links lead back to the message."""
        here = self.here(message.topic)
        return message if here == message.topic else replace(message, topic=here)

    async def _stats_of(self, topic: str) -> dict[QueueId, TopicOffset]:
        try:
            route = await self.admin.route(self.at_brokers(topic))
        except TopicRouteNotFoundError:
            return {}
        asked = [(name, read_address(found)) for name, found in sorted(route.brokers.items()) if found]
        answers = await asyncio.gather(*(self._stats_at(topic, *each) for each in asked))
        return {queue: offset for found in answers for queue, offset in found.items()}

    async def _stats_at(self, topic: str, name: str, address: str) -> dict[QueueId, TopicOffset]:
        try:
            if name in self.troubles:
                raise self.troubles[name]
            found = await self.admin.topic_stats(self.at_brokers(topic), address=address)
        except ClientError as error:
            if isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            self.troubles[name] = error
            self.incomplete.add(topic)
            return {}
        return {QueueId(topic, queue.broker_name, queue.queue_id): each for queue, each in sorted(found.items())}


class ClusterView:
    """The view of a cluster."""

    def __init__(self, place: _Place) -> None:
        self.place = place

    @property
    def troubles(self) -> Mapping[str, ClientError]:
        return self.place.troubles

    @property
    def incomplete(self) -> Collection[str]:
        return self.place.incomplete

    def brokers(self) -> list[BrokerState]:
        known = self._addresses()
        found = together([partial(figures_at, self.place.admin, address) for *_, address in known])
        return [_state(*who, answer) for who, answer in zip(known, found, strict=True)]

    def _addresses(self) -> list[tuple[str | None, str, int, str]]:
        """Cluster, broker name, broker id and address of each broker."""
        table = run(self.place.admin.cluster_info()).broker_address_table
        return [
            (data.cluster, name, broker_id, address)
            for name, data in sorted(table.items())
            for broker_id, address in sorted(data.broker_addresses.items())
        ]

    def newest_ms(self, queue: QueueId) -> int | None:
        return self.place.newest_ms(queue)

    def page(self, queue: QueueId, start: int, count: int) -> Page:
        minimum, maximum = self._bounds(queue)
        start = min(max(start, minimum), maximum)
        end = min(start + count, maximum)
        found: list[Message | Unreadable] = []
        room = PAGE_BYTES
        for message in self.place.messages(queue, start, end):
            found.append(message)
            room -= message.size_bytes
            if room <= 0:
                end = message.queue_offset + 1
                break
        return Page(found, start, end)

    def tagged(self, queue: QueueId, start: int, count: int, tags: str) -> Page:
        minimum, maximum = self._bounds(queue)
        start = at = min(max(start, minimum), maximum)
        wanted = {tag.strip() for tag in tags.split("||")}
        takes_all = tags.strip() == "*"
        room = PAGE_BYTES
        found: list[Message | Unreadable] = []
        for _ in range(_PULLS_OF_TAGS):
            if at >= maximum or at - start >= OFFSETS_LOOKED_AT or len(found) >= count or room <= 0:
                break
            result = run(self.place.pulled(queue, at, min(_PULLED, count - len(found)), tags))
            if result.status is PullStatus.FOUND:  # a broker compares hashes
                got = [
                    self.place.shown(each)
                    for each in decode_records(result.records)
                    if takes_all or each.tags in wanted
                ]
                found += got
                room -= sum(each.size_bytes for each in got)
            if result.next_offset <= at:
                break
            at = result.next_offset
        return Page(found, start, at)

    def _bounds(self, queue: QueueId) -> tuple[int, int]:
        if queue not in self.place.queues(queue.topic):
            raise self.troubles.get(queue.broker_name) or NotThereError(
                f"there is no queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker_name}"
            )
        return self.place.bounds(queue)

    def by_message_id(self, msg_id: str) -> list[FoundMessage]:
        """Asks only a broker of this cluster: the id names an address, and anybody may have written it."""
        host, port, _ = decode_offset_message_id(msg_id)
        address = address_of_id(host, port)
        if not any(same_address(address, known) for *_, known in self._addresses()):
            raise NotThereError(f"the id names the broker {address}, and the cluster has none of that address")
        return self.place.by_message_id(msg_id, None)

    def here(self, topic: str) -> str:
        return self.place.here(topic)

    def log_place(self, found: FoundMessage) -> None:
        return None

    def members(self, group: str) -> ConsumerConnection | None:
        return run(connection_of(self.place, group))

    def transactions(self) -> list[Transactions]:
        names = sorted({name for _, name, broker_id, _ in self._addresses() if broker_id == MASTER_ID})
        found = []
        for name in names:
            try:
                found.append(self._transactions(name))
            except ClientError as error:
                self.place.troubles[name] = error
        return found

    def _transactions(self, name: str) -> Transactions:
        admin = self.place.admin
        queues = [MessageQueue(topic, name, QUEUE_ID) for topic in (HALF_TOPIC, OP_TOPIC)]
        run(admin.route(HALF_TOPIC))
        starts = [run(admin.group_offset(GROUP, queue)) for queue in queues]
        bounds = [(run(admin.min_offset(queue)), run(admin.max_offset(queue))) for queue in queues]
        (half_start, half_end), (op_start, op_end) = (
            (minimum if start is None else min(max(start, minimum), maximum), maximum)
            for start, (minimum, maximum) in zip(starts, bounds, strict=True)
        )
        stop = min(half_end, half_start + HALVES_LOOKED_AT)
        halves = self._slice(HALF_TOPIC, name, half_start, stop)
        op_stop = min(op_end, op_start + HALVES_LOOKED_AT)
        ended = ended_halves(*self._slice(OP_TOPIC, name, op_start, op_stop)).half_offsets
        return open_transactions(name, halves_of(*halves), ended, half_end - stop + op_end - op_stop)

    def _slice(self, topic: str, name: str, start: int, end: int) -> QueueSlice:
        """Records of queue 0 of a transaction topic."""
        queue, parts = QueueId(topic, name, QUEUE_ID), []
        while start < end:
            result = run(self.place.pulled(queue, start, _PULLED))
            if result.next_offset <= start:
                break
            stop = min(result.next_offset, end)
            if result.status is PullStatus.FOUND:
                parts.append(PulledPart(start, stop, result.records))
            start = stop
        return slice_of(parts, topic.encode(), QUEUE_ID)

    def timers(self) -> list[Timers]:
        masters = [(name, address) for _, name, broker_id, address in self._addresses() if broker_id == MASTER_ID]
        found = together([partial(figures_at, self.place.admin, address) for _, address in masters])
        shown = []
        for (name, _), figures in zip(masters, found, strict=True):
            try:
                if isinstance(figures, ClientError):
                    raise figures
                shown.append(self._timers(name, figures))
            except ClientError as error:
                self.place.troubles[name] = error
        return shown

    def _timers(self, name: str, figures: Mapping[str, str]) -> Timers:
        levels = []
        for figure, text in figures.items():
            level, (first, _, last) = figure.removeprefix(_LEVELS), text.partition(",")
            if not figure.startswith(_LEVELS) or not all(each.isdecimal() for each in (level, first, last)):
                continue
            offset, end = int(first), int(last)
            if offset < end:
                levels.append(DelayLevel(int(level), end - offset, None, self._stored_ms(name, int(level), offset)))
        timer = {shown: figures.get(figure) for shown, figure in _TIMER.items()}
        return Timers(name, sorted(levels), timer if any(timer.values()) else {}, [])

    def _stored_ms(self, name: str, level: int, offset: int) -> int | None:
        """When the first message that waits at a level was stored."""
        result = run(self.place.pulled(QueueId(SCHEDULE_TOPIC, name, level - 1), offset, 1))
        found = decode_records(result.records) if result.status is PullStatus.FOUND else []
        return found[0].store_time_ms if found else None

    def sinks(self) -> None:
        return None


def _state(
    cluster: str | None, name: str, broker_id: int, address: str, found: Mapping[str, str] | ClientError
) -> BrokerState:
    role = "master" if broker_id == MASTER_ID else "slave"
    if isinstance(found, ClientError):
        return BrokerState(cluster, name, broker_id, role, address, None, {}, f"no answer: {found.describe()}")
    figures: dict[str, str | int | float | None] = {
        "in a second": first_number(found.get("putTps", "")),
        "out a second": first_number(found.get("getTransferredTps", "")),
    }
    figures |= {shown: _figure(found.get(figure)) for shown, figure in _FIGURES.items()}
    trouble = next((f"{name}: {found[name]}" for name in _TROUBLES if name in found), None)
    return BrokerState(cluster, name, broker_id, role, address, found.get("brokerVersionDesc"), figures, trouble)


def _figure(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else text
