"""Tables under `config/` that are replaced, and a store that is made of another."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.convert import convert
from storage.files.local_file_system import write_with_backup
from storage.settings.load import parse_config
from storage.tables.offline_changes import write_group_offsets
from tests.crash.disk_order import ToldDisk
from tests.crash.stories.life import START_MS, Life
from tests.support.fixture_stores import unpack_group


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


def converting(directory: Path) -> list[str]:
    """The first files of a DLedger group's log, with one table."""
    peer = unpack_group("dledger", directory / "group")["leader"]
    source = directory / "store" / "source"
    (source / "config").mkdir(parents=True)
    (source / "lock").write_bytes(b"lock")
    shutil.copy(peer.root / "config" / "topics.json", source / "config")
    (data,) = peer.root.glob("dledger-*/data")
    (source / "dledger-n0" / "data").mkdir(parents=True)
    for path in sorted(data.iterdir())[:2]:
        shutil.copy(path, source / "dledger-n0" / "data")
    disk = ToldDisk(directory / "store")
    disk.begin()
    config = parse_config(b"maxHashSlotNum=10\nmaxIndexNum=1000\nmappedFileSizeConsumeQueue=20000\n")
    convert(str(source), f"{disk.root}/plain", config=config, file_system=disk, clock=lambda: START_MS)
    return disk.told()
