"""What a store of many queues costs: how often the disk is asked for something, a queue.

Counted in a process that may have few files open, so that a descriptor kept for each queue fails. `bench/many_queues.py` has the
seconds, and a hundred thousand queues.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.file_system import DirectoryEntry, LocalSmallReads, LocalWriter
from storage.files.local_file_system import REPORTS_ALL_ERRORS, LocalFileSystem
from storage.settings.nouns import CommitLogConfig, IndexConfig
from tests.support.places import PROJECT

pytestmark = pytest.mark.slow

QUEUES_A_TOPIC = 8
TOPICS = 250
QUEUES = QUEUES_A_TOPIC * TOPICS
OPEN_FILES = 40  # of an empty process about 20, with its libraries
FEW = 40  # what a step may cost whatever the number of queues
CONFIG = replace(
    StoreConfig.tiny(),
    commit_log=CommitLogConfig(mapped_file_size_commit_log=4 << 20),
    index=IndexConfig(max_hash_slot_num=1_000, max_index_num=10 * QUEUES),
)


class _CountedReads(LocalSmallReads):
    counts: Counter[str]

    def view(self, position: int, length: int) -> np.ndarray:
        self.counts["reads"] += 1
        return super().view(position, length)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        self.counts["seeks"] += 1
        return super().data_ranges(position)


class CountedDisk(LocalFileSystem):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self.counts["listings"] += 1
        return super().list_directory(path)

    def open_small_reads(self, path: str) -> LocalSmallReads:
        reads = _CountedReads(path)
        reads.counts = self.counts
        return reads

    def open_for_writing(self, path: str) -> LocalWriter:
        self.counts["writes"] += 1
        return super().open_for_writing(path)

    def sync(self, path: str) -> None:
        self.counts["syncs"] += 1
        super().sync(path)

    def sync_all(self, paths: Iterable[str]) -> None:
        self.counts["syncs together"] += 1
        super().sync_all(paths)

    def exists(self, path: str) -> bool:
        self.counts["looks"] += 1
        return super().exists(path)

    def identity(self, path: str) -> tuple[int, int, int] | None:
        self.counts["looks"] += 1
        return super().identity(path)

    def modified_ms(self, path: str) -> int | None:
        self.counts["looks"] += 1
        return super().modified_ms(path)


Steps = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """By step, how often the disk was asked for what."""
    directory = tmp_path_factory.mktemp("many-queues")
    command = [sys.executable, "-m", __name__, str(directory / "store")]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    counted: Steps = json.loads(process.stdout)
    return counted


LIMITS = {
    # A reader lists each queue's files once and reads its end once; a look at nothing new reads nothing.
    "open for reading": {"listings": QUEUES + TOPICS + FEW, "reads": QUEUES + FEW},
    "positions of all queues": {"reads": QUEUES + FEW},
    "positions again": {},
    "look at nothing new": {},
    # With a hint only the topics are looked at.
    "open with a hint": {"listings": TOPICS + FEW, "looks": 2 * TOPICS + FEW},
    "put one": {"writes": FEW},
    "release": {"looks": 2 * TOPICS + FEW, "listings": FEW},
    # A message for each queue: each is written once; those that were not listed yet are, and the last entry is read.
    "put one into each queue": {"writes": QUEUES + FEW, "reads": QUEUES + FEW, "listings": QUEUES + FEW},
    "put into each queue again": {"writes": QUEUES + FEW},
    "close": {"writes": FEW, "looks": FEW},
    "open after a clean stop": {"listings": QUEUES + TOPICS + FEW, "reads": QUEUES + FEW},
    # A killed writer's store: it is also seen that nothing stands behind a queue's end.
    "open after a kill": {"listings": QUEUES + TOPICS + FEW, "reads": 2 * QUEUES + FEW, "seeks": QUEUES + FEW},
}


@pytest.mark.parametrize("step", list(LIMITS))
def test_a_step_asks_the_disk_for_no_more_a_queue_than_it_needs(steps: Steps, step: str) -> None:
    allowed = {"syncs": FEW, "syncs together": FEW} | LIMITS[step]
    if not REPORTS_ALL_ERRORS:
        allowed["syncs"] = 3 * QUEUES
    over = {kind: count for kind, count in steps[step].items() if count > allowed.get(kind, FEW)}
    assert not over, f"{QUEUES} queues in {TOPICS} topics"


def main(root: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    disk, counted = CountedDisk(), {}

    @contextmanager
    def step(name: str):  # type: ignore[no-untyped-def]
        disk.counts.clear()
        yield
        counted[name] = dict(disk.counts)

    def opened(*, read_only: bool = False) -> MessageStore:
        return open_store(root, config=CONFIG, read_only=read_only, create=not read_only, file_system=disk, clock=clock)

    clock: Callable[[], int] = lambda: 1_700_000_000_000  # noqa: E731
    store = opened()
    store.put_batch(_one_a_queue(), queue_count=QUEUES_A_TOPIC)
    store.release()
    with step("open for reading"):
        store = opened(read_only=True)
    store.refresh()
    for name in ("positions of all queues", "positions again"):
        with step(name):
            ends = [
                (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
                for topic in store.topics()
                for queue_id in store.queue_ids(topic)
            ]
        assert ends == [(0, 1)] * QUEUES
    with step("look at nothing new"):
        assert not store.refresh()
        assert store.undispatched_bytes == 0
    store.close()
    with step("open with a hint"):
        store = opened()
    assert store.recovery is None
    with step("put one"):
        assert store.put(_topic(0), b"one more", queue_id=0).queue_offset == 1
    with step("release"):
        store.release()
    store = opened()
    with step("put one into each queue"):
        store.put_batch(_one_a_queue())
    with step("put into each queue again"):
        store.put_batch(_one_a_queue())
    with step("close"):
        store.close()
    with step("open after a clean stop"):
        store = opened()
    assert store.recovery is not None
    assert store.recovery.was_clean
    store.put_batch(_one_a_queue())
    store._let_go()  # a killed process leaves what this leaves, and no hint
    os.unlink(f"{root}/spark_mq/hint.json")
    store.close()
    with step("open after a kill"):
        store = opened()
    assert store.recovery is not None
    assert not store.recovery.was_clean
    assert {store.max_offset(*name) for name in store.queues.names()} == {4, 5}
    store.close()
    json.dump(counted, sys.stdout)


def _topic(number: int) -> str:
    return f"Topic{number:04d}"


def _one_a_queue() -> pa.RecordBatch:
    topics = np.repeat([_topic(number) for number in range(TOPICS)], QUEUES_A_TOPIC)
    queue_ids = np.tile(np.arange(QUEUES_A_TOPIC, dtype=np.int32), TOPICS)
    return pa.record_batch({"topic": topics, "queue_id": queue_ids, "body": [b"body"] * QUEUES})


if __name__ == "__main__":
    main(sys.argv[1])
