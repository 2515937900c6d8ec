"""ROOT/spark_mq: what this package keeps in a store beside RocketMQ's own files. Nothing in it may be a symbolic link.

What lies there is written, renamed and deleted by name, and intents tell whoever opens the store what to append. A link in it would
lead these writes to files of somebody else. So links are looked for whenever a store is opened for writing, and whenever rows are
staged. A store that is only read is not looked through. Another disk can be mounted there.
"""

from __future__ import annotations

from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem


def own_directory(root: str) -> str:
    return f"{root}/spark_mq"


def refuse_links(file_system: LocalFileSystem, root: str) -> None:
    """Raises StoreRefusedError where ROOT/spark_mq, or something below it, is a symbolic link."""
    link = file_system.first_link(own_directory(root))
    if link is not None:
        raise StoreRefusedError(
            root,
            f"{link} is a symbolic link, and nothing in spark_mq may be one",
            "put the file or directory itself in the link's place, or mount the other disk there",
        )
