"""Runs a piece of Python as a user would: in a process of its own, in another directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import PROJECT

SMALL = {"PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"}


def run_script(
    script: str, directory: Path, *, packages: Path = PROJECT, timeout_s: int = 300, small: bool = False
) -> subprocess.CompletedProcess[str]:
    """The ended process with what it printed; `packages` is where `spark_mq` and `storage` are imported from.

    With `small` its Spark session has two partitions after a shuffle instead of 200, as an operator's settings would say.
    """
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(packages), **(SMALL if small else {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
