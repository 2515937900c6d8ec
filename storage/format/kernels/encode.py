"""Records joined from their parts, and hashes of texts, by compiled loops.

The same as `storage/format/record_block.py` and `arrays.py` make with Arrow and NumPy. Java: MessageExtEncoder; String.hashCode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.arrays import CRC_MASK
from storage.format.kernels.ground import (
    BYTES,
    INTS,
    LONG,
    READ,
    READ_INT64,
    crc32,
    inline,
    kernel,
    memcpy,
    put_be32,
    u8,
)
from storage.format.record import HEADERS

_CRC: int = HEADERS[0].fields["body_crc"][1]  # type: ignore[index]


class Parts(NamedTuple):
    """n records in their parts: strings data[begins[i]:ends[i]]."""

    headers: Any
    """n of one size, back to back, complete; or but for the bodies' sums."""
    bodies: Any
    body_begins: Any
    body_ends: Any
    names: Any
    """The topics, each with its length before it."""
    name_begins: Any
    name_ends: Any
    properties: Any
    property_begins: Any
    property_ends: Any


_STRINGS = (READ, READ_INT64, READ_INT64)
_PARTS = types.NamedTuple((READ, *_STRINGS, *_STRINGS, *_STRINGS), Parts)


@inline
def _lie_in(data: Any, begins: Any, ends: Any, row: Any) -> Any:
    return 0 <= begins[row] <= ends[row] <= len(data)


if crc32 is not None:

    @kernel(types.boolean(BYTES, LONG, LONG, _PARTS, types.boolean))
    def join_records(out: Any, first: int, last: int, parts: Parts, sums: bool) -> bool:
        """Records [first, last) back to back in `out`, with `sums` their bodies' sums, too, else those of the headers.

        False where they do not fill it, or one does not lie in its data.
        """
        count = np.int64(len(parts.name_begins))
        if first < 0 or last > count or count == 0:
            return False
        if min(len(parts.body_begins), len(parts.body_ends), len(parts.name_ends)) < last:
            return False
        if min(len(parts.property_begins), len(parts.property_ends)) < last:
            return False
        header_size, at = np.int64(len(parts.headers)) // count, np.int64(0)
        start = np.uint64(parts.bodies.ctypes.data)
        for row in range(first, last):
            if not _lie_in(parts.bodies, parts.body_begins, parts.body_ends, row):
                return False
            if not _lie_in(parts.names, parts.name_begins, parts.name_ends, row):
                return False
            if not _lie_in(parts.properties, parts.property_begins, parts.property_ends, row):
                return False
            body, properties, name = parts.body_begins[row], parts.property_begins[row], parts.name_begins[row]
            body_size, name_size = parts.body_ends[row] - body, parts.name_ends[row] - name
            properties_size = parts.property_ends[row] - properties
            if at + header_size + body_size + name_size + 2 + properties_size > len(out):
                return False
            memcpy(out, at, parts.headers, row * header_size, header_size)
            if sums:
                crc = crc32(np.uint32(0), start + np.uint64(body), np.uint64(body_size))
                put_be32(out, at + _CRC, np.int64(crc) & CRC_MASK)
            at += header_size
            memcpy(out, at, parts.bodies, body, body_size)
            at += body_size
            memcpy(out, at, parts.names, name, name_size)
            at += name_size
            out[at], out[at + 1] = properties_size >> 8, properties_size & 0xFF
            at += 2
            memcpy(out, at, parts.properties, properties, properties_size)
            at += properties_size
        return bool(at == len(out))


@kernel(types.boolean(INTS, READ, READ_INT64))
def hash_texts(hashes: Any, data: Any, offsets: Any) -> bool:
    """`String.hashCode` of texts data[offsets[i]:offsets[i + 1]]. False where one is not ASCII, or does not lie in the data."""
    seen = np.int64(0)
    if len(offsets) <= len(hashes):
        return False
    for row in range(len(hashes)):
        begin, end = offsets[row], offsets[row + 1]
        if begin < 0 or end < begin or end > len(data):
            return False
        value = np.int64(0)
        for place in range(begin, end):
            byte = u8(data, place)
            seen |= byte
            value = (31 * value + byte) & 0xFFFFFFFF
        hashes[row] = value
    return bool(seen < 0x80)
