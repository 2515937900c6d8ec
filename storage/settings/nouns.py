"""The settings of a broker and its store: one frozen dataclass per noun.

Every field names its Java property and unit; a Python name is the Java name in snake case. None if Java would ask the machine, or
if the store's own files show the value. `load.py` reads them from a broker.conf.

A store does not say which release wrote it. So the user names the release: `rocketmqVersion` in broker.conf, or an option. A broker
ignores that line. What a broker of each release reads and writes is one table here (`Release`); no Java class has it: a Java broker
writes only what it can read. A difference between releases is a field of `Release`; code asks the field and never compares versions.

Java: BrokerConfig, MessageStoreConfig, BrokerStartup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from storage.errors import ConfigurationError
from storage.format.delay import DEFAULT_LEVELS, parse_delay_levels
from storage.settings.java_properties import setting

CONSUME_QUEUE_ENTRY_BYTES = 20


def _require_positive(config: object, *names: str) -> None:
    for declared in fields(config):  # type: ignore[arg-type]
        value = getattr(config, declared.name)
        if declared.name in names and value is not None and value <= 0:
            raise ConfigurationError(None, None, declared.metadata["java"], f"{value} is not greater than 0")


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker that serves the store. None = not configured (Java would ask the machine)."""

    broker_name: str | None = setting("brokerName", None)
    broker_cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    broker_ip1: str | None = setting("brokerIP1", None)
    broker_ip2: str | None = setting("brokerIP2", None)
    """The address for replicas, if not the first one."""
    listen_port: int = setting("listenPort", 10911)


@dataclass(frozen=True, slots=True)
class CommitLogConfig:
    """The log's place, its files and what counts as a valid record."""

    mapped_file_size_commit_log: int | None = setting("mappedFileSizeCommitLog", None, unit="bytes")
    store_path_commit_log: str | None = setting("storePathCommitLog", None)
    read_only_commit_log_store_paths: str | None = setting("readOnlyCommitLogStorePaths", None)
    max_message_size: int = setting("maxMessageSize", 4 * 1024 * 1024, unit="bytes of body")
    check_crc_on_recover: bool = setting("checkCRCOnRecover", True)
    force_verify_prop_crc: bool = setting("forceVerifyPropCRC", False)
    enabled_append_prop_crc: bool = setting("enabledAppendPropCRC", False)

    def __post_init__(self) -> None:
        _require_positive(self, "mapped_file_size_commit_log", "max_message_size")

    @property
    def appends_crc(self) -> bool:
        """Whether records are written with the property `__CRC32#`.

        Departure: also with forceVerifyPropCRC alone, where a broker writes records that its own next recovery cuts off.
        """
        return self.enabled_append_prop_crc or self.force_verify_prop_crc


