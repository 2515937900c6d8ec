"""Kernels of a commit: commit records, stamps in records, queue entries, index items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from storage.format.kernels import crc
from storage.format.kernels.ground import (
    READ,
    READ_INT32,
    READ_INT64,
    be_i32,
    kernel,
    memcpy,
    move,
    put_be32,
    put_be64,
    put_u8,
)
from storage.format.kernels.regular import BODY_SIZE, topic_of
from storage.format.record import HEADER_SIZE, HEADERS, SYS_FLAG_POSITION
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK

HAS_CRC = crc.IS_FAST
"""Whether `stamp_crcs` is faster than one call of isal a record."""
_CRC_MASK = 0x7FFFFFFF
_BYTES = types.uint8[::1]
_INT64 = types.int64[::1]
_INT32 = types.int32[::1]
_PLACE = 20
_QUEUE_ID = HEADERS[0].fields["queue_id"][1]  # type: ignore[index]
_NO_TRANSACTION = ~TRANSACTION_MASK


class CommitQueues(NamedTuple):
    """Of n queues what a record holds of each: its topic's name is names[name_ends[i]:name_ends[i + 1]]."""

    names: np.ndarray
    name_ends: np.ndarray
    magics: np.ndarray
    queue_ids: np.ndarray


_COMMIT_QUEUES = types.NamedTuple((READ, READ_INT64, READ_INT64, READ_INT64), CommitQueues)


@kernel(types.int64(_BYTES, READ, READ_INT64, READ_INT64, _COMMIT_QUEUES, READ_INT64))
def join_commits(out, halves, positions, sizes, queues, codes):
    """As `commit_records.write_commits`: how many bytes; −1 where a half is not regular, or its commit does not fit."""
    count = len(codes)
    if len(positions) != count or len(sizes) != count:
        return -1
    kinds = min(len(queues.name_ends) - 1, len(queues.magics), len(queues.queue_ids))
    at = 0
    for row in range(count):
        begin, size, code = positions[row], sizes[row], codes[row]
        _, topic_end = topic_of(halves, begin, size)
        if topic_end < 0 or code < 0 or code >= kinds:
            return -1
        name, name_end = queues.name_ends[code], queues.name_ends[code + 1]
        head = HEADER_SIZE + be_i32(halves, begin + BODY_SIZE)
        rest = begin + size - topic_end
        if name < 0 or name_end < name or name_end > len(queues.names) or rest < 0 or head < HEADER_SIZE:
            return -1
        commit_size = head + (name_end - name) + rest
        if head > size or commit_size > len(out) - at:
            return -1
        memcpy(out, at, halves, begin, head)
        put_be32(out, at, commit_size)
        put_be32(out, at + 4, queues.magics[code])
        put_be32(out, at + _QUEUE_ID, queues.queue_ids[code])
        flags = be_i32(halves, begin + SYS_FLAG_POSITION)
        put_be32(out, at + SYS_FLAG_POSITION, (flags & _NO_TRANSACTION) | TRANSACTION_COMMIT)
        at += head
        move(out, at, queues.names, name, name_end - name)
        at += name_end - name
        memcpy(out, at, halves, topic_end, rest)
        at += rest
    return at


class Stamps(NamedTuple):
    """What places make known of n records; store times are one or n."""

    queue_offsets: np.ndarray
    commitlog_offsets: np.ndarray
    store_times_ms: np.ndarray


_STAMPS = types.NamedUniTuple(READ_INT64, 3, Stamps)


@kernel(types.int64(_BYTES, READ_INT64, _STAMPS, types.int64))
def stamp(data, positions, stamps, time_position):
    """As `record_block.stamp`: how many records; fewer than there are where one is not in the buffer."""
    count = len(positions)
    times = stamps.store_times_ms
    if len(stamps.queue_offsets) != count or len(stamps.commitlog_offsets) != count:
        return 0
    if len(times) != count and len(times) != 1:
        return 0
    for row in range(count):
        position = positions[row]
        if position < 0 or position > len(data) - time_position - 8:
            return row
        put_be64(data, position + _PLACE, stamps.queue_offsets[row])
        put_be64(data, position + _PLACE + 8, stamps.commitlog_offsets[row])
        put_be64(data, position + time_position, times[0 if len(times) == 1 else row])
    return count


