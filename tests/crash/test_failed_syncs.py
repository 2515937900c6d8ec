"""A sync of the log fails. The system takes the pages for clean then, so the next sync says all is well and writes nothing.

That is how Linux behaves (fsync(2), EIO). A batch that was decided is lost all the same only with the disk itself: whoever opens the
store next writes it once more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.batch.commit import abort_batch
from storage.files.file_system import LocalWriter
from tests.crash.machine import Machine
from tests.crash.sink_store import SinkStore, assert_holds_exactly, rows_of
from tests.support.stage_rows import BatchRows

pytestmark = pytest.mark.crash

PAGE_BYTES = 4096


class _LogWriter(LocalWriter):
    def __init__(self, path: str, disk: FailingDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        super().write(position, data)
        self._disk.wrote(self.path, position, len(bytes(data)))

    def sync(self) -> None:
        self._disk.sync(self.path)


class FailingDisk(Machine):
    """Keeps of the log's files what has reached the disk, page by page; all else is there when it is written."""

    def __init__(self) -> None:
        self.durable: dict[str, dict[int, bytes]] = {}
        self._dirty: dict[str, set[int]] = {}
        self.fails = False
        """Whether the next sync of pages of the log fails."""

    def wrote(self, path: str, position: int, size: int) -> None:
        pages = range(position // PAGE_BYTES, (position + size - 1) // PAGE_BYTES + 1)
        self._dirty.setdefault(path, set()).update(pages if size else ())

    def open_for_writing(self, path: str) -> LocalWriter:
        return _LogWriter(path, self) if "/commitlog/" in path else super().open_for_writing(path)

    def sync(self, path: str) -> None:
        super().sync(path)
        dirty = self._dirty.pop(path, set())
        if dirty and self.fails:
            self.fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        content = Path(path).read_bytes() if dirty else b""
        for page in dirty:
            start = page * PAGE_BYTES
            self.durable.setdefault(path, {})[page] = content[start : start + PAGE_BYTES]

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.durable.pop(path, None)
        self._dirty.pop(path, None)

    def lose_power(self, root: str) -> None:
        for file in Path(root, "commitlog").iterdir():
            content = bytearray(file.stat().st_size)
            for page, data in self.durable.get(str(file), {}).items():
                content[page * PAGE_BYTES : page * PAGE_BYTES + len(data)] = data
            file.write_bytes(content)
        self._dirty.clear()
        self.start_again()


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


def test_the_failing_disk_forgets_what_a_failed_sync_should_have_kept(disk: FailingDisk, tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / "0"
    disk.create_file(str(path), 3 * PAGE_BYTES)
    disk.write(str(path), 0, b"first")
    disk.sync(str(path))
    disk.fails = True
    disk.write(str(path), PAGE_BYTES, b"second")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(str(path))
    disk.sync(str(path))
    disk.write(str(path), 2 * PAGE_BYTES, b"third")
    disk.sync(str(path))
    disk.lose_power(str(tmp_path))
    assert path.read_bytes().replace(b"\0", b"") == b"firstthird"


def commit_the_next(store: SinkStore) -> None:
    segments = store.stage(rows_of(2))
    try:
        store.commit(rows_of(2), segments)
    finally:  # as a sink does
        abort_batch(store.file_system, store.root, segments)


def flush(store: SinkStore) -> None:
    with store.open() as opened:
        opened.flush()


SYNCING: dict[str, Callable[[SinkStore], None]] = {
    "by the next batch": commit_the_next,
    "by a flush": flush,
    "by closing": SinkStore.close,
}


@pytest.mark.parametrize("sync", SYNCING.values(), ids=SYNCING)
def test_a_batch_whose_sync_failed_afterwards_is_written_again(
    tmp_path: Path, disk: FailingDisk, sync: Callable[[SinkStore], None]
) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path), disk)
    for number in range(2):
        store.commit(rows_of(number, 20, 11))
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        sync(store)
    assert store.open_intents == 1
    assert_is_made_good(store, disk, [rows_of(0, 20, 11), rows_of(1, 20, 11)])


def test_a_batch_whose_sync_failed_in_its_commit_is_written_again(tmp_path: Path, disk: FailingDisk) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path), disk, sync_flush=True)
    store.commit(rows_of(0, 20, 11))
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        store.commit(rows_of(1, 20, 11))
    assert store.open_intents == 1
    assert_is_made_good(store, disk, [rows_of(0, 20, 11), rows_of(1, 20, 11)])


def test_a_batch_that_was_finished_after_a_power_loss_is_written_again_when_that_is_not_synced(
    tmp_path: Path, disk: FailingDisk
) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path), disk)
    for number in range(2):
        store.commit(rows_of(number, 20, 11))
    disk.lose_power(store.root)
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        store.open()
    assert store.open_intents == 1
    assert_is_made_good(store, disk, [rows_of(0, 20, 11), rows_of(1, 20, 11)])


def assert_is_made_good(store: SinkStore, disk: FailingDisk, batches: list[BatchRows]) -> None:
    """The next opening keeps them so that a power loss finds them on the disk."""
    with store.open() as opened:
        assert opened.recovery is not None, "a hint would have spared the look at the batch"
        assert store.open_intents == 0, "recovery has synced all"
        opened.release()
    disk.lose_power(store.root)
    assert store.commit(batches[-1]).already_done
    store.close()
    assert_holds_exactly(store.root, batches)
