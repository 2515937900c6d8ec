"""Processes to be killed that start in milliseconds: a warm one, which has imported everything, forks each of them.

The warm process runs a module whose `main` calls `serve`. It reads orders from standard input, a line of JSON each. What a forked life
tells goes to standard output, and when it is over a line with its exit code. It keeps nothing in mind, so one serves any number of
stores.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.places import PROJECT

_POLL_SECONDS = 0.001


class WarmProcess:
    """The side that gives the orders. A context manager, which ends the process."""

    module: str
    """Which one it runs."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._output = log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
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
        if error is not None:  # a life may wait for somebody to hear it
            self._process.kill()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._output.close()

    def fork(
        self,
        order: Mapping[str, Any],
        *,
        kill_after_seconds: float | None = None,
        hear: Callable[[dict[str, Any]], None] = lambda told: None,
    ) -> bool:
        """Let a process live, and hear what it tells; returns whether it was killed. AssertionError if it ended by an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "seconds": kill_after_seconds}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            told = _whole(line)
            if "exit" in told:
                assert told["exit"] in (0, -signal.SIGKILL), (
                    f"it ended with {told['exit']}: {self._log.read_text('utf-8')}"
                )
                return bool(told["exit"])
            hear(told)
        raise AssertionError(self._log.read_text("utf-8"))


def _whole(line: str) -> dict[str, Any]:
    """What a line says; a life that died in the middle of one told half of it, and then its end follows in the same line."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return json.loads(line[line.rindex('{"exit"') :])


def serve(live: Callable[[dict[str, Any]], None]) -> None:
    """Be the warm process: fork a life for each order."""
    for line in sys.stdin:
        order = json.loads(line)
        own, process = os.getpid(), os.fork()
        if process == 0:
            die_with(own)
            _be_born(live, order)
        print(json.dumps({"exit": _exit_code(process, order["seconds"])}), flush=True)


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


def _be_born(live: Callable[[dict[str, Any]], None], order: dict[str, Any]) -> None:
    exit_code = 1
    try:
        live(order)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have this process killed when the thread that started it ends, also by SIGKILL; at once, if that has happened. prctl(2)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
