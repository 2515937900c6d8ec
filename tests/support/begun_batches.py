"""Stores that the version before slices has left in the middle of a batch (tests/vectors/begun_batches)."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.places import VECTORS

ARCHIVES = VECTORS / "begun_batches"


def unpacked_begun(directory: Path, name: str) -> Path:
    """ROOT of the store NAME, unpacked below `directory` with its broker.conf."""
    place = directory / f"begun-{name}"
    with tarfile.open(ARCHIVES / f"{name}.tgz") as archive:
        archive.extractall(place, filter="data")
    return place / "store"