@dataclass(frozen=True, slots=True)
class ConsumeQueueConfig:
    """Files of the consume queues. The file size is rounded up to whole entries, as Java's getter does."""

    mapped_file_size_consume_queue: int | None = setting("mappedFileSizeConsumeQueue", None, unit="bytes")
    enable_consume_queue_ext: bool = setting("enableConsumeQueueExt", False)
    mapped_file_size_consume_queue_ext: int | None = setting("mappedFileSizeConsumeQueueExt", None, unit="bytes")

    def __post_init__(self) -> None:
        _require_positive(self, "mapped_file_size_consume_queue", "mapped_file_size_consume_queue_ext")
        if self.mapped_file_size_consume_queue is not None:
            entries = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_ENTRY_BYTES)
            object.__setattr__(self, "mapped_file_size_consume_queue", entries * CONSUME_QUEUE_ENTRY_BYTES)


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Geometry of the index files, which no file of the store holds."""

    message_index_enable: bool = setting("messageIndexEnable", True)
    message_index_safe: bool = setting("messageIndexSafe", False)
    index_rocks_db_enable: bool = setting("indexRocksDBEnable", False)
    index_file_write_enable: bool = setting("indexFileWriteEnable", True)
    max_hash_slot_num: int = setting("maxHashSlotNum", 5_000_000, unit="slots")
    max_index_num: int = setting("maxIndexNum", 20_000_000, unit="items")

    def __post_init__(self) -> None:
        _require_positive(self, "max_hash_slot_num", "max_index_num")

    @property
    def has_files(self) -> bool:
        """Whether the index files get every key. Java: CommitLogDispatcherBuildIndex."""
        return self.message_index_enable and self.index_file_write_enable

    @property
    def is_elsewhere(self) -> bool:
        """Whether look-ups by key would find nothing in the files, because a broker enters keys into RocksDB alone."""
        return self.message_index_enable and self.index_rocks_db_enable and not self.index_file_write_enable


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """When an acknowledged message is on the disk: ASYNC_FLUSH or SYNC_FLUSH, and how often written data is synced.

    Only a broker process uses all of them (`put_service.py`). A writer that opened the store itself uses the first one: it syncs on
    request, or with every put under SYNC_FLUSH.
    """

    flush_disk_type: str = setting("flushDiskType", "ASYNC_FLUSH")
    sync_flush_timeout: int = setting("syncFlushTimeout", 5_000, unit="ms")
    flush_interval_commit_log: int = setting("flushIntervalCommitLog", 500, unit="ms")
    flush_commit_log_least_pages: int = setting("flushCommitLogLeastPages", 4, unit="pages of 4 KiB")
    flush_commit_log_thorough_interval: int = setting("flushCommitLogThoroughInterval", 10_000, unit="ms")
    flush_commit_log_timed: bool = setting("flushCommitLogTimed", True)
    wake_flush_when_put_message: bool = setting("wakeFlushWhenPutMessage", False)
    transient_store_pool_enable: bool = setting("transientStorePoolEnable", False)
    transient_store_pool_size: int = setting("transientStorePoolSize", 5, unit="log files")
    commit_interval_commit_log: int = setting("commitIntervalCommitLog", 200, unit="ms")
    commit_commit_log_least_pages: int = setting("commitCommitLogLeastPages", 4, unit="pages of 4 KiB")
    commit_commit_log_thorough_interval: int = setting("commitCommitLogThoroughInterval", 200, unit="ms")
    wake_commit_when_put_message: bool = setting("wakeCommitWhenPutMessage", True)
    flush_interval_consume_queue: int = setting("flushIntervalConsumeQueue", 1_000, unit="ms")
    flush_consume_queue_least_pages: int = setting("flushConsumeQueueLeastPages", 2, unit="pages of 4 KiB")
    flush_consume_queue_thorough_interval: int = setting("flushConsumeQueueThoroughInterval", 60_000, unit="ms")
    os_page_cache_busy_time_out_mills: int = setting("osPageCacheBusyTimeOutMills", 1_000, unit="ms")
    warm_maped_file_enable: bool = setting("warmMapedFileEnable", False)
    flush_least_pages_when_warm_maped_file: int = setting(
        "flushLeastPagesWhenWarmMapedFile", 4_096, unit="pages of 4 KiB"
    )

    def __post_init__(self) -> None:
        _require_positive(
            self,
            "flush_interval_commit_log",
            "commit_interval_commit_log",
            "flush_interval_consume_queue",
            "transient_store_pool_size",
        )


@dataclass(frozen=True, slots=True)
class DelayConfig:
    """The delay levels of SCHEDULE_TOPIC_XXXX; level 1 is the first."""

    message_delay_level: str = setting("messageDelayLevel", DEFAULT_LEVELS)

    def __post_init__(self) -> None:
        try:
            levels = parse_delay_levels(self.message_delay_level)
        except ValueError as error:
            raise ConfigurationError(None, None, "messageDelayLevel", str(error)) from None
        if not levels:
            raise ConfigurationError(None, None, "messageDelayLevel", "at least one level is needed")

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level in milliseconds."""
        return parse_delay_levels(self.message_delay_level)


