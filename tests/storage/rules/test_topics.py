"""Who may send where: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor.preSend. More of it is in `put_cases/`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.topics import built_in_topics, check_start, topic_from_template, topic_text, unit_sys_flag
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.fixture_stores import Fixture

START_MS = 1_700_000_000_007


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_before_its_start_a_broker_says_when_it_will_serve() -> None:
    """SendMessageProcessor.preSend; the time's text is UtilAll.timeMillisToHumanString2's."""
    with pytest.raises(RequestRefusedError) as refused:
        check_start(SendConfig(start_accept_send_request_time_stamp=START_MS), START_MS - 1)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == "broker unable to service, until 2023-11-14 22:13:20,007"


def test_from_its_start_on_a_broker_serves() -> None:
    """SendMessageProcessor.preSend."""
    check_start(SendConfig(start_accept_send_request_time_stamp=START_MS), START_MS)
    check_start(SendConfig(), 0)


@pytest.mark.parametrize(
    ("topic", "unit_mode", "flag"),
    [("T", False, 0), ("T", True, 1), ("%RETRY%g", True, 2), ("%RETRY%g", False, 0), ("%DLQ%g", True, 1)],
)
def test_unit_mode_is_a_topics_flag(topic: str, unit_mode: bool, flag: int) -> None:
    """AbstractSendMessageProcessor.msgCheck, TopicSysFlag.buildSysFlag."""
    assert unit_sys_flag(topic, unit_mode) == flag


def test_the_built_in_topics_are_the_brokers(pristine_store: Callable[[str], Fixture]) -> None:
    """TopicConfigManager.init, against the topics.json of a broker that has started once."""
    text = (pristine_store("clean").root / "config" / "topics.json").read_text("utf-8")
    theirs = TopicTable.load(text).topics
    ours = built_in_topics(
        "broker-lab", "LabCluster", SendConfig(default_topic_queue_nums=4), TimerConfig(timer_wheel_enable=False)
    )
    assert ours == {topic: theirs[topic] for topic in ours}


@pytest.mark.parametrize(
    ("setting", "topic", "expected"),
    [
        (SendConfig(auto_create_topic_enable=False), "TBW102", None),
        (SendConfig(), "TBW102", 7),
        (SendConfig(cluster_topic_enable=False), "C", 1),
        (SendConfig(), "C", 7),
        (SendConfig(broker_topic_enable=False), "b", 1),
        (SendConfig(), "b", 7),
    ],
)
def test_settings_say_what_the_templates_hand_on(setting: SendConfig, topic: str, expected: int | None) -> None:
    """TopicConfigManager.init."""
    found = built_in_topics("b", "C", setting, TimerConfig()).get(topic)
    assert (None if found is None else found.perm) == expected


def test_an_old_entry_of_the_template_makes_no_topics_where_that_is_switched_off() -> None:
    """TopicConfigManager.createTopicInSendMessageMethod: setPerm of TBW102."""
    topics = {"TBW102": TopicConfig("TBW102", 8, 8, 7), "Other": TopicConfig("Other", 8, 8, 7)}
    assert topic_from_template("T", "TBW102", 4, 0, topics, auto_create=False) is None
    assert topic_from_template("T", "Other", 4, 0, topics, auto_create=False) == TopicConfig("T", 4, 4, 6)


@pytest.mark.parametrize(("perm", "text"), [(7, "RWX"), (6, "RW-"), (4, "R--"), (2, "-W-"), (1, "--X"), (0, "---")])
def test_a_topics_permissions_are_told_in_letters(perm: int, text: str) -> None:
    """PermName.perm2String."""
    assert f"perm={text}," in topic_text(TopicConfig("T", perm=perm))
