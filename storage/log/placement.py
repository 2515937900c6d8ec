"""Where records go: their places in the log and in their queues. Pure. Java: CommitLog.DefaultAppendMessageCallback, assignQueueOffset.

A record is never split over two files. Where it, and the eight bytes of a blank filler behind it, do not fit into a file's
rest, the rest becomes a filler and the record begins the next file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from storage.errors import MessageIllegalError
from storage.format.few import is_few
from storage.format.record import BLANK_SIZE


class Filler(NamedTuple):
    """The unused rest of a log file."""

    commitlog_offset: int
    size_bytes: int


class Placement(NamedTuple):
    """The places of n records, in the order of the records."""

    commitlog_offsets: np.ndarray
    """int64, ascending."""
    queue_offsets: np.ndarray
    """int64."""
    next_queue_offsets: np.ndarray
    """int64: of each queue, the offset behind its last record."""
    fillers: tuple[Filler, ...]
    end: int
    """Where the log ends then."""


def place(
    sizes_bytes: np.ndarray,
    queue_codes: np.ndarray,
    next_queue_offsets: np.ndarray,
    log_end: int,
    file_end: int,
    file_size_bytes: int,
) -> Placement:
    """The places of records that follow `log_end`, which lies in the file that ends at `file_end`.

    `queue_codes` number the queues, `next_queue_offsets` has each one's next offset. Raises MessageIllegalError for a record
    that fits into no file.
    """
    if is_few(len(sizes_bytes)):
        few = _place_few(sizes_bytes, queue_codes, next_queue_offsets, log_end, file_end)
        if few is not None:
            return few
    commitlog_offsets, fillers, end = _commitlog_offsets(sizes_bytes, log_end, file_end, file_size_bytes)
    queue_offsets, counts = _ranks(queue_codes, len(next_queue_offsets))
    queue_offsets += next_queue_offsets[queue_codes]
    return Placement(commitlog_offsets, queue_offsets, next_queue_offsets + counts, fillers, end)


def _place_few(
    sizes_bytes: np.ndarray, queue_codes: np.ndarray, next_queue_offsets: np.ndarray, log_end: int, file_end: int
) -> Placement | None:
    """The same of a few records, for whom arrays cost more than their places; None where they do not fit into the file."""
    ends = list(accumulate(sizes_bytes.tolist(), initial=log_end))
    if ends[-1] > file_end - BLANK_SIZE:
        return None
    nexts = next_queue_offsets.tolist()
    queue_offsets = []
    for code in queue_codes.tolist():
        queue_offsets.append(nexts[code])
        nexts[code] += 1
    places, offsets, after = (np.array(values, np.int64) for values in (ends[:-1], queue_offsets, nexts))
    return Placement(places, offsets, after, (), ends[-1])


def _commitlog_offsets(
    sizes_bytes: np.ndarray, log_end: int, file_end: int, file_size_bytes: int
) -> tuple[np.ndarray, tuple[Filler, ...], int]:
    ends = np.cumsum(sizes_bytes, dtype=np.int64)
    offsets = ends - sizes_bytes
    fillers = []
    first, position = 0, log_end
    while first < len(sizes_bytes):
        before = int(offsets[first])
        last = int(np.searchsorted(ends, before + file_end - BLANK_SIZE - position, side="right"))
        if last == first and position == file_end - file_size_bytes:
            raise MessageIllegalError("record", file_size_bytes - BLANK_SIZE, int(sizes_bytes[first]))
        if last > first:
            offsets[first:last] += position - before
            position += int(ends[last - 1]) - before
        if last < len(sizes_bytes):
            fillers.append(Filler(position, file_end - position))
            position, file_end = file_end, file_end + file_size_bytes
        first = last
    return offsets, tuple(fillers), position


def _ranks(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each element, how many equal ones stand before it; and how many there are of each code."""
    if count == 1:
        return np.arange(len(codes), dtype=np.int64), np.array([len(codes)])
    order = sorted_by_code(codes, count)
    counts = np.bincount(codes, minlength=count)
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks, counts


def sorted_by_code(codes: np.ndarray, count: int) -> np.ndarray:
    """Row numbers sorted by code, equal codes in their order. Small codes are sorted by radix, in linear time."""
    return np.argsort(codes.astype(np.uint16) if count <= 1 << 16 else codes, kind="stable")


def slices(commitlog_offsets: np.ndarray, sizes_bytes: np.ndarray, slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Row ranges [first, last) that stand in the log without a gap, of at most `slice_bytes` unless one record is larger."""
    ends = commitlog_offsets + sizes_bytes
    breaks = np.flatnonzero(commitlog_offsets[1:] != ends[:-1]) + 1
    first = 0
    for stop in (*breaks.tolist(), len(ends)):
        while first < stop:
            fitting = int(np.searchsorted(ends[:stop], commitlog_offsets[first] + slice_bytes, side="right"))
            last = max(first + 1, fitting)
            yield first, last
            first = last
