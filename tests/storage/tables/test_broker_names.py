"""What broker and cluster are called, where the configuration says it, an option, or only the topics that a broker made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import StoreConfig, load_config, parse_config
from storage.settings.nouns import SendConfig
from storage.tables.topics import BrokerNames, TopicConfig, TopicTable, broker_names, named_brokers, with_names
from tests.support.fixture_stores import Fixture


def table_of(*topics: TopicConfig) -> TopicTable:
    return TopicTable(topics={topic.topic: topic for topic in topics})


@pytest.mark.parametrize("name", ["clean", "expired", "ext", "v4.9.7", "v5.0.0"])
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


def named(name: str, cluster: str = "DefaultCluster") -> TopicTable:
    return with_names(TopicTable(), BrokerNames(name, cluster), SendConfig(), now_ms=1)


def test_what_is_written_is_what_a_broker_has_of_these_names(pristine_store: Callable[[str], Fixture]) -> None:
    """Against the topics.json that an Apache broker wrote."""
    theirs = TopicTable.load((pristine_store("clean").root / "config" / "topics.json").read_text("utf-8"))
    ours = named("broker-lab", "LabCluster")
    assert len(ours.topics) == 5
    assert ours.topics == {topic: theirs.topics[topic] for topic in ours.topics}
    assert broker_names(StoreConfig(), TopicTable.load(ours.to_text())) == BrokerNames("broker-lab", "LabCluster")


@pytest.mark.parametrize("name", ["clean", "expired", "ext", "v4.9.7", "v5.0.0", "v5.3.3"])
def test_a_brokers_own_table_is_left_as_it_is(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    table = TopicTable.load((fixture.root / "config" / "topics.json").read_text("utf-8"))
    config = load_config(str(fixture.root), read_bytes=LocalFileSystem().read_file)
    assert with_names(table, broker_names(config, table), config.send, now_ms=1) is table


def test_where_nobody_knows_the_name_nothing_is_written() -> None:
    table = table_of(TopicConfig("Topic"))
    assert with_names(table, broker_names(StoreConfig(), table), SendConfig(), now_ms=1) is table


def test_of_two_names_none_is_chosen() -> None:
    """A broker of Java's that was renamed keeps the topics of both names."""
    both = TopicTable(topics={**named("a", "C").topics, **named("b", "D").topics})
    assert named_brokers(both) == ["a", "b"]
    assert broker_names(StoreConfig(), both) == BrokerNames(None, "DefaultCluster")
    assert broker_names(parse_config(b"brokerName=b\n", "broker.conf"), both).broker == "b"
    assert broker_names(StoreConfig(), both, "a").broker == "a"


def test_whoever_writes_under_a_new_name_leaves_that_alone() -> None:
    renamed = with_names(named("a"), BrokerNames("b", "DefaultCluster"), SendConfig(), now_ms=2)
    assert named_brokers(renamed) == ["b"]
    assert renamed.topics["a"] == TopicConfig("a", 1, 1, 7), "messages may be in it"
    assert with_names(renamed, BrokerNames("b", "DefaultCluster"), SendConfig(), now_ms=3) is renamed


def test_a_users_topic_is_no_brokers_name() -> None:
    inheriting = TopicConfig("Mine", 1, 1, perm=7)
    assert named_brokers(table_of(inheriting)) == []
    assert named_brokers(TopicTable(topics={**named("a").topics, "Mine": inheriting})) == ["a"]


def test_brokers_of_before_5_0_are_known_by_the_topic_of_their_name() -> None:
    """4.9.8: no rmq_sys_SYNC_BROKER_MEMBER, no rmq_sys_REVIVE_LOG. Java: TopicConfigManager (its constructor)."""
    old = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1),
        TopicConfig("TBW102", 1, 1, 7),
        TopicConfig("C", perm=7),
        TopicConfig("C_REPLY_TOPIC", 1, 1),
        TopicConfig("broker-a", 1, 1, 7),
    ]
    assert broker_names(StoreConfig(), table_of(*old)) == BrokerNames("broker-a", "C")
    assert broker_names(StoreConfig(), table_of(*old, TopicConfig("broker-b", 1, 1, 7))).broker is None
