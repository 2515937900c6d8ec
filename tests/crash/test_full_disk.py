"""A disk without room: an error before anything is written, or a batch that is finished when there is room again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from storage import open_store
from storage.batch.commit import CommitOutcome
from storage.errors import StorageError, StoreNotWritableError
from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from tests.crash.sink_store import SETTINGS, FoundRow, SinkStore, assert_holds_exactly, found_rows, is_whole, rows_of
from tests.support.places import PROJECT

pytestmark = [pytest.mark.crash, pytest.mark.slow]

FLUSH = pytest.mark.parametrize(
    "sync_flush",
    [pytest.param(False, id="ASYNC_FLUSH", marks=pytest.mark.long), pytest.param(True, id="SYNC_FLUSH")],
)
MOUNT_FAILED = 77
IN_A_SMALL_FILE_SYSTEM = f'mount -o loop "$0" "$1" || exit {MOUNT_FAILED}; exec "$2" -m {__name__} "$1"'


class FullDisk(LocalFileSystem):
    """Has no room from the n-th operation that needs some until `is_full` is taken back."""

    def __init__(self, operations_left: int) -> None:
        self._left = operations_left
        self.is_full = True

    def need_room(self) -> None:
        self._left -= 1
        if self._left < 0 and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create_file(self, path: str, size_bytes: int) -> None:
        self.need_room()
        super().create_file(path, size_bytes)

    def reserve(self, path: str, position: int, length: int) -> None:
        self.need_room()
        super().reserve(path, position, length)

    def make_directories(self, path: str) -> None:
        if not os.path.isdir(path):
            self.need_room()
        super().make_directories(path)

    def open_for_writing(self, path: str) -> LocalWriter:
        return _FullDiskWriter(path, self)


class _FullDiskWriter(LocalWriter):
    """Of what there is no room for, the pages before the last are written."""

    def __init__(self, path: str, disk: FullDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        try:
            self._disk.need_room()
        except OSError:
            pages_end = (position + len(data) - 1) // 4096 * 4096
            super().write(position, bytes(data)[: max(0, pages_end - position)])
            raise
        super().write(position, data)


@FLUSH
def test_whatever_finds_the_disk_full_the_same_call_succeeds_when_there_is_room(
    tmp_path: Path, sync_flush: bool
) -> None:
    for operations in range(sync_flush, 1_000, 2):
        directory = tmp_path / str(operations)
        directory.mkdir()
        root = SinkStore.make_place(directory)
        SinkStore(root, sync_flush=sync_flush).commit(rows_of(0))
        rows = rows_of(1, 20, 11)
        segments = SinkStore(root).stage(rows)
        disk = FullDisk(operations)
        store = SinkStore(root, disk, sync_flush=sync_flush, days=1)
        try:
            assert store.commit(rows, segments) == CommitOutcome(False, 31)
        except (OSError, StorageError):
            is_decided = any(name.endswith("-1.json") for name in os.listdir(root / "spark_mq/intents"))
            is_done = is_decided or is_whole(_rows_there(root), rows)
        else:
            break
        disk.is_full = False
        assert store.commit(rows, None if is_done else segments).already_done == is_done
        assert store.commit(rows_of(2)) == CommitOutcome(False, 10)
        store.close()
        assert_holds_exactly(store.root, [rows_of(0), rows, rows_of(2)])
    assert operations > 20, "the disk was full at many places"


def _rows_there(root: Path) -> list[FoundRow]:
    with open_store(root) as store:
        return found_rows(store)


def test_a_file_system_without_room_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    """On a real one, of 8 MiB, in a mount namespace of its own, so that it goes with its process."""
    image, place = tmp_path / "image", tmp_path / "small"
    place.mkdir()
    if shutil.which("mkfs.ext4") is None or shutil.which("unshare") is None:
        pytest.skip("mkfs.ext4 or unshare is not there")
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    command = ["unshare", "--mount", "sh", "-c", IN_A_SMALL_FILE_SYSTEM, str(image), str(place), sys.executable]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if process.returncode == MOUNT_FAILED or "unshare:" in process.stderr:
        pytest.skip(f"no small file system can be mounted: {process.stderr.strip()}")
    assert process.returncode == 0, process.stderr


def fill_up(place: Path) -> None:
    store = SinkStore(SinkStore.make_place(place, SETTINGS.replace("8192", "131072")))
    store.commit(rows_of(0))
    big = rows_of(1, 300, 200)
    segments = store.stage(big)
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):  # ends when nothing fits any more
        while True:
            file.write(bytes(4096))
    before = store.log_end
    with pytest.raises(StoreNotWritableError, match=r"no room for \d+ more bytes of log") as caught:
        store.commit(big, segments)
    assert caught.value.retriable
    assert store.open_intents == 1, "the first batch's, which is not synced"
    assert store.log_end == before
    ballast.unlink()
    assert store.commit(big, segments) == CommitOutcome(False, 500)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), big])


if __name__ == "__main__":
    fill_up(Path(sys.argv[1]))
