"""Names of a store's broker and cluster, from the topics that a broker names after both.

A broker keeps these topics in topics.json among its users':

    NAME                            perm 7 (1 without brokerTopicEnable), one queue
    rmq_sys_SYNC_BROKER_MEMBER_NAME perm 1, one queue, since 5.0: no client may make such a topic
    CLUSTER                         perm 7 (1 without clusterTopicEnable), 16 queues
    CLUSTER_REPLY_TOPIC             one queue
    rmq_sys_REVIVE_LOG_CLUSTER      eight queues, since 5.0

If topics name several brokers, none is chosen: a broker that was renamed keeps the topics of its old name.

Java: TopicConfigManager (its constructor).
"""

from __future__ import annotations

from typing import NamedTuple

from storage.names import BROKER_MEMBER_TOPIC_PREFIX, REPLY_TOPIC_SUFFIX, REVIVE_TOPIC_PREFIX, SYSTEM_TOPICS
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig, TopicTable

_REVIVE_QUEUE_COUNT = 8
_OF_EVERY_BROKER = "SELF_TEST_TOPIC"


class BrokerNames(NamedTuple):
    """Names of the store's broker and cluster. The broker's may be unknown; the cluster's has a default."""

    broker: str | None
    cluster: str


def broker_names(config: StoreConfig, topics: TopicTable, requested: str | None = None) -> BrokerNames:
    """The broker's name is `requested`, else the configured one, else the one that the topics name. The cluster's is the configured
    one, else the topics', else Java's default.
    """
    own_cluster = None if config.is_configured("brokerClusterName") else _only(_clusters_of(topics))
    return BrokerNames(
        requested or config.identity.broker_name or _only(named_brokers(topics)),
        own_cluster or config.identity.broker_cluster_name,
    )


def named_brokers(table: TopicTable) -> list[str]:
    """The broker names in the topics: several if it was renamed, none if no broker wrote the table."""
    members = [topic for topic in table.topics if topic.startswith(BROKER_MEMBER_TOPIC_PREFIX)]
    if members:
        return sorted(topic.removeprefix(BROKER_MEMBER_TOPIC_PREFIX) for topic in members)
    if _OF_EVERY_BROKER not in table.topics:  # then no broker wrote it, not even one before 5.0
        return []
    others = SYSTEM_TOPICS | set(_clusters_of(table))
    return sorted(
        topic
        for topic, config in table.topics.items()
        if topic not in others
        and config.perm & PERM_INHERIT
        and config.read_queue_count == config.write_queue_count == 1
    )


def topics_of_names(names: BrokerNames, send: SendConfig) -> list[TopicConfig]:
    """The topics that a broker with these names has. Java: TopicConfigManager.init."""
    return _of_cluster(names.cluster, send) + ([] if names.broker is None else _of_broker(names.broker, send))


def with_names(table: TopicTable, names: BrokerNames, send: SendConfig, *, now_ms: int) -> TopicTable:
    """The table with topics for these names, and for no other broker name; itself if it has them already, or the name is unknown.

    Departure: Java adds its own name and keeps the old one, so a reader cannot know which one is current. Here the topic
    `rmq_sys_SYNC_BROKER_MEMBER` of the old name goes; no broker stores a message in it. Java also writes topics without a name: here
    only the settings determine them.
    """
    if names.broker is None:
        return table
    wanted = [] if named_brokers(table) == [names.broker] else _of_broker(names.broker, send)
    clusters = _clusters_of(table)
    # With several, none was chosen, and the name is the default.
    if names.cluster not in clusters and len(clusters) < 2:
        wanted = _of_cluster(names.cluster, send) + wanted
    for topic in wanted:
        if topic.topic not in table.topics:
            table = table.with_topic(topic, now_ms=now_ms)
    for other in named_brokers(table):
        if other != names.broker:
            table = table.without_topic(f"{BROKER_MEMBER_TOPIC_PREFIX}{other}", now_ms=now_ms)
    return table


def _of_broker(name: str, send: SendConfig) -> list[TopicConfig]:
    return [
        TopicConfig(name, 1, 1, _inherited(send.broker_topic_enable)),
        TopicConfig(f"{BROKER_MEMBER_TOPIC_PREFIX}{name}", 1, 1, PERM_INHERIT),
    ]


def _of_cluster(name: str, send: SendConfig) -> list[TopicConfig]:
    return [
        TopicConfig(name, perm=_inherited(send.cluster_topic_enable)),
        TopicConfig(f"{name}{REPLY_TOPIC_SUFFIX}", 1, 1),
        TopicConfig(f"{REVIVE_TOPIC_PREFIX}{name}", _REVIVE_QUEUE_COUNT, _REVIVE_QUEUE_COUNT),
    ]


def _inherited(is_enabled: bool) -> int:
    return PERM_INHERIT | (PERM_READ | PERM_WRITE if is_enabled else 0)


def _clusters_of(table: TopicTable) -> list[str]:
    """Topics with a reply topic whose permissions are inherited; a user's topic with such a neighbour has others.

    If brokers since 5.0 have written, the cluster also has a topic for revived POP messages.
    """
    found = [
        topic
        for topic, config in sorted(table.topics.items())
        if config.perm & PERM_INHERIT and f"{topic}{REPLY_TOPIC_SUFFIX}" in table.topics
    ]
    return [topic for topic in found if f"{REVIVE_TOPIC_PREFIX}{topic}" in table.topics] or found


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None
