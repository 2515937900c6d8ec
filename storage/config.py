"""The settings of a store: one frozen dataclass per noun, read once from the broker's own broker.conf.

Every field says its Java property name and unit; a Python name is the Java name in snake case. Values are
read as MixAll.properties2Object reads them (numbers are plain integers, only "true" is true, what Java cannot
read it ignores and so do we, with a warning). Names that no class of RocketMQ 5.3.3 knows are warned about
with the nearest known one.

A store holds none of its settings. So `mapped_file_size_…` is None when nothing configures it (the files then
tell), and `StoreConfig.is_configured` tells a configured value from Java's default.

Java: BrokerConfig, MessageStoreConfig, BrokerStartup. Not followed: -D system properties, environment
variables, `-c` of a container.
"""

from __future__ import annotations

import posixpath
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from storage.errors import ConfigurationError
from storage.format.delay_level import DEFAULT_LEVELS, parse_delay_levels
from storage.java_properties import Property, parse_properties
from storage.java_settings import JAVA_SETTINGS
from storage.nearest_name import nearest

ReadBytes = Callable[[str], bytes | None]
"""The whole content of a path, None if there is no such file."""

CONSUME_QUEUE_ENTRY_BYTES = 20

_Config = TypeVar("_Config")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTEGER_BITS = {"int": 32, "long": 64}
_ENUMERATIONS = {
    "brokerRole": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    "flushDiskType": ("ASYNC_FLUSH", "SYNC_FLUSH"),
}


class ConfigurationWarning(UserWarning):
    """broker.conf holds a name that no broker knows, or a value that the broker ignores."""


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
    broker_id: int = field(default=0, metadata=_java("brokerId"))
    broker_ip1: str | None = field(default=None, metadata=_java("brokerIP1"))
    listen_port: int = field(default=10911, metadata=_java("listenPort"))


@dataclass(frozen=True, slots=True)
class CommitLogConfig:
    """The log's place, its files and what counts as a valid record."""

    mapped_file_size_commit_log: int | None = field(default=None, metadata=_java("mappedFileSizeCommitLog", "bytes"))
    store_path_commit_log: str | None = field(default=None, metadata=_java("storePathCommitLog"))
    read_only_commit_log_store_paths: str | None = field(default=None, metadata=_java("readOnlyCommitLogStorePaths"))
    max_message_size: int = field(default=4 * 1024 * 1024, metadata=_java("maxMessageSize", "bytes of body"))
    auto_message_version_on_topic_len: bool = field(default=True, metadata=_java("autoMessageVersionOnTopicLen"))
    check_crc_on_recover: bool = field(default=True, metadata=_java("checkCRCOnRecover"))
    force_verify_prop_crc: bool = field(default=False, metadata=_java("forceVerifyPropCRC"))
    enabled_append_prop_crc: bool = field(default=False, metadata=_java("enabledAppendPropCRC"))

    def __post_init__(self) -> None:
        _require_positive(self, "mapped_file_size_commit_log", "max_message_size")


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
    """When an acknowledged message is on the disk: ASYNC_FLUSH or SYNC_FLUSH."""

    flush_disk_type: str = field(default="ASYNC_FLUSH", metadata=_java("flushDiskType"))


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
    async_send_enable: bool = field(default=True, metadata=_java("asyncSendEnable"))
    start_accept_send_request_time_stamp: int = field(
        default=0, metadata=_java("startAcceptSendRequestTimeStamp", "ms since 1970")
    )
    region_id: str = field(default="DefaultRegion", metadata=_java("regionId"))
    trace_on: bool = field(default=True, metadata=_java("traceOn"))
    cluster_topic_enable: bool = field(default=True, metadata=_java("clusterTopicEnable"))
    broker_topic_enable: bool = field(default=True, metadata=_java("brokerTopicEnable"))
    commercial_base_count: int = field(default=1, metadata=_java("commercialBaseCount"))
    commercial_size_per_msg: int = field(default=4 * 1024, metadata=_java("commercialSizePerMsg", "bytes"))


