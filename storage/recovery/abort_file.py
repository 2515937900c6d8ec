"""ROOT/abort, which stands while a store is open for writing: whoever finds it recovers. Java: StorePathConfigHelper.getAbortFile.

Its text is ours: process id, a random name, and since which start of the machine nothing has been recovered that may have lacked a
part (`torn_records.py`). A process that dies leaves all but its last write whole; a machine that does may not.
"""

from __future__ import annotations

import os
import secrets

from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem


def abort_path(root: str) -> str:
    """Where it stands."""
    return f"{root}/abort"


def boot_left(files: FileSystem, root: str) -> str | None:
    """The start of the machine that an open store's file names, empty where it names none; None = the store was closed."""
    content = files.read_file(abort_path(root))
    return None if content is None else "".join(content.decode(errors="replace").split(" ", 2)[2:])


def mark_open(files: LocalFileSystem, root: str, boot: str | None = None) -> None:
    """Write it anew, so that no hint fits any more; the start of the machine is this one, or that `boot`. Durable on return."""
    name = files.boot_id() if boot is None else boot
    files.replace(abort_path(root), f"{os.getpid()} {secrets.token_hex(8)} {name}".encode())


def note_start(files: LocalFileSystem, root: str) -> None:
    """A store that another start of the machine left is recovered: this one counts from now on. Durable on return."""
    mark_open(files, root)


def has_restarted(files: LocalFileSystem, root: str) -> bool:
    """Whether the machine has since an open store's file was written, or nobody knows."""
    left = boot_left(files, root)
    return left is not None and (not left or left != files.boot_id())
