"""Where the project lies, the bytes of other implementations that tests compare with, and the command of this tree."""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
VECTORS = PROJECT / "tests" / "vectors"
COMMAND = (sys.executable, "-c", "from spark_mq.cli import main; main()")
"""`spark-mq`, to be started in PROJECT."""
