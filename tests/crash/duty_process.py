"""Processes to be killed amid a duty, forked by a warm one: `python -m tests.crash.duty_process`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from storage import failpoints
from tests.crash.duty_faults import FAULTS
from tests.crash.duty_life import LifePlan, live
from tests.support.warm_process import WarmProcess, serve


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


class Nursery(WarmProcess):
    """The warm process."""

    module = __name__

    def raise_one(self, plan: LifePlan, steps: Path, kill: Kill | None = None, fault: str | None = None) -> bool:
        """Let a process live; returns whether it was killed. It writes the steps that it comes to into a file.

        AssertionError if it ended by an error.
        """
        kill = kill or Kill()
        order = {
            "plan": dataclasses.asdict(plan),
            "steps": str(steps),
            "fault": fault,
            "step": kill.step,
            "time": kill.time,
        }
        return self.fork(order, kill_after_seconds=kill.seconds)


def _live(order: dict[str, Any]) -> None:
    steps = _Steps(Path(order["steps"]), order["step"] and Step(*order["step"]), order["time"])
    _follow_failpoints(steps.reached)
    with nullcontext() if order["fault"] is None else FAULTS[order["fault"]]():
        live(LifePlan(**order["plan"]), steps.enter)


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
    serve(_live)
