"""A writer is killed, its store recovered and closed, and then the power fails: queues hold all that the checkpoint vouches for."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from tests.support.crash_file_system import CrashFileSystem
from tests.support.rebuilt_store import differences_from_rebuild

pytestmark = pytest.mark.crash


def opened(root: Path, files: LocalFileSystem) -> MessageStore:
    return open_store(root, config=StoreConfig.tiny(), read_only=False, create=True, file_system=files)


@pytest.mark.parametrize("way", ["lost", "first", "last", ""], ids=["all is lost", "first pages", "last pages", "torn"])
def test_entries_that_a_killed_writer_had_not_synced_outlive_a_power_loss_after_the_recovery(
    tmp_path: Path, way: str
) -> None:
    """Those of a quiet queue, too: its messages stand in log files that no later recovery walks over."""
    root = tmp_path / "store"
    root.mkdir()
    files = CrashFileSystem(str(root))
    with opened(root, files) as store:  # so that all names are durable, and only entries can be lost
        store.put("quiet", b"one", queue_id=0)
        store.put("busy", b"early", queue_id=0)
    store = opened(root, files)
    store.put("quiet", b"two", queue_id=0)
    while len(store.log.files) < 5:
        store.put("busy", b"." * 500, queue_id=0)
    killed = deepcopy(files.disk)
    store.release()
    files = CrashFileSystem(str(root), killed)
    with opened(root, files) as store:
        store.put("busy", b"later", queue_id=0)  # so that the greatest place that any queue knows is on the disk
    CrashFileSystem(str(root), files.disk.after_power_loss(Random(1), way), boot=2)
    with opened(root, LocalFileSystem()) as store:
        assert [one.body for one in store.get("quiet", 0, 0).messages] == [b"one", b"two"]
        store.put("quiet", b"three", queue_id=0)
    assert differences_from_rebuild(root, StoreConfig.tiny()) == []
