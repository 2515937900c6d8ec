"""Records joined from their parts, texts joined row by row, and hashes of texts, by compiled loops.

The same as `storage/format/record_block.py` and `arrays.py` make with Arrow and NumPy. Java: MessageExtEncoder; String.hashCode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.arrays import CRC_MASK, Stretches
from storage.format.kernels.ground import (
    BYTES,
    INTS,
    LONG,
    LONGS,
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
    """n records in their parts."""

    headers: Any
    """n of one size, back to back, complete; or but for the bodies' sums."""
    bodies: Stretches
    names: Stretches
    """The topics, each with its length before it."""
    properties: Stretches


_STRETCHES = types.NamedTuple((READ, READ_INT64, READ_INT64), Stretches)
_PARTS = types.NamedTuple((READ, _STRETCHES, _STRETCHES, _STRETCHES), Parts)


@inline
def _lies_in(stretches: Any, row: Any) -> Any:
    """Whether stretch `row` is there, and lies in its data."""
    if row >= min(len(stretches.begins), len(stretches.ends)):
        return False
    return 0 <= stretches.begins[row] <= stretches.ends[row] <= len(stretches.data)


if crc32 is not None:

    @kernel(types.boolean(BYTES, LONG, LONG, _PARTS, types.boolean))
    def join_records(out: Any, first: int, last: int, parts: Parts, sums: bool) -> bool:
        """Records [first, last) back to back in `out`, with `sums` their bodies' sums, too, else those of the headers.

        False where they do not fill it, or one does not lie in its data.
        """
        bodies, names, texts = parts.bodies, parts.names, parts.properties
        count = np.int64(len(names.begins))
        if first < 0 or last > count or count == 0:
            return False
        header_size, at = np.int64(len(parts.headers)) // count, np.int64(0)
        start = np.uint64(bodies.data.ctypes.data)
        for row in range(first, last):
            if not (_lies_in(bodies, row) and _lies_in(names, row) and _lies_in(texts, row)):
                return False
            body, properties, name = bodies.begins[row], texts.begins[row], names.begins[row]
            body_size, name_size = bodies.ends[row] - body, names.ends[row] - name
            properties_size = texts.ends[row] - properties
            if at + header_size + body_size + name_size + 2 + properties_size > len(out):
                return False
            memcpy(out, at, parts.headers, row * header_size, header_size)
            if sums:
                crc = crc32(np.uint32(0), start + np.uint64(body), np.uint64(body_size))
                put_be32(out, at + _CRC, np.int64(crc) & CRC_MASK)
            at += header_size
            memcpy(out, at, bodies.data, body, body_size)
            at += body_size
            memcpy(out, at, names.data, name, name_size)
            at += name_size
            out[at], out[at + 1] = properties_size >> 8, properties_size & 0xFF
            at += 2
            memcpy(out, at, texts.data, properties, properties_size)
            at += properties_size
        return bool(at == len(out))


@kernel(types.boolean(BYTES, LONGS, _STRETCHES))
def lay(out: Any, places: Any, stretches: Any) -> bool:
    """Copy a stretch to each of `places` of `out`, which then lie behind it. A single stretch is for all of them.

    False where one has no room, or does not lie in its data.
    """
    is_single = len(stretches.begins) == 1
    for row in range(len(places)):
        of, at = np.int64(0) if is_single else row, places[row]
        if at < 0 or not _lies_in(stretches, of):
            return False
        begin = stretches.begins[of]
        size = stretches.ends[of] - begin
        if at + size > len(out):
            return False
        memcpy(out, at, stretches.data, begin, size)
        places[row] = at + size
    return True


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
