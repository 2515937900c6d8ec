"""All consume queues of a store: their list and their ends. Java: ConsumeQueueStore."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from storage.errors import StoreRefusedError
from storage.files.file_system import DirectoryEntry, FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY_SIZE
from storage.names import can_be_path_element
from storage.queues.batch_queue import BatchConsumeQueue
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt, ConsumeQueueExtWriter, ext_file_size, is_ext_file
from storage.queues.tiered_queue import MovedMessages, TieredConsumeQueue

DEFAULT_QUEUE_FILE_SIZE = 6_000_000
"""Java: MessageStoreConfig.mappedFileSizeConsumeQueue."""


def plain_queue(
    file_system: FileSystem,
    directory: str,
    topic: str,
    queue_id: int,
    file_size_bytes: int | None,
    moved_directory: str | None,
) -> ConsumeQueue:
    """A queue whose files lie in `directory`, for reading also with what has moved into `moved_directory`, now or later."""
    if moved_directory is not None:
        moved = MovedMessages(file_system, moved_directory, topic, queue_id)
        return TieredConsumeQueue(file_system, directory, topic, queue_id, file_size_bytes, moved)
    return ConsumeQueue(file_system, directory, topic, queue_id, file_size_bytes)


def queue_file_size(file_system: FileSystem, root: str, configured: int | None) -> int:
    """Bytes of a new queue's files: the configured size, else that of an existing queue's file, else Java's default.

    All queues of a store have files of one length; a broker does not start on others.
    """
    return configured or _found_file_size(file_system, root) or DEFAULT_QUEUE_FILE_SIZE


def has_queue_file(root: str, file_system: FileSystem) -> bool:
    """Whether any queue of the store at ROOT has a file."""
    return _found_file_size(file_system, root) is not None


def _found_file_size(file_system: FileSystem, root: str) -> int | None:
    directory = f"{root}/consumequeue"
    for topic in file_system.list_directory(directory):
        for queue in file_system.list_directory(f"{directory}/{topic.name}") if topic.is_directory else ():
            for entry in file_system.list_directory(f"{directory}/{topic.name}/{queue.name}"):
                if not entry.is_directory and entry.size_bytes and entry.size_bytes % ENTRY_SIZE == 0:
                    return entry.size_bytes
    return None


class RocksDBPlace(NamedTuple):
    """Where a store's queues lie instead of in files."""

    directory: str
    delays_ms: tuple[int, ...]
    """The delay of each level: entries of the schedule topic hold the time of delivery."""


