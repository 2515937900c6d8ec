"""Kernels of the way from rows to records. Each says where it stopped; whoever calls it does the rest by the exact path.

Offsets are int64, one more than rows; they are believed only where they lie in their data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from storage.format.kernels import crc
from storage.format.kernels.ground import READ, READ_INT32, READ_INT64, kernel, memcpy, move, put_be16, put_be32

HAS_CRC = crc.IS_FAST
"""Whether `join_records` makes the bodies' sums; else they stand in the headers already."""
_CRC_MASK = 0x7FFFFFFF
_CRC_POSITION = 8
_PROPERTIES_LIMIT = 0xFFFF
_BYTES = types.uint8[::1]
_INT64 = types.int64[::1]
_INT32 = types.int32[::1]


class Strings(NamedTuple):
    """n byte strings: string i is data[offsets[i]:offsets[i + 1]]."""

    data: np.ndarray
    offsets: np.ndarray


_STRINGS = types.NamedTuple((READ, READ_INT64), Strings)


@kernel(types.int64(_BYTES, READ, _STRINGS, _STRINGS, READ_INT32, _STRINGS))
def join_records(out, headers, bodies, names, name_codes, properties):
    """Records back to back: header, body, name, length of properties, properties. How many bytes; −1 where they are not what they seem.

    `headers` are n of one size, end to end, complete but for the bodies' sums (`HAS_CRC`). Row i has name `name_codes[i]`.
    """
    count = len(name_codes)
    if count == 0 or len(bodies.offsets) <= count or len(properties.offsets) <= count:
        return -1
    header_size = len(headers) // count
    at = 0
    for row in range(count):
        body, body_end = bodies.offsets[row], bodies.offsets[row + 1]
        begin, end = properties.offsets[row], properties.offsets[row + 1]
        code = np.int64(name_codes[row])
        if code < 0 or code + 1 >= len(names.offsets):
            return -1
        name, name_end = names.offsets[code], names.offsets[code + 1]
        if body < 0 or body_end < body or body_end > len(bodies.data):
            return -1
        if begin < 0 or end < begin or end > len(properties.data) or end - begin > _PROPERTIES_LIMIT:
            return -1
        if at + header_size + (body_end - body) + (name_end - name) + 2 + (end - begin) > len(out):
            return -1
        memcpy(out, at, headers, row * header_size, header_size)
        if HAS_CRC:
            put_be32(out, at + _CRC_POSITION, crc.crc32(bodies.data, body, body_end - body) & _CRC_MASK)
        at += header_size
        memcpy(out, at, bodies.data, body, body_end - body)
        at += body_end - body
        move(out, at, names.data, name, name_end - name)
        at += name_end - name
        put_be16(out, at, end - begin)
        at += 2
        memcpy(out, at, properties.data, begin, end - begin)
        at += end - begin
    return at
