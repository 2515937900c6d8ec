"""Tables under `config/` that are replaced."""

from __future__ import annotations

from pathlib import Path

from storage.files.atomic_file import write_with_backup
from storage.tables.offline_changes import write_group_offsets
from tests.crash.disk_order import ToldDisk
from tests.crash.stories.life import START_MS, Life


def setting_group_offsets(directory: Path) -> list[str]:
    life = Life(directory)
    life.open().close()
    life.disk.begin()
    for offset in (1, 2):
        write_group_offsets(str(life.root), "G", {("A", 0): offset}, now_ms=START_MS, file_system=life.disk)
    return life.disk.told()


def replacing(directory: Path) -> list[str]:
    """A table that is there is replaced; told word by word."""
    disk = ToldDisk(directory / "store")
    path = f"{disk.root}/config/topics.json"
    write_with_backup(path, '{"a": 1}', disk)
    disk.begin()
    write_with_backup(path, '{"a": 2}', disk)
    assert [disk.read_file(name) for name in (path, f"{path}.bak")] == [b'{"a": 2}', b'{"a": 1}']
    return disk.told(replaced=False)
