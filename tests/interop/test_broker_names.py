"""The name of an Apache broker in its own store and in ours, by path and live. No broker.conf lies beside the stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import OptionError
from storage import open_store
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import TopicTable, named_brokers
from tests.spark.test_names_by_path import rows
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@contextmanager
def apache(oracle: Oracle, root: Path, name: str, body: str | None = None) -> Iterator[str]:
    """A broker of that name on the store, and what it has taken; yields its name server."""
    with oracle.namesrv() as name_server, oracle.broker(root, name_server, brokerName=name, brokerClusterName="C"):
        if body is not None:
            with Producer(ClientSettings((name_server,)), "G") as producer:
                producer.send(Message("Topic", body.encode()))
        yield name_server


def told(root: Path) -> list[str]:
    return named_brokers(TopicTable.load((root / "config" / TOPICS_FILE).read_text("utf-8")))


@pytest.mark.long
def test_a_renamed_brokers_store_has_the_name_that_somebody_says(oracle: Oracle, tmp_path: Path) -> None:
    root = tmp_path / "somewhere"
    with apache(oracle, root, "first", "one") as name_server:
        assert rows(path=str(root)) == rows(nameServer=name_server)
    with apache(oracle, root, "second", "two") as name_server:
        live = rows(nameServer=name_server)
    assert told(root) == ["first", "second"], "Java keeps both, and writes the new one at its end"
    with pytest.raises(OptionError, match="first, second"):
        rows(path=str(root))
    assert rows(path=str(root), brokerName="second") == live


def test_an_apache_broker_goes_on_under_the_name_that_our_store_tells(oracle: Oracle, tmp_path: Path) -> None:
    root, conf = tmp_path / "somewhere", tmp_path / "settings"
    conf.write_text(
        "brokerName=ours\nbrokerClusterName=C\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
    )
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        store.put("Topic", b"one")
        ours = store.writer.settings.topics.topics
    with apache(oracle, root, "ours", "two") as name_server:
        live = rows(nameServer=name_server)
        assert len(live) == 2
        assert rows(path=str(root)) == live
    theirs = TopicTable.load((root / "config" / TOPICS_FILE).read_text("utf-8")).topics
    assert {topic: theirs[topic] for topic in ours} == ours
    assert told(root) == ["ours"]
