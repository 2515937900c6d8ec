"""Writers to be killed, forked by a warm process: `python -m tests.support.writer_process`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

from storage import failpoints
from tests.support.warm_process import WarmProcess, serve
from tests.support.writer_life import LifePlan, live, telling


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


class Writers(WarmProcess):
    """The warm process."""

    module = __name__

    def live(self, plan: LifePlan, kill: Kill, hear: Callable[[dict[str, Any]], None]) -> bool:
        """Let one live, and hear what it tells; returns whether it was killed. AssertionError if it ended by an error."""
        order = {"plan": dataclasses.asdict(plan), "failpoint": kill.failpoint, "time": kill.time}
        return self.fork(order, kill_after_seconds=kill.seconds, hear=hear)


def _live(order: dict[str, Any]) -> None:
    if order["failpoint"]:
        os.environ[failpoints.ENVIRONMENT] = f"{order['failpoint']}:{order['time']}"
    live(LifePlan(**order["plan"]), telling(sys.stdout.fileno()))


if __name__ == "__main__":
    serve(_live)
