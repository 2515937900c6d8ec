"""What broker and cluster are called, where the configuration says it, an option, or only the topics that a broker made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import StoreConfig, load_config, parse_config
from storage.tables.broker_names import BrokerNames, broker_names
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.fixture_stores import Fixture


def table_of(*topics: TopicConfig) -> TopicTable:
    return TopicTable(topics={topic.topic: topic for topic in topics})


@pytest.mark.parametrize("name", ["clean", "expired", "ext"])
def test_a_brokers_topics_tell_what_its_configuration_says(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    topics = TopicTable.load((fixture.root / "config" / "topics.json").read_text("utf-8"), "topics.json")
    configured = load_config(str(fixture.root), read_bytes=LocalFileSystem().read_file)
    assert configured.identity.broker_name is not None
    expected = BrokerNames(configured.identity.broker_name, configured.identity.broker_cluster_name)
    assert expected.cluster != BrokerNames(None, "DefaultCluster").cluster
    assert broker_names(configured, TopicTable()) == broker_names(StoreConfig(), topics) == expected


def test_what_is_asked_for_comes_first_then_the_configuration_then_the_topics() -> None:
    topics = table_of(
        TopicConfig("rmq_sys_SYNC_BROKER_MEMBER_told", perm=1),
        TopicConfig("ToldCluster", perm=7),
        TopicConfig("ToldCluster_REPLY_TOPIC"),
    )
    configured = parse_config(b"brokerName=own\nbrokerClusterName=DefaultCluster\n", "broker.conf")
    assert broker_names(configured, topics, "asked") == BrokerNames("asked", "DefaultCluster")
    assert broker_names(configured, topics) == BrokerNames("own", "DefaultCluster")
    assert broker_names(StoreConfig(), topics, "asked") == BrokerNames("asked", "ToldCluster")
    assert broker_names(StoreConfig(), topics) == BrokerNames("told", "ToldCluster")
    assert broker_names(StoreConfig(), TopicTable()) == BrokerNames(None, "DefaultCluster")


def test_a_users_topic_with_replies_of_its_own_is_no_cluster() -> None:
    """Java: TopicConfigManager gives PERM_INHERIT to the cluster's topic, mqadmin updateTopic 6 to a user's."""
    asked, replies = TopicConfig("Asked"), TopicConfig("Asked_REPLY_TOPIC")
    assert broker_names(StoreConfig(), table_of(asked, replies)).cluster == "DefaultCluster"
    alone = TopicConfig("TBW102", perm=7)
    assert broker_names(StoreConfig(), table_of(asked, replies, alone)).cluster == "DefaultCluster"
