"""Processes to be killed that start in milliseconds: a warm one, which has imported everything, forks each of them.

`python -m tests.support.duty_process` reads orders from standard input, a line of JSON each, and answers each with a line when the
forked process is dead. It keeps nothing in mind, so one serves any number of stores. `Nursery` is the other side.
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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from storage import failpoints
from tests.crash.duty_faults import FAULTS
from tests.crash.duty_life import LifePlan, live

PROJECT = Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.002


class Step(NamedTuple):
    """A failpoint as a duty reaches it."""

    duty: str
    """"" = whichever comes to it first."""
    point: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a process dies: when a duty reaches a failpoint for the n-th time, or after so many seconds."""

    step: Step | None = None
    time: int = 1
    seconds: float | None = None


class Nursery:
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

    def raise_one(self, plan: LifePlan, steps: Path, kill: Kill | None = None, fault: str | None = None) -> bool:
        """Let a process live; returns whether it was killed. It writes the steps that it comes to into a file.

        AssertionError if it ended by an error.
        """
        order = {
            "plan": dataclasses.asdict(plan),
            "steps": str(steps),
            "fault": fault,
            "kill": None if kill is None else dataclasses.asdict(kill),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text("utf-8")
        exit_code = int(answer)
        assert exit_code in (0, -signal.SIGKILL), self._log.read_text("utf-8")
        return exit_code != 0


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if process == 0:
            _be_born(order)
        kill = order["kill"]
        print(_exit_code(process, None if kill is None else kill["seconds"]), flush=True)


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
        kill = order["kill"] or {"step": None, "time": 1}
        steps = _Steps(Path(order["steps"]), kill["step"] and Step(*kill["step"]), kill["time"])
        _follow_failpoints(steps.reached)
        with nullcontext() if order["fault"] is None else FAULTS[order["fault"]]():
            live(LifePlan(**order["plan"]), steps.enter)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


class _Steps:
    """Notes what is reached, and arms the failpoint in its duty."""

    def __init__(self, path: Path, killed_at: Step | None, time: int) -> None:
        self._path = path
        self._killed_at = killed_at
        self._time = time
        self._duty = ""
        self._seen: set[Step] = set()

    def enter(self, duty: str) -> None:
        self._duty = duty
        os.environ.pop(failpoints.ENVIRONMENT, None)
        if self._killed_at is not None and self._killed_at.duty in ("", duty):
            os.environ[failpoints.ENVIRONMENT] = f"{self._killed_at.point}:{self._time}"

    def reached(self, point: str) -> None:
        step = Step(self._duty, point)
        if step not in self._seen:
            self._seen.add(step)
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps(step) + "\n")


def _follow_failpoints(reached: Callable[[str], None]) -> None:
    """Tell of each failpoint that is reached, before it kills."""
    original = failpoints.reach

    def reach(name: str) -> None:
        reached(name)
        original(name)

    for module in list(sys.modules.values()):
        if vars(module).get("reach") is original:
            setattr(module, "reach", reach)  # noqa: B010 (of whatever module)


def read_steps(path: Path) -> list[Step]:
    """All steps that lives have come to, each once."""
    lines = dict.fromkeys(path.read_text("ascii").splitlines()) if path.exists() else {}
    return [Step(*json.loads(line)) for line in lines]


if __name__ == "__main__":
    main()
