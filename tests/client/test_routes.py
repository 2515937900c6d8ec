"""What a route says, by the tables of Java's MQClientInstance."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq.client.errors import MessageQueueNotFoundError
from spark_mq.client.routes import TopicRoute, default_route, subscribe_address, vip_address
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData

MASTERS = {"b": {0: "b:1", 1: "b:2"}, "a": {0: "a:1"}, "slaves": {1: "s:1", 2: "s:2"}}


def route(*queues: QueueData, **more: Any) -> TopicRoute:
    brokers = tuple(BrokerData(broker_name=name, broker_addresses=found) for name, found in MASTERS.items())
    return TopicRoute("T", TopicRouteData(queue_datas=queues, broker_datas=brokers, **more))


def queues(broker_name: str, read: int, write: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker_name, read_queue_count=read, write_queue_count=write, perm=perm)


@pytest.mark.parametrize(
    ("given", "published", "subscribed"),
    [
        ([queues("b", 2, 1), queues("a", 1, 2)], ["a0", "a1", "b0"], ["a0", "b0", "b1"]),
        ([queues("a", 1, 1, 4)], [], ["a0"]),
        ([queues("a", 1, 1, 2)], ["a0"], []),
        ([queues("slaves", 1, 1)], [], ["slaves0"]),
        ([queues("unknown", 1, 1)], [], ["unknown0"]),
    ],
    ids=["by name then number", "not writable", "not readable", "no master", "no broker"],
)
def test_queues_to_send_to_need_a_master_and_queues_to_read_do_not(
    given: list[QueueData], published: list[str], subscribed: list[str]
) -> None:
    found = route(*given)
    assert [f"{queue.broker_name}{queue.queue_id}" for queue in found.publish_queues] == published
    assert [f"{queue.broker_name}{queue.queue_id}" for queue in found.subscribe_queues] == subscribed


def test_an_order_configuration_names_the_queues_to_send_to() -> None:
    found = route(queues("a", 8, 8), order_topic_conf="b:1;a:2")
    assert found.is_ordered
    assert [tuple(queue) for queue in found.publish_queues] == [("T", "b", 0), ("T", "a", 0), ("T", "a", 1)]
    with pytest.raises(MessageQueueNotFoundError, match="'b:x'"):
        _ = route(order_topic_conf="b:x").publish_queues


def test_a_topic_to_be_created_gets_at_most_so_many_queues_of_tbw102() -> None:
    made = default_route("New", route(queues("a", 8, 8, 7), queues("b", 2, 2, 7)), 4)
    assert [tuple(queue) for queue in made.publish_queues] == [("New", "a", n) for n in range(4)] + [
        ("New", "b", n) for n in range(2)
    ]


def test_addresses_of_masters_and_of_those_who_stand_in() -> None:
    found = route()
    assert found.master_addresses == ("a:1", "b:1")
    assert found.read_addresses == ("a:1", "b:1", "s:1")


@pytest.mark.parametrize(
    ("broker_id", "only_this", "expected"),
    [(0, False, "m"), (1, False, "s2"), (1, True, "s2"), (2, True, "s2"), (3, True, None), (3, False, "m")],
)
def test_a_slave_that_is_away_is_replaced_by_the_next_then_by_any(
    broker_id: int, only_this: bool, expected: str | None
) -> None:
    assert subscribe_address({0: "m", 2: "s2"}, broker_id, only_this=only_this) == expected
    assert subscribe_address({}, broker_id, only_this=only_this) is None


def test_the_second_listener_is_two_ports_below() -> None:
    assert vip_address("b:10911") == "b:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"
