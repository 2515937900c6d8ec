"""How many files each deed entered when it was last recorded, and how far it may grow."""

from __future__ import annotations

import json
from pathlib import Path

LIMITS = Path(__file__).with_name("files.json")
GROWTH = 1.1


def recorded() -> dict[str, int]:
    """Files by deed; empty before the first recording."""
    return dict(json.loads(LIMITS.read_text(encoding="utf-8"))) if LIMITS.exists() else {}


def grown(deed: str, files: int, limits: dict[str, int]) -> str | None:
    """What is wrong with a walk; None where it is as long as recorded, or a tenth longer at most."""
    if deed not in limits:
        return f"{deed}: not recorded in {LIMITS.name}"
    if files > limits[deed] * GROWTH:
        return f"{deed}: enters {files} files, recorded {limits[deed]}; a deed may grow by a tenth"
    return None
