"""The rules of a store for rows, and the topics that they may go to.

`storage/rules/topics.py` decides which topics those are, once for each topic that rows name.
Java: Validators, HookUtils.checkBeforePutMessage, MessageExtEncoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from storage.errors import NameIllegalError
from storage.format.arrays import string_hash
from storage.format.delay import DEFAULT_LEVELS, parse_delay_levels
from storage.format.properties import leading_properties
from storage.format.record import MULTI_TAGS, V4_HOST_SIZE
from storage.names import validate_group, validate_topic
from storage.rules.delays import Congestion, DelayRules
from storage.rules.half_messages import PREPARED, TransactionRules
from storage.rules.response_codes import RequestRefusedError
from storage.rules.retries import RetryRules, dead_letter_topic_config, most_retries, retry_topic_config
from storage.rules.static_topics import LedQueues
from storage.rules.topics import RowWish, TopicRules, check_route, queue_limit
from storage.settings.nouns import SendConfig, TimerConfig
from storage.tables.topics import TopicConfig, TopicQueueMapping

DEFAULT_QUEUE_COUNT = SendConfig().default_topic_queue_nums
"""Queues of a topic that rows make, unless a setting or an option says otherwise. Java: BrokerConfig.defaultTopicQueueNums."""
NAMED_QUEUES_LIMIT = 4_096
"""The most queues that a topic gets because rows name them; for more, a user must give a number. A broker has no limit."""
DEFAULT_DELAYS_MS = parse_delay_levels(DEFAULT_LEVELS)


class TopicTarget(NamedTuple):
    """A topic for rows. With a `refusal`, the reason why it takes no message, the other fields are meaningless."""

    topic: str
    queue_count: int = 1
    """Rows that name no queue are spread over so many."""
    queue_limit: int = 1
    """A queue that a row names must be below this. Above `there_count` if the topic gets the queues that rows name."""
    there_count: int = 1
    """How many queues exist, to write or read."""
    led: LedQueues | None = None
    """For a static topic: the logical queues that rows may name, and that others are spread over; the counts refer to them."""
    is_new: bool = False
    needs_keys: bool = False
    sys_flag: int = 0
    key_prefix_hash: int = 0  # `String.hashCode` of the part before a key in the index, modulo 2^32
    refusal: str | None = None
    is_fixed: bool = False
    """Neither a row nor an option adds a queue."""
    max_message_size: int | None = None
    """The largest stored body in bytes that its broker accepts; None = as the rules say."""
    log_file_size: int | None = None
    """The size of its broker's log files; None = as the rules say."""
    size_cure: str = ""
    """Which broker has that limit, and how to raise it."""

    def physical_queue(self, place: int) -> int:
        """The queue of the store for one of `queue_limit` places: the same number, except for a static topic."""
        return place if self.led is None else int(self.led.physical[place])

    @property
    def greatest_queue(self) -> int:
        """An upper bound of the queue ids of this topic's rows."""
        return self.queue_limit if self.led is None else int(self.led.physical.max())


