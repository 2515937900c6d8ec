"""Topics of a store, `config/topics.json`, and its static topics, `config/topicQueueMapping.json`.

Unchanged entries of topics.json are written as they were found, including system topics. A broker prefers them to its built-in ones, so
a wrong one would stop auto-creation, delivery of delayed messages or transaction checks.

A static topic has logical queues, numbered over the whole cluster. Each is a chain of physical queues: the last one, the leader,
takes messages, the earlier ones hold what came before the queue moved to another broker.

    logical queue 3      |0 ────────── broker-a, queue 1 ──────────|20,000 ── broker-b, queue 0 ──▶
    physical offsets      0 … 12,345                                 0 …

The next link begins at a rounded-up offset, so logical offsets have gaps. Its logical offset is negative until it is decided.
How tools create and move them: `storage/rules/static_topics.py`.

A broker names these topics after itself and its cluster; so the topics of a store tell both names (`broker_names`):

    NAME                            perm 7 (1 without brokerTopicEnable), one queue
    rmq_sys_SYNC_BROKER_MEMBER_NAME perm 1, one queue, since 5.0: no client may make such a topic
    CLUSTER                         perm 7 (1 without clusterTopicEnable), 16 queues
    CLUSTER_REPLY_TOPIC             one queue
    rmq_sys_REVIVE_LOG_CLUSTER      eight queues, since 5.0

If topics name several brokers, none is chosen: a broker that was renamed keeps the topics of its old name.

Java: TopicConfigManager, TopicConfig, TopicQueueMappingManager, TopicQueueMappingDetail, LogicQueueMappingItem, TopicQueueMappingUtils.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from storage.errors import NameIllegalError, StoreRefusedError
from storage.format import fastjson
from storage.format.typed_json import PERM_INHERIT as PERM_INHERIT
from storage.format.typed_json import PERM_READ as PERM_READ
from storage.format.typed_json import PERM_WRITE as PERM_WRITE
from storage.format.typed_json import DataVersion, Int, Long, WireBody, wire
from storage.format.typed_json import TopicConfig as TopicConfig
from storage.names import (
    BROKER_MEMBER_TOPIC_PREFIX,
    REPLY_TOPIC_SUFFIX,
    REVIVE_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    is_system_topic,
    validate_topic,
)
from storage.settings.load import BATCHES_RULE, BY_ITS_BROKER, StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.document import TOPICS_FILE, decode_entry, encode_entry, parse_document, section

QUEUE_COUNT_LIMIT = 65_536
"""How many queues a topic written by this package may have: each gets a directory, and rows without a queue go to all in turn.