@dataclass(frozen=True, slots=True)
class SendConfig:
    """A broker's limits for a send request, and what it adds to a message."""

    broker_permission: int = setting("brokerPermission", 6)
    auto_create_topic_enable: bool = setting("autoCreateTopicEnable", True)
    auto_create_subscription_group: bool = setting("autoCreateSubscriptionGroup", True)
    enable_create_sys_group: bool = setting("enableCreateSysGroup", True)
    default_topic_queue_nums: int = setting("defaultTopicQueueNums", 8, unit="queues")
    reject_transaction_message: bool = setting("rejectTransactionMessage", False)
    start_accept_send_request_time_stamp: int = setting("startAcceptSendRequestTimeStamp", 0, unit="ms since 1970")
    recall_message_enable: bool = setting("recallMessageEnable", False)
    store_reply_message_enable: bool = setting("storeReplyMessageEnable", True)
    region_id: str = setting("regionId", "DefaultRegion")
    trace_on: bool = setting("traceOn", True)
    cluster_topic_enable: bool = setting("clusterTopicEnable", True)
    broker_topic_enable: bool = setting("brokerTopicEnable", True)
    trace_topic_enable: bool = setting("traceTopicEnable", False)
    msg_trace_topic_name: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")


@dataclass(frozen=True, slots=True)
class PullConfig:
    """How a broker process answers its consumers, and how long they may wait."""

    long_polling_enable: bool = setting("longPollingEnable", True)
    short_polling_time_mills: int = setting("shortPollingTimeMills", 1_000, unit="ms")
    lite_pull_message_enable: bool = setting("litePullMessageEnable", True)
    reject_pull_consumer_enable: bool = setting("rejectPullConsumerEnable", False)
    slave_read_enable: bool = setting("slaveReadEnable", False)
    enable_property_filter: bool = setting("enablePropertyFilter", False)
    max_transfer_bytes_on_message_in_memory: int = setting("maxTransferBytesOnMessageInMemory", 262_144, unit="bytes")
    max_transfer_count_on_message_in_memory: int = setting("maxTransferCountOnMessageInMemory", 32, unit="messages")
    max_transfer_bytes_on_message_in_disk: int = setting("maxTransferBytesOnMessageInDisk", 65_536, unit="bytes")
    max_transfer_count_on_message_in_disk: int = setting("maxTransferCountOnMessageInDisk", 8, unit="messages")
    max_filter_message_size: int = setting(
        "maxFilterMessageSize", 16_000, unit="bytes of queue entries that a pull looks at"
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio", 40, unit="% of the machine's memory"
    )
    default_query_max_num: int = setting("defaultQueryMaxNum", 32, unit="messages")