@kernel(types.int64(_BYTES, READ_INT64, READ_INT64, types.int64, types.int64))
def stamp_crcs(data, positions, sizes, crc_size, digits):
    """As `record_block.stamp_crcs`: how many records; fewer where one is not in the buffer.

    The sum's digits, the lowest first, stand before the last byte of a record; it is over what precedes the last `crc_size` bytes.
    """
    count = len(positions)
    if len(sizes) != count or digits + 1 > crc_size:
        return 0
    for row in range(count):
        position, size = positions[row], sizes[row]
        if position < 0 or size < crc_size or position > len(data) - size:
            return row
        value = crc.crc32(data, position, size - crc_size) & _CRC_MASK
        at = position + size - digits - 1
        for digit in range(digits):
            put_u8(data, at + digit, 0x30 + value % 10)
            value //= 10
    return count


@kernel(types.boolean(_INT64, _INT64, READ_INT64))
def rank(ranks, counts, codes):
    """For each code how many equal ones stand before it; `counts` has so many of each already. False where a code is none."""
    for row in range(len(codes)):
        code = codes[row]
        if code < 0 or code >= len(counts):
            return False
        ranks[row] = counts[code]
        counts[code] += 1
    return True


class Entered(NamedTuple):
    """Columns of n records that enter queues."""

    commitlog_offsets: np.ndarray
    sizes_bytes: np.ndarray
    tags_codes: np.ndarray
    queue_offsets: np.ndarray
    store_times_ms: np.ndarray


class Sorted(NamedTuple):
    """The same by queue: entries of 20 bytes, and beside each its queue offset and store time."""

    entries: np.ndarray
    queue_offsets: np.ndarray
    store_times_ms: np.ndarray


_ENTERED = types.NamedUniTuple(READ_INT64, 5, Entered)
_SORTED = types.NamedTuple((_BYTES, _INT64, _INT64), Sorted)
_ENTRY_SIZE = 20


@kernel(types.boolean(_SORTED, _INT64, READ_INT64, READ_INT64, _ENTERED))
def sort_entries(out, nexts, ends, codes, entered):
    """Queue entries by queue, in the order of the records within each. False where codes are not what `nexts` and `ends` say.

    Of queue c the first entry goes to `nexts[c]`, which moves on, to `ends[c]` at most.
    """
    count = len(codes)
    if len(out.entries) != count * _ENTRY_SIZE or len(out.queue_offsets) != count or len(out.store_times_ms) != count:
        return False
    if len(entered.commitlog_offsets) != count or len(entered.sizes_bytes) != count or len(ends) != len(nexts):
        return False
    if len(entered.tags_codes) != count or len(entered.queue_offsets) != count or len(entered.store_times_ms) != count:
        return False
    for row in range(count):
        code = codes[row]
        if code < 0 or code >= len(nexts) or nexts[code] < 0 or nexts[code] >= min(ends[code], count):
            return False
        at = nexts[code]
        nexts[code] = at + 1
        put_be64(out.entries, at * _ENTRY_SIZE, entered.commitlog_offsets[row])
        put_be32(out.entries, at * _ENTRY_SIZE + 8, entered.sizes_bytes[row])
        put_be64(out.entries, at * _ENTRY_SIZE + 12, entered.tags_codes[row])
        out.queue_offsets[at] = entered.queue_offsets[row]
        out.store_times_ms[at] = entered.store_times_ms[row]
    return True


class Keys(NamedTuple):
    """n keys that enter an index file."""

    hashes: np.ndarray
    commitlog_offsets: np.ndarray
    time_differences_s: np.ndarray


_KEYS = types.NamedTuple((READ_INT32, READ_INT64, READ_INT64), Keys)
_ITEM_SIZE = 20


@kernel(types.int64(_BYTES, _INT32, _KEYS, types.int64))
def enter_keys(items, slots, keys, first_number):
    """Index items numbered from `first_number` on, of 20 bytes; `slots` move on to them.

    How many slots were free. −1, with nothing done, where lengths do not agree or a hash is negative.
    """
    count, slot_count = len(keys.hashes), len(slots)
    if (
        len(items) != count * _ITEM_SIZE
        or len(keys.commitlog_offsets) != count
        or len(keys.time_differences_s) != count
    ):
        return -1
    if slot_count == 0:
        return -1
    lowest = np.int32(0)
    for row in range(count):
        lowest = min(lowest, keys.hashes[row])
    if lowest < 0:
        return -1
    free = 0
    for row in range(count):
        slot = np.uint32(keys.hashes[row]) % np.uint32(slot_count)
        previous = slots[slot]
        free += previous == 0
        slots[slot] = first_number + row
        at = row * _ITEM_SIZE
        put_be32(items, at, keys.hashes[row])
        put_be64(items, at + 4, keys.commitlog_offsets[row])
        put_be32(items, at + 12, keys.time_differences_s[row])
        put_be32(items, at + 16, previous)
    return free