@dataclass(frozen=True, slots=True)
class TimerConfig:
    """Arbitrary deliver times: the wheel, its log, and how far ahead it reaches."""

    timer_wheel_enable: bool = field(default=True, metadata=_java("timerWheelEnable"))
    timer_precision_ms: int = field(default=1_000, metadata=_java("timerPrecisionMs", "ms"))
    timer_max_delay_sec: int = field(default=3 * 24 * 3600, metadata=_java("timerMaxDelaySec", "s"))
    timer_roll_window_slot: int = field(default=2 * 24 * 3600, metadata=_java("timerRollWindowSlot", "slots"))
    timer_intercept_delay_level: bool = field(default=False, metadata=_java("timerInterceptDelayLevel"))
    timer_congest_num_each_slot: int = field(
        default=2**31 - 1, metadata=_java("timerCongestNumEachSlot", "messages in a slot")
    )
    timer_skip_unknown_error: bool = field(default=False, metadata=_java("timerSkipUnknownError"))
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
    transaction_check_interval: int = field(default=30_000, metadata=_java("transactionCheckInterval", "ms"))
    transaction_op_msg_max_size: int = field(default=4_096, metadata=_java("transactionOpMsgMaxSize", "bytes of body"))
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
class StoreConfig:
    """All settings of one store. `StoreConfig()` is "nothing configured"."""

    identity: BrokerIdentity = field(default_factory=BrokerIdentity)
    commit_log: CommitLogConfig = field(default_factory=CommitLogConfig)
    consume_queue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    send: SendConfig = field(default_factory=SendConfig)
    delay: DelayConfig = field(default_factory=DelayConfig)
    timer: TimerConfig = field(default_factory=TimerConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    mode: StoreModeConfig = field(default_factory=StoreModeConfig)
    file: str | None = None
    """The broker.conf that was read, None if there was none."""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Java name → text, for every known setting that the file sets and a broker would follow."""
    warnings: tuple[str, ...] = ()
    """What was wrong with the file without stopping a broker."""

    def is_configured(self, java_name: str) -> bool:
        """Whether the value was given, not Java's default."""
        return java_name in self.settings

    @classmethod
    def tiny(cls) -> StoreConfig:
        """Files that a test rolls: 4 KiB of log, 20 queue entries, 10 index slots with 20 items."""
        return cls(
            identity=BrokerIdentity(broker_name="broker-tiny", broker_ip1="127.0.0.1"),
            commit_log=CommitLogConfig(mapped_file_size_commit_log=4096),
            consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=400),
            index=IndexConfig(max_hash_slot_num=10, max_index_num=20),
            settings={
                "brokerName": "broker-tiny",
                "brokerIP1": "127.0.0.1",
                "mappedFileSizeCommitLog": "4096",
                "mappedFileSizeConsumeQueue": "400",
                "maxHashSlotNum": "10",
                "maxIndexNum": "20",
            },
        )


def find_configuration(root: str, conf: str | None = None, *, read_bytes: ReadBytes) -> str | None:
    """The path of the store's broker.conf: `conf` if given, else ROOT's parent's, else ROOT's, else None.

    Raises ConfigurationError if `conf` is given and missing.
    """
    if conf is not None:
        if read_bytes(conf) is None:
            raise ConfigurationError(conf, None, None, "there is no such file")
        return conf
    folders = [_resolve(root, ".."), _resolve(root, ".")]
    candidates = [_resolve(folder, "broker.conf") for folder in folders if folder]
    return next((path for path in candidates if read_bytes(path) is not None), None)


def load_config(root: str, conf: str | None = None, *, read_bytes: ReadBytes) -> StoreConfig:
    """The store's settings from the file that `find_configuration` names; `StoreConfig()` if there is none.

    Gives each of the result's `warnings` to `warnings.warn` as well (ConfigurationWarning).
    """
    path = find_configuration(root, conf, read_bytes=read_bytes)
    content = None if path is None else read_bytes(path)
    if content is None:
        return StoreConfig()
    config = parse_config(content, path)
    for text in config.warnings:
        warnings.warn(text, ConfigurationWarning, stacklevel=2)
    return config


def parse_config(content: bytes, file: str | None = None) -> StoreConfig:
    """The settings that stand in the bytes of a broker.conf.

    `file` is for messages and relative paths. Warns in the result only.
    """
    last = {found.key: found for found in parse_properties(content, file)}
    values: dict[str, Any] = {}
    notes: list[str] = []
    for found in last.values():
        if found.key not in JAVA_SETTINGS:
            notes.append(f"{_place(file, found)}: {found.key}: no broker knows this name{_nearest(found.key)}")
            continue
        try:
            values[found.key] = _java_value(found)
        except ValueError as rule:
            notes.append(f"{_place(file, found)}: {found.key}: {rule}; a broker ignores the line")
    try:
        return StoreConfig(
            identity=_from_values(BrokerIdentity, values),
            commit_log=_from_values(CommitLogConfig, values),
            consume_queue=_from_values(ConsumeQueueConfig, values),
            index=_from_values(IndexConfig, values),
            flush=_from_values(FlushConfig, values),
            send=_from_values(SendConfig, values),
            delay=_from_values(DelayConfig, values),
            timer=_from_values(TimerConfig, values),
            transaction=_from_values(TransactionConfig, values),
            retention=_from_values(RetentionConfig, values),
            mode=_from_values(StoreModeConfig, values),
            file=file,
            settings={name: last[name].value for name in values},
            warnings=tuple(notes),
        )
    except ConfigurationError as error:
        line = last[error.key].line if error.key in last else None
        raise ConfigurationError(file, line, error.key, error.rule) from None


