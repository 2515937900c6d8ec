"""What a peer has sent and nobody has decoded yet, as it comes: in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from storage.format.record import NeedMoreBytes
from storage.format.replication import Decoded


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
