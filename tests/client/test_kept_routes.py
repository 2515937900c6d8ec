"""Which routes say where a broker is: the newest, and none that nobody has renewed."""

from __future__ import annotations

from spark_mq.client.instance import KeptRoutes
from spark_mq.client.routes import TopicRoute
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData

POLL_MS = 30_000


def route(topic: str, **addresses: str) -> TopicRoute:
    """A route over brokers of those names and addresses."""
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
    routes = KeptRoutes(POLL_MS)
    routes.keep(route("T", a="old:1", b="b:1"), 1_000)
    routes.keep(route("Z", a="old:1"), 1_010)
    routes.keep(route("T", a="new:1"), 1_020)
    assert routes.brokers({"T"}) == {"a": {0: "new:1"}}
    routes.keep(route("Z", a="newer:1"), 1_021)
    assert routes.brokers({"T"}) == {"a": {0: "newer:1"}}


def test_a_route_that_is_given_again_is_the_newest_although_it_says_the_same() -> None:
    routes = KeptRoutes(POLL_MS)
    first, is_new = routes.keep(route("T", a="back:1"), 1_000)
    assert is_new
    routes.keep(route("Z", a="away:1"), 1_010)
    again, is_new = routes.keep(route("T", a="back:1"), 1_020)
    assert again is first
    assert not is_new
    assert routes.brokers(()) == {"a": {0: "back:1"}}


def test_a_route_that_only_others_outlive_names_nobody_unless_it_is_wanted() -> None:
    routes = KeptRoutes(POLL_MS)
    routes.keep(route("Z", gone="z:1"), 1_000)
    assert set(routes.brokers(())) == {"gone"}  # however long ago: no name server has answered since
    routes.keep(route("T", a="a:1"), 1_090)
    assert set(routes.brokers(())) == {"a", "gone"}
    routes.keep(route("T", a="a:1"), 1_091)
    assert set(routes.brokers(())) == {"a"}
    assert set(routes.brokers({"Z"})) == {"a", "gone"}
    assert routes.topics_at("gone") == ["Z"]  # it can be asked for again
    routes.forget("Z")
    assert routes.topics_at("gone") == []


def test_a_broker_without_an_address_is_none() -> None:
    routes = KeptRoutes(POLL_MS)
    assert routes.brokers(()) == {}
    routes.keep(route("T", a="a:1", b=""), 1_000)
    assert routes.brokers(()) == {"a": {0: "a:1"}}
