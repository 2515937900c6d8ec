"""Which queues are read: named topics, patterns over whole names, assigned queues."""

from __future__ import annotations

import pytest

from spark_mq.conditions import OffsetJsonError
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.ranges import Subscription

BROKERS = {"broker-a", "broker-b"}
QUEUES = [
    QueueId(topic, broker, queue_id)
    for topic in ("orders", "orders2", "RMQ_SYS_TRANS_HALF_TOPIC")
    for broker in ("broker-b", "broker-a")
    for queue_id in (1, 0)
]


def subscription(**options: str) -> Subscription:
    return SourceOptions.parse({"path": "/s", **options}).subscription


def select(brokers: set[str] = BROKERS, **options: str) -> list[QueueId]:
    queues = [queue for queue in QUEUES if queue.broker_name in brokers]
    return subscription(**options).select(
        queues, brokers=brokers, is_system_topic=lambda topic: topic.startswith("RMQ_SYS_")
    )


def topics(**options: str) -> list[str]:
    return sorted({queue.topic for queue in select(**options)})


def test_a_topic_has_its_queues_of_all_brokers_in_order() -> None:
    assert select(topic="orders") == [
        QueueId("orders", "broker-a", 0),
        QueueId("orders", "broker-a", 1),
        QueueId("orders", "broker-b", 0),
        QueueId("orders", "broker-b", 1),
    ]


def test_topics_that_are_named_are_read_even_if_they_are_the_systems() -> None:
    assert topics(subscribe="orders, RMQ_SYS_TRANS_HALF_TOPIC, absent") == [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "orders",
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", ["orders"]),  # the whole name, not a part of it
        ("orders.?", ["orders", "orders2"]),
        (".*", ["orders", "orders2"]),
        (r"orders\d", ["orders2"]),
        ("rders", []),
    ],
)
def test_a_pattern_matches_whole_names_and_passes_over_system_topics(pattern: str, expected: list[str]) -> None:
    assert topics(subscribePattern=pattern) == expected


def test_a_digit_is_an_ascii_digit_as_in_java() -> None:
    pattern = subscription(subscribePattern=r"\d").pattern
    assert pattern is not None
    assert pattern.fullmatch("3")
    assert not pattern.fullmatch("\N{ARABIC-INDIC DIGIT THREE}")


def test_a_pattern_takes_system_topics_when_asked() -> None:
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in topics(subscribePattern=".*", includeSystemTopics="true")


def test_assigned_queues_are_taken_and_no_others() -> None:
    assert select(assign='{"orders": {"broker-b": [1]}, "orders2": {"broker-a": [0, 9]}}') == [
        QueueId("orders", "broker-b", 1),
        QueueId("orders2", "broker-a", 0),
    ]
    assert select({"broker-a"}, assign='{"orders": [1]}') == [QueueId("orders", "broker-a", 1)]


def test_assigned_queues_need_a_broker_where_there_are_several() -> None:
    with pytest.raises(OffsetJsonError, match="assign: name the broker"):
        select(assign='{"orders": [1]}')


def test_queue_ids_narrow_a_choice() -> None:
    assert {queue.queue_id for queue in select(topic="orders", queueId="1")} == {1}
    assert select(topic="orders", queueId="7") == []


def test_what_is_named_and_not_there_is_told() -> None:
    missing = subscription(subscribe="orders,absent").missing(QUEUES, brokers=BROKERS)
    assert missing == ["absent"]
    assign = subscription(assign='{"orders": {"broker-a": [0, 9]}}')
    assert assign.missing(QUEUES, brokers=BROKERS) == ["orders/broker-a/9"]
    assert subscription(subscribePattern="absent").missing(QUEUES, brokers=BROKERS) == []
