"""All settings of a store (`nouns.py` has them by noun), read once from the broker's own broker.conf.

Values are read as MixAll.properties2Object reads them: numbers are plain integers, only "true" is true. Values that Java cannot
read are ignored as in Java, with a warning. A name that no class of RocketMQ 5.3.3 knows gives a warning with the nearest known one.
Names that a broker uses and this package does not are logged (`warn_of_unread`).

A store holds none of its settings. So `mapped_file_size_…` is None if nothing configures it (it is read off the files then), and
`StoreConfig.is_configured` distinguishes a configured value from Java's default.

Java: BrokerConfig, MessageStoreConfig, BrokerStartup. Not supported: -D system properties, environment
variables, `-c` of a container.
"""

from __future__ import annotations

import logging
import posixpath
import re
import warnings
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from storage.errors import ConfigurationError
from storage.format.typed_json import BATCH_QUEUES
from storage.names import MULTI_DISPATCH_PREFIX, nearest
from storage.settings.java_properties import Property, java_value, parse_properties
from storage.settings.java_settings import JAVA_SETTINGS, JavaSetting
from storage.settings.nouns import (
    NOUNS,
    TOPIC_AND_KEY,
    UNNAMED_RELEASE,
    VERSION_SETTING,
    BrokerIdentity,
    ClientsConfig,
    CommitLogConfig,
    ConsumeQueueConfig,
    DelayConfig,
    FilterConfig,
    FlushConfig,
    IndexConfig,
    PullConfig,
    Release,
    ReplicationConfig,
    RetentionConfig,
    SendConfig,
    StoreModeConfig,
    TieredConfig,
    TimerConfig,
    TransactionConfig,
    parse_broker_version,
    release_of,
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
    """All settings of one store. `StoreConfig()` means that nothing is configured."""

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
    tiered: TieredConfig = field(default_factory=TieredConfig)
    release: Release = UNNAMED_RELEASE
    """The release of the broker that also uses the store; `of_version` sets it."""
    file: str | None = None
    """The broker.conf that was read, None if there was none."""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Java name → text, for every known setting in the file whose value a broker would use."""
    warnings: tuple[str, ...] = ()
    """Faults of the file that do not stop a broker."""

    def is_configured(self, java_name: str) -> bool:
        """Whether the value was configured, not Java's default."""
        return java_name in self.settings

    def of_version(self, text: str) -> StoreConfig:
        """The settings for a broker of this release (`4.9.7`), without the features that it lacks.

        A release before 5.0 has no timer, one before 5.1 has no lists in op messages. A later call for a newer release does not restore
        them.
        Raises ConfigurationError for a text that names no release.
        """
        try:
            version = parse_broker_version(text)
        except ValueError as rule:
            raise ConfigurationError(None, None, VERSION_SETTING, str(rule)) from None
        release = release_of(version)
        timer = self.timer if release.has_timer else replace(self.timer, timer_wheel_enable=False)
        op_size = self.transaction.transaction_op_msg_max_size if release.reads_op_lists else 0
        transaction = replace(self.transaction, transaction_op_msg_max_size=op_size)
        return replace(self, release=release, timer=timer, transaction=transaction)

    @property
    def timer_deletion_keys(self) -> tuple[str, ...]:
        """The forms in which a deletion of a timer message is written."""
        return (TOPIC_AND_KEY,) if self.timer.append_topic_for_timer_delete_key else self.release.timer_deletion_keys

    @classmethod
    def tiny(cls) -> StoreConfig:
        """Small files for tests: 4 KiB of log, 20 queue entries, 10 index slots with 20 items."""
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


def read_configuration(root: str, conf: str | None = None, *, read_bytes: ReadBytes) -> tuple[str | None, bytes]:
    """Path and content of the store's broker.conf: `conf` if given, else ROOT's parent's, else ROOT's; (None, b"") without one.

    Each file is read at most once. Raises ConfigurationError if `conf` is given and missing, or a directory.
    """
    if conf is not None:
        try:
            content = read_bytes(conf)
        except IsADirectoryError:
            rule = "it is a directory, and conf names a file: the broker's broker.conf"
            raise ConfigurationError(conf, None, None, rule) from None
        if content is None:
            raise ConfigurationError(conf, None, None, "there is no such file")
        return conf, content
    for folder in (_resolve(root, ".."), _resolve(root, ".")):
        if folder and (content := read_bytes(path := _resolve(folder, "broker.conf"))) is not None:
            return path, content
    return None, b""


_SAID: dict[str | tuple[str, type[Warning], int], int] = {}
"""Python's registry of warnings that were shown."""


def load_config(
    root: str, conf: str | None = None, *, read_bytes: ReadBytes, rocketmq_version: str | None = None
) -> StoreConfig:
    """The store's settings from the file that `read_configuration` finds; `StoreConfig()` if there is none.

    `rocketmq_version` overrides the file's. Raises ConfigurationError.
    Each of the result's `warnings` is also issued by the module `warnings` (ConfigurationWarning), located in the file: with Python's
    default filters a process shows it once, however often the file is read.
    """
    path, content = read_configuration(root, conf, read_bytes=read_bytes)
    config = _parsed(content, path, rocketmq_version)
    for text in config.warnings:
        line = _LINE_OF_PLACE.search(text)
        # In <> because otherwise Python quotes a line of the file, as if it were a program.
        warnings.warn_explicit(text, ConfigurationWarning, f"<{path}>", int(line[1]) if line else 0, registry=_SAID)
    return config


def parse_config(
    content: bytes, file: str | None = None, rocketmq_version: str | None = None, *, known: Container[str] = ()
) -> StoreConfig:
    """The settings in the bytes of a broker.conf; `rocketmq_version` overrides the file's.

    `file` is for messages, and for relative paths if it is a URL.
    Warns only in the result, and not about names in `known`.
    """
    last = {found.key: found for found in parse_properties(content, file)}
    version = last.pop(VERSION_SETTING, None)
    release = version.value if rocketmq_version is None and version is not None else rocketmq_version
    values: dict[str, Any] = {}
    notes: list[str] = []
    for found in last.values():
        if found.key not in JAVA_SETTINGS:
            if found.key not in known:
                notes.append(f"{_place(file, found)}: {found.key}: no broker knows this name{_nearest(found.key)}")
            continue
        if release is not None and _is_later(JAVA_SETTINGS[found.key], release):
            first = f"RocketMQ {JAVA_SETTINGS[found.key].since} is the first that knows this name"
            named = f"{VERSION_SETTING} is {release.strip()}, and {first}"
            notes.append(f"{_place(file, found)}: {found.key}: {named}; a broker ignores the line")
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
            tiered=_from_values(TieredConfig, values),
            file=file,
            settings={name: last[name].value for name in values},
            warnings=tuple(notes),
        )
        return config if release is None else config.of_version(release)
    except ConfigurationError as error:
        found_at = (
            last.get(error.key or "") if error.key != VERSION_SETTING or rocketmq_version is not None else version
        )
        line = None if found_at is None else found_at.line
        raise ConfigurationError(file, line, error.key, error.rule) from None


