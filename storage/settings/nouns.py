"""The settings of a broker and its store: one frozen dataclass per noun.

Every field says its Java property name and unit; a Python name is the Java name in snake case. None where Java would ask the
machine, or where the store's own files tell. `load.py` reads them from a broker.conf.

Java: BrokerConfig, MessageStoreConfig, BrokerStartup.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from storage.errors import ConfigurationError
from storage.format.delay import DEFAULT_LEVELS, parse_delay_levels

CONSUME_QUEUE_ENTRY_BYTES = 20


def _java(name: str, unit: str = "") -> dict[str, str]:
    return {"java": name, "unit": unit}


def _require_positive(config: object, *names: str) -> None:
    for declared in fields(config):  # type: ignore[arg-type]
        value = getattr(config, declared.name)
        if declared.name in names and value is not None and value <= 0:
            raise ConfigurationError(None, None, declared.metadata["java"], f"{value} is not greater than 0")


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who serves the store. None = not configured (Java would ask the machine)."""

    broker_name: str | None = field(default=None, metadata=_java("brokerName"))
    broker_cluster_name: str = field(default="DefaultCluster", metadata=_java("brokerClusterName"))
    broker_ip1: str | None = field(default=None, metadata=_java("brokerIP1"))
    broker_ip2: str | None = field(default=None, metadata=_java("brokerIP2"))
    """Where replicas connect, if not at the first."""
    listen_port: int = field(default=10911, metadata=_java("listenPort"))


@dataclass(frozen=True, slots=True)
class CommitLogConfig:
    """The log's place, its files and what counts as a valid record."""

    mapped_file_size_commit_log: int | None = field(default=None, metadata=_java("mappedFileSizeCommitLog", "bytes"))
    store_path_commit_log: str | None = field(default=None, metadata=_java("storePathCommitLog"))
    read_only_commit_log_store_paths: str | None = field(default=None, metadata=_java("readOnlyCommitLogStorePaths"))
    max_message_size: int = field(default=4 * 1024 * 1024, metadata=_java("maxMessageSize", "bytes of body"))
    check_crc_on_recover: bool = field(default=True, metadata=_java("checkCRCOnRecover"))
    force_verify_prop_crc: bool = field(default=False, metadata=_java("forceVerifyPropCRC"))
    enabled_append_prop_crc: bool = field(default=False, metadata=_java("enabledAppendPropCRC"))

    def __post_init__(self) -> None:
        _require_positive(self, "mapped_file_size_commit_log", "max_message_size")

    @property
    def appends_crc(self) -> bool:
        """Whether records are written with the property `__CRC32#`.

        Departure: with forceVerifyPropCRC alone too, where a broker writes records that its own next recovery cuts off.
        """
        return self.enabled_append_prop_crc or self.force_verify_prop_crc


