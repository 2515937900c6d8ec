"""One broker's store as its handlers see it, with the changeable settings and the facts that only the server knows."""

from __future__ import annotations

import os
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker.broker_settings import changed_text, with_settings
from spark_mq.broker.group_offsets import with_own_groups
from spark_mq.broker.request_table import Pool
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.administration import HaConnectionInfo
from spark_mq.remoting.controllers import EpochEntryCache
from storage.errors import StateFileError
from storage.format.record import decode_record
from storage.format.typed_json import DataVersion, SubscriptionGroupConfig
from storage.names import BUILT_IN_GROUPS, host_of
from storage.rules.retries import find_group
from storage.rules.topics import known_topics
from storage.service.put_service import PutService
from storage.service.served_store import ServedStore, TransferLimits
from storage.settings.load import StoreConfig
from storage.settings.nouns import PullConfig
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig, TopicQueueMappingTable

_BUILT_IN_GROUPS: Mapping[str, SubscriptionGroupConfig] = {
    name: SubscriptionGroupConfig(name) for name in BUILT_IN_GROUPS
}
_LESS_OF_SLAVE = 10
"""Of accessMessageInMemoryMaxRatio, percent. Java: MessageStoreConfig.getAccessMessageInMemoryMaxRatio of a slave."""


def machine_memory_bytes() -> int:
    """Bytes of this machine's memory. Java: StoreUtil.TOTAL_PHYSICAL_MEMORY_SIZE."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ServerFacts:
    """Facts that only the server around a broker knows. The defaults are for a broker without one, as in tests."""

    ha_address: str | None = None
    """The address for slaves."""
    store_reopened: str | None = None
    """When the store was opened again after a failure, and after which."""
    takes_back: bool = False
    """Whether it still takes over how far slaves have delivered in its place: until then its own progress may be the older one."""
    metrics: BrokerMetrics | None = None
    """What counts for the page of metrics that the server shows; None: it shows none, and nothing is counted for it."""

    def pool_load(self, pool: Pool) -> tuple[int, int]:
        """The number of requests that wait for a pool, and the wait of the first one in ms."""
        return 0, 0

    def following_trouble(self) -> str | None:
        """The reason why a slave cannot follow its master."""
        return None

    def slaves(self) -> Sequence[HaConnectionInfo]:
        """The state of each slave."""
        return ()

    def timer_page(self) -> bytes:
        """The timer's checkpoint as its file has it."""
        return b""

    def subscribed_queues(
        self, topic: str, own: Callable[[str], Sequence[MessageQueue] | None]
    ) -> Sequence[MessageQueue] | None:
        """The queues of a topic that clients can read, at all brokers; None where there is no such topic, or it is not known.

        It may wait for name servers; without any they are the broker's `own`.
        """
        return own(topic)

    def unsupported(self) -> Mapping[int, int]:
        """By code, how many requests were answered that they are not supported."""
        return {}

    def timing_counts(self) -> Mapping[str, int]:
        """How many messages of each topic wait in the timer."""
        return {}

    def epochs(self) -> EpochEntryCache | None:
        """In controller mode the epochs of the log."""
        return None