_parsed = lru_cache(maxsize=4)(parse_config)
"""A process that opens a store repeatedly reads the same file."""


def _from_values(cls: type[_Config], values: Mapping[str, Any]) -> _Config:
    """A config with the fields that `values` (by Java name) sets; the others have their defaults."""
    declared = {item.name: item.metadata["java"] for item in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: values[java] for name, java in declared.items() if java in values})


def _java_value(found: Property) -> int | float | bool | str:
    """The value as MixAll.properties2Object converts it; ValueError with the rule if that fails."""
    value = java_value(JAVA_SETTINGS[found.key].type, found.value)
    if found.key in _ENUMERATIONS and value not in _ENUMERATIONS[found.key]:
        raise ValueError(f"{value!r} is none of {', '.join(_ENUMERATIONS[found.key])}")
    return value


def _is_later(setting: JavaSetting, release: str) -> bool:
    """Whether a later release than this one added the setting; False for a text that names no release."""
    try:
        return setting.since is not None and parse_broker_version(release) < setting.since
    except ValueError:
        return False  # `of_version` refuses it


def _place(file: str | None, found: Property) -> str:
    return f"{file or 'broker.conf'}, line {found.line}"


def _nearest(name: str) -> str:
    known = nearest(name, JAVA_SETTINGS, 0.75)
    return f" (nearest: {known})" if known else ""


