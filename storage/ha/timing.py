"""How long the two ends of a replication connection are silent, and wait for each other. Java: MessageStoreConfig."""

from __future__ import annotations

from dataclasses import dataclass

RECONNECT_MS = 5_000
"""Between two tries of a slave. Java: DefaultHAClient, not configurable."""
CONNECT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Timing:
    """What both ends go by."""

    heartbeat_ms: int = 5_000
    """haSendHeartbeatInterval: who has written nothing for so long writes where it is."""
    housekeeping_ms: int = 20_000
    """haHousekeepingInterval: who has read nothing for so long hangs up."""


class Silence:
    """When a connection was last read and written."""

    def __init__(self, timing: Timing, now_ms: int) -> None:
        self._timing = timing
        self.read_ms = self.written_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether the peer has been silent for too long."""
        return now_ms - self.read_ms > self._timing.housekeeping_ms

    def wants_word(self, now_ms: int) -> bool:
        """Whether this end has been silent for long enough."""
        return now_ms - self.written_ms >= self._timing.heartbeat_ms

    def deadline_ms(self, *, may_write: bool = True) -> int:
        """When one of both is so, if nothing happens before; without a word where none could be written."""
        is_over_ms = self.read_ms + self._timing.housekeeping_ms + 1
        return min(is_over_ms, self.written_ms + self._timing.heartbeat_ms) if may_write else is_over_ms
