"""Stores whose consume queues lie in RocksDB, written by real brokers: what we read is what the broker served to its own client.

Each release left three of them: closed cleanly; killed before anything was in RocksDB; started again after a clean close and killed, so
that RocksDB lacks the last messages (of 5.5.0 also with a topic deleted and made again). Of a killed store the list is what that
broker served after it had recovered it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import dump_queue
from spark_mq.source.cluster import Cluster
from storage import open_store
from storage.errors import CorruptRecordError, StateFileError, StoreRefusedError
from storage.files.file_system import ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.files.rocksdb import RocksDB, RocksDBUnreadable
from storage.format.consume_queue import ENTRY, ENTRY_SIZE
from storage.format.window_decoder import Wanted
from storage.queues.derived import DerivedQueue, DerivedQueueStore
from storage.queues.scan import scan_queue
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.offline_changes import create_topic
from storage.tables.topics import TopicConfig, TopicTable
from tests.storage.test_version_stores import expected, lines, read_all
from tests.support.fixture_stores import Fixture, unpack_left
from tests.support.store_builder import StoreBuilder

NAMES = [f"{release}{end}" for release in ("5.3.3", "5.5.0") for end in ("", "-killed", "-behind")]
Rows = dict[str, dict[tuple[int, int], tuple[object, ...]]]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`unpacked(name)`: ROOT of that store, unpacked once. A test must not change it."""
    roots: dict[str, Path] = {}

    def root_of(name: str) -> Path:
        if name not in roots:
            roots[name] = unpack_left("rocksdb", name, tmp_path_factory.mktemp("rocksdb-"))
        return roots[name]

    return root_of


def served(root: Path) -> Rows:
    return expected(lines(root.parent / "served.jsonl"))


def found(root: Path) -> Rows:
    with open_store(root) as store:
        return {topic: read_all(store, topic) for topic in served(root)}


