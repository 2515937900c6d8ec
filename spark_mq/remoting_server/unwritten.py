"""How much of what is said waits to be written, of one connection and of all: a peer that does not read gets no more answers made.

An answer counts from the moment on at which it is made, in whichever thread, until the system has taken it.
Departure: Java makes every answer, and keeps it for as long as the connection lasts.
"""

from __future__ import annotations

import threading

OF_ONE_BYTES = 32 << 20
"""Of one connection: more is not answered but with SYSTEM_BUSY."""
OF_ALL_BYTES = 256 << 20
"""Of all together: then of one that has more than a little waiting."""
LITTLE_BYTES = 1 << 20


class UnwrittenOfAll:
    """Of all connections of a server. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size_bytes = 0


class Unwritten:
    """Of one connection. Thread-safe."""

    def __init__(self, of_all: UnwrittenOfAll) -> None:
        self._of_all = of_all
        self.size_bytes = 0

    def change(self, size_bytes: int) -> None:
        """So many more wait; fewer where it is negative."""
        if size_bytes:
            with self._of_all.lock:
                self.size_bytes += size_bytes
                self._of_all.size_bytes += size_bytes

    @property
    def is_too_much(self) -> bool:
        """Whether its requests are to be refused until it has read."""
        return self.size_bytes > OF_ONE_BYTES or (
            self.size_bytes > LITTLE_BYTES and self._of_all.size_bytes > OF_ALL_BYTES
        )
