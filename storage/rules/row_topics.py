"""Which topic a row may go to. A row has no producer, so what a producer would not do is refused here, beside what a broker refuses.

    no topic of the system's or of a group's ─▶ `check_topic`, as for a request ─▶ what the topic's route would say
    (the sink's own rule)                       (the broker's rule)               (the producer's rule)

A user's word in the options comes before the store's settings (`RowWish`), never before a refusal of the broker's.
Java: AbstractSendMessageProcessor.msgCheck; BrokerController.registerBrokerAll, which takes brokerPermission off each route;
MQClientInstance.topicRouteData2TopicPublishInfo, which leaves queues without write permission away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage.errors import NameIllegalError
from storage.names import TOPIC_LENGTH_LIMIT, is_retry_or_dead_letter_topic, is_system_topic, validate_user_topic
from storage.rules.auto_topics import AUTO_CREATE_TOPIC, known_topics, topic_from_template
from storage.rules.message_check import CheckedTopic, TopicWish, check_topic, queue_limit
from storage.rules.put_guards import has_batch_queues
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.static_topics import LedQueues
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.topic_queue_mappings import TopicQueueMapping
from storage.tables.topics import PERM_WRITE, QUEUE_COUNT_LIMIT, TopicConfig


@dataclass(frozen=True, slots=True)
class RowWish:
    """What the user of a put or a sink named; None = as the store's settings say."""

    create_topic: bool | None = None
    """Comes before `autoCreateTopicEnable`."""
    queue_count: int | None = None
    """Comes before the template's, which has `defaultTopicQueueNums`."""

    @property
    def of_topic(self) -> TopicWish:
        """Rows ask for as many queues as the template has; a Java client asks for 4."""
        return TopicWish(queue_count=None, create=self.create_topic, exact_queue_count=self.queue_count)


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What the store's settings and tables say about topics. Equal rules refuse equally."""

    topics: Mapping[str, TopicConfig] = field(hash=False)
    """Those of topics.json."""
    send: SendConfig
    timer: TimerConfig
    broker_name: str | None
    cluster_name: str
    mappings: Mapping[str, TopicQueueMapping] = field(hash=False)
    """Static topics."""

    def check(self, topic: str, wish: RowWish) -> CheckedTopic:
        """The topic that a row names, or the one that it makes. Raises RequestRefusedError, whose reason says why it takes no row."""
        try:
            validate_user_topic(topic, broker_name=self.broker_name, cluster_name=self.cluster_name)
        except NameIllegalError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, error.rule, error.describe()) from error
        assert len(topic) <= TOPIC_LENGTH_LIMIT, "a topic's length has one byte in the record"
        checked = check_topic(topic, wish.of_topic, self._known, self.send, "")
        check_route(checked.config, self.send.broker_permission)
        return checked

    def led_queues(self, config: TopicConfig) -> LedQueues | None:
        """The logical queues of a static topic that rows may go to; None for an ordinary topic. Raises RequestRefusedError where it
        has none here.
        """
        mapping = self.mappings.get(config.topic)
        return None if mapping is None else LedQueues.of(mapping, queue_limit(config))

    def refusal_of_staged(
        self, topic: str, queue_ids: Sequence[int], wish: RowWish, made: int | None, grown: int
    ) -> tuple[int, str] | None:
        """The first of these (physical) queues, for which rows were staged, that takes none by now, and why; None = all do.

        `made` is how many queues the topic gets if it is not there, `grown` how many if it is there with fewer.
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
        """The entry of a topic that is there, None of one that the commit makes."""
        if is_retry_or_dead_letter_topic(topic):  # by its group's rules (`storage/rules/retries.py`)
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


def check_route(config: TopicConfig, broker_permission: int) -> None:
    """Whether a producer's route has a queue to write, and this package can write it. Raises RequestRefusedError."""
    if has_batch_queues(config):
        reason = f"topic {config.topic!r} has batch consume queues (queue.type=BatchCQ), which are not supported"
        raise RequestRefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)
    check_permission(config)
    if not broker_permission & PERM_WRITE:
        reason = f"nobody may write to topic {config.topic!r}: its broker takes no writes (brokerPermission={broker_permission})"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)
    check_queue_count(config)


def check_permission(config: TopicConfig) -> None:
    """A topic that only is read takes no rows. Raises RequestRefusedError."""
    if not config.perm & PERM_WRITE:
        reason = f"nobody may write to topic {config.topic!r} (perm {config.perm})"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)


def check_queue_count(config: TopicConfig) -> None:
    """Rows without a queue go to all in turn, and each queue is a directory. Raises RequestRefusedError; a broker sets no limit."""
    if config.write_queue_count < 1:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"topic {config.topic!r} has no write queues")
    if config.write_queue_count > QUEUE_COUNT_LIMIT:
        reason = (
            f"topic {config.topic!r} has {config.write_queue_count} write queues, and at most {QUEUE_COUNT_LIMIT} are written "
            "(writeQueueNums)"
        )
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, reason)
