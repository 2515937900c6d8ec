"""A store and a place for its archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_builder import StoreBuilder


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """A store with small log files."""
    return StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=4 << 10)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where no table is yet."""
    return tmp_path / "archive"
