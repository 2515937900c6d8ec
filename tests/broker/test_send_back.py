"""Messages that consumers give back: AbstractSendMessageProcessor.consumerSendMsgBack, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.broker.put_plan import CURRENT_VERSION
from spark_mq.broker.send_back import SendBackPlan, plan_send_back
from storage import Message
from storage.format.delay import DEFAULT_LEVELS, parse_delay_levels
from storage.format.properties import decode_properties
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.topics import TopicConfig
from tests.support.broker_handlers import back_request
from tests.support.message_builder import make_message, raw_properties

GROUP = "OrderGroup"
RETRY, DEAD = "%RETRY%OrderGroup", "%DLQ%OrderGroup"
DELAYS_MS = parse_delay_levels(DEFAULT_LEVELS)
NOW_MS = 1_750_000_000_000
GROUPS = {GROUP: SubscriptionGroupConfig(GROUP, retry_queue_count=3, retry_max_times=4)}
TOPICS = {RETRY: TopicConfig(RETRY, 3, 3), DEAD: TopicConfig(DEAD, 1, 1)}
PRODUCED = {"TAGS": "paid", "KEYS": "order-1", "UNIQ_KEY": "ABC", "WAIT": "true", "own": "x"}


def consumed(
    topic: str = "Orders", *, times: int = 0, properties: Mapping[str, str] = PRODUCED, **fields: Any
) -> Message:
    """A message as the store gives it to a consumer."""
    raw = raw_properties(properties)
    message = make_message(topic, 2, properties=raw, commitlog_offset=4_711, **fields)
    return replace(message, reconsume_times=times, flag=9, properties=decode_properties(raw))


def plan(
    original: Message | None = None,
    *,
    groups: Mapping[str, SubscriptionGroupConfig] = GROUPS,
    topics: Mapping[str, TopicConfig] = TOPICS,
    send: SendConfig | None = None,
    missing: bool = False,
    client_version: int = CURRENT_VERSION,
    **request: Any,
) -> SendBackPlan:
    """The plan for a message; the last of the retry queues is the one that is drawn."""
    asked = back_request(**{"commitlog_offset": 4_711, "group": GROUP, **request})
    original = None if missing else original or consumed()
    return plan_send_back(
        original,
        asked,
        groups,
        topics,
        config=StoreConfig(send=send or SendConfig()),
        client_version=client_version,
        choose_queue=lambda count: count - 1,
    )


# Where it goes

GREATEST = 2**31 - 1
DESTINATIONS = [
    # name, times failed before, the consumer's level, its maximum, client's version → topic, DELAY
    ("the first failure waits for level 3", 0, 0, None, 479, RETRY, "3"),
    ("each failure waits a level longer", 3, 0, None, 479, RETRY, "6"),
    ("the consumer's level goes before the broker's", 3, 2, None, 479, RETRY, "2"),
    ("level 1 is a level", 3, 1, None, 479, RETRY, "1"),
    ("a level above the last stays as it is said: the put makes it the last", 0, 40, None, 479, RETRY, "40"),
    ("times equal to the group's maximum are too many", 4, 0, None, 479, DEAD, "0"),
    ("a level that the consumer names does not save a dead letter, nor delay it", 4, 5, None, 479, DEAD, "0"),
    ("a negative level asks for the dead letters", 0, -1, None, 479, DEAD, "0"),
    ("the request's maximum goes before the group's", 4, 0, 5, 479, RETRY, "7"),
    ("the request's maximum can be lower", 2, 0, 2, 479, DEAD, "0"),
    ("a maximum of 0 tries nothing again", 0, 0, 0, 479, DEAD, "0"),
    ("a client before 3.4.9 has no say in the maximum", 3, 0, 2, 120, RETRY, "6"),
    ("a client of 3.4.9 has", 3, 0, 2, 121, DEAD, "0"),
]


@pytest.mark.parametrize(
    ("times", "level", "maximum", "version", "topic", "delay"),
    [pytest.param(*case[1:], id=f"{case[0]} [consumerSendMsgBack]") for case in DESTINATIONS],
)
def test_where_a_message_goes(
    times: int, level: int, maximum: int | None, version: int, topic: str, delay: str
) -> None:
    made = plan(consumed(times=times), delay_level=level, max_reconsume_times=maximum, client_version=version)
    assert made.message is not None
    assert (made.message.topic, made.message.properties["DELAY"]) == (topic, delay)
    assert made.is_dead_letter == (topic == DEAD)
    assert made.message.reconsume_times == times + 1
    assert made.message.queue_id == (0 if topic == DEAD else 2), "any retry queue; of dead letters there is one"


@pytest.mark.parametrize(
    ("times", "maximum", "topic", "delay"),
    [(GREATEST, None, DEAD, "0"), (GREATEST - 1, GREATEST, RETRY, str(GREATEST))],
)
def test_times_that_cannot_grow_stay_the_greatest(times: int, maximum: int | None, topic: str, delay: str) -> None:
    """consumerSendMsgBack, whose sums wrap round: a client may say any number of times, and would begin anew."""
    made = plan(consumed(times=times), max_reconsume_times=maximum).message
    assert made is not None
    assert (made.topic, made.properties["DELAY"], made.reconsume_times) == (topic, delay, GREATEST)


# What it holds


def test_a_message_keeps_all_that_it_was_and_learns_where_it_came_from() -> None:
    """consumerSendMsgBack: body, flags, birth and properties are the original's; only the WAIT of its producer goes."""
    original = replace(consumed(sys_flag=0x8 | 0x1 | 0x300 | 0x10, body=b"packed"), prepared_transaction_offset=77)
    made = plan(original).message
    assert made == InnerMessage(
        topic=RETRY,
        queue_id=2,
        body=b"packed",
        properties={
            **PRODUCED,
            "WAIT": "false",
            "DELAY": "3",
            "RETRY_TOPIC": "Orders",
            "ORIGIN_MESSAGE_ID": original.msg_id,
        },
        flag=9,
        sys_flag=0x8 | 0x1 | 0x300,
        born_time_ms=original.born_time_ms,
        born_host=original.born_host,
        reconsume_times=1,
        prepared_transaction_offset=0,
    )


