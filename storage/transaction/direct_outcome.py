"""What became of one transaction, found by keys in the index and not by reading what lies behind its half.

    half ─▶ its copies: messages of the half topic with its unique key ─▶ where it began
         ─▶ a commit record: a message with that key where the half was sent to, or where that waits
         ─▶ an op message: as remembered (`known_ends.py`)

The index is known to be whole from some place on (`StoreEnds.indexed_from`). Of a transaction that began before it, or whose half
has no unique key, nothing is said here: `outcomes.py` reads. Java looks at none of this (EndTransactionProcessor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from storage.errors import IndexGeometryUnknownError
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.record import Message
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.messages.delays import REAL_TOPIC, TIMER_TOPIC
from storage.messages.half_messages import CHECK_TIMES, FIRST_OFFSET, HALF_TOPIC

_ALL = 1 << 30


class ByKey(Protocol):
    """Where messages are found by key: a `MessageStore` or a `PutService`."""

    def messages_by_key(self, topic: str, key: str, max_count: int = 32) -> list[Message]: ...


class KeyedTransaction(NamedTuple):
    """What the index says of one transaction."""

    began_at: int
    """Where in the log its first half lies."""
    half_offsets: tuple[int, ...]
    """Queue offsets of its halves, ascending."""
    is_committed: bool

    def is_ended(self, is_op: Callable[[int], bool]) -> bool:
        """Whether it is over, where `is_op` says whether an op message names a half."""
        return self.is_committed or any(map(is_op, self.half_offsets))

    def without_op(self, half_offset: int, is_op: Callable[[int], bool]) -> list[int]:
        """The halves from the one at `half_offset` on that no op message names."""
        return [offset for offset in self.half_offsets if offset >= half_offset and not is_op(offset)]


def find_transaction(store: ByKey, half: Message, indexed_from: int) -> KeyedTransaction | None:
    """What the index says of a half's transaction; None where it need not know all of it."""
    key = half.unique_key
    if not key or half.commitlog_offset < indexed_from:
        return None
    try:
        halves = _with_key(store, HALF_TOPIC, key)
        if half.commitlog_offset not in [copy.commitlog_offset for copy in halves]:
            return None
        first = halves[0]
        if first.commitlog_offset < indexed_from or not {CHECK_TIMES, FIRST_OFFSET}.isdisjoint(first.properties):
            return None
        topics = (half.properties.get(REAL_TOPIC, ""), SCHEDULE_TOPIC, TIMER_TOPIC)
        is_committed = any(_is_commit(message, first) for topic in topics for message in _with_key(store, topic, key))
    except IndexGeometryUnknownError:
        return None
    return KeyedTransaction(first.commitlog_offset, tuple(copy.queue_offset for copy in halves), is_committed)


def _with_key(store: ByKey, topic: str, key: str) -> Sequence[Message]:
    return [message for message in store.messages_by_key(topic, key, _ALL) if message.unique_key == key]


def _is_commit(message: Message, first: Message) -> bool:
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_commit and message.commitlog_offset > first.commitlog_offset
