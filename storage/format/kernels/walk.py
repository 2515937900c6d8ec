"""Records that stand one behind the other, compiled: where each begins, which topics they have, and the sums of stretches.

Nothing in the bytes is trusted.
Java: CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage.format.kernels import crc
from storage.format.kernels.ground import READ, READ_INT64, be_i32, be_u32, inline, kernel, same
from storage.format.kernels.regular import BODY_SIZE, topic_of
from storage.format.kernels.rows import INTS, LONG, LONGS, ROWS, Rows
from storage.format.record import HEADER_SIZE, MAGIC_V2, MINIMUM_RECORD_SIZE

HAS_CRC = crc.IS_FAST
"""Whether `crcs` is faster than one call of isal a stretch."""
_CRC_MASK = 0x7FFFFFFF


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
def _topic_begin(buffer, begin):
    """Of a record that is checked."""
    length_size = np.int64(2 if be_u32(buffer, begin + 4) == MAGIC_V2 else 1)
    return begin + HEADER_SIZE + be_i32(buffer, begin + BODY_SIZE) + length_size


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


@kernel(types.boolean(READ, READ_INT64, READ_INT64, LONGS))
def crcs(data: Any, starts: Any, ends: Any, sums: Any) -> bool:
    """As `java_hash.crcs_between`. False where a stretch does not lie in the data."""
    count = len(sums)
    if len(starts) != count or len(ends) != count:
        return False
    for row in range(count):
        start, end = starts[row], ends[row]
        if start < 0 or end < start or end > len(data):
            return False
        sums[row] = crc.crc32(data, start, end - start) & _CRC_MASK
    return True