A broker has no limit. Kafka's partition column has room for as many.
"""

OWN_SYSTEM_TOPIC_PREFIX = "rmq_sys_spark_mq_"
_MADE_ON_DEMAND = frozenset({"TRANS_CHECK_MAX_TIME_TOPIC"})
_TABLE = "topicConfigTable"


def is_made_by_brokers(topic: str, broker_name: str | None, cluster_name: str | None) -> bool:
    """Whether each broker makes the topic's entry itself."""
    return (
        is_system_topic(topic, broker_name=broker_name, cluster_name=cluster_name)
        and topic not in _MADE_ON_DEMAND
        and not topic.startswith(OWN_SYSTEM_TOPIC_PREFIX)
    )


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All entries of topics.json, by topic. Every change gives a new table with its version raised.

    A topic without an entry has no route: it cannot be produced to or pulled, and `cleanUnusedTopic` deletes its queues.
    """

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> TopicTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none.

        Names are not checked.
        """
        document = parse_document(text, file)
        entries = section(document, _TABLE, file).items()
        topics = {topic: decode_entry(TopicConfig, topic, entry, file) for topic, entry in entries}
        return cls(DataVersion.from_document(document, file), topics, document)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose settings say that they have batch queues."""
        return frozenset(name for name, config in self.topics.items() if config.is_batched)

    def refuse_batches(self, root: str) -> None:
        """Raises StoreRefusedError for a topic with batch queues, which must not get a record in the store at ROOT."""
        for topic in sorted(self.batch_topics):
            raise StoreRefusedError(
                root, f"topic {topic} of config/{TOPICS_FILE}: it has {BATCHES_RULE}", BY_ITS_BROKER
            )

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_topic(self, config: TopicConfig, *, now_ms: int) -> TopicTable:
        """The table with that entry, new or in place of the topic's old one.

        Does not check it: `ensure_topic` does.
        """
        entries: dict[str, Any] = dict(self.document.get(_TABLE) or {})
        entries[config.topic] = encode_entry(config, entries.get(config.topic))
        return self._changed({**self.topics, config.topic: config}, entries, now_ms)

    def without_topic(self, topic: str, *, now_ms: int) -> TopicTable:
        """The table without the topic's entry; itself if there is none."""
        if topic not in self.topics:
            return self
        entries = {name: entry for name, entry in self.document[_TABLE].items() if name != topic}
        topics = {name: config for name, config in self.topics.items() if name != topic}
        return self._changed(topics, entries, now_ms)

    def ensure_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        now_ms: int,
        broker_name: str | None = None,
        cluster_name: str | None = None,
        new: TopicConfig | None = None,
    ) -> TopicTable:
        """The table with an entry under which the first `queue_count` queues can be read and written.

        Returns the same table if the topic has such an entry. An entry with fewer queues gets more and keeps the rest. A missing entry
        becomes `new` if that is given. Raises NameIllegalError for an illegal name and for topics whose entry a broker makes itself
        (those named after broker and cluster are recognised by the two names).
        """
        validate_topic(topic)
        if is_made_by_brokers(topic, broker_name, cluster_name):
            raise NameIllegalError("topic", topic, "it is a system topic, whose entry a broker makes itself")
        present = self.topics.get(topic)
        if present is None:
            return self.with_topic(new or TopicConfig(topic, queue_count, queue_count), now_ms=now_ms)
        enough = replace(
            present,
            read_queue_count=max(present.read_queue_count, queue_count),
            write_queue_count=max(present.write_queue_count, queue_count),
        )
        return self if enough == present else self.with_topic(enough, now_ms=now_ms)

    def _changed(self, topics: Mapping[str, TopicConfig], entries: Mapping[str, Any], now_ms: int) -> TopicTable:
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _TABLE: entries}
        return TopicTable(version, topics, document)


_REVIVE_QUEUE_COUNT = 8
_OF_EVERY_BROKER = "SELF_TEST_TOPIC"


class BrokerNames(NamedTuple):
    """Names of the store's broker and cluster. The broker's may be unknown; the cluster's has a default."""

    broker: str | None
    cluster: str


def broker_names(config: StoreConfig, topics: TopicTable, requested: str | None = None) -> BrokerNames:
    """The broker's name is `requested`, else the configured one, else the one that the topics name. The cluster's is the configured
    one, else the topics', else Java's default.
    """
    own_cluster = None if config.is_configured("brokerClusterName") else _only(_clusters_of(topics))
    return BrokerNames(
        requested or config.identity.broker_name or _only(named_brokers(topics)),
        own_cluster or config.identity.broker_cluster_name,
    )


def named_brokers(table: TopicTable) -> list[str]:
    """The broker names in the topics: several if it was renamed, none if no broker wrote the table."""
    members = [topic for topic in table.topics if topic.startswith(BROKER_MEMBER_TOPIC_PREFIX)]
    if members:
        return sorted(topic.removeprefix(BROKER_MEMBER_TOPIC_PREFIX) for topic in members)
    if _OF_EVERY_BROKER not in table.topics:  # then no broker wrote it, not even one before 5.0
        return []
    others = SYSTEM_TOPICS | set(_clusters_of(table))
    return sorted(
        topic
        for topic, config in table.topics.items()
        if topic not in others
        and config.perm & PERM_INHERIT
        and config.read_queue_count == config.write_queue_count == 1
    )


def topics_of_names(names: BrokerNames, send: SendConfig) -> list[TopicConfig]:
    """The topics that a broker with these names has. Java: TopicConfigManager.init."""
    return _of_cluster(names.cluster, send) + ([] if names.broker is None else _of_broker(names.broker, send))


def with_names(table: TopicTable, names: BrokerNames, send: SendConfig, *, now_ms: int) -> TopicTable:
    """The table with topics for these names, and for no other broker name; itself if it has them already, or the name is unknown.

    Departure: Java adds its own name and keeps the old one, so a reader cannot know which one is current. Here the topic
    `rmq_sys_SYNC_BROKER_MEMBER` of the old name goes; no broker stores a message in it. Java also writes topics without a name: here
    only the settings determine them.
    """
    if names.broker is None:
        return table
    wanted = [] if named_brokers(table) == [names.broker] else _of_broker(names.broker, send)
    clusters = _clusters_of(table)
    # With several, none was chosen, and the name is the default.
    if names.cluster not in clusters and len(clusters) < 2:
        wanted = _of_cluster(names.cluster, send) + wanted
    for topic in wanted:
        if topic.topic not in table.topics:
            table = table.with_topic(topic, now_ms=now_ms)
    for other in named_brokers(table):
        if other != names.broker:
            table = table.without_topic(f"{BROKER_MEMBER_TOPIC_PREFIX}{other}", now_ms=now_ms)
    return table


