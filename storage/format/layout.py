"""One declaration of a fixed binary layout, usable for arrays (NumPy) and for single values (struct)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

_STRUCT_CODES = {
    ("i", 1): "b",
    ("u", 1): "B",
    ("i", 2): "h",
    ("u", 2): "H",
    ("i", 4): "i",
    ("u", 4): "I",
    ("i", 8): "q",
}


def struct_of(layout: np.dtype) -> struct.Struct:
    """The scalar `struct.Struct` of a packed big-endian NumPy structure; `V` fields become `bytes`."""
    codes = [">"]
    for name in layout.names or ():
        field = layout[name]
        codes.append(f"{field.itemsize}s" if field.kind == "V" else _STRUCT_CODES[field.kind, field.itemsize])
    scalar = struct.Struct("".join(codes))
    if scalar.size != layout.itemsize:
        raise ValueError(f"the layout {layout} is not packed and big-endian")
    return scalar


def view_at(buffer: np.ndarray, positions: np.ndarray, layout: np.dtype) -> np.ndarray:
    """The structures that begin at the given byte positions of a `uint8` buffer, gathered.

    Every position must be within `len(buffer) - layout.itemsize`. A view of stride 1 makes the gather one
    memory copy a row, several times cheaper than an index matrix.
    """
    if not len(positions):
        return np.empty(0, layout)
    void = np.dtype((np.void, layout.itemsize))
    rows = np.ndarray((len(buffer) - layout.itemsize + 1,), void, buffer, strides=(1,))
    return rows[positions].view(layout)


def words_of(text: bytes) -> list[tuple[int, np.ndarray]]:
    """A text as machine words, for comparing it with many places at once: (position, word), the last overlapping if need be."""
    if not text:
        return []
    width = next(width for width in (8, 4, 2, 1) if width <= len(text))
    starts = [*range(0, len(text) - width, width), len(text) - width]
    return [(at, np.frombuffer(text[at : at + width], f"u{width}")[0]) for at in starts]


def row_windows(places: np.ndarray, sizes: np.ndarray, window_bytes: int) -> Iterator[tuple[slice, int]]:
    """Ranges of a buffer, whose `places` ascend, in parts of about so many bytes, or of one: which ranges, and where the last ends."""
    ends = np.maximum.accumulate(places + sizes)
    first = 0
    while first < len(places):
        last = max(first + 1, int(np.searchsorted(ends, places[first] + window_bytes, side="right")))
        yield slice(first, last), int(ends[last - 1])
        first = last
