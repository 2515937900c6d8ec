"""The queues of a query's topics at running brokers, as of the last look. Driver side.

A look is one request (202) for each topic and broker, at most every 100 ms, however often Spark polls, and less often if one broker
gets many requests (`look_interval_ms`). Names (brokers, addresses, topics, queue counts) are read every 30 s, when a broker fails, and
when a broker reports unknown queues. A broker that does not answer keeps its last known ends; after `timeout_ms` without an answer the
query fails, because silence is no data loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from spark_mq.client.calls import make_call, may_pass, patiently
from spark_mq.client.errors import BrokerNotFoundError, ClientError, NameServerUnreachableError, WaitedInVainError
from spark_mq.remoting import RequestCode
from spark_mq.remoting.administration import TopicRequest, TopicStatsTable
from spark_mq.remoting.routes import TopicRouteData
from spark_mq.source.cluster_questions import Addresses, Answered, ClusterQuestions, addresses_of
from spark_mq.source.offsets import QueueId
from spark_mq.source.ranges import Subscription
from storage.epoch_times import steady_time_ms
from storage.names import MASTER_ID, is_system_topic
from storage.rules.response_codes import ResponseCode

READABLE = 4
"""Bit of a topic's permission. Java: PermName.PERM_READ."""


class TopicAtBroker(NamedTuple):
    """One topic at the brokers of one name."""

    topic: str
    broker_name: str


class QueueEnds(NamedTuple):
    """Begin and end of a queue, and the time of its last message (0: never)."""

    minimum: int
    maximum: int
    last_store_time_ms: int


def readable_queues(topic: str, route: TopicRouteData | None) -> dict[TopicAtBroker, int]:
    """Number of readable queues of the topic at each of its brokers; none if it is missing or not readable."""
    datas = () if route is None else route.queue_datas
    return {
        TopicAtBroker(topic, data.broker_name): data.read_queue_count
        for data in datas
        if data.perm & READABLE and data.read_queue_count > 0
    }


def unreadable(topic: str, route: TopicRouteData | None) -> set[TopicAtBroker]:
    """Brokers where the topic exists and is not readable."""
    datas = () if route is None else route.queue_datas
    return {TopicAtBroker(topic, data.broker_name) for data in datas} - readable_queues(topic, route).keys()


def wanted_topics(subscription: Subscription, there: Iterable[str], system_topics: Collection[str]) -> list[str]:
    """The topics that a query asks for, of those that are there where it has a pattern."""
    if subscription.pattern is None:
        named = {queue.topic for queue in subscription.assigned}
        return sorted({*subscription.topics, *named})
    return sorted(
        topic
        for topic in there
        if subscription.pattern.fullmatch(topic) and (subscription.include_system_topics or topic not in system_topics)
    )


def queue_ends(at: TopicAtBroker, read_queue_count: int, stats: TopicStatsTable) -> dict[QueueId, QueueEnds]:
    """The readable queues. A broker also reports queues that are only writable; no client can pull those."""
    return {
        QueueId(at.topic, at.broker_name, queue.queue_id): QueueEnds(
            ends.min_offset, max(ends.min_offset, ends.max_offset), ends.last_update_time_ms
        )
        for queue, ends in stats.offset_table.items()
        if 0 <= queue.queue_id < read_queue_count
    }


LOOK_INTERVAL_MS = 100
"""Between two looks at least."""
MOST_REQUESTS_A_SECOND = 1_000
"""So many a query asks one broker where its queues end."""
NAMES_INTERVAL_MS = 30_000
RETRY_INTERVAL_MS = 1_000
"""Between two looks at the names while a broker fails."""

T = TypeVar("T")


