"""Deleting a topic of an open store: its entry, then its queues. Java: DefaultMessageStore.deleteTopics.

Order: what was put is synced and dispatched · topics.json · the queues' files, the oldest first · their directories. Commit point:
topics.json. A crash behind it leaves queues without an entry, which nobody can read. The records stay in the log until they expire.
A topic of the same name that is made later begins at queue offset 0.
Departure: a static topic keeps its mapping.
"""

from __future__ import annotations

import logging
import posixpath

from storage.files.local_file_system import LocalFileSystem
from storage.names import validate_path_element
from storage.put.store_writer import StoreWriter

_LOG = logging.getLogger(__name__)
_FOLDERS = ("consumequeue", "consumequeue_ext")


def delete_topic(writer: StoreWriter, topic: str) -> None:
    """Nothing where there is no such topic. The caller holds what guards the writer. Raises StoreNotWritableError, OSError."""
    writer.sync_log()
    writer.remove_topic(topic)
    delete_queues(writer, topic)


def delete_queues(writer: StoreWriter, topic: str) -> None:
    """The topic's queues alone: of one that has no entry. Raises NameIllegalError, OSError."""
    validate_path_element("topic", topic)
    try:
        for folder in _FOLDERS:
            _delete_tree(writer.file_system, f"{writer.root}/{folder}", topic)
    except OSError as error:
        writer.fail(error)
        raise
    writer.derived.forget(topic)
    _LOG.info(
        "%s: the queues of topic %s were deleted; its records stay in the log until they expire", writer.root, topic
    )


def _delete_tree(files: LocalFileSystem, folder: str, topic: str) -> None:
    path = f"{folder}/{topic}"
    if not files.exists(path):
        return
    for queue in files.list_directory(path):
        if queue.is_directory:
            for entry in files.list_directory(f"{path}/{queue.name}"):
                files.unlink(posixpath.join(path, queue.name, entry.name))
            files.remove_directory(f"{path}/{queue.name}")
    files.remove_directory(path)
    files.sync(folder)