def configured_log_directories(config: StoreConfig) -> tuple[str, ...]:
    """The directories that a configuration names for the log, each once; empty if it names none.

    These are storePathCommitLog, and readOnlyCommitLogStorePaths if it is a comma list. A relative path stays relative to the process's
    directory, as storePathRootDir is. For a URL, paths are relative to the file's place, as no process works in a URL's directory.
    `log_place.py` decides whether they are this store's. Java: MultiPathMappedFileQueue.
    """
    return tuple(dict.fromkeys(_resolve(_base(config), path) for path in _configured_log_paths(config)))


def _base(config: StoreConfig) -> str:
    """What a configuration's relative paths are relative to."""
    is_remote = config.file is not None and config.file.partition("://")[0] not in (config.file, "file", "local")
    return _resolve(config.file or "", "..") if is_remote else ""


def _configured_log_paths(config: StoreConfig) -> list[str]:
    return _with_read_only(config.commit_log.store_path_commit_log or "", config)


def _with_read_only(text: str, config: StoreConfig) -> list[str]:
    """The paths of a setting, with the read-only ones. Java reads these only behind a comma list."""
    if "," in text:
        text += "," + (config.commit_log.read_only_commit_log_store_paths or "")
    return [path for path in text.split(",") if path]


def _resolve(base: str, path: str) -> str:
    """`path` relative to directory `base`, both local or URLs ("s3://bucket/store"), in normal form.

    "" is the working directory, and the parent of a URL that has none.
    """
    if "://" in path or path.startswith("/"):
        scheme, separator, rest = path.rpartition("://")
        return scheme + separator + posixpath.normpath(rest)
    scheme, separator, rest = base.rpartition("://")
    joined = posixpath.normpath(posixpath.join(rest, path))
    if separator and joined in (".", ".."):
        return ""
    return scheme + separator + joined


IN_ROCKSDB = "its consume queues lie in RocksDB, which only its broker writes"
BY_ITS_BROKER = "send through its broker; reading needs no change"


def configured_group_directories(config: StoreConfig) -> tuple[str, ...]:
    """Like `configured_log_directories`, for the log of a DLedger group: storePathDLedgerCommitLog."""
    paths = config.mode.store_path_dledger_commit_log or ""
    return tuple(dict.fromkeys(_resolve(_base(config), path) for path in _with_read_only(paths, config)))


DLEDGER_PEER = "dledger-"
"""Begins the name of a peer's directory; its dLegerSelfId follows."""


BATCHES_RULE = f"batch consume queues (queue.type={BATCH_QUEUES}), which only Apache's brokers write"
LITE_QUEUES_RULE = (
    f"queues of lite topics ({MULTI_DISPATCH_PREFIX}…), into which only Apache's brokers enter messages of other topics"
)
BY_APACHE = "let Apache's broker follow or open such a store; reading needs no change"

OF_A_GROUP = (
    "Only its group writes it: send to the leader (nameServer), or let `spark-mq convert` make a plain store of it"
)
"""Why and what instead, after the error that a log is DLedger's."""