@dataclass(frozen=True, slots=True)
class ConsumeQueueConfig:
    """Files of the consume queues. The file size is rounded up to whole entries, as Java's getter does."""

    mapped_file_size_consume_queue: int | None = field(
        default=None, metadata=_java("mappedFileSizeConsumeQueue", "bytes")
    )
    enable_consume_queue_ext: bool = field(default=False, metadata=_java("enableConsumeQueueExt"))
    mapped_file_size_consume_queue_ext: int | None = field(
        default=None, metadata=_java("mappedFileSizeConsumeQueueExt", "bytes")
    )

    def __post_init__(self) -> None:
        _require_positive(self, "mapped_file_size_consume_queue", "mapped_file_size_consume_queue_ext")
        if self.mapped_file_size_consume_queue is not None:
            entries = -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_ENTRY_BYTES)
            object.__setattr__(self, "mapped_file_size_consume_queue", entries * CONSUME_QUEUE_ENTRY_BYTES)


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Geometry of the index files, which stands in no file of the store."""

    message_index_enable: bool = field(default=True, metadata=_java("messageIndexEnable"))
    message_index_safe: bool = field(default=False, metadata=_java("messageIndexSafe"))
    max_hash_slot_num: int = field(default=5_000_000, metadata=_java("maxHashSlotNum", "slots"))
    max_index_num: int = field(default=20_000_000, metadata=_java("maxIndexNum", "items"))

    def __post_init__(self) -> None:
        _require_positive(self, "max_hash_slot_num", "max_index_num")


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """When an acknowledged message is on the disk: ASYNC_FLUSH or SYNC_FLUSH, and how often what is written is synced.

    All but the first are followed by a broker process (`put_service.py`); who puts into a store that it has opened itself syncs when
    it asks for it, or with every put under SYNC_FLUSH.
    """

    flush_disk_type: str = field(default="ASYNC_FLUSH", metadata=_java("flushDiskType"))
    sync_flush_timeout: int = field(default=5_000, metadata=_java("syncFlushTimeout", "ms"))
    flush_interval_commit_log: int = field(default=500, metadata=_java("flushIntervalCommitLog", "ms"))
    flush_commit_log_least_pages: int = field(default=4, metadata=_java("flushCommitLogLeastPages", "pages of 4 KiB"))
    flush_commit_log_thorough_interval: int = field(
        default=10_000, metadata=_java("flushCommitLogThoroughInterval", "ms")
    )
    flush_commit_log_timed: bool = field(default=True, metadata=_java("flushCommitLogTimed"))
    wake_flush_when_put_message: bool = field(default=False, metadata=_java("wakeFlushWhenPutMessage"))
    transient_store_pool_enable: bool = field(default=False, metadata=_java("transientStorePoolEnable"))
    transient_store_pool_size: int = field(default=5, metadata=_java("transientStorePoolSize", "log files"))
    commit_interval_commit_log: int = field(default=200, metadata=_java("commitIntervalCommitLog", "ms"))
    commit_commit_log_least_pages: int = field(default=4, metadata=_java("commitCommitLogLeastPages", "pages of 4 KiB"))
    commit_commit_log_thorough_interval: int = field(
        default=200, metadata=_java("commitCommitLogThoroughInterval", "ms")
    )
    wake_commit_when_put_message: bool = field(default=True, metadata=_java("wakeCommitWhenPutMessage"))
    flush_interval_consume_queue: int = field(default=1_000, metadata=_java("flushIntervalConsumeQueue", "ms"))
    flush_consume_queue_least_pages: int = field(
        default=2, metadata=_java("flushConsumeQueueLeastPages", "pages of 4 KiB")
    )
    flush_consume_queue_thorough_interval: int = field(
        default=60_000, metadata=_java("flushConsumeQueueThoroughInterval", "ms")
    )
    os_page_cache_busy_time_out_mills: int = field(default=1_000, metadata=_java("osPageCacheBusyTimeOutMills", "ms"))

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

    message_delay_level: str = field(default=DEFAULT_LEVELS, metadata=_java("messageDelayLevel"))

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
    """What a broker holds a send request to, and what it adds to a message."""

    broker_permission: int = field(default=6, metadata=_java("brokerPermission"))
    auto_create_topic_enable: bool = field(default=True, metadata=_java("autoCreateTopicEnable"))
    auto_create_subscription_group: bool = field(default=True, metadata=_java("autoCreateSubscriptionGroup"))
    enable_create_sys_group: bool = field(default=True, metadata=_java("enableCreateSysGroup"))
    default_topic_queue_nums: int = field(default=8, metadata=_java("defaultTopicQueueNums", "queues"))
    reject_transaction_message: bool = field(default=False, metadata=_java("rejectTransactionMessage"))
    start_accept_send_request_time_stamp: int = field(
        default=0, metadata=_java("startAcceptSendRequestTimeStamp", "ms since 1970")
    )
    recall_message_enable: bool = field(default=False, metadata=_java("recallMessageEnable"))
    region_id: str = field(default="DefaultRegion", metadata=_java("regionId"))
    trace_on: bool = field(default=True, metadata=_java("traceOn"))
    cluster_topic_enable: bool = field(default=True, metadata=_java("clusterTopicEnable"))
    broker_topic_enable: bool = field(default=True, metadata=_java("brokerTopicEnable"))
    trace_topic_enable: bool = field(default=False, metadata=_java("traceTopicEnable"))
    msg_trace_topic_name: str = field(default="RMQ_SYS_TRACE_TOPIC", metadata=_java("msgTraceTopicName"))


@dataclass(frozen=True, slots=True)
class PullConfig:
    """What a broker process gives its consumers, and how long it lets them wait."""

    long_polling_enable: bool = field(default=True, metadata=_java("longPollingEnable"))
    short_polling_time_mills: int = field(default=1_000, metadata=_java("shortPollingTimeMills", "ms"))
    lite_pull_message_enable: bool = field(default=True, metadata=_java("litePullMessageEnable"))
    reject_pull_consumer_enable: bool = field(default=False, metadata=_java("rejectPullConsumerEnable"))
    slave_read_enable: bool = field(default=False, metadata=_java("slaveReadEnable"))
    enable_property_filter: bool = field(default=False, metadata=_java("enablePropertyFilter"))
    max_transfer_bytes_on_message_in_memory: int = field(
        default=262_144, metadata=_java("maxTransferBytesOnMessageInMemory", "bytes")
    )
    max_transfer_count_on_message_in_memory: int = field(
        default=32, metadata=_java("maxTransferCountOnMessageInMemory", "messages")
    )
    max_transfer_bytes_on_message_in_disk: int = field(
        default=65_536, metadata=_java("maxTransferBytesOnMessageInDisk", "bytes")
    )
    max_transfer_count_on_message_in_disk: int = field(
        default=8, metadata=_java("maxTransferCountOnMessageInDisk", "messages")
    )
    max_filter_message_size: int = field(
        default=16_000, metadata=_java("maxFilterMessageSize", "bytes of queue entries that a pull looks at")
    )
    access_message_in_memory_max_ratio: int = field(
        default=40, metadata=_java("accessMessageInMemoryMaxRatio", "% of the machine's memory")
    )
    default_query_max_num: int = field(default=32, metadata=_java("defaultQueryMaxNum", "messages"))


@dataclass(frozen=True, slots=True)
class ClientsConfig:
    """What a broker process knows of its clients and of how far groups are."""

    channel_expired_timeout: int = field(default=120_000, metadata=_java("channelExpiredTimeout", "ms"))
    subscription_expired_timeout: int = field(default=600_000, metadata=_java("subscriptionExpiredTimeout", "ms"))
    notify_consumer_ids_changed_enable: bool = field(default=True, metadata=_java("notifyConsumerIdsChangedEnable"))
    server_load_balancer_enable: bool = field(default=True, metadata=_java("serverLoadBalancerEnable"))
    load_balance_poll_name_server_interval: int = field(
        default=30_000, metadata=_java("loadBalancePollNameServerInterval", "ms")
    )
    use_server_side_reset_offset: bool = field(default=True, metadata=_java("useServerSideResetOffset"))
    flush_consumer_offset_interval: int = field(default=5_000, metadata=_java("flushConsumerOffsetInterval", "ms"))
    consumer_offset_update_version_step: int = field(
        default=500, metadata=_java("consumerOffsetUpdateVersionStep", "commits that raise the file's version")
    )
    validate_system_topic_when_update_topic: bool = field(
        default=True, metadata=_java("validateSystemTopicWhenUpdateTopic")
    )
    enable_mixed_message_type: bool = field(default=False, metadata=_java("enableMixedMessageType"))
    config_black_list: str = field(
        default="configBlackList;brokerConfigPath", metadata=_java("configBlackList", "names between semicolons")
    )
    disable_consume_if_consumer_read_slowly: bool = field(
        default=False, metadata=_java("disableConsumeIfConsumerReadSlowly")
    )
    consumer_fallbehind_threshold: int = field(
        default=16 << 30, metadata=_java("consumerFallbehindThreshold", "bytes of log")
    )
    disk_fall_recorded: bool = field(default=True, metadata=_java("diskFallRecorded"))


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """What a broker process keeps of its groups' expressions, and how bit maps of extension units tell of them."""

    enable_calc_filter_bit_map: bool = field(default=False, metadata=_java("enableCalcFilterBitMap"))
    max_error_rate_of_bloom_filter: int = field(default=20, metadata=_java("maxErrorRateOfBloomFilter", "%"))
    expect_consumer_num_use_filter: int = field(default=32, metadata=_java("expectConsumerNumUseFilter", "groups"))
    filter_data_clean_time_span: int = field(default=24 * 3600 * 1000, metadata=_java("filterDataCleanTimeSpan", "ms"))
    filter_support_retry: bool = field(default=False, metadata=_java("filterSupportRetry"))

    def __post_init__(self) -> None:
        _require_positive(self, "max_error_rate_of_bloom_filter", "expect_consumer_num_use_filter")
        if self.max_error_rate_of_bloom_filter >= 100:
            raise ConfigurationError(None, None, "maxErrorRateOfBloomFilter", "it is not less than 100")


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """Arbitrary deliver times: the wheel, its log, and how far ahead it reaches."""

    timer_wheel_enable: bool = field(default=True, metadata=_java("timerWheelEnable"))
    timer_precision_ms: int = field(default=1_000, metadata=_java("timerPrecisionMs", "ms"))
    timer_max_delay_sec: int = field(default=3 * 24 * 3600, metadata=_java("timerMaxDelaySec", "s"))
    timer_roll_window_slot: int = field(default=2 * 24 * 3600, metadata=_java("timerRollWindowSlot", "slots"))
    timer_congest_num_each_slot: int = field(
        default=2**31 - 1, metadata=_java("timerCongestNumEachSlot", "messages in a slot")
    )
    timer_stop_enqueue: bool = field(default=False, metadata=_java("timerStopEnqueue"))
    mapped_file_size_timer_log: int = field(
        default=100 * 1024 * 1024, metadata=_java("mappedFileSizeTimerLog", "bytes")
    )

    def __post_init__(self) -> None:
        _require_positive(self, "timer_precision_ms", "mapped_file_size_timer_log")


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """When a producer is asked what became of a half message, and how op messages are batched."""

    transaction_time_out: int = field(default=6_000, metadata=_java("transactionTimeOut", "ms"))
    transaction_check_max: int = field(default=15, metadata=_java("transactionCheckMax", "checks"))
    transaction_op_msg_max_size: int = field(
        default=4_096, metadata=_java("transactionOpMsgMaxSize", "bytes of body; 0 = one half for each message")
    )
    transaction_op_batch_interval: int = field(default=3_000, metadata=_java("transactionOpBatchInterval", "ms"))


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """When a store's oldest files go."""

    file_reserved_time: int = field(default=72, metadata=_java("fileReservedTime", "h"))
    delete_when: str = field(default="04", metadata=_java("deleteWhen", "hours of the day, between semicolons"))
    delete_commit_log_files_interval: int = field(
        default=100, metadata=_java("deleteCommitLogFilesInterval", "ms between two files")
    )
    delete_consume_queue_files_interval: int = field(
        default=100, metadata=_java("deleteConsumeQueueFilesInterval", "ms between two files")
    )
    delete_file_batch_max: int = field(default=10, metadata=_java("deleteFileBatchMax", "files"))
    disk_max_used_space_ratio: int = field(default=75, metadata=_java("diskMaxUsedSpaceRatio", "%"))
    disk_space_clean_forcibly_ratio: int = field(default=85, metadata=_java("diskSpaceCleanForciblyRatio", "%"))
    disk_space_warning_level_ratio: int = field(default=90, metadata=_java("diskSpaceWarningLevelRatio", "%"))
    clean_file_forcibly_enable: bool = field(default=True, metadata=_java("cleanFileForciblyEnable"))