def _of_broker(name: str, send: SendConfig) -> list[TopicConfig]:
    return [
        TopicConfig(name, 1, 1, _inherited(send.broker_topic_enable)),
        TopicConfig(f"{BROKER_MEMBER_TOPIC_PREFIX}{name}", 1, 1, PERM_INHERIT),
    ]


def _of_cluster(name: str, send: SendConfig) -> list[TopicConfig]:
    return [
        TopicConfig(name, perm=_inherited(send.cluster_topic_enable)),
        TopicConfig(f"{name}{REPLY_TOPIC_SUFFIX}", 1, 1),
        TopicConfig(f"{REVIVE_TOPIC_PREFIX}{name}", _REVIVE_QUEUE_COUNT, _REVIVE_QUEUE_COUNT),
    ]


def _inherited(is_enabled: bool) -> int:
    return PERM_INHERIT | (PERM_READ | PERM_WRITE if is_enabled else 0)


def _clusters_of(table: TopicTable) -> list[str]:
    """Topics with a reply topic whose permissions are inherited; a user's topic with such a neighbour has others.

    If brokers since 5.0 have written, the cluster also has a topic for revived POP messages.
    """
    found = [
        topic
        for topic, config in sorted(table.topics.items())
        if config.perm & PERM_INHERIT and f"{topic}{REPLY_TOPIC_SUFFIX}" in table.topics
    ]
    return [topic for topic in found if f"{REVIVE_TOPIC_PREFIX}{topic}" in table.topics] or found


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


MAPPINGS_FILE = "topicQueueMapping.json"
GLOBAL_SCOPE = "__global__"
MAPPINGS = "topicQueueMappingInfoMap"


class MappingItem(WireBody, kw_only=False):
    """One link of a chain: a physical queue and where its offsets begin in the logical one. Java: LogicQueueMappingItem."""

    broker_name: str = wire("bname")
    queue_id: Int = 0
    generation: Int = wire("gen", default=0)
    logic_offset: Long = 0
    """The logical offset where it begins; negative = not decided yet."""
    start_offset: Long = 0
    """The first physical offset that belongs to it."""
    end_offset: Long = -1
    """The physical offset behind its last; −1 = open."""
    time_of_start: Long = -1
    time_of_end: Long = -1

    @property
    def is_decided(self) -> bool:
        """Whether its place in the logical queue is known. Java: checkIfLogicoffsetDecided."""
        return self.logic_offset >= 0

    @property
    def has_end(self) -> bool:
        """Whether it is closed; an empty link counts as open. Java: checkIfEndOffsetDecided."""
        return self.end_offset > self.start_offset

    @property
    def offset_delta(self) -> int:
        """Logical minus physical. Java: computeOffsetDelta."""
        return self.logic_offset - self.start_offset

    @property
    def end_logic_offset(self) -> int:
        """The logical offset after its last as far as the mapping knows; the first if the link is open.

        Java: computeMaxStaticQueueOffset.
        """
        return self.logic_offset + (self.end_offset - self.start_offset if self.end_offset >= self.start_offset else 0)

    def logical(self, physical_offset: int) -> int:
        """The logical offset; physical offsets before the link give its first. Java: computeStaticQueueOffsetStrictly."""
        return self.logic_offset + max(0, physical_offset - self.start_offset)

    def logical_within(self, physical_offset: int) -> int:
        """The logical offset, limited to the link's range; −1 while its place is not decided.

        Used for a send's answer and for minimum offsets. Java: computeStaticQueueOffsetLoosely.
        """
        if not self.is_decided:
            return -1
        if self.end_offset >= self.start_offset:
            physical_offset = min(physical_offset, self.end_offset)
        return self.logical(physical_offset)

    def physical(self, logical_offset: int) -> int:
        """The physical offset, which may lie outside the link. Java: computePhysicalQueueOffset."""
        return logical_offset - self.logic_offset + self.start_offset


