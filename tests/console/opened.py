"""The console over a store or a cluster, as an HTTP client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from tests.console.small_store import BASE


@contextmanager
def opened_console(
    root: Path | str | None = None, *, connection: Connection = NO_CLUSTER, token: str | None = None, **parts: Any
) -> Iterator[TestClient]:
    """`parts` are fields of `Console`, and `audit`. It makes one look at its start and no other by itself."""
    path = None if root is None else str(root)
    name, settings = connection.name_server or "", connection.settings
    views: Views = ClusterViews(name, settings()) if path is None else StoreViews(path)
    replays = Replays(path, connection, audit=parts.pop("audit", None))
    access = Access(token, checks_host=True)
    console = Console(views, Samples(views, interval_s=3_600), replays, access, **parts)
    with TestClient(application(console), base_url=BASE, follow_redirects=False) as client:
        yield client
