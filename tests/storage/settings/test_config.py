"""broker.conf: found, read as Java reads it, judged before a store is opened."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.files.local_file_system import LocalFileSystem
from storage.settings.java_settings import JAVA_SETTINGS
from storage.settings.load import (
    OF_A_BROKERS_PROCESS,
    ConfigurationWarning,
    StoreConfig,
    configured_log_directories,
    load_config,
    parse_config,
    read_configuration,
    refuse_for_writing,
    unread_settings,
)
from storage.settings.nouns import NOUNS, CommitLogConfig, ConsumeQueueConfig, DelayConfig, IndexConfig
from tests.support.places import VECTORS

BROKER_CONF = VECTORS / "config" / "broker.conf"


def java_fields() -> list[tuple[str, object, str]]:
    """(field name, default, Java name) of every setting that StoreConfig holds."""
    config = StoreConfig()
    nouns = [getattr(config, declared.name) for declared in fields(config)]
    return [
        (declared.name, getattr(noun, declared.name), declared.metadata["java"])
        for noun in nouns
        if isinstance(noun, NOUNS)
        for declared in fields(noun)
    ]


def test_the_conf_of_a_real_broker_is_read_without_a_warning() -> None:
    config = parse_config(BROKER_CONF.read_bytes(), "lab/broker.conf")
    assert config.warnings == ()
    assert config.identity.broker_name == "broker-lab"
    assert config.identity.broker_cluster_name == "LabCluster"
    assert config.identity.broker_ip1 == "127.0.0.1"
    assert config.commit_log.mapped_file_size_commit_log == 393216
    assert config.consume_queue.mapped_file_size_consume_queue == 20000
    assert (config.index.max_hash_slot_num, config.index.max_index_num) == (1000, 2000)
    assert config.delay.delays_ms[:2] == (1000, 2000)
    assert config.delay.delays_ms[-1] == 7_200_000
    assert config.settings["bindAddress"] == "127.0.0.1"


def test_every_field_is_a_setting_of_a_broker_in_snake_case_with_javas_default() -> None:
    found_in_files = {
        "mapped_file_size_commit_log",
        "mapped_file_size_consume_queue",
        "mapped_file_size_consume_queue_ext",
    }
    for name, default, java_name in java_fields():
        assert name.replace("_", "") == java_name.lower()
        text = JAVA_SETTINGS[java_name].default
        if name in found_in_files or text is None:
            assert default is None
        else:
            assert str(default).lower() == text.lower(), java_name


@pytest.mark.parametrize(
    ("java_name", "kind", "default"),
    [
        ("mappedFileSizeCommitLog", "int", "1073741824"),
        ("mappedFileSizeConsumeQueue", "int", "6000000"),
        ("maxHashSlotNum", "int", "5000000"),
        ("maxIndexNum", "int", "20000000"),
        ("flushDelayOffsetInterval", "long", "10000"),
        ("brokerRole", "String", "ASYNC_MASTER"),
        ("dLegerGroup", "String", None),
        ("autoCreateTopicEnable", "boolean", "true"),
        ("serverSelectorThreads", "int", "3"),
        ("clientWorkerThreads", "int", "4"),
        ("sendMessageThreadPoolNums", "int", None),
        ("authenticationEnabled", "boolean", "false"),
        ("logicalDiskSpaceCleanForciblyThreshold", "double", "0.8"),
    ],
)
def test_the_table_of_javas_names(java_name: str, kind: str, default: str | None) -> None:
    """Taken by hand from the classes of 5.3.3."""
    assert JAVA_SETTINGS[java_name][:3] == (java_name, kind, default)


@pytest.mark.parametrize(("since", "count"), [(None, 474), ((5, 4, 0), 45), ((5, 5, 0), 31)])
def test_the_table_holds_the_names_of_all_setters_of_each_release(
    since: tuple[int, int, int] | None, count: int
) -> None:
    """Counted by reflection over the six classes, and two names that BrokerStartup reads itself. No release dropped one."""
    assert sum(setting.since == since for setting in JAVA_SETTINGS.values()) == count


def test_a_conf_of_5_5_with_every_default_written_out_is_followed_without_a_word() -> None:
    conf = "".join(f"{name}={each.default}\n" for name, each in JAVA_SETTINGS.items() if each.default is not None)
    for release in (None, "5.5.0"):
        config = parse_config(conf.encode(), rocketmq_version=release)
        assert config.warnings == ()
        assert refuse_for_writing(config) == []
        assert unread_settings(config.settings) == ()


SHIPPED = {
    "broker.conf, and 2m-2s-async, 2m-2s-sync, 2m-noslave": "brokerClusterName = DefaultCluster\nbrokerName = broker-a\n"
    "brokerId = 0\ndeleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
    "controller/quick-start/broker-n0.conf": "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = -1\n"
    "brokerRole = SLAVE\ndeleteWhen = 04\nfileReservedTime = 48\nenableControllerMode = true\n"
    "controllerAddr = 127.0.0.1:9878\nnamesrvAddr = 127.0.0.1:9876\nallAckInSyncStateSet=true\nlistenPort=30911\n"
    "storePathRootDir=/tmp/rmqstore/node00\nstorePathCommitLog=/tmp/rmqstore/node00/commitlog\n",
    "container/2container-2m-2s/broker-a-in-container1.conf": "brokerClusterName=DefaultCluster\nbrokerName=broker-a\n"
    "brokerId=0\nbrokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\nstorePathRootDir=/data/broker-a/store\n"
    "storePathCommitLog=/data/broker-a/store/commitlog\nlistenPort=10911\nhaListenPort=10912\ntotalReplicas=2\n"
    "inSyncReplicas=2\nminInSyncReplicas=1\nenableAutoInSyncReplicas=true\nslaveReadEnable=true\n"
    "brokerHeartbeatInterval=1000\nbrokerNotActiveTimeoutMillis=5000\nsendHeartbeatTimeoutMillis=1000\n"
    "enableSlaveActingMaster=true\n",
    "dledger/broker-n0.conf": "brokerClusterName = RaftCluster\nbrokerName=RaftNode00\nlistenPort=30911\n"
    "namesrvAddr=127.0.0.1:9876\nstorePathRootDir=/tmp/rmqstore/node00\n"
    "storePathCommitLog=/tmp/rmqstore/node00/commitlog\nenableDLegerCommitLog=true\ndLegerGroup=RaftNode00\n"
    "dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913\ndLegerSelfId=n0\n"
    "sendMessageThreadPoolNums=16\n",
}
"""The settings of each kind of file in `distribution/conf` of release 5.3, without comments. Brokers up to 5.5 know all of them."""


@pytest.mark.parametrize(
    ("name", "reasons", "unread"),
    [
        ("broker.conf", [], ()),
        ("controller", ["enableControllerMode=true", "brokerRole=SLAVE"], ()),
        ("container", ["brokerRole=SYNC_MASTER with inSyncReplicas=2"], ()),
        ("dledger", ["enableDLegerCommitLog=true"], ("sendMessageThreadPoolNums",)),
    ],
)
@pytest.mark.parametrize("release", [None, "5.5.0"])
def test_a_broker_conf_as_shipped_is_read_without_a_warning_and_refused_for_what_it_says(
    name: str, reasons: list[str], unread: tuple[str, ...], release: str | None
) -> None:
    (text,) = (SHIPPED[each] for each in SHIPPED if each.startswith(name))
    config = parse_config(text.encode(), rocketmq_version=release)
    assert config.warnings == ()
    assert [reason.partition(":")[0] for reason in refuse_for_writing(config)] == reasons
    assert set(unread_settings(config.settings)) - OF_A_BROKERS_PROCESS == set(unread)


def test_a_default_that_a_later_release_changed_is_no_setting_that_takes_no_effect() -> None:
    assert unread_settings({"transactionMetricFlushInterval": "3000"}) == ()
    assert unread_settings({"transactionMetricFlushInterval": "4000"}) == ("transactionMetricFlushInterval",)


def test_a_setting_that_the_named_release_does_not_have_is_ignored_as_its_broker_does() -> None:
    config = parse_config(b"transRocksDBEnable=true\nenableLmqQuota=true\nrocketmqVersion=5.4.0\n", "b.conf")
    (warning,) = config.warnings
    assert warning.startswith(
        "b.conf, line 2: enableLmqQuota: rocketmqVersion is 5.4.0, and RocketMQ 5.5.0 is the first"
    )
    assert config.mode.trans_rocks_db_enable
    old = parse_config(b"transRocksDBEnable=true\n", rocketmq_version="5.3.3")
    assert not old.mode.trans_rocks_db_enable
    assert len(old.warnings) == 1


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("transRocksDBEnable", "open transactions"),
        ("timerRocksDBEnable", "two timers would deliver"),
        ("enableMultiDispatch", "queues of lite topics"),
    ],
)
def test_what_moves_where_we_do_not_write_is_not_written(setting: str, rule: str) -> None:
    config = parse_config(f"{setting}=true\n".encode())
    (reason,) = refuse_for_writing(config)
    assert reason.startswith(f"{setting}=true: ")
    assert rule in reason


def test_a_slave_of_a_broker_whose_timer_is_in_rocksdb_delivers_nothing_and_may_be_written() -> None:
    config = parse_config(b"timerRocksDBEnable=true\nbrokerRole=SLAVE\n")
    assert refuse_for_writing(config, follows=True) == []


def test_a_configured_value_can_be_told_from_javas_default() -> None:
    config = parse_config(b"maxIndexNum=20000000\n")
    assert config.index == IndexConfig()
    assert config.is_configured("maxIndexNum")
    assert not config.is_configured("maxHashSlotNum")
    assert config.commit_log.mapped_file_size_commit_log is None


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("mapedFileSizeCommitLog=1024", "mappedFileSizeCommitLog"),
        ("brokername=a", "brokerName"),
        ("flushDiskTyp=SYNC_FLUSH", "flushDiskType"),
        ("enableDLedgerCommitLog=true", "enableDLegerCommitLog"),
    ],
)
def test_an_unknown_name_is_warned_about_with_the_nearest_known_one(line: str, known: str) -> None:
    config = parse_config(f"# first\n{line}\n".encode(), "b.conf")
    name = line.split("=")[0]
    assert config.warnings == (f"b.conf, line 2: {name}: no broker knows this name (nearest: {known})",)
    assert not config.is_configured(name)


def test_an_unknown_name_that_resembles_nothing_is_warned_about_without_a_guess() -> None:
    assert parse_config(b"xyzzy=1").warnings == ("broker.conf, line 1: xyzzy: no broker knows this name",)


@pytest.mark.parametrize(
    "line",
    [
        b"mappedFileSizeCommitLog=1G",
        b"mappedFileSizeCommitLog=1024 ",
        b"mappedFileSizeCommitLog=1_024",
        b"mappedFileSizeCommitLog=2147483648",
        b"mappedFileSizeCommitLog=1024.0",
        b"mappedFileSizeCommitLog=",
        b"mappedFileSizeCommitLog=0x400",
    ],
)
def test_what_java_cannot_read_as_a_number_is_ignored_with_a_warning(line: bytes) -> None:
    """Integer.parseInt trims nothing and knows no suffixes; properties2Object swallows its exception."""
    config = parse_config(line)
    assert config.commit_log == CommitLogConfig()
    assert not config.is_configured("mappedFileSizeCommitLog")
    assert len(config.warnings) == 1
    assert "a broker ignores the line" in config.warnings[0]


def test_the_last_line_of_a_name_counts_even_if_java_cannot_read_it() -> None:
    assert parse_config(b"maxIndexNum=5\nmaxIndexNum=7").index.max_index_num == 7
    assert parse_config(b"maxIndexNum=5\nmaxIndexNum=x").index.max_index_num == 20_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("TRUE", True),
        ("false", False),
        ("true ", False),
        ("yes", False),
        ("1", False),
        ("", False),
    ],
)
def test_only_true_is_true(text: str, value: bool) -> None:
    assert parse_config(f"messageIndexEnable={text}".encode()).index.message_index_enable is value


def test_strings_are_trimmed_and_enumerations_must_be_exact() -> None:
    assert parse_config(b"brokerName = a b \t").identity.broker_name == "a b"
    assert parse_config(b"flushDiskType=SYNC_FLUSH ").flush.flush_disk_type == "SYNC_FLUSH"
    wrong = parse_config(b"flushDiskType=sync_flush")
    assert wrong.flush.flush_disk_type == "ASYNC_FLUSH"
    assert len(wrong.warnings) == 1


@pytest.mark.parametrize(("given", "rounded"), [(1, 20), (20, 20), (21, 40), (4096, 4100), (6_000_000, 6_000_000)])
def test_the_consume_queue_size_is_rounded_up_to_whole_entries(given: int, rounded: int) -> None:
    assert ConsumeQueueConfig(given).mapped_file_size_consume_queue == rounded
    parsed = parse_config(f"mappedFileSizeConsumeQueue={given}".encode())
    assert parsed.consume_queue.mapped_file_size_consume_queue == rounded


@pytest.mark.parametrize(
    "line",
    [
        "mappedFileSizeCommitLog=0",
        "mappedFileSizeConsumeQueue=-20",
        "maxHashSlotNum=0",
        "maxIndexNum=-1",
        "messageDelayLevel=1s 5x",
        "messageDelayLevel=",
    ],
)
def test_a_value_with_which_no_store_can_work_is_an_error_at_its_line(line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(f"brokerName=a\n{line}\n".encode(), "b.conf")
    assert (caught.value.file, caught.value.line, caught.value.key) == ("b.conf", 2, line.split("=")[0])


def test_a_bad_value_given_in_code_is_an_error_without_a_file() -> None:
    with pytest.raises(ConfigurationError, match=r"^configuration: messageDelayLevel: "):
        DelayConfig("soon")


def test_a_config_is_a_value_that_travels() -> None:
    config = parse_config(BROKER_CONF.read_bytes(), "broker.conf")
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(parse_config(BROKER_CONF.read_bytes(), "broker.conf"))
    assert StoreConfig.tiny().is_configured("maxHashSlotNum")


@pytest.mark.parametrize(
    ("root", "files", "found"),
    [
        ("/lab/store", ["/lab/broker.conf", "/lab/store/broker.conf"], "/lab/broker.conf"),
        ("/lab/store/", ["/lab/store/broker.conf"], "/lab/store/broker.conf"),
        ("/lab/store", ["/broker.conf"], None),
        ("store", ["broker.conf"], "broker.conf"),
        (".", ["../broker.conf"], "../broker.conf"),
        (".", ["broker.conf"], "broker.conf"),
        ("s3://bucket/lab/store", ["s3://bucket/lab/broker.conf"], "s3://bucket/lab/broker.conf"),
        ("s3://bucket/store/", ["s3://bucket/store/broker.conf"], "s3://bucket/store/broker.conf"),
        ("memory://store", ["memory://store/broker.conf", "broker.conf"], "memory://store/broker.conf"),
    ],
)
def test_the_conf_is_looked_for_in_roots_parent_and_then_in_root(
    root: str, files: list[str], found: str | None
) -> None:
    content = {file: file.encode() for file in files}
    assert read_configuration(root, read_bytes=content.get) == (found, b"" if found is None else found.encode())


def test_a_given_conf_wins_and_must_exist() -> None:
    files = {"/a/broker.conf": b"brokerName=wrong", "/b/my.conf": b"brokerName=right"}
    config = load_config("/a/store", "/b/my.conf", read_bytes=files.get)
    assert (config.identity.broker_name, config.file) == ("right", "/b/my.conf")
    with pytest.raises(ConfigurationError, match=r"/b/other\.conf: there is no such file"):
        load_config("/a/store", "/b/other.conf", read_bytes=files.get)


def test_a_given_conf_that_is_a_directory_is_told_of_conf(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_config(f"{tmp_path}/store", str(tmp_path), read_bytes=LocalFileSystem().read_file)
    assert str(caught.value) == f"{tmp_path}: it is a directory, and conf names a file: the broker's broker.conf"


def test_no_conf_is_nothing_configured() -> None:
    files: dict[str, bytes] = {}
    assert load_config("/a/store", read_bytes=files.get) == StoreConfig()


def test_loading_warns_aloud_once_a_line() -> None:
    files = {"/a/broker.conf": b"brokerNam=a\nlistenPort=x\nbrokerName=b"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load_config("/a/store", read_bytes=files.get)
    assert [str(item.message) for item in caught] == list(config.warnings)
    assert {item.category for item in caught} == {ConfigurationWarning}
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("conf", "file", "directories"),
    [
        (b"", None, []),
        (b"storePathCommitLog=/disk/log", "/lab/broker.conf", ["/disk/log"]),
        (b"storePathCommitLog=./logs/a", "/lab/conf/broker.conf", ["logs/a"]),
        (b"storePathCommitLog=../logs/", "file:///lab/conf/broker.conf", ["../logs"]),
        (b"storePathCommitLog=log", "s3://b/lab/broker.conf", ["s3://b/lab/log"]),
        (b"storePathCommitLog=/d1/log,,/d2/log,/d1/log", "/lab/broker.conf", ["/d1/log", "/d2/log"]),
        (b"storePathCommitLog=store/commitlog,/d2/log", "/lab/broker.conf", ["store/commitlog", "/d2/log"]),
        (
            b"storePathCommitLog=/d1/log,/d2/log\nreadOnlyCommitLogStorePaths=/d3/log",
            "/lab/broker.conf",
            ["/d1/log", "/d2/log", "/d3/log"],
        ),
        (b"storePathCommitLog=/d1/log\nreadOnlyCommitLogStorePaths=/d3/log", "/lab/broker.conf", ["/d1/log"]),
    ],
)
def test_which_directories_a_configuration_names_for_the_log(
    conf: bytes, file: str | None, directories: list[str]
) -> None:
    assert list(configured_log_directories(parse_config(conf, file))) == directories


@pytest.mark.parametrize("name", ["storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile"])
def test_other_paths_that_are_often_configured_are_read_by_no_broker_and_not_here(name: str) -> None:
    """Java derives them from storePathRootDir (StorePathConfigHelper); MessageStoreConfig has no such properties."""
    config = parse_config(f"{name}=/elsewhere\n".encode())
    assert name not in config.settings
    assert any(f"{name}: no broker knows this name" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "storeType=defaultRocksDB",
        "storeType=DEFAULTROCKSDB",
        "enableDLegerCommitLog=true",
        "duplicationEnable=true",
        "enableControllerMode=true",
        "configManagerVersion=v2",
        "rocksdbCQDoubleWriteEnable=true",
        "brokerRole=SLAVE",
    ],
)
def test_stores_that_must_not_be_written_are_refused_by_the_name_of_the_setting(line: str) -> None:
    config = parse_config(line.encode())
    assert [reason.split(":")[0] for reason in refuse_for_writing(config)] == [line]


def test_a_master_that_waits_for_its_slaves_is_not_written() -> None:
    """CommitLog.handleHA: with inSyncReplicas=1, the default, a SYNC_MASTER waits for nobody."""
    config = parse_config(b"brokerRole=SYNC_MASTER\ninSyncReplicas=2\n")
    (reason,) = refuse_for_writing(config)
    assert reason.startswith("brokerRole=SYNC_MASTER with inSyncReplicas=2: ")


@pytest.mark.parametrize(
    "conf",
    [
        b"",
        b"forceVerifyPropCRC=true",
        b"enabledAppendPropCRC=true",
        b"brokerRole=SYNC_MASTER\nstoreType=default\nconfigManagerVersion=v1",
        b"brokerRole=SYNC_MASTER\ninSyncReplicas=1",
        b"brokerRole=ASYNC_MASTER\ninSyncReplicas=3",
    ],
)
def test_an_ordinary_store_is_not_refused(conf: bytes) -> None:
    assert refuse_for_writing(parse_config(conf)) == []
    assert refuse_for_writing(parse_config(BROKER_CONF.read_bytes())) == []


def test_a_warning_about_a_file_is_said_once_however_often_it_is_read(tmp_path: Path) -> None:
    """By whichever function: a command reads the file when it looks at the store, and when it opens it."""
    conf = tmp_path / "said-once.conf"
    conf.write_text("fileReservdTime=48\n")

    def read_here() -> None:
        load_config(str(tmp_path), str(conf), read_bytes=LocalFileSystem().read_file)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            read_here()
        load_config(str(tmp_path), str(conf), read_bytes=LocalFileSystem().read_file)
    assert [str(one.message).count("fileReservdTime") for one in said] == [1]


def test_a_warning_is_one_line_with_the_file_and_the_line_number(tmp_path: Path) -> None:
    conf = tmp_path / "own.conf"
    conf.write_text("brokerName=broker-a\nmapedFileSizeCommitLog=1\n", encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_config("/a/store", str(conf), read_bytes=lambda path: Path(path).read_bytes())
    (said,) = [each for each in caught if each.category is ConfigurationWarning]
    shown = warnings.formatwarning(said.message, said.category, said.filename, said.lineno, said.line)
    assert shown.startswith(f"<{conf}>:2: ConfigurationWarning: ")
    assert shown.count("\n") == 1
