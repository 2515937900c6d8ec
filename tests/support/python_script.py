"""Runs a piece of Python as a user would: in a process of its own, in another directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import PROJECT


def run_script(
    script: str, directory: Path, *, packages: Path = PROJECT, timeout_s: int = 300
) -> subprocess.CompletedProcess[str]:
    """The ended process with what it printed; `packages` is where `spark_mq` and `storage` are imported from."""
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
