"""The note in a store that follows a master: nobody but its follower writes there, until it is taken away.

ROOT/spark_mq/follower.json: {"master": "host:port"}. No Java counterpart: there brokerRole of broker.conf says so.
"""

from __future__ import annotations

import json

from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem

_NAME = "spark_mq/follower.json"


def followed_master(file_system: FileSystem, root: str) -> str | None:
    """The master that the store at ROOT follows; None = it follows nobody."""
    content = file_system.read_file(f"{root}/{_NAME}")
    if content is None:
        return None
    try:
        return str(json.loads(content)["master"])
    except (ValueError, KeyError, TypeError):
        return "an unknown master"


def note_followed_master(file_system: LocalFileSystem, root: str, master: str) -> None:
    """Durable on return. Raises OSError."""
    if followed_master(file_system, root) != master:
        file_system.replace(f"{root}/{_NAME}", json.dumps({"master": master}).encode())


def forget_followed_master(file_system: LocalFileSystem, root: str) -> bool:
    """The store is written by anybody from now on; whether it followed a master before. Raises OSError."""
    path = f"{root}/{_NAME}"
    if not file_system.exists(path):
        return False
    file_system.unlink(path)
    file_system.sync(f"{root}/spark_mq")
    return True
