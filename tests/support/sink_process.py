"""The sink in a process of its own, made to be killed: `python -m tests.support.sink_process stream|batch JSON`.

`stream` runs a query over the Parquet files of a directory to its end, `batch` commits one batch without Spark, by what Spark's
tasks and driver run. The JSON object holds the arguments of `stream` or `commit`. `run_until_killed` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from spark_mq import build_session
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from storage.batch.ledger import Batch
from storage.failpoints import ENVIRONMENT, ENVIRONMENT_PAUSE
from tests.support.places import PROJECT
from tests.support.spark_cluster import SHORT_LIFE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "body binary, keys string, tags string"
COLUMNS = InputColumns(("body", "keys", "tags"), kafka=False)
QUERY_ID = "without-spark"
PATIENCE_SECONDS = 120  # for a loaded machine; nothing waits longer than it has to


def stream(spark: SparkSession, source: str, checkpoint: str, options: dict[str, str]) -> None:
    """A query over all files that are there, one file a batch, to its end. Raises what the query raises."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(source)
    writer = rows.writeStream.format("spark_mq").options(**options).outputMode("append")
    writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start().awaitTermination()


def commit(batch_id: int, parts: Sequence[str], options: dict[str, str]) -> None:
    """One batch without Spark; each Parquet file is a task's rows."""
    parsed = SinkOptions.parse(options, "streaming")
    batch = Batch(parsed.sink_id or QUERY_ID, QUERY_ID, batch_id)
    staged = [
        stage_rows(parsed, COLUMNS, batch, number, 0, iter(pq.read_table(part).to_batches()))
        for number, part in enumerate(parts)
    ]
    commit_rows(parsed, staged, batch_id, mirrored=True)


def run_until_killed(mode: str, failpoint: str, log: Path, **arguments: Any) -> None:
    """Run a sink that reaches a failpoint; returns when all its processes are dead. AssertionError if it ended otherwise.

    `batch` kills itself. In `stream` the commit waits at the failpoint until it is killed together with its driver and JVM.
    """
    pause = log.with_suffix(".pid")
    pause.unlink(missing_ok=True)
    environment = {**os.environ, ENVIRONMENT: failpoint}
    if mode == "stream":
        environment[ENVIRONMENT_PAUSE] = str(pause)
    command = [sys.executable, "-m", __name__, mode, json.dumps(arguments)]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while process.poll() is None and not pause.exists():
            assert time.monotonic() < deadline, f"the failpoint was not reached\n{log.read_text('utf-8')}"
            time.sleep(0.02)
    finally:
        _kill(process, pause)
    assert process.returncode == -signal.SIGKILL, log.read_text("utf-8")


def _kill(process: subprocess.Popen[bytes], pause: Path) -> None:
    """Driver and JVM first, then the paused commit, which is in a group of Spark's own."""
    paused = _paused_process(pause) if pause.exists() else None
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    if paused is not None:
        with suppress(ProcessLookupError):  # Spark's daemon has seen the JVM go
            os.killpg(os.getpgid(paused), signal.SIGKILL)


def _paused_process(pause: Path) -> int:
    while not (text := pause.read_text("ascii")):  # made, not written yet
        time.sleep(0.01)
    return int(text)


def main() -> None:
    mode, arguments = sys.argv[1], json.loads(sys.argv[2])
    if mode == "stream":
        config = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": SHORT_LIFE}
        session = build_session("a sink to be killed", master="local[2]", config=config)
        stream(session, **arguments)
    else:
        commit(**arguments)


if __name__ == "__main__":
    main()
