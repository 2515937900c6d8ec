"""A slice of the power losses, and that they can fail: each fault planted here is noticed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest

from storage.index.store import IndexWriter
from storage.log.dispatch import IndexKeys
from storage.queues.writer import ConsumeQueueWriter
from tests.support.crash_file_system import CrashFileSystem
from tests.support.reproducible import reproducible
from tests.support.shares import one_in
from tests.torture.power_loss import FLUSHES, Lives, Past, any_config, play
from tests.torture.workload import StoreWorkload

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("flush", one_in(3, FLUSHES))
def test_a_round_finds_nothing(tmp_path: Path, flush: str, seed: int) -> None:
    outcome = play(Random(seed), tmp_path, flush=flush, steps=30, crashes=8)
    assert outcome.failures == []
    assert outcome.trials >= 8


@pytest.mark.slow
def test_the_disk_bites(tmp_path: Path) -> None:
    """Under ASYNC_FLUSH messages are lost that nobody promised to be on the disk."""
    outcome = play(Random(3), tmp_path, flush="ASYNC_FLUSH", steps=25, crashes=8)
    assert outcome.figures["lost, not promised"] > 0
    assert outcome.failures == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flush", FLUSHES)
def test_every_operation(tmp_path: Path, flush: str) -> None:
    random = Random(7)
    with reproducible(random):
        lives = Lives(tmp_path / "store", random, flush, any_config(random))
        files = lives.record(25)
        lives.crash(files, range(len(files.operations) + 1), Past())
    assert lives.outcome.failures == []


def test_a_round_follows_from_its_seed(tmp_path: Path) -> None:
    """Operation by operation; hints hold numbers of directories and times of their changes."""
    recorded = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        random = Random(11)
        with reproducible(random):
            workload, files = _workload(tmp_path / name / "store", random)
            workload.run(25)
        operations = [one._replace(path=one.path.removeprefix(files.root), new_path="") for one in files.operations]
        recorded.append([one if "hint.json" not in one.path else one._replace(data=b"") for one in operations])
    assert len(recorded[0]) > 300
    assert [one.kind for one in recorded[0]] == [one.kind for one in recorded[1]]
    assert [one for one in recorded[0] if "/spark_mq/" not in one.path] == [
        one for one in recorded[1] if "/spark_mq/" not in one.path
    ]


def _workload(root: Path, random: Random) -> tuple[StoreWorkload, CrashFileSystem]:
    root.mkdir()
    files = CrashFileSystem(str(root))
    workload = StoreWorkload(root, files, random, sync_flush=True)
    workload.mark = files.mark
    return workload, files


# Planted faults


_LOST = r"\blost: |Store(Damaged|NotFound)Error\("
FORGOTTEN: dict[str, tuple[Callable[[str], bool], str]] = {  # which syncs, and a pattern of what is said then
    "the log's syncs": (lambda path: "/commitlog/" in path, _LOST),
    "syncs of directories": (os.path.isdir, _LOST),
    "the topics' syncs": (lambda path: "topics.json" in path, r"topics\.json( says|', \d)"),
    "the offsets' syncs": (lambda path: "consumerOffset.json" in path, r"consumerOffset\.json( says|', \d)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_forgotten_sync_is_noticed(tmp_path: Path, what: str) -> None:
    forgets, shows = FORGOTTEN[what]
    assert re.search(shows, _findings(tmp_path, shows, forgets=forgets))


@pytest.mark.slow
def test_queue_entries_that_change_places_are_noticed(tmp_path: Path) -> None:
    whole = ConsumeQueueWriter._write

    def write(writer: ConsumeQueueWriter, first: int, block: np.ndarray) -> None:
        whole(writer, first, block[::-1].copy())

    with mock.patch.object(ConsumeQueueWriter, "_write", write):
        found = _findings(tmp_path, "wrong pointer", "has another")
    assert "wrong pointer" in found
    assert "has another" in found


@pytest.mark.slow
def test_an_index_key_that_is_left_out_is_noticed(tmp_path: Path) -> None:
    whole = IndexWriter.append

    def append(writer: IndexWriter, keys: IndexKeys) -> None:
        whole(writer, IndexKeys(*(column[: max(1, len(column) - 1)] for column in keys)))

    with mock.patch.object(IndexWriter, "append", append):
        assert "index lacks" in _findings(tmp_path, "index lacks")


def _findings(directory: Path, *patterns: str, forgets: Callable[[str], bool] = lambda path: False) -> str:
    """What a few rounds say, an error that ends one included, until all patterns are among it."""
    found = ""
    for seed in range(3):
        (directory / str(seed)).mkdir()
        try:
            outcome = play(
                Random(seed), directory / str(seed), flush="SYNC_FLUSH", steps=25, crashes=8, forgets=forgets
            )
            found += "\n".join(outcome.failures)
        except Exception as error:
            found += repr(error)
        if all(re.search(pattern, found) for pattern in patterns):
            break
    return found
