"""The settings of a store that every put needs: the records' host, their limits, the existing topics; and a user's options for rows.

Read by the tasks that encode records and by the process that appends them. Java: BrokerConfig, MessageStoreConfig, TopicConfigManager.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from storage.errors import ConfigurationError, PutRefusedError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem, read_table, write_with_backup
from storage.format.delay import WHEEL_SLOTS, decode_slots
from storage.format.record import HEADER_STRUCTS, HOST_FLAGS, MAGIC_V1, MAGIC_V2, SYS_FLAG_POSITION
from storage.format.record_block import (
    BlockColumns,
    OutgoingMessages,
    RecordBlock,
    UnjoinedBlock,
    columns_of,
    encode_block,
    encode_parts,
)
from storage.log.commit_log import CommitLog
from storage.log.flush import FlushPolicy, SyncFlush, flush_policy
from storage.names import address_text, plain_host, split_address
from storage.pending import PutStatus
from storage.queues.store import queue_file_size
from storage.rules.delays import is_slot_full
from storage.rules.half_messages import TransactionRules, takes_transactions
from storage.rules.inner_messages import Limits
from storage.rules.response_codes import RequestRefusedError
from storage.rules.retries import RetryRules
from storage.rules.row_rules import MessageRules
from storage.rules.topics import TopicRules, check_start
from storage.settings.load import StoreConfig
from storage.settings.nouns import UNNAMED_RELEASE, Release, SendConfig, TimerConfig, TransactionConfig
from storage.tables.document import TOPICS_FILE
from storage.tables.surroundings import OF_A_SINK, refuse_foreign_log
from storage.tables.topics import (
    MAPPINGS_FILE,
    BrokerNames,
    TopicConfig,
    TopicQueueMapping,
    TopicQueueMappingTable,
    TopicTable,
    broker_names,
    with_names,
)

DEFAULT_STORE_HOST = "127.0.0.1:10911"
DEFAULT_LOG_FILE_SIZE = 1 << 30
_STORE_HOST = 11  # number of the field among a record's fixed fields
RECORD_HEAD_BYTES = HEADER_STRUCTS[HOST_FLAGS].size
_NO_LIMIT = 2**31 - 1
_NEVER_BY_CHANCE = -1
MappingChange = Callable[[TopicQueueMapping | None], TopicQueueMapping]
"""The new mapping of a static topic, from the present one. Raises ValueError with the rule if it is refused."""


@dataclass(frozen=True, slots=True)
class PutSettings:
    """The same for all messages of a put or a task."""

    host: bytes
    """Address (4 or 16 bytes) and port (4) at which the store is served, or will be."""
    broker_name: str | None
    cluster: str
    region: str
    trace_on: bool
    max_message_size: int
    log_file_size_bytes: int
    queue_file_size_bytes: int
    log_directories: tuple[str, ...]
    """Directories for new log files."""
    flush: FlushPolicy
    topics: TopicTable
    delays_ms: tuple[int, ...]
    """The delay of each level, from level 1."""
    timer: TimerConfig
    transaction: TransactionConfig
    takes_transactions: bool
    appends_crc: bool = False
    """Whether records end in a checksum of themselves."""
    full_slots: FullSlots | None = None
    """Delivery times that the timer refuses; None = it accepts all."""
    release: Release = UNNAMED_RELEASE
    """The release of the broker that reads the records."""
    send: SendConfig = field(default_factory=SendConfig)
    mappings: TopicQueueMappingTable = field(default_factory=TopicQueueMappingTable)
    """The static topics."""

    @property
    def address(self) -> str:
        """`host` as clients see it."""
        return address_of(self.host)

    @property
    def sync_flush(self) -> bool:
        """Whether a put counts only after it is on the disk."""
        return isinstance(self.flush, SyncFlush)

    @property
    def limits(self) -> Limits:
        """The size limits of a message."""
        return Limits(self.max_message_size, self.log_file_size_bytes)

    @property
    def topic_rules(self) -> TopicRules:
        """The rules for topics."""
        mappings = self.mappings.mappings
        return TopicRules(self.topics.topics, self.send, self.timer, self.broker_name, self.cluster, mappings)

    def named(self, topics: TopicTable, now_ms: int) -> TopicTable:
        """The topics with those named after broker and cluster, if the broker's name is known."""
        return with_names(topics, BrokerNames(self.broker_name, self.cluster), self.send, now_ms=now_ms)

    def with_topics(self, topics: TopicTable) -> PutSettings:
        return replace(self, topics=topics)

    def encode(self, messages: OutgoingMessages) -> RecordBlock:
        """The messages as records of this store. PutRefusedError for a topic that its broker cannot read."""
        return encode_block(self._taken(messages), self.host)

    def encode_parts(self, messages: OutgoingMessages) -> UnjoinedBlock:
        """The same records, for joining piece by piece. Raises what `encode` does."""
        return encode_parts(self._taken(messages), self.host)

    def columns_of(self, messages: OutgoingMessages) -> BlockColumns:
        """The columns needed to place and dispatch these records, if the records are made of others later. Raises as `encode`."""
        return columns_of(self._taken(messages), self.host)

    def _taken(self, messages: OutgoingMessages) -> OutgoingMessages:
        """The messages as the store accepts them."""
        self.refuse_unreadable(messages.queues)
        return messages.with_crc_room() if self.appends_crc else messages

    def refuse_unreadable(self, queues: Iterable[tuple[str, int]]) -> None:
        """PutRefusedError for a topic that its broker cannot read."""
        for topic, _ in queues:
            if (refusal := self.release.refusal_of_topic(topic)) is not None:
                raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, refusal)