@dataclass(frozen=True, slots=True)
class StoreModeConfig:
    """Which kind of store and of broker it is: what `refuse_for_reading` and `refuse_for_writing` judge."""

    store_type: str = field(default="default", metadata=_java("storeType"))
    broker_role: str = field(default="ASYNC_MASTER", metadata=_java("brokerRole"))
    config_manager_version: str = field(default="v1", metadata=_java("configManagerVersion"))
    enable_dleger_commit_log: bool = field(default=False, metadata=_java("enableDLegerCommitLog"))
    enable_controller_mode: bool = field(default=False, metadata=_java("enableControllerMode"))
    duplication_enable: bool = field(default=False, metadata=_java("duplicationEnable"))
    rocksdb_cq_double_write_enable: bool = field(default=False, metadata=_java("rocksdbCQDoubleWriteEnable"))


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """How a log is replicated: the connection between master and slave, and how many copies an acknowledged message has.

    Counts of copies include the master's.
    """

    ha_listen_port: int = field(default=0, metadata=_java("haListenPort", "0 = listenPort + 1"))
    ha_send_heartbeat_interval: int = field(default=5_000, metadata=_java("haSendHeartbeatInterval", "ms"))
    ha_housekeeping_interval: int = field(default=20_000, metadata=_java("haHousekeepingInterval", "ms"))
    ha_transfer_batch_size: int = field(default=32_768, metadata=_java("haTransferBatchSize", "bytes"))
    ha_max_gap_not_in_sync: int = field(default=268_435_456, metadata=_java("haMaxGapNotInSync", "bytes"))
    ha_max_time_slave_not_catchup: int = field(default=15_000, metadata=_java("haMaxTimeSlaveNotCatchup", "ms"))
    in_sync_replicas: int = field(default=1, metadata=_java("inSyncReplicas", "copies"))
    min_in_sync_replicas: int = field(default=1, metadata=_java("minInSyncReplicas", "copies"))
    total_replicas: int = field(default=1, metadata=_java("totalReplicas", "copies"))
    all_ack_in_sync_state_set: bool = field(default=False, metadata=_java("allAckInSyncStateSet"))
    enable_auto_in_sync_replicas: bool = field(default=False, metadata=_java("enableAutoInSyncReplicas"))
    enable_slave_acting_master: bool = field(default=False, metadata=_java("enableSlaveActingMaster"))
    broker_not_active_timeout_millis: int = field(default=10_000, metadata=_java("brokerNotActiveTimeoutMillis", "ms"))
    slave_timeout: int = field(default=3_000, metadata=_java("slaveTimeout", "ms"))
    read_un_committed: bool = field(default=False, metadata=_java("readUnCommitted"))

    def __post_init__(self) -> None:
        names = "ha_send_heartbeat_interval", "ha_housekeeping_interval", "ha_transfer_batch_size", "slave_timeout"
        _require_positive(self, *names)


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
)
