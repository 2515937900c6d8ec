"""A disk fails a sync of the log and takes nothing more, not even the note of that; later, before a reboot, it is well again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from errno import EIO
from pathlib import Path
from random import Random

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import note_failed_sync, write_again
from storage.settings.nouns import CommitLogConfig
from tests.support.crash_file_system import CrashFileSystem
from tests.support.failing_file_system import FailingFileSystem, Fault, Step

pytestmark = pytest.mark.crash


class DyingDisk(FailingFileSystem):
    """When it is told to, it fails the next sync of the log and all that follows."""

    is_dying = False

    def sync(self, path: str) -> None:
        if self.is_dying and "/commitlog/" in path:
            self.is_dying, self.fault = False, Fault(frozenset(Step), EIO, self.counted + 1, for_good=True)
        super().sync(path)


def opened(root: Path, files: LocalFileSystem) -> MessageStore:
    config = replace(StoreConfig.tiny(), commit_log=CommitLogConfig(mapped_file_size_commit_log=1 << 16))
    return open_store(
        root, config=config, read_only=False, create=True, file_system=files, flush_disk_type="SYNC_FLUSH"
    )


@pytest.mark.parametrize("seed", range(6))
def test_what_is_acknowledged_afterwards_outlives_a_power_loss(tmp_path: Path, seed: int) -> None:
    """The kernel calls the page clean that was not written; behind it, nothing would count."""
    root = tmp_path / "store"
    root.mkdir()
    files = DyingDisk(str(root), seed=seed)
    store = opened(root, files)
    store.put("orders", b"before", queue_id=0)
    files.is_dying, files.counted = True, 0
    files.fault = Fault(frozenset(Step), EIO, 1 << 62)
    with pytest.raises(OSError, match="Input/output"):
        store.put("orders", b"." * 20_000, queue_id=0)
    with suppress(OSError):
        store.release()
    files.take_away()
    assert not (root / "spark_mq" / "failed_sync.json").exists()
    with opened(root, files) as store:
        store.put("orders", b"after", queue_id=0)
    assert [one.name for one in tmp_path.iterdir()] == ["store"]
    CrashFileSystem(str(root), files.disk.after_power_loss(Random(1), "lost"), 2)
    with opened(root, LocalFileSystem()) as store:
        bodies = [store.get("orders", 0, offset, 1).messages[0].body for offset in range(store.max_offset("orders", 0))]
    assert (bodies[0], bodies[-1]) == (b"before", b"after")


class DiskWithoutRoom(LocalFileSystem):
    """Takes no new file under `root`."""

    root = ""

    def create_file(self, path: str, size_bytes: int) -> None:
        if path.startswith(self.root):
            raise OSError(EIO, "it takes none", path)
        super().create_file(path, size_bytes)


def test_a_note_in_memory_is_found_by_any_name_of_the_store_and_goes_when_it_is_done(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other name"
    (root / "commitlog").mkdir(parents=True)
    other.symlink_to(root)
    file = root / "commitlog" / "0"
    file.write_bytes(b"content")
    files = DiskWithoutRoom()
    files.root = str(root)
    note_failed_sync(files, str(root), [str(file)])
    in_memory = files.memory_path(str(other))
    assert in_memory is not None
    assert str(file) in Path(in_memory).read_text("ascii")
    before = file.stat().st_mtime_ns
    write_again(files, str(other))
    assert file.read_bytes() == b"content"
    assert file.stat().st_mtime_ns > before
    assert not Path(in_memory).exists()
    assert files.memory_path(str(tmp_path)) != in_memory
