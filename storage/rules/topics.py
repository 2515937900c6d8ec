"""The topics that a message may go to: those that a broker makes itself, and the rules for a client and for a row without a producer.

    a request   `check_topic` ─▶ `check_queue`                          (the broker's rule)
    a row       no topic of the system's or of a group's ─▶ `check_topic` ─▶ what the topic's route would say
                (the sink's own rule)                                        (the producer's rule)

A user's options override the store's settings (`RowWish`), but never a refusal of the broker. Retry and
dead-letter topics are made in `storage/rules/retries.py`.

Departure: two more topics than Java's six accept no message from a client: the timer's, because a record there that the timer cannot
read stops it forever, and the ledger of this package's sinks. A broker checks no topic's permission on a send; nor is it checked here.

Java: TopicConfigManager (its constructor, createTopicInSendMessageMethod), TopicSysFlag; AbstractSendMessageProcessor.msgCheck,
SendMessageProcessor.preSend, TopicValidator; BrokerController.registerBrokerAll, which removes brokerPermission from each route;
MQClientInstance.topicRouteData2TopicPublishInfo, which omits queues without write permission.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from storage.errors import NameIllegalError
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import (
    RETRY_PREFIX,
    TOPIC_LENGTH_LIMIT,
    NameFault,
    is_retry_or_dead_letter_topic,
    is_system_topic,
    topic_name_fault,
    validate_user_topic,
)
from storage.rules.delays import TIMER_TOPIC
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.rules.retries import UNIT_SUBSCRIBED, group_topic_config
from storage.rules.static_topics import LedQueues
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.topics import (
    OWN_SYSTEM_TOPIC_PREFIX,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    QUEUE_COUNT_LIMIT,
    BrokerNames,
    TopicConfig,
    TopicQueueMapping,
    topics_of_names,
)

AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that a first message makes, unless the client names another."""
DEFAULT_TOPIC_QUEUE_COUNT = 4
"""The number that a Java producer requests. Java: DefaultMQProducer.defaultTopicQueueNums."""
READ_WRITE = PERM_READ | PERM_WRITE
_SCHEDULE_QUEUE_COUNT = 18
_BENCHMARK_QUEUE_COUNT = 1024

UNIT = 0x1
"""Bit of a topic's flag: a unit's own topic (Java: TopicSysFlag.FLAG_UNIT)."""


def unit_sys_flag(topic: str, unit_mode: bool) -> int:
    """The `topicSysFlag` of a topic that a message makes. Java: AbstractSendMessageProcessor.msgCheck, TopicSysFlag.buildSysFlag."""
    if not unit_mode:
        return 0
    return UNIT_SUBSCRIBED if topic.startswith(RETRY_PREFIX) else UNIT


def built_in_topics(
    broker_name: str | None, cluster_name: str, send: SendConfig, timer: TimerConfig
) -> dict[str, TopicConfig]:
    """The topics that every broker has, in its file or not; entries of the file override them. Java: TopicConfigManager.init."""
    queues = send.default_topic_queue_nums
    topics = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1),
        TopicConfig("BenchmarkTest", _BENCHMARK_QUEUE_COUNT, _BENCHMARK_QUEUE_COUNT),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
        TopicConfig(SCHEDULE_TOPIC, _SCHEDULE_QUEUE_COUNT, _SCHEDULE_QUEUE_COUNT),
        TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
        TopicConfig("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 1),
        *topics_of_names(BrokerNames(broker_name, cluster_name), send),
    ]
    if send.auto_create_topic_enable:
        topics.append(TopicConfig(AUTO_CREATE_TOPIC, queues, queues, PERM_INHERIT | READ_WRITE))
    if send.trace_topic_enable:
        topics.append(TopicConfig(send.msg_trace_topic_name, 1, 1))
    if timer.timer_wheel_enable:
        topics.append(TopicConfig(TIMER_TOPIC, 1, 1))
    return {topic.topic: topic for topic in topics}


def known_topics(
    topics: Mapping[str, TopicConfig], broker_name: str | None, cluster_name: str, send: SendConfig, timer: TimerConfig
) -> Mapping[str, TopicConfig]:
    """The entries of topics.json, and those that every broker has. A view: nothing is copied."""
    key = id(send), id(timer), broker_name, cluster_name
    found = _BUILT_IN.get(key)
    if found is None:
        if len(_BUILT_IN) >= _KEPT:
            _BUILT_IN.clear()
        found = _BUILT_IN[key] = send, timer, built_in_topics(broker_name, cluster_name, send, timer)
    return _KnownTopics(cast("dict[str, TopicConfig]", topics), found[2])