@dataclass(frozen=True, slots=True)
class ClientsConfig:
    """What a broker process keeps about its clients and the progress of groups."""

    channel_expired_timeout: int = setting("channelExpiredTimeout", 120_000, unit="ms")
    subscription_expired_timeout: int = setting("subscriptionExpiredTimeout", 600_000, unit="ms")
    notify_consumer_ids_changed_enable: bool = setting("notifyConsumerIdsChangedEnable", True)
    server_load_balancer_enable: bool = setting("serverLoadBalancerEnable", True)
    load_balance_poll_name_server_interval: int = setting("loadBalancePollNameServerInterval", 30_000, unit="ms")
    use_server_side_reset_offset: bool = setting("useServerSideResetOffset", True)
    flush_consumer_offset_interval: int = setting("flushConsumerOffsetInterval", 5_000, unit="ms")
    consumer_offset_update_version_step: int = setting("consumerOffsetUpdateVersionStep", 500, unit="commits a version")
    validate_system_topic_when_update_topic: bool = setting("validateSystemTopicWhenUpdateTopic", True)
    enable_mixed_message_type: bool = setting("enableMixedMessageType", False)
    config_black_list: str = setting(
        "configBlackList", "configBlackList;brokerConfigPath", unit="names between semicolons"
    )
    disable_consume_if_consumer_read_slowly: bool = setting("disableConsumeIfConsumerReadSlowly", False)
    consumer_fallbehind_threshold: int = setting("consumerFallbehindThreshold", 16 << 30, unit="bytes of log")
    disk_fall_recorded: bool = setting("diskFallRecorded", True)


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """What a broker process keeps of its groups' expressions, and how extension units get bit maps for them."""

    enable_calc_filter_bit_map: bool = setting("enableCalcFilterBitMap", False)
    max_error_rate_of_bloom_filter: int = setting("maxErrorRateOfBloomFilter", 20, unit="%")
    expect_consumer_num_use_filter: int = setting("expectConsumerNumUseFilter", 32, unit="groups")
    filter_data_clean_time_span: int = setting("filterDataCleanTimeSpan", 24 * 3600 * 1000, unit="ms")
    filter_support_retry: bool = setting("filterSupportRetry", False)

    def __post_init__(self) -> None:
        _require_positive(self, "max_error_rate_of_bloom_filter", "expect_consumer_num_use_filter")
        if self.max_error_rate_of_bloom_filter >= 100:
            raise ConfigurationError(None, None, "maxErrorRateOfBloomFilter", "it is not less than 100")


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """Timer messages: the wheel, its log, and how far ahead it reaches."""

    timer_wheel_enable: bool = setting("timerWheelEnable", True)
    timer_precision_ms: int = setting("timerPrecisionMs", 1_000, unit="ms")
    timer_max_delay_sec: int = setting("timerMaxDelaySec", 3 * 24 * 3600, unit="s")
    timer_roll_window_slot: int = setting("timerRollWindowSlot", 2 * 24 * 3600, unit="slots")
    timer_congest_num_each_slot: int = setting("timerCongestNumEachSlot", 2**31 - 1, unit="messages in a slot")
    append_topic_for_timer_delete_key: bool = setting("appendTopicForTimerDeleteKey", False)
    timer_stop_enqueue: bool = setting("timerStopEnqueue", False)
    mapped_file_size_timer_log: int = setting("mappedFileSizeTimerLog", 100 * 1024 * 1024, unit="bytes")

    def __post_init__(self) -> None:
        _require_positive(self, "timer_precision_ms", "mapped_file_size_timer_log")


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """When a producer is checked for the outcome of a half message, and how op messages are batched."""

    transaction_time_out: int = setting("transactionTimeOut", 6_000, unit="ms")
    transaction_check_max: int = setting("transactionCheckMax", 15, unit="checks")
    transaction_op_msg_max_size: int = setting(
        "transactionOpMsgMaxSize", 4_096, unit="bytes of body; 0 = one half for each message"
    )
    transaction_op_batch_interval: int = setting("transactionOpBatchInterval", 3_000, unit="ms")


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """When a store's oldest files are deleted."""

    file_reserved_time: int = setting("fileReservedTime", 72, unit="h")
    delete_when: str = setting("deleteWhen", "04", unit="hours of the day, between semicolons")
    delete_commit_log_files_interval: int = setting("deleteCommitLogFilesInterval", 100, unit="ms between two files")
    delete_consume_queue_files_interval: int = setting(
        "deleteConsumeQueueFilesInterval", 100, unit="ms between two files"
    )
    delete_file_batch_max: int = setting("deleteFileBatchMax", 10, unit="files")
    disk_max_used_space_ratio: int = setting("diskMaxUsedSpaceRatio", 75, unit="%")
    disk_space_clean_forcibly_ratio: int = setting("diskSpaceCleanForciblyRatio", 85, unit="%")
    disk_space_warning_level_ratio: int = setting("diskSpaceWarningLevelRatio", 90, unit="%")
    clean_file_forcibly_enable: bool = setting("cleanFileForciblyEnable", True)


_IN_FILES, _IN_ROCKSDB = "default", "defaultrocksdb"
"""Kinds of consume queues, in small letters. Java: StoreType."""


