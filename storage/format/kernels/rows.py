"""What kernels that decode records are given and give: rows of a buffer, columns of strings, and the types of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from storage.format.kernels.ground import READ, READ_INT64

BYTES, BYTE_ROWS = (types.Array(types.uint8, dimensions, "C") for dimensions in (1, 2))
INTS, INT_ROWS = (types.Array(types.int32, dimensions, "C") for dimensions in (1, 2))
LONGS, LONG_ROWS = (types.Array(types.int64, dimensions, "C") for dimensions in (1, 2))
LONG = types.int64


class Rows(NamedTuple):
    """Records in a buffer. All arrays but the last are read only."""

    buffer: Any
    """uint8, at least BLOCK bytes."""
    positions: Any
    """Where each record begins, int64."""
    sizes: Any
    """What each is said to take, int64."""
    places: Any
    """Where in the log each is said to lie, int64; empty = anywhere."""
    properties: Any
    """Where the properties of each begin, int64: `check` writes it."""


class Strings(NamedTuple):
    """A column of byte strings that grows."""

    offsets: Any
    """int32, one more than rows; the first is set."""
    data: Any
    """uint8, with room for all."""


ROWS = types.NamedTuple((READ, READ_INT64, READ_INT64, READ_INT64, LONGS), Rows)
STRINGS = types.NamedTuple((INTS, BYTES), Strings)
