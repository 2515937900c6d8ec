"""What a service does beside its puts ends with it."""

from __future__ import annotations

import threading
from pathlib import Path

from storage import StoreConfig, open_store
from storage.service.put_service import PutService


def threads_of(root: Path) -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if str(root) in thread.name)


def test_a_closed_service_has_no_thread_left(tmp_path: Path) -> None:
    root = tmp_path / "store"
    service = PutService(open_store(root, config=StoreConfig.tiny(), read_only=False, create=True))
    assert [name.partition(" of ")[0] for name in threads_of(root)] == ["log flush", "next log file", "queue flush"]
    service.close()
    assert threads_of(root) == []
