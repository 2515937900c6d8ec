"""The gauges of a broker's page of metrics. They are computed only when the page is read.

Lag is that of Apache's broker: for each group that is online, and each topic that it subscribes to, over this broker's queues. A queue
without an offset of the group counts as consumed to its end. Of a subscription by tags only messages with these tags count: of the
first 20,000 that are unread it counts them, and takes the rest to be alike.
Java: BrokerMetricsManager, ConsumerLagCalculator, DefaultStoreMetricsManager. Not supported: useStaticSubscription, groups that pop.
Departure: where something cannot be read, its series are left out; the page (`spark_mq_broker_gauges_missing`) and the log say so, and
the rest is shown.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from spark_mq.broker.broker_metrics import BrokerMetrics, version_text
from spark_mq.broker.broker_store import BrokerStore, ServerFacts
from spark_mq.broker.client_tables import Clients, KnownClient
from spark_mq.broker.consumer_filters import is_tag_type, message_filter
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.request_table import Pool
from spark_mq.prometheus import rocketmq as names
from spark_mq.prometheus.metric import Family, family
from spark_mq.prometheus.queries import GAUGES_MISSING
from spark_mq.remoting.consumers import ConsumeType, SubscriptionData
from storage.errors import StorageError, StoreNotWritableError
from storage.files.local_file_system import disk_room_bytes
from storage.format.delay import CHECKPOINT
from storage.names import RETRY_PREFIX
from storage.rules.delays import TIMER_TOPIC
from storage.service.served_store import ALL_MESSAGES, MessageFilter
from storage.tables.topics import PERM_READ, PERM_WRITE

ENTRIES_MOST = 20_000
"""Entries of a queue that are looked at for tags. Java: maxConsumeQueueScan."""
_TIMES_TOGETHER = 1_000
_POOLS: Mapping[str, Pool | None] = {
    "send": Pool.SEND,
    "async_put": None,
    "pull": Pool.PULL,
    "ack": None,
    "query_message": Pool.QUERY,
    "client_manager": Pool.CLIENT_MANAGE,
    "heartbeat": Pool.HEARTBEAT,
    "lite_pull": Pool.LITE_PULL,
    "transaction": Pool.END_TRANSACTION,
    "consumer_manager": Pool.CONSUMER_MANAGE,
    "admin": Pool.ADMIN,
    "reply": Pool.REPLY,
}
"""By Java's names of processors; None: it has none here, and nothing waits."""
_MODES = {ConsumeType.CONSUME_ACTIVELY: "pull", ConsumeType.CONSUME_PASSIVELY: "push"}
_LOG = logging.getLogger(__name__)


class _QueueOf(NamedTuple):
    """A queue as a group sees it; −1 = no offset."""

    group: str
    topic: str
    queue_id: int
    wanted: MessageFilter
    consumed: int
    pulled: int


class _Behind(NamedTuple):
    """How far a group is behind in a topic; a time of 0 = no message waits, or it is gone."""

    lag: int = 0
    consumed_ms: int = 0
    in_flight: int = 0
    pulled_ms: int = 0
    ready: int = 0

    def with_queue(self, other: _Behind) -> _Behind:
        """With one queue more: the oldest times count."""
        return _Behind(
            self.lag + other.lag,
            _oldest(self.consumed_ms, other.consumed_ms),
            self.in_flight + other.in_flight,
            _oldest(self.pulled_ms, other.pulled_ms),
            self.ready + other.ready,
        )


_Part = Callable[[int], Iterator[Family]]
"""Makes some gauges of a moment, in ms. It may raise an ExceptionGroup of the errors of single values behind the others."""


