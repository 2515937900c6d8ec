"""Files and memory ahead: what transientStorePoolEnable and warmMapedFileEnable lock, as the kernel counts it (VmLck)."""

from __future__ import annotations

import ctypes
import errno
import mmap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from storage import open_store
from storage.errors import ConfigurationError
from storage.files import locked_memory
from storage.service.put_service import DirectService, PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import CommitLogConfig, FlushConfig

SIZE = 1 << 20


def locked_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("VmLck:")).split()[1]) << 10


def resident_bytes(path: Path) -> int:
    """How much of a file is in memory. mincore(2)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        pages = np.frombuffer(mapped, np.uint8)
        found = (ctypes.c_ubyte * (len(pages) // 4_096))()
        address, size = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages))
        assert ctypes.CDLL(None).mincore(address, size, found) == 0
        del pages
        return sum(page & 1 for page in found) * 4_096


def opened(root: Path, flush: FlushConfig, kind: type[PutService] = PutService) -> PutService:
    tiny = StoreConfig.tiny()
    settings = {**tiny.settings, "mappedFileSizeCommitLog": str(SIZE)}
    config = replace(tiny, commit_log=CommitLogConfig(mapped_file_size_commit_log=SIZE), flush=flush, settings=settings)
    store = open_store(root, config=config, read_only=False, create=True)
    try:
        if kind is DirectService:
            return DirectService(store)
        return PutService(store, starts_duties=False)
    except BaseException:
        store.close()
        raise


POOL = FlushConfig(transient_store_pool_enable=True, transient_store_pool_size=3)


def test_the_pool_is_locked_memory_of_so_many_log_files(tmp_path: Path) -> None:
    before = locked_bytes()
    with opened(tmp_path / "store", POOL) as service:
        assert locked_bytes() - before == 3 * SIZE
        assert (service.free_buffers, service.held_bytes) == (3, 0)
        for body in (b"x" * 100, b"y" * 100):
            service.put_batch(pa.RecordBatch.from_pydict({"topic": ["T"], "body": [body]}))
        assert service.held_bytes is not None
        assert service.held_bytes > 200
        assert service.free_buffers == 2
        service.flush()
        assert (service.free_buffers, service.held_bytes) == (3, 0)
    with open_store(tmp_path / "store") as store:
        found = [message.body for queue_id in range(8) for message in store.get("T", queue_id, 0, 8).messages]
        assert sorted(found) == [b"x" * 100, b"y" * 100]


def test_a_writer_that_holds_nothing_back_locks_nothing(tmp_path: Path) -> None:
    before = locked_bytes()
    service = opened(tmp_path / "store", POOL, DirectService)
    assert locked_bytes() == before
    service.store.close()


def too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def mlock(address: int, size_bytes: int) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(locked_memory, "_mlock", mlock)
    monkeypatch.setattr("storage.files.locked_memory.resource.getrlimit", lambda which: (65_536, 65_536))


def test_a_pool_that_cannot_be_locked_is_refused_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TransientStorePool.init ignores what mlock says."""
    too_little(monkeypatch)
    with pytest.raises(ConfigurationError, match="transientStorePoolEnable") as refused:
        opened(tmp_path / "store", POOL)
    for part in ("3 log files of 1048576 bytes", "3145728 bytes", "65536 (ulimit -l)", "transientStorePoolSize"):
        assert part in str(refused.value)
    monkeypatch.setattr(locked_memory, "_available_bytes", lambda: 1_000)
    with pytest.raises(ConfigurationError, match="1000 are free"):
        opened(tmp_path / "store", POOL)


def half_full(service: PutService) -> Path:
    with service.exclusive() as store:
        store.put("T", b"x" * (SIZE * 3 // 5))
    service.next_file_turn()
    return Path(service.root) / "commitlog" / f"{SIZE:020d}"


@pytest.mark.parametrize("disk", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_the_next_file_is_in_memory_and_locked_until_it_is_full(tmp_path: Path, disk: str) -> None:
    before = locked_bytes()
    flush = FlushConfig(flush_disk_type=disk, warm_maped_file_enable=True, flush_least_pages_when_warm_maped_file=16)
    with opened(tmp_path / "store", flush) as service:
        path = half_full(service)
        assert resident_bytes(path) == SIZE
        assert path.stat().st_blocks * 512 >= SIZE, "the disk has room for all of it"
        assert locked_bytes() - before == SIZE
        with service.exclusive() as store:
            for _ in range(2):
                store.put("T", b"y" * (SIZE * 3 // 5))
        assert locked_bytes() == before, "the log has rolled past it"


def test_without_the_setting_the_next_file_takes_no_memory(tmp_path: Path) -> None:
    before = locked_bytes()
    with opened(tmp_path / "store", FlushConfig()) as service:
        path = half_full(service)
        assert path.stat().st_blocks * 512 < SIZE // 2
        assert locked_bytes() == before


def test_a_file_that_cannot_be_locked_is_warm_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    too_little(monkeypatch)
    with opened(tmp_path / "store", FlushConfig(warm_maped_file_enable=True)) as service:
        assert resident_bytes(half_full(service)) == SIZE
    assert "65536 (ulimit -l)" in caplog.text


def test_a_file_that_cannot_be_mapped_is_the_next_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the limit of a process's addresses (ulimit -v)."""

    def refused(*given: object, **named: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with opened(tmp_path / "store", FlushConfig(warm_maped_file_enable=True)) as service:
        monkeypatch.setattr(locked_memory, "mmap", SimpleNamespace(mmap=refused, ACCESS_READ=mmap.ACCESS_READ))
        assert half_full(service).stat().st_blocks * 512 >= SIZE
        with service.exclusive() as store:
            store.put("T", b"y" * (SIZE * 3 // 5))
    assert "Cannot allocate memory" in caplog.text


@pytest.mark.parametrize(("number", "is_raised"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
def test_a_full_disk_leaves_a_file_cold_and_a_broken_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_raised: bool
) -> None:
    def refused(descriptor: int, data: bytes, start: int) -> int:
        raise OSError(number, "refused")

    (path := tmp_path / "log").write_bytes(bytes(8_192))
    monkeypatch.setattr("storage.files.locked_memory.os.pwrite", refused)
    with pytest.raises(OSError, match="refused") if is_raised else nullcontext():
        locked_memory.WarmFile(str(path), 8_192, None)
