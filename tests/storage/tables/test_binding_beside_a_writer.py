"""A log that another process writes is not bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.errors import ForeignLogError
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.opening import bind_log


def test_a_log_that_another_process_has_open_for_writing_is_not_bound(tmp_path: Path) -> None:
    tiny = StoreConfig.tiny()
    with open_store(tmp_path / "store", config=tiny, read_only=False, create=True) as store:
        store.put("A", b"x", queue_count=1)
    log = (tmp_path / "store/commitlog").rename(tmp_path / "log")
    config = replace(tiny, commit_log=replace(tiny.commit_log, store_path_commit_log=str(log)))
    with (log / ("0" * 20)).open("r+b"), pytest.raises(ForeignLogError, match="open for writing"):
        bind_log(str(tmp_path / "store"), config, LocalFileSystem())
    assert not (tmp_path / "store/spark_mq/log_binding.json").exists()
