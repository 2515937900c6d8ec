"""A small file that may be lost: replaced whole for every onlooker, without a sync, and known again by a checksum.

After a power loss it is the old one, the new one, or none: half of one is no content. It costs no wait for the disk.
"""

from __future__ import annotations

import zlib

from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem

_SUM_SIZE = 8


def save_loose(file_system: LocalFileSystem, path: str, content: bytes) -> None:
    """Replace the file, whose directory is there; not durable."""
    temporary = f"{path}.tmp"
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    file_system.create_file(temporary, 0)
    file_system.write(temporary, 0, b"%08x" % zlib.crc32(content) + content)
    file_system.rename(temporary, path)


def load_loose(file_system: FileSystem, path: str) -> bytes | None:
    """What was saved last; None where nothing, or half of something, is there."""
    content = file_system.read_file(path) or b""
    return content[_SUM_SIZE:] if content[:_SUM_SIZE] == b"%08x" % zlib.crc32(content[_SUM_SIZE:]) else None