@dataclass(frozen=True, slots=True)
class StoreModeConfig:
    """The kind of store and of broker, for `refuse_for_writing`."""

    store_type: str = setting("storeType", "default")
    broker_role: str = setting("brokerRole", "ASYNC_MASTER")
    config_manager_version: str = setting("configManagerVersion", "v1")
    enable_dleger_commit_log: bool = setting("enableDLegerCommitLog", False)
    d_leger_self_id: str | None = setting("dLegerSelfId", None)
    store_path_dledger_commit_log: str | None = setting("storePathDLedgerCommitLog", None)
    enable_controller_mode: bool = setting("enableControllerMode", False)
    duplication_enable: bool = setting("duplicationEnable", False)
    rocksdb_cq_double_write_enable: bool = setting("rocksdbCQDoubleWriteEnable", False)
    combine_cq_loading_cq_types: str = setting("combineCQLoadingCQTypes", "default;defaultRocksDB")
    combine_cq_prefer_cq_type: str = setting("combineCQPreferCQType", "default")
    use_single_rocksdb_for_all_configs: bool = setting("useSingleRocksDBForAllConfigs", False)
    trans_rocks_db_enable: bool = setting("transRocksDBEnable", False)
    timer_rocks_db_enable: bool = setting("timerRocksDBEnable", False)
    enable_multi_dispatch: bool = setting("enableMultiDispatch", False)

    @property
    def is_rocksdb_store(self) -> bool:
        """Whether queues and tables lie in RocksDB alone. Java: MessageStoreConfig.isEnableRocksDBStore."""
        return self.store_type.lower() == _IN_ROCKSDB

    @property
    def serves_rocksdb(self) -> bool:
        """Whether consumers get what queues in RocksDB name: also where the broker writes both kinds and prefers this one, or no longer
        writes the files. Java: CombineConsumeQueueStore, StoreType.fromString.
        """
        if self.is_rocksdb_store or not self.rocksdb_cq_double_write_enable:
            return self.is_rocksdb_store
        written = {name.strip().lower() for name in self.combine_cq_loading_cq_types.split(";")}
        return self.combine_cq_prefer_cq_type.lower() == _IN_ROCKSDB or _IN_FILES not in written

    @property
    def has_unread_tables(self) -> bool:
        """Whether topics, groups and groups' offsets lie in config/rdb/, which this package does not read. Java: ConfigStorage."""
        return self.config_manager_version == "v2"


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """How a log is replicated: the connection of master and slave, and how many copies an acknowledged message has.

    Counts of copies include the master's.
    """

    ha_listen_port: int = setting("haListenPort", 0, unit="0 = listenPort + 1")
    ha_send_heartbeat_interval: int = setting("haSendHeartbeatInterval", 5_000, unit="ms")
    ha_housekeeping_interval: int = setting("haHousekeepingInterval", 20_000, unit="ms")
    ha_transfer_batch_size: int = setting("haTransferBatchSize", 32_768, unit="bytes")
    ha_max_gap_not_in_sync: int = setting("haMaxGapNotInSync", 268_435_456, unit="bytes")
    ha_max_time_slave_not_catchup: int = setting("haMaxTimeSlaveNotCatchup", 15_000, unit="ms")
    in_sync_replicas: int = setting("inSyncReplicas", 1, unit="copies")
    min_in_sync_replicas: int = setting("minInSyncReplicas", 1, unit="copies")
    total_replicas: int = setting("totalReplicas", 1, unit="copies")
    all_ack_in_sync_state_set: bool = setting("allAckInSyncStateSet", False)
    enable_auto_in_sync_replicas: bool = setting("enableAutoInSyncReplicas", False)
    enable_slave_acting_master: bool = setting("enableSlaveActingMaster", False)
    enable_remote_escape: bool = setting("enableRemoteEscape", False)
    """Whether a slave in its master's place puts what is due into the logs of other masters."""
    broker_not_active_timeout_millis: int = setting("brokerNotActiveTimeoutMillis", 10_000, unit="ms")
    slave_timeout: int = setting("slaveTimeout", 3_000, unit="ms")
    read_un_committed: bool = setting("readUnCommitted", False)

    def __post_init__(self) -> None:
        names = "ha_send_heartbeat_interval", "ha_housekeeping_interval", "ha_transfer_batch_size", "slave_timeout"
        _require_positive(self, *names)


