"""Message ids made of an address and a commit log offset. Java: MessageDecoder.createMessageId, MessageId.

0                     4 | 16      8 | 20               16 | 28 bytes, written as upper-case hex
| IPv4 | IPv6 address | port      | commitlog_offset |
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_HEX_PAIRS = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), np.uint16)


def encode_offset_message_id(address: bytes, port: int, commitlog_offset: int) -> str:
    """The offset message id: `msgId` of a broker's answer, `offsetMsgId` of a client."""
    return (address + port.to_bytes(4, "big") + commitlog_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[bytes, int, int]:
    """(address, port, commitlog_offset) of an offset message id; ValueError if it is none."""
    if len(message_id) not in (32, 56):
        raise ValueError(f"{message_id!r} is no offset message id: it has {len(message_id)} characters, not 32 or 56")
    raw = bytes.fromhex(message_id)
    if 2 * len(raw) != len(message_id):
        raise ValueError(f"{message_id!r} is no offset message id: it has blanks")
    return raw[:-12], int.from_bytes(raw[-12:-8], "big"), int.from_bytes(raw[-8:], "big", signed=True)


def hex_strings(rows: np.ndarray) -> pa.StringArray:
    """An `(n, width)` matrix of bytes as `n` strings of upper-case hex."""
    count, width = rows.shape
    characters = np.ascontiguousarray(_HEX_PAIRS[rows])
    offsets = (
        np.arange(0, (count + 1) * 2 * width, 2 * width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    )
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(characters))
