"""Kernels of the way from rows to records. Each says where it stopped; whoever calls it does the rest by the exact path.

Offsets are int64, one more than rows; they are believed only where they lie in their data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from storage.format.kernels import crc
from storage.format.kernels.ground import (
    READ,
    READ_INT32,
    READ_INT64,
    READ_UINT32,
    fetch,
    inline,
    kernel,
    le_u32,
    memcpy,
    move,
    put_be16,
    put_be32,
    put_u8,
    u8,
)

HAS_CRC = crc.IS_FAST
"""Whether `join_records` makes the bodies' sums; else they stand in the headers already."""
_CRC_MASK = 0x7FFFFFFF
_CRC_POSITION = 8
_PROPERTIES_LIMIT = 0xFFFF
_BYTES = types.uint8[::1]
_INT64 = types.int64[::1]
_INT32 = types.int32[::1]
_UINT32 = types.uint32[::1]


class Strings(NamedTuple):
    """n byte strings: string i is data[offsets[i]:offsets[i + 1]]."""

    data: np.ndarray
    offsets: np.ndarray


_STRINGS = types.NamedTuple((READ, READ_INT64), Strings)


@kernel(types.UniTuple(types.int64, 2)(_BYTES, types.int64, READ, _STRINGS, _STRINGS, READ_INT32, _STRINGS))
def join_records(out, first, headers, bodies, names, name_codes, properties):
    """Records from row `first` on, back to back, as many as fit in `out`: header, body, name, length of properties, properties.

    Returns the row that comes next and how many bytes. That is row `first` itself where it does not fit, or is not what it seems.
    `headers` are n of one size, end to end, complete but for the bodies' sums (`HAS_CRC`). Row i has name `name_codes[i]`.
    """
    count = len(name_codes)
    if count == 0 or first < 0 or len(bodies.offsets) <= count or len(properties.offsets) <= count:
        return first, 0
    header_size = len(headers) // count
    at = 0
    for row in range(first, count):
        body, body_end = bodies.offsets[row], bodies.offsets[row + 1]
        begin, end = properties.offsets[row], properties.offsets[row + 1]
        code = np.int64(name_codes[row])
        if code < 0 or code + 1 >= len(names.offsets):
            return row, at
        name, name_end = names.offsets[code], names.offsets[code + 1]
        if body < 0 or body_end < body or body_end > len(bodies.data):
            return row, at
        if begin < 0 or end < begin or end > len(properties.data) or end - begin > _PROPERTIES_LIMIT:
            return row, at
        if at + header_size + (body_end - body) + (name_end - name) + 2 + (end - begin) > len(out):
            return row, at
        fetch(bodies.data, body_end, body_end - body)  # the next body, if it is as large
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
    return count, at


class Bits(NamedTuple):
    """Which of n values are there: bit `first` + i of an Arrow bitmap; of an empty one all are."""

    bits: np.ndarray
    first: int


_BITS = types.NamedTuple((READ, types.int64), Bits)


@inline
def _is_there(valid, row):
    bit = valid.first + row
    return len(valid.bits) == 0 or (u8(valid.bits, bit >> 3) >> (bit & 7)) & 1 != 0


@inline
def _is_within(strings, row):
    """Whether string `row` lies in its data."""
    return 0 <= strings.offsets[row] <= strings.offsets[row + 1] <= len(strings.data)


class Around(NamedTuple):
    """What surrounds a column's values: `lead` in every row, `before` and `after` where there is a value."""

    lead: np.ndarray
    before: np.ndarray
    after: np.ndarray


_AROUND = types.NamedUniTuple(READ, 3, Around)


@kernel(types.int64(_BYTES, _INT64, READ_INT64, _STRINGS, _BITS, _AROUND))
def lay_column(out, places, ends, values, valid, around):
    """Write a column's values into the rows of `out`, each from its `places` on, which move on; nothing behind its end.

    How many rows: fewer than there are where one does not fit. A column without offsets has no values.
    """
    count = len(places)
    has_values = len(values.offsets) > count
    lead, before, after = len(around.lead), len(around.before), len(around.after)
    for row in range(count):
        at, end = places[row], ends[row]
        if at < 0 or end > len(out) or at + lead > end:
            return row
        move(out, at, around.lead, 0, lead)
        at += lead
        if has_values and _is_there(valid, row):
            if not _is_within(values, row):
                return row
            begin = values.offsets[row]
            size = values.offsets[row + 1] - begin
            if at + before + size + after > end:
                return row
            move(out, at, around.before, 0, before)
            at += before
            move(out, at, values.data, begin, size)
            at += size
            move(out, at, around.after, 0, after)
            at += after
        places[row] = at
    return count


