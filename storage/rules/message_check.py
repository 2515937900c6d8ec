"""May this client send to that topic and queue? And if there is no such topic: which one is made for it?

Java: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor.preSend, TopicValidator. Two topics more than Java's six take no
message from a client: the timer's, because a record there that the timer cannot read stops it for ever, and the ledger of this
package's sinks. A broker checks no topic's permission on a send; neither is it checked here.
What a producer would not send in the first place is refused for rows by `row_topics.py`, which asks `check_topic` too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from storage.format.arrays import CONTROL_CHARACTERS, SEPARATORS
from storage.format.properties import is_reserved_name
from storage.names import RETRY_PREFIX, NameFault, topic_name_fault
from storage.rules.auto_topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT, topic_from_template, unit_sys_flag
from storage.rules.delays import TIMER_TOPIC
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.rules.retries import group_topic_config
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
_REMARKS = {
    NameFault.BLANK: "The specified topic is blank.",
    NameFault.CHARACTER: "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    NameFault.LENGTH: "The specified topic is longer than topic max length.",
}
"""Java: TopicValidator.validateTopic."""
WORD_SEPARATORS = CONTROL_CHARACTERS + b" "
UNWANTED = {
    SEPARATORS: "it holds 0x01 or 0x02, which separate properties",
    CONTROL_CHARACTERS: "it holds a control character",
    WORD_SEPARATORS: "it holds a control character or a blank",
}
"""By the ASCII characters that a text must not hold: what is told of one that does."""
NOT_UTF8 = "it is not UTF-8"
BLANK_IN_KEY = "a key of the list holds a blank: a reader would take it for two keys"
EMPTY = "it is empty: no reader would see it"
_PATTERNS = {unwanted: re.compile(f"[{re.escape(unwanted.decode())}]") for unwanted in UNWANTED}


def topic_name_remark(topic: str) -> str | None:
    """Why no topic may have this name, as a broker says it; None if one may. Java: TopicValidator.validateTopic."""
    fault = topic_name_fault(topic)
    return None if fault is None else _REMARKS[fault]


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
        remark = f"broker unable to service, until {shown}"
        reason = f"{remark} (startAcceptSendRequestTimeStamp={start_ms})"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark, reason)


class TopicWish(NamedTuple):
    """What a topic shall be like that a message makes."""

    template: str = AUTO_CREATE_TOPIC
    queue_count: int | None = DEFAULT_TOPIC_QUEUE_COUNT
    """At most the template's; None = as many as that."""
    unit_mode: bool = False
    create: bool | None = None
    """What a user said, which comes before `autoCreateTopicEnable` and the template's permission; None = nobody said it."""
    exact_queue_count: int | None = None
    """What a user said, which comes before the template's."""


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
        reason = f"topic {topic!r} is an order topic, and its broker takes no writes (brokerPermission={send.broker_permission})"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark, reason)
    if (fault := topic_name_fault(topic)) is not None:
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, _REMARKS[fault])
    if topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(OWN_SYSTEM_TOPIC_PREFIX):
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    if config is not None:
        return CheckedTopic(config, is_new=False)
    made = _made(topic, wish, topics, send)
    if made is None:
        remark = with_advice(f"topic[{topic}] not exist, apply first please!")
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, remark, _why_not_made(topic, wish, send))
    return CheckedTopic(made, is_new=True)


def _made(topic: str, wish: TopicWish, topics: Mapping[str, TopicConfig], send: SendConfig) -> TopicConfig | None:
    """The entry that a first message gives its topic, None where it may give none."""
    if wish.create is False:
        return None
    sys_flag = unit_sys_flag(topic, wish.unit_mode)
    auto_create = send.auto_create_topic_enable
    made = topic_from_template(topic, wish.template, wish.queue_count, sys_flag, topics, auto_create=auto_create)
    if made is None and topic.startswith(RETRY_PREFIX):
        made = group_topic_config(topic, 1, sys_flag, topics)
    if made is None and wish.create:
        count = send.default_topic_queue_nums
        made = TopicConfig(topic, count, count, topic_sys_flag=sys_flag)
    if made is None or wish.exact_queue_count is None:
        return made
    return replace(made, read_queue_count=wish.exact_queue_count, write_queue_count=wish.exact_queue_count)


def _why_not_made(topic: str, wish: TopicWish, send: SendConfig) -> str:
    if wish.create is False:
        return f"there is no topic {topic!r}, and createTopic is false"
    why = f"topic {wish.template} hands no permissions on"
    if not send.auto_create_topic_enable:
        why = "autoCreateTopicEnable=false"
    return f"there is no topic {topic!r}, and its broker makes none ({why}): create it, or say createTopic=true"


def check_queue(queue_id: int, config: TopicConfig, client_address: str) -> None:
    """INVALID_PARAMETER for a queue that can neither be read nor written; a topic that was made for the request stays.

    Java: the end of AbstractSendMessageProcessor.msgCheck.
    """
    if queue_id >= queue_limit(config):
        remark = f"request queueId[{queue_id}] is illegal, {topic_text(config)} Producer: {client_address}"
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)


def queue_limit(config: TopicConfig) -> int:
    """A queue that is named must be below this: also one that can only be read takes messages."""
    return max(config.write_queue_count, config.read_queue_count)


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


@lru_cache(4_096)
def text_fault(text: str, unwanted: bytes) -> str | None:
    """Why a text may not become the value of a property; None where it may."""
    if _PATTERNS[unwanted].search(text):
        return UNWANTED[unwanted]
    return None if _is_utf8(text) else NOT_UTF8


def property_fault(name: object, value: object, *, allowed: str = "") -> str | None:
    """Why a program may not give its message that property; None where it may. `allowed` is a reserved name that it may use here."""
    for what, text in (("name", name), ("value", value)):
        if not isinstance(text, str):
            return f"property {name!r}: its {what} is {type(text).__name__}, not text"
        if not text:
            return of_property(str(name), what, EMPTY)
        fault = text_fault(text, SEPARATORS)
        if fault is not None:
            return of_property(str(name), what, fault)
    return reserved(str(name)) if is_reserved_name(str(name)) and name != allowed else None


def of_property(name: str, what: str, rule: str) -> str:
    """The words of a rule that the name or the value of a property breaks."""
    return f"property {name!r}: {rule.replace('it ', f'its {what} ', 1)}"


def reserved(name: str) -> str:
    """What is told of a name that brokers and clients act on."""
    return f"{name} is reserved for brokers and clients; take another name"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
