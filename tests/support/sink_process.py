"""The sink in a process of its own, made to be killed: `python -m tests.support.sink_process stream|batch JSON`.

`stream` runs a query over the Parquet files of a directory to its end, `batch` commits one batch without Spark, by what Spark's
tasks and driver run. The JSON object holds the arguments of `stream` or `commit`. `SinkProcess` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from spark_mq import build_session
from spark_mq.partition_writer import stage_rows
from spark_mq.sink_columns import InputColumns
from spark_mq.sink_commit import commit_rows
from spark_mq.sink_options import SinkOptions
from storage.batch_ledger import Batch
from storage.failpoints import ENVIRONMENT, ENVIRONMENT_PAUSE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
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


class SinkProcess:
    """A sink that will reach a failpoint. `stream` waits there to be killed with its driver and JVM, `batch` kills itself."""

    def __init__(self, mode: str, log: Path, failpoint: str, **arguments: Any) -> None:
        self._log = log
        self._pause = log.with_suffix(".pid")
        environment = {**os.environ, ENVIRONMENT: failpoint}
        if mode == "stream":
            environment[ENVIRONMENT_PAUSE] = str(self._pause)
        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, mode, json.dumps(arguments)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run_until_killed(self) -> None:
        """Let it begin, and return when it is dead with all of its processes. AssertionError if it ended otherwise."""
        process = self._process
        assert process.stdin is not None
        process.stdin.write(b"begin\n")
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and not (self._pause.exists() and self._pause.read_text("ascii")):
            assert time.monotonic() < deadline, f"the failpoint was not reached\n{self._log.read_text('utf-8')}"
            time.sleep(0.02)
        self.end()
        assert process.returncode == -signal.SIGKILL, self._log.read_text("utf-8")

    def end(self) -> None:
        """Kill what is left of it: driver and JVM first, then the paused commit, which is in a group of its own."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        if self._pause.exists():
            paused = int(self._pause.read_text("ascii"))
            self._pause.unlink()
            with suppress(ProcessLookupError):  # Spark's daemon has seen the JVM go
                os.killpg(os.getpgid(paused), signal.SIGKILL)


def main() -> None:
    mode, arguments = sys.argv[1], json.loads(sys.argv[2])
    run: Callable[..., None] = commit
    if mode == "stream":
        session = build_session("a sink to be killed", master="local[2]", config={"spark.driver.memory": "1g"})
        run = partial(stream, session)
    if sys.stdin.readline():  # else nobody wants it any more
        run(**arguments)


if __name__ == "__main__":
    main()