def look_interval_ms(requests: int) -> int:
    """The time between two looks, by the most requests to one broker in a look: from 100 topics on it grows with their number."""
    return max(LOOK_INTERVAL_MS, -(-requests * 1_000 // MOST_REQUESTS_A_SECOND))


class LiveView:
    """Looks at the brokers. `ends` has every queue that can be read, sorted."""

    def __init__(
        self,
        questions: ClusterQuestions,
        subscription: Subscription,
        timeout_ms: int,
        clock: Callable[[], int] = steady_time_ms,
    ) -> None:
        self._questions = questions
        self._subscription = subscription
        self._timeout_ms = timeout_ms
        self._clock = clock
        self.brokers: dict[str, Addresses] = {}
        """All registered brokers by name, and those that are silent."""
        self.clusters: dict[str, str] = {}
        """The cluster's name of each broker."""
        self.topics: tuple[str, ...] = ()
        """The names of all topics of the cluster; if the query names its topics, as of its first look."""
        self.ends: dict[QueueId, QueueEnds] = {}
        self.queues: Sequence[QueueId] = ()
        """The same list as long as there are the same queues."""
        self.changed: set[QueueId] = set()
        """Changes since the last look: queues with other ends, and queues that came or went."""
        self._counts: dict[TopicAtBroker, int] = {}
        self._answered: dict[TopicAtBroker, tuple[tuple[int, bytes], dict[QueueId, QueueEnds]]] = {}
        self._gone: set[TopicAtBroker] = set()
        """Brokers that have answered that they have no such topic."""
        self._found: dict[TopicAtBroker, dict[QueueId, QueueEnds]] = {}
        self._silent_since: dict[str, int] = {}
        self._looked_ms: int | None = None
        self._interval_ms = LOOK_INTERVAL_MS
        self._names_due_ms = 0

    def open(self) -> None:
        """The first look. Waits for brokers that do not answer; raises what they fail with when the time is over.

        Does not wait for name servers: more often than not their address is wrong.
        """
        began = self._clock()
        while True:
            try:
                self._look_at_names()
                failures = self._look_at_queues()
            except ClientError as error:
                if isinstance(error, NameServerUnreachableError):
                    raise
                failures = {"": error}
            if not failures:
                return
            for name, failure in failures.items():
                self._judge_one(name, failure, began)
            time.sleep(self._interval_ms / 1000)

    def refresh(self) -> bool:
        """Look again unless that was just done; whether anything is new. Raises what a broker has failed with for too long."""
        now_ms = self._clock()
        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:
            return False
        self._look_at_names_in_time()
        self._judge(self._look_at_queues())
        return bool(self.changed)

    def patiently(self, ask: Callable[[], T]) -> T:
        """The result of requests to brokers. After a failure that may pass it tries again until the time is over, at new addresses."""

        def look() -> None:
            self._names_due_ms = min(self._names_due_ms, self._clock() + RETRY_INTERVAL_MS)
            self._look_at_names_in_time()

        what, pause_ms = "brokers of the query's topics", LOOK_INTERVAL_MS
        return patiently(ask, self._timeout_ms, what, between=look, longest_pause_ms=pause_ms, clock=self._clock)

    def all_topics(self) -> tuple[str, ...]:
        """The names of all topics of the cluster, for texts."""
        if not self.topics:
            self.topics = tuple(sorted(self._questions.topics()))
        return self.topics

    def is_system_topic(self, topic: str) -> bool:
        return any(
            is_system_topic(topic, broker_name=name, cluster_name=cluster) for name, cluster in self.clusters.items()
        )

    def await_brokers(self, names: Collection[str]) -> set[str]:
        """Those of the brokers that are registered; it waits for the others, because they may be starting."""
        began = self._clock()
        while not set(names) <= self.brokers.keys() and self._clock() - began < self._timeout_ms:
            time.sleep(LOOK_INTERVAL_MS / 1000)
            self._names_due_ms = self._clock()
            self._look_at_names_in_time()
        return set(names) & self.brokers.keys()

    def read_queue_count(self, topic: str) -> int:
        """Number of readable queues of the topic at the broker that has most."""
        return max((count for at, count in self._counts.items() if at.topic == topic), default=0)

    def master_of(self, broker_name: str) -> str:
        """The address of the master, which alone answers: a slave may be behind, and messages that it does not have yet are not lost.

        Raises BrokerNotFoundError.
        """
        address = self.brokers.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise BrokerNotFoundError(broker_name, MASTER_ID)
        return address

    # Names

    def _look_at_names_in_time(self) -> None:
        if self._clock() < self._names_due_ms:
            return
        try:
            self._look_at_names()
        except ClientError as error:  # queues can be read without name servers
            if not error.retriable:
                raise
            self._names_due_ms = self._clock() + RETRY_INTERVAL_MS

    def _look_at_names(self) -> None:
        info = self._questions.cluster_info()
        registered = addresses_of(info)
        for name, data in info.broker_address_table.items():
            self.clusters[name] = data.cluster or ""
        there: tuple[str, ...] = ()
        if self._subscription.pattern is not None:
            there = self.topics = tuple(sorted(self._questions.topics()))
        system = {topic for topic in there if self.is_system_topic(topic)}
        counts: dict[TopicAtBroker, int] = {}
        closed: set[TopicAtBroker] = set()
        for topic in wanted_topics(self._subscription, there, system):
            route = self._questions.topic_route(topic)
            counts |= readable_queues(topic, route)
            closed |= unreadable(topic, route)
        for at, count in self._counts.items():  # names come and go; whether a topic is gone its broker says
            if at not in self._gone and at not in closed:
                counts.setdefault(at, count)
        silent = {at.broker_name for at in counts} - registered.keys()
        self.brokers = dict(sorted({**{name: self.brokers.get(name, {}) for name in silent}, **registered}.items()))
        self._counts = dict(sorted(counts.items()))
        self._names_due_ms = self._clock() + NAMES_INTERVAL_MS

    # Queues

    def _look_at_queues(self) -> dict[str, ClientError]:
        """Ask every broker for its topics; returns the brokers that failed."""
        self._looked_ms = self._clock()
        topics_at: dict[str, list[TopicAtBroker]] = {}
        failures: dict[str, ClientError] = {}
        for at in self._counts:
            try:
                topics_at.setdefault(self.master_of(at.broker_name), []).append(at)
            except BrokerNotFoundError as error:
                failures[at.broker_name] = error
        self._interval_ms = look_interval_ms(max(map(len, topics_at.values()), default=0))
        commands = {
            address: [make_call(RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=at.topic)) for at in ats]
            for address, ats in topics_at.items()
        }
        failed: dict[str, ClientError] = {}
        answers = self._questions.ask_all(commands, failed)
        found = {at: self._found.get(at, {}) for at in self._counts}
        for address, ats in topics_at.items():
            if address in failed:
                failures.update(dict.fromkeys((at.broker_name for at in ats), failed[address]))
                continue
            for at, answer in zip(ats, answers[address], strict=True):
                try:
                    found[at] = self._ends_of(at, answer)
                except ClientError as error:
                    failures[at.broker_name] = error
        self._take(found)
        return failures

    def _ends_of(self, at: TopicAtBroker, answer: Answered) -> dict[QueueId, QueueEnds]:
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:  # name servers keep deleted topics
            self._gone.add(at)
            return {}
        self._gone.discard(at)
        answered = self._counts[at], bytes(answer.command.body)
        known = self._answered.get(at)
        if known is not None and known[0] == answered and answer.code == ResponseCode.SUCCESS:
            return known[1]
        stats = answer.body(TopicStatsTable)
        if any(queue.queue_id >= self._counts[at] for queue in stats.offset_table):  # maybe queues were added
            self._names_due_ms = min(self._names_due_ms, (self._looked_ms or 0) + RETRY_INTERVAL_MS)
        self._answered[at] = answered, queue_ends(at, self._counts[at], stats)
        return self._answered[at][1]

    def _take(self, found: dict[TopicAtBroker, dict[QueueId, QueueEnds]]) -> None:
        self._found = found
        ends = {queue: one for at in found for queue, one in sorted(found[at].items())}
        self.changed = {queue for queue, one in ends.items() if self.ends.get(queue) != one} | (self.ends.keys() - ends)
        self.ends = ends
        if list(self.queues) != list(ends):
            self.queues = sorted(ends)

    def _judge(self, failures: dict[str, ClientError]) -> None:
        """Raises what a broker fails with since `timeout_ms`, or with what cannot pass."""
        now_ms = self._clock()
        self._silent_since = {name: self._silent_since.get(name, now_ms) for name in failures}
        if failures:
            self._names_due_ms = min(self._names_due_ms, now_ms + RETRY_INTERVAL_MS)
        for name, error in failures.items():
            self._judge_one(name, error, self._silent_since[name])

    def _judge_one(self, broker_name: str, error: ClientError, since_ms: int) -> None:
        """Raises what cannot pass, and what a broker fails with since `timeout_ms`."""
        if not may_pass(error):
            raise error
        waited_ms = self._clock() - since_ms
        if waited_ms >= self._timeout_ms:
            what = f"where queues end at broker {broker_name}" if broker_name else "the cluster's brokers and topics"
            raise WaitedInVainError(error, what, waited_ms)
