"""A log in several directories of which one is not there, or not yet: the store opens as with none that it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.opening import bind_log
from storage.settings.load import load_config

FILE_SIZE = 65_536


@pytest.mark.parametrize("absent", ["log1", "log2"])
@pytest.mark.parametrize("has_file_ahead", [False, True])
def test_a_killed_writers_store_opens_without_a_log_directory(
    tmp_path: Path, absent: str, *, has_file_ahead: bool
) -> None:
    root, (other,) = tmp_path / "store", {"log1", "log2"} - {absent}
    conf = tmp_path / "broker.conf"
    conf.write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\nstorePathCommitLog={tmp_path}/log1,{tmp_path}/log2\n")
    for name in ("log1", "log2"):
        (tmp_path / name).mkdir()
    files = LocalFileSystem()
    bind_log(str(root), load_config(str(root), str(conf), read_bytes=files.read_file), files)
    with open_store(root, read_only=False, create=True) as store:
        store.put("T", b"x", queue_id=0)
    for path in (tmp_path / absent).iterdir():
        path.rename(tmp_path / other / path.name)
    (tmp_path / absent).rmdir()
    if has_file_ahead:
        (tmp_path / other / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    (root / "abort").touch()
    with open_store(root, read_only=False) as store:
        assert store.recovery is not None
        assert len(store.recovery.removed_files) == has_file_ahead
        assert store.put("T", b"y", queue_id=0).queue_offset == 1
        assert [message.body for message in store.get("T", 0, 0).messages] == [b"x", b"y"]
