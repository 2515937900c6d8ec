"""A disk is as full as a broker thinks: what is kept for root counts as neither used nor free, a part of a percent as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.files.local_file_system import UNKNOWN, disk_used_percent, is_memory


@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [
        (100, 100, 100, 0),
        (100, 25, 25, 75),
        (1_000, 249, 249, 76),
        (1_000, 999, 999, 1),
        (100, 30, 20, 78),  # 70 of the 90 that are not kept for root
        (100, 5, 0, 100),
        (0, 0, 0, UNKNOWN),  # getTotalSpace() of a file system that does not say
    ],
)
def test_used_percent(blocks: int, free: int, available: int, percent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """UtilAll.getDiskPartitionSpaceUsedPercent"""
    found = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    assert disk_used_percent("/store") == percent


def test_a_path_that_is_not_there_is_of_unknown_use(tmp_path: Path) -> None:
    assert disk_used_percent(str(tmp_path / "nowhere")) == UNKNOWN
    assert 0 <= disk_used_percent(str(tmp_path)) <= 100


def test_only_a_tmpfs_is_memory() -> None:
    kinds = {line.split()[1]: line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}
    for place, kind in kinds.items():
        if kind in ("tmpfs", "proc", "sysfs", "ext4", "overlay") and os.access(place, os.X_OK):
            assert is_memory(os.stat(place).st_dev) == (kind == "tmpfs"), place
    assert not is_memory(os.makedev(0, 0))
