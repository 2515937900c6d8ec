"""The messages of one queue between the pull and the listener's answer, and from them the offset to store.

    pull ──put──▶ waiting ──remove (concurrent)──▶ done
                  waiting ──take──▶ taken ──commit──▶ done             orderly
                     ▲────again, roll_back──┘

The event loop's thread owns a process queue; listeners run in other threads and never see it. So it needs no lock:
`is_in_use` replaces Java's consumeLock.

Java: ProcessQueue, with its limits and times.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_mq.client.message import MessageExt
from spark_mq.client.settings import FlowLimits
from spark_mq.remoting.consumers import ProcessQueueInfo
from storage.epoch_times import shown_time_ms

LOCK_LIFE_MS = 30_000
"""Lifetime of a broker's lock here; the broker keeps it for 60 s. Java: REBALANCE_LOCK_MAX_LIVE_TIME."""
PULL_IDLE_LIMIT_MS = 120_000
"""A queue that was not pulled for so long is given up and taken anew. Java: PULL_MAX_IDLE_TIME."""
_MIB = 1 << 20


class Cached(NamedTuple):
    """The first and last offset of some messages and how many they are; zeros where there are none."""

    first: int
    last: int
    number: int


class ProcessQueue:
    """One queue that this consumer reads. `limit` arguments count messages; times are ms of a clock that cannot be set.

    Departure: Java goes by the machine's clock; one that is set forward lets its locks expire, and queues be given up and taken anew.
    """

    def __init__(self, now_ms: int) -> None:
        self._waiting: dict[int, MessageExt] = {}
        self._offsets: list[int] = []  # keys of _waiting, sorted
        self._taken: dict[int, MessageExt] = {}
        self._started_ms: dict[int, int] = {}
        self._next_offset = 0  # behind the last message that came
        self.count = 0
        """Messages waiting or taken."""
        self.size_bytes = 0
        """Their bodies as they came."""
        self.is_dropped = False
        """Given up: nothing is pulled, given to a listener or stored any more."""
        self.is_handed_over = False
        """The next consumer may have it by now: what a listener still does with its messages does not count."""
        self.is_locked = True
        self.is_in_use = False
        """A listener has messages of it (orderly)."""
        self.is_served = False
        """A task takes from it, and will look again before it stops (orderly)."""
        self.last_lock_ms = now_ms
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self.unlock_tries = 0

    def put(self, messages: Iterable[MessageExt]) -> bool:
        """Add the messages of a pull, in order; returns whether a taker must start (orderly)."""
        for message in messages:
            if self._insert(message):
                self._next_offset = message.queue_offset + 1
                self.count += 1
                self.size_bytes += len(message.record.body)
        begins = bool(self._waiting) and not self.is_served
        self.is_served = self.is_served or begins
        return begins

    def _insert(self, message: MessageExt) -> bool:
        is_new = message.queue_offset not in self._waiting
        self._waiting[message.queue_offset] = message
        if is_new:
            bisect.insort(self._offsets, message.queue_offset)
        return is_new

    def start(self, messages: Iterable[MessageExt], now_ms: int) -> None:
        """A listener gets them now (concurrent). The one method that is called in the listener's thread: it only notes times."""
        for message in messages:
            self._started_ms[message.queue_offset] = now_ms

    def holds(self, message: MessageExt) -> bool:
        """Whether it still waits: an overdue one may have been sent back in the meantime."""
        return message.queue_offset in self._waiting

    def replace(self, messages: Iterable[MessageExt]) -> None:
        """Put changed ones in the place of those with their offsets, which wait."""
        for message in messages:
            self._waiting[message.queue_offset] = message

    def remove(self, messages: Iterable[MessageExt], now_ms: int) -> int | None:
        """Done with them (concurrent): the offset to store, the first unfinished or what follows the last that came.

        None where nothing waited.
        """
        self.last_consume_ms = now_ms
        if not self._waiting:
            return None
        for message in messages:
            self._started_ms.pop(message.queue_offset, None)
            if self._waiting.pop(message.queue_offset, None) is not None:
                del self._offsets[bisect.bisect_left(self._offsets, message.queue_offset)]
                self.count -= 1
                self.size_bytes -= len(message.record.body)
        return self._offsets[0] if self._offsets else self._next_offset

    def overdue(self, now_ms: int, timeout_ms: int) -> MessageExt | None:
        """The first unfinished message, if a listener has had it for longer than that (concurrent)."""
        if not self._offsets:
            return None
        started_ms = self._started_ms.get(self._offsets[0])
        return self._waiting[self._offsets[0]] if started_ms is not None and now_ms - started_ms > timeout_ms else None

    def take(self, limit: int, now_ms: int) -> list[MessageExt]:
        """The next ones for a listener (orderly). None left: the taker may stop, the next `put` says to begin."""
        self.last_consume_ms = now_ms
        offsets, self._offsets = self._offsets[:limit], self._offsets[limit:]
        messages = [self._waiting.pop(offset) for offset in offsets]
        self._taken.update(zip(offsets, messages, strict=True))
        self.is_served = bool(messages)
        return messages

    def commit(self) -> int | None:
        """Done with all that was taken: the offset behind the last of it, or the first put back; None where nothing was."""
        if not self._taken:
            return None
        self.count -= len(self._taken)
        self.size_bytes -= sum(len(message.record.body) for message in self._taken.values())
        behind = max(self._taken) + 1
        self._taken.clear()
        return min(behind, self._offsets[0]) if self._offsets else behind

    def again(self, messages: Iterable[MessageExt]) -> None:
        """Put taken ones back, as they are now, to be taken again."""
        for message in messages:
            self._taken.pop(message.queue_offset, None)
            self._insert(message)

    def roll_back(self) -> None:
        """Put all taken ones back."""
        self.again(list(self._taken.values()))

    def clear(self) -> None:
        """Forget all messages, after a seek or a reset."""
        self._waiting.clear()
        self._offsets.clear()
        self._taken.clear()
        self._started_ms.clear()
        self._next_offset = self.count = self.size_bytes = 0

    @property
    def waiting(self) -> Cached:
        if not self._offsets:
            return Cached(0, 0, 0)
        return Cached(self._offsets[0], self._offsets[-1], len(self._offsets))

    @property
    def taken(self) -> Cached:
        return Cached(min(self._taken), max(self._taken), len(self._taken)) if self._taken else Cached(0, 0, 0)

    @property
    def span(self) -> int:
        return self.waiting.last - self.waiting.first

    def is_full(self, limits: FlowLimits) -> bool:
        """Whether pulling must pause."""
        return (
            self.count > limits.count
            or self.size_bytes // _MIB > limits.size_mib
            or (limits.span is not None and self.span > limits.span)
        )

    def set_locked(self, now_ms: int) -> None:
        self.is_locked = True
        self.last_lock_ms = now_ms

    def has_live_lock(self, now_ms: int) -> bool:
        return self.is_locked and now_ms - self.last_lock_ms <= LOCK_LIFE_MS

    def is_pull_expired(self, now_ms: int) -> bool:
        return now_ms - self.last_pull_ms > PULL_IDLE_LIMIT_MS

    def info(self, commit_offset: int) -> ProcessQueueInfo:
        """Its entry in the answer to 307."""
        waiting, taken = self.waiting, self.taken
        return ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_message_min_offset=waiting.first,
            cached_message_max_offset=waiting.last,
            cached_message_count=waiting.number,
            cached_message_size_mib=self.size_bytes // _MIB,
            transaction_message_min_offset=taken.first,
            transaction_message_max_offset=taken.last,
            transaction_message_count=taken.number,
            locked=self.is_locked,
            try_unlock_times=self.unlock_tries,
            last_lock_time_ms=shown_time_ms(self.last_lock_ms),
            dropped=self.is_dropped,
            last_pull_time_ms=shown_time_ms(self.last_pull_ms),
            last_consume_time_ms=shown_time_ms(self.last_consume_ms),
        )


def batches(messages: Sequence[MessageExt], size: int) -> list[Sequence[MessageExt]]:
    """The messages in pieces for one call of a listener each."""
    return [messages[start : start + size] for start in range(0, len(messages), size)]
