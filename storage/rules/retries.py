"""Failed consumptions: the topic of a group where a message goes next, its delay level and its properties. Pure.

    sent back (a consumer gives a message back)      times >= maximum or level < 0 ─▶ %DLQ%GROUP, DELAY 0
                                                     else ─▶ %RETRY%GROUP, DELAY level, or 3 + times where it is 0
    sent (a client puts it into %RETRY%GROUP itself) times >  maximum or the group holds a lock ─▶ %DLQ%GROUP, DELAY −1

The rules take numbers as well as arrays of them, so that a message and a table of rows follow the same code.
Java: AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ,
SubscriptionGroupManager.findSubscriptionGroupConfig, TopicConfigManager.createTopicInSendMessageBackMethod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from storage.errors import NameIllegalError
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import (
    GROUP_LENGTH_LIMIT,
    RETRY_PREFIX,
    dead_letter_topic,
    is_system_group,
    retry_topic,
    validate_group,
)
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig

DEAD_LETTER_QUEUE_COUNT = 1
FIRST_RETRY_LEVEL = 3
"""Added to the number of earlier failures, if the consumer names no level."""
DEAD_LETTER_LEVEL = 0
"""DELAY of a dead letter that was sent back: a positive one would delay it in the schedule topic."""
SENT_DEAD_LETTER_LEVEL = -1
"""DELAY of a dead letter that a client sent to the retry topic once too often."""
UNIT_SUBSCRIBED = 2
"""Bit of a topic's flag: consumers of another unit read it (Java: TopicSysFlag.FLAG_UNIT_SUB)."""
RECONSUME_TIMES, MAX_RECONSUME_TIMES = "RECONSUME_TIME", "MAX_RECONSUME_TIMES"
"""Properties of a client's message for a retry topic, which the client moves into the request's header."""

Value = TypeVar("Value", str, pa.Array)

_POP_RETRY_SEPARATOR = "+"
_GREATEST = 2**31 - 1


class Destinations(NamedTuple):
    """Where messages that are sent back go; arrays, or NumPy scalars."""

    dead: np.ndarray
    """bool: to the dead letters, else to the retry topic."""
    levels: np.ndarray
    """int32: the DELAY that the record gets."""


def sent_back_to(
    reconsume_times: np.ndarray | int, requested_levels: np.ndarray | int, max_reconsume_times: int
) -> Destinations:
    """Where messages go that failed `reconsume_times` before this time. `requested_levels` are the consumer's: 0 leaves the level to
    the broker, a negative one means the dead letters.
    """
    times, requested = np.asarray(reconsume_times, np.int64), np.asarray(requested_levels, np.int64)
    dead = (times >= max_reconsume_times) | (requested < 0)
    levels = np.where(requested == 0, np.minimum(FIRST_RETRY_LEVEL + times, _GREATEST), requested)
    return Destinations(dead, np.where(dead, DEAD_LETTER_LEVEL, levels).astype(np.int32))


def next_reconsume_times(reconsume_times: np.ndarray | int) -> np.ndarray:
    """int32: how often messages failed, including this time. A client may send any number; as in Java, the sum wraps round."""
    return np.minimum(np.asarray(reconsume_times, np.int64) + 1, _GREATEST).astype(np.int32)


def is_sent_too_often(reconsume_times: np.ndarray | int, max_reconsume_times: int) -> np.ndarray:
    """Which messages that clients send to the retry topic become dead letters: they have one try more than those sent back."""
    return np.asarray(np.asarray(reconsume_times) > max_reconsume_times)


class Given(Enum):
    """Which messages get an additional property."""

    ALWAYS = "in place of their own"
    WHERE_MISSING = "where they have none"
    WHERE_BLANK = "where they have none, or a blank one"

    def is_for(self, own: str | None) -> bool:
        """Whether a message with this value of its own gets it."""
        if self is Given.WHERE_BLANK:
            return not (own or "").strip()
        return self is Given.ALWAYS or own is None


def sent_back_says(topic: Value, msg_id: Value, level: Value) -> dict[str, tuple[Given, Value | str]]:
    """The additional properties of a message that is sent back from `topic`, where it has `msg_id`; values or columns.

    Java: MessageAccessor.setOriginMessageId, RETRY_TOPIC, setWaitStoreMsgOK, setDelayTimeLevel.
    """
    return {
        "WAIT": (Given.ALWAYS, "false"),
        "DELAY": (Given.ALWAYS, level),
        "RETRY_TOPIC": (Given.WHERE_MISSING, topic),
        "ORIGIN_MESSAGE_ID": (Given.WHERE_BLANK, msg_id),
    }


def sent_back_properties(properties: Mapping[str, str], topic: str, msg_id: str, level: int) -> dict[str, str]:
    """The properties of one message that is sent back: its own, and where it first came from."""
    says = sent_back_says(topic, msg_id, str(level))
    made = {name: text for name, (given, text) in says.items() if given.is_for(properties.get(name))}
    return {**properties, **made}