def _from_values(cls: type[_Config], values: Mapping[str, Any]) -> _Config:
    """A config with the fields that `values` (by Java name) sets, the others at their default."""
    declared = {item.name: item.metadata["java"] for item in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: values[java] for name, java in declared.items() if java in values})


def _java_value(found: Property) -> int | float | bool | str:
    """The value as MixAll.properties2Object converts it; ValueError with the rule where that fails."""
    kind = JAVA_SETTINGS[found.key].type
    text = found.value
    if kind in _INTEGER_BITS:
        bound = 1 << (_INTEGER_BITS[kind] - 1)
        if not _INTEGER.fullmatch(text) or not -bound <= int(text) < bound:
            raise ValueError(f"{text!r} is not a plain integer of {_INTEGER_BITS[kind]} bits")
        return int(text)
    if kind == "boolean":
        return text.lower() == "true"
    if kind == "double":
        return float(text)
    trimmed = text.strip("".join(map(chr, range(0x21))))  # String.trim
    if found.key in _ENUMERATIONS and trimmed not in _ENUMERATIONS[found.key]:
        raise ValueError(f"{trimmed!r} is none of {', '.join(_ENUMERATIONS[found.key])}")
    return trimmed


def _place(file: str | None, found: Property) -> str:
    return f"{file or 'broker.conf'}, line {found.line}"


def _nearest(name: str) -> str:
    known = nearest(name, JAVA_SETTINGS, 0.75)
    return f" (nearest: {known})" if known else ""


def commit_log_directories(root: str, config: StoreConfig, *, is_directory: Callable[[str], bool]) -> tuple[str, ...]:
    """The directories that hold the log's files, most often one.

    ROOT/commitlog wins if it exists: a copied store keeps its broker's broker.conf with paths of another
    machine. But if it is one of several configured ones, all of them hold the log. Otherwise
    storePathCommitLog, relative to the file it stands in (Java: to the broker's working directory), with
    readOnlyCommitLogStorePaths where it is a comma list. Java: MultiPathMappedFileQueue.
    """
    own = _resolve(root, "commitlog")
    base = _resolve(config.file, "..") if config.file is not None else ""
    configured = tuple(dict.fromkeys(_resolve(base, path) for path in _configured_log_paths(config)))
    if own in configured:
        return configured
    if is_directory(own) or not configured:
        return (own,)
    return configured


def _configured_log_paths(config: StoreConfig) -> list[str]:
    text = config.commit_log.store_path_commit_log or ""
    if "," in text:  # Java reads the read-only directories only in this case
        text += "," + (config.commit_log.read_only_commit_log_store_paths or "")
    return [path for path in text.split(",") if path]


def _resolve(base: str, path: str) -> str:
    """`path` seen from directory `base`, both local or URLs ("s3://bucket/store"), in normal form.

    "" is the working directory, and the answer for the parent of a URL that has none.
    """
    if "://" in path or path.startswith("/"):
        scheme, separator, rest = path.rpartition("://")
        return scheme + separator + posixpath.normpath(rest)
    scheme, separator, rest = base.rpartition("://")
    joined = posixpath.normpath(posixpath.join(rest, path))
    if separator and joined in (".", ".."):
        return ""
    return scheme + separator + joined


def refuse_for_reading(config: StoreConfig) -> list[str]:
    """Why a store with these settings must not be read: it would show as empty. Empty list = go on."""
    reasons = []
    if config.mode.store_type.lower() == "defaultrocksdb":
        reasons.append(f"storeType={config.mode.store_type}: its consume queues lie in RocksDB")
    if config.mode.enable_dleger_commit_log:
        reasons.append("enableDLegerCommitLog=true: its log is DLedger's")
    return reasons


def refuse_for_writing(config: StoreConfig) -> list[str]:
    """Why a store with these settings must not be written: a broker would cut or never see what we write.

    Empty list = go on.
    """
    mode = config.mode
    reasons = refuse_for_reading(config)
    if config.commit_log.force_verify_prop_crc:
        reasons.append("forceVerifyPropCRC=true: a broker would cut the log at records without __CRC32#")
    if config.commit_log.enabled_append_prop_crc:
        reasons.append("enabledAppendPropCRC=true: records need the property __CRC32#")
    if mode.duplication_enable:
        reasons.append("duplicationEnable=true: records need the property DUP_INFO")
    if mode.enable_controller_mode:
        reasons.append("enableControllerMode=true: the controller decides who writes")
    if mode.config_manager_version != "v1":
        reasons.append(f"configManagerVersion={mode.config_manager_version}: topics, groups and offsets lie in RocksDB")
    if mode.rocksdb_cq_double_write_enable:
        reasons.append("rocksdbCQDoubleWriteEnable=true: the queues' double in RocksDB would fall behind")
    if mode.broker_role == "SLAVE":
        reasons.append("brokerRole=SLAVE: only its master writes")
    return reasons
