"""Whose records a store holds and what a put must know of it: from the configuration, the log, the options, in this order."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import open_store
from storage.errors import ConfigurationError, RowIllegalError, StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.put.settings import DEFAULT_STORE_HOST, PutSettings, parse_host, put_settings
from storage.queues.store import queue_file_size
from storage.settings.load import StoreConfig, parse_config
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.message_builder import HOST_V6, StoreBuilder

FILES = LocalFileSystem()


def settings_of(root: Path, text: str = "", **options: Any) -> PutSettings:
    config = parse_config(text.encode(), f"{root.parent}/broker.conf") if text else StoreConfig()
    return put_settings(str(root), config, FILES, **options)


def host(address: str, port: int) -> bytes:
    return ipaddress.ip_address(address).packed + port.to_bytes(4, "big")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose records say 127.0.0.1:10911."""
    builder = StoreBuilder(tmp_path / "store")
    for _ in range(60):
        builder.put()
    return builder.root


# Hosts


def test_a_new_store_has_the_default_host_or_the_options(tmp_path: Path) -> None:
    assert settings_of(tmp_path / "new").host == parse_host(DEFAULT_STORE_HOST, "storeHost") == host("127.0.0.1", 10911)
    assert settings_of(tmp_path / "new", store_host="10.1.2.3:4711").host == host("10.1.2.3", 4711)


def test_the_configuration_comes_first(store: Path) -> None:
    assert settings_of(store, "brokerIP1=10.1.2.3\nlistenPort=4711\n").host == host("10.1.2.3", 4711)
    assert settings_of(store, "brokerIP1=10.1.2.3\n").host == host("10.1.2.3", 10_911), "Java: BrokerStartup"


def test_then_the_records_say_whose_they_are(store: Path) -> None:
    assert settings_of(store).host == host("127.0.0.1", 10911)
    assert settings_of(store, "listenPort=4711\n").host == host("127.0.0.1", 10911), "a port alone is nobody's address"


def test_the_newest_file_with_records_counts(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store")
    builder.put(body=bytes(3_000))
    builder.put(body=bytes(3_000), sys_flag=0x30)
    FILES.create_file(f"{builder.root}/commitlog/{8_192:020d}", 4_096)
    assert len(builder.messages) == len(list((builder.root / "commitlog").iterdir())) - 1
    assert settings_of(builder.root).host == HOST_V6


@pytest.mark.parametrize("name", ["clean", "expired", "syncflush", "roll"])
def test_a_brokers_records_say_its_address(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    (expected,) = {line["storeHost"] for line in golden_lines(fixture.golden, "message") if "storeHost" in line}
    found = put_settings(str(fixture.root), StoreConfig(), FILES).host
    assert f"{ipaddress.ip_address(found[:-4])}:{int.from_bytes(found[-4:], 'big')}" == expected


def test_a_store_may_be_served_at_another_address_than_its_records_say(store: Path) -> None:
    """Java: BrokerController.storeHost, which goes into new messages whatever the old ones say."""
    for asked, expected in (("127.0.0.1:10912", ("127.0.0.1", 10912)), ("[::1]:10911", ("::1", 10911))):
        assert settings_of(store, store_host=asked).host == host(*expected)


def test_an_option_that_contradicts_the_configuration_is_refused_with_the_line_to_write(store: Path) -> None:
    conf = "brokerIP1=10.1.2.3\nlistenPort=4711\n"
    assert settings_of(store, conf, store_host="10.1.2.3:4711").host == host("10.1.2.3", 4711)
    with pytest.raises(
        ConfigurationError, match=r"storeHost: it is 127\.0\.0\.1:10911, .* give storeHost=10\.1\.2\.3:4711"
    ):
        settings_of(store, conf, store_host="127.0.0.1:10911")


def test_brokerip1_may_be_an_address_of_the_sixth_version_in_brackets_or_not(store: Path) -> None:
    for text in ("::1", "[::1]", "0:0:0:0:0:0:0:1"):
        found = settings_of(store, f"brokerIP1={text}\nlistenPort=4711\n")
        assert (found.host, found.address) == (host("::1", 4711), "[::1]:4711")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.1.2.3:1", host("10.1.2.3", 1)),
        (" 10.1.2.3:65535 ", host("10.1.2.3", 65_535)),
        ("[::1]:10911", host("::1", 10_911)),
        ("[2001:db8::17]:80", host("2001:db8::17", 80)),
        ("2001:db8::17:80", host("2001:db8::17", 80)),
    ],
)
def test_addresses_are_taken_in_both_families(text: str, expected: bytes) -> None:
    assert parse_host(text, "storeHost") == expected


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(name: str, port: int, **_: Any) -> list[Any]:
        asked.append((name, port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.9.8.7", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert parse_host("broker-a.example:4711", "storeHost") == host("10.9.8.7", 4711)
    assert asked == [("broker-a.example", 4711)]


def test_a_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigurationError, match=r"no address is known for 'nowhere'"):
        parse_host("nowhere:1", "storeHost")


@pytest.mark.parametrize("text", ["0.0.0.0:10911", "[::]:10911", "224.0.0.1:10911", "[ff02::1]:10911"])
def test_an_address_at_which_nobody_can_be_reached_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no address at which a broker can be reached"):
        parse_host(text, "storeHost")
    with pytest.raises(ConfigurationError, match=r"brokerIP1.*0\.0\.0\.0"):
        settings_of(tmp_path, "brokerIP1=0.0.0.0\n")


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", ":10911", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "h:-1", "h:1x", "h:²"]
)
def test_what_is_no_address_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected address:port"):
        parse_host(text, "storeHost")


