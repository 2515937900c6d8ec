"""Writers to be killed that start in milliseconds: a warm process, which has imported everything, forks each of them.

`python -m tests.support.writer_process` reads orders from standard input, a line of JSON each. What a life tells goes to standard
output, and when it is over a line with its exit code. `Writers` is the other side.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from storage import failpoints
from tests.support.writer_life import LifePlan, live, telling

PROJECT = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.001


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """Where a process dies: when it comes to a failpoint for the n-th time, or after so many seconds; else nowhere."""

    failpoint: str = ""
    time: int = 1
    seconds: float | None = None

    def __str__(self) -> str:
        if self.failpoint:
            return f"{self.failpoint}:{self.time}"
        return "nowhere" if self.seconds is None else f"after {self.seconds:.3f} s"


class Writers:
    """The warm process. A context manager, which ends it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._output = log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=PROJECT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._output.close()

    def live(self, plan: LifePlan, kill: Kill, hear: Callable[[dict[str, Any]], None]) -> bool:
        """Let one live, and hear what it tells; returns whether it was killed. AssertionError if it ended by an error."""
        order = {"plan": dataclasses.asdict(plan), "kill": dataclasses.asdict(kill)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            told = _whole(line)
            if "exit" in told:
                assert told["exit"] in (0, -signal.SIGKILL), self._log.read_text("utf-8")
                return bool(told["exit"])
            hear(told)
        raise AssertionError(self._log.read_text("utf-8"))


def _whole(line: str) -> dict[str, Any]:
    """What a line says; a life that died in the middle of one told half of it, and then its end follows in the same line."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return json.loads(line[line.rindex('{"exit"') :])


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if process == 0:
            _be_born(order)
        print(json.dumps({"exit": _exit_code(process, order["kill"]["seconds"])}), flush=True)


def _exit_code(process: int, seconds: float | None) -> int:
    """Wait for the end, or make it."""
    if seconds is not None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(_POLL_SECONDS)
        os.kill(process, signal.SIGKILL)  # nobody else waits for it, so the number is still its own
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _be_born(order: dict[str, Any]) -> None:
    exit_code = 1
    try:
        kill = order["kill"]
        if kill["failpoint"]:
            os.environ[failpoints.ENVIRONMENT] = f"{kill['failpoint']}:{kill['time']}"
        live(LifePlan(**order["plan"]), telling(sys.stdout.fileno()))
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    main()