class _KnownTopics(ChainMap[str, TopicConfig]):
    def get(self, key: str, default: Any = None) -> Any:
        """As in any mapping; a request calls it several times."""
        own, built_in = self.maps
        found = own.get(key)
        return built_in.get(key, default) if found is None else found

    def __contains__(self, key: object) -> bool:
        own, built_in = self.maps
        return key in own or key in built_in


_KEPT = 16
_BUILT_IN: dict[tuple[int, int, str | None, str], tuple[SendConfig, TimerConfig, dict[str, TopicConfig]]] = {}
"""By the settings' identity, which is valid while they are kept here: comparing them costs more than all other rules for a request."""


def topic_from_template(
    topic: str,
    template: str,
    client_queue_count: int | None,
    sys_flag: int,
    topics: Mapping[str, TopicConfig],
    *,
    auto_create: bool,
) -> TopicConfig | None:
    """The topic that a first message makes, None if its template does not allow it.

    The template's permissions must be inheritable (perm bit "inherit"); TBW102's are so only while `autoCreateTopicEnable` is set,
    regardless of an old entry. Queues: the client's number, at most the template's; without one the template's.
    Java: TopicConfigManager.createTopicInSendMessageMethod.
    """
    model = topics.get(template)
    if model is None or not model.perm & PERM_INHERIT or (template == AUTO_CREATE_TOPIC and not auto_create):
        return None
    wished = model.write_queue_count if client_queue_count is None else client_queue_count
    queue_count = max(0, min(wished, model.write_queue_count))
    return TopicConfig(
        topic, queue_count, queue_count, model.perm & ~PERM_INHERIT, model.topic_filter_type, topic_sys_flag=sys_flag
    )


NOT_ALLOWED_SEND_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,  # ours
    }
)
"""Java: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET, except the marked ones."""
_REMARKS = {
    NameFault.BLANK: "The specified topic is blank.",
    NameFault.CHARACTER: "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    NameFault.LENGTH: "The specified topic is longer than topic max length.",
}
"""Java: TopicValidator.validateTopic."""


def topic_name_remark(topic: str) -> str | None:
    """A broker's remark on an illegal topic name; None if it is legal. Java: TopicValidator.validateTopic."""
    fault = topic_name_fault(topic)
    return None if fault is None else _REMARKS[fault]


class CheckedTopic(NamedTuple):
    """The topic of an accepted request."""

    config: TopicConfig
    is_new: bool
    """It does not exist yet: save it before the message."""


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
    """The requested properties of a topic that a message makes."""

    template: str = AUTO_CREATE_TOPIC
    queue_count: int | None = DEFAULT_TOPIC_QUEUE_COUNT
    """At most the template's; None = the template's."""
    unit_mode: bool = False
    create: bool | None = None
    """A user's option, which overrides `autoCreateTopicEnable` and the template's permission; None = not given."""
    exact_queue_count: int | None = None
    """A user's option, which overrides the template's number."""


