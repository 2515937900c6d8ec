"""The log's next file is made ahead beside the puts: a roll waits for no sync, and what a crash leaves is what a broker leaves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from storage import StoreConfig, open_store
from storage.errors import StoreNotWritableError
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from tests.support.gated_disk import GatedDisk
from tests.support.places import PROJECT

TINY = StoreConfig.tiny()
SIZE = TINY.commit_log.mapped_file_size_commit_log or 4_096

CONF = f"""mappedFileSizeCommitLog={SIZE}
mappedFileSizeConsumeQueue={TINY.consume_queue.mapped_file_size_consume_queue}
maxHashSlotNum={TINY.index.max_hash_slot_num}
maxIndexNum={TINY.index.max_index_num}
"""


def message(body_bytes: int) -> InnerMessage:
    return InnerMessage(topic="T", queue_id=0, body=bytes(body_bytes), properties={}, born_time_ms=0)


def open_service(root: Path, disk: GatedDisk | None = None) -> PutService:
    store = open_store(root, config=TINY, read_only=False, create=True, flush_disk_type="ASYNC_FLUSH", file_system=disk)
    return PutService(store, starts_duties=False)


def log_files(root: Path) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_size) for path in sorted((root / "commitlog").iterdir())]


def syncs_of_log(disk: GatedDisk) -> int:
    return sum(verb == "sync" and "/commitlog" in path for verb, path in disk.steps)


@pytest.mark.parametrize(("is_made_ahead", "syncs"), [(True, 0), (False, 2)])
def test_a_roll_into_a_file_that_was_made_ahead_waits_for_no_sync(
    tmp_path: Path, is_made_ahead: bool, syncs: int
) -> None:
    disk = GatedDisk()
    with open_service(tmp_path / "store", disk) as service:
        service.put_inner([message(SIZE * 5 // 8)])
        if is_made_ahead:
            service.next_file_turn()
            assert log_files(tmp_path / "store")[1:] == [(f"{SIZE:020d}", SIZE)]
        before = syncs_of_log(disk)
        service.put_inner([message(SIZE * 5 // 8)])
        assert syncs_of_log(disk) - before == syncs
        assert service.store.writer.log_end > SIZE


def test_a_file_is_made_ahead_when_half_of_the_last_one_is_full_and_once(tmp_path: Path) -> None:
    with open_service(tmp_path / "store") as service:
        service.put_inner([message(SIZE // 4)])
        service.next_file_turn()
        assert len(log_files(tmp_path / "store")) == 1
        service.put_inner([message(SIZE // 4)])
        for _ in range(2):
            service.next_file_turn()
        assert len(log_files(tmp_path / "store")) == 2


def test_closing_leaves_no_file_that_was_not_begun(tmp_path: Path) -> None:
    """AllocateMappedFileService.shutdown destroys what it has allocated and nobody took."""
    with open_service(tmp_path / "store") as service:
        service.put_inner([message(SIZE * 5 // 8)])
        service.next_file_turn()
    assert [name for name, _ in log_files(tmp_path / "store")] == [f"{0:020d}"]


def test_where_none_can_be_made_ahead_the_put_that_needs_it_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = GatedDisk()
    with open_service(tmp_path / "store", disk) as service:
        service.put_inner([message(SIZE * 5 // 8)])
        with monkeypatch.context() as patched:
            patched.setattr(
                disk, "create_file", lambda path, size: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
            )
            service.next_file_turn()
        service.put_inner([message(SIZE * 5 // 8)])
        assert service.failure is None


def test_a_failed_sync_of_it_ends_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = GatedDisk()
    service = open_service(tmp_path / "store", disk)
    service.put_inner([message(SIZE * 5 // 8)])

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            service.next_file_turn()
    with pytest.raises(StoreNotWritableError):
        service.put_inner([message(10)])
    service.close()


DIES = """
import os, signal, sys
from pathlib import Path
from tests.storage.service.test_next_file import SIZE, message, open_service
service = open_service(Path(sys.argv[1]))
service.put_inner([message(SIZE * 5 // 8)])
service.next_file_turn()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_store_whose_writer_died_with_an_empty_last_file_is_read_verified_and_recovered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    died = subprocess.run([sys.executable, "-c", DIES, str(root)], cwd=PROJECT, check=False)
    assert died.returncode == -signal.SIGKILL
    assert [size for _, size in log_files(root)] == [SIZE, SIZE]
    with open_store(root, config=TINY) as store:
        assert (store.max_offset("T", 0), store.fingerprint() is not None) == (1, True)
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    assert verify_store(str(root), conf=str(conf)).findings == ()
    with open_service(root) as service:
        service.put_inner([message(SIZE * 5 // 8)])
    with open_store(root, config=TINY) as store:
        assert [len(found.body) for found in store.get("T", 0, 0).messages] == [SIZE * 5 // 8] * 2