def test_the_first_origin_is_kept_through_all_retries() -> None:
    """consumerSendMsgBack: PROPERTY_RETRY_TOPIC and ORIGIN_MESSAGE_ID are written where they are missing, the id also where blank."""
    known = {**PRODUCED, "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "7F", "DELAY": "3", "REAL_TOPIC": RETRY}
    made = plan(consumed(RETRY, times=1, properties=known)).message
    assert made is not None
    assert made.properties == {**known, "WAIT": "false", "DELAY": "4"}
    blank = plan(original := consumed(RETRY, properties={**known, "ORIGIN_MESSAGE_ID": " "})).message
    assert blank is not None
    assert blank.properties["ORIGIN_MESSAGE_ID"] == original.msg_id


# What is made, and what is refused

ADVICE = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
READ_ONLY = SendConfig(broker_permission=4)
NO_NEW_GROUPS = SendConfig(auto_create_subscription_group=False)
FORBIDDEN_RETRIES = {RETRY: TopicConfig(RETRY, 3, 3, perm=4)}
NO_RETRIES = {GROUP: SubscriptionGroupConfig(GROUP, retry_queue_count=0)}


@pytest.mark.parametrize(
    ("case", "code", "remark", "made_topics", "made_groups"),
    [
        pytest.param(
            {"groups": {}, "send": NO_NEW_GROUPS},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {GROUP} {ADVICE}",
            [],
            [],
            id="a group that may not be made is unknown [consumerSendMsgBack]",
        ),
        pytest.param(
            {"group": "a/b"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, a/b {ADVICE}",
            [],
            [],
            id="no group is made for an illegal name [SubscriptionGroupManager.findSubscriptionGroupConfig]",
        ),
        pytest.param(
            {"group": "g" * 256},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {'g' * 256} {ADVICE}",
            [],
            [],
            id="nor for one of more than 255 characters [SubscriptionGroupManager.findSubscriptionGroupConfig]",
        ),
        pytest.param(
            {"groups": {}, "send": replace(READ_ONLY)},
            ResponseCode.NO_PERMISSION,
            "the broker[127.0.0.1] sending message is forbidden",
            [],
            [GROUP],
            id="a broker that may not be written to takes nothing back, but makes the group [consumerSendMsgBack]",
        ),
        pytest.param(
            {"groups": NO_RETRIES, "topics": {}},
            ResponseCode.SUCCESS,
            None,
            [],
            [],
            id="a group without retry queues gives the message up [consumerSendMsgBack]",
        ),
        pytest.param(
            {"topics": FORBIDDEN_RETRIES, "delay_level": -1},
            ResponseCode.NO_PERMISSION,
            f"the topic[{RETRY}] sending message is forbidden",
            [],
            [],
            id="a retry topic that may not be written to refuses dead letters too [consumerSendMsgBack]",
        ),
        pytest.param(
            {"topics": {}, "missing": True},
            ResponseCode.SYSTEM_ERROR,
            "look message by offset failed, 4711",
            [RETRY],
            [],
            id="the retry topic is made before the message is looked for [consumerSendMsgBack]",
        ),
    ],
)
def test_a_message_that_is_not_taken_back(
    case: dict[str, Any], code: ResponseCode, remark: str | None, made_topics: list[str], made_groups: list[str]
) -> None:
    made = plan(**case)
    assert made.message is None
    assert made.verdict == (code, remark)
    assert [topic.topic for topic in made.topics] == made_topics
    assert [group.group for group in made.groups] == made_groups


def test_a_group_that_is_not_known_is_made_with_its_topics() -> None:
    """SubscriptionGroupManager.findSubscriptionGroupConfig, TopicConfigManager.createTopicInSendMessageBackMethod."""
    made = plan(groups={}, topics={}, delay_level=-1)
    assert made.groups == (SubscriptionGroupConfig(GROUP, retry_queue_count=1, retry_max_times=16),)
    assert made.topics == (TopicConfig(RETRY, 1, 1, perm=6), TopicConfig(DEAD, 1, 1, perm=6))


def test_a_system_group_is_made_even_where_others_are_not() -> None:
    """SubscriptionGroupManager.findSubscriptionGroupConfig: enableCreateSysGroup."""
    system = "CID_RMQ_SYS_OURS"
    assert plan(group=system, send=NO_NEW_GROUPS).message is not None
    neither = replace(NO_NEW_GROUPS, enable_create_sys_group=False)
    assert plan(group=system, send=neither).verdict.code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_the_retry_topic_gets_the_groups_queues_and_the_dead_letters_one() -> None:
    """createTopicInSendMessageBackMethod: retryQueueNums and 1 queues, permission 6; in unit mode the retry topic is marked."""
    made = plan(topics={}, unit_mode=True, delay_level=-1)
    assert made.topics == (TopicConfig(RETRY, 3, 3, perm=6, topic_sys_flag=2), TopicConfig(DEAD, 1, 1, perm=6))
    assert plan(topics=TOPICS, delay_level=-1).topics == ()


def test_a_topic_that_is_there_is_left_but_for_its_order() -> None:
    """createTopicInSendMessageBackMethod: order is taken off, queues and permission stay; a dead letter needs no permission."""
    topics = {RETRY: TopicConfig(RETRY, 9, 9, order=True), DEAD: TopicConfig(DEAD, 7, 7, perm=4)}
    made = plan(topics=topics, delay_level=-1)
    assert made.topics == (TopicConfig(RETRY, 9, 9, order=False),)
    assert made.message is not None
    assert (made.message.topic, made.message.queue_id) == (DEAD, 0)
