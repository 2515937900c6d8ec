"""How much of a producer waits for answers: counted and bounded, for threads that send and the loop that hears the answers.

Java: DefaultMQProducerImpl.executeAsyncMessageSend with enableBackpressureForAsyncMode.
"""

from __future__ import annotations

import threading
import time

from spark_mq.client.errors import TooManyInFlightError


class InFlight:
    """Messages and bytes under way, at most `max_count` and `max_bytes`. One message alone always fits."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._count = 0
        self._bytes = 0
        self._waiting = 0
        self._changed = threading.Condition()

    @property
    def count(self) -> int:
        """Messages under way."""
        return self._count

    def add(self, size_bytes: int) -> None:
        """Count one in, whether there is room or not: a thread that waits for its answer is its own bound."""
        with self._changed:
            self._count += 1
            self._bytes += size_bytes

    def take(self, size_bytes: int, timeout_seconds: float) -> None:
        """Count one in as soon as there is room. Raises TooManyInFlightError after the time (0: at once)."""
        with self._changed:
            if not self._has_room(size_bytes):
                self._waiting += 1
                try:
                    if not self._changed.wait_for(lambda: self._has_room(size_bytes), timeout_seconds):
                        raise TooManyInFlightError(self._count, self._bytes)
                finally:
                    self._waiting -= 1
            self._count += 1
            self._bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count one out."""
        with self._changed:
            self._count -= 1
            self._bytes -= size_bytes
            if self._waiting or not self._count:
                self._changed.notify_all()

    def wait_for_none(self, timeout_seconds: float) -> bool:
        """Wait until nothing is under way; False where the time was too short."""
        end = time.monotonic() + timeout_seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, max(end - time.monotonic(), 0))

    def _has_room(self, size_bytes: int) -> bool:
        return not self._count or (self._count < self._max_count and self._bytes + size_bytes <= self._max_bytes)