def put_settings(
    root: str,
    config: StoreConfig,
    file_system: LocalFileSystem,
    store_host: str | None = None,
    broker_name: str | None = None,
    flush_disk_type: str | None = None,
    log: CommitLog | None = None,
) -> PutSettings:
    """The settings for the store at ROOT, which need not exist yet.

    The store's host is brokerIP1:listenPort if brokerIP1 is configured, else `store_host`, else that of the records in the store's
    last file: a broker's address may change, and later records have the new one, as in Java. The names of broker
    and cluster are those of `storage/tables/topics.py`. `log` is the store's, if the caller has it open and may write it.
    Raises StoreRefusedError for a store that no sink writes, ForeignLogError if the log may be another store's; ConfigurationError for
    an unreachable host, or for a
    `store_host` that is not brokerIP1:listenPort; StateFileError for an unreadable topics.json or topicQueueMapping.json.
    """
    with ExitStack() as opened:
        if log is None:
            directories = refuse_foreign_log(root, config, file_system, OF_A_SINK).directories
            log = CommitLog(file_system, directories, config.commit_log.mapped_file_size_commit_log)
            opened.callback(log.close)
        own = _host_of_configuration(config)
        given = None if store_host is None else parse_host(store_host, "storeHost")
        if own is not None and given is not None and own != given:
            identity = config.identity
            rule = (
                f"it is {store_host}, and brokerIP1={identity.broker_ip1} with listenPort={identity.listen_port} says otherwise: "
                f"give storeHost={address_of(own)}, or none; or change the two lines"
            )
            raise ConfigurationError(config.file, None, "storeHost", rule)
        host = own or given or _host_of_log(log) or parse_host(DEFAULT_STORE_HOST, "storeHost")
        log_file_size, directories = log.file_size_bytes or DEFAULT_LOG_FILE_SIZE, log.directories
    read_only = {path.rstrip("/") for path in (config.commit_log.read_only_commit_log_store_paths or "").split(",")}
    read = file_system.read_file
    topics = read_table(f"{root}/config/{TOPICS_FILE}", TopicTable.load, read) or TopicTable()
    static = read_table(f"{root}/config/{MAPPINGS_FILE}", TopicQueueMappingTable.load, read) or TopicQueueMappingTable()
    names = broker_names(config, topics, broker_name)
    return PutSettings(
        host=host,
        broker_name=names.broker,
        cluster=names.cluster,
        region=config.send.region_id,
        trace_on=config.send.trace_on,
        max_message_size=config.commit_log.max_message_size,
        log_file_size_bytes=log_file_size,
        queue_file_size_bytes=queue_file_size(file_system, root, config.consume_queue.mapped_file_size_consume_queue),
        log_directories=tuple(sorted(path for path in directories if path not in read_only)) or directories,
        flush=flush_policy(
            config.flush,
            is_sync=(flush_disk_type or config.flush.flush_disk_type) == "SYNC_FLUSH",
            log_file_size_bytes=log_file_size,
        ),
        topics=topics,
        delays_ms=config.delay.delays_ms,
        timer=config.timer,
        transaction=config.transaction,
        takes_transactions=takes_transactions(config.send),
        appends_crc=config.commit_log.appends_crc,
        full_slots=full_slots(file_system, root, config.timer),
        release=config.release,
        send=config.send,
        mappings=static,
    )