def check_topic(
    topic: str, wish: TopicWish, topics: Mapping[str, TopicConfig], send: SendConfig, broker_address: str
) -> CheckedTopic:
    """The topic of a message. Raises RequestRefusedError. Java: AbstractSendMessageProcessor.msgCheck.

    `topics` are the file's entries and the built-in ones. A broker without write permission refuses only order topics; producers
    avoid it because of its route.
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
    """The entry that a first message gives its topic, None if it may give none."""
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
    """A named queue must be below this: queues that can only be read also accept messages."""
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


@dataclass(frozen=True, slots=True)
class RowWish:
    """The options of a put or a sink; None = the store's settings decide."""

    create_topic: bool | None = None
    """Overrides `autoCreateTopicEnable`."""
    queue_count: int | None = None
    """Overrides the template's number, which is `defaultTopicQueueNums`."""

    @property
    def of_topic(self) -> TopicWish:
        """Rows request as many queues as the template has; a Java client requests 4."""
        return TopicWish(queue_count=None, create=self.create_topic, exact_queue_count=self.queue_count)


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The store's settings and tables for topics. Equal rules refuse equally."""

    topics: Mapping[str, TopicConfig] = field(hash=False)
    """The entries of topics.json."""
    send: SendConfig
    timer: TimerConfig
    broker_name: str | None
    cluster_name: str
    mappings: Mapping[str, TopicQueueMapping] = field(hash=False)
    """Static topics."""

    def check(self, topic: str, wish: RowWish) -> CheckedTopic:
        """The topic that a row names, or the one that it makes. Raises RequestRefusedError with the reason why it takes no row."""
        try:
            validate_user_topic(topic, broker_name=self.broker_name, cluster_name=self.cluster_name)
        except NameIllegalError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, error.rule, error.describe()) from error
        assert len(topic) <= TOPIC_LENGTH_LIMIT, "a topic's length has one byte in the record"
        checked = check_topic(topic, wish.of_topic, self._known, self.send, "")
        check_route(checked.config, self.send.broker_permission)
        return checked

    def led_queues(self, config: TopicConfig) -> LedQueues | None:
        """The logical queues of a static topic that rows may go to; None for an ordinary topic. Raises RequestRefusedError if it
        has none here.
        """
        mapping = self.mappings.get(config.topic)
        return None if mapping is None else LedQueues.of(mapping, queue_limit(config))

    def refusal_of_staged(
        self, topic: str, queue_ids: Sequence[int], wish: RowWish, made: int | None, grown: int
    ) -> tuple[int, str] | None:
        """The first of these (physical) queues with staged rows that accepts none now, and why; None = all do.

        `made` is how many queues a missing topic gets, `grown` how many an existing one with fewer.
        """
        try:
            config = self._staged_topic(topic, wish)
            led = None if config is None else self.led_queues(config)
        except RequestRefusedError as refused:
            return queue_ids[0], refused.reason
        count = (made or 0) if config is None else max(queue_limit(config), grown)
        for queue_id in queue_ids:
            if led is not None and queue_id not in led.physical:
                return queue_id, "it belongs to no logical queue that is led here (topicQueueMapping.json)"
            if queue_id >= count:
                return queue_id, f"the topic has {count} write queues"
        return None

    def _staged_topic(self, topic: str, wish: RowWish) -> TopicConfig | None:
        """The entry of an existing topic, None for one that the commit makes."""
        if is_retry_or_dead_letter_topic(topic):  # its group's rules decide (`storage/rules/retries.py`)
            there = self.topics.get(topic)
            if there is not None:
                check_permission(there)
            return there
        checked = self.check(topic, wish)
        return None if checked.is_new else checked.config

    def new_topic(self, topic: str, queue_count: int) -> TopicConfig:
        """The entry that rows make: the template's, with that many queues. Topics of groups and of the system have no template."""
        made = None
        if not is_retry_or_dead_letter_topic(topic) and not is_system_topic(topic):
            made = topic_from_template(topic, AUTO_CREATE_TOPIC, None, 0, self._known, auto_create=True)
        made = made or TopicConfig(topic)
        return TopicConfig(topic, queue_count, queue_count, made.perm, made.topic_filter_type)

    @property
    def _known(self) -> Mapping[str, TopicConfig]:
        return known_topics(self.topics, self.broker_name, self.cluster_name, self.send, self.timer)


def has_batch_queues(config: TopicConfig | None) -> bool:
    """Whether a topic's consume queues are batch queues. Java: QueueTypeUtils.isBatchCq."""
    return config is not None and config.is_batched


def check_route(config: TopicConfig, broker_permission: int) -> None:
    """Check that a producer's route has a queue to write, and that this package can write it. Raises RequestRefusedError."""
    if has_batch_queues(config):
        reason = f"topic {config.topic!r} has batch consume queues (queue.type=BatchCQ), which are not supported"
        raise RequestRefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)
    check_permission(config)
    if not broker_permission & PERM_WRITE:
        reason = f"topic {config.topic!r} cannot be written: its broker takes no writes (brokerPermission={broker_permission})"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)
    check_queue_count(config)


def check_permission(config: TopicConfig) -> None:
    """A read-only topic takes no rows. Raises RequestRefusedError."""
    if not config.perm & PERM_WRITE:
        reason = f"topic {config.topic!r} cannot be written (perm {config.perm})"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)


def check_queue_count(config: TopicConfig) -> None:
    """Rows without a queue go to all in turn, and each queue is a directory. Raises RequestRefusedError; a broker has no limit."""
    if config.write_queue_count < 1:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"topic {config.topic!r} has no write queues")
    if config.write_queue_count > QUEUE_COUNT_LIMIT:
        reason = (
            f"topic {config.topic!r} has {config.write_queue_count} write queues, and at most {QUEUE_COUNT_LIMIT} are written "
            "(writeQueueNums)"
        )
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, reason)