class ReturnBar(Enum):
    """Why nothing can be sent back for a group."""

    BROKER_FORBIDS = "the broker takes no messages"
    NO_RETRIES = "the group takes no retries"
    TOPIC_FORBIDS = "its retry topic cannot be written"


def return_bar(config: SubscriptionGroupConfig, retry_target: TopicConfig, broker_permission: int) -> ReturnBar | None:
    """The first obstacle, in Java's order; None if messages can be sent back. Java: consumerSendMsgBack."""
    if not broker_permission & PERM_WRITE:
        return ReturnBar.BROKER_FORBIDS
    if config.retry_queue_count <= 0:
        return ReturnBar.NO_RETRIES
    return None if retry_target.perm & PERM_WRITE else ReturnBar.TOPIC_FORBIDS


def most_retries(config: SubscriptionGroupConfig | None, requested: int | None) -> int:
    """How often a group may try a message again: the consumer's number, else that of its entry, if it has one."""
    if requested is not None:
        return requested
    return 0 if config is None else config.retry_max_times


def find_group(
    group: str,
    groups: Mapping[str, SubscriptionGroupConfig],
    *,
    auto_create: bool,
    create_system_groups: bool = True,
    longest: int = GROUP_LENGTH_LIMIT,
) -> SubscriptionGroupConfig | None:
    """The group's entry: the present one or, if the broker may make it, a new one (which is not in `groups`); else None.

    A new one has at most `longest` characters (`Release.longest_group`). Java: SubscriptionGroupManager.findSubscriptionGroupConfig.

    Departure: a blank name is no group; Java makes an entry for it.
    """
    found = groups.get(group)
    if found is not None or not (auto_create or (create_system_groups and is_system_group(group))):
        return found
    try:
        return SubscriptionGroupConfig(validate_group(group, longest))
    except NameIllegalError:
        return None


def group_of_retry_topic(topic: str) -> str:
    """The group of a `%RETRY%` topic, also of a pop consumer's, `%RETRY%GROUP+TOPIC`. Java: KeyBuilder.parseGroup."""
    parts = topic.rstrip(_POP_RETRY_SEPARATOR).split(_POP_RETRY_SEPARATOR)
    return (parts[0] if len(parts) == 2 else topic).removeprefix(RETRY_PREFIX)


def retry_topic_config(
    config: SubscriptionGroupConfig, topics: Mapping[str, TopicConfig], *, unit_mode: bool = False
) -> TopicConfig:
    """The entry that the group's retry topic must have; equal to the one in `topics` if no change is needed."""
    flag = UNIT_SUBSCRIBED if unit_mode else 0
    return group_topic_config(retry_topic(config.group), config.retry_queue_count, flag, topics)


def retry_queue_count(config: SubscriptionGroupConfig, retry_target: TopicConfig) -> int:
    """How many queues get a group's messages that are sent back: the number in its entry, as far as its retry topic has them.

    Departure: Java draws one of the entry's number (`retryQueueNums`). A retry topic keeps the number with which it was made, so
    if a group's number is raised later, most of its retries are in queues that no consumer reads (apache/rocketmq#3953). The topic does
    not grow by itself: one that an operator has made smaller would come back. An operator must raise it as well as the group.
    """
    return min(config.retry_queue_count, max(1, min(retry_target.write_queue_count, retry_target.read_queue_count)))


def dead_letter_topic_config(group: str, topics: Mapping[str, TopicConfig]) -> TopicConfig:
    """The entry that the group's dead-letter topic must have; equal to the one in `topics` if no change is needed."""
    return group_topic_config(dead_letter_topic(group), DEAD_LETTER_QUEUE_COUNT, 0, topics)


def group_topic_config(topic: str, queue_count: int, sys_flag: int, topics: Mapping[str, TopicConfig]) -> TopicConfig:
    """The entry that a group's topic must have: the present one except its order, or a new one.

    Java: TopicConfigManager.createTopicInSendMessageBackMethod.
    """
    present = topics.get(topic)
    if present is not None:
        return replace(present, order=False) if present.order else present
    return TopicConfig(topic, queue_count, queue_count, PERM_READ | PERM_WRITE, topic_sys_flag=sys_flag)


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The settings and groups that tasks need for rows that are sent to a group again."""

    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict, hash=False)
    auto_create: bool = True
    """Java: autoCreateSubscriptionGroup."""
    create_system_groups: bool = True
    """Java: enableCreateSysGroup."""
    max_reconsume_times: int | None = None
    """How often the consumers try again; None = as their group's entry says."""
    longest_group: int = GROUP_LENGTH_LIMIT
    """Characters of a new group (`Release.longest_group`)."""

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's entry, or its new one; None if it gets none."""
        return find_group(
            name,
            self.groups,
            auto_create=self.auto_create,
            create_system_groups=self.create_system_groups,
            longest=self.longest_group,
        )
