"""What wrong usages are done to: a store, a name server without brokers, a port at which nothing listens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage import StoreConfig, open_store
from tests.first_mistakes.usages import Places
from tests.support.own_servers import our_name_server
from tests.support.planned_server import closed_port


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    root = tmp_path_factory.mktemp("places")
    with open_store(root / "store", config=StoreConfig.tiny(), read_only=False, create=True) as store:
        for queue_id in (3, 2, 1, 0, 0, 0, 0, 0):
            store.put("orders", b"body", queue_id=queue_id)
        store.put("payments", b"body", queue_id=0)
    (root / "server").mkdir()
    with our_name_server(root / "server") as server:
        yield Places(root, server.address, closed_port())