@dataclass(frozen=True, slots=True)
class MessageRules:
    """The settings and options that tasks need to make messages of rows; a value that is sent to them."""

    topic: str | None = None
    """The topic of all rows; None = each row's column."""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    """The existing topics."""
    create_topic: bool | None = None
    """Whether missing topics are made; None = as `autoCreateTopicEnable` says."""
    queue_count: int | None = None
    """Write queues of a topic that is created, unless rows name more; None = its template's."""
    send: SendConfig = field(default_factory=SendConfig)
    mappings: Mapping[str, TopicQueueMapping] = field(default_factory=dict, hash=False)
    """The static topics."""
    grow_to: int = 0
    """An existing topic with fewer write queues gets, up to this many, those that rows name."""
    growing: frozenset[str] = frozenset()
    """Existing topics that get the queues that rows name, as if they were created."""
    broker_name: str | None = None
    cluster_name: str = "DefaultCluster"
    region: str = "DefaultRegion"
    trace_on: bool = True
    max_message_size: int = 4 * 1024 * 1024
    """Bytes of a body as stored."""
    log_file_size: int = 1024 * 1024 * 1024
    """Bytes; a record and the filler after it must fit into one file."""
    host_size: int = V4_HOST_SIZE
    """Bytes of the store's address and port: 8, or 20 for IPv6."""
    appends_crc: bool = False
    """Whether records end in a checksum of themselves, for which their properties need room."""
    indexes_tags: bool = False
    """Whether the index has the messages' tags (`Release.indexes_tags`)."""
    honours_priority: bool = False
    """Whether a row's priority chooses its queue (`Release.honours_priority`)."""
    compress_body_over: int | None = None
    """Bodies of at least so many bytes are compressed, as by a Java client (compressMsgBodyOverHowmuch)."""
    keep_unique_key: bool = False
    strict_properties: bool = False
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    """The delay of each level, from level 1."""
    timer: TimerConfig = field(default_factory=TimerConfig)
    is_congested: Congestion | None = None
    """Selects the times for which the timer accepts nothing more; None = it accepts all."""
    is_repeatable: bool = False
    """The same rows always make the same messages: a row with a past delivery time goes to the timer, too."""
    transaction: TransactionRules | None = None
    """None = rows are ordinary messages."""
    retries: RetryRules = field(default_factory=RetryRules)
    is_sent: bool = False
    """A broker will apply delays and move the rows: here they keep their properties, as a client's messages do."""
    most_level: int | None = None
    """The highest delay level that a row may send to a broker; None = any."""
    row_mark: str | None = None
    """Each message gets the property ROW_MARK: this text and its rank in the task, by which it can be found again."""

    @property
    def said_of_all(self) -> Mapping[str, str]:
        """Column → the option's value for all rows. It overrides the rows' values, as option `topic` of Spark's Kafka sink does."""
        group = None if self.transaction is None else self.transaction.producer_group
        said = {"topic": self.topic, "producer_group": group}
        return {column: text for column, text in said.items() if text is not None}

    @property
    def leading(self) -> Mapping[str, str]:
        """The properties that all messages share, before their own."""
        leading = leading_properties(self.region, self.trace_on, self.cluster_name)
        return leading if self.transaction is None else leading | {PREPARED: "true"}

    def target(self, topic: str | None) -> TopicTarget:
        """The target of the topic that a row names; None if it names none."""
        name = self.topic if topic is None else topic
        if name is None:
            return TopicTarget("", refusal="it is null, and the option topic is not given")
        rules = self.topic_rules
        try:
            config, is_new = rules.check(name, RowWish(self.create_topic, self.queue_count))
            led = rules.led_queues(config)
        except RequestRefusedError as refused:
            return TopicTarget(name, refusal=refused.reason)
        return TopicTarget(
            name,
            queue_count=config.write_queue_count if led is None else len(led.logical),
            queue_limit=self._queue_limit(config, is_new) if led is None else len(led.logical),
            there_count=queue_limit(config),
            led=led,
            is_new=is_new,
            needs_keys=config.is_compacted,
            sys_flag=MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0,
            key_prefix_hash=string_hash(f"{name}#") & 0xFFFFFFFF,
        )

    @property
    def delay_rules(self) -> DelayRules:
        """The rules for delays."""
        return DelayRules(
            self.delays_ms, self.timer, self.is_congested, self.is_repeatable, self.is_sent, self.most_level
        )

    @property
    def topic_rules(self) -> TopicRules:
        """The rules for topics."""
        return TopicRules(self.topics, self.send, self.timer, self.broker_name, self.cluster_name, self.mappings)

    def max_reconsume_times(self, group: str) -> int:
        """How often the group may try a message again."""
        return most_retries(self.retries.group(group), self.retries.max_reconsume_times)

    def retry_target(self, group: str, is_dead: bool) -> TopicTarget:
        """The target of a group's retry topic, or of its dead letters'. A broker makes them regardless of `create_topic`."""
        config = self.retries.group(group)
        if config is None:
            return TopicTarget("", refusal=_refusal_of_group(group, self.retries.longest_group))
        made = dead_letter_topic_config(group, self.topics) if is_dead else retry_topic_config(config, self.topics)
        try:
            validate_topic(made.topic)
        except NameIllegalError as error:
            return TopicTarget(made.topic, refusal=error.describe())
        try:
            check_route(made, self.send.broker_permission)
        except RequestRefusedError as refused:
            return TopicTarget(made.topic, refusal=refused.reason)
        return TopicTarget(
            made.topic,
            queue_count=made.write_queue_count,
            queue_limit=made.write_queue_count,
            there_count=made.write_queue_count,
            is_new=made.topic not in self.topics,
            sys_flag=MULTI_TAGS if made.topic_filter_type == "MULTI_TAG" else 0,
            key_prefix_hash=string_hash(f"{made.topic}#") & 0xFFFFFFFF,
        )

    def _queue_limit(self, config: TopicConfig, is_new: bool) -> int:
        if is_new:
            return max(config.write_queue_count, NAMED_QUEUES_LIMIT)
        grown = 0 if self.create_topic is False else self.grow_to
        return max(queue_limit(config), grown, NAMED_QUEUES_LIMIT if config.topic in self.growing else 0)


def _refusal_of_group(group: str, longest: int) -> str:
    try:
        validate_group(group, longest)
    except NameIllegalError as error:
        return error.describe()
    return f"there is no group {group!r}, and none may be made (autoCreateSubscriptionGroup)"