class ConsumeQueueStore:
    """The queues under ROOT/consumequeue, each opened when first needed. A queue is (topic, queue id).

    Also the batch queues under ROOT/batchconsumequeue: a store that has any is only read. A topic has queues of one kind.
    """

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        *,
        file_size_bytes: int | None = None,
        ext_file_size_bytes: int | None = None,
        writes_ext: bool = False,
        moved_directory: str | None = None,
    ) -> None:
        """With `writes_ext` writers give each new entry an extension unit; StoreRefusedError if existing files have another length.

        Queues go on in `moved_directory`, of tiered storage, where it has them.
        """
        self._file_system = file_system
        self.directory = f"{root}/consumequeue"
        self._ext_directory = f"{root}/consumequeue_ext"
        self._batch_directory = f"{root}/batchconsumequeue"
        self._file_size_bytes = file_size_bytes
        self._ext_file_size_bytes = (
            ext_file_size(file_system, root, ext_file_size_bytes) if writes_ext else ext_file_size_bytes
        )
        self.writes_ext = writes_ext
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._moved_directory = moved_directory
        self.batch_topics: frozenset[str] = frozenset()
        """Topics with batch queues."""
        self._topics_in_turn = 0
        self.discover()

    def discover(self, most_topics: int | None = None) -> list[tuple[str, int]]:
        """List the queues again; returns the new ones. Files and names that are no queue are ignored, as in Java.

        At most `most_topics` of the known topics are looked into, in turn. Raises StoreRefusedError for a topic with queues of both
        kinds.
        """
        new = []
        before, self._topics = self._topics, {}
        listed = [entry.name for entry in self._file_system.list_directory(self.directory) if entry.is_directory]
        found = self._file_system.list_directory(self._batch_directory)
        self.batch_topics = frozenset(entry.name for entry in found if entry.is_directory)
        listed += sorted(self._moved_topics().difference(listed))
        for topic in sorted(self.batch_topics.intersection(listed)):
            rule = f"topic {topic} has queues of both kinds, consumequeue/ and batchconsumequeue/ (queue.type=BatchCQ)"
            raise StoreRefusedError(
                posixpath.dirname(self.directory), rule, "no broker starts on it: look which is right"
            )
        listed += sorted(self.batch_topics)
        for topic, is_in_turn in zip(listed, self._in_turn(len(listed), most_topics), strict=True):
            known = before.pop(topic, {})
            queues = self._queues_of(topic, known) if is_in_turn or not known else known
            new += [(topic, queue_id) for queue_id in queues if queue_id not in known]
            if queues:
                self._topics[topic] = queues
        for gone in before.values():
            _close(gone)
        return new

    def follow(self, log_end: int) -> None:
        """The log has valid records up to `log_end`: know their entries. In files they lie already, or their writer brings them."""

    def _in_turn(self, count: int, most: int | None) -> Sequence[bool]:
        if most is None or count <= most:
            return [True] * count
        turns = np.zeros(count, bool)
        turns[np.arange(self._topics_in_turn, self._topics_in_turn + most) % count] = True
        self._topics_in_turn = (self._topics_in_turn + most) % count
        found: list[bool] = turns.tolist()
        return found

    def _queues_of(self, topic: str, known: Mapping[int, ConsumeQueue]) -> dict[int, ConsumeQueue]:
        """A topic's present queues by id; known ones are kept, or closed if they are gone."""
        listed = self._file_system.list_directory(f"{self._directory_of(topic)}/{topic}")
        ids = _queue_ids(listed)
        if self._moved_directory is not None:
            directory = f"{self._moved_directory}/{topic}"
            moved = _queue_ids(self._file_system.list_directory(directory)) - ids
            ids |= {id_ for id_ in moved if MovedMessages(self._file_system, self._moved_directory, topic, id_).end}
        _close({queue_id: queue for queue_id, queue in known.items() if queue_id not in ids})
        return {queue_id: known.get(queue_id) or self.make(topic, queue_id) for queue_id in sorted(ids)}

    def _moved_topics(self) -> set[str]:
        """Topics in tiered storage: they may have no queue of their own any more."""
        if self._moved_directory is None:
            return set()
        return {entry.name for entry in self._file_system.list_directory(self._moved_directory) if entry.is_directory}

    def look_for(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue that may have appeared since the last listing; None if it has no file yet."""
        queue = self.get(topic, queue_id)
        if queue is None and can_be_path_element(topic):
            made = self.make(topic, queue_id)
            queue = self.get_or_make(topic, queue_id) if made.file_starts else None
        return queue

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue, whether it has files yet or not."""
        directory = f"{self._directory_of(topic)}/{topic}/{queue_id}"
        if topic in self.batch_topics:
            return BatchConsumeQueue(self._file_system, directory, topic, queue_id)
        return plain_queue(self._file_system, directory, topic, queue_id, self._file_size_bytes, self._moved_directory)

    def _directory_of(self, topic: str) -> str:
        return self._batch_directory if topic in self.batch_topics else self.directory

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._topics.get(topic, {}).get(queue_id)

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.get(topic, queue_id)
        if queue is None:
            queues = {**self._topics.get(topic, {}), queue_id: self.make(topic, queue_id)}
            self._topics[topic] = dict(sorted(queues.items()))
            queue = self._topics[topic][queue_id]
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """By topic, then queue id."""
        return iter([queue for topic in self.topics() for queue in self._topics[topic].values()])

    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return sorted(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues, sorted."""
        return list(self._topics.get(topic, ()))

    def names(self) -> list[tuple[str, int]]:
        return [(topic, queue_id) for topic in self.topics() for queue_id in self._topics[topic]]

    def ext(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        """The extension file that entries with an address for a tags code point into."""
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        return ConsumeQueueExt(self._file_system, directory, self._ext_file_size_bytes)

    def ext_writer(self, file_system: LocalFileSystem, topic: str, queue_id: int) -> ConsumeQueueExtWriter | None:
        """The writer of the queue's extension units; None if none are written."""
        if not self.writes_ext or self._ext_file_size_bytes is None:
            return None
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        return ConsumeQueueExtWriter(file_system, directory, self._ext_file_size_bytes)

    def last_ext_paths(self, topic: str, queue_id: int) -> list[str]:
        """The last extension file of a queue, and the directories up to ROOT; empty if there is none, or none is written."""
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        found = self._file_system.list_directory(directory) if self.writes_ext else ()
        last = next((f"{directory}/{entry.name}" for entry in reversed(found) if is_ext_file(entry)), None)
        root = posixpath.dirname(self._ext_directory)
        return [] if last is None else [last, directory, posixpath.dirname(directory), self._ext_directory, root]

    def delete(self, files: LocalFileSystem, topic: str) -> None:
        """Delete the files of a topic's queues, oldest first, then their directories. `discover` forgets the queues. Raises OSError."""
        for folder in (self.directory, self._ext_directory):
            path = f"{folder}/{topic}"
            if not files.exists(path):
                continue
            for queue in files.list_directory(path):
                if queue.is_directory:
                    for entry in files.list_directory(f"{path}/{queue.name}"):
                        files.unlink(posixpath.join(path, queue.name, entry.name))
                    files.remove_directory(f"{path}/{queue.name}")
            files.remove_directory(path)
            files.sync(folder)

    def close(self) -> None:
        for queues in self._topics.values():
            _close(queues)


def _queue_ids(listed: Sequence[DirectoryEntry]) -> set[int]:
    return {int(entry.name) for entry in listed if entry.is_directory and entry.name.isascii() and entry.name.isdigit()}


def _close(queues: Mapping[int, ConsumeQueue]) -> None:
    for queue in queues.values():
        queue.close()
