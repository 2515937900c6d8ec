"""Processor time by process: that of a child stays when it has ended, whether its parent waited for it or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.cpu import LOOK_SECONDS, Below

BURNT_S = 0.3
PARENT = """
import os, signal, sys
signal.signal(signal.SIGCHLD, getattr(signal, sys.argv[1]))
child = os.fork()
if not child:
    while sum(os.times()[:2]) < float(sys.argv[2]):
        pass
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.readline()
if sys.argv[1] == "SIG_DFL":
    os.waitpid(child, 0)
    print("waited", flush=True)
    sys.stdin.readline()
"""
LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:]); sys.stdin.readline()"


@contextmanager
def family(handling: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose child has a child, which burns and then says its id; the parent of that handles ended children so."""
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-c", PARENT, handling, str(BURNT_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def wait_for_end(pid: int) -> None:
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("handling", "ends_first"), [("SIG_DFL", False), ("SIG_IGN", False), ("SIG_IGN", True)]
)  # Spark's daemon ignores its children
def test_the_time_of_a_child_that_has_ended_stays(handling: str, ends_first: bool) -> None:
    with family(handling) as process:
        below = Below(process.pid)
        child = int(line_of(process))
        burnt_s = below.seconds()
        assert burnt_s >= BURNT_S - 0.02
        if ends_first:
            parent = next(seen.parent[0] for (pid, _), seen in below._living.items() if pid == child)
            tell(process)
            wait_for_end(parent)
            assert below.seconds() >= burnt_s
        os.kill(child, signal.SIGKILL)
        if handling == "SIG_DFL":
            tell(process)
            assert line_of(process) == "waited"
        wait_for_end(child)
        below._most_s = 0  # what it found before is no help
        assert burnt_s <= below.seconds() < burnt_s + BURNT_S - 0.02, "once"


def test_a_child_that_starts_and_ends_between_two_figures_is_looked_at_meanwhile() -> None:
    with family("SIG_IGN") as process:
        below = Below(process.pid)
        with below.watched():
            child = int(line_of(process))
            time.sleep(3 * LOOK_SECONDS)
            os.kill(child, signal.SIGKILL)
            wait_for_end(child)
        assert below.seconds() >= BURNT_S - 0.02
