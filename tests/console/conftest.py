"""The console over a store or a cluster, as an HTTP client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.console.application import application
from spark_mq.console.cluster_view import ClusterViews
from spark_mq.console.pages import Console
from spark_mq.console.replays import Replays
from spark_mq.console.samples import Samples
from spark_mq.console.security import Access
from spark_mq.console.store_view import StoreViews
from spark_mq.console.views import Views
from tests.console.small_store import BASE, OpenConsole, make_store
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

        def open_one(
            root: Path | str | None = None,
            *,
            connection: Connection = NO_CLUSTER,
            token: str | None = None,
            **parts: Any,
        ) -> TestClient:
            path = None if root is None else str(root)
            name, settings = connection.name_server or "", connection.settings
            views: Views = ClusterViews(name, settings()) if path is None else StoreViews(path)
            replays = Replays(path, connection, audit=parts.pop("audit", None))
            access = Access(token, checks_host=True)
            console = Console(views, Samples(views, interval_s=3_600), replays, access, **parts)
            client = TestClient(application(console), base_url=BASE, follow_redirects=False)
            return opened.enter_context(client)

        yield open_one
