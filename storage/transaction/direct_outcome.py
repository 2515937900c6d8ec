"""What became of one transaction, found by keys in the index and not by reading what lies behind its half.

    half ─▶ its copies: messages of the half topic with its unique key (`half_queue.py` says which) ─▶ where it began
         ─▶ a commit record that names one of them: where the half was sent to, or where that waits
         ─▶ an op message: as remembered (`known_ends.py`)

The index is known to be whole from some place on (`StoreEnds.indexed_from`). Of a transaction that began before it, or whose half
has no unique key, nothing is said here: `outcomes.py` reads. Java looks at none of this (EndTransactionProcessor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from storage.errors import IndexGeometryUnknownError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import Message
from storage.rules.delays import REAL_TOPIC, TIMER_TOPIC
from storage.rules.half_messages import CHECK_TIMES, FIRST_OFFSET, HALF_TOPIC
from storage.transaction.commit_records import is_commit_of
from storage.transaction.half_queue import NO_PLACE

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
    half_places: tuple[int, ...]
    """Where in the log they lie."""
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
        halves = [copy for copy in _with_key(store, HALF_TOPIC, key) if copy.born_time_ms == half.born_time_ms]
        if half.commitlog_offset not in [copy.commitlog_offset for copy in halves]:
            return None
        begins = [copy.commitlog_offset for copy in halves if _is_first(copy)]
        began_at = max((place for place in begins if place <= half.commitlog_offset), default=-1)
        if began_at < indexed_from:  # −1: nobody knows where it began
            return None
        next_at = min((place for place in begins if place > half.commitlog_offset), default=NO_PLACE)
        halves = [copy for copy in halves if began_at <= copy.commitlog_offset < next_at]
        topics = (half.properties.get(REAL_TOPIC, ""), SCHEDULE_TOPIC, TIMER_TOPIC)
        is_committed = any(
            is_commit_of(message, key, half.born_time_ms, began_at, next_at)
            for topic in topics
            for message in _with_key(store, topic, key)
        )
    except IndexGeometryUnknownError:
        return None
    offsets, places = (tuple(getattr(copy, name) for copy in halves) for name in ("queue_offset", "commitlog_offset"))
    return KeyedTransaction(began_at, offsets, places, is_committed)


def _with_key(store: ByKey, topic: str, key: str) -> Sequence[Message]:
    return [message for message in store.messages_by_key(topic, key, _ALL) if message.unique_key == key]


def _is_first(half: Message) -> bool:
    """Whether a producer has sent it; else it was put back."""
    return {CHECK_TIMES, FIRST_OFFSET}.isdisjoint(half.properties)
