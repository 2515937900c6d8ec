"""What a store takes as a message: the rules that rows are held to, and the topics that they may go to.

Java: Validators, TopicValidator, HookUtils.checkBeforePutMessage, SendMessageProcessor.preSend, MessageExtEncoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from storage.errors import NameIllegalError
from storage.format.delay_level import DEFAULT_LEVELS, parse_delay_levels
from storage.format.java_hash import string_hash
from storage.format.sys_flag import MULTI_TAGS
from storage.messages.delays import Congestion
from storage.messages.retries import dead_letter_topic_config, find_group, most_retries, retry_topic_config
from storage.names import TOPIC_LENGTH_LIMIT, validate_group, validate_topic, validate_user_topic
from storage.settings.nouns import TimerConfig
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import PERM_WRITE, QUEUE_COUNT_LIMIT, TopicConfig

DEFAULT_QUEUE_COUNT = 8
NAMED_QUEUES_LIMIT = 4_096
"""So many queues a topic gets at most because rows name them; whoever wants more says how many. A broker sets no limit."""
DEFAULT_DELAYS_MS = parse_delay_levels(DEFAULT_LEVELS)


class TopicTarget(NamedTuple):
    """A topic as rows need to know it. Where `refusal` says why it takes no message, the rest means nothing."""

    topic: str
    queue_count: int = 1
    """Rows that name no queue are spread over so many."""
    queue_limit: int = 1
    """A queue that a row names is below this. Above `queue_count` where the topic gets the queues that rows name."""
    is_new: bool = False
    needs_keys: bool = False
    sys_flag: int = 0
    key_prefix_hash: int = 0  # `String.hashCode` of what precedes a key in the index, modulo 2^32
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """That every row is a half message, whose end its column `transaction_state` says."""

    producer_group: str | None = None
    """Whom a broker asks back about rows that name no group."""
    marks: tuple[tuple[str, str], ...] = ()
    """Properties that a half gets besides where its end is known, for who is asked back nevertheless."""
    is_rejected: bool = False
    """Java: rejectTransactionMessage."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """What is to be known of the consumer groups that rows are sent to again."""

    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict, hash=False)
    auto_create: bool = True
    """Java: autoCreateSubscriptionGroup."""
    create_system_groups: bool = True
    """Java: enableCreateSysGroup."""
    max_reconsume_times: int | None = None
    """How often the consumers try again; None = as their group's entry says."""

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's entry, or the one that it gets; None where it gets none."""
        return find_group(
            name, self.groups, auto_create=self.auto_create, create_system_groups=self.create_system_groups
        )


