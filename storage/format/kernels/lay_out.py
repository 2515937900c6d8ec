"""Ranges of a file into windows of a buffer, compiled: what is read from where, and where each range stands then. Reads nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage.format.kernels.ground import READ_INT64, kernel
from storage.format.kernels.rows import LONG, LONG_ROWS, LONGS


@kernel(types.void(READ_INT64, READ_INT64, LONG, LONG, LONG, LONG, LONGS, LONG_ROWS, LONG_ROWS, LONGS))
def lay_out(
    positions: Any,
    sizes: Any,
    limit: int,
    gap_bytes: int,
    window_bytes: int,
    keep: int,
    places: Any,
    runs: Any,
    windows: Any,
    counts: Any,
) -> None:
    """`window_layout.lay_out`. As many runs and windows as rows find room: a run's position, size and place; a window's first row,
    first run and end. `counts` gets how many runs and windows there are.
    """
    run = window = np.int64(-1)
    at = begins_at = reach = first = np.int64(0)
    for row in range(len(positions)):
        begin = positions[row]
        end = max(begin, min(begin + sizes[row], limit))
        joins = run >= 0 and begin <= reach + gap_bytes
        more = max(end - reach, np.int64(0)) if joins else end - begin
        if run < 0 or (at + more - begins_at > window_bytes and row > first):
            joins, first = False, np.int64(row)
            window += 1
            if not keep:
                at = np.int64(0)
            begins_at = at
            windows[window, 0] = row
            windows[window, 1] = run + 1
        if not joins:
            run += 1
            runs[run, 0] = reach = begin
            runs[run, 1] = 0
            runs[run, 2] = at
        if end > reach:
            at += end - reach
            reach = end
            runs[run, 1] = end - runs[run, 0]
        places[row] = runs[run, 2] + begin - runs[run, 0]
        windows[window, 2] = at
    counts[0] = run + 1
    counts[1] = window + 1
