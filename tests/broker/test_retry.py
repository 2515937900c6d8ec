"""Messages that clients send to a retry topic: SendMessageProcessor.handleRetryAndDLQ, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.broker.put_plan import Routed, retry_or_dead_letter
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.topics import TopicConfig

GROUP = "OrderGroup"
RETRY, DEAD = "%RETRY%OrderGroup", "%DLQ%OrderGroup"
GROUPS = {GROUP: SubscriptionGroupConfig(GROUP, retry_queue_count=3, retry_max_times=4)}
TOPICS = {RETRY: TopicConfig(RETRY, 3, 3), DEAD: TopicConfig(DEAD, 1, 1)}
# What ConsumeMessageOrderlyService.sendMessageBack sends. DefaultMQProducerImpl.sendKernelImpl takes RECONSUME_TIME and
# MAX_RECONSUME_TIMES out; where another client leaves one, the broker neither reads nor removes it.
PROPERTIES = {"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "7F", "DELAY": "7", "MAX_RECONSUME_TIMES": "1", "own": "x"}


def sent(topic: str = RETRY, *, times: int = 0) -> InnerMessage:
    return InnerMessage(
        topic=topic, queue_id=2, body=b"body", properties=PROPERTIES, flag=9, born_time_ms=77, reconsume_times=times
    )


def routed(
    message: InnerMessage,
    *,
    groups: Mapping[str, SubscriptionGroupConfig] = GROUPS,
    topics: Mapping[str, TopicConfig] = TOPICS,
    send: SendConfig | None = None,
    **request: Any,
) -> Routed:
    return retry_or_dead_letter(message, groups, topics, config=StoreConfig(send=send or SendConfig()), **request)


@pytest.mark.parametrize(
    ("times", "request_says", "is_dead"),
    [
        pytest.param(*case[1:], id=f"{case[0]} [handleRetryAndDLQ]")
        for case in [
            ("fewer times than the group's maximum", 3, {}, False),
            ("times equal to the maximum are tried once more, unlike those sent back", 4, {}, False),
            ("more times than the maximum are too many", 5, {}, True),
            ("the request's maximum goes before the group's", 5, {"max_reconsume_times": 5}, False),
            ("the request's maximum can be lower", 3, {"max_reconsume_times": 2}, True),
            ("a maximum of 0 still tries a message once", 0, {"max_reconsume_times": 0}, False),
            ("a client before 3.4.9 has no say", 3, {"max_reconsume_times": 2, "client_version": 120}, False),
            ("a client of 3.4.9 has", 3, {"max_reconsume_times": 2, "client_version": 121}, True),
            ("nothing is tried again while a consumer of the group holds a lock", 0, {"group_holds_lock": True}, True),
        ]
    ],
)
def test_a_message_is_tried_again_or_dead(times: int, request_says: dict[str, Any], is_dead: bool) -> None:
    message = sent(times=times)
    made = routed(message, **request_says)
    assert made.is_dead_letter == is_dead
    if is_dead:
        properties = {**PROPERTIES, "DELAY": "-1"}
        assert made.message == replace(message, topic=DEAD, queue_id=0, properties=properties)
    else:
        assert made.message == message
    assert (made.topics, made.groups) == ((), ())


def test_a_dead_letter_topic_is_made_with_one_queue_and_permission_6() -> None:
    """TopicConfigManager.createTopicInSendMessageBackMethod."""
    made = routed(sent(times=5), topics={RETRY: TOPICS[RETRY]})
    assert made.topics == (TopicConfig(DEAD, 1, 1, perm=6),)


def test_a_dead_letter_topic_that_is_there_is_left_but_for_its_order() -> None:
    """createTopicInSendMessageBackMethod; handleRetryAndDLQ draws from one queue however many there are, and asks no permission."""
    made = routed(sent(times=5), topics={DEAD: TopicConfig(DEAD, 8, 8, perm=4, order=True)})
    assert made.topics == (TopicConfig(DEAD, 8, 8, perm=4),)
    assert made.message.queue_id == 0


def test_a_group_that_is_not_known_is_made_if_the_broker_may() -> None:
    """SubscriptionGroupManager.findSubscriptionGroupConfig, whose default allows 16 retries."""
    made = routed(sent(times=16), groups={})
    assert made.groups == (SubscriptionGroupConfig(GROUP, retry_queue_count=1, retry_max_times=16),)
    assert made.message.topic == RETRY
    assert routed(sent(times=17), groups={}).message.topic == DEAD


def test_a_group_that_may_not_be_made_is_unknown() -> None:
    """handleRetryAndDLQ: SUBSCRIPTION_GROUP_NOT_EXIST, with a pointer to the FAQ."""
    with pytest.raises(RequestRefusedError) as refused:
        routed(sent(), groups={}, send=SendConfig(auto_create_subscription_group=False))
    advice = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    assert refused.value.code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert refused.value.remark == f"subscription group not exist, {GROUP} \n{advice}"


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("%RETRY%G", "G"),
        ("%RETRY%G_Orders", "G_Orders"),
        ("%RETRY%G+Orders", "G"),
        ("%RETRY%G+Orders+", "G"),  # Java's split drops what is empty at the end
        ("%RETRY%G+Or+ders", "G+Or+ders"),
        ("%RETRY%G+", "G+"),
    ],
)
def test_whose_retry_topic_it_is(topic: str, group: str) -> None:
    """KeyBuilder.parseGroup: a pop consumer's retry topic names its topic behind a plus sign."""
    groups = {group: SubscriptionGroupConfig(group, retry_max_times=0)}
    no_others = SendConfig(auto_create_subscription_group=False)
    assert routed(sent(topic, times=1), groups=groups, send=no_others).message.topic == f"%DLQ%{group}"


def test_other_topics_are_left_alone() -> None:
    """handleRetryAndDLQ looks at topics that begin with %RETRY%; a dead letter that is sent is an ordinary message."""
    for topic in ("Orders", DEAD, f"x{RETRY}"):
        message = sent(topic, times=99)
        assert routed(message, group_holds_lock=True) == Routed(message)


def test_the_filter_type_of_the_topic_it_goes_to_marks_the_message() -> None:
    """handleRetryAndDLQ: MessageSysFlag.MULTI_TAGS_FLAG by the topic's filter type, last of all the dead-letter topic's."""
    multi = {"topic_filter_type": "MULTI_TAG"}
    topics = {"Orders": TopicConfig("Orders", **multi), RETRY: TOPICS[RETRY], DEAD: TopicConfig(DEAD, 1, 1, **multi)}  # type: ignore[arg-type]
    flags = [routed(message, topics=topics).message.sys_flag for message in (sent("Orders"), sent(), sent(times=5))]
    assert flags == [2, 0, 2]
