"""The life of `config/timercheck`: read first, written when everything it speaks of is on the disk. Java: TimerCheckpoint."""

from __future__ import annotations

from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.timer import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint


def timer_checkpoint_path(root: str) -> str:
    """Java: BrokerPathConfigHelper.getTimerCheckPath."""
    return f"{root}/config/timercheck"


def read_timer_checkpoint(file_system: FileSystem, root: str) -> TimerCheckpoint:
    """The checkpoint of a store; all zero if there is none, as Java reads it."""
    return decode_timer_checkpoint(file_system.read_file(timer_checkpoint_path(root)) or b"")


def write_timer_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> None:
    """Overwrite the page in place and sync it; 56 bytes of one sector, as Java does."""
    path, page = timer_checkpoint_path(root), encode_timer_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.replace(path, page)
        return
    file_system.write(path, 0, page)
    file_system.sync(path)
