"""The note of a controller's master that its store is being written, from the begin of its epoch to its clean end.

ROOT/spark_mq/master.json: {"epoch": 3, "bootId": "…"}. Who finds it after another start of the machine may have lost the log's end,
which slaves may have. Under SYNC_FLUSH no slave is sent what is not synced. Java moves the begin of the epoch instead, and slaves
begin it anew.
"""

from __future__ import annotations

import json
from contextlib import suppress

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem

_NAME = "spark_mq/master.json"


def lost_epoch(file_system: LocalFileSystem, root: str) -> int | None:
    """The epoch in which the store's master may have lost the end of its log; None = nothing was lost.

    Raises StateFileError for a note that cannot be read: nobody knows then.
    """
    content = _content(file_system, root)
    if content is None:
        return None
    try:
        document = json.loads(content)
        epoch, boot_id = int(document["epoch"]), str(document["bootId"])
    except (ValueError, KeyError, TypeError):
        rule = f"an epoch and a bootId are expected, found {content!r:.80}; whether the log's end was lost is unknown"
        raise StateFileError(f"{root}/{_NAME}", 0, 0, rule) from None
    return None if boot_id == file_system.boot_id() else epoch


def note_epoch(file_system: LocalFileSystem, root: str, epoch: int) -> None:
    """The master of this epoch begins. Durable on return. Raises OSError."""
    content = json.dumps({"epoch": epoch, "bootId": file_system.boot_id()}).encode()
    if _content(file_system, root) != content:
        file_system.make_directories(f"{root}/spark_mq")
        file_system.replace(f"{root}/{_NAME}", content)


def forget_epoch(file_system: LocalFileSystem, root: str) -> None:
    """The store was closed cleanly: all of its log is on the disk. Raises OSError."""
    with suppress(FileNotFoundError):
        file_system.unlink(f"{root}/{_NAME}")
        file_system.sync(f"{root}/spark_mq")


def _content(file_system: FileSystem, root: str) -> bytes | None:
    return file_system.read_file(f"{root}/{_NAME}")
