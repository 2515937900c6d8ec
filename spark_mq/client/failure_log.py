"""Failures that repeat, logged once with a count: a listener that fails on every message must not fill the disk with its traceback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from storage.epoch_times import steady_time_ms

PAUSE_MS = 60_000


@dataclass(slots=True)
class _Kind:
    """A kind of failure since it was logged last."""

    logged_ms: int
    text: str
    count: int = 0


class FailureLog:
    """Logs the first failure of each kind with its traceback, then at most once a minute, and at the end, their number. Thread-safe."""

    def __init__(
        self, log: logging.Logger, *, pause_ms: int = PAUSE_MS, clock_ms: Callable[[], int] = steady_time_ms
    ) -> None:
        self._log = log
        self._pause_ms = pause_ms
        self._clock_ms = clock_ms
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def note(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """A failure happened. The kinds should be few: the type of an exception, not its text."""
        now_ms = self._clock_ms()
        with self._lock:
            known = self._kinds.get(kind)
            if known is not None:
                known.text, known.count = text, known.count + 1
                if now_ms - known.logged_ms >= self._pause_ms:
                    self._tell(known, now_ms)
                return
            self._kinds[kind] = _Kind(now_ms, text)
        self._log.warning("%s", text, exc_info=error)

    def close(self) -> None:
        """Log the counts that are not logged yet."""
        now_ms = self._clock_ms()
        with self._lock:
            for known in self._kinds.values():
                self._tell(known, now_ms)

    def _tell(self, known: _Kind, now_ms: int) -> None:
        if known.count:
            self._log.warning("%s (the last of %d more failures like it)", known.text, known.count)
        known.logged_ms, known.count = now_ms, 0
