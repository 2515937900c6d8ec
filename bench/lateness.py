"""How late delayed messages come while a sink commits without pause: the sink in one process, `jobs.deliver_delayed` in another.

HOME/lateness/store/    what is written, removed afterwards

The sink stages and commits one batch behind the other. One row in a hundred has delay level 1 (1 s). The job runs every half second.
A message is late by what passes between the time that it is due and the time at which it is stored for readers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.engine import EngineRow, shown
from bench.messages import BODY_SIZE_BYTES, DISTINCT_BODIES, QUEUES, TOPIC, bodies
from jobs.deliver_delayed import deliver_delayed
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from storage import open_store
from storage.batch.ledger import Batch
from storage.errors import StoreLockedError

SECONDS = 30.0
ROWS = 20_000
JOB_INTERVAL_S = 0.5
LOCK_TIMEOUT_MS = 10_000
_DELAYED_ONE_IN = 100


def lateness_rows(home: Path, *, seconds: float = SECONDS, batch_rows: int = ROWS) -> list[EngineRow]:
    """The sink's commits, and what the job delivered beside them."""
    directory = home / "lateness"
    shutil.rmtree(directory, ignore_errors=True)
    root = directory / "store"
    directory.mkdir(parents=True)
    open_store(root, read_only=False, create=True).release()
    delivered, half_late_ms, most_late_ms, locked = 0, [], [], 0
    command = [sys.executable, "-m", "bench.lateness", str(root), str(seconds), str(batch_rows)]
    with subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True) as sink:
        while sink.poll() is None:
            begin = time.monotonic()
            try:
                report, _ = deliver_delayed(str(root), lock_timeout_ms=LOCK_TIMEOUT_MS)
            except StoreLockedError:
                locked += 1
                continue
            if report.delivered_count:
                delivered += report.delivered_count
                half_late_ms.append(float(report.lateness_p50_ms))
                most_late_ms.append(float(report.lateness_max_ms))
            time.sleep(max(0.0, JOB_INTERVAL_S - (time.monotonic() - begin)))
        assert sink.stdout is not None
        commits = [float(line) for line in sink.stdout.read().split()]
    if sink.returncode or not most_late_ms:
        raise RuntimeError(f"the sink ended with {sink.returncode}, and {delivered} messages were delivered")
    shutil.rmtree(directory)
    return [
        EngineRow(f"commits of {batch_rows:,} rows", f"{len(commits)}, each {shown(commits, ',.0f')} ms"),
        EngineRow("delayed messages delivered", f"{delivered:,} in {len(most_late_ms)} runs"),
        EngineRow("late by, half of them", f"{median(half_late_ms):,.0f} ms"),
        EngineRow("late by, at most", f"{max(most_late_ms):,.0f} ms"),
        EngineRow(f"runs that got no turn in {LOCK_TIMEOUT_MS // 1_000} s", f"{locked}"),
    ]


def _commit_without_pause(root: str, seconds: float, batch_rows: int) -> None:
    """A line for each commit: how many ms it took, waiting for its turn included."""
    options = SinkOptions.parse({"path": root, "topic": TOPIC, "queueNum": str(QUEUES)}, "streaming")
    numbers = np.arange(batch_rows)
    delayed = numbers % _DELAYED_ONE_IN == 0
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([body[:BODY_SIZE_BYTES] for body in bodies()], pa.binary()).take(
                pa.array(numbers % DISTINCT_BODIES)
            ),
            "delay_level": pa.array(np.ones(batch_rows, np.int32), mask=~delayed),
        }
    )
    columns = InputColumns(tuple(rows.schema.names), kafka=False)
    end, batch_id = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        staged = stage_rows(options, columns, Batch("lateness", "lateness", batch_id), 0, 0, iter([rows]))
        start = time.monotonic()
        commit_rows(options, [staged], batch_id, mirrored=True)
        print(f"{(time.monotonic() - start) * 1_000:.1f}", flush=True)
        batch_id += 1


if __name__ == "__main__":
    _commit_without_pause(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
