"""May this client send to that topic and queue? And if there is no such topic: which one is made for it?

Java: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor.preSend, TopicValidator. Two topics more than Java's six take no
message from a client: the timer's, because a record there that the timer cannot read stops it for ever, and the ledger of this
package's sinks. A broker checks no topic's permission on a send; neither is it checked here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from storage.messages.delays import TIMER_TOPIC
from storage.messages.retries import group_topic_config
from storage.names import RETRY_PREFIX, TOPIC_LENGTH_LIMIT
from storage.rules.auto_topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT, topic_from_template, unit_sys_flag
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.settings.nouns import SendConfig
from storage.tables.topics import OWN_SYSTEM_TOPIC_PREFIX, PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig

NOT_ALLOWED_SEND_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,  # ours
    }
)
"""Java: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET, but for what is marked."""
_LEGAL_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")


class CheckedTopic(NamedTuple):
    """The topic of a request that may be sent."""

    config: TopicConfig
    is_new: bool
    """It is not there yet: save it before the message."""


def check_start(send: SendConfig, now_ms: int) -> None:
    """SYSTEM_ERROR until `startAcceptSendRequestTimeStamp`, in the broker's local time. Java: SendMessageProcessor.preSend."""
    start_ms = send.start_accept_send_request_time_stamp
    if now_ms < start_ms:
        seconds, millis = divmod(start_ms, 1000)
        shown = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{millis:03d}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {shown}")


class TopicWish(NamedTuple):
    """What a topic shall be like that a message makes."""

    template: str = AUTO_CREATE_TOPIC
    queue_count: int = DEFAULT_TOPIC_QUEUE_COUNT
    unit_mode: bool = False


def check_topic(
    topic: str, wish: TopicWish, topics: Mapping[str, TopicConfig], send: SendConfig, broker_address: str
) -> CheckedTopic:
    """The topic that a message goes to. Raises RequestRefusedError. Java: AbstractSendMessageProcessor.msgCheck.

    `topics` are the file's entries over the built-in ones. A broker without write permission refuses order topics only; producers
    leave it because its route says so.
    """
    config = topics.get(topic)
    if not send.broker_permission & PERM_WRITE and config is not None and config.order:
        remark = f"the broker[{broker_address}] sending message is forbidden"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
    if rule := _illegal(topic):
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, rule)
    if topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(OWN_SYSTEM_TOPIC_PREFIX):
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    if config is not None:
        return CheckedTopic(config, is_new=False)
    sys_flag = unit_sys_flag(topic, wish.unit_mode)
    made = topic_from_template(
        topic, wish.template, wish.queue_count, sys_flag, topics, auto_create=send.auto_create_topic_enable
    )
    if made is None and topic.startswith(RETRY_PREFIX):
        made = group_topic_config(topic, 1, sys_flag, topics)
    if made is None:
        remark = with_advice(f"topic[{topic}] not exist, apply first please!")
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, remark)
    return CheckedTopic(made, is_new=True)


def check_queue(queue_id: int, config: TopicConfig, client_address: str) -> None:
    """INVALID_PARAMETER for a queue that can neither be read nor written; a topic that was made for the request stays.

    Java: the end of AbstractSendMessageProcessor.msgCheck.
    """
    if queue_id >= max(config.write_queue_count, config.read_queue_count):
        remark = f"request queueId[{queue_id}] is illegal, {topic_text(config)} Producer: {client_address}"
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)


def _illegal(topic: str) -> str | None:
    """Java: TopicValidator.validateTopic, whose limit no `%RETRY%` topic is spared."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _LEGAL_TOPIC.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > TOPIC_LENGTH_LIMIT:
        return "The specified topic is longer than topic max length."
    return None


def topic_text(config: TopicConfig) -> str:
    """Java: TopicConfig.toString, PermName.perm2String."""
    bits = (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in bits)
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic}, readQueueNums={config.read_queue_count}, "
        f"writeQueueNums={config.write_queue_count}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )
