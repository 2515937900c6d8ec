"""What the handlers of one broker share: the store and what is known of clients. `Broker` makes it, and guards it by one lock."""

from __future__ import annotations

import os
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from spark_mq.access.acls import FILE_NAME as ACLS_FILE
from spark_mq.access.acls import AclTable
from spark_mq.access.users import FILE_NAME as USERS_FILE
from spark_mq.access.users import AccessRules, UserTable, authenticate
from spark_mq.broker.broker_settings import changed_text, with_settings
from spark_mq.broker.client_tables import Change, ConsumerTable, ProducerTable, QueueLocks
from spark_mq.broker.consumer_filters import ConsumerFilters
from spark_mq.broker.group_offsets import GroupOffsets, with_own_groups
from spark_mq.broker.held_pulls import LONG_POLLING_LOOK_MS, Arrivals, HeldPull, HeldPulls
from spark_mq.broker.request_table import Pool
from spark_mq.broker.requests import BrokerEvent, ClientConnection, RegisterTopics, RunAgain, Tell
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import HeaderEncoding, MessageQueue, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.administration import HaConnectionInfo
from spark_mq.remoting.consumers import ConsumerGroupRequest
from spark_mq.remoting.controllers import EpochEntryCache
from storage.errors import StateFileError
from storage.format.bloom_filter import BloomFilter
from storage.format.table_entries import DataVersion
from storage.names import BUILT_IN_GROUPS, host_of
from storage.rules.response_codes import RequestRefusedError
from storage.rules.retries import find_group
from storage.rules.topics import known_topics
from storage.service.put_service import PutService
from storage.service.served_store import ServedStore, TransferLimits
from storage.settings.load import StoreConfig
from storage.settings.nouns import PullConfig
from storage.tables.consumer_groups import (
    FILTERS_FILE,
    OFFSETS_FILE,
    ConsumerFilterTable,
    ConsumerOffsets,
    SubscriptionGroupConfig,
)
from storage.tables.put_statistics import PutStatistics
from storage.tables.topics import MAPPINGS_FILE, PERM_READ, PERM_WRITE, TopicConfig, TopicQueueMappingTable

_BUILT_IN_GROUPS: Mapping[str, SubscriptionGroupConfig] = {
    name: SubscriptionGroupConfig(name) for name in BUILT_IN_GROUPS
}
_SLAVE_HOSTS_KEPT = 64
_LESS_OF_SLAVE = 10
"""Of accessMessageInMemoryMaxRatio, percent. Java: MessageStoreConfig.getAccessMessageInMemoryMaxRatio of a slave."""


def machine_memory_bytes() -> int:
    """Of this machine. Java: StoreUtil.TOTAL_PHYSICAL_MEMORY_SIZE."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _look_ms(pull: PullConfig) -> int:
    return LONG_POLLING_LOOK_MS if pull.long_polling_enable else pull.short_polling_time_mills


class AccessEntries:
    """A broker's users and what they may do, as they are now; each change stands in its file before it holds.

    Passwords stand there as they are, so the owner of the store alone may read the files (0600). Thread-safe: a table is
    replaced whole. Java: AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl.
    """

    def __init__(self, service: PutService, rules: AccessRules) -> None:
        """Reads them, and makes the rules' first users. Raises StateFileError, OSError."""
        self._store = service.store
        self.rules = rules
        for name in (USERS_FILE, ACLS_FILE):
            for ending in ("", ".bak", ".bad"):
                service.store.writer.file_system.make_private(f"{service.root}/config/{name}{ending}")
        self.users = service.state(USERS_FILE, UserTable.load) or UserTable()
        self.acls = service.state(ACLS_FILE, AclTable.load) or AclTable()
        self.change_users(self._with_first_users)

    def _with_first_users(self, users: UserTable) -> UserTable:
        for user in self.rules.first_users:
            users = users if user.name in users.users else users.with_user(user)
        return users

    def change_users(self, change: Callable[[UserTable], UserTable]) -> None:
        """Gives the table that `change` makes of it; what that raises comes out. Raises OSError."""
        with self._store.tables_lock:
            changed = change(self.users)
            if changed is not self.users:
                self._store.save_state(USERS_FILE, changed.to_text(), is_private=True)
                self.users = changed

    def change_acls(self, change: Callable[[AclTable], AclTable]) -> None:
        """As `change_users`, of what they may do."""
        with self._store.tables_lock:
            changed = change(self.acls)
            if changed is not self.acls:
                self._store.save_state(ACLS_FILE, changed.to_text(), is_private=True)
                self.acls = changed

    def is_by_super_user(self, command: RemotingCommand) -> bool:
        """Whether a SUPER user has signed the request; where nobody has to sign, any request counts."""
        if not self.rules.authenticates:
            return True
        try:
            return authenticate(self.users, command).is_super
        except RequestRefusedError:
            return False


