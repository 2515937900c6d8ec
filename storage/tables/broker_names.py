"""What a store's broker and cluster are called. Neither name stands in a store, but a broker makes topics that are named after both.

Java: TopicConfigManager (its constructor).
"""

from __future__ import annotations

from typing import NamedTuple

from storage.names import BROKER_MEMBER_TOPIC_PREFIX, REPLY_TOPIC_SUFFIX
from storage.settings.load import StoreConfig
from storage.tables.topics import PERM_INHERIT, TopicTable


class BrokerNames(NamedTuple):
    """Of the broker whose store it is. Nobody may know the broker's; a cluster's has a default."""

    broker: str | None
    cluster: str


def broker_names(config: StoreConfig, topics: TopicTable, asked: str | None = None) -> BrokerNames:
    """For the broker's name the one that is `asked` for, else the configuration's names, else those that the topics tell, else Java's
    default for the cluster's.
    """
    own_cluster = None if config.is_configured("brokerClusterName") else _cluster_of(topics)
    return BrokerNames(
        asked or config.identity.broker_name or _broker_of(topics), own_cluster or config.identity.broker_cluster_name
    )


def _broker_of(table: TopicTable) -> str | None:
    members = sorted(topic for topic in table.topics if topic.startswith(BROKER_MEMBER_TOPIC_PREFIX))
    return members[0].removeprefix(BROKER_MEMBER_TOPIC_PREFIX) if members else None


def _cluster_of(table: TopicTable) -> str | None:
    """The topic with a reply topic that hands its permissions on; a user's topic, which may have such a neighbour, does not."""
    for topic in sorted(table.topics):
        if table.topics[topic].perm & PERM_INHERIT and f"{topic}{REPLY_TOPIC_SUFFIX}" in table.topics:
            return topic
    return None
