"""All consume queues of a store: which there are, and their ends. Java: ConsumeQueueStore."""

from __future__ import annotations

from collections.abc import Iterator

from storage.consume_queue import ConsumeQueue
from storage.consume_queue_ext import ConsumeQueueExt
from storage.files.file_system import FileSystem
from storage.format.consume_queue import ENTRY_SIZE

DEFAULT_QUEUE_FILE_SIZE = 6_000_000
"""Java: MessageStoreConfig.mappedFileSizeConsumeQueue."""


def queue_file_size(file_system: FileSystem, root: str, configured: int | None) -> int:
    """Bytes of a new queue's files: as configured, else those of any queue's file that there is, else Java's default.

    All queues of a store have files of one length; a broker does not start on others.
    """
    return configured or _found_file_size(file_system, root) or DEFAULT_QUEUE_FILE_SIZE


def _found_file_size(file_system: FileSystem, root: str) -> int | None:
    directory = f"{root}/consumequeue"
    for topic in file_system.list_directory(directory):
        for queue in file_system.list_directory(f"{directory}/{topic.name}") if topic.is_directory else ():
            for entry in file_system.list_directory(f"{directory}/{topic.name}/{queue.name}"):
                if not entry.is_directory and entry.size_bytes and entry.size_bytes % ENTRY_SIZE == 0:
                    return entry.size_bytes
    return None


class ConsumeQueueStore:
    """The queues under ROOT/consumequeue, each opened when first needed. A queue is (topic, queue id)."""

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        *,
        file_size_bytes: int | None = None,
        ext_file_size_bytes: int | None = None,
    ) -> None:
        self._file_system = file_system
        self.directory = f"{root}/consumequeue"
        self._ext_directory = f"{root}/consumequeue_ext"
        self._batch_directory = f"{root}/batchconsumequeue"
        self._file_size_bytes = file_size_bytes
        self._ext_file_size_bytes = ext_file_size_bytes
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.batch_topics: frozenset[str] = frozenset()
        self.discover()

    def discover(self) -> list[tuple[str, int]]:
        """Look again which queues there are; returns the new ones. Files and names that are no queue are ignored, as Java does."""
        new = []
        present = set()
        for topic in self._file_system.list_directory(self.directory):
            for queue in (
                self._file_system.list_directory(f"{self.directory}/{topic.name}") if topic.is_directory else ()
            ):
                if queue.is_directory and queue.name.isascii() and queue.name.isdigit():
                    name = topic.name, int(queue.name)
                    present.add(name)
                    if name not in self._queues:
                        self._queues[name] = self.make(*name)
                        new.append(name)
        for gone in self._queues.keys() - present:
            self._queues.pop(gone).close()
        self.batch_topics = frozenset(
            e.name for e in self._file_system.list_directory(self._batch_directory) if e.is_directory
        )
        return new

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue at its place, whether it has files yet or not."""
        directory = f"{self.directory}/{topic}/{queue_id}"
        return ConsumeQueue(self._file_system, directory, topic, queue_id, self._file_size_bytes)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self._queues.setdefault((topic, queue_id), self.make(topic, queue_id))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """By topic, then queue id."""
        return iter([self._queues[name] for name in sorted(self._queues)])

    def names(self) -> list[tuple[str, int]]:
        return sorted(self._queues)

    def ext(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        """The extension file that entries with an address for a tags code point into."""
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        return ConsumeQueueExt(self._file_system, directory, self._ext_file_size_bytes)

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