def files_of(root: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*"))


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_what_the_broker_served(name: str, unpacked: Callable[[str], Path]) -> None:
    root = unpacked(name)
    before = files_of(root)
    assert found(root) == served(root)
    assert files_of(root) == before


@pytest.mark.parametrize("name", NAMES)
def test_ends_of_queues_are_those_that_the_broker_said(name: str, unpacked: Callable[[str], Path]) -> None:
    root = unpacked(name)
    with open_store(root) as store:
        for line in lines(root.parent / "served.jsonl"):
            if line["type"] == "queue":
                bounds = store.bounds(line["topic"], line["queueId"]) or (0, 0)
                assert bounds == (line["minOffset"], line["maxOffset"])


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_queues_come_from_the_log_and_a_warning_names_the_cure(
    name: str, unpacked: Callable[[str], Path], without_package: None
) -> None:
    root = unpacked(name)
    with pytest.warns(RuntimeWarning, match=r"lie in RocksDB.*rocksdict is not installed: pip install") as told:
        rows = found(root)
    assert len(told) == 1
    wanted = served(root)
    assert rows == wanted


def test_only_the_messages_that_rocksdb_lacks_are_taken_from_the_log(unpacked: Callable[[str], Path]) -> None:
    kept = {}
    for name in ("5.3.3", "5.3.3-behind", "5.3.3-killed"):
        with open_store(unpacked(name)) as store:
            assert isinstance(store.queues, DerivedQueueStore)
            kept[name] = store.queues._kept
    assert kept["5.3.3"] == 0
    assert 0 < kept["5.3.3-behind"] < kept["5.3.3-killed"]


@pytest.mark.parametrize("damage", ["no CURRENT", "a short data file", "a data file lost", "a broken manifest"])
def test_where_rocksdb_is_damaged_queues_come_from_the_log(damage: str, tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    directory = root / "consumequeue"
    data = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    if damage == "no CURRENT":
        (directory / "CURRENT").unlink()
    elif damage == "a short data file":
        os.truncate(data, data.stat().st_size // 2)
    elif damage == "a data file lost":
        data.unlink()
    else:
        next(directory.glob("MANIFEST-*")).write_bytes(b"no manifest")
    with pytest.warns(RuntimeWarning, match="lie in RocksDB, which was not read"):
        assert found(root) == served(root)


def test_a_data_block_with_a_flipped_byte_costs_no_message(tmp_path: Path) -> None:
    """RocksDB finds it when the block is read, which is after the store was opened."""
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    data = max((root / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[100] ^= 0xFF
    data.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="RocksDB, which was not read: .*[Cc]orrupt"):
        assert found(root) == served(root)


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_a_healthy_store_healthy(name: str, unpacked: Callable[[str], Path]) -> None:
    report = verify_store(str(unpacked(name)))
    assert [finding for finding in report.findings if "queue" in finding.where] == []
    assert report.queue_entries > 300


def test_nothing_is_left_in_the_temporary_directory(
    unpacked: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_store(unpacked("5.3.3")):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("conf", ["storeType=defaultRocksDB\n", "# nothing\n", None])
def test_writing_is_refused_by_name(conf: str | None, tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    if conf is None:
        (root.parent / "broker.conf").unlink()
    else:
        (root.parent / "broker.conf").write_text(conf)
    before = files_of(root)
    with pytest.raises(
        StoreRefusedError, match=r"queues lie in RocksDB, which only its broker writes(; .*)?\nsend through"
    ):
        open_store(root, read_only=False)
    with open_store(root) as store, pytest.raises(StoreRefusedError, match="RocksDB"):
        create_topic(str(root), store.config, TopicConfig("New"), now_ms=1, file_system=LocalFileSystem())
    assert files_of(root) == before


@pytest.mark.parametrize("name", ["5.3.3", "5.5.0"])
def test_topics_and_offsets_of_groups_are_read_from_rocksdb(name: str, unpacked: Callable[[str], Path]) -> None:
    with open_store(unpacked(name)) as store:
        topics = store.state(TOPICS_FILE, TopicTable.load)
        assert topics is not None
        assert topics.topics["TopicA"].read_queue_count == 3
        assert topics.version.counter > 0
        offsets = store.state(OFFSETS_FILE, ConsumerOffsets.load)
        assert offsets is not None
        half = "RMQ_SYS_TRANS_HALF_TOPIC"
        assert 0 < (offsets.get(half, "CID_RMQ_SYS_TRANS", 0) or 0) <= store.max_offset(half, 0)


def test_offsets_of_groups_are_never_taken_for_none(unpacked: Callable[[str], Path], without_package: None) -> None:
    with pytest.warns(RuntimeWarning):
        store = open_store(unpacked("5.3.3"))
    with store:
        assert store.state(TOPICS_FILE, TopicTable.load) is None
        with pytest.raises(StateFileError, match=r"consumerOffsets: this table lies in RocksDB: .*pip install"):
            store.state(OFFSETS_FILE, ConsumerOffsets.load)


_FILE_SIZE = 20 * ENTRY_SIZE
DOUBLE = "rocksdbCQDoubleWriteEnable=true\n"


def with_stale_files(root: Path) -> None:
    """The queues' files of a broker that went over to RocksDB: they hold only the first message of one queue."""
    line = next(
        line for line in lines(root.parent / "served.jsonl") if line["type"] == "message" and not line["queueOffset"]
    )
    directory = root / "consumequeue" / line["topic"] / str(line["queueId"])
    directory.mkdir(parents=True)
    place = line["commitLogOffset"]
    size = min((root / "commitlog").iterdir()).read_bytes()[place : place + 4]
    entry = np.array((place, int.from_bytes(size, "big"), 0), ENTRY).tobytes()
    (directory / f"{0:020d}").write_bytes(entry.ljust(_FILE_SIZE, b"\0"))


@pytest.mark.parametrize(
    ("conf", "is_served"),
    [
        (f"{DOUBLE}combineCQLoadingCQTypes=defaultRocksDB\n", True),
        (f"{DOUBLE}combineCQLoadingCQTypes= DefaultRocksDB ;\ncombineCQPreferCQType=defaultRocksDB\n", True),
        (f"{DOUBLE}combineCQPreferCQType=DEFAULTROCKSDB\n", True),
        (DOUBLE, False),
        ("combineCQLoadingCQTypes=defaultRocksDB\n", False),
        ("# nothing\n", False),
    ],
)
def test_a_broker_that_writes_both_kinds_of_queues_is_read_from_the_kind_that_it_serves(
    conf: str, is_served: bool, tmp_path: Path
) -> None:
    root = unpack_left("rocksdb", "5.5.0", tmp_path)
    with_stale_files(root)
    (root.parent / "broker.conf").write_text(conf)
    assert (found(root) == served(root)) == is_served


def test_a_later_fall_back_to_the_log_is_said_once(tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.3.3-behind", tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with open_store(root) as store:
            assert said == []
            (root / "consumequeue" / "CURRENT").unlink()
            for _ in range(3):
                store.queues.follow(0)  # the log was cut: RocksDB is opened again
                store.queues.follow(store.log_end)
            assert {topic: read_all(store, topic) for topic in served(root)} == served(root)
    (text,) = (str(one.message) for one in said)
    assert text.startswith(f"store {root}: the consume queues lie in RocksDB, which was not read: ")


def test_a_text_of_rocksdb_names_the_file_itself_and_not_a_link_to_it(tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    max((root / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size).unlink()
    with pytest.warns(RuntimeWarning, match="was not read") as said, open_store(root):
        pass
    assert "spark_mq-rocksdb-" not in str(said[0].message)


def test_queues_that_were_opened_anew_are_closed_with_the_store(unpacked: Callable[[str], Path]) -> None:
    with open_store(unpacked("5.3.3")) as store:
        first = store.queues
        first.close()
        store.queues = store._queues_again()
        second = store.queues
        assert isinstance(second, DerivedQueueStore)
        assert second._database is not None
    assert second._database is None


class ExpiringFiles(LocalFileSystem):
    """The log's first file is deleted when a walk wants to open it."""

    def __init__(self, first: Path) -> None:
        super().__init__()
        self.first = first

    def open_file(self, path: str) -> ReadableFile:
        if path == str(self.first):
            self.first.unlink(missing_ok=True)
        return super().open_file(path)


def test_a_log_file_that_expires_while_the_log_is_walked_costs_only_its_own_messages(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    store.send_many("Topic", 120, prefix="b" * 300)
    files = store.log_files
    assert len(files) > 2
    with open_store(store.root) as opened:
        places = opened.positions([("Topic", 0, offset) for offset in range(120)])
    kept = [at for at, place in enumerate(places) if place is not None and place.commitlog_offset >= int(files[1].name)]
    shutil.rmtree(store.root / "consumequeue")
    (tmp_path / "broker.conf").write_text("storeType=defaultRocksDB\n")
    with pytest.warns(RuntimeWarning, match="was not read"):
        opened = open_store(store.root, file_system=ExpiringFiles(files[0]))
    with opened:
        assert opened.bounds("Topic", 0) == (kept[0], kept[-1] + 1)
        assert sorted(offset for _, offset in read_all(opened, "Topic")) == kept


def test_damage_in_the_log_that_queues_come_from_is_named_and_hides_no_later_file(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store")
    builder.send_many("Topic", 220, prefix="b" * 300)
    with open_store(builder.root) as store:
        places = [place.commitlog_offset for place in store.positions([("Topic", 0, at) for at in range(220)]) if place]
    _, second, third, *_ = builder.log_files
    bad, behind = places[60], int(third.name)
    assert int(second.name) < bad < behind
    spoil(second, bad)
    shutil.rmtree(builder.root / "consumequeue")
    (tmp_path / "broker.conf").write_text("storeType=defaultRocksDB\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = open_store(builder.root)
    with store:
        kept = [at for at, place in enumerate(places) if place < bad or place >= behind]
        queue = store.queues.get("Topic", 0)
        assert queue is not None
        found = scan_queue(queue, store.log, store.log_end, 0, store.max_offset("Topic", 0))
        assert [at for part in found for at in part.queue_offsets.tolist()] == kept != list(range(220))
    (named,) = (str(one.message) for one in said if "cannot be read" in str(one.message))
    assert named.startswith(f"store {builder.root}: bytes {bad} to {behind} of the log cannot be read")
    assert f"bad magic in {second}" in named


def spoil(file: Path, place: int) -> None:
    """Overwrite the magic of the record at a place of the log."""
    with file.open("r+b") as opened:
        opened.seek(place - int(file.name) + 4)
        opened.write(b"none")


def test_a_late_fall_back_to_a_damaged_log_is_an_error_and_no_loss(tmp_path: Path) -> None:
    """RocksDB has served what the damaged part of the log no longer gives."""
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    with open_store(root) as store:
        assert isinstance(store.queues, DerivedQueueStore)
        *_, (offsets, _) = store.log.walk(store.log.minimum)
        file = store.log.files[store.log.file_index(int(offsets[0]))]
        spoil(Path(file.path), int(offsets[0]))
        with pytest.warns(RuntimeWarning), pytest.raises(CorruptRecordError, match="magic"):
            store.queues.give_up(RocksDBUnreadable("a damaged block"))


def test_the_cost_of_a_look_does_not_grow_with_the_number_of_looks_before(unpacked: Callable[[str], Path]) -> None:
    with open_store(unpacked("5.3.3-killed")) as store:
        queue = store.queues.make("Topic", 0)
        assert isinstance(queue, DerivedQueue)
        entries = np.zeros(1000, ENTRY)
        entries["commitlog_offset"], entries["size_bytes"] = np.arange(1000), 1
        for row in range(1000):
            queue.enter(row if row < 700 else row + 50, entries[row : row + 1])
        assert len(queue._pieces) < 30
        assert queue.bytes_from(0, 700) == entries[:700].tobytes()
        assert (
            queue.bytes_from(699, 52)
            == entries[699:700].tobytes() + bytes(50 * ENTRY_SIZE) + entries[700:701].tobytes()
        )
        queue.enter(300, entries[900:])
        assert queue.bytes_from(299, 3) == entries[299:300].tobytes() + entries[900:902].tobytes()
        assert queue.end == 400


def test_a_batch_in_a_queue_of_rocksdb_is_refused_and_not_shown_as_one_message(
    fixture_store: Callable[[str], Fixture],
) -> None:
    """RocksDB has one entry for it, and gives the offsets of its other messages away again."""
    fixture = fixture_store("batches")
    fixture.conf.write_text("storeType=defaultRocksDB\n")
    batches = sorted(path.name for path in (fixture.root / "batchconsumequeue").iterdir())
    with pytest.warns(RuntimeWarning, match="was not read"):
        store = open_store(fixture.root)
    with store:
        for topic in batches:
            queue_id = store.queue_ids(topic)[0]
            queue, (first, end) = store.queues.get(topic, queue_id), store.bounds(topic, queue_id) or (0, 0)
            assert queue is not None
            rule = rf"queue {queue_id} of topic {topic} holds batches \(queue.type=BatchCQ\)"
            for wanted in (None, Wanted(bodies=True)):
                with pytest.raises(StoreRefusedError, match=rule):
                    list(scan_queue(queue, store.log, store.log_end, first, end, wanted=wanted))
            with pytest.raises(StoreRefusedError, match=rule):
                store.get(topic, queue_id, first)
            assert "holds batches" in next(dump_queue(store, topic, queue_id))["error"]


# Tables


def json_table(root: Path, name: str, counter: int, **content: object) -> None:
    version = {"counter": counter, "stateVersion": 0, "timestamp": 0}
    (root / "config" / name).write_text(json.dumps({"dataVersion": version, **content}))


@pytest.mark.parametrize(
    ("conf", "is_file"), [("# nothing\n", True), ("storeType=defaultRocksDB\n", False), (None, False)]
)
def test_tables_come_from_rocksdb_only_where_the_broker_keeps_them_there(
    conf: str | None, is_file: bool, tmp_path: Path
) -> None:
    """What a broker with storeType=defaultRocksDB has left stays there when another storeType is set."""
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    (root.parent / "broker.conf").unlink()
    if conf is not None:
        (root.parent / "broker.conf").write_text(conf)
    json_table(root, OFFSETS_FILE, 0, offsetTable={"Topic@Group": {"0": 7}})
    with open_store(root) as store:
        offsets = store.state(OFFSETS_FILE, ConsumerOffsets.load)
    assert offsets is not None
    assert (offsets.get("Topic", "Group", 0) == 7) == is_file


@pytest.mark.parametrize("conf", ["configManagerVersion=v2\n", None], ids=["by setting", "by directory"])
def test_tables_of_the_second_version_are_never_taken_from_old_files(conf: str | None, tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    store.send("Topic", "1")
    (store.root / "config" / "rdb").mkdir(parents=True)
    if conf is not None:
        (tmp_path / "broker.conf").write_text(conf)
    json_table(store.root, OFFSETS_FILE, 9, offsetTable={"Topic@Group": {"0": 7}})
    json_table(store.root, TOPICS_FILE, 9, topicConfigTable={})
    with open_store(store.root) as opened:
        assert opened.state(TOPICS_FILE, TopicTable.load) is None
        with pytest.raises(StateFileError, match=r"config/rdb: .*configManagerVersion=v2 are not read"):
            opened.state(OFFSETS_FILE, ConsumerOffsets.load)


def test_offsets_of_a_group_are_read_once_for_all_queues(
    unpacked: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    plain = RocksDB.__init__

    def counted(self: RocksDB, directory: str, families: tuple[str, ...]) -> None:
        opened.append(directory)
        plain(self, directory, families)

    cluster = Cluster.open([str(unpacked("5.3.3"))])
    try:
        monkeypatch.setattr(RocksDB, "__init__", counted)
        assert len(cluster.queues()) > 3
        for queue in cluster.queues():
            cluster.group_offset("CID_RMQ_SYS_TRANS", queue)
        assert len(opened) == 1
        cluster.refresh()
        cluster.group_offset("CID_RMQ_SYS_TRANS", cluster.queues()[0])
        assert len(opened) == 2
    finally:
        cluster.close()
