"""Where the project lies, and the bytes of other implementations that tests compare with."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
VECTORS = PROJECT / "tests" / "vectors"
