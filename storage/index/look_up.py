"""Messages by key, from index and log. Java: DefaultMessageStore.queryMessage."""

from __future__ import annotations

from collections.abc import Iterator

from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.index import index_key
from storage.format.java_hash import index_key_hash
from storage.format.record import Message
from storage.index.store import IndexStore
from storage.log.commit_log import CommitLog

LONG_MAX = 2**63 - 1


def messages_with_key(
    index: IndexStore, log: CommitLog, log_end: int, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = LONG_MAX
) -> Iterator[Message]:
    """The messages of a topic with that key or unique key before `log_end`, newest first. The key is compared with the record's.

    The time range is Java's: by whole seconds of the store time. Raises IndexGeometryUnknownError where the index files do not have
    the configured or default geometry.
    """
    for hit in index.lookup(index_key_hash(index_key(topic, key)), begin_ms, end_ms):
        try:
            message = log.message_at(hit.commitlog_offset, log_end)
        except (OffsetOutOfRangeError, CorruptRecordError):
            continue  # the message has expired, or the item outlived a cut of the log
        if message.topic == topic and (key == message.unique_key or key in message.keys):
            yield message
