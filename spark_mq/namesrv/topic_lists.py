"""Names of topics, for operators and tools. Java: RouteInfoManager.getAllTopicList, getTopicsByCluster and the like."""

from __future__ import annotations

from collections.abc import Callable

from spark_mq.namesrv.tables import RouteTables
from spark_mq.remoting.route_bodies import TopicList

_UNIT = 1
_UNIT_SUBSCRIBED = 2


def all_topics(tables: RouteTables) -> TopicList:
    """Every topic (206)."""
    return TopicList(topics=tuple(tables.topics))


def topics_of_cluster(tables: RouteTables, cluster: str) -> TopicList:
    """The topics that some broker of the cluster has (224); none for an unknown cluster."""
    names = tables.clusters.get(cluster, {}).keys()
    return TopicList(topics=tuple(topic for topic, queues in tables.topics.items() if names & queues.keys()))


def system_topics(tables: RouteTables) -> TopicList:
    """The names of clusters and brokers, which are topics of theirs, and the address of some broker, which knows more (304)."""
    names = {name: None for cluster, brokers in tables.clusters.items() for name in (cluster, *brokers)}
    addresses = (address for group in tables.groups.values() for _, address in sorted(group.addresses.items()))
    return TopicList(topics=tuple(names), broker_address=next(addresses, None))


def unit_topics(tables: RouteTables) -> TopicList:
    """Topics of a unit (311)."""
    return _by_flag(tables, lambda flag: bool(flag & _UNIT))


def unit_subscribed_topics(tables: RouteTables) -> TopicList:
    """Topics that a unit has subscribed to (312)."""
    return _by_flag(tables, lambda flag: bool(flag & _UNIT_SUBSCRIBED))


def unit_subscribed_topics_of_no_unit(tables: RouteTables) -> TopicList:
    """Topics that a unit has subscribed to, and that are of none (313)."""
    return _by_flag(tables, lambda flag: flag & (_UNIT | _UNIT_SUBSCRIBED) == _UNIT_SUBSCRIBED)


def _by_flag(tables: RouteTables, is_meant: Callable[[int], bool]) -> TopicList:
    """By the flags that the topic's first broker has."""
    return TopicList(
        topics=tuple(
            topic
            for topic, queues in tables.topics.items()
            if queues and is_meant(next(iter(queues.values())).topic_sys_flag)
        )
    )
