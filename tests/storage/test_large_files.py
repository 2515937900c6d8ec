"""A file of a gigabyte where a small one belongs is a declared error and is not read. So is a table that asks for 2^31 queues."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from storage import open_store
from storage.errors import RowIllegalError, StateFileError
from storage.files.file_system import SMALL_FILE_LIMIT_BYTES
from storage.files.local_file_system import LocalFileSystem

GIGABYTE = 1 << 30
TO_READ = ["config/topics.json", "checkpoint", "broker.conf"]
TO_WRITE = ["spark_mq/hint.json", "spark_mq/torn_rows.json", "spark_mq/failed_sync.json"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with open_store(root, read_only=False, create=True) as store:
        store.put("Topic", b"one", queue_id=0)
    return root


def make_huge(path: Path) -> None:
    """Sparse."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


@pytest.mark.parametrize("name", [*TO_READ, *TO_WRITE, "spark_mq/intents/0123456789abcdef-1.json"])
def test_a_file_of_a_gigabyte_is_named_and_not_read(root: Path, name: str) -> None:
    make_huge(root / name)
    if name == "config/topics.json":
        (root / f"{name}.bak").unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        pytest.raises(StateFileError, match=f"{name}: it has {GIGABYTE} bytes.*it was not read"),
        open_store(root, read_only=False) as store,
    ):
        store.put("Topic", b"two", queue_id=0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < SMALL_FILE_LIMIT_BYTES >> 10


def test_a_table_of_a_gigabyte_gives_way_to_its_backup(root: Path) -> None:
    table = root / "config" / "topics.json"
    good = table.read_bytes()
    table.with_name("topics.json.bak").write_bytes(good)
    make_huge(table)
    with open_store(root) as store:
        assert store.max_offset("Topic", 0) == 1


def test_a_file_at_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.files.file_system.SMALL_FILE_LIMIT_BYTES", 8)
    (tmp_path / "file").write_bytes(b"12345678")
    assert LocalFileSystem().read_file(str(tmp_path / "file")) == b"12345678"
    (tmp_path / "file").write_bytes(b"123456789")
    with pytest.raises(StateFileError, match="it has 9 bytes"):
        LocalFileSystem().read_file(str(tmp_path / "file"))


_PUT = """
import resource, sys
from storage import open_store
from storage.errors import RowIllegalError
with open_store(sys.argv[1], read_only=False) as store:
    own_kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
    limit = (own_kib << 10) + (256 << 20)  # libraries have reserved some of it
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    for rows in ({"body": [b"x"]}, {"body": [b"x"], "queue_id": [2**31 - 2]}, {"body": [b"x"], "sharding_key": ["k"]}):
        import pyarrow as pa
        try:
            store.put_batch(pa.table({"topic": ["Topic"], **rows}))
        except RowIllegalError as error:
            print(error)
"""


def test_a_table_that_asks_for_2_to_the_31_queues_is_a_declared_error_in_little_memory(root: Path) -> None:
    table = root / "config" / "topics.json"
    document = json.loads(table.read_text())
    document["topicConfigTable"]["Topic"] |= {"readQueueNums": 2**31 - 1, "writeQueueNums": 2**31 - 1}
    table.write_text(json.dumps(document))
    done = subprocess.run([sys.executable, "-c", _PUT, str(root)], capture_output=True, text=True, check=False)
    assert done.stdout.count("has 2147483647 write queues, and at most 65536 are written") == 3, (
        done.stdout + done.stderr
    )
    with open_store(root) as store:
        assert store.queue_ids("Topic") == [0]
    with open_store(root, read_only=False) as store, pytest.raises(RowIllegalError, match="at most 65536"):
        store.put("Topic", b"x")
