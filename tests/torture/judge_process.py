"""Judges run in forks of one process that has imported the engine: to import it costs more than most of them.

`python -m tests.torture.judge_process` is that process. Each fork is a run of pytest of its own, as `python -m pytest` would be.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.warm_process import WarmProcess, serve

_IMPORTED = (
    "pytest",
    "hypothesis",
    "spark_mq",
    "storage.service.put_service",
    "tests.crash.stories",
    "tests.torture.mutants",
)
"""What every judge needs."""
_PLAIN = "--assert=plain"
"""Whether a judge fails is asked, not how; so pytest has no modules to rewrite, and may find some imported."""


class JudgeProcess(WarmProcess):
    """Runs tests, one run at a time."""

    module = "tests.torture.judge_process"

    def __init__(self, directory: Path, number: int) -> None:
        super().__init__(directory / f"judges-{number}.log")
        self._told = directory / f"judges-{number}"

    def run(
        self, arguments: Sequence[str], environment: dict[str, str], patience_s: float
    ) -> subprocess.CompletedProcess[str]:
        """What pytest says with these arguments; return code -1 where it takes too long."""
        order = {"arguments": [_PLAIN, *arguments], "environment": environment, "told": str(self._told)}
        self._told.write_text("")  # what an earlier fork wrote is not this one's
        try:
            was_killed = self.fork(order, kill_after_seconds=patience_s)
        except AssertionError as error:  # the fork has written why to its own file, not to the log
            error.add_note(f"{order}:\n{self._told.read_text('utf-8', 'replace')}")
            raise
        text, _, code = self._told.read_text("utf-8", "replace").rpartition("\n")
        return subprocess.CompletedProcess(list(arguments), -1 if was_killed else int(code), text)


def _judge(order: dict[str, Any]) -> None:
    import pytest

    os.environ.update(order["environment"])
    told = os.open(order["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(told, stream)
    code = pytest.main(order["arguments"])
    os.write(told, f"\n{int(code)}".encode())


if __name__ == "__main__":
    for module in _IMPORTED:
        importlib.import_module(module)
    serve(_judge)