def record_host(head: bytes) -> bytes | None:
    """The store host of the record that begins with these `RECORD_HEAD_BYTES`; None if none does."""
    if int.from_bytes(head[4:8], "big") not in (MAGIC_V1, MAGIC_V2):
        return None
    layout = HEADER_STRUCTS[int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big") & HOST_FLAGS]
    if len(head) < layout.size:
        return None
    host: bytes = layout.unpack_from(head)[_STORE_HOST]
    return host


def refuse_before_start(root: str, settings: PutSettings, now_ms: int) -> None:
    """StoreNotWritableError until the store's broker accepts messages (`startAcceptSendRequestTimeStamp`)."""
    try:
        check_start(settings.send, now_ms)
    except RequestRefusedError as refused:
        hint = "wait until then, or take the setting out of broker.conf"
        raise StoreNotWritableError(root, refused.reason, hint) from refused


def parse_host(text: str, setting: str) -> bytes:
    """`address:port` or `name:port` as a record holds it. Raises ConfigurationError for an impossible address."""
    try:
        name, port = split_address(text.strip())
    except ValueError as rule:
        raise ConfigurationError(None, None, setting, f"expected address:port, found {text!r}: {rule}") from None
    return host_bytes(name, port, setting)


def host_bytes(name: str, port: int, setting: str) -> bytes:
    """An address, in brackets or not, or a host name, and a port, as a record holds them."""
    name = plain_host(name.strip())
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ConfigurationError(None, None, setting, f"no address is known for {name!r}: {error}") from error
    if address.is_unspecified or address.is_multicast:
        rule = f"{name} is no address at which a broker can be reached: message ids hold it"
        raise ConfigurationError(None, None, setting, rule)
    return address.packed + port.to_bytes(4, "big")


def address_of(host: bytes) -> str:
    """A record's host as clients see it: `address:port`, for IPv6 `[address]:port`."""
    return address_text(str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))


def _host_of_configuration(config: StoreConfig) -> bytes | None:
    if config.identity.broker_ip1 is None:
        return None
    return host_bytes(config.identity.broker_ip1, config.identity.listen_port, "brokerIP1")


def _host_of_log(log: CommitLog) -> bytes | None:
    """The store host of the first record of the last file with one."""
    for file in reversed(log.files):
        if (host := record_host(log.open_file(file).view(0, RECORD_HEAD_BYTES).tobytes())) is not None:
            return host
    return None


@dataclass(frozen=True, slots=True)
class FullSlots:
    """A `storage.rules.delays.Congestion`."""

    times_ms: tuple[int, ...]

    def __call__(self, out_ms: np.ndarray) -> np.ndarray:
        return np.isin(out_ms, np.array(self.times_ms, np.int64))


def full_slots(file_system: LocalFileSystem, root: str, timer: TimerConfig) -> FullSlots | None:
    """The full slots of ROOT/timerwheel; None if the settings set no limit, or nothing is full. Raises OSError.

    Flow control of the timer for rows: delivery times with too many messages. Java: TimerMessageStore.isReject.

    Rows are compared with the wheel at the start of their task or put: messages of the same batch are not counted, as a
    broker counts only what its timer has entered. Between timerCongestNumEachSlot and twice as many a broker decides by chance;
    rows are not refused by chance, because a repeated task must make the same messages.
    """
    path = f"{root}/timerwheel"
    if timer.timer_congest_num_each_slot >= _NO_LIMIT or not file_system.exists(path):
        return None
    wheel = file_system.open_file(path)
    times: list[int] = []
    for start, end in wheel.data_ranges(0):
        slots = decode_slots(wheel.view(start, end - start).tobytes())
        numbers = start // slots.itemsize + np.arange(len(slots))
        is_full = np.asarray(is_slot_full(slots["count"], timer.timer_congest_num_each_slot, _NEVER_BY_CHANCE))
        found = slots[is_full & (slots["tick"] % WHEEL_SLOTS == numbers)]
        times += (found["tick"] * timer.timer_precision_ms).tolist()
    wheel.close()
    return FullSlots(tuple(times)) if times else None