@dataclass(frozen=True, slots=True)
class TieredConfig:
    """Where a broker moves old messages (messageStorePlugIn=…TieredMessageStore)."""

    tiered_backend_service_provider: str = setting(
        "tieredBackendServiceProvider", "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment"
    )
    tiered_store_file_path: str | None = setting("tieredStoreFilePath", None)


NOUNS: tuple[type, ...] = (
    BrokerIdentity,
    CommitLogConfig,
    ConsumeQueueConfig,
    IndexConfig,
    FlushConfig,
    SendConfig,
    PullConfig,
    ClientsConfig,
    FilterConfig,
    DelayConfig,
    TimerConfig,
    TransactionConfig,
    RetentionConfig,
    StoreModeConfig,
    ReplicationConfig,
    TieredConfig,
)


VERSION_SETTING = "rocketmqVersion"
"""Its name in broker.conf and as an option; Java has no such setting."""
SHORT_TOPIC_LIMIT = 127
"""The longest topic, in bytes, in a record with a one-byte length (magic V1)."""

_VERSION_TEXT = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)


class BrokerVersion(NamedTuple):
    """A release's number, such as 4.9.7. Compares as releases do."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST_VERSION = BrokerVersion(4, 9)


def parse_broker_version(text: str) -> BrokerVersion:
    """`4.9.7` or `5.3`. Raises ValueError with the rule for other texts, and for releases before 4.9, which are not tested."""
    matched = _VERSION_TEXT.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"{text!r} is no release of RocketMQ; write it as 4.9.7 or 5.3")
    version = BrokerVersion(*(int(part or 0) for part in matched.groups()))
    if version < OLDEST_VERSION:
        raise ValueError(
            f"{version} is older than {OLDEST_VERSION.major}.{OLDEST_VERSION.minor}, the oldest release that was tried"
        )
    return version


TOPIC_AND_KEY = "topic+uniqueKey"
KEY_ALONE = "uniqueKey"
"""The two forms in which a deletion names its timer message (property TIMER_DEL_UNIQKEY)."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a broker of one release reads and writes. The defaults are those of 4.9; `_RELEASE_CHANGES` has the later ones."""

    version: BrokerVersion = OLDEST_VERSION
    has_timer: bool = False
    """Delivers timer messages. An older broker never delivers them. Java: HookUtils.handleScheduleMessage."""
    reads_long_topics: bool = False
    """Reads records of topics of more than 127 bytes (magic V2). An older broker ends its log at the first one and cuts the rest.
    Java: MessageDecoder.MESSAGE_MAGIC_CODE_V2."""
    reads_op_lists: bool = False
    """Reads op messages that name several half messages. An older broker expects a single number, and checks ended transactions again.
    Java: TransactionalMessageServiceImpl.fillOpRemoveMap."""
    timer_deletion_keys: tuple[str, ...] = (TOPIC_AND_KEY,)
    """The forms of TIMER_DEL_UNIQKEY that it compares. One deletion is written for each. Java: TimerMessageStore.buildDeleteKey."""
    indexes_tags: bool = False
    """Has one more index item for each tagged message, `topic#T#tag`. Java: IndexService.buildIndex."""
    honours_priority: bool = False
    """Puts a message with `_SYS_MSG_PRIORITY_` into queue min(priority, queues - 1). An older broker ignores the property.
    Java: SendMessageProcessor.sendMessage."""
    longest_group: int = 255
    """Characters of a new consumer group: a broker asks when it makes the group's entry, and knows producers' groups by no entry.
    Java: TopicValidator.validateGroup; before 5.4 Validators.CHARACTER_MAX_LENGTH."""
    batch_appends_request_properties: bool = True
    """Whether each record of a batch ends with the properties of the request. If so, all have the UNIQ_KEY of the batch.
    Java: MessageExtEncoder.encode(MessageExtBatch)."""
    recovered_log_files: int | None = None
    """How many of the last log files a recovery reads at most; None = as many as the checkpoint demands.
    Java: commitLogRecoverMaxNum, CommitLog.recoverAbnormally."""
    checkpoint_has_queue_position: bool = False
    """Whether the checkpoint's sixth long (byte 40) is the position of the last record whose queue entry is on the disk.
    Java: StoreCheckpoint.logicsPhysicalOffset, ConsumeQueueStore.isMappedFileMatchedRecover."""

    knows_lite_topics: bool = False
    """Enters a message with `__LITE_TOPIC` into a queue of that topic, too. An older broker ignores the property.
    Java: SendMessageProcessor.sendMessage, MultiDispatchUtils."""
    commit_names_real_queue: bool = True
    """Whether a committed message of a transaction keeps REAL_TOPIC and REAL_QID of its half. Java: EndTransactionProcessor.
    endMessageTransaction, which cleared them after it had made the record's text."""
    parks_delayed_halves: bool = True
    """Whether a half message with a delay level is taken: it waits in the schedule topic, and is discarded when it is due. Brokers of
    all releases take it; clients drop the level, and from 5.5 on refuse the message.
    Java: DefaultMQProducerImpl.ensureNotDelayedForTransactional."""
    has_plain_acl: bool = True
    """Knows ACL 1.0 (`aclEnable`); a later broker ignores the setting. Java: the module acl."""

    def __str__(self) -> str:
        return str(self.version)

    def refusal_of_topic(self, topic: str) -> str | None:
        """Why this release must not find a record of this topic in its log; None if it may."""
        length = len(topic.encode())
        if length <= SHORT_TOPIC_LIMIT or self.reads_long_topics:
            return None
        return (
            f"topic {topic!r} has {length} bytes: a broker of RocketMQ {self} ({VERSION_SETTING}) reads at most {SHORT_TOPIC_LIMIT}, "
            "and would cut its log at this message; 5.1.0 is the first release that reads it"
        )

    def refusal_of_group(self, group: str) -> str | None:
        """Why a broker of this release makes no entry for a group, by its name's length; None if it does."""
        if len(group) <= self.longest_group:
            return None
        at_most = f"a broker of RocketMQ {self} ({VERSION_SETTING}) takes at most {self.longest_group}"
        return f"{group!r} has {len(group)} characters: {at_most}"


