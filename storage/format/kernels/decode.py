"""Records of a window into columns, compiled. The same arrays as `storage/format/record_batch.py` and `properties.py` give, or False.

A kernel does regular rows: whole records of magic V1 or V2 with IPv4 hosts, and properties as `properties.py` beside this takes them.
At the first row that is another it returns False, and what it wrote counts for nothing. It trusts nothing in a window's bytes, and
leaves no array. Java: MessageDecoder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.kernels.blocks import hex8
from storage.format.kernels.ground import (
    READ,
    be_i32,
    be_i64,
    kernel,
    le_i64,
    le_u32,
    memcpy,
    put_le64,
    same,
)
from storage.format.kernels.lay_out import Laid, Limits, lay_out
from storage.format.kernels.properties import MAX_ENTRIES, Maps, Sequence, Texts, new_sequence, properties
from storage.format.kernels.regular import BODY_SIZE, topic_of
from storage.format.kernels.rows import BYTES, INT_ROWS, LONG, LONG_ROWS, LONGS, ROWS, STRINGS, Rows, Strings
from storage.format.kernels.walk import HAS_CRC, crcs, number_topics, walk
from storage.format.record import HEADER_SIZE, HEADERS

__all__ = [
    "HAS_CRC",
    "MAX_ENTRIES",
    "Fields",
    "Laid",
    "Limits",
    "Maps",
    "Rows",
    "Sequence",
    "Strings",
    "Texts",
    "bodies",
    "check",
    "crcs",
    "fields",
    "lay_out",
    "message_ids",
    "new_sequence",
    "number_topics",
    "properties",
    "walk",
]


def _position_of(name: str) -> int:
    return HEADERS[0].fields[name][1]  # type: ignore[index]


_QUEUE_ID = _position_of("queue_id")
_PLACE = _position_of("commitlog_offset")
_STORE_HOST = _position_of("store_host")


class Fields(NamedTuple):
    """Fields of the header that are wanted: where in it they stand, and a row of a matrix for each."""

    long_positions: Any
    longs: Any
    """int64, native."""
    int_positions: Any
    ints: Any
    """int32, native."""
    host_positions: Any
    hosts: Any
    """int64, the bytes as they stand."""


_FIELDS = types.NamedTuple((LONGS, LONG_ROWS, LONGS, INT_ROWS, LONGS, LONG_ROWS), Fields)


@kernel(types.boolean(ROWS, LONG, LONG, READ, LONG))
def check(rows: Rows, first: int, last: int, topic: Any, queue_id: int) -> bool:
    """Whether each of rows [first, last) is a regular record that agrees with what is said of it: size, place, topic and queue id."""
    topic_size = np.int64(len(topic))
    for row in range(first, last):
        begin = rows.positions[row]
        topic_begin, topic_end = topic_of(rows.buffer, begin, rows.sizes[row])
        if topic_end < 0 or be_i32(rows.buffer, begin + _QUEUE_ID) != queue_id:
            return False
        if len(rows.places) and be_i64(rows.buffer, begin + _PLACE) != rows.places[row]:
            return False
        if topic_end - topic_begin != topic_size or not same(rows.buffer, topic_begin, topic, np.int64(0), topic_size):
            return False
        rows.properties[row] = topic_end + 2
    return True


@kernel(types.void(ROWS, LONG, LONG, _FIELDS))
def fields(rows: Rows, first: int, last: int, wanted: Fields) -> None:
    """The fields of rows that are checked."""
    for row in range(first, last):
        begin = rows.positions[row]
        for i in range(len(wanted.long_positions)):
            wanted.longs[i, row] = be_i64(rows.buffer, begin + wanted.long_positions[i])
        for i in range(len(wanted.int_positions)):
            wanted.ints[i, row] = be_i32(rows.buffer, begin + wanted.int_positions[i])
        for i in range(len(wanted.host_positions)):
            wanted.hosts[i, row] = le_i64(rows.buffer, begin + wanted.host_positions[i])


@kernel(types.boolean(ROWS, LONG, LONG, STRINGS))
def bodies(rows: Rows, first: int, last: int, column: Strings) -> bool:
    """The bodies, as stored, of rows that are checked. False where one has changed since: a file's map shows what its writer does."""
    at = np.int64(column.offsets[first])
    for row in range(first, last):
        begin = rows.positions[row]
        size = be_i32(rows.buffer, begin + BODY_SIZE)
        if size < 0 or begin + HEADER_SIZE + size > rows.properties[row]:
            return False
        memcpy(column.data, at, rows.buffer, begin + HEADER_SIZE, size)
        at += size
        column.offsets[row + 1] = at
    return True


@kernel(types.void(ROWS, LONG, LONG, BYTES))
def message_ids(rows: Rows, first: int, last: int, data: Any) -> None:
    """The offset message ids, 32 characters each, of rows that are checked."""
    for row in range(first, last):
        begin, at = rows.positions[row], np.int64(32) * row
        put_le64(data, at, hex8(le_u32(rows.buffer, begin + _STORE_HOST)))
        put_le64(data, at + 8, hex8(le_u32(rows.buffer, begin + _STORE_HOST + 4)))
        put_le64(data, at + 16, hex8(le_u32(rows.buffer, begin + _PLACE)))
        put_le64(data, at + 24, hex8(le_u32(rows.buffer, begin + _PLACE + 4)))