class TopicEntries:
    """The settings of a writer, whose topics change: any thread reads them, one thread at a time changes them. Thread-safe.

    The table in memory is a frozen value, replaced after the file holds the new one. So readers need no lock and never see an entry
    that a crash could remove. Each change raises StoreNotWritableError after a failure of the writer. Java: TopicConfigManager.
    """

    def __init__(
        self,
        root: str,
        file_system: LocalFileSystem,
        settings: PutSettings,
        clock: Callable[[], int],
        *,
        refuse: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`refuse` raises if the writer has failed. `fail` is called with an error after which it is unknown whether the disk holds
        the table.
        """
        self.settings = settings
        self._root, self._directory = root, f"{root}/config"
        self._file_system = file_system
        self._clock = clock
        self._refuse = refuse
        self._fail = fail
        self._lock = threading.Lock()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._refuse()
        with self._lock:
            yield

    def ensure(self, wanted: Mapping[str, int], grown: Mapping[str, int] = MappingProxyType({})) -> None:
        """Give topics without an entry one with so many queues, before their first record; topics of `grown` get more if they have
        fewer. Raises what `save` raises.
        """
        if not grown and wanted.keys() <= self.settings.topics.topics.keys():
            self._refuse()
            return
        with self._changing():
            table, rules = self.settings.topics, self.settings.topic_rules
            for topic, queue_count in (*wanted.items(), *grown.items()):
                if topic not in table.topics or topic in grown:
                    table = table.ensure_topic(
                        topic,
                        queue_count,
                        now_ms=self._clock(),
                        broker_name=self.settings.broker_name,
                        cluster_name=self.settings.cluster,
                        new=rules.new_topic(topic, queue_count),
                    )
            if table is not self.settings.topics:
                self._change(table)

    def save(self, topic: TopicConfig) -> None:
        """Write the topic's entry, new or in place of its old one; nothing if it is unchanged. Raises StoreRefusedError, OSError."""
        with self._changing():
            if self.settings.topics.topics.get(topic.topic) != topic:
                self._change(self.settings.topics.with_topic(topic, now_ms=self._clock()))

    def make(self, topic: TopicConfig) -> TopicConfig:
        """Write the topic's entry if there is none; returns the present entry, which another thread may have made.

        Raises what `save` raises.
        """
        with self._changing():
            present = self.settings.topics.topics.get(topic.topic)
            if present is None:
                self._change(self.settings.topics.with_topic(topic, now_ms=self._clock()))
            return present or topic

    def save_static(self, topic: TopicConfig, change: MappingChange) -> None:
        """Write the mapping of a static topic, then its entry, whose version rises in any case: name servers go by it.

        A crash between the two leaves a mapping whose queues take no message yet. Raises ValueError where `change` does, OSError.
        Java: AdminBrokerProcessor.updateAndCreateStaticTopic.
        """
        with self._changing():
            table = self.settings.mappings
            mapping = change(table.mappings.get(topic.topic))
            self._save_mappings(table.with_mapping(mapping, now_ms=self._clock()))
            self._change(self.settings.topics.with_topic(topic, now_ms=self._clock()))

    def change_mapping(self, topic: str, change: Callable[[TopicQueueMapping], TopicQueueMapping]) -> None:
        """Replace the mapping of a static topic by what `change` makes of it, if that is another one. Raises ValueError, OSError."""
        with self._changing():
            table = self.settings.mappings
            found = table.mappings.get(topic)
            if found is not None and (mapping := change(found)) is not found:
                self._save_mappings(table.with_mapping(mapping, now_ms=self._clock()))

    def replace_mappings(self, table: TopicQueueMappingTable) -> None:
        """Replace the whole table of static topics. Raises OSError."""
        with self._changing():
            self._save_mappings(table)

    def _save_mappings(self, table: TopicQueueMappingTable) -> None:
        self._write(MAPPINGS_FILE, table.to_text())
        self.settings = replace(self.settings, mappings=table)

    def remove(self, topic: str) -> None:
        """Remove the topic's entry, then its mapping, if there are any. Raises OSError."""
        with self._changing():
            if topic in self.settings.topics.topics:
                self._change(self.settings.topics.without_topic(topic, now_ms=self._clock()))
            mappings = self.settings.mappings.without_topic(topic, now_ms=self._clock())
            if mappings is not self.settings.mappings:
                self._save_mappings(mappings)

    def replace(self, table: TopicTable) -> None:
        """Replace the whole table. Raises StoreRefusedError, OSError."""
        with self._changing():
            self._save(table)

    def tell_names(self) -> None:
        """Add missing topics named after broker and cluster, if the broker's name is known. Raises OSError."""
        with self._changing():
            if self.settings.named(self.settings.topics, self._clock()) is not self.settings.topics:
                self._change(self.settings.topics)

    def _change(self, table: TopicTable) -> None:
        """Save a table of this store's own, with the topics named after broker and cluster, as Java does at each change."""
        self._save(self.settings.named(table, self._clock()))

    def _save(self, table: TopicTable) -> None:
        table.refuse_batches(self._root)
        self._write(TOPICS_FILE, table.to_text())
        self.settings = self.settings.with_topics(table)

    def _write(self, name: str, text: str) -> None:
        path = f"{self._directory}/{name}"
        try:
            write_with_backup(path, text, self._file_system)
        except OSError as error:
            if self._says(path, text):  # though it is unknown whether the disk does
                self._fail(error)
            raise

    def _says(self, path: str, text: str) -> bool:
        try:
            return self._file_system.read_file(path) == text.encode()
        except OSError:
            return True


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The user's options for the rows of a put, or of the sink: the keywords of `put_batch`."""

    topic: str | None = None
    """The topic of all rows, which overrides their column; None = the column decides."""
    queue_count: int | None = None
    """Queues of a topic that is made, unless rows name more; None = its template's, which are `defaultTopicQueueNums`. A given value
    also allows an existing topic to get as many, if rows name them."""
    growing: frozenset[str] = frozenset()
    """Existing topics that get the queues that rows name, as if they were created."""
    create_topic: bool | None = None
    """Whether missing topics are made; None = as `autoCreateTopicEnable` says."""
    compress_body_over: int | None = None
    """Bodies of at least so many bytes are compressed, as by a Java client (compressMsgBodyOverHowmuch)."""
    keep_unique_key: bool = False
    strict_properties: bool = False
    transactional: bool = False
    """Every row is a half message."""
    producer_group: str | None = None
    """The producer group that a broker checks for all halves, which overrides their column; None = the column decides."""
    marks: tuple[tuple[str, str], ...] = ()
    """Additional properties for halves whose end is known."""
    retries: RetryRules = field(default_factory=RetryRules)
    is_repeatable: bool = False
    """The same rows always make the same messages (`MessageRules.is_repeatable`)."""


def message_rules(settings: PutSettings, options: PutOptions) -> MessageRules:
    """The rules for rows in a store with these settings."""
    transaction = None
    if options.transactional:
        transaction = TransactionRules(options.producer_group, options.marks, not settings.takes_transactions)
    return MessageRules(
        topic=options.topic,
        topics=settings.topics.topics,
        create_topic=options.create_topic,
        queue_count=options.queue_count,
        send=settings.send,
        mappings=settings.mappings.mappings,
        grow_to=options.queue_count or 0,
        growing=options.growing,
        broker_name=settings.broker_name,
        cluster_name=settings.cluster,
        region=settings.region,
        trace_on=settings.trace_on,
        max_message_size=settings.max_message_size,
        log_file_size=settings.log_file_size_bytes,
        host_size=len(settings.host),
        appends_crc=settings.appends_crc,
        indexes_tags=settings.release.indexes_tags,
        honours_priority=settings.release.honours_priority,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
        delays_ms=settings.delays_ms,
        timer=settings.timer,
        is_congested=settings.full_slots,
        is_repeatable=options.is_repeatable,
        transaction=transaction,
        retries=options.retries,
    )