@inline
def _signed(value):
    """The lowest 32 bits as Java's int."""
    value &= 0xFFFFFFFF
    return value - (np.int64(1) << 32) if value >> 31 else value


@inline
def _index_hash(value):
    """As `unique_key.index_hashes`."""
    value = abs(_signed(value))
    return np.int64(0) if value == np.int64(1) << 31 else value


@kernel(types.boolean(_INT32, _STRINGS, _BITS))
def hash_strings(hashes, texts, valid):
    """`String.hashCode` of ASCII texts, 0 where none is there. False where one is not ASCII."""
    seen = np.int64(0)
    for row in range(len(hashes)):
        value = np.int64(0)
        if _is_there(valid, row):
            if not _is_within(texts, row):
                return False
            for position in range(texts.offsets[row], texts.offsets[row + 1]):
                byte = u8(texts.data, position)
                seen |= byte
                value = (31 * value + byte) & 0xFFFFFFFF
        hashes[row] = _signed(value)
    return seen < 0x80


_MOST_KEYS = 64
_BLANK = 0x20


@kernel(types.int64(_INT32, _INT32, READ_UINT32, READ_INT32, _STRINGS, _BITS))
def hash_keys(counts, found, prefixes, unique_hashes, keys, valid):
    """As `message_keys.message_keys`: counts, and how many hashes in `found`; −1 where a key is not ASCII, or a row has very many."""
    seen = np.int64(0)
    total = 0
    for row in range(len(counts)):
        first = total
        if unique_hashes[row] >= 0:
            if total >= len(found):
                return -1
            found[total] = unique_hashes[row]
            total += 1
        if _is_there(valid, row):
            if not _is_within(keys, row):
                return -1
            prefix = np.int64(prefixes[0 if len(prefixes) == 1 else row])
            position, end = keys.offsets[row], keys.offsets[row + 1]
            while position < end:
                value = prefix
                begin = position
                byte = u8(keys.data, position)
                while byte != _BLANK:
                    seen |= byte
                    value = (31 * value + byte) & 0xFFFFFFFF
                    position += 1
                    if position == end:
                        break
                    byte = u8(keys.data, position)
                if position > begin:
                    key = _index_hash(value)
                    is_new = True
                    for place in range(first, total):
                        is_new &= found[place] != key
                    if is_new:
                        if total >= len(found) or total - first > _MOST_KEYS:
                            return -1
                        found[total] = key
                        total += 1
                position += 1
        counts[row] = total - first
    return total if seen < 0x80 else -1


_PREFIX_SIZE = 20
_POWER_OF_PREFIX = pow(31, _PREFIX_SIZE, 1 << 32)
_UNIQUE_KEY_SIZE = 32
_POWERS = tuple(np.int64(31**power) for power in range(5))
_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()


@kernel(types.boolean(_BYTES, READ, types.int64))
def write_unique_keys(out, prefix, first_rank):
    """Unique keys of 32 digits back to back: the prefix's 20, then the rank's."""
    count = len(out) // _UNIQUE_KEY_SIZE
    if len(prefix) != _PREFIX_SIZE or count * _UNIQUE_KEY_SIZE != len(out):
        return False
    for row in range(count):
        at = row * _UNIQUE_KEY_SIZE
        move(out, at, prefix, 0, _PREFIX_SIZE)
        rank = first_rank + row
        for digit in range(_PREFIX_SIZE, _UNIQUE_KEY_SIZE):
            put_u8(out, at + digit, _HEX_DIGITS[(rank >> (4 * (_UNIQUE_KEY_SIZE - 1 - digit))) & 15])
    return True


@inline
def _hash_four(value, word):
    """The hash of a text of that hash and four more ASCII characters, the lowest byte first; its lowest 32 bits count."""
    return (
        value * _POWERS[4]
        + (word & 255) * _POWERS[3]
        + ((word >> 8) & 255) * _POWERS[2]
        + ((word >> 16) & 255) * _POWERS[1]
        + ((word >> 24) & 255)
    )


@kernel(types.boolean(_UINT32, READ_UINT32, types.uint32, READ))
def hash_unique_keys(hashes, before, prefix_hash, keys):
    """`String.hashCode` of unique keys of 32 digits behind texts of given hashes, one or n; `prefix_hash` is that of their first 20."""
    count = len(hashes)
    if len(keys) != count * _UNIQUE_KEY_SIZE or (len(before) != 1 and len(before) != count):
        return False
    for row in range(count):
        value = np.int64(before[0 if len(before) == 1 else row]) * _POWER_OF_PREFIX + prefix_hash
        for digit in range(_PREFIX_SIZE, _UNIQUE_KEY_SIZE, 4):
            value = _hash_four(value, le_u32(keys, row * _UNIQUE_KEY_SIZE + digit))
        hashes[row] = value & 0xFFFFFFFF
    return True
