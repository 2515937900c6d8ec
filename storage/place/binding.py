"""ROOT/spark_mq/log_binding.json: by explicit command, a store and a log outside of its directory belong together.

The file names ROOT and each directory of the log by real path and inode. So a copy of ROOT, which has a copy of the file, is bound to
nothing: it has another path, or another inode. Devices are not named, as their numbers change when a machine starts.
"""

from __future__ import annotations

import json

from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.place.log_place import Binding
from storage.place.own_directory import own_directory


def binding_path(root: str) -> str:
    return f"{own_directory(root)}/log_binding.json"


def load_binding(root: str, file_system: FileSystem) -> Binding | None:
    """The binding of the store at ROOT; None where there is none, or a file that is none: such a store is not bound."""
    content = file_system.read_file(binding_path(root))
    if content is None:
        return None
    try:
        document = json.loads(content)
        named = [document["root"], *document["log"]]
        root_named, *log_named = [(str(entry["path"]), int(entry["inode"])) for entry in named]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Binding(root_named, tuple(log_named))


def save_binding(root: str, binding: Binding, file_system: LocalFileSystem) -> None:
    """Replace it, durably. The commit point is the rename."""
    root_named, *log_named = [{"path": path, "inode": inode} for path, inode in (binding.root, *binding.directories)]
    document = {"root": root_named, "log": log_named}
    file_system.replace(binding_path(root), json.dumps(document, indent=1).encode())
