"""Records of a window into columns, compiled. The same arrays as `storage/format/record_batch.py` and `properties.py` give, or False.

A kernel does regular records: whole ones of magic V1 or V2 with IPv4 hosts, and properties as `properties.py` beside this takes them.
At the first row that is another it returns False, and what it wrote counts for nothing. It trusts nothing in a window's bytes, and
leaves no array. Java: MessageDecoder, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.arrays import CRC_MASK
from storage.format.kernels.encode import Parts, hash_texts, join_records, lay
from storage.format.kernels.ground import (
    BYTES,
    INT_ROWS,
    INTS,
    LONG,
    LONG_ROWS,
    LONGS,
    READ,
    READ_INT64,
    be_i16,
    be_i32,
    be_i64,
    be_u32,
    crc32,
    hex8,
    i8,
    inline,
    kernel,
    le_i64,
    le_u32,
    memcpy,
    put_le64,
    same,
)
from storage.format.kernels.properties import (
    MAX_ENTRIES,
    ROWS,
    STRINGS,
    Maps,
    Rows,
    Sequence,
    Strings,
    Texts,
    new_sequence,
    properties,
)
from storage.format.record import (
    HEADER_SIZE,
    HEADERS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    SYS_FLAG_POSITION,
)

__all__ = [
    "HAS_CRC",
    "MAX_ENTRIES",
    "Fields",
    "Laid",
    "Limits",
    "Maps",
    "Parts",
    "Rows",
    "Sequence",
    "Strings",
    "Texts",
    "bodies",
    "check",
    "fields",
    "hash_texts",
    "join_records",
    "lay",
    "lay_out",
    "message_ids",
    "new_sequence",
    "number_topics",
    "properties",
    "walk",
]

HAS_CRC = crc32 is not None
"""Whether there is `crcs`: else one call of isal a stretch makes the sums."""


def _position_of(name: str) -> int:
    return HEADERS[0].fields[name][1]  # type: ignore[index]


_QUEUE_ID = _position_of("queue_id")
_PLACE = _position_of("commitlog_offset")
_STORE_HOST = _position_of("store_host")
_BODY_SIZE = _position_of("body_size_bytes")


# Records that stand one behind the other: where each begins, which topics they have, the sums of stretches


@inline
def topic_of(buffer: Any, begin: Any, size: Any) -> Any:
    """Where the topic of a record begins and ends; (−1, −1) where no regular record of that size stands there."""
    nowhere = np.int64(-1), np.int64(-1)
    if size < MINIMUM_RECORD_SIZE or begin < 0 or size > np.int64(len(buffer)) - begin or be_i32(buffer, begin) != size:
        return nowhere
    magic = be_u32(buffer, begin + 4)
    body_size = be_i32(buffer, begin + _BODY_SIZE)
    if be_i32(buffer, begin + SYS_FLAG_POSITION) & HOST_FLAGS or body_size < 0:
        return nowhere
    body_end = begin + HEADER_SIZE + body_size
    length_size = np.int64(2 if magic == MAGIC_V2 else 1)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or body_end + length_size + 2 > begin + size:
        return nowhere
    topic_size = be_i16(buffer, body_end) if length_size == 2 else i8(buffer, body_end)
    topic_end = body_end + length_size + topic_size
    if topic_size < 0 or topic_end + 2 > begin + size or topic_end + 2 + be_i16(buffer, topic_end) != begin + size:
        return nowhere
    return topic_end - topic_size, topic_end


@kernel(types.int64(READ, LONG, LONGS, LONGS, LONGS))
def walk(buffer: Any, begin: int, positions: Any, sizes: Any, properties: Any) -> Any:
    """Regular records from `begin` on, none between two of them: where each begins, its size, and where its properties begin.

    How many: up to the first that is another, or to the end of the buffer or of the arrays.
    """
    rows = np.int64(min(len(positions), len(sizes), len(properties)))
    end = np.int64(len(buffer))
    for row in range(rows):
        if begin < 0 or begin > end - MINIMUM_RECORD_SIZE:
            return row
        size = be_i32(buffer, begin)
        _, topic_end = topic_of(buffer, begin, size)
        if topic_end < 0:
            return row
        positions[row] = begin
        sizes[row] = size
        properties[row] = topic_end + 2
        begin += size
    return rows


@inline
def _topic_begin(buffer: Any, begin: Any) -> Any:
    """Where the topic of a checked record begins."""
    length_size = np.int64(2 if be_u32(buffer, begin + 4) == MAGIC_V2 else 1)
    return begin + HEADER_SIZE + be_i32(buffer, begin + _BODY_SIZE) + length_size


@kernel(types.int64(ROWS, LONG, LONG, INTS, LONGS, LONGS))
def number_topics(rows: Rows, first: int, last: int, codes: Any, begins: Any, ends: Any) -> Any:
    """For each of rows [first, last), which are checked, the number of its topic; where each topic begins and ends in the buffer.

    How many topics; −1 where there are more than `begins` and `ends` have room for, or bytes have changed since they were checked.
    """
    count, code = np.int64(0), np.int64(0)
    for row in range(first, last):
        begin, end = _topic_begin(rows.buffer, rows.positions[row]), rows.properties[row] - 2
        if begin < rows.positions[row] or begin > end:  # a file's map shows what its writer does
            return np.int64(-1)
        size, left = end - begin, count
        while left:
            if ends[code] - begins[code] == size and same(rows.buffer, begin, rows.buffer, begins[code], size):
                break
            code = code + 1 if code + 1 < count else np.int64(0)
            left -= 1
        if not left:
            if count >= min(len(begins), len(ends)):
                return np.int64(-1)
            code = count
            begins[code], ends[code] = begin, end
            count += 1
        codes[row] = code
    return count


if HAS_CRC:

    @kernel(types.boolean(READ, READ_INT64, READ_INT64, LONGS))
    def crcs(data: Any, starts: Any, ends: Any, sums: Any) -> bool:
        """As `arrays.crcs_between`. False where a stretch does not lie in the data."""
        count = len(sums)
        if len(starts) != count or len(ends) != count:
            return False
        begin = np.uint64(data.ctypes.data)
        for row in range(count):
            start, end = starts[row], ends[row]
            if start < 0 or end < start or end > len(data):
                return False
            size = np.uint64(end - start)
            sums[row] = crc32(np.uint32(0), begin + np.uint64(start), size) & CRC_MASK
        return True


# Checked records into columns


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
        size = be_i32(rows.buffer, begin + _BODY_SIZE)
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


# Ranges of a file into windows of a buffer: what is read from where, and where each range stands then


class Limits(NamedTuple):
    file_bytes: int
    gap_bytes: int
    """What is read along between two ranges at most."""
    window_bytes: int
    """What a window has at most, or one range."""
    keep: bool
    """Whether windows stand behind each other in one buffer."""


class Laid(NamedTuple):
    """All of int64; as many runs and windows as rows find room."""

    places: Any
    runs: Any
    """Position, size and place of each run."""
    windows: Any
    """First row, first run and end of each window."""


_LIMITS = types.NamedTuple((LONG, LONG, LONG, types.boolean), Limits)
_LAID = types.NamedTuple((LONGS, LONG_ROWS, LONG_ROWS), Laid)


@kernel(types.UniTuple(LONG, 2)(READ_INT64, READ_INT64, _LIMITS, _LAID))
def lay_out(positions: Any, sizes: Any, limits: Limits, laid: Laid) -> Any:
    """`WindowLayout.of`: how many runs and windows there are."""
    run = window = np.int64(-1)
    at = begins_at = reach = first = np.int64(0)
    for row in range(len(positions)):
        begin = positions[row]
        end = min(begin + sizes[row], limits.file_bytes)
        joins = run >= 0 and begin <= reach + limits.gap_bytes
        more = max(end - (reach if joins else begin), np.int64(0))
        if run < 0 or (at + more - begins_at > limits.window_bytes and row > first):
            joins, first = False, np.int64(row)
            window += 1
            if not limits.keep:
                at = np.int64(0)
            begins_at = at
            laid.windows[window, 0] = row
            laid.windows[window, 1] = run + 1
        if not joins:
            run += 1
            laid.runs[run, 0] = reach = begin
            laid.runs[run, 1] = 0
            laid.runs[run, 2] = at
        if end > reach:
            at += end - reach
            reach = end
            laid.runs[run, 1] = end - laid.runs[run, 0]
        laid.places[row] = laid.runs[run, 2] + begin - laid.runs[run, 0]
        laid.windows[window, 2] = at
    return run + 1, window + 1
