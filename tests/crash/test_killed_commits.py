"""A process of its own commits the workload and is killed at each named point; the next process makes good what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import storage.batch.slices
import storage.log.writer
from storage.failpoints import COMMIT, ENVIRONMENT, STAGING
from tests.crash.sink_store import SinkStore
from tests.crash.workload import BATCHES, check, run
from tests.support.places import PROJECT

pytestmark = [pytest.mark.crash, pytest.mark.slow]

WHICH_TIME = {"after-records": 9, "after-queues": 9, "after-index": 9, "amid-staging": 6}
"""So that it is in the midst of a later batch; three times for the others."""
ONLY_WITH_SYNC_FLUSH = {"before-drop", "after-drop"}


class Killed(NamedTuple):
    """How the process ended, the store that it left, and which batches it said were acknowledged."""

    return_code: int
    store: SinkStore
    acknowledged: list[str]


def commit_until_killed(directory: Path, failpoint: str, *, sync_flush: bool) -> Killed:
    root = SinkStore.make_place(directory)
    process = subprocess.run(
        [sys.executable, "-m", __name__, str(root), str(sync_flush)],
        cwd=PROJECT,
        env={**os.environ, ENVIRONMENT: f"{failpoint}:{WHICH_TIME.get(failpoint, 3)}"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return Killed(process.returncode, SinkStore(root, sync_flush=sync_flush, days=1), process.stdout.splitlines())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Killed]:
    """By failpoint; two processes at a time, for they spend most of their lives on imports."""
    points = (*COMMIT, *STAGING)

    def commit(number: int) -> Killed:
        sync_flush = points[number] in ONLY_WITH_SYNC_FLUSH or number % 2 == 1
        return commit_until_killed(tmp_path_factory.mktemp("killed"), points[number], sync_flush=sync_flush)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(points, pool.map(commit, range(len(points))), strict=True))


@pytest.mark.parametrize("failpoint", [*COMMIT, *STAGING])
def test_a_commit_is_killed(killed: dict[str, Killed], failpoint: str) -> None:
    return_code, store, acknowledged = killed[failpoint]
    assert return_code == -signal.SIGKILL, f"{failpoint} was never reached"
    assert len(acknowledged) < len(BATCHES)
    check(store, acknowledged)


if __name__ == "__main__":
    storage.batch.slices.SLICE_BYTES = 2_500  # so that a few rows are several slices
    storage.log.writer.SLICE_BYTES = 1_000  # of several writes each
    run(SinkStore(Path(sys.argv[1]), sync_flush=sys.argv[2] == "True"), lambda text: print(text, flush=True))