class TopicQueueMapping(WireBody, kw_only=False):
    """What one broker knows of a static topic. Java: TopicQueueMappingDetail, TopicQueueMappingInfo."""

    topic: str
    broker_name: str = wire("bname", default="")
    """The broker whose table this is."""
    total_queue_count: Int = wire("totalQueues", default=0)
    epoch: Long = 0
    scope: str = GLOBAL_SCOPE
    is_dirty: bool = wire("dirty", default=False)
    hosted_queues: Mapping[Int, tuple[MappingItem, ...]] = field(default_factory=dict, hash=False)
    """Logical queue id → its chain; only for queues that this broker has had a part of."""

    def end_of(self, queue_id: int) -> int:
        """The logical end as far as the mapping knows, −1 without a chain. Java: computeMaxOffsetFromMapping."""
        items = self.hosted_queues.get(queue_id)
        return items[-1].end_logic_offset if items else -1


def find_item(items: Sequence[MappingItem], logical_offset: int) -> MappingItem | None:
    """The link that holds the offset, among those whose place is decided; the first of them for an earlier offset, None without any.

    Java: TopicQueueMappingUtils.findLogicQueueMappingItem with ignoreNegative.
    """
    decided = [item for item in items if item.is_decided]
    holding = [item for item in decided if logical_offset >= item.logic_offset]
    return holding[-1] if holding else decided[0] if decided else None


def next_item(items: Sequence[MappingItem], current: MappingItem) -> MappingItem | None:
    """The link after another one; None if there is none or its place is not decided. Java: TopicQueueMappingUtils.findNext."""
    for item, behind in pairwise(items):
        if item.is_decided and item.generation == current.generation:
            return behind if behind.is_decided else None
    return None


def check_items(items: Sequence[MappingItem]) -> None:
    """ValueError with the rule for a chain that brokers refuse. Java: TopicQueueMappingUtils.checkLogicQueueMappingItemOffset."""
    for item in items:
        if min(item.start_offset, item.generation, item.queue_id) < 0:
            raise ValueError("a link's start offset, generation and queue id are not negative")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise ValueError("a link's end offset is not before its start offset")
    if any(not item.is_decided for item in items[:-1]):
        raise ValueError("only the last link's logical offset may be open")
    for item, behind in pairwise(items):
        if item.generation >= behind.generation:
            raise ValueError("generations increase from link to link")
        if behind.is_decided and max(item.logic_offset, item.end_logic_offset) >= behind.logic_offset:
            raise ValueError("a link ends, in logical offsets, before the next one begins")


@dataclass(frozen=True, slots=True)
class TopicQueueMappingTable:
    """All entries of the file, by topic. Every change gives a new table with its version raised."""

    version: DataVersion = field(default_factory=DataVersion)
    mappings: Mapping[str, TopicQueueMapping] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> TopicQueueMappingTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none. Chains are not checked."""
        document = parse_document(text, file)
        entries = section(document, MAPPINGS, file).items()
        mappings = {topic: decode_entry(TopicQueueMapping, topic, entry, file) for topic, entry in entries}
        return cls(DataVersion.from_document(document, file), mappings, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_mapping(self, mapping: TopicQueueMapping, *, now_ms: int) -> TopicQueueMappingTable:
        """The table with that entry, new or in place of the topic's old one. ValueError for a chain that brokers refuse."""
        for items in mapping.hosted_queues.values():
            check_items(items)
        entries: dict[str, Any] = dict(self.document.get(MAPPINGS) or {})
        entries[mapping.topic] = _encode_mapping(mapping, entries.get(mapping.topic))
        return self._changed({**self.mappings, mapping.topic: mapping}, entries, now_ms)

    def without_topic(self, topic: str, *, now_ms: int) -> TopicQueueMappingTable:
        """The table without the topic's entry; itself if there is none."""
        if topic not in self.mappings:
            return self
        entries = {name: entry for name, entry in self.document[MAPPINGS].items() if name != topic}
        mappings = {name: mapping for name, mapping in self.mappings.items() if name != topic}
        return self._changed(mappings, entries, now_ms)

    def _changed(
        self, mappings: Mapping[str, TopicQueueMapping], entries: Mapping[str, Any], now_ms: int
    ) -> TopicQueueMappingTable:
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), MAPPINGS: entries}
        return TopicQueueMappingTable(version, mappings, document)


def _encode_mapping(mapping: TopicQueueMapping, found: Mapping[str, Any] | None) -> dict[str, Any]:
    links = {
        str(queue_id): [encode_entry(item, None) for item in items] for queue_id, items in mapping.hosted_queues.items()
    }
    return {**encode_entry(mapping, found), "hostedQueues": links}
