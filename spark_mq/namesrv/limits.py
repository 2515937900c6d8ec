"""How much a name server takes from processes that it does not know: lengths and numbers of names.

Java sets no limits. A registration beyond them is refused whole, with the limit as its remark.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from spark_mq.namesrv.tables import BrokerAddress, RouteTables
from spark_mq.remoting.route_bodies import QueueData, TopicConfigTable
from spark_mq.remoting.route_headers import RegisterBrokerRequest
from storage.rules.response_codes import RequestRefusedError, ResponseCode


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Of names in characters, of the rest in numbers."""

    name_length: int = 1_024
    """Of a topic, broker, cluster or address. The longest legal topic, of a consumer's retries, has less than half of it."""
    brokers: int = 10_000
    """Broker names."""
    brokers_of_a_name: int = 1_000
    topics: int = 1_000_000
    static_topics: int = 100_000
    brokers_of_a_connection: int = 100
    """Addresses that have registered over one. A broker has a connection of its own; those of one process may share it."""
    topics_of_a_connection: int = 1_000_000
    """That the brokers of one connection have together: no fewer than one broker alone may have."""


DEFAULT_ROUTE_LIMITS = RouteLimits()


def check_name(kind: str, name: str, limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError for an empty name, or one that is too long."""
    if not name:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the {kind} has no name")
    if len(name) > limits.name_length:
        rule = f"it has {len(name)} characters, the limit is {limits.name_length}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the {kind} {name[:32]!r}… is refused: {rule}")


def check_registration(
    tables: RouteTables,
    header: RegisterBrokerRequest,
    topics: TopicConfigTable,
    channel: Hashable,
    limits: RouteLimits,
) -> None:
    """Raises RequestRefusedError for a registration beyond the limits."""
    named = (("cluster", header.cluster_name), ("broker", header.broker_name), ("address", header.broker_address))
    for kind, name in (*named, ("address", header.ha_server_address)):
        check_name(kind, name, limits)
    group = tables.groups.get(header.broker_name)
    if group is None:
        _check_count("brokers", len(tables.groups) + 1, limits.brokers)
    elif header.broker_id not in group.addresses:
        _check_count("brokers of a name", len(group.addresses) + 1, limits.brokers_of_a_name)
    names = [config.topic_name or key for key, config in topics.topic_config_table.items()]
    mappings = topics.topic_queue_mapping_info_map or {}
    check_topics(tables, [*names, *mappings], limits)
    _check_count("static topics", len(tables.mappings.keys() | mappings.keys()), limits.static_topics)
    _check_connection(tables, header, names, channel, limits)


def _check_connection(
    tables: RouteTables, header: RegisterBrokerRequest, topics: Iterable[str], channel: Hashable, limits: RouteLimits
) -> None:
    who = BrokerAddress(header.cluster_name, header.broker_address)
    others = {
        other: live.broker_name for other, live in tables.live.items() if live.channel == channel and other != who
    }
    _check_count("brokers over one connection", len(others) + 1, limits.brokers_of_a_connection)
    name = header.broker_name
    new = sum(name not in tables.topics.get(topic, ()) for topic in set(topics))
    count = new + sum(tables.topic_counts.get(each, 0) for each in {name, *others.values()})
    _check_count("topics over one connection", count, limits.topics_of_a_connection)


def check_topics(tables: RouteTables, topics: Iterable[str], limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError where a name is none, or the topics become too many."""
    new = {topic for topic in topics if topic not in tables.topics}
    for topic in new:
        check_name("topic", topic, limits)
    if new:
        _check_count("topics", len(tables.topics) + len(new), limits.topics)


def check_queues(queues: Iterable[QueueData], limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError where a broker's name is none."""
    for data in queues:
        check_name("broker", data.broker_name, limits)


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"this name server takes at most {most} {what}")