class BrokerGauges:
    """One broker's gauges. Thread-safe."""

    def __init__(
        self,
        store: BrokerStore,
        clients: Clients,
        offsets: GroupOffsets,
        server: ServerFacts,
        metrics: BrokerMetrics,
        half_messages: Callable[[], Mapping[str, int]],
    ) -> None:
        """`half_messages` says how many halves of each topic have no end."""
        self._store = store
        self._clients = clients
        self._offsets = offsets
        self._server = server
        self._metrics = metrics
        self._half_messages = half_messages
        self._logged: dict[str, str] = {}
        """What the log says of the parts that lack something now."""
        self._has_ended = False

    def end(self) -> None:
        """Look at no further queue: the store closes."""
        self._has_ended = True

    def families(self, now_ms: int) -> Iterator[Family]:
        """The gauges of this moment, what they lack, then the counters. No error of one gauge keeps the others away."""
        missing: dict[str, int] = {}
        for name, part in self._parts().items():
            errors: Sequence[Exception] = ()
            try:
                yield from part(now_ms)
            except ExceptionGroup as error:
                errors = error.exceptions
            except Exception as error:  # also one that nobody has thought of: an operator needs the rest of the page
                errors = (error,)
            self._note(name, errors)
            if errors:
                missing[name] = len(errors)
        if missing:
            yield family(GAUGES_MISSING, (((name,), count) for name, count in missing.items()))
        yield from self._metrics.counters.families()

    def _parts(self) -> dict[str, _Part]:
        """By the value of the label `part`."""
        parts: dict[str, _Part] = {
            "pools": self._pools,
            "tables": self._tables,
            "connections": self._connections,
            "lag": self._lag,
            "transactions": self._halves,
            "disk": self._disk,
            "log": self._log,
            "oldest message": self._oldest_message,
        }
        if self._store.config.timer.timer_wheel_enable:
            parts |= {"timer": self._timer, "timing messages": self._timing, "due messages": self._due}
        return parts

    def _note(self, part: str, errors: Sequence[Exception]) -> None:
        """Log what a part lacks, once for as long as it is the same."""
        if not errors:
            self._logged.pop(part, None)
            return
        first = errors[0]
        text = f"{type(first).__name__}: {first}" + (f", and {len(errors) - 1} more" if len(errors) > 1 else "")
        if self._logged.get(part) != text:
            self._logged[part] = text
            is_known = isinstance(first, StorageError | OSError)
            _LOG.warning("the page of metrics lacks some of %s: %s", part, text, exc_info=None if is_known else first)

    # The broker and its clients

    def _pools(self, now_ms: int) -> Iterator[Family]:
        loads = [(name, 0 if pool is None else self._server.pool_load(pool)[0]) for name, pool in _POOLS.items()]
        yield family(names.PROCESSOR_WATERMARK, (((name,), waiting) for name, waiting in loads))

    def _tables(self, now_ms: int) -> Iterator[Family]:
        yield family(names.BROKER_PERMISSION, [((), self._store.permission)])
        yield family(names.TOPIC_NUMBER, [((), len(self._store.topics))])
        yield family(names.CONSUMER_GROUP_NUMBER, [((), len(self._store.groups))])

    def _connections(self, now_ms: int) -> Iterator[Family]:
        producers: Counter[tuple[str, str]] = Counter()
        consumers: Counter[tuple[str, str, str, str, str]] = Counter()
        with self._clients.lock:
            for clients in self._clients.producers.groups.values():
                producers.update(_program(client) for client in clients.values())
            for name, group in self._clients.consumers.groups.items():
                mode = _MODES.get(ConsumeType(group.consume_type), "pop") if group.consume_type else "pull"
                is_system = self._metrics.is_system("", name)
                consumers.update((name, *_program(client), mode, is_system) for client in group.clients.values())
        yield family(names.PRODUCER_CONNECTIONS, producers.items())
        yield family(names.CONSUMER_CONNECTIONS, consumers.items())

    # Lag

    def _lag(self, now_ms: int) -> Iterator[Family]:
        """A group has no series in a topic of which a queue cannot be read: a part of its lag is no lag."""
        found: dict[tuple[str, str], _Behind] = {}
        unknown: set[tuple[str, str]] = set()
        errors: list[Exception] = []
        queues = self._queues()
        times = self._store_times(queues)
        for queue in queues:
            key = queue.group, queue.topic
            try:
                found[key] = found.get(key, _Behind()).with_queue(self._behind(queue, times))
            except Exception as error:
                errors.append(error)
                unknown.add(key)
        rows = [
            ((group, topic, "false", self._metrics.is_system(topic, group)), behind)
            for (group, topic), behind in sorted(found.items())
            if (group, topic) not in unknown
        ]
        yield family(names.LAG_MESSAGES, ((labels, behind.lag) for labels, behind in rows))
        yield family(names.LAG_LATENCY, ((labels, _age(now_ms, behind.consumed_ms)) for labels, behind in rows))
        yield family(names.INFLIGHT_MESSAGES, ((labels, behind.in_flight) for labels, behind in rows))
        yield family(names.QUEUEING_LATENCY, ((labels, _age(now_ms, behind.pulled_ms)) for labels, behind in rows))
        yield family(names.READY_MESSAGES, ((labels, behind.ready) for labels, behind in rows))
        if errors:
            raise ExceptionGroup("the lag of some queues is unknown", errors)

    def _queues(self) -> list[_QueueOf]:
        """The queues of the topics that groups subscribe to now. Java: ConsumerLagCalculator.processAllGroup.

        Pulls need the same lock, so it is held for one topic of one group at a time.
        """
        topics, groups, allowed = self._store.topics, self._store.groups, self._store.permission
        found: list[_QueueOf] = []
        for group in list(groups):
            with self._clients.lock:
                subscriptions = dict(self._clients.consumers.subscriptions(group))
            for topic, subscription in subscriptions.items():
                entry = topics.get(topic)
                if topic.startswith(RETRY_PREFIX) or entry is None:
                    continue
                if not entry.perm & allowed & (PERM_READ | PERM_WRITE):
                    continue
                ids = range(entry.write_queue_count)
                with self._clients.lock:
                    wanted = self._wanted(group, subscription)
                    consumed = [self._offsets.offset(group, topic, queue_id) for queue_id in ids]
                    pulled = [self._offsets.pulled(group, topic, queue_id) for queue_id in ids]
                rows = zip(ids, consumed, pulled, strict=True)
                found += (_QueueOf(group, topic, queue_id, wanted, *offsets) for queue_id, *offsets in rows)
        return found

    def _store_times(self, queues: list[_QueueOf]) -> Mapping[tuple[str, int, int], int]:
        """Store times of the groups' next messages, many read together; those that are missing must be read one by one."""
        offsets = ((queue, offset) for queue in queues for offset in (queue.consumed, max(0, queue.pulled)))
        places = list({(queue.topic, queue.queue_id, offset) for queue, offset in offsets})
        found: dict[tuple[str, int, int], int] = {}
        for start in range(0, len(places), _TIMES_TOGETHER):
            if self._has_ended:
                break
            with suppress(Exception):  # the queue that is broken is found when it is read alone
                found |= self._store.served.store_times(places[start : start + _TIMES_TOGETHER])
        return found

    def _wanted(self, group: str, subscription: SubscriptionData) -> MessageFilter:
        if is_tag_type(subscription.expression_type):
            return message_filter(subscription, None)
        filters = self._clients.filters
        known = filters.find(subscription.topic, group)
        return ALL_MESSAGES if known is None else MessageFilter(bits=filters.bit_test(known))

    def _behind(self, queue: _QueueOf, times: Mapping[tuple[str, int, int], int]) -> _Behind:
        if self._has_ended:
            raise StoreNotWritableError(self._store.service.root, "it closes")
        maximum = self._store.served.maximum(queue.topic, queue.queue_id)
        consumed = queue.consumed if queue.consumed >= 0 else maximum
        started = max(0, queue.pulled)
        committed = queue.consumed if queue.consumed >= 0 else started
        return _Behind(
            lag=self._count(queue, consumed, maximum),
            consumed_ms=self._store_time(queue, consumed, times) if consumed < maximum else 0,
            in_flight=self._count(queue, committed, started),
            pulled_ms=self._store_time(queue, started, times),
            ready=self._count(queue, queue.pulled if queue.pulled >= 0 else maximum, maximum),
        )

    def _count(self, queue: _QueueOf, start: int, end: int) -> int:
        """Messages that the group wants. Java: calculateMessageCount with estimateAccumulation."""
        if end <= start or queue.wanted == ALL_MESSAGES:
            return max(0, end - start)
        return self._store.served.count_wanted(queue.topic, queue.queue_id, start, end, queue.wanted, ENTRIES_MOST)

    def _store_time(self, queue: _QueueOf, offset: int, times: Mapping[tuple[str, int, int], int]) -> int:
        place = queue.topic, queue.queue_id, offset
        found = times.get(place)
        return max(0, self._store.served.store_time(*place) if found is None else found)

    # Transactions, store, timer

    def _halves(self, now_ms: int) -> Iterator[Family]:
        yield family(names.HALF_MESSAGES, (((topic,), count) for topic, count in sorted(self._half_messages().items())))

    def _disk(self, now_ms: int) -> Iterator[Family]:
        total, free = disk_room_bytes(self._store.service.root)
        yield family(names.STORAGE_SIZE, [((), total - free)])

    def _log(self, now_ms: int) -> Iterator[Family]:
        service, served = self._store.service, self._store.served
        yield family(names.FLUSH_BEHIND, [((), service.unsynced_bytes + (service.held_bytes or 0))])
        yield family(names.DISPATCH_BEHIND, [((), max(0, served.log_end - service.dispatched_end))])

    def _oldest_message(self, now_ms: int) -> Iterator[Family]:
        earliest = self._store.earliest_store_time_ms()
        if earliest > 0:
            yield family(names.RESERVE_TIME, [((), now_ms - earliest)])

    def _timer(self, now_ms: int) -> Iterator[Family]:
        served, timer = self._store.served, self._metrics.timer
        page = self._server.timer_page()
        has_checkpoint = len(page) >= CHECKPOINT.itemsize
        entered = read_ms = 0
        if has_checkpoint:
            checkpoint = np.frombuffer(page, CHECKPOINT, 1)[0]
            entered, read_ms = int(checkpoint["queue_offset"]), int(checkpoint["last_read_time_ms"])
        maximum = served.maximum(TIMER_TOPIC, 0)
        lag = max(0, maximum - entered)
        waits_since = served.store_time(TIMER_TOPIC, 0, entered) if lag else 0
        yield family(names.TIMER_ENQUEUE_LAG, [((), lag)])
        yield family(names.TIMER_ENQUEUE_LATENCY, [((), _age(now_ms, waits_since))])
        yield family(names.TIMER_DEQUEUE_LAG, [((), timer.waiting)])
        late_s = max(0, now_ms - read_ms) // 1_000 if timer.waiting and read_ms > 0 else 0
        yield family(names.TIMER_DEQUEUE_LATENCY, [((), late_s)])

    def _timing(self, now_ms: int) -> Iterator[Family]:
        counts = self._server.timing_counts()
        yield family(names.TIMING_MESSAGES, (((topic,), count) for topic, count in sorted(counts.items())))

    def _due(self, now_ms: int) -> Iterator[Family]:
        bounds = zip(names.TIMER_BOUNDS_S, self._metrics.timer.due_within, strict=True)
        yield family(names.TIMER_SNAPSHOT, (((str(bound),), count) for bound, count in bounds))


def _program(client: KnownClient) -> tuple[str, str]:
    return client.language.lower(), version_text(client.version)


def _oldest(one_ms: int, other_ms: int) -> int:
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms


def _age(now_ms: int, since_ms: int) -> int:
    """0 if it is since never. Departure: never negative, where the broker's clock was set back."""
    return max(0, now_ms - since_ms) if since_ms > 0 else 0
