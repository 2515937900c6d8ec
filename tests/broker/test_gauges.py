"""How a page's gauges look at a broker: beside pulls, which need the same lock, and at many queues together."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker.gauges import BrokerGauges
from spark_mq.remoting.consumers import SubscriptionData
from storage.errors import CorruptRecordError
from storage.format.typed_json import TopicConfig

GROUPS, TOPICS, QUEUES = 3, 5, 4


class _Lock:
    """It counts what is looked up each time that it is held."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.is_held = False

    def __enter__(self) -> None:
        self.looks.append(0)
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        assert self.is_held
        self.looks[-1] += 1
        return queue_id


class _Served:
    """Queues of ten messages; those of T1 cannot be read together with others."""

    def __init__(self) -> None:
        self.singly = 0

    def maximum(self, topic: str, queue_id: int) -> int:
        return 10

    def store_times(self, places: Collection[tuple[str, int, int]]) -> dict[tuple[str, int, int], int]:
        if any(topic == "T1" for topic, _, _ in places):
            raise CorruptRecordError("size_bytes", 0, 1, 2)
        return {place: 1_000 + place[2] for place in places}

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        self.singly += 1
        return 1_000 + offset


def gauges(lock: _Lock, served: _Served, topics: list[str]) -> BrokerGauges:
    subscriptions = {topic: SubscriptionData(topic=topic, sub_string="*") for topic in topics}
    entries = {topic: TopicConfig(topic, QUEUES, QUEUES, 6) for topic in topics}
    groups = [f"G{number}" for number in range(GROUPS)]
    service = SimpleNamespace(root="ROOT")
    store: Any = SimpleNamespace(topics=entries, groups=groups, permission=6, served=served, service=service)
    consumers = SimpleNamespace(subscriptions=lambda group: subscriptions)
    clients: Any = SimpleNamespace(lock=lock, consumers=consumers)
    offsets: Any = SimpleNamespace(offset=lock.offset, pulled=lock.offset)
    nothing: Any = None
    return BrokerGauges(store, clients, offsets, nothing, BrokerMetrics(), dict)


def lag_times(found: BrokerGauges) -> dict[tuple[str, ...], float]:
    families = {family.metric.name: family.series for family in found._lag(2_000)}
    series = families["rocketmq_consumer_lag_latency_milliseconds"]
    return {each.labels[:2]: each.value for each in series if isinstance(each.value, int | float)}


def test_pulls_have_the_lock_between_two_topics_of_a_group_and_times_are_read_together() -> None:
    lock, served = _Lock(), _Served()
    found = lag_times(gauges(lock, served, ["A", "B", "C", "D", "E"]))
    assert max(lock.looks) <= 2 * QUEUES
    assert sum(lock.looks) == 2 * GROUPS * TOPICS * QUEUES
    assert set(found.values()) == {1_000}, "the oldest of queues 0 to 3"
    assert served.singly == 0


def test_a_time_that_cannot_be_read_with_the_others_is_read_alone() -> None:
    lock, served = _Lock(), _Served()
    found = lag_times(gauges(lock, served, ["A", "T1"]))
    assert len(found) == GROUPS * 2
    assert served.singly


def test_a_look_of_a_broker_that_closes_ends_soon() -> None:
    found = gauges(_Lock(), _Served(), ["A"])
    found.end()
    with pytest.raises(Exception, match=r"closes|unknown"):
        lag_times(found)
