"""Messages by place and by key, for many threads beside a writer: with files of its own, so that nobody waits for a put.

Java: DefaultMessageStore.lookMessageByOffset, queryMessage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice

from storage.format.record import Message
from storage.index.store import IndexStore, messages_with_key
from storage.log.commit_log import CommitLog
from storage.message_store import MessageStore


class LookUps:
    """What has been written of an open store, one look at a time. Thread-safe."""

    def __init__(self, store: MessageStore, written_end: Callable[[], int]) -> None:
        """`written_end` says up to where records are whole in the log's files; the store may be put into meanwhile."""
        files, index = store.writer.file_system, store.config.index
        self._log: CommitLog = store.layout.commit_log(files)
        self._index = IndexStore(files, store.root, index.max_hash_slot_num, index.max_index_num)
        self._written_end = written_end
        self._lock = threading.Lock()

    def message_at(self, commitlog_offset: int) -> Message:
        """The message whose record begins there. Raises OffsetOutOfRangeError, CorruptRecordError where none is."""
        with self._lock:
            end = self._see_end()
            return self._log.message_at(commitlog_offset, end)

    def messages_by_key(self, topic: str, key: str, max_count: int) -> list[Message]:
        """The newest `max_count` messages with that key or unique key, by place in the log. Raises IndexGeometryUnknownError."""
        with self._lock:
            found = messages_with_key(self._index, self._log, self._see_end(), topic, key)
            return sorted(islice(found, max_count), key=lambda message: message.commitlog_offset)

    def close(self) -> None:
        """Let go of files. What is asked later opens them again."""
        with self._lock:
            self._log.close()
            self._index.close()

    def _see_end(self) -> int:
        """Where the log ends now; its files are listed again where it has grown out of those that are known."""
        end = self._written_end()
        self._log.see(end)
        return end
