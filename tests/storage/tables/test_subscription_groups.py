"""subscriptionGroup.json of an Apache broker, and what makes a new group visible to its tools."""

from __future__ import annotations

import json

import pytest

from storage.errors import NameIllegalError, StateFileError
from storage.format.typed_json import DataVersion, SubscriptionGroupConfig
from storage.tables.consumer_groups import SubscriptionGroupTable, ensure_group
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.places import VECTORS

CONFIG = VECTORS / "config"
TEXT = (CONFIG / "subscriptionGroup.json").read_text(encoding="utf-8")
TOPICS = (CONFIG / "topics.json").read_text(encoding="utf-8")
NOW_MS = 1_800_000_000_000


def test_a_brokers_groups() -> None:
    table = SubscriptionGroupTable.load(TEXT)
    assert table.version == DataVersion(counter=3, timestamp_ms=1795220399685)
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "GroupA", "GroupR"} <= set(table.groups)
    assert table.groups["SELF_TEST_C_GROUP"] == SubscriptionGroupConfig("SELF_TEST_C_GROUP")
    assert table.to_text() == TEXT


def test_a_new_group_gets_its_entry_and_its_retry_topic() -> None:
    """The entry is a broker's own but for the name; the topic has one queue, readable and writable."""
    groups, topics = ensure_group(SubscriptionGroupTable.load(TEXT), TopicTable.load(TOPICS), "GroupNew", now_ms=NOW_MS)
    assert topics.topics["%RETRY%GroupNew"] == TopicConfig("%RETRY%GroupNew", 1, 1, perm=6)
    assert (groups.version.counter, topics.version.counter) == (4, 16)
    before, after = json.loads(TEXT), json.loads(groups.to_text())
    entry = after["subscriptionGroupTable"].pop("GroupNew")
    assert after["subscriptionGroupTable"] == before["subscriptionGroupTable"]
    assert entry == {**before["subscriptionGroupTable"]["SELF_TEST_C_GROUP"], "groupName": "GroupNew"}
    assert list(entry) == list(before["subscriptionGroupTable"]["SELF_TEST_C_GROUP"])
    assert SubscriptionGroupTable.load(groups.to_text()) == groups


def test_only_what_is_missing_is_made() -> None:
    groups, topics = SubscriptionGroupTable.load(TEXT), TopicTable.load(TOPICS)
    assert "%RETRY%GroupR" in topics.topics
    same_groups, same_topics = ensure_group(groups, topics, "GroupR", now_ms=NOW_MS)
    assert same_groups is groups
    assert same_topics is topics
    same_groups, more_topics = ensure_group(groups, TopicTable(), "GroupR", now_ms=NOW_MS)
    assert same_groups is groups
    assert list(more_topics.topics) == ["%RETRY%GroupR"]


def test_the_retry_topic_has_as_many_queues_as_the_groups_entry_says() -> None:
    groups = SubscriptionGroupTable.load('{"subscriptionGroupTable":{"G":{"retryQueueNums":3}}}')
    _, topics = ensure_group(groups, TopicTable(), "G", now_ms=NOW_MS)
    assert topics.topics["%RETRY%G"].read_queue_count == 3


def test_what_is_not_known_is_kept() -> None:
    text = """{"forbiddenTable":{"G":{"T":1}},"x":1,
        "subscriptionGroupTable":{"G":{"subscriptionDataSet":[{"topic":"T"}]}}}"""
    table = SubscriptionGroupTable.load(text)
    table = table.with_group(SubscriptionGroupConfig("G", retry_max_times=3), now_ms=NOW_MS)
    written = json.loads(table.to_text())
    assert written["forbiddenTable"] == {"G": {"T": 1}}
    assert written["x"] == 1
    assert written["subscriptionGroupTable"]["G"]["subscriptionDataSet"] == [{"topic": "T"}]
    assert written["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3


def test_a_table_can_begin_empty() -> None:
    groups, _ = ensure_group(SubscriptionGroupTable(), TopicTable(), "G", now_ms=NOW_MS)
    assert list(json.loads(groups.to_text())) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    assert SubscriptionGroupTable.load(groups.to_text()) == groups


@pytest.mark.parametrize("group", ["", "a/b", "a@b", "G" * 249, "G" * 256])
def test_illegal_groups_are_refused_also_for_their_retry_topics_length(group: str) -> None:
    with pytest.raises(NameIllegalError):
        ensure_group(SubscriptionGroupTable(), TopicTable(), group, now_ms=NOW_MS)


def test_a_file_of_another_shape_is_an_error_that_names_the_field() -> None:
    with pytest.raises(StateFileError, match=r"G\.consumeEnable: it must be true or false"):
        SubscriptionGroupTable.load('{"subscriptionGroupTable":{"G":{"consumeEnable":"perhaps"}}}')


def test_what_is_forbidden_is_read_as_fastjson_reads_it() -> None:
    """A number may stand in quotes, and null is nothing."""
    groups = SubscriptionGroupTable.load('{"forbiddenTable":{"G":{"T":"1","U":null},"H":null}}')
    assert groups.forbidden == {"G": {"T": 1}, "H": {}}


@pytest.mark.parametrize("table", ['{"G":3}', '{"G":{"T":"x"}}', '{"G":{"T":[]}}', "[]"])
def test_what_is_forbidden_must_be_numbers_by_group_and_topic(table: str) -> None:
    with pytest.raises(StateFileError, match="is expected, found"):
        SubscriptionGroupTable.load(f'{{"forbiddenTable":{table}}}', "groups.json")
