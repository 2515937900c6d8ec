"""One at a time for each key, and no order between keys: requests about one transaction wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Keys that somebody has. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Has the key for itself, when whoever has it gives it back."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._taken)
            self._taken.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(key)
                self._changed.notify_all()
