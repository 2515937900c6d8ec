"""Ranges of a file into windows of a buffer, compiled: what is read from where, and where each range stands then. Reads nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.kernels.ground import READ_INT64, kernel
from storage.format.kernels.rows import LONG, LONG_ROWS, LONGS


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
    """Of each its position, size and place."""
    windows: Any
    """Of each its first row, its first run and its end."""


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
