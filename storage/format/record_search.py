"""Where records may begin in a buffer of which nothing is known, and which of those follow each other. Pure."""

from __future__ import annotations

import numpy as np

from storage.format.record import MAGIC_V1


def chain(starts: np.ndarray, sizes: np.ndarray, begin: int) -> tuple[np.ndarray, int]:
    """Which candidate records follow each other without a gap from `begin`: their indices, and where the last ends.

    `starts` ascend. Where every candidate's end is the next one's start, as nearly always, nothing is looped over;
    the loop takes one turn for each candidate that is none (a magic number inside a body).
    """
    ends = starts + sizes
    runs: list[np.ndarray] = []
    position = begin
    breaks = np.flatnonzero(ends[:-1] != starts[1:]) if len(starts) else np.empty(0, np.int64)
    while True:
        first = int(np.searchsorted(starts, position))
        if first == len(starts) or starts[first] != position:
            return (np.concatenate(runs) if runs else np.empty(0, np.int64)), position
        after = int(np.searchsorted(breaks, first))
        last = int(breaks[after]) if after < len(breaks) else len(starts) - 1
        runs.append(np.arange(first, last + 1))
        position = int(ends[last])


def find_candidates(buffer: np.ndarray, start: int, end: int) -> np.ndarray:
    """Positions in [start, end) where a record could begin: a record magic stands four bytes on. Ascending."""
    if end - start < 1:
        return np.empty(0, np.int64)
    window = buffer[start + 4 : min(end + 7, len(buffer))]
    first = np.flatnonzero(window[: max(0, len(window) - 3)] == MAGIC_V1 >> 24)
    third = window[first + 3]
    is_magic = (window[first + 1] == 0xA3) & (window[first + 2] == 0x20) & ((third == 0xA7) | (third == 0xAB))
    return first[is_magic] + start
