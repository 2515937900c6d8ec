"""What an opening reads: broker.conf, the place of the log and tables once each. A sink's commit is one opening.

topics.json is read twice for writing: before the lock is taken, for a topic that no writer here may meet, and under it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import storage.files.local_file_system
import storage.store
from storage import ForeignLogError, open_store
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import StoreConfig
from storage.tables.log_place import LogPlace
from storage.tables.surroundings import find_log
from tests.sink.test_sink_tasks import commit, options_by_row, stage

CONF = b"brokerName=broker-a\nmappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\nmaxIndexNum=20\nmaxHashSlotNum=10\n"
TABLES = ("topics.json", "topicQueueMapping.json", "consumerOffset.json", "delayOffset.json")


class Counting(LocalFileSystem):
    """Counts the files that are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def read_file(self, path: str) -> bytes | None:
        name = path.rsplit("/", 1)[-1]
        if name != "CURRENT":  # asked in each directory that may be a RocksDB
            self.reads[name] += 1
        return super().read_file(path)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store with a message and a broker.conf, closed."""
    (tmp_path / "broker.conf").write_bytes(CONF)
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("topic", b"one", keys="key", queue_id=0)
    return str(tmp_path / "store")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[LogPlace]:
    """What each look for the place of the log has found."""
    found: list[LogPlace] = []

    def look(root: str, config: StoreConfig, files: FileSystem, **how: bool) -> LogPlace:
        found.append(find_log(root, config, files, **how))
        return found[-1]

    monkeypatch.setattr(storage.store, "find_log", look)
    return found


@pytest.mark.parametrize("end", ["closed", "let go of", "killed"])
def test_an_opening_for_writing_reads_each_file_once_and_looks_once_for_the_log(
    root: str, places: list[LogPlace], end: str
) -> None:
    if end != "closed":
        with closing(open_store(root, read_only=False)) as before:
            before.put("topic", b"two", keys="key", queue_id=0)
            if end == "let go of":
                before.release()
            else:
                before._writer = None
                before._resources.close()
    places.clear()
    files = Counting()
    with open_store(root, read_only=False, file_system=files) as store:
        reads = files.reads.copy()
        assert [message.body for message in store.get("topic", 0, 0).messages][:1] == [b"one"]
    assert len(places) == 1
    assert reads["broker.conf"] == reads["mountinfo"] == reads["hint.json"] == 1
    assert reads["topics.json"] == 2
    assert {name: count for name in (*TABLES[1:], "abort") if (count := reads[name]) > 1} == {}
    assert reads["checkpoint"] <= 2, "by recovery, and by the writer"


def test_an_opening_for_reading_reads_each_file_once_and_looks_once_for_the_log(
    root: str, places: list[LogPlace]
) -> None:
    files = Counting()
    open_store(root, file_system=files).close()
    assert len(places) == 1
    assert files.reads["broker.conf"] == files.reads["checkpoint"] == files.reads["abort"] == 1
    assert max(files.reads.values()) == 1


def test_what_became_of_the_log_while_an_opening_waited_for_the_lock_counts(
    root: str, places: list[LogPlace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look has seen the store's own log; then it became another store's."""
    open_store(tmp_path / "other", read_only=False, create=True).close()
    holder = open_store(root, read_only=False)

    def log_is_replaced(_: float) -> None:
        holder.close()
        shutil.rmtree(f"{root}/commitlog")
        Path(root, "commitlog").symlink_to(tmp_path / "other" / "commitlog")

    monkeypatch.setattr(storage.files.local_file_system.time, "sleep", log_is_replaced)
    places.clear()
    with pytest.raises(ForeignLogError, match=r"is a link to .*other/commitlog of another store"):
        open_store(root, read_only=False, lock_timeout_ms=10_000)
    assert len(places) == 1, "the second look has refused"


def test_a_sinks_commit_reads_each_file_as_its_opening_does(
    root: str, places: list[LogPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_by_row(root)
    commit(options, stage(options, [{"topic": "topic", "body": b"two"}]))
    staged = stage(options, [{"topic": "topic", "body": b"three"}], batch_id=1)
    reads: Counter[str] = Counter()
    read_file = LocalFileSystem.read_file

    def read(files: LocalFileSystem, path: str) -> bytes | None:
        reads[path.rsplit("/", 1)[-1]] += 1
        return read_file(files, path)

    monkeypatch.setattr(LocalFileSystem, "read_file", read)
    places.clear()
    commit(options, staged, batch_id=1)
    assert len(places) == 1
    assert reads["broker.conf"] == reads["mountinfo"] == reads["hint.json"] == 1
    assert reads["topics.json"] == 2
