"""Settings that nothing reads are told. What is read is taken from the code itself, so that no table can say otherwise."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

import storage
from spark_mq.source.cluster import Cluster
from storage import open_store
from storage.errors import StoreRefusedError
from storage.settings.java_settings import JAVA_SETTINGS
from storage.settings.load import OF_A_BROKERS_PROCESS, READ_SETTINGS, StoreConfig, parse_config, unread_settings
from storage.settings.nouns import NOUNS
from tests.support.fixture_stores import Fixture

PACKAGES = Path(storage.__file__).resolve().parent.parent
NOUNS_FILE = PACKAGES / "storage/settings/nouns.py"
OWNERS = {declared.name for declared in fields(StoreConfig)} | {"config", "_config", "rules"}
"""What a noun, or the whole configuration, is called where a field of it is read."""


def fields_read() -> Iterator[str]:
    """Names of attributes that the packages read of a noun; in the nouns' own file by methods that are asked for."""
    for room in ("storage", "spark_mq", "jobs"):
        for path in (PACKAGES / room).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            if path == NOUNS_FILE:
                asked = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
                tree = ast.Module([node for node in asked if not node.name.startswith("__")], [])
            owners = {"self"} if path == NOUNS_FILE else OWNERS
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in owners:
                    yield node.attr


def test_every_setting_that_has_a_field_is_read_somewhere() -> None:
    declared = {item.name for noun in NOUNS for item in fields(noun)}
    assert declared - set(fields_read()) == set(), (
        "give it its effect, or take the field away: then it is told as unread"
    )


def test_the_nouns_are_those_of_the_configuration() -> None:
    config = StoreConfig()
    assert {type(getattr(config, item.name)) for item in fields(config)} >= set(NOUNS)
    assert JAVA_SETTINGS.keys() >= READ_SETTINGS
    assert not OF_A_BROKERS_PROCESS & READ_SETTINGS
    assert JAVA_SETTINGS.keys() >= OF_A_BROKERS_PROCESS


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("coldDataFlowControlEnable=true", ("coldDataFlowControlEnable",)),
        ("coldDataFlowControlEnable=TRUE", ("coldDataFlowControlEnable",)),
        ("coldDataFlowControlEnable=false", ()),
        ("transactionCheckInterval=1000", ("transactionCheckInterval",)),
        ("transactionCheckInterval=30000", ()),
        ("transactionCheckInterval=+030000", ()),
        ("maxLmqConsumeQueueNum=50", ("maxLmqConsumeQueueNum",)),
        ("logicalDiskSpaceCleanForciblyThreshold=0.80", ()),
        ("logicalDiskSpaceCleanForciblyThreshold=0.9", ("logicalDiskSpaceCleanForciblyThreshold",)),
        ("msgTraceTopicName=RMQ_SYS_TRACE_TOPIC", ()),
        ("namesrvAddr=127.0.0.1:9876", ("namesrvAddr",)),  # it has no default
        ("maxMessageSize=1000\nenableConsumeQueueExt=true\nflushDiskType=SYNC_FLUSH", ()),
        ("coldDataFlowControlEnable=1x\nnoSuchName=3", ()),  # false, as Java reads it; and no name of a broker's
    ],
)
def test_a_setting_is_unread_if_it_differs_from_javas_default_and_nothing_reads_it(
    line: str, unread: tuple[str, ...]
) -> None:
    assert unread_settings(parse_config(line.encode()).settings) == unread


@pytest.mark.parametrize("way", ["writer", "source"])
def test_the_log_says_once_what_takes_no_effect(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "coldDataFlowControlEnable=true\ninitAuthenticationUser={password}\nnamesrvAddr=a:9876\nmaxMessageSize=1000\n"
    )
    root = str(tmp_path / "store")
    open_store(root, config=StoreConfig.tiny(), read_only=False, create=True).close()
    with caplog.at_level(logging.WARNING, "storage.settings"):
        for _ in range(3):
            if way == "writer":
                open_store(root, read_only=False).close()
            else:
                open_store(root).close()  # as commands that only read do
                cluster = Cluster.open([root])
                cluster.tell_unread_settings()
                cluster.close()
    (record,) = [record for record in caplog.records if record.name == "storage.settings.load"]
    said = record.getMessage()
    assert said.startswith(f"{conf}: ")
    assert "coldDataFlowControlEnable, initAuthenticationUser" in said
    assert "password" not in said
    assert "namesrvAddr" not in said


def test_the_option_names_the_broker_for_source_and_sink_whatever_the_settings_say(tmp_path: Path) -> None:
    config, root = StoreConfig.tiny(), str(tmp_path / "store")
    (tmp_path / "broker.conf").write_text("brokerName=of-the-file\n")
    open_store(root, config=config, read_only=False, create=True).close()
    for asked, name in (("of-the-option", "of-the-option"), (None, "of-the-file")):
        with closing(Cluster.open([root], broker_name=asked)) as cluster:
            assert cluster.brokers == [name]
        with open_store(root, read_only=False, broker_name=asked) as store:
            assert store.writer.settings.broker_name == name


def test_a_store_whose_slaves_must_acknowledge_opens_for_reading_alone(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("clean")
    conf = fixture.conf.read_text("utf-8") + "brokerRole=SYNC_MASTER\ninSyncReplicas=2\n"
    fixture.conf.write_text(conf, "utf-8")
    with pytest.raises(StoreRefusedError, match="brokerRole=SYNC_MASTER with inSyncReplicas=2"):
        open_store(str(fixture.root), read_only=False)
    with open_store(str(fixture.root)) as store:
        assert store.topics()
