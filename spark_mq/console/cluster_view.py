"""A running cluster as the console shows it, by the requests of an operator. Nothing is written, and no group gets an offset."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from spark_mq.cli.cluster import figures_at, first_number, role_of
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.message_lines import Unreadable
from spark_mq.cli.places import FoundMessage
from spark_mq.client.admin import address_of_id
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.message import MessageQueue, decode_records
from spark_mq.client.pulls import PullStatus
from spark_mq.client.settings import ClientSettings
from spark_mq.console.cluster_place import ClusterPlace
from spark_mq.console.store_view import open_transactions
from spark_mq.console.views import (
    HALVES_LOOKED_AT,
    LONGEST_WAIT_S,
    OFFSETS_LOOKED_AT,
    PAGE_BYTES,
    PAGE_WAIT_S,
    VIEWS_AT_A_TIME,
    BrokerState,
    BusyError,
    DelayLevel,
    MissingError,
    NotThereError,
    Page,
    Timers,
    Transactions,
    raise_missing,
)
from spark_mq.lag.figures import LagReport
from spark_mq.lag.of_cluster import ClusterLag
from spark_mq.remoting.administration import ConsumerConnection
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledPart, slice_of
from spark_mq.terminal import why_missing
from storage import Message
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import decode_offset_message_id
from storage.names import MASTER_ID, same_address
from storage.queues.scan import QueueSlice
from storage.rules.half_messages import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE_ID, ended_halves
from storage.transaction.half_queue import halves_of

T = TypeVar("T")

_PULLED = 32
_PULLS = 64
"""For one part of a queue: a broker looks at a bounded number of entries for tags, and gives one large message at a time."""
_LEVELS = "scheduleMessageOffset_"
_TROUBLES = ("storeFailure", "followingTrouble")
_FIGURES = {
    "log begins at": "commitLogMinOffset",
    "log ends at": "commitLogMaxOffset",
    "bytes not dispatched yet": "dispatchBehindBytes",
    "not flushed yet": "remainHowManyDataToFlush",
    "sends that wait": "sendThreadPoolQueueSize",
    "longest of these waits, ms": "sendThreadPoolQueueHeadWaitTimeMills",
    "pulls that wait": "pullThreadPoolQueueSize",
    "messages today": "msgPutTotalTodayNow",
    "disk": "commitLogDirCapacity",
}
_DISK = re.compile(r"Total : (?P<total>[^,]+), Free : (?P<free>.+)\.")
"""Java: BrokerRuntimeInfo's `commitLogDirCapacity`."""
_TIMER = {
    "behind in its queue (messages)": "timerOffsetBehind",
    "behind in its queue (s)": "timerReadBehind",
    "crowded messages": "timerCongestNum",
    "messages in/s": "timerEnqueueTps",
    "messages out/s": "timerDequeueTps",
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
    def opened(self, wait_s: float | None = PAGE_WAIT_S) -> Iterator[ClusterView]:
        if not self._room.acquire(timeout=LONGEST_WAIT_S):
            raise BusyError
        try:
            with closing(ClusterPlace(self._settings, wait_s)) as place:
                yield ClusterView(place)
        finally:
            self._room.release()

    def lags(self) -> LagReport:
        with self._lag_lock:
            return self._lag.look()

    def close(self) -> None:
        self._lag.close()
        self._kept.close()


@dataclass(slots=True)
class _Walk:
    """Where a look through a queue is, what it has found, and how many bytes more it may find."""

    at: int
    found: list[Message | Unreadable] = field(default_factory=list)
    room: int = PAGE_BYTES


class ClusterView:
    """The view of a cluster."""

    def __init__(self, place: ClusterPlace) -> None:
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
        return self._page(queue, start, count, count, "*")

    def tagged(self, queue: QueueId, start: int, count: int, tags: str, offsets: int = OFFSETS_LOOKED_AT) -> Page:
        return self._page(queue, start, offsets, count, tags)

    def _page(self, queue: QueueId, start: int, most_offsets: int, count: int, tags: str) -> Page:
        minimum, maximum = self._bounds(queue)
        start = min(max(start, minimum), maximum)
        walk = _Walk(start)
        end = min(start + most_offsets, maximum)
        run(self.place.asked(queue.broker_name, partial(self._walk, walk, queue, end, count, tags)))
        return Page(walk.found, start, walk.at)

    async def _walk(self, walk: _Walk, queue: QueueId, end: int, count: int, tags: str) -> None:
        """Pull on, up to an offset or to so many messages. What was found stays where a later pull fails."""
        wanted = None if tags.strip() == "*" else {tag.strip() for tag in tags.split("||")}
        for _ in range(_PULLS):
            if walk.at >= end or len(walk.found) >= count or walk.room <= 0:
                return
            result = await self.place.pulled(queue, walk.at, min(_PULLED, count - len(walk.found)), tags)
            stop = min(result.next_offset, end)
            found = decode_records(result.records) if result.status is PullStatus.FOUND else []
            for message in found:
                if not walk.at <= message.queue_offset < end or walk.room <= 0:
                    continue
                if wanted is None or message.tags in wanted:  # a broker compares hashes
                    walk.found.append(self.place.shown(message))
                    walk.room -= message.size_bytes
                    stop = message.queue_offset + 1 if walk.room <= 0 else stop
            if stop <= walk.at:
                return
            walk.at = stop

    def _bounds(self, queue: QueueId) -> tuple[int, int]:
        if queue not in self.place.queues(queue.topic):
            raise_missing(self, queue.broker_name)
            raise NotThereError(
                f"there is no queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker_name}"
            )
        return self.place.bounds(queue)

    def by_message_id(self, msg_id: str) -> list[FoundMessage]:
        """Asks only a broker of this cluster: the id names an address, and anybody may have written it."""
        host, port, _ = decode_offset_message_id(msg_id)
        address = address_of_id(host, port)
        name = next((name for _, name, _, known in self._addresses() if same_address(address, known)), None)
        if name is None:
            raise NotThereError(f"the id names the broker {address}, and the cluster has none of that address")
        try:
            return self.place.by_message_id(msg_id, None)
        except ClientError as error:
            raise MissingError(name, error) from error

    def here(self, topic: str) -> str:
        return self.place.here(topic)

    def log_place(self, found: FoundMessage) -> None:
        return None

    def members(self, group: str) -> ConsumerConnection | None:
        return self.place.members(group)

    def transactions(self) -> list[Transactions]:
        return self._of_masters(lambda name, _: self._transactions(name))

    async def _transactions(self, name: str) -> Transactions:
        admin = self.place.admin
        queues = [MessageQueue(topic, name, QUEUE_ID) for topic in (HALF_TOPIC, OP_TOPIC)]
        await admin.route(HALF_TOPIC)
        starts = [await admin.group_offset(GROUP, queue) for queue in queues]
        bounds = [(await admin.min_offset(queue), await admin.max_offset(queue)) for queue in queues]
        (half_start, half_end), (op_start, op_end) = (
            (minimum if start is None else min(max(start, minimum), maximum), maximum)
            for start, (minimum, maximum) in zip(starts, bounds, strict=True)
        )
        stop = min(half_end, half_start + HALVES_LOOKED_AT)
        halves = await self._slice(HALF_TOPIC, name, half_start, stop)
        op_stop = min(op_end, op_start + HALVES_LOOKED_AT)
        ended = ended_halves(*await self._slice(OP_TOPIC, name, op_start, op_stop)).half_offsets
        return open_transactions(name, halves_of(*halves), ended, half_end - stop + op_end - op_stop)

    async def _slice(self, topic: str, name: str, start: int, end: int) -> QueueSlice:
        """Records of queue 0 of a transaction topic."""
        queue, parts = QueueId(topic, name, QUEUE_ID), []
        while start < end:
            result = await self.place.pulled(queue, start, _PULLED)
            if result.next_offset <= start:
                break
            stop = min(result.next_offset, end)
            if result.status is PullStatus.FOUND:
                parts.append(PulledPart(start, stop, result.records))
            start = stop
        return slice_of(parts, topic.encode(), QUEUE_ID)

    def timers(self) -> list[Timers]:
        return self._of_masters(self._timers)

    def _of_masters(self, call: Callable[[str, str], Awaitable[T]]) -> list[T]:
        """What the call gives of the name and address of each master that answers."""
        masters = [(name, address) for _, name, broker_id, address in self._addresses() if broker_id == MASTER_ID]
        found = together([partial(self.place.asked, name, partial(call, name, address)) for name, address in masters])
        return [each for each in found if each is not None]

    async def _timers(self, name: str, address: str) -> Timers:
        figures = await self.place.admin.runtime_info(address)
        levels = []
        for figure, text in figures.items():
            level, (first, _, last) = figure.removeprefix(_LEVELS), text.partition(",")
            if not figure.startswith(_LEVELS) or not all(each.isdecimal() for each in (level, first, last)):
                continue
            offset, end = int(first), int(last)
            if offset < end:
                since_ms = await self._stored_ms(name, int(level), offset)
                levels.append(DelayLevel(int(level), end - offset, None, since_ms))
        timer = {shown: figures.get(figure) for shown, figure in _TIMER.items()}
        return Timers(name, sorted(levels), timer if any(timer.values()) else {}, [])

    async def _stored_ms(self, name: str, level: int, offset: int) -> int | None:
        """When the first message that waits at a level was stored."""
        result = await self.place.pulled(QueueId(SCHEDULE_TOPIC, name, level - 1), offset, 1)
        found = decode_records(result.records) if result.status is PullStatus.FOUND else []
        return found[0].store_time_ms if found else None

    def sinks(self) -> None:
        return None


def _state(
    cluster: str | None, name: str, broker_id: int, address: str, found: Mapping[str, str] | ClientError
) -> BrokerState:
    role = role_of(broker_id)
    if isinstance(found, ClientError):
        return BrokerState(cluster, name, broker_id, role, address, None, {}, why_missing(found))
    figures: dict[str, str | int | float | None] = {
        "messages in/s": first_number(found.get("putTps", "")),
        "messages out/s": first_number(found.get("getTransferredTps", "")),
    }
    figures |= {shown: _figure(found.get(figure)) for shown, figure in _FIGURES.items()}
    trouble = next((f"{name}: {found[name]}" for name in _TROUBLES if name in found), None)
    return BrokerState(cluster, name, broker_id, role, address, found.get("brokerVersionDesc"), figures, trouble)


def _figure(text: str | None) -> str | int | None:
    if text is not None and (disk := _DISK.fullmatch(text)):
        return f"{disk['free']} free of {disk['total']}"
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else text
