"""All settings of a store (`nouns.py` has them by noun), read once from the broker's own broker.conf.

Values are read as MixAll.properties2Object reads them (numbers are plain integers, only "true" is true, what Java cannot
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
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from storage.errors import ConfigurationError
from storage.nearest_name import nearest
from storage.settings.broker_version import DEFAULT_VERSION, VERSION_SETTING, BrokerVersion, parse_broker_version
from storage.settings.java_properties import Property, java_value, parse_properties
from storage.settings.java_settings import JAVA_SETTINGS
from storage.settings.nouns import (
    BrokerIdentity,
    ClientsConfig,
    CommitLogConfig,
    ConsumeQueueConfig,
    DelayConfig,
    FilterConfig,
    FlushConfig,
    IndexConfig,
    PullConfig,
    ReplicationConfig,
    RetentionConfig,
    SendConfig,
    StoreModeConfig,
    TimerConfig,
    TransactionConfig,
)

ReadBytes = Callable[[str], bytes | None]
"""The whole content of a path, None if there is no such file."""

_Config = TypeVar("_Config")
_LINE_OF_PLACE = re.compile(r", line (\d+): ")
_ENUMERATIONS = {
    "brokerRole": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    "flushDiskType": ("ASYNC_FLUSH", "SYNC_FLUSH"),
}


class ConfigurationWarning(UserWarning):
    """broker.conf holds a name that no broker knows, or a value that the broker ignores."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """All settings of one store. `StoreConfig()` is "nothing configured"."""

    identity: BrokerIdentity = field(default_factory=BrokerIdentity)
    commit_log: CommitLogConfig = field(default_factory=CommitLogConfig)
    consume_queue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    flush: FlushConfig = field(default_factory=FlushConfig)
    send: SendConfig = field(default_factory=SendConfig)
    pull: PullConfig = field(default_factory=PullConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)
    filters: FilterConfig = field(default_factory=FilterConfig)
    delay: DelayConfig = field(default_factory=DelayConfig)
    timer: TimerConfig = field(default_factory=TimerConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    mode: StoreModeConfig = field(default_factory=StoreModeConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    version: BrokerVersion = DEFAULT_VERSION
    """The release of the broker that goes on with the store; `of_version` sets it."""
    file: str | None = None
    """The broker.conf that was read, None if there was none."""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Java name → text, for every known setting that the file sets and a broker would follow."""
    warnings: tuple[str, ...] = ()
    """What was wrong with the file without stopping a broker."""

    def is_configured(self, java_name: str) -> bool:
        """Whether the value was given, not Java's default."""
        return java_name in self.settings

    def of_version(self, text: str) -> StoreConfig:
        """The settings for a broker of this release (`4.9.7`), without what it does not have.

        A release before 5.0 has no timer, one before 5.1 has no lists in op messages. A later one does not give back what an
        earlier one took.
        Raises ConfigurationError for a text that names no release.
        """
        try:
            version = parse_broker_version(text)
        except ValueError as rule:
            raise ConfigurationError(None, None, VERSION_SETTING, str(rule)) from None
        timer = self.timer if version.has_timer else replace(self.timer, timer_wheel_enable=False)
        op_size = self.transaction.transaction_op_msg_max_size if version.reads_op_lists else 0
        transaction = replace(self.transaction, transaction_op_msg_max_size=op_size)
        return replace(self, version=version, timer=timer, transaction=transaction)

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

    Raises ConfigurationError if `conf` is given and missing, or a directory.
    """
    if conf is not None:
        try:
            is_there = read_bytes(conf) is not None
        except IsADirectoryError:
            rule = "it is a directory, and conf names a file: the broker's broker.conf"
            raise ConfigurationError(conf, None, None, rule) from None
        if not is_there:
            raise ConfigurationError(conf, None, None, "there is no such file")
        return conf
    folders = [_resolve(root, ".."), _resolve(root, ".")]
    candidates = [_resolve(folder, "broker.conf") for folder in folders if folder]
    return next((path for path in candidates if read_bytes(path) is not None), None)


_SAID: dict[str | tuple[str, type[Warning], int], int] = {}
"""What Python notes of warnings that were shown."""


def load_config(
    root: str, conf: str | None = None, *, read_bytes: ReadBytes, rocketmq_version: str | None = None
) -> StoreConfig:
    """The store's settings from the file that `find_configuration` names; `StoreConfig()` if there is none.

    `rocketmq_version` comes before the file's. Raises ConfigurationError.
    Gives each of the result's `warnings` to the module `warnings` as well (ConfigurationWarning), as one of the file: a process whose
    filters are Python's own says it once, however often and from wherever the file is read.
    """
    path = find_configuration(root, conf, read_bytes=read_bytes)
    content = None if path is None else read_bytes(path)
    config = _parsed(content or b"", path, rocketmq_version)
    for text in config.warnings:
        line = _LINE_OF_PLACE.search(text)
        # In <> because Python quotes a line of the file otherwise, as if it were a program.
        warnings.warn_explicit(text, ConfigurationWarning, f"<{path}>", int(line[1]) if line else 0, registry=_SAID)
    return config


def parse_config(
    content: bytes, file: str | None = None, rocketmq_version: str | None = None, *, known: Container[str] = ()
) -> StoreConfig:
    """The settings that stand in the bytes of a broker.conf; `rocketmq_version` stands for the file's.

    `file` is for messages, and for relative paths where it is a URL.
    Warns in the result only, and not about names that are `known` to who asks.
    """
    last = {found.key: found for found in parse_properties(content, file)}
    version = last.pop(VERSION_SETTING, None)
    values: dict[str, Any] = {}
    notes: list[str] = []
    for found in last.values():
        if found.key not in JAVA_SETTINGS:
            if found.key not in known:
                notes.append(f"{_place(file, found)}: {found.key}: no broker knows this name{_nearest(found.key)}")
            continue
        try:
            values[found.key] = _java_value(found)
        except ValueError as rule:
            notes.append(f"{_place(file, found)}: {found.key}: {rule}; a broker ignores the line")
    try:
        config = StoreConfig(
            identity=_from_values(BrokerIdentity, values),
            commit_log=_from_values(CommitLogConfig, values),
            consume_queue=_from_values(ConsumeQueueConfig, values),
            index=_from_values(IndexConfig, values),
            flush=_from_values(FlushConfig, values),
            send=_from_values(SendConfig, values),
            pull=_from_values(PullConfig, values),
            clients=_from_values(ClientsConfig, values),
            filters=_from_values(FilterConfig, values),
            delay=_from_values(DelayConfig, values),
            timer=_from_values(TimerConfig, values),
            transaction=_from_values(TransactionConfig, values),
            retention=_from_values(RetentionConfig, values),
            mode=_from_values(StoreModeConfig, values),
            replication=_from_values(ReplicationConfig, values),
            file=file,
            settings={name: last[name].value for name in values},
            warnings=tuple(notes),
        )
        release = version.value if rocketmq_version is None and version is not None else rocketmq_version
        return config if release is None else config.of_version(release)
    except ConfigurationError as error:
        found_at = (
            last.get(error.key or "") if error.key != VERSION_SETTING or rocketmq_version is not None else version
        )
        line = None if found_at is None else found_at.line
        raise ConfigurationError(file, line, error.key, error.rule) from None


_parsed = lru_cache(maxsize=4)(parse_config)
"""A process that opens a store again and again reads the same file."""


def _from_values(cls: type[_Config], values: Mapping[str, Any]) -> _Config:
    """A config with the fields that `values` (by Java name) sets, the others at their default."""
    declared = {item.name: item.metadata["java"] for item in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: values[java] for name, java in declared.items() if java in values})


def _java_value(found: Property) -> int | float | bool | str:
    """The value as MixAll.properties2Object converts it; ValueError with the rule where that fails."""
    value = java_value(JAVA_SETTINGS[found.key].type, found.value)
    if found.key in _ENUMERATIONS and value not in _ENUMERATIONS[found.key]:
        raise ValueError(f"{value!r} is none of {', '.join(_ENUMERATIONS[found.key])}")
    return value


def _place(file: str | None, found: Property) -> str:
    return f"{file or 'broker.conf'}, line {found.line}"


def _nearest(name: str) -> str:
    known = nearest(name, JAVA_SETTINGS, 0.75)
    return f" (nearest: {known})" if known else ""


def configured_log_directories(config: StoreConfig) -> tuple[str, ...]:
    """The directories that a configuration names for the log, each once; none where it names none.

    storePathCommitLog, with readOnlyCommitLogStorePaths where it is a comma list. A relative path stays relative, to be seen from the
    process's directory, as storePathRootDir is. No process works in a URL's directory: a file there names what lies beside it.
    Whether they are this store's is decided in `log_place.py`. Java: MultiPathMappedFileQueue.
    """
    is_remote = config.file is not None and config.file.partition("://")[0] not in (config.file, "file", "local")
    base = _resolve(config.file or "", "..") if is_remote else ""
    return tuple(dict.fromkeys(_resolve(base, path) for path in _configured_log_paths(config)))


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


def refuse_for_writing(
    config: StoreConfig, *, follows: bool = False, asks_replicas: bool = False, is_controlled: bool = False
) -> list[str]:
    """Why a store with these settings must not be written: a broker would cut or never see what we write.

    Empty list = go on. `follows` = what is written is what the master has written; `asks_replicas` = whoever writes waits for as many
    copies as the settings want; `is_controlled` = a controller has said who writes.
    """
    mode = config.mode
    reasons = refuse_for_reading(config)
    if mode.duplication_enable:
        reasons.append("duplicationEnable=true: records need the property DUP_INFO")
    if mode.enable_controller_mode and not is_controlled:
        reasons.append("enableControllerMode=true: the controller decides who writes")
    if mode.config_manager_version != "v1":
        reasons.append(f"configManagerVersion={mode.config_manager_version}: topics, groups and offsets lie in RocksDB")
    if mode.rocksdb_cq_double_write_enable:
        reasons.append("rocksdbCQDoubleWriteEnable=true: the queues' double in RocksDB would fall behind")
    if mode.broker_role == "SLAVE" and not (follows or is_controlled):
        reasons.append("brokerRole=SLAVE: only its master writes")
    copies = config.replication.in_sync_replicas  # with 1 CommitLog.handleHA waits for nobody
    if mode.broker_role == "SYNC_MASTER" and copies > 1 and not asks_replicas:
        wanted = f"brokerRole=SYNC_MASTER with inSyncReplicas={copies}"
        reasons.append(f"{wanted}: slaves must acknowledge what is written, and only a running broker asks them")
    return reasons
