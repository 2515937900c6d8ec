"""What brokers say of topics, put together: which queues there are, and where each begins and ends. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from spark_mq.remoting.administration import TopicStatsTable
from spark_mq.remoting.routes import ClusterInfo, TopicRouteData
from spark_mq.source.offsets import QueueId
from spark_mq.source.subscription import Subscription

READABLE = 4
"""Bit of a topic's permission. Java: PermName.PERM_READ."""
MASTER = 0
"""The broker id that alone is asked where queues end: a slave may be behind, and what it does not have yet is not lost."""


class TopicAtBroker(NamedTuple):
    """One topic at the brokers of one name."""

    topic: str
    broker_name: str


class QueueEnds(NamedTuple):
    """Where a queue begins and ends, and when its last message was stored (0: never)."""

    minimum: int
    maximum: int
    last_store_time_ms: int


Addresses = Mapping[int, str]
"""Of the brokers of one name, by broker id; 0 is the master."""


def addresses_of(info: ClusterInfo) -> dict[str, Addresses]:
    """All brokers by name, sorted; those without an address are not there."""
    found = {name: dict(sorted(data.broker_addresses.items())) for name, data in info.broker_address_table.items()}
    return {name: found[name] for name in sorted(found) if found[name]}


def readable_queues(topic: str, route: TopicRouteData | None) -> dict[TopicAtBroker, int]:
    """How many queues of the topic can be read at each of its brokers; none where it is not there or not readable."""
    datas = () if route is None else route.queue_datas
    return {
        TopicAtBroker(topic, data.broker_name): data.read_queue_count
        for data in datas
        if data.perm & READABLE and data.read_queue_count > 0
    }


def unreadable(topic: str, route: TopicRouteData | None) -> set[TopicAtBroker]:
    """Where the topic is and may not be read."""
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
    """The queues that can be read. A broker tells of more where more can be written; those nobody can pull."""
    return {
        QueueId(at.topic, at.broker_name, queue.queue_id): QueueEnds(
            ends.min_offset, max(ends.min_offset, ends.max_offset), ends.last_update_time_ms
        )
        for queue, ends in stats.offset_table.items()
        if 0 <= queue.queue_id < read_queue_count
    }
