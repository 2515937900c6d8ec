"""Rows by a store's path are those of the broker that has it open, whichever process made the store. No broker.conf lies beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import OptionError
from spark_mq.source.batch_reader import BatchReader
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import QueuePartition
from spark_mq.source.stream_reader import StreamReader
from storage import open_store
from storage.names import BROKER_MEMBER_TOPIC_PREFIX
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports
from tests.support.own_servers import our_name_server

from .in_process import next_batch, rows_of

pytestmark = pytest.mark.slow


def rows(**options: str) -> list[tuple[tuple[str, Any], ...]]:
    parsed = SourceOptions.parse({"subscribe": "Topic", **options}, "batch")
    reader = BatchReader(parsed, parsed.column_names)
    splits = [split for part in reader.partitions() if isinstance(part, QueuePartition) for split in part.splits]
    return sorted((tuple((name, repr(value)) for name, value in row.items()) for row in rows_of(splits)), key=repr)


def stream(**options: str) -> StreamReader:
    parsed = SourceOptions.parse({"subscribe": "Topic", "startingOffsets": "earliest", **options}, "streaming")
    return StreamReader(parsed, parsed.column_names)


def test_rows_by_path_are_those_of_the_running_broker(tmp_path: Path) -> None:
    root = tmp_path / "somewhere"
    with (
        our_name_server(tmp_path) as names,
        running(root, free_ports(), names.address) as broker,
        Producer(ClientSettings((names.address,)), "G") as producer,
    ):
        for number in range(12):
            producer.send(Message("Topic", b"%d" % number, tags="a", keys=f"k{number}"))
        by_path, live = rows(path=str(root)), rows(nameServer=names.address)
        assert len(live) == 12
        assert by_path == live
        assert dict(live[0])["broker_name"] == repr(broker.broker.parts.store.broker_name)
        position, _ = next_batch(stream(path=str(root)), stream(path=str(root)).initialOffset())
        assert next_batch(stream(nameServer=names.address), position) == (position, [])
        producer.send(Message("Topic", b"later"))
        _, later = next_batch(stream(nameServer=names.address), position)
        assert [row["body"] for row in later] == [b"later"]


def broker_of(root: Path) -> str | None:
    """What readers take for the broker's name; None where they take the directory's."""
    shown = {dict(row)["broker_name"] for row in rows(path=str(root))}
    assert len(shown) == 1
    return None if shown == {repr(root.name)} else shown.pop().strip("'")


@pytest.mark.parametrize("conf", ["", "brokerName=b\nbrokerClusterName=C\n"], ids=["nobody knows", "conf"])
def test_a_store_that_is_made_tells_the_name_that_is_known(conf: str, tmp_path: Path) -> None:
    root, home = tmp_path / "made", tmp_path / "conf"
    home.write_text(conf)
    with open_store(root, config=str(home), read_only=False, create=True) as store:
        store.put("Topic", b"body")
    assert broker_of(root) == ("b" if conf else None)


def test_a_name_that_is_given_is_told_and_comes_to_a_store_that_is_there(tmp_path: Path) -> None:
    root = tmp_path / "made"
    with open_store(root, read_only=False, create=True) as store:
        store.put("Topic", b"body")
    assert broker_of(root) is None
    for name in ("first", "second"):
        with open_store(root, read_only=False, broker_name=name):
            pass
        assert broker_of(root) == name


def test_of_two_names_the_reader_chooses(tmp_path: Path) -> None:
    root = tmp_path / "made"
    with open_store(root, read_only=False, create=True, broker_name="first") as store:
        store.put("Topic", b"body")
        topics = store.writer.settings.topics
        second = replace(
            topics.topics[f"{BROKER_MEMBER_TOPIC_PREFIX}first"], topic=f"{BROKER_MEMBER_TOPIC_PREFIX}second"
        )
        store.writer.topic_entries.replace(topics.with_topic(second, now_ms=1))  # as Java's, which was renamed
    with pytest.raises(OptionError, match="first, second"):
        rows(path=str(root))
    assert {dict(row)["broker_name"] for row in rows(path=str(root), brokerName="second")} == {"'second'"}
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=first\n")
    assert broker_of(root) == "first"
