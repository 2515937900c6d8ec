"""What a replication session tells whoever has its connection. Values; nothing happens here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from storage.format.record import NeedMoreBytes
from storage.format.replication import Decoded, FrameEpoch, MasterHandshake


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