def test_a_store_keeps_the_host_that_it_was_made_with(tmp_path: Path) -> None:
    for number in range(2):
        asked = "[2001:db8::17]:80" if not number else None
        with open_store(tmp_path, config=StoreConfig(), read_only=False, create=True, store_host=asked) as store:
            result = store.put("T", b"body", queue_id=0)
            message = store.message_by_commitlog_offset(result.commitlog_offset)
            assert message.store_host == message.born_host == host("2001:db8::17", 80)
            assert message.sys_flag & 0x30 == 0x30
            assert result.msg_id == message.msg_id
            assert len(result.msg_id) == 56


# The rest


def test_names_sizes_and_modes_come_from_the_configuration(tmp_path: Path) -> None:
    text = "\n".join(
        [
            *("brokerName=b", "brokerClusterName=c", "regionId=r", "traceOn=false", "maxMessageSize=1000"),
            *("mappedFileSizeCommitLog=8192", "mappedFileSizeConsumeQueue=400", "flushDiskType=SYNC_FLUSH"),
        ]
    )
    found = settings_of(tmp_path, text)
    assert (found.broker_name, found.cluster, found.region, found.trace_on) == ("b", "c", "r", False)
    assert (found.max_message_size, found.log_file_size_bytes, found.queue_file_size_bytes) == (1_000, 8_192, 400)
    assert found.sync_flush
    assert not settings_of(tmp_path, text, flush_disk_type="ASYNC_FLUSH").sync_flush
    assert settings_of(tmp_path, text, broker_name="other").broker_name == "other"


def test_without_one_javas_defaults_hold(tmp_path: Path) -> None:
    found = settings_of(tmp_path, broker_name="option")
    assert (found.broker_name, found.cluster, found.region, found.trace_on) == (
        "option",
        "DefaultCluster",
        "DefaultRegion",
        True,
    )
    assert (found.log_file_size_bytes, found.queue_file_size_bytes) == (1 << 30, 300_000 * 20)
    assert found.max_message_size == 4 << 20
    assert not found.sync_flush


def test_a_log_has_files_of_the_length_that_it_has(store: Path) -> None:
    assert settings_of(store).log_file_size_bytes == 4_096


