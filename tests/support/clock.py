"""A clock that stands where a test has set it."""

from __future__ import annotations


class Clock:
    """Gives `now_ms`, which a test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
