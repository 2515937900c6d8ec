"""A small store, and consoles that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.opened import opened_console
from tests.console.small_store import OpenConsole, make_store
from tests.support.fixture_stores import copy_store


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store that no test changes."""
    return make_store(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def root(tmp_path: Path, shared_root: Path) -> Path:
    """A copy of this test's own."""
    copy_store(shared_root.parent, tmp_path / "own")
    return tmp_path / "own" / "store"


@pytest.fixture
def open_console() -> Iterator[OpenConsole]:
    """`open_console(root, token=…, allows_changes=…)`, or `open_console(connection=…)`."""
    with ExitStack() as opened:

        def open_one(*args: Any, **options: Any) -> TestClient:
            return opened.enter_context(opened_console(*args, **options))

        yield open_one