_RELEASE_CHANGES: tuple[tuple[BrokerVersion, Mapping[str, Any]], ...] = (
    (BrokerVersion(5, 0), {"has_timer": True}),
    (BrokerVersion(5, 1), {"reads_long_topics": True, "reads_op_lists": True}),
    (BrokerVersion(5, 3, 3), {"has_plain_acl": False}),
    (
        BrokerVersion(5, 4),
        {
            "commit_names_real_queue": False,
            "timer_deletion_keys": (KEY_ALONE,),
            "indexes_tags": True,
            "honours_priority": True,
            "longest_group": 120,
            "batch_appends_request_properties": False,
            "recovered_log_files": 10,
        },
    ),
    (
        BrokerVersion(5, 5),
        {"checkpoint_has_queue_position": True, "knows_lite_topics": True, "parks_delayed_halves": False},
    ),
)
"""What each release changed; all other values are those of the release before it."""


def release_of(version: BrokerVersion) -> Release:
    """The behaviour of this release: that of the newest one in the table that is not newer."""
    release = Release()
    for first, changes in _RELEASE_CHANGES:
        if version >= first:
            release = replace(release, **changes)
    return replace(release, version=version)


UNNAMED_RELEASE = replace(
    release_of(BrokerVersion(5, 3)),
    timer_deletion_keys=(TOPIC_AND_KEY, KEY_ALONE),
    knows_lite_topics=True,
    parks_delayed_halves=False,
)
"""Where the user names no release: what a 5.3.3 and a 5.5.0 broker both understand.

That is what 5.3 writes. A deletion of a timer message is written in both forms, because either broker ignores the other's. A message
for a lite topic is refused: its client is of 5.5 or later. A half message that would be discarded is refused.
"""