class BrokerParts:
    """One broker's state. What is not thread-safe by itself is touched under `lock`."""

    def __init__(
        self,
        service: PutService,
        *,
        statistics: PutStatistics,
        encoding: HeaderEncoding = HeaderEncoding.JSON,
        memory_bytes: int | None = None,
        clock: Callable[[], int],
        steady: Callable[[], int],
        access: AccessRules | None = None,
        is_slave: bool = False,
    ) -> None:
        config, settings = service.config, service.settings
        pull, clients = config.pull, config.clients
        self.service = service
        self.is_slave = is_slave
        """Whether a master writes the log."""
        self.config: StoreConfig = config
        """The settings, with what an operator has changed."""
        self.settings_version = DataVersion()
        self._permission_changes = 0
        self.cleans_asked_for = 0
        """How many more times expired log files are deleted whatever the hour is."""
        self.heed_settings: list[Callable[[StoreConfig], None]] = []
        """Who is to know when an operator has changed them."""
        self._settings_lock = threading.Lock()
        self.pool_load: Callable[[Pool], tuple[int, int]] = lambda pool: (0, 0)
        """How many requests wait for a pool, and for how many ms the first one; whoever runs the pools sets it."""
        self.ha_address: str | None = None
        """Where slaves connect; whoever listens sets it."""
        self.following_trouble: Callable[[], str | None] = lambda: None
        """What keeps a slave from following its master; whoever follows sets it."""
        self.store_reopened: str | None = None
        """When the store was opened again after a failure, and after which; whoever opens it sets it."""
        self.slaves: Callable[[], Sequence[HaConnectionInfo]] = tuple
        """What is known of each slave; whoever serves slaves sets it."""
        self.slave_hosts: dict[str, None] = {}
        """Hosts that have asked for what only slaves ask for, the last ones; with access control these have signed."""
        self.timer_page: Callable[[], bytes] = bytes
        """The timer's checkpoint as its file has it; whoever runs the timer sets it."""
        self.subscribed_queues: Callable[[str], Sequence[MessageQueue] | None] = self.own_queues
        """The queues of a topic that clients can read, at all brokers; None where there is no such topic, or nobody can say. It may
        wait. Whoever knows name servers sets it.
        """
        self.unsupported: Callable[[], Mapping[int, int]] = dict
        """By code, how many requests were answered that they are not supported; whoever has the sockets sets it."""
        self.epochs: Callable[[], EpochEntryCache | None] = lambda: None
        """In controller mode the epochs of the log; whoever keeps them sets it."""
        self.served = ServedStore(service.store)
        self.pulled = ServedStore(service.store)
        """What pulls read, and nobody else: no pull waits for a look-up."""
        self.clock = clock
        """The machine's time: for what is stored or sent."""
        self.steady = steady
        """Of a clock that nobody sets: how long somebody is silent, or waits."""
        self.encoding = encoding
        self.lock = threading.RLock()
        self.events: deque[BrokerEvent] = deque()
        self.consumers = ConsumerTable(
            expires_ms=clients.channel_expired_timeout, subscription_expires_ms=clients.subscription_expired_timeout
        )
        self.producers = ProducerTable()
        self.locks = QueueLocks()
        self.held = HeldPulls(_look_ms(pull))
        self.held_lock = threading.Lock()
        """Guards `held` alone, and nothing else is taken within it."""
        self.arrivals = Arrivals()
        """Queues whose pulls are to be looked at."""
        self.access = AccessEntries(service, access or AccessRules())
        self.offsets = GroupOffsets(
            service.state(OFFSETS_FILE, ConsumerOffsets.load),
            version_step=clients.consumer_offset_update_version_step,
            heeds_resets=clients.use_server_side_reset_offset,
        )
        self.mappings = service.state(MAPPINGS_FILE, TopicQueueMappingTable.load) or TopicQueueMappingTable()
        found = self.mappings.version
        self.mappings_version = found if found.counter else replace(found, timestamp_ms=clock())
        self.statistics = statistics
        self.traffic = Traffic(statistics, settings.cluster)
        self.fingerprints: dict[str, int] = {}
        """Of groups, what the last heartbeat said of its subscriptions in short."""
        filters = config.filters
        self.filters = ConsumerFilters(
            BloomFilter.of(filters.max_error_rate_of_bloom_filter, filters.expect_consumer_num_use_filter),
            service.state(FILTERS_FILE, ConsumerFilterTable.load),
            clock=clock,
            kept_ms=filters.filter_data_clean_time_span,
        )
        self._memory_bytes = machine_memory_bytes() if memory_bytes is None else memory_bytes
        self.limits = self._limits(pull)
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

    def change_settings(self, told: Mapping[str, str], now_ms: int) -> None:
        """An operator's settings stand in the broker.conf that was read; those hold from now on that `with_settings` names.

        Raises ConfigurationError, OSError.
        """
        with self._settings_lock:
            changed = with_settings(self.config, told)
            if (path := self.config.file) is not None:
                files = self.service.store.writer.file_system
                files.replace(path, changed_text(files.read_file(path) or b"", told))
            self._permission_changes += "brokerPermission" in told
            self.config = changed
            self._heed(changed)
            for heed in self.heed_settings:
                heed(changed)
            self.settings_version = self.settings_version.raised(now_ms)

    def _heed(self, config: StoreConfig) -> None:
        """What was made of settings at the start follows them."""
        clients = config.clients
        self.limits = self._limits(config.pull)
        with self.held_lock:
            self.held.look_interval_ms = _look_ms(config.pull)
        with self.lock:
            self.consumers.expires_ms = clients.channel_expired_timeout
            self.consumers.subscription_expires_ms = clients.subscription_expired_timeout
            self.offsets.version_step = max(1, clients.consumer_offset_update_version_step)
            self.offsets.heeds_resets = clients.use_server_side_reset_offset

    def note_slave(self, connection: ClientConnection) -> None:
        """It has asked for what only slaves ask for."""
        host = host_of(connection.address)
        with self.lock:
            self.slave_hosts.pop(host, None)
            self.slave_hosts[host] = None
            if len(self.slave_hosts) > _SLAVE_HOSTS_KEPT:
                del self.slave_hosts[next(iter(self.slave_hosts))]

    def shown_ms(self, steady_ms: int) -> int:
        """When a moment of the steady clock was, by the machine's, as it is set now."""
        return self.clock() - (self.steady() - steady_ms)

    @property
    def broker_name(self) -> str:
        """The name under which clients know the broker."""
        return self.service.settings.broker_name or ""

    @property
    def address(self) -> str:
        """Where it listens, address:port."""
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
        """Of the file's entries, raised with each change of what may be done with all of them, for name servers to look at it."""
        version = self.service.settings.topics.version
        more = self._permission_changes + (self.service.failure is not None)
        return replace(version, counter=version.counter + more)

    @property
    def permission(self) -> int:
        """What may be done with all topics: none is written while the store takes nothing."""
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

    def find_group(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's entry, made and saved where the broker may make it. Raises OSError."""
        send, groups = self.config.send, self.groups
        found = find_group(
            name,
            groups,
            auto_create=send.auto_create_subscription_group,
            create_system_groups=send.enable_create_sys_group,
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

    # Events

    def tell(
        self, connection: ClientConnection, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> None:
        """A one-way request to a client."""
        command = make_request(code, fields, body, is_oneway=True, encoding=self.encoding)
        self.events.append(Tell(connection, command))

    def tell_of(self, change: Change | None) -> None:
        """All clients of a group hear that others came or went, if the broker tells such things."""
        if change is None or not self.config.clients.notify_consumer_ids_changed_enable:
            return
        fields = write_header(ConsumerGroupRequest(consumer_group=change.group))
        for connection in change.connections:
            self.tell(connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)

    def run_again(self, pulls: Iterable[HeldPull]) -> None:
        """Pulls that waited are to be answered now."""
        self.events.extend(RunAgain(pull.connection, pull.command) for pull in pulls)

    def register_topics(self, *topics: str) -> None:
        """Name servers are to be told now."""
        self.events.append(RegisterTopics(topics))
