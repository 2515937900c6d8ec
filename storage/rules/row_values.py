"""Single columns of rows, read: texts, whole numbers and times, and for each row that breaks a rule the first one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.format.arrays import as_texts, empty_as_null, malformed_rows, rows_with
from storage.rules.message_check import NOT_UTF8, UNWANTED

_TICKS_PER_MS = {"us": 1_000, "ns": 1_000_000}


class Rejection(NamedTuple):
    """Why a row is no message."""

    column: str
    rule: str


class Rejections(dict[int, Rejection]):
    """By row, the first rule that it breaks; one that it breaks for ever comes before one that it breaks for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.passing: set[int] = set()
        """Rows that break a rule for a time: later the same row may be taken."""

    def add(self, rows: np.ndarray, column: str, rule: str | Callable[[int], str], *, passes: bool = False) -> None:
        """The rows (ascending numbers) break a rule; its text may depend on the row."""
        for row in rows.tolist():
            if row in self and (passes or row not in self.passing):
                continue
            self[row] = Rejection(column, rule if isinstance(rule, str) else rule(row))
            (self.passing.add if passes else self.passing.discard)(row)


def read_texts(name: str, column: pa.Array | None, unwanted: bytes, rejections: Rejections) -> pa.Array | None:
    """A column that becomes a property, large_string, null where it is empty; None where no row has it."""
    if column is None:
        return None
    texts = empty_as_null(as_texts(column))
    rejections.add(malformed_rows(texts), name, NOT_UTF8)
    rejections.add(rows_with(texts, unwanted), name, UNWANTED[unwanted])
    return None if texts.null_count == len(texts) else texts


def read_integers(
    name: str, column: pa.Array | None, count: int, absent: int, dtype: type, rejections: Rejections
) -> np.ndarray:
    """A column of whole numbers that must fit into `dtype`."""
    if column is None or column.null_count == count:
        return np.full(count, absent, dtype)
    values = column.fill_null(absent).to_numpy()
    limits = np.iinfo(dtype)
    if values.dtype.itemsize > np.dtype(dtype).itemsize:
        outside = np.flatnonzero((values < limits.min) | (values > limits.max))
        bits = 8 * np.dtype(dtype).itemsize
        rejections.add(outside, name, lambda row: f"{values[row]} does not fit into {bits} bits")
    return np.asarray(values, dtype)


def read_times_ms(column: pa.Array | None, count: int, absent: int) -> np.ndarray:
    """Timestamps, or whole numbers of milliseconds, as milliseconds; parts of one are cut off towards the past."""
    if column is None or column.null_count == count:
        return np.full(count, absent, np.int64)
    ticks = 1
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz)) if column.type.unit == "s" else column
        ticks = _TICKS_PER_MS.get(column.type.unit, 1)
        column = column.cast(pa.int64())
    values = np.asarray(column.fill_null(absent * ticks).to_numpy(), np.int64)
    return values // ticks if ticks > 1 else values
