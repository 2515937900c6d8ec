"""A streaming query that would write into a topic that it reads is refused, whichever way it reads and writes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import WritesOwnSourceError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink import own_source
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import send_over
from spark_mq.sink.options import LiveSinkOptions, SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from spark_mq.sink.writers import StreamWriter
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from storage import open_store
from storage.batch.ledger import Batch
from storage.batch.staged_segment import list_segments
from storage.files.local_file_system import LocalFileSystem
from tests.broker_server.test_running_broker import running
from tests.support.fake_broker import RoutesTo, TakingBroker
from tests.support.java_broker import free_ports
from tests.support.own_servers import our_name_server
from tests.support.store_builder import StoreBuilder

SCHEMA = StructType().add("body", "binary").add("topic", "string")
BATCH = Batch("sink", "query", 0)


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    own_source._seen.clear()
    yield
    own_source._seen.clear()


def checkpoint(directory: Path, *lines: object, number: int = 0) -> str:
    """As Spark leaves it before it runs a batch: a version, its own line, and one for each source."""
    (directory / "offsets").mkdir(parents=True, exist_ok=True)
    texts = ["v1", '{"batchWatermarkMs":0}', *(json.dumps(line) for line in lines)]
    (directory / "offsets" / str(number)).write_text("\n".join(texts), "utf-8")
    return str(directory)


def planned(**options: str) -> object:
    """Up to where a new query reads in its first batch."""
    reader = StreamReader(SourceOptions.parse(options, "streaming"), ["body"])
    try:
        return reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    finally:
        reader.stop()


def writer(**options: str) -> StreamWriter:
    return SparkMqDataSource({name.lower(): text for name, text in options.items()}).streamWriter(SCHEMA, False)


def store_with(root: Path, *topics: str) -> str:
    store = StoreBuilder(root)
    for topic in topics:
        store.send_many(topic, 3)
    return str(store.root)


def test_a_topic_of_the_same_store_is_refused_and_another_topic_or_store_is_not(tmp_path: Path) -> None:
    root, other = store_with(tmp_path / "broker-a", "MA"), store_with(tmp_path / "other" / "broker-a", "X", "MA")
    read = planned(path=root, topic="MA", startingOffsets="earliest")
    taken = checkpoint(tmp_path / "cp", {"MA": {"0": 3}}, read)  # another source's line before it
    with pytest.raises(WritesOwnSourceError, match="the query reads topic MA where it would write to it"):
        writer(path=root, topic="MA", checkpointLocation=taken)
    assert writer(path=root, topic="MD", checkpointLocation=taken).sink.columns.own_topics == frozenset()
    assert writer(path=other, topic="MA", checkpointLocation=taken).sink.columns.own_topics == frozenset(), (
        "a mirror, of brokers of one name"
    )
    assert (
        writer(path=str(tmp_path / "new"), topic="MA", checkpointLocation=taken).sink.columns.own_topics == frozenset()
    )
    assert (
        writer(path=root, topic="MA", checkpointLocation=taken, writeToSource="true").sink.columns.own_topics
        == frozenset()
    )


def test_it_is_the_same_store_by_another_path_and_under_another_name(tmp_path: Path) -> None:
    root = store_with(tmp_path / "broker-a", "MA")
    read = planned(path=root, topic="MA", startingOffsets="earliest", brokerName="elsewhere")
    os.symlink(root, tmp_path / "link")
    taken = checkpoint(tmp_path / "cp", read)
    with pytest.raises(WritesOwnSourceError):
        writer(path=str(tmp_path / "link"), topic="MA", checkpointLocation=f"file:{taken}")


def test_the_newest_batch_counts_and_a_position_without_a_record_says_nothing(tmp_path: Path) -> None:
    root = store_with(tmp_path / "broker-a", "MA")
    empty = {"MA": {"broker-a": {"0": {"next": 0, "before": None}}}}
    taken = checkpoint(tmp_path / "cp", empty, number=9)
    assert writer(path=root, topic="MA", checkpointLocation=taken).sink.columns.own_topics == frozenset()
    checkpoint(tmp_path / "cp", planned(path=root, topic="MA", startingOffsets="earliest"), number=10)
    with pytest.raises(WritesOwnSourceError):
        writer(path=root, topic="MA", checkpointLocation=taken)


def test_of_two_sources_with_one_broker_name_each_is_looked_for_by_its_own_records(tmp_path: Path) -> None:
    one, two = store_with(tmp_path / "one" / "broker-a", "MA"), store_with(tmp_path / "two" / "broker-a", "MB")
    read = [planned(path=root, topic=topic, startingOffsets="earliest") for root, topic in ((one, "MA"), (two, "MB"))]
    taken = checkpoint(tmp_path / "cp", *read)
    assert writer(path=two, topic="MA", checkpointLocation=taken).sink.columns.own_topics == frozenset()
    assert writer(path=two, checkpointLocation=taken).sink.columns.own_topics == {"MB"}
    with pytest.raises(WritesOwnSourceError):
        writer(path=two, topic="MB", checkpointLocation=taken)


def test_a_checkpoint_that_is_made_anew_in_the_same_place_is_another_querys(tmp_path: Path) -> None:
    root, other = store_with(tmp_path / "broker-a", "MA"), store_with(tmp_path / "other" / "broker-a", "X", "MA")
    for query_id, reads, is_refused in (("q1", root, True), ("q2", other, False), ("q1", root, True)):
        taken = checkpoint(tmp_path / "cp", planned(path=reads, topic="MA", startingOffsets="earliest"))
        (tmp_path / "cp" / "metadata").write_text(json.dumps({"id": query_id}), "utf-8")
        for _ in range(2):
            with pytest.raises(WritesOwnSourceError) if is_refused else nullcontext():
                writer(path=root, topic="MA", checkpointLocation=taken)


def test_a_store_and_its_backup_have_the_same_records_and_it_must_be_said_that_this_is_meant(tmp_path: Path) -> None:
    root = store_with(tmp_path / "broker-a", "MA")
    shutil.copytree(root, tmp_path / "backup")
    taken = checkpoint(tmp_path / "cp", planned(path=str(tmp_path / "backup"), topic="MA", startingOffsets="earliest"))
    with pytest.raises(WritesOwnSourceError, match="writeToSource"):
        writer(path=root, topic="MA", checkpointLocation=taken)
    assert writer(path=root, topic="MA", checkpointLocation=taken, writeToSource="true")


@pytest.mark.parametrize("location", ["", "s3://bucket/cp", "{}/none"])
def test_without_a_checkpoint_that_can_be_read_nothing_is_refused(tmp_path: Path, location: str) -> None:
    root = store_with(tmp_path / "broker-a", "MA")
    given = {"checkpointLocation": location.format(tmp_path)} if location else {}
    assert writer(path=root, topic="MA", **given).sink.columns.own_topics == frozenset()


def test_where_rows_name_their_topics_the_task_refuses_and_stages_nothing(tmp_path: Path) -> None:
    root = store_with(tmp_path / "broker-a", "MA", "MB")
    read = planned(path=root, subscribe="MA,MB", startingOffsets="earliest")
    made = writer(path=root, checkpointLocation=checkpoint(tmp_path / "cp", read))
    assert made.sink.columns.own_topics == {"MA", "MB"}
    options, columns = SinkOptions.parse({"path": root}, "streaming"), made.sink.columns
    for topics, is_refused in ((["New", "MB"], True), (["New", "New"], False)):
        frames = iter([pa.record_batch({"body": ["x", "y"], "topic": topics})])
        if is_refused:
            with pytest.raises(WritesOwnSourceError, match="topic MB"):
                stage_rows(options, columns, BATCH, 0, 0, frames)
            assert list(list_segments(LocalFileSystem(), root)) == []
        else:
            assert stage_rows(options, columns, BATCH, 0, 0, frames).topics == {"New": 8}


def test_rows_for_a_groups_retry_topic_are_no_circle(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "broker-a"), read_only=False, create=True) as store:
        store.put_batch(
            pa.record_batch({"body": ["x"], "topic": ["MA"], "retry_group": ["g"], "reconsume_times": [17]})
        )
    root = str(tmp_path / "broker-a")
    read = planned(path=root, topic="%DLQ%g", startingOffsets="earliest")
    assert (
        writer(path=root, checkpointLocation=checkpoint(tmp_path / "cp", read)).sink.columns.own_topics == frozenset()
    )


def test_a_task_sends_no_row_to_such_a_topic() -> None:
    options = LiveSinkOptions.parse({"nameServer": "unused:1", "guarantee": "atLeastOnce"}, "streaming")
    frame = pa.record_batch({"body": ["x"], "topic": ["MA"]})
    with TakingBroker() as broker:
        with pytest.raises(WritesOwnSourceError):
            send_over(
                RoutesTo(broker),
                options,
                InputColumns(("body", "topic"), own_topics=frozenset({"MA"})),
                0,
                bytes(8),
                iter([frame]),
                BATCH,
            )
        assert broker.stored == {}


@pytest.mark.slow
def test_it_is_seen_between_path_and_name_server_both_ways(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with our_name_server(tmp_path) as names, running(root, free_ports(), names.address):
        with Producer(ClientSettings((names.address,)), "G") as producer:
            for number in range(8):
                producer.send(Message("MA", b"%d" % number))
        live = {"nameServer": names.address}
        for number, reads in enumerate(({"path": str(root)}, live)):
            read = planned(**reads, topic="MA", startingOffsets="earliest")
            taken = checkpoint(tmp_path / f"cp{number}", read)
            for writes in ({"path": str(root)}, live):
                with pytest.raises(WritesOwnSourceError):
                    writer(**writes, topic="MA", checkpointLocation=taken)
                assert writer(**writes, topic="MD", checkpointLocation=taken).sink.columns.own_topics == frozenset()
                assert writer(**writes, checkpointLocation=taken).sink.columns.own_topics == {"MA"}