class BrokerStore:
    """The store of one broker: its topics and groups over the built-in ones, what can be read, and the settings as they are now.

    Thread-safe, except `manual_cleans_left`: the lock of `Clients` guards it.
    """

    def __init__(
        self, service: PutService, *, clock: Callable[[], int], memory_bytes: int | None = None, is_slave: bool = False
    ) -> None:
        """`memory_bytes` is the machine's (None: ask it). Raises StateFileError."""
        self.service = service
        self.is_slave = is_slave
        """Whether a master writes the log."""
        self.config: StoreConfig = service.config
        """The settings, with what an operator has changed."""
        self.settings_version = DataVersion()
        self._permission_changes = 0
        self.manual_cleans_left = 0
        """Number of further runs that delete expired log files at any hour."""
        self.on_settings_changed: list[Callable[[StoreConfig], None]] = []
        """Called with the settings when an operator has changed them."""
        self._settings_lock = threading.Lock()
        self.served = ServedStore(service.store)
        self.pulled = ServedStore(service.store)
        """For pulls alone: no pull waits for a look-up."""
        self.clock = clock
        """The machine's time: for what is stored or sent."""
        self._mapped_since_ms = clock()
        self._memory_bytes = machine_memory_bytes() if memory_bytes is None else memory_bytes
        self.limits = self._limits(self.config.pull)
        self.started_ms = clock()

    def _limits(self, pull: PullConfig) -> TransferLimits:
        ratio = pull.access_message_in_memory_max_ratio - (_LESS_OF_SLAVE if self.is_slave else 0)
        return TransferLimits(
            memory_bytes=self._memory_bytes * ratio // 100,
            in_memory_count=pull.max_transfer_count_on_message_in_memory,
            in_memory_bytes=pull.max_transfer_bytes_on_message_in_memory,
            on_disk_count=pull.max_transfer_count_on_message_in_disk,
            on_disk_bytes=pull.max_transfer_bytes_on_message_in_disk,
            filter_bytes=pull.max_filter_message_size,
        )

    def list_files(self) -> None:
        """Files have expired, or were deleted."""
        self.served.list_files()
        self.pulled.list_files()

    def change_settings(self, changes: Mapping[str, str], now_ms: int) -> None:
        """Write an operator's settings to broker.conf; those that `with_settings` names take effect at once.

        Raises ConfigurationError, OSError.
        """
        with self._settings_lock:
            changed = with_settings(self.config, changes)
            if (path := self.config.file) is not None:
                files = self.service.store.writer.file_system
                files.replace(path, changed_text(files.read_file(path) or b"", changes))
            self._permission_changes += "brokerPermission" in changes
            self.config = changed
            self.limits = self._limits(changed.pull)
            for apply in self.on_settings_changed:
                apply(changed)
            self.settings_version = self.settings_version.raised(now_ms)

    @property
    def broker_name(self) -> str:
        """The name under which clients know the broker."""
        return self.service.settings.broker_name or ""

    @property
    def address(self) -> str:
        """The listen address, address:port."""
        return self.service.settings.address

    @property
    def ip(self) -> str:
        """The address without the port. Java: brokerIP1."""
        return host_of(self.address)

    # Topics and groups

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """The file's entries over the built-in ones."""
        settings, config = self.service.settings, self.config
        return known_topics(settings.topics.topics, settings.broker_name, settings.cluster, config.send, config.timer)

    @property
    def topics_version(self) -> DataVersion:
        """Version of the file's entries. A changed broker permission, or a failed store, raises it, so that name servers look."""
        version = self.service.settings.topics.version
        more = self._permission_changes + (self.service.failure is not None)
        return replace(version, counter=version.counter + more)

    @property
    def mappings(self) -> TopicQueueMappingTable:
        """The static topics."""
        return self.service.settings.mappings

    @property
    def mappings_version(self) -> DataVersion:
        """The version of the static topics; of a table that was never changed, with the time of the start."""
        found = self.mappings.version
        return found if found.counter else replace(found, timestamp_ms=self._mapped_since_ms)

    @property
    def permission(self) -> int:
        """The permissions of all topics: no write permission while the store refuses puts."""
        allowed = self.config.send.broker_permission
        return allowed if self.service.failure is None else allowed & ~PERM_WRITE

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The file's entries over the built-in ones."""
        own = cast("dict[str, SubscriptionGroupConfig]", self.service.groups)
        return ChainMap(own, cast("dict[str, SubscriptionGroupConfig]", _BUILT_IN_GROUPS))

    def own_queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic that clients can read here; None where there is no such topic."""
        if (found := self.topics.get(topic)) is None:
            return None
        count = found.read_queue_count if found.perm & self.permission & PERM_READ else 0
        return [MessageQueue(topic, self.broker_name, queue_id) for queue_id in range(count)]

    def earliest_store_time_ms(self) -> int:
        """Store time of the log's first message; −1 if there is none. Java: DefaultMessageStore.getEarliestMessageTime."""
        record = self.served.record_at(self.served.log_minimum)
        found = None if record is None else decode_record(record)
        return getattr(found, "store_time_ms", -1)

    def find_group(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's entry, made and saved where the broker may make it. Raises OSError."""
        send, groups = self.config.send, self.groups
        found = find_group(
            name,
            groups,
            auto_create=send.auto_create_subscription_group,
            create_system_groups=send.enable_create_sys_group,
            longest=self.config.release.longest_group,
        )
        if found is None or name in groups:
            return found
        return self.service.make_group(found)

    def change_topic(self, name: str, *, order: bool) -> None:
        """Whether a topic is ordered; nothing of one that is deleted meanwhile. Raises StoreNotWritableError, OSError."""
        if (found := self.topics.get(name)) is not None:
            self.service.save_topic(replace(found, order=order))

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether an operator has taken the topic from the group (353)."""
        return bool(self.service.forbidden.get(group, {}).get(topic, 0) & 1)

    def with_own_groups(self, known: ConsumerOffsets) -> ConsumerOffsets:
        """Offsets as consumerOffset.json is to hold them: those of the broker's own groups stand there, and nowhere in memory."""
        try:
            on_disk = self.service.state(OFFSETS_FILE, ConsumerOffsets.load)
        except StateFileError:
            on_disk = None
        return with_own_groups(known, on_disk)
