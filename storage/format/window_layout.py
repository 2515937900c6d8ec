"""Where ranges of a file stand when they are read a window at a time: in runs, with small gaps read along. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from storage.format.kernels.compiled import as_int64
from storage.format.memory import Memory


class LaidWindow(NamedTuple):
    """Ranges that stand in the buffer together."""

    rows: slice
    """Which ranges."""
    end: int
    """Where the last of them ends in the buffer."""
    runs: list[list[int]]
    """What is read in one piece: position in the file, size, place in the buffer."""


class LaidRanges(NamedTuple):
    places: np.ndarray
    """Where each range begins in the buffer of its window."""
    windows: list[LaidWindow]


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """How a reader wants ranges laid out."""

    kernels: Any
    """Compiled functions of `kernels/decode.py`, by name."""
    memory: Memory
    window_bytes: int
    """What a window has at most, or one range."""
    keep: bool
    """Whether the windows stand behind each other in one buffer. Else each begins at its start, and takes the place of the one before,
    which spares the processor's cache.
    """

    def of(self, positions: np.ndarray, sizes: np.ndarray, limit: int, gap_bytes: int) -> LaidRanges:
        """`positions` ascend; nothing behind `limit` is in a run, and of what no range wants only gaps up to `gap_bytes`.

        A window has runs of its own: where ranges overlap, as those of true entries do not, bytes are read twice.
        """
        count = len(positions)
        runs, windows = (self.memory.longs(name, 3 * count).reshape(count, 3) for name in ("runs", "windows"))
        laid = self.kernels.Laid(np.empty(count, np.int64), runs, windows)
        limits = self.kernels.Limits(limit, gap_bytes, self.window_bytes, self.keep)
        run_count, window_count = self.kernels.lay_out(as_int64(positions), as_int64(sizes), limits, laid)
        return LaidRanges(
            laid.places, list(_windows(windows[:window_count].tolist(), runs[:run_count].tolist(), count))
        )


def _windows(windows: list[list[int]], runs: list[list[int]], count: int) -> Iterator[LaidWindow]:
    for (first, first_run, end), (last, last_run, _) in pairwise([*windows, [count, len(runs), 0]]):
        yield LaidWindow(slice(first, last), end, runs[first_run:last_run])
