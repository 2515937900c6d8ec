"""What the sessions of both ends of a replication connection share: what they tell its owner, what has come in and is not decoded yet,
and how long each end is silent. Without sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from storage.format.record import NeedMoreBytes
from storage.format.replication import Decoded, FrameEpoch, MasterHandshake

RECONNECT_MS = 5_000
"""Between two tries of a slave. Java: DefaultHAClient, not configurable."""
CONNECT_TIMEOUT_MS = 5_000


class Identified(NamedTuple):
    """A slave has said who it is. Only in the controller's dialect."""

    broker_id: int
    is_learner: bool
    syncs_from_last_file: bool


class Asked(NamedTuple):
    """A slave has said where its log ends. It gets nothing before `MasterSession.begin`, and counts for nothing."""

    offset: int


class Acknowledged(NamedTuple):
    """A slave has the log up to there."""

    offset: int


class Refused(NamedTuple):
    """The peer has said what cannot be; the connection is to be closed, and the reason told."""

    reason: str


class Introduced(NamedTuple):
    """A master has said which epochs its log has. Nothing is asked of it before `SlaveSession.begin`."""

    handshake: MasterHandshake


class Received(NamedTuple):
    """Bytes of the log that follow the slave's end, in one file of it. A heartbeat has none."""

    commitlog_offset: int
    body: bytes | memoryview
    epoch: FrameEpoch | None


SessionEvent = Identified | Asked | Acknowledged | Refused | Introduced | Received


class Incoming:
    """Bytes on their way into values. Holds less than one value, whose size its decoder bounds."""

    def __init__(self, decode: Callable[[memoryview], Decoded | NeedMoreBytes]) -> None:
        self._decode = decode
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 1

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """The values that are whole now; what they hold of the bytes is not copied. Raises CorruptRecordError for what is no value."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        whole = memoryview(b"".join(self._pieces) if len(self._pieces) > 1 else data)
        position = 0
        while True:
            found = self._decode(whole[position:])
            if isinstance(found, NeedMoreBytes):
                break
            position += found.size_bytes
            yield found
        self._pieces = [bytes(whole[position:])]
        self._held, self._needed = len(whole) - position, found.size_bytes


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
