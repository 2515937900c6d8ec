"""Entries of a broker's tables: a topic, a group of consumers, the version of a table. One class serves the file and the wire.

Files stand under `config/` (`storage/tables/`). On the wire are the same objects, in requests and answers of brokers and name servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from storage.errors import StateFileError
from storage.format.typed_json import BadValueError, Int, Long, WireBody, codec_of, wire

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
BATCH_QUEUES = "BatchCQ"
"""The value of a topic's attribute `queue.type`."""


class DataVersion(WireBody, kw_only=False):
    """The version of a table, by which name servers and slaves notice a change. Java: DataVersion.

    Two tables are the same if all three numbers are. Outside controller mode `state_version` is 0.
    """

    counter: Long = 0
    """How many changes there were."""
    timestamp_ms: Long = wire("timestamp", default=0)
    """When the last one was."""
    state_version: Long = 0

    def raised(self, now_ms: int) -> DataVersion:
        """The version after one more change (Java: nextVersion)."""
        return DataVersion(self.counter + 1, now_ms)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], file: str | None = None) -> DataVersion:
        """The `dataVersion` of a state file's document; a missing one or a missing number is 0. StateFileError if it is none."""
        found = document.get("dataVersion")
        try:
            read: DataVersion = codec_of(cls).read({} if found is None else found)
        except BadValueError as error:
            place = "".join(f".{part}" for part in [error.place] if part)
            raise StateFileError(file, 0, 0, f"dataVersion{place}: {error.rule}, found {error.found!r:.40}") from None
        return read

    def to_document(self) -> dict[str, int]:
        """The fields in the order of a broker's file."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class TopicConfig(WireBody, kw_only=False):
    """One topic as a broker holds it. Java: TopicConfig.

    Queue ids run from 0; a client may read the first `read_queue_count`, write to the first `write_queue_count`.
    """

    topic: str = wire("topicName", default="")
    """Empty where a process does not say it: then the name in the table around it counts."""
    read_queue_count: Int = wire("readQueueNums", default=16)
    write_queue_count: Int = wire("writeQueueNums", default=16)
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_batched(self) -> bool:
        """Whether its consume queues are batch queues. Java: QueueTypeUtils.isBatchCq."""
        return self.attributes.get("queue.type") == BATCH_QUEUES

    @property
    def is_compacted(self) -> bool:
        """Whether its broker keeps only the newest message of each key for consumers. Java: CleanupPolicyUtils.isCompaction."""
        return self.attributes.get("cleanup.policy") == "COMPACTION"


class SubscriptionGroupConfig(WireBody, kw_only=False):
    """One consumer group as a broker holds it. Java: SubscriptionGroupConfig."""

    group: str = wire("groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: Int = wire("retryQueueNums", default=1)
    retry_max_times: Int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"}, hash=False)
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minutes: Int = wire("consumeTimeoutMinute", default=15)
    subscription_data_set: tuple[Mapping[str, Any], ...] | None = field(default=None, hash=False)
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
