"""The routes that name servers have given, by topic, and the brokers that they name. Pure; not for several threads at once.

Of two routes that name the same broker the one that was given later counts: a broker may come back with another address, and not
every topic is asked for again. A route that was not given again for some polls, while others were, names nobody, unless it is wanted.

Java: MQClientInstance (topicRouteTable, brokerAddrTable, cleanOfflineBroker). Departure: in Java every route counts for ever, so that
a broker which has gone is not forgotten as long as a topic that nobody asks for again had it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_mq.client.routes import TopicRoute

_POLLS = 3
"""After so many polls a route that was not given again is out of date."""


class KeptRoute(NamedTuple):
    """A route and when it was given (seconds of the loop's clock)."""

    route: TopicRoute
    at: float


class KeptRoutes:
    """The last route of each topic."""

    def __init__(self, poll_interval_ms: int) -> None:
        self._patience = _POLLS * poll_interval_ms / 1000
        self._kept: dict[str, KeptRoute] = {}

    def get(self, topic: str) -> KeptRoute | None:
        """The last route of the topic."""
        return self._kept.get(topic)

    def keep(self, route: TopicRoute, at: float) -> tuple[TopicRoute, bool]:
        """The topic's route from now on (the one before, where both say the same), and whether it says something new."""
        before = self._kept.get(route.topic)
        is_new = before is None or before.route.data != route.data
        if before is not None and not is_new:
            route = before.route
        self._kept[route.topic] = KeptRoute(route, at)
        return route, is_new

    def forget(self, topic: str) -> None:
        """The topic has gone."""
        self._kept.pop(topic, None)

    def topics_at(self, broker_name: str) -> list[str]:
        """The topics whose routes name the broker, those that are out of date too."""
        return [topic for topic, kept in self._kept.items() if broker_name in kept.route.brokers]

    def brokers(self, wanted: Collection[str]) -> dict[str, Mapping[int, str]]:
        """Each broker's addresses by id. The routes of `wanted` topics are never out of date."""
        in_order = sorted(self._kept.items(), key=lambda item: item[1].at)
        oldest = in_order[-1][1].at - self._patience if in_order else 0.0
        named: dict[str, Mapping[int, str]] = {}
        for topic, kept in in_order:
            if kept.at >= oldest or topic in wanted:
                named.update(kept.route.brokers)
        return {name: addresses for name, addresses in named.items() if addresses}
