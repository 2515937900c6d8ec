"""The body of a batch: the client's messages one behind the other.

    0      4     8          12     16            20       20 + n              22 + n
    | size | (0) | body_crc | flag | body length | body n | properties length | properties |

Size, magic and CRC are read over, as Java does. Each message becomes a record of its own in the batch's queue.
Java: MessageDecoder.encodeMessage, MessageExtEncoder.encode of a MessageExtBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storage.errors import MessageIllegalError
from storage.format.properties import PROPERTIES_LIMIT_BYTES

_HEAD = struct.Struct(">12x i i")
_ITEM = struct.Struct(">i 8x i i")
_LENGTH = struct.Struct(">h")


class BatchedMessage(NamedTuple):
    """One message of a batch."""

    body: bytes
    raw_properties: bytes
    flag: int = 0


def decode_batch(body: bytes | memoryview) -> list[BatchedMessage]:
    """The messages of a batch; ValueError where its lengths do not add up."""
    return list(_messages(bytes(body)))


def _messages(body: bytes) -> Iterator[BatchedMessage]:
    position = 0
    while position < len(body):
        try:
            flag, body_size = _HEAD.unpack_from(body, position)
            start = position + _HEAD.size
            (properties_size,) = _LENGTH.unpack_from(body, start + max(body_size, 0))
        except struct.error:
            raise ValueError(f"the message at byte {position} does not end within the batch") from None
        end = start + body_size + _LENGTH.size + properties_size
        if body_size < 0 or properties_size < 0 or end > len(body):
            raise ValueError(f"the message at byte {position} does not end within the batch")
        yield BatchedMessage(body[start : start + body_size], body[start + body_size + _LENGTH.size : end], flag)
        position = end


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """The body of a batch, as a client makes it.

    Raises MessageIllegalError for properties of more than 32,767 bytes; Java writes a length of 16 bits that is another, and the broker
    reads what follows as something else.
    """
    pieces: list[bytes] = []
    for body, raw_properties, flag in messages:
        if len(raw_properties) > PROPERTIES_LIMIT_BYTES:
            raise MessageIllegalError("properties", PROPERTIES_LIMIT_BYTES, len(raw_properties))
        size = _ITEM.size + len(body) + _LENGTH.size + len(raw_properties)
        pieces += (_ITEM.pack(size, flag, len(body)), body, _LENGTH.pack(len(raw_properties)), raw_properties)
    return b"".join(pieces)


def with_batch_properties(raw_properties: bytes, batch_properties: bytes) -> bytes:
    """A message's own property string, closed if need be, and the batch's behind it; a name may stand there twice."""
    is_open = raw_properties and batch_properties and not raw_properties.endswith(b"\x02")
    return raw_properties + (b"\x02" if is_open else b"") + batch_properties
