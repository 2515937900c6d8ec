"""Waiting for what comes about in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    met: Callable[[], object], what: str, timeout_seconds: float = 60, *, pause_seconds: float = 0.1
) -> None:
    """Look again and again. Raises AssertionError if it does not come to that."""
    deadline = time.monotonic() + timeout_seconds
    while not met():
        assert time.monotonic() < deadline, f"{timeout_seconds:.0f} s have passed, and not yet: {what}"
        time.sleep(pause_seconds)
