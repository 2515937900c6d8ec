"""What a route says, by the tables of Java's MQClientInstance, and which of several routes says where a broker is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_mq.client.errors import MessageQueueNotFoundError
from spark_mq.client.instance import KeptRoutes
from spark_mq.client.routes import TopicRoute, default_route, subscribe_address, vip_address
from spark_mq.remoting import read_body
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData
from tests.support.places import VECTORS

LINES = [json.loads(line) for line in (VECTORS / "broker" / "static_topics.jsonl").read_text("utf-8").splitlines()]
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


POLL_MS = 30_000


def route_over(topic: str, **addresses: str) -> TopicRoute:
    """A route_over over brokers of those names and addresses."""
    return TopicRoute(
        topic,
        TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_count=1, write_queue_count=1, perm=6) for name in addresses
            ),
            broker_datas=tuple(
                BrokerData(broker_name=name, broker_addresses={0: address} if address else {})
                for name, address in addresses.items()
            ),
        ),
    )


def test_of_two_routes_the_newer_says_where_the_broker_is() -> None:
    kept = KeptRoutes(POLL_MS)
    kept.keep(route_over("T", a="old:1", b="b:1"), 1_000)
    kept.keep(route_over("Z", a="old:1"), 1_010)
    kept.keep(route_over("T", a="new:1"), 1_020)
    assert kept.brokers({"T"}) == {"a": {0: "new:1"}}
    kept.keep(route_over("Z", a="newer:1"), 1_021)
    assert kept.brokers({"T"}) == {"a": {0: "newer:1"}}


def test_a_route_that_is_given_again_is_the_newest_although_it_says_the_same() -> None:
    kept = KeptRoutes(POLL_MS)
    first, is_new = kept.keep(route_over("T", a="back:1"), 1_000)
    assert is_new
    kept.keep(route_over("Z", a="away:1"), 1_010)
    again, is_new = kept.keep(route_over("T", a="back:1"), 1_020)
    assert again is first
    assert not is_new
    assert kept.brokers(()) == {"a": {0: "back:1"}}


def test_a_route_that_only_others_outlive_names_nobody_unless_it_is_wanted() -> None:
    kept = KeptRoutes(POLL_MS)
    kept.keep(route_over("Z", gone="z:1"), 1_000)
    assert set(kept.brokers(())) == {"gone"}  # however long ago: no name server has answered since
    kept.keep(route_over("T", a="a:1"), 1_090)
    assert set(kept.brokers(())) == {"a", "gone"}
    kept.keep(route_over("T", a="a:1"), 1_091)
    assert set(kept.brokers(())) == {"a"}
    assert set(kept.brokers({"Z"})) == {"a", "gone"}
    assert kept.topics_at("gone") == ["Z"]  # it can be asked for again
    kept.forget("Z")
    assert kept.topics_at("gone") == []


def test_a_broker_without_an_address_is_none() -> None:
    kept = KeptRoutes(POLL_MS)
    assert kept.brokers(()) == {}
    kept.keep(route_over("T", a="a:1", b=""), 1_000)
    assert kept.brokers(()) == {"a": {0: "a:1"}}


def test_a_static_topics_queues_are_led_by_the_brokers_that_java_finds() -> None:
    """ClientMetadata.topicRouteData2EndpointsForStaticTopic, by Apache's class (StaticTopicVectors)."""
    lines = [line for line in LINES if line["type"] == "endpoints"]
    assert len(lines) > 20
    for line in lines:
        route = TopicRoute("Static", read_body(TopicRouteData, line["route"].encode()))
        found = {f"{queue.broker_name} {queue.queue_id}": leader for queue, leader in route.leaders.items()}
        assert found == line["found"]
        if found:
            assert route.publish_queues == route.subscribe_queues == tuple(sorted(route.leaders))
        for queue, leader in route.leaders.items():
            assert route.broker_name_of(queue) == leader
