"""A streaming query from one store into another, driver and JVM of its own, made to be killed: `python -m tests.support.driver_process JSON`.

The JSON object holds the fields of a `Query`. `Driver` is the other side: it starts the process and kills all that belongs to it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storage.failpoints import ENVIRONMENT, ENVIRONMENT_PAUSE

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120  # for a loaded machine; nothing waits longer than it has to
FAILED = 3
"""Exit code of a driver whose query ended with an error."""

_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"


@dataclass(frozen=True)
class Query:
    """All rows of a store's topic, as they come from the source, into the queues of the same numbers of another store."""

    source: str
    sink: str
    topic: str
    checkpoint: str
    rows_a_batch: int
    flush_disk_type: str = "ASYNC_FLUSH"
    trigger: str = "availableNow"
    """Or a processing time, with which the query does not end."""
    cores: int = 1


def run(query: Query) -> None:
    """Run the query until it ends. Raises what it raises."""
    from spark_mq import build_session

    temporary = os.environ["TMPDIR"]  # a killed JVM leaves things behind
    config = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{_JVM_OPTIONS} -Djava.io.tmpdir={temporary}",
        "spark.local.dir": temporary,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
    }
    session = build_session("a driver to be killed", master=f"local[{query.cores}]", config=config)
    source = session.readStream.format("spark_mq").option("topic", query.topic).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", str(query.rows_a_batch)).load(query.source)
    writer = rows.writeStream.format("spark_mq").option("flushDiskType", query.flush_disk_type).outputMode("append")
    if query.trigger == "availableNow":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=query.trigger)
    writer.option("checkpointLocation", query.checkpoint).start(query.sink).awaitTermination()


class Driver:
    """A running driver. Its output goes to `log`; leaving the context kills what is still there of it."""

    def __init__(self, query: Query, log: Path, *, failpoint: str | None = None, paused: bool = False) -> None:
        """With `paused` the process that reaches the failpoint waits there to be killed, else it dies by itself."""
        self.log = log
        self._pause = log.with_suffix(".pid")
        self._pause.unlink(missing_ok=True)
        temporary = log.with_suffix(".tmp")
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        if failpoint is not None:
            environment[ENVIRONMENT] = failpoint
            if paused:
                environment[ENVIRONMENT_PAUSE] = str(self._pause)
        command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(query))]
        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Until the driver ends or a process of it waits at the failpoint, no longer than `seconds`; the exit code, if it has ended."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and not self._pause.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._process.returncode

    @property
    def is_paused(self) -> bool:
        """Whether a process waits at the failpoint."""
        return self._pause.exists()

    def kill(self) -> None:
        """SIGKILL for every process: the driver, its JVM, Python workers. Returns when none is left."""
        while pids := self._pids():  # again, for one that was just forked
            for pid in pids:
                _kill(pid)
            time.sleep(0.005)
        self._process.wait()

    def kill_without_workers(self) -> None:
        """SIGKILL for the driver and its JVM alone, and the Python workers see for themselves that they are gone.

        Returns when none is left. AssertionError if one stays.
        """
        for pid in self._pids():
            if pid == self._process.pid or _program(pid) == "java":
                _kill(pid)
        self._process.wait()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while pids := self._pids():
            assert time.monotonic() < deadline, f"workers {pids} have outlived their driver"
            time.sleep(0.02)

    def _pids(self) -> list[int]:
        """All living processes of the driver's session: workers are in process groups of their own, but do not leave it."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if _session(pid) == self._process.pid]


def _session(pid: int) -> int | None:
    """The session of a living process."""
    with suppress(OSError):  # it has ended meanwhile
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[:4]
        return int(session) if state not in "ZX" else None
    return None


def _program(pid: int) -> str | None:
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> int:
    from pyspark.errors import StreamingQueryException

    try:
        run(Query(**json.loads(sys.argv[1])))
    except StreamingQueryException as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
