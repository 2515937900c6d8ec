"""Which names are legal and which are a broker's own: TopicValidator, Validators and HookUtils."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import NameIllegalError
from storage.names import (
    dead_letter_topic,
    is_retry_or_dead_letter_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
    validate_broker_name,
    validate_group,
    validate_topic,
    validate_user_topic,
)

HOSTILE = [
    "",
    " ",
    "\u3000",
    ".",
    "..",
    "../escape",
    "a/b",
    "/absolute",
    "a\\b",
    "nul\x00",
    "line\n",
    "trailing ",
    "property\x01value",
    "property\x02",
    "caf\u00e9",
    "\u6d88\u606f",
    "digit\u0663",
    "fullwidth\uff21",
    "half\ud800",
    "topic@group",
    "a:b",
    "a*",
    "a?",
    "a#b",
]


@pytest.mark.parametrize("validate", [validate_topic, validate_group, validate_broker_name])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_everywhere(validate: Callable[[str], str], name: str) -> None:
    with pytest.raises(NameIllegalError) as caught:
        validate(name)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "name", ["TopicA", "%RETRY%GroupA", "MQ_INST_lab_001%TopicNs", "a-b_c|d%e", "0", "-", "T" * 127]
)
def test_names_of_the_legal_characters_are_returned(name: str) -> None:
    assert validate_topic(name) == name
    assert validate_group(name) == name


@pytest.mark.parametrize(
    ("validate", "name"),
    [
        (validate_topic, "T" * 128),
        (validate_topic, "%DLQ%" + "G" * 123),
        (validate_topic, "%RETRY%" + "G" * 249),
        (validate_group, "G" * 256),
        (validate_broker_name, "b" * 256),
    ],
)
def test_too_long_names_are_refused(validate: Callable[[str], str], name: str) -> None:
    with pytest.raises(NameIllegalError, match=f"it has {len(name)} characters"):
        validate(name)


def test_only_retry_topics_may_be_longer_than_127() -> None:
    """HookUtils.checkBeforePutMessage; a broker has such topics where a group's name is long."""
    assert validate_topic("%RETRY%" + "G" * 248)
    assert validate_group("G" * 255)


def test_a_brokers_name_may_be_a_host_name_but_not_dots() -> None:
    assert validate_broker_name("broker-a.example.org") == "broker-a.example.org"
    with pytest.raises(NameIllegalError, match="dots"):
        validate_broker_name("...")


@given(st.text())
def test_no_legal_topic_leaves_its_directory(name: str) -> None:
    try:
        validate_topic(name)
    except NameIllegalError:
        return
    assert name.isascii()
    assert not set(name) & set("./\\\x00")


@pytest.mark.parametrize(
    "topic",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_LabCluster",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-lab",
    ],
)
def test_system_topics_of_every_broker(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize("topic", ["LabCluster", "LabCluster_REPLY_TOPIC", "broker-lab"])
def test_system_topics_named_after_broker_and_cluster(topic: str) -> None:
    assert not is_system_topic(topic)
    assert is_system_topic(topic, broker_name="broker-lab", cluster_name="LabCluster")


@pytest.mark.parametrize("topic", ["TopicA", "%RETRY%GroupA", "%DLQ%GroupA", "RMQ_SYS_OTHER", "RMQ_sys_", "tbw102"])
def test_topics_of_users(topic: str) -> None:
    assert not is_system_topic(topic, broker_name="broker-lab", cluster_name="LabCluster")


def test_topics_and_groups_of_consumers() -> None:
    assert retry_topic("G") == "%RETRY%G"
    assert dead_letter_topic("G") == "%DLQ%G"
    assert [is_retry_or_dead_letter_topic(topic) for topic in ("%RETRY%G", "%DLQ%G", "G", "%retry%G")] == [
        True,
        True,
        False,
        False,
    ]
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("GroupA")


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("TBW102", "system topic"),
        ("rmq_sys_anything", "system topic"),
        ("broker-a", "system topic"),
        ("Cluster", "system topic"),
        ("Cluster_REPLY_TOPIC", "system topic"),
        ("%RETRY%group", "belongs to a consumer group"),
        ("%DLQ%a/b", "belongs to a consumer group"),
        ("a/b", "is none of"),
        ("T" * 128, "the limit is 127"),
    ],
)
def test_users_may_not_send_to_a_brokers_topics_nor_to_a_groups(topic: str, rule: str) -> None:
    with pytest.raises(NameIllegalError, match=rule):
        validate_user_topic(topic, broker_name="broker-a", cluster_name="Cluster")


def test_users_may_send_to_what_another_broker_or_cluster_is_called() -> None:
    for topic in ("orders", "broker-b", "DefaultCluster", "Other_REPLY_TOPIC"):
        assert validate_user_topic(topic, broker_name="broker-a", cluster_name="Cluster") == topic