def refuse_for_writing(
    config: StoreConfig,
    *,
    follows: bool = False,
    asks_replicas: bool = False,
    is_controlled: bool = False,
    is_member: bool = False,
) -> list[str]:
    """Why a store with these settings must not be written: a broker would cut or never see what we write.

    Empty list = go on. `follows` = only a master's records are written; `asks_replicas` = the writer waits for as many
    copies as the settings want; `is_controlled` = a controller has decided who writes; `is_member` = it is the group's member.
    """
    mode = config.mode
    reasons: list[str] = []
    if mode.is_rocksdb_store:
        reasons.append(f"storeType={mode.store_type}: {IN_ROCKSDB}")
    if mode.enable_dleger_commit_log and not is_member:
        reasons.append(f"enableDLegerCommitLog=true: its log is DLedger's. {OF_A_GROUP}")
    if mode.duplication_enable:
        reasons.append("duplicationEnable=true: records need the property DUP_INFO")
    if mode.enable_controller_mode and not is_controlled:
        reasons.append("enableControllerMode=true: the controller decides who writes")
    if mode.has_unread_tables:
        reasons.append(f"configManagerVersion={mode.config_manager_version}: topics, groups and offsets lie in RocksDB")
    if mode.rocksdb_cq_double_write_enable:
        reasons.append("rocksdbCQDoubleWriteEnable=true: the queues' double in RocksDB would fall behind")
    if mode.trans_rocks_db_enable:
        reasons.append(
            "transRocksDBEnable=true: RocksDB holds open transactions, so they would be neither checked nor ended"
        )
    if mode.timer_rocks_db_enable and not follows:
        reasons.append(
            "timerRocksDBEnable=true: RocksDB holds the timer, so two timers would deliver the same messages"
        )
    if mode.enable_multi_dispatch:
        reasons.append(f"enableMultiDispatch=true: it has {LITE_QUEUES_RULE}")
    if mode.broker_role == "SLAVE" and not (follows or is_controlled):
        reasons.append("brokerRole=SLAVE: only its master writes")
    copies = config.replication.in_sync_replicas  # with 1 CommitLog.handleHA does not wait
    if mode.broker_role == "SYNC_MASTER" and copies > 1 and not asks_replicas:
        wanted = f"brokerRole=SYNC_MASTER with inSyncReplicas={copies}"
        reasons.append(f"{wanted}: slaves must acknowledge what is written, and only a running broker asks them")
    return reasons


READ_SETTINGS = frozenset(str(declared.metadata["java"]) for noun in NOUNS for declared in fields(noun))
"""Java's names of the settings that take effect in this package: the fields of the nouns. A test compares each field with the code that
reads it. All other names that a broker knows take no effect here. `spark-mq doctor` names them, as does one log line of each
process that opens the store for writing or reads it with Spark. Commands that only read a store are silent.
"""
OF_A_BROKERS_PROCESS = frozenset(
    (
        *("namesrvAddr", "bindAddress", "storePathRootDir", "rmqAddressServerDomain"),
        *("brokerId", "haMasterAddress", "controllerAddr", "dLegerGroup", "dLegerPeers"),
        *("preferredLeaderId", "enableBatchPush"),
    )
)
"""Unread settings about a broker process's place and ports. Every broker.conf has some, so only `doctor` names them."""

_LOG = logging.getLogger(__name__)
_said: set[tuple[str, tuple[str, ...]]] = set()


def unread_settings(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Java names, sorted, of settings that this package does not read and that differ from Java's default."""
    return tuple(
        sorted(
            name
            for name, text in settings.items()
            if name in JAVA_SETTINGS and name not in READ_SETTINGS and _differs(JAVA_SETTINGS[name], text)
        )
    )


def _differs(setting: JavaSetting, text: str) -> bool:
    """Whether a valid text means something else than the default; if the default is unknown, it always does."""
    if setting.default is None:
        return True
    if setting.former_default is not None and text.strip() == setting.former_default:
        return False
    if setting.type in ("int", "long", "double"):
        return float(text) != float(setting.default)
    if setting.type == "boolean":
        return (text.lower() == "true") != (setting.default == "true")
    return text.strip() != setting.default


def warn_of_unread(file: str | None, settings: Mapping[str, str]) -> None:
    """Log, once for each process and file, which settings take no effect; names only, as a value may be a password."""
    names = tuple(name for name in unread_settings(settings) if name not in OF_A_BROKERS_PROCESS)
    if names and (said := (str(file), names)) not in _said:
        _said.add(said)
        _LOG.warning(
            "%s: a broker follows these settings, spark_mq does not, so they take no effect here: %s. "
            "spark-mq doctor --conf FILE says more",
            file or "the configuration",
            ", ".join(names),
        )
