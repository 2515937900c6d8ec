"""A message that a client sends to a group's retry topic: it is tried again, or it has failed too often. Pure.

That is the way of orderly consumers, who suspend a queue while they try and send a message away only when they give up, and of any
client that could not send one back. Their client moves the properties RECONSUME_TIME and MAX_RECONSUME_TIMES into the request.
Java: SendMessageProcessor.handleRetryAndDLQ; of the client: ConsumeMessageOrderlyService.sendMessageBack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from storage.format.record import MULTI_TAGS
from storage.names import RETRY_PREFIX
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.rules.retries import (
    SENT_DEAD_LETTER_LEVEL,
    dead_letter_topic_config,
    find_group,
    group_of_retry_topic,
    is_sent_too_often,
    most_retries,
)
from storage.settings.nouns import SendConfig
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import TopicConfig

CURRENT_VERSION = 479
"""Of a client of 5.3.3. Java: MQVersion.Version, an ordinal."""
SAYS_MAXIMUM_VERSION = 121
"""From 3.4.9 on a client says how many retries it allows; what an older one says is not looked at."""


class Routed(NamedTuple):
    """The message, and the entries to be saved before it is put."""

    message: InnerMessage
    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()
    is_dead_letter: bool = False


def retry_or_dead_letter(
    message: InnerMessage,
    groups: Mapping[str, SubscriptionGroupConfig],
    topics: Mapping[str, TopicConfig],
    *,
    send: SendConfig,
    max_reconsume_times: int | None = None,
    client_version: int = CURRENT_VERSION,
    group_holds_lock: bool = False,
) -> Routed:
    """The message as it goes on: itself where its topic is no group's retry topic, or where it may be tried again.

    `max_reconsume_times` is the request's, `group_holds_lock` whether an orderly consumer of the group has a queue locked now
    (Java: RebalanceLockManager): then nothing is tried again. A dead letter's DELAY is −1, so it is not delayed.
    The topic's filter type goes into `sys_flag`, as that of every message. Raises RequestRefusedError.
    """
    if not message.topic.startswith(RETRY_PREFIX):
        return Routed(_with_filter_type(message, topics.get(message.topic)))
    group = group_of_retry_topic(message.topic)
    config = known_group(group, groups, send)
    new_groups = () if group in groups else (config,)
    maximum = allowed_retries(config, max_reconsume_times, client_version)
    if not group_holds_lock and not is_sent_too_often(message.reconsume_times, maximum):
        return Routed(_with_filter_type(message, topics.get(message.topic)), groups=new_groups)
    target = dead_letter_topic_config(group, topics)
    dead_letter = replace(
        message,
        topic=target.topic,
        queue_id=0,
        properties={**message.properties, "DELAY": str(SENT_DEAD_LETTER_LEVEL)},
    )
    return Routed(_with_filter_type(dead_letter, target), changed(target, topics), new_groups, is_dead_letter=True)


def known_group(group: str, groups: Mapping[str, SubscriptionGroupConfig], send: SendConfig) -> SubscriptionGroupConfig:
    """The group's entry, a new one where the broker makes it. Raises RequestRefusedError where there is none to be."""
    config = find_group(
        group,
        groups,
        auto_create=send.auto_create_subscription_group,
        create_system_groups=send.enable_create_sys_group,
    )
    if config is None:
        remark = with_advice(f"subscription group not exist, {group} ")
        raise RequestRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return config


def allowed_retries(config: SubscriptionGroupConfig, asked: int | None, client_version: int) -> int:
    """How often the group may try a message again: as the request says, if its client is one that does."""
    return most_retries(config, None if client_version < SAYS_MAXIMUM_VERSION else asked)


def changed(wanted: TopicConfig, topics: Mapping[str, TopicConfig]) -> tuple[TopicConfig, ...]:
    """The entry, where the table does not hold it as it is wanted."""
    return () if topics.get(wanted.topic) == wanted else (wanted,)


def _with_filter_type(message: InnerMessage, topic: TopicConfig | None) -> InnerMessage:
    if topic is None or topic.topic_filter_type != "MULTI_TAG":
        return message
    return replace(message, sys_flag=message.sys_flag | MULTI_TAGS)