@dataclass(frozen=True, slots=True)
class MessageRules:
    """What tasks must know of store and options to make messages of rows; a value that is sent to them."""

    topic: str | None = None
    """Where rows go that name no topic."""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    """The topics that there are."""
    create_topic: bool = True
    queue_count: int = DEFAULT_QUEUE_COUNT
    """Write queues of a topic that is created, unless rows name more."""
    grow_to: int = 0
    """A topic that is there with fewer write queues gets, up to this many, those that rows name."""
    growing: frozenset[str] = frozenset()
    """Topics that are there and get the queues that rows name, as if they were created."""
    broker_name: str | None = None
    cluster_name: str = "DefaultCluster"
    region: str = "DefaultRegion"
    trace_on: bool = True
    max_message_size: int = 4 * 1024 * 1024
    """Bytes of a body as stored."""
    log_file_size: int = 1024 * 1024 * 1024
    """Bytes; a record and the filler behind it must fit into one file."""
    host_size: int = 8
    """Bytes of the store's address and port: 8, or 20 for IPv6."""
    appends_crc: bool = False
    """Whether records end in a sum over themselves, for which their properties need room."""
    compress_body_over: int | None = None
    """Bodies of at least so many bytes are compressed, as a Java client does (compressMsgBodyOverHowmuch)."""
    keep_unique_key: bool = False
    strict_properties: bool = False
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    """The delay of each level, from level 1."""
    timer: TimerConfig = field(default_factory=TimerConfig)
    is_congested: Congestion | None = None
    """For which times the timer takes nothing more; None = it does."""
    transaction: TransactionRules | None = None
    """None = rows are ordinary messages."""
    retries: RetryRules = field(default_factory=RetryRules)

    def target(self, topic: str | None) -> TopicTarget:
        """What is to be known of the topic that a row names; None where it names none."""
        name = self.topic if topic is None else topic
        if name is None:
            return TopicTarget("", refusal="it is null, and the option topic is not given")
        refusal = self._refusal(name)
        if refusal is not None:
            return TopicTarget(name, refusal=refusal)
        config = self.topics.get(name)
        return TopicTarget(
            name,
            queue_count=self.queue_count if config is None else config.write_queue_count,
            queue_limit=self._queue_limit(name, config),
            is_new=config is None,
            needs_keys=config is not None and config.attributes.get("cleanup.policy") == "COMPACTION",
            sys_flag=MULTI_TAGS if config is not None and config.topic_filter_type == "MULTI_TAG" else 0,
            key_prefix_hash=string_hash(f"{name}#") & 0xFFFFFFFF,
        )

    def max_reconsume_times(self, group: str) -> int:
        """How often the group may try a message again."""
        return most_retries(self.retries.group(group), self.retries.max_reconsume_times)

    def retry_target(self, group: str, is_dead: bool) -> TopicTarget:
        """What is to be known of a group's retry topic, or of its dead letters'. A broker makes them, whatever `create_topic` says."""
        config = self.retries.group(group)
        if config is None:
            return TopicTarget("", refusal=_refusal_of_group(group))
        made = dead_letter_topic_config(group, self.topics) if is_dead else retry_topic_config(config, self.topics)
        try:
            validate_topic(made.topic)
        except NameIllegalError as error:
            return TopicTarget(made.topic, refusal=error.describe())
        if not made.perm & PERM_WRITE or made.write_queue_count < 1:
            reason = (
                f"nobody may write to topic {made.topic!r} (perm {made.perm}, {made.write_queue_count} write queues)"
            )
            return TopicTarget(made.topic, refusal=reason)
        if refusal := _refusal_of_count(made.topic, made.write_queue_count):
            return TopicTarget(made.topic, refusal=refusal)
        return TopicTarget(
            made.topic,
            queue_count=made.write_queue_count,
            queue_limit=made.write_queue_count,
            is_new=made.topic not in self.topics,
            sys_flag=MULTI_TAGS if made.topic_filter_type == "MULTI_TAG" else 0,
            key_prefix_hash=string_hash(f"{made.topic}#") & 0xFFFFFFFF,
        )

    def _queue_limit(self, topic: str, config: TopicConfig | None) -> int:
        if config is None:
            return max(self.queue_count, NAMED_QUEUES_LIMIT)
        grown = self.grow_to if self.create_topic else 0
        return max(config.write_queue_count, grown, NAMED_QUEUES_LIMIT if topic in self.growing else 0)

    def _refusal(self, topic: str) -> str | None:
        try:
            validate_user_topic(topic, broker_name=self.broker_name, cluster_name=self.cluster_name)
        except NameIllegalError as error:
            return error.describe()
        assert len(topic) <= TOPIC_LENGTH_LIMIT, "a topic's length has one byte in the record"
        config = self.topics.get(topic)
        if config is None:
            if not self.create_topic:
                return f"there is no topic {topic!r}, and createTopic is false"
            return _refusal_of_count(topic, self.queue_count)
        if config.attributes.get("queue.type") == "BatchCQ":
            return f"topic {topic!r} has batch consume queues (queue.type=BatchCQ), which are not supported"
        if not config.perm & PERM_WRITE:
            return f"nobody may write to topic {topic!r} (perm {config.perm})"
        if config.write_queue_count < 1:
            return f"topic {topic!r} has no write queues"
        return _refusal_of_count(topic, config.write_queue_count)


def _refusal_of_count(topic: str, queue_count: int) -> str | None:
    if queue_count <= QUEUE_COUNT_LIMIT:
        return None
    return (
        f"topic {topic!r} has {queue_count} write queues, and at most {QUEUE_COUNT_LIMIT} are written (writeQueueNums)"
    )


def _refusal_of_group(group: str) -> str:
    try:
        validate_group(group)
    except NameIllegalError as error:
        return error.describe()
    return f"there is no group {group!r}, and none may be made (autoCreateSubscriptionGroup)"
