"""A sink commits as always while `check_transactions` asks somebody who is slow to answer.

`python -m tests.jobs.test_slow_checker [THREADS]` prints the figures of the full size: 300 halves, 0.2 s each, a commit every second.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from storage import MessageStore, open_store
from storage.rules.half_messages import half_message
from storage.rules.inner_messages import InnerMessage
from tests.sink.test_sink_tasks import bodies, stage
from tests.support.places import PROJECT

SMALL = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
WAIT_LIMIT_S = 2.0
ROWS = 100


class Found(NamedTuple):
    """What came of one run of the job beside the sink."""

    job_output: str
    exit_code: int
    job_s: float
    commits: int
    longest_commit_s: float
    """From the call to its return: waiting for the lock, and the commit itself."""
    visible: list[str]
    """Bodies of the transactions that can be read."""
    rows: int


def run_beside(directory: Path, halves: int, threads: int, answer_s: float, pause_s: float) -> Found:
    """A job over so many halves, whose checker takes its time, and a sink that commits at this interval until the job ends."""
    root = directory / "store"
    (directory / "broker.conf").write_text(SMALL)
    (directory / "slow_answers.py").write_text(
        f"import time\n\ndef ask(message):\n    time.sleep({answer_s})\n    return 'commit'\n"
    )
    then_ms = time.time_ns() // 1_000_000 - 60_000
    with open_store(root, read_only=False, create=True, clock=lambda: then_ms) as store:
        prepared = [
            InnerMessage(
                topic="TopicTx",
                queue_id=0,
                body=f"half {number}".encode(),
                properties={"UNIQ_KEY": f"K{number}"},
                born_time_ms=then_ms,
            )
            for number in range(halves)
        ]
        store.put_inner([half_message(message, "P") for message in prepared])
        store.release()
    options = SinkOptions.parse({"path": str(root), "topic": "T", "lockTimeout": "5s"}, "streaming")
    command = [sys.executable, "-m", "jobs.check_transactions", str(root), "--checker", "slow_answers:ask"]
    environment = {"PYTHONPATH": f"{PROJECT}:{directory}", "PATH": "/usr/bin:/bin"}
    took_s: list[float] = []
    with subprocess.Popen(
        [*command, "--threads", str(threads)], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        begin = time.monotonic()
        while job.poll() is None:
            staged = stage(options, bodies(*map(str, range(ROWS))), batch_id=len(took_s))
            start = time.monotonic()
            commit_rows(options, [staged], len(took_s), mirrored=True)
            took_s.append(time.monotonic() - start)
            time.sleep(max(0.0, pause_s - took_s[-1]))
        job_s = time.monotonic() - begin
        assert job.stdout is not None
        output = job.stdout.read()
    with open_store(root) as store:
        visible = _bodies(store)
        rows = sum(store.max_offset("T", queue_id) for queue_id in store.queue_ids("T"))
    return Found(output, job.returncode, job_s, len(took_s), max(took_s), visible, rows)


def _bodies(store: MessageStore) -> list[str]:
    found: list[str] = []
    while (result := store.get("TopicTx", 0, len(found), 1_000)).messages:
        found += [message.body.decode() for message in result.messages]
    return found


def check(found: Found, halves: int) -> None:
    """Every half was answered for once, and every batch is there."""
    assert found.exit_code == 0, found.job_output
    assert f"{halves} committed, 0 rolled back" in found.job_output
    assert sorted(found.visible) == sorted(f"half {number}" for number in range(halves))
    assert found.rows == found.commits * ROWS


@pytest.mark.slow
def test_a_sink_commits_while_a_slow_checker_is_asked(tmp_path: Path) -> None:
    found = run_beside(tmp_path, halves=20, threads=2, answer_s=0.2, pause_s=0.2)
    check(found, 20)
    assert found.commits > 2, "the sink did not wait for the answers"


@pytest.mark.long
@pytest.mark.parametrize("threads", [8, 1])
def test_no_commit_waits_for_300_slow_answers(tmp_path: Path, threads: int) -> None:
    found = run_beside(tmp_path, halves=300, threads=threads, answer_s=0.19, pause_s=1.0)
    check(found, 300)
    assert found.longest_commit_s < WAIT_LIMIT_S


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        figures = run_beside(Path(made), 300, int(sys.argv[1]) if len(sys.argv) > 1 else 8, 0.2, 1.0)
    print(figures.job_output, end="")
    print(
        f"{figures.commits} commits in {figures.job_s:.1f} s, none failed; the longest took {figures.longest_commit_s:.2f} s"
    )
