"""The sync of `config/` behind the renaming of a table fails: the new table is there, and nobody knows whether it will stay."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.errors import StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from tests.support.crash_disk import EXTREMES
from tests.support.crash_file_system import CrashFileSystem

pytestmark = pytest.mark.crash


class FailingSync(CrashFileSystem):
    """The next sync of the path that ends so fails."""

    fails_at: str | None = None

    def sync(self, path: str) -> None:
        if self.fails_at is not None and path.endswith(self.fails_at):
            self.fails_at = None
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().sync(path)


def opened(root: Path, files: LocalFileSystem) -> MessageStore:
    config = StoreConfig.tiny()
    return open_store(
        root, config=config, read_only=False, create=True, file_system=files, flush_disk_type="SYNC_FLUSH"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def files(root: Path) -> FailingSync:
    return FailingSync(str(root))


def test_a_topic_of_which_nobody_knows_whether_it_is_on_the_disk_takes_no_message(
    root: Path, files: FailingSync
) -> None:
    with opened(root, files) as store:
        files.fails_at = "/config"
        with pytest.raises(OSError, match="Input/output error"):
            store.put("orders", b"refused", queue_id=0)
        assert b"orders" in (root / "config" / "topics.json").read_bytes()
        for topic in ("orders", "bills"):
            with pytest.raises(StoreNotWritableError):
                store.put(topic, b"refused", queue_id=0)


def test_a_table_that_was_not_replaced_stops_nobody(root: Path, files: FailingSync) -> None:
    with opened(root, files) as store:
        files.fails_at = "/topics.json.tmp"
        with pytest.raises(OSError, match="Input/output error"):
            store.put("orders", b"refused", queue_id=0)
        store.put("orders", b"taken", queue_id=0)


@pytest.mark.parametrize("way", EXTREMES)
def test_the_next_opening_makes_it_durable(root: Path, files: FailingSync, way: str) -> None:
    """Also an opening by a hint, which does not look at the log."""
    store = opened(root, files)
    files.fails_at = "/config"
    with pytest.raises(OSError, match="Input/output error"):
        store.put("orders", b"refused", queue_id=0)
    store.release()
    with opened(root, files) as store:
        store.put("orders", b"taken", queue_id=0)
    CrashFileSystem(str(root), files.disk.after_power_loss(Random(1), way), 2)
    with opened(root, LocalFileSystem()) as store:
        assert store.topics() == ["orders"]
        assert b"orders" in (root / "config" / "topics.json").read_bytes()
