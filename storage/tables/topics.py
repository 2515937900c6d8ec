"""Topics of a store: `config/topics.json`.

A topic without an entry here has no route: nobody can produce to it or pull it, and `cleanUnusedTopic`
deletes its queues. Entries that are not changed are written as they were found, system topics among them: a
broker takes them over its built-in ones, so a wrong one would stop auto-creation, delivery of delayed
messages or transaction checks.

Java: TopicConfigManager, TopicConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage.errors import NameIllegalError
from storage.format import fastjson
from storage.format.table_entries import PERM_INHERIT as PERM_INHERIT
from storage.format.table_entries import PERM_READ as PERM_READ
from storage.format.table_entries import PERM_WRITE as PERM_WRITE
from storage.format.table_entries import TopicConfig as TopicConfig
from storage.names import is_system_topic, validate_topic
from storage.tables.document import DataVersion, decode_entry, encode_entry, parse_document, section

FILE_NAME = "topics.json"
QUEUE_COUNT_LIMIT = 65_536
"""So many queues a topic may have to be written by this package: each gets a directory, and rows without a queue go to all in turn.

A broker sets no limit. Kafka's partition column has room for as many.
"""

OWN_SYSTEM_TOPIC_PREFIX = "rmq_sys_spark_mq_"
_MADE_ON_DEMAND = frozenset({"TRANS_CHECK_MAX_TIME_TOPIC"})
_TABLE = "topicConfigTable"


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All entries of the file, by topic. Every change gives a new table with its version raised."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content, of which the other fields are a view."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> TopicTable:
        """The table that the file's text holds; StateFileError (naming `file`) if it is none.

        Names are not judged.
        """
        document = parse_document(text, file)
        entries = section(document, _TABLE, file).items()
        topics = {topic: decode_entry(TopicConfig, topic, entry, file) for topic, entry in entries}
        return cls(DataVersion.from_document(document, file), topics, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def with_topic(self, config: TopicConfig, *, now_ms: int) -> TopicTable:
        """The table with that entry, new or in place of the topic's old one.

        Does not judge it: `ensure_topic` does.
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

        Itself if it has that already; an entry with fewer queues gets more and keeps the rest. A missing entry is `new`, where it is
        given. Raises
        NameIllegalError for an illegal name and for topics whose entry a broker makes itself (those named
        after broker and cluster are known by the two names).
        """
        validate_topic(topic)
        if (
            is_system_topic(topic, broker_name=broker_name, cluster_name=cluster_name)
            and topic not in _MADE_ON_DEMAND
            and not topic.startswith(OWN_SYSTEM_TOPIC_PREFIX)
        ):
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
