"""A streaming query from one store into another in a driver of its own, made to be killed.

`python -m tests.support.driver_process JSON READY`: the fields of a `Query`, and the file that says that it waits for standard input to
end. `Driver` is the other side: it starts the process and kills all that belongs to it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyspark

from spark_mq.session import prepare_environment
from storage.failpoints import ENVIRONMENT, ENVIRONMENT_PAUSE
from tests.support.places import PROJECT
from tests.support.spark_cluster import SHORT_LIFE, TWO_HOSTS, two_hosts
from tests.support.warm_process import die_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 300  # for a loaded machine; nothing waits longer than it has to
FAILED = 3
"""Exit code of a driver whose query ended with an error."""

_POLL_SECONDS = 0.02
_LOG_SETTINGS = PROJECT / "spark_mq" / "log4j2.properties"


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
    master: str = "local[1]"
    """Or TWO_HOSTS."""
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    source_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the source, besides; `source` is "" where they name a cluster."""
    sink_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the sink, besides; `sink` is "" where they name a cluster."""


def run(query: Query, ready: Path) -> None:
    """Run the query to its end, once there is a session and standard input has said to. Raises what the query raises."""
    if query.master != TWO_HOSTS:
        _run(query, query.master, ready)
        return
    prepare_environment(os.environ, local=True)
    options = f"{SHORT_LIFE} -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    with two_hosts(Path(os.environ["TMPDIR"]), options) as master:
        _run(query, master, ready).stop()


def _run(query: Query, master: str, ready: Path) -> SparkSession:
    from spark_mq import build_session

    temporary = os.environ["TMPDIR"]  # a killed JVM leaves things behind
    config = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{SHORT_LIFE} -Djava.io.tmpdir={temporary}",
        "spark.local.dir": temporary,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_LIFE,
        **query.config,
    }
    session = build_session("a driver to be killed", master=master, config=config)
    source = session.readStream.format("spark_mq").option("topic", query.topic).option("startingOffsets", "earliest")
    source = source.options(**query.source_options)
    rows = source.option("maxOffsetsPerTrigger", str(query.rows_a_batch)).load(query.source or None)
    writer = rows.writeStream.format("spark_mq").outputMode("append").options(**query.sink_options)
    writer = writer.option("flushDiskType", query.flush_disk_type) if query.sink else writer
    trigger = {"availableNow": True} if query.trigger == "availableNow" else {"processingTime": query.trigger}
    writer = writer.trigger(**trigger).option("checkpointLocation", query.checkpoint)
    ready.touch()
    sys.stdin.read()
    writer.start(query.sink or None).awaitTermination()
    return session


class Driver:
    """A driver with its JVM and Python workers. Leaving the context kills what is still there of it."""

    def __init__(self, query: Query, directory: Path, *, failpoint: str | None = None, paused: bool = False) -> None:
        """It waits for `begin`. With `paused` the process that reaches the failpoint waits there to be killed, else it dies by itself.

        `directory` is made, and takes what the processes leave behind.
        """
        temporary = directory / "tmp"
        temporary.mkdir(parents=True)
        self._log = directory / "log"
        self._ready = directory / "ready"
        self._pause = directory / "paused"
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "SPARK_HOME": str(_unzipped_spark(directory)),
            "SPARK_LOCAL_DIRS": str(temporary),
            "PYSPARK_PYTHON": sys.executable,  # a cluster's own matter otherwise
        }
        if failpoint is not None:
            environment[ENVIRONMENT] = failpoint
        if paused:
            environment[ENVIRONMENT_PAUSE] = str(self._pause)
        command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(query)), str(self._ready)]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def begin(self) -> None:
        """Let the query run; waits for the session."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._ready.exists():
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(_POLL_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Until the driver ends or waits at the failpoint, no longer than `seconds`; the exit code, if it has ended."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and not self.is_paused and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self._process.returncode

    @property
    def is_paused(self) -> bool:
        """Whether a process of it waits at the failpoint."""
        return self._pause.exists()

    @property
    def paused_pid(self) -> int:
        """The process that waits at the failpoint."""
        return int(self._pause.read_text("ascii"))

    def resume(self) -> None:
        """Let the process at the failpoint go on."""
        self._pause.with_name(f"{self._pause.name}.go").touch()

    def wait_for_end(self) -> int:
        """Until the driver has ended, whatever waits at a failpoint; its exit code. AssertionError if it does not end."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(PATIENCE_SECONDS)
        raise AssertionError(f"the driver does not end\n{self.output}")

    def kill_paused_worker(self) -> None:
        """SIGKILL for the one process at the failpoint; its task fails."""
        _kill(self.paused_pid)

    def kill_paused_executor(self) -> None:
        """SIGKILL for the JVM that runs the task at the failpoint, with the task. It is not the driver's."""
        pids = [self.paused_pid]
        while _program(pids[-1]) != "java":
            pids.append(_parent(pids[-1]))
        drivers = [pid for pid in self._pids() if _program(pid) == "java" and _parent(pid) == self._process.pid]
        assert pids[-1] not in drivers, "the task runs in the driver's own JVM"
        for pid in reversed(pids):
            _kill(pid)

    @property
    def output(self) -> str:
        """What its processes have said."""
        return self._log.read_text("utf-8")

    def kill(self) -> None:
        """SIGKILL for every process: the driver, its JVM, Python workers. Returns when none is left."""
        while pids := self._pids():  # again, for one that was just forked
            for pid in pids:
                _kill(pid)
            time.sleep(_POLL_SECONDS / 4)
        self._forget()

    def freeze(self) -> None:
        """SIGSTOP for every process, as of a machine that stands still."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """They go on."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def kill_without_workers(self) -> None:
        """SIGKILL for the driver and its JVM alone; the Python workers see for themselves that these are gone.

        Returns when none is left. AssertionError if one stays.
        """
        for pid in self._pids():
            if pid == self._process.pid or _program(pid) == "java":
                _kill(pid)
        self._forget()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while pids := self._pids():
            assert time.monotonic() < deadline, f"workers {pids} have outlived their driver"
            time.sleep(_POLL_SECONDS)

    def _forget(self) -> None:
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _pids(self) -> list[int]:
        """All living processes of the driver's session: workers are in process groups of their own, but do not leave it."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if _session(pid) == self._process.pid]


def _unzipped_spark(directory: Path) -> Path:
    """A Spark without PySpark's archive, from which each worker would compile all that it imports."""
    home = directory / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def _session(pid: int) -> int | None:
    """The session of a living process."""
    with suppress(OSError):  # it has ended meanwhile
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[:4]
        return int(session) if state not in "ZX" else None
    return None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])


def _program(pid: int) -> str | None:
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> int:
    from pyspark.errors import StreamingQueryException

    die_with(os.getppid())
    try:
        run(Query(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    except StreamingQueryException as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
