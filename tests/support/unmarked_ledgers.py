"""Stores that the version before the ledger's mark has left in the middle of something (tests/vectors/unmarked_ledgers)."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.places import VECTORS

ARCHIVES = VECTORS / "unmarked_ledgers"


def unpacked_ledger(directory: Path, name: str) -> Path:
    """ROOT of the store NAME, unpacked below `directory` with its broker.conf."""
    place = directory / f"unmarked-{name}"
    with tarfile.open(ARCHIVES / f"{name}.tgz") as archive:
        archive.extractall(place, filter="data")
    return place / "store"
