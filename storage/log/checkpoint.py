"""The checkpoint file's life: read at opening, written after everything it speaks of is synced. Java: StoreCheckpoint."""

from __future__ import annotations

from storage.failpoints import reach
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint


def read_checkpoint(file_system: FileSystem, root: str) -> Checkpoint:
    """The checkpoint of a store; all zero if the file is missing or short, as Java reads it."""
    return decode_checkpoint(file_system.read_file(f"{root}/checkpoint") or b"")


def write_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: Checkpoint) -> None:
    """Overwrite the page in place and sync it; 40 bytes of one sector, as Java does."""
    path = f"{root}/checkpoint"
    page = encode_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.create_file(path, len(page))
        file_system.sync(root)
    file_system.write(path, 0, page)
    reach("checkpoint-written")
    file_system.sync(path)