@pytest.mark.parametrize(("name", "size"), [("clean", 20_000), ("expired", 6_000)])
def test_queues_have_files_of_the_length_that_they_have(
    name: str, size: int, pristine_store: Callable[[str], Fixture]
) -> None:
    root = pristine_store(name).root
    assert f"mappedFileSizeConsumeQueue={size}\n" in pristine_store(name).conf.read_text("utf-8")
    assert put_settings(str(root), StoreConfig(), FILES).queue_file_size_bytes == size
    assert settings_of(root, "mappedFileSizeConsumeQueue=400\n").queue_file_size_bytes == 400


def test_what_is_no_queue_file_tells_no_length(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "note").write_bytes(bytes(60))
    (queue / f"{0:020d}").write_bytes(b"")
    (queue / "lost").write_bytes(bytes(7))
    assert queue_file_size(FILES, str(tmp_path), None) == 6_000_000
    (queue / f"{400:020d}").write_bytes(bytes(400))
    assert queue_file_size(FILES, str(tmp_path), None) == 400


def test_a_new_queue_of_a_store_whose_configuration_is_gone_is_as_the_others(
    fixture_store: Callable[[str], Fixture],
) -> None:
    """A broker does not start where one queue's files are of another length."""
    fixture = fixture_store("clean")
    fixture.conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=2000\n", "utf-8")
    with open_store(fixture.root, read_only=False) as store:
        store.put("NewTopic", b"body")
        for topic in ("broker-lab", "LabCluster", "LabCluster_REPLY_TOPIC"):
            with pytest.raises(RowIllegalError, match="system topic"):
                store.put(topic, b"body")
    sizes = {path.stat().st_size for path in (fixture.root / "consumequeue").glob("*/*/*")}
    assert sizes == {20_000}
    assert list((fixture.root / "consumequeue" / "NewTopic").glob("*/*"))


def test_a_brokers_topics_tell_whose_store_it_is(pristine_store: Callable[[str], Fixture]) -> None:
    root = str(pristine_store("clean").root)
    found = put_settings(root, StoreConfig(), FILES)
    assert (found.broker_name, found.cluster) == ("broker-lab", "LabCluster")
    found = put_settings(root, StoreConfig(), FILES, broker_name="option")
    assert (found.broker_name, found.cluster) == ("option", "LabCluster")


def test_new_files_go_where_writing_is_allowed(tmp_path: Path) -> None:
    a, b = f"{tmp_path}/a", f"{tmp_path}/b"
    text = f"storePathCommitLog={a},{b}\nreadOnlyCommitLogStorePaths={tmp_path}/old\n"
    assert settings_of(tmp_path, text).log_directories == (a, b)
    assert settings_of(tmp_path).log_directories == (f"{tmp_path}/commitlog",)


def test_topics_are_those_of_the_file_or_of_its_backup(
    tmp_path: Path, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store("clean")
    topics = put_settings(str(fixture.root), StoreConfig(), FILES).topics.topics
    assert "SCHEDULE_TOPIC_XXXX" in topics
    assert settings_of(tmp_path).topics.topics == {}
    config = tmp_path / "config"
    config.mkdir()
    (config / "topics.json").write_bytes(b'{"topicConfigTable": {"T"')
    (config / "topics.json.bak").write_bytes((fixture.root / "config" / "topics.json").read_bytes())
    assert settings_of(tmp_path).topics.topics == topics


def test_topics_that_cannot_be_read_stop_a_put(tmp_path: Path) -> None:
    """A broker would begin with an empty table, and the next save would delete every topic."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes(b'{"topicConfigTable": {"T"')
    with pytest.raises(StateFileError, match=r"topics\.json"):
        settings_of(tmp_path)
    with pytest.raises(StateFileError, match=r"topics\.json"):
        open_store(tmp_path, config=StoreConfig.tiny(), read_only=False, create=True)
    assert (tmp_path / "config" / "topics.json").read_bytes() == b'{"topicConfigTable": {"T"'
