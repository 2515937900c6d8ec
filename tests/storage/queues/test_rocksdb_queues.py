"""Stores whose consume queues lie in RocksDB, written by real brokers: what we read is what the broker served to its own client.

Each release left three of them: closed cleanly; killed before anything was in RocksDB; started again after a clean close and killed, so
that RocksDB lacks the last messages (of 5.5.0 also with a topic deleted and made again). Of a killed store the list is what that
broker served after it had recovered it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from storage import open_store
from storage.errors import StateFileError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.queues.derived import DerivedQueueStore
from storage.tables.consumer_groups import OFFSETS_FILE, ConsumerOffsets
from storage.tables.offline_changes import create_topic
from storage.tables.topics import TOPICS_FILE, TopicConfig, TopicTable
from tests.storage.test_version_stores import expected, lines, read_all
from tests.support.fixture_stores import unpack_left

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
    with pytest.raises(StoreRefusedError, match=r"queues lie in RocksDB, which only its broker writes\nsend through"):
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
