"""Stores that only another program writes: whichever way in is taken, it is refused by name before a byte is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import open_store
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.ha.follower import promote, truncate_store
from storage.store import WritesAs
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.fixture_stores import Fixture, unpack_group, unpack_left
from tests.support.shares import one_in
from tests.support.store_copies import make_store, picture
from tests.support.ways_in import READING, WRITING

_BATCHES = "batch consume queues (queue.type=BatchCQ), which only Apache's brokers write"


def a_batch_queue(place: Path, copy: Callable[[str], Fixture]) -> tuple[Path, Path, str]:
    fixture = copy("batches")
    shutil.rmtree(fixture.root / "config")
    return fixture.root, fixture.conf, _BATCHES


def a_killed_broker_of_batch_queues(place: Path, copy: Callable[[str], Fixture]) -> tuple[Path, Path, str]:
    fixture = copy("batches-killed")
    return fixture.root, fixture.conf, _BATCHES


def a_batch_topic_without_a_message(place: Path, copy: Callable[[str], Fixture]) -> tuple[Path, Path, str]:
    place.mkdir()
    conf = make_store(place / "store")
    batched = TopicConfig("Batches", attributes={"queue.type": "BatchCQ"})
    path = place / "store" / "config" / "topics.json"
    path.write_text(TopicTable.load(path.read_text("utf-8")).with_topic(batched, now_ms=1).to_text(), "utf-8")
    return place / "store", conf, _BATCHES


def a_group_log(place: Path, copy: Callable[[str], Fixture]) -> tuple[Path, Path, str]:
    fixture = unpack_group("dledger", place)["leader"]
    return fixture.root, fixture.conf, "its log is DLedger's"


def queues_in_rocksdb(place: Path, copy: Callable[[str], Fixture]) -> tuple[Path, Path, str]:
    root = unpack_left("rocksdb", "5.3.3", place)
    return root, root.parent / "broker.conf", "its consume queues lie in RocksDB"


_KINDS = [
    a_batch_queue,
    a_killed_broker_of_batch_queues,
    a_batch_topic_without_a_message,
    a_group_log,
    queues_in_rocksdb,
]


@pytest.mark.filterwarnings("ignore::storage.settings.load.ConfigurationWarning")
@pytest.mark.parametrize("arrange", one_in(2, _KINDS))
def test_every_way_to_write_is_refused_by_name_and_changes_nothing(
    arrange: Callable[[Path, Callable[[str], Fixture]], tuple[Path, Path, str]],
    tmp_path: Path,
    fixture_store: Callable[[str], Fixture],
) -> None:
    root, conf, rule = arrange(tmp_path / "arranged", fixture_store)
    before = picture(root)
    ways = {name: way for name, way in WRITING.items() if name != "job replay_dead_letters"}  # there are none
    for name, way in ways.items():
        refusal = way(str(root), str(conf))
        assert refusal is not None, name
        assert rule in " ".join(refusal.split()), f"{name}: {refusal}"
        assert picture(root) == before, name
    for name, way in READING.items():
        way(str(root), str(conf))
        assert picture(root) == before, name
    assert READING["open_store"](str(root), str(conf)) is None


def test_a_topic_with_batch_queues_is_refused_before_the_lock_is_taken_or_made(tmp_path: Path) -> None:
    """A copy has no lock file; a process that holds the lock is not waited for."""
    root, conf, _ = a_batch_topic_without_a_message(tmp_path / "arranged", lambda name: pytest.fail(name))
    (root / "lock").unlink(missing_ok=True)
    before = picture(root)
    with pytest.raises(StoreRefusedError, match="BatchCQ"):
        open_store(root, config=str(conf), read_only=False)
    assert picture(root) == before
    assert not (root / "lock").exists()
    with LocalFileSystem().locked(str(root / "lock")), pytest.raises(StoreRefusedError, match="BatchCQ"):
        open_store(root, config=str(conf), read_only=False)


def test_the_directories_of_batch_queues_alone_refuse_a_writer(fixture_store: Callable[[str], Fixture]) -> None:
    """Also where the table of topics does not say so, and before a record does."""
    fixture = fixture_store("batches")
    shutil.rmtree(fixture.root / "config")
    before = picture(fixture.root)
    with pytest.raises(StoreRefusedError, match=r"batchconsumequeue/\w+: it has batch consume queues"):
        open_store(str(fixture.root), config=str(fixture.conf), read_only=False)
    assert picture(fixture.root) == before


@pytest.mark.parametrize("name", ["batches", "batches-killed"])
def test_no_role_of_a_writer_opens_cuts_or_promotes_a_store_with_batch_queues(
    name: str, fixture_store: Callable[[str], Fixture]
) -> None:
    """Behind a cut its batch queues would point to places that other records get."""
    fixture = fixture_store(name)
    root, conf = str(fixture.root), str(fixture.conf)
    before = picture(fixture.root)
    roles: list[WritesAs] = ["follower", "controlled", "candidate"]
    for role in roles:
        with pytest.raises(StoreRefusedError, match="BatchCQ"):
            open_store(root, config=conf, read_only=False, create=True, truncate_damage=True, writes_as=role)
    with open_store(root, config=conf) as store:
        places = [store.log.minimum, store.log_end]
    for end in places:
        with pytest.raises(StoreRefusedError, match="BatchCQ"):
            truncate_store(root, end, config=conf)
        assert picture(fixture.root) == before
    (fixture.root / "spark_mq").mkdir()
    (fixture.root / "spark_mq" / "follower.json").write_text(json.dumps({"master": "a:1"}))
    before = picture(fixture.root)
    with pytest.raises(StoreRefusedError, match="BatchCQ"):
        promote(root, config=conf)
    assert picture(fixture.root) == before
