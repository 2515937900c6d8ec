"""Topics that a broker makes itself: those it is born with, and those that a first message makes.

Retry and dead-letter topics: `storage/rules/retries.py`.
Java: TopicConfigManager (its constructor, createTopicInSendMessageMethod), TopicSysFlag.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any, cast

from storage.format.delay import SCHEDULE_TOPIC
from storage.names import RETRY_PREFIX
from storage.rules.delays import TIMER_TOPIC
from storage.rules.retries import UNIT_SUBSCRIBED
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.broker_names import BrokerNames, topics_of_names
from storage.tables.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig

AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that a first message makes, unless the client names another."""
DEFAULT_TOPIC_QUEUE_COUNT = 4
"""What a Java producer asks for. Java: DefaultMQProducer.defaultTopicQueueNums."""
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
    """The topics that every broker has, in its file or not; entries of the file go before them. Java: TopicConfigManager.init."""
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
    """The entries of topics.json over those that every broker has. A view: nothing is copied."""
    key = id(send), id(timer), broker_name, cluster_name
    found = _BUILT_IN.get(key)
    if found is None:
        if len(_BUILT_IN) >= _KEPT:
            _BUILT_IN.clear()
        found = _BUILT_IN[key] = send, timer, built_in_topics(broker_name, cluster_name, send, timer)
    return _KnownTopics(cast("dict[str, TopicConfig]", topics), found[2])


class _KnownTopics(ChainMap[str, TopicConfig]):
    def get(self, key: str, default: Any = None) -> Any:
        """As any mapping's; a request asks several times."""
        own, built_in = self.maps
        found = own.get(key)
        return built_in.get(key, default) if found is None else found

    def __contains__(self, key: object) -> bool:
        own, built_in = self.maps
        return key in own or key in built_in


_KEPT = 16
_BUILT_IN: dict[tuple[int, int, str | None, str], tuple[SendConfig, TimerConfig, dict[str, TopicConfig]]] = {}
"""By the settings' identity, which holds while they are kept here: comparing them costs more than all the rest of a request's rules."""


def topic_from_template(
    topic: str,
    template: str,
    client_queue_count: int | None,
    sys_flag: int,
    topics: Mapping[str, TopicConfig],
    *,
    auto_create: bool,
) -> TopicConfig | None:
    """The topic that a first message makes, None where its template does not allow it.

    The template must hand its permissions on (perm bit "inherit"); TBW102 does so only while `autoCreateTopicEnable` is set,
    whatever an old entry of it says. Queues: the client's wish, at most the template's; all of them where nobody wishes.
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
