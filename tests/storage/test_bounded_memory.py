"""What reading holds in memory does not grow with the queue: a process that may have little more than it began with reads all."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.source.offsets import QueueId
from spark_mq.source.queue_split import QueueSplit
from spark_mq.source.rows import RowRequest
from storage import MessageStore, StoreConfig, open_store
from storage.files.file_system import LocalFileInMemory
from storage.files.local_file_system import LocalFileSystem
from storage.settings.nouns import CommitLogConfig
from tests.support.places import PROJECT

pytestmark = pytest.mark.slow

FILE_BYTES = 64 << 20
ROOM_BYTES = 64 << 20
"""Beside what a process has that has read a little: a slice of 12 MiB or the largest record, a few times over."""
SHAPES = {"long": (50, 1_000, 4 << 10), "large": (12, 4, 4 << 20)}
"""Of each topic batches, messages a batch, bytes a body: 200 MiB, all distinct. 4 MiB is Java's maxMessageSize."""


class WithoutMaps(LocalFileSystem):
    """Reads cost memory of the process's own, as they do on a tmpfs or a remote disk."""

    def open_file(self, path: str) -> LocalFileInMemory:
        return LocalFileInMemory(path)


def body_of(number: int, size_bytes: int) -> bytes:
    return number.to_bytes(8, "big") * (size_bytes // 8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bounded-memory") / "store"
    config = replace(StoreConfig(), commit_log=CommitLogConfig(mapped_file_size_commit_log=FILE_BYTES))
    with open_store(place, config=config, read_only=False, create=True) as store:
        for topic, (batches, rows, size_bytes) in SHAPES.items():
            for batch in range(batches):
                bodies = [body_of(batch * rows + row, size_bytes) for row in range(rows)]
                columns = {"topic": [topic] * rows, "queue_id": np.zeros(rows, np.int32), "body": bodies}
                store.put_batch(pa.record_batch(columns), queue_count=1)
    return place


@pytest.mark.parametrize("way", [pytest.param("task", marks=pytest.mark.slow), "get"])
@pytest.mark.parametrize("topic", [pytest.param("long", marks=pytest.mark.slow), "large"])
def test_a_queue_of_any_length_is_read_in_little_memory(root: Path, topic: str, way: str) -> None:
    command = [sys.executable, "-m", __name__, str(root), topic, way]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def read(root: str, topic: str, way: str) -> None:
    """As a task of the Spark source does, or a consumer: message after message is the one that was put."""
    batches, rows, size_bytes = SHAPES[topic]
    with open_store(root, file_system=WithoutMaps()) as store:
        assert store.max_offset(topic, 0) == batches * rows
        _allow_little()
        for number, body in enumerate({"task": of_task, "get": of_gets}[way](store, topic)):
            assert body == body_of(number, size_bytes)
    assert number == batches * rows - 1


def of_task(store: MessageStore, topic: str) -> Iterator[bytes]:
    split = QueueSplit(
        store.layout,
        store.log_end,
        QueueId(topic, "broker", 0),
        0,
        ((0, store.max_offset(topic, 0)),),
        RowRequest(("queue_offset", "body", "keys", "properties"), verify_crc=True),
    )
    for batch in split.read():
        for body in batch.column("body"):
            yield body.as_py()


def of_gets(store: MessageStore, topic: str) -> Iterator[bytes]:
    offset, end = 0, store.max_offset(topic, 0)
    while offset < end:
        found = store.get(topic, 0, offset, 1_000)
        yield from (message.body for message in found.messages)
        offset = found.next_begin_offset


def _allow_little() -> None:
    """Maps of files are none of it: they are the kernel's to drop."""
    found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    most = int(found[1]) * 1024 + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    read(*sys.argv[1:])
