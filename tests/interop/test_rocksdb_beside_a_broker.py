"""Beside a running Apache broker that keeps consume queues or tables in RocksDB: its own client is the judge, and it is not disturbed.

The broker keeps new entries in memory, so what RocksDB's files lack comes from the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import MessageStore, open_store
from storage.errors import StateFileError
from storage.queues import derived
from storage.queues.derived import DerivedQueueStore
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from tests.spark.in_process import next_batch, open_stream, read_batch
from tests.storage.test_version_stores import expected, lines, read_all
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPICS = ("TopicA", "TopicB")
Place = tuple[str, int, int, str]


@pytest.fixture(scope="module")
def name_server(oracle: Oracle) -> Iterator[str]:
    with oracle.namesrv() as address:
        yield address


@pytest.mark.long
@pytest.mark.parametrize("most_kept", [1 << 20, 50], ids=["", "RocksDB opened again"])
def test_what_a_running_broker_serves_is_read_beside_it(
    most_kept: int, oracle: Oracle, name_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "_MOST_KEPT", most_kept)
    root = tmp_path / "store"
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker:
        oracle.send(tmp_path / "first.jsonl", broker, "TopicA", queues=3, count=90)
        oracle.send(tmp_path / "second.jsonl", broker, "TopicB", queues=1, count=20, batch=5)
    stream = RestartedStream(root)
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker, open_store(root) as store:
        stream.read(2)
        oracle.send(tmp_path / "third.jsonl", broker, "TopicA", queues=3, count=60, seed=2)
        assert_same(store, oracle, broker, tmp_path / "served.jsonl")
        before = {path.name for path in (root / "consumequeue").iterdir()}
        assert {"CURRENT", "LOCK"} <= before
        assert "rocksdict-config.json" not in before
        stream.read(2)
        oracle.send(tmp_path / "fourth.jsonl", broker, "TopicB", queues=1, count=70, seed=3)
        assert_same(store, oracle, broker, tmp_path / "served-again.jsonl")
        broker.kill()
        rows = {topic: read_all(store, topic) for topic in TOPICS}
    with open_store(root) as store:
        assert {topic: read_all(store, topic) for topic in TOPICS} == rows
    stream.read(1)
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker, open_store(root) as store:
        assert_same(store, oracle, broker, tmp_path / "served-at-last.jsonl")
        assert sum(map(len, rows.values())) == 240
        stream.read(50)
        assert sorted(stream.places) == places(expected(lines(tmp_path / "served-at-last.jsonl")))


@pytest.mark.long
def test_a_broker_that_stopped_writing_queue_files_is_read_as_it_serves(
    oracle: Oracle, name_server: str, tmp_path: Path
) -> None:
    """5.3 serves the files, and 5.5.0 does not start so: it wants the files for light queues.

    The broker never enters the record at log offset 0 into a new RocksDB; ours shows it until RocksDB's files have the queue.
    """
    root, oracle, kind = tmp_path / "store", oracle.release("5.4.0"), "defaultRocksDB"
    with oracle.broker(root, name_server) as broker:
        oracle.send(tmp_path / "zeroth.jsonl", broker, "TopicAtZero", queues=1, count=1)
        oracle.send(tmp_path / "first.jsonl", broker, "TopicA", queues=3, count=60)
        oracle.send(tmp_path / "second.jsonl", broker, "TopicB", queues=1, count=10)
    settings = dict.fromkeys(("combineCQLoadingCQTypes", "combineCQPreferCQType", "combineAssignOffsetCQType"), kind)
    with oracle.broker(root, name_server, rocksdbCQDoubleWriteEnable="true", **settings) as broker:
        conf = str(broker.conf)
        oracle.send(tmp_path / "third.jsonl", broker, "TopicA", queues=3, count=60, seed=2)
        with open_store(root, config=conf) as store:
            assert isinstance(store.queues, DerivedQueueStore)
            rows = assert_same(store, oracle, broker, tmp_path / "served.jsonl", conf=conf)
        assert sum(map(len, rows.values())) == 130
        configuration = broker.conf.read_bytes()
    (tmp_path / "broker.conf").write_bytes(configuration)
    with open_store(root) as store:
        assert {topic: read_all(store, topic) for topic in TOPICS} == rows


def test_tables_of_the_second_version_are_named_and_messages_are_read(
    oracle: Oracle, name_server: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with oracle.broker(root, name_server, configManagerVersion="v2") as broker:
        oracle.send(tmp_path / "first.jsonl", broker, "TopicA", queues=3, count=60)
        oracle.send(tmp_path / "second.jsonl", broker, "TopicB", queues=1, count=10)
        with open_store(root) as store:
            assert_same(store, oracle, broker, tmp_path / "served.jsonl")
    assert (root / "config" / "rdb" / "CURRENT").exists()
    with open_store(root) as store, pytest.raises(StateFileError, match="configManagerVersion=v2 are not read"):
        store.state(OFFSETS_FILE, ConsumerOffsets.load)


class RestartedStream:
    """A stream over both topics; each batch has a new reader, as after a restart."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._options = {"subscribe": ",".join(TOPICS), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}
        self._position = open_stream(root, **self._options).initialOffset()
        self.places: list[Place] = []

    def read(self, most_batches: int) -> None:
        for _ in range(most_batches):
            reader = open_stream(self._root, **self._options)
            self._position, rows = next_batch(reader, json.loads(json.dumps(self._position)))
            reader.stop()
            self.places += [(row["topic"], row["queue_id"], row["queue_offset"], row["msg_id"]) for row in rows]
            if not rows:
                return


def places(topics: dict[str, dict[tuple[int, int], tuple[object, ...]]]) -> list[Place]:
    return sorted((topic, *place, str(row[0])) for topic, rows in topics.items() for place, row in rows.items())


def assert_same(
    store: MessageStore, oracle: Oracle, broker: RunningBroker, out: Path, **options: str
) -> dict[str, dict[tuple[int, int], tuple[object, ...]]]:
    """Its client is served what `dump` and a batch read show."""
    oracle.consume_all(out, broker, TOPICS)
    served = expected(lines(out))
    store.refresh()
    assert {topic: read_all(store, topic) for topic in TOPICS} == served
    rows = read_batch(Path(store.root), subscribe=",".join(TOPICS), startingOffsets="earliest", **options)
    assert sorted((row["topic"], row["queue_id"], row["queue_offset"], row["msg_id"]) for row in rows) == places(served)
    return served
