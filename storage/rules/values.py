"""Rules for the values of properties and of columns; for columns with the first rule that each row breaks. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.format.arrays import CONTROL_CHARACTERS, SEPARATORS, as_texts, empty_as_null, malformed_rows, rows_with
from storage.format.properties import is_reserved_name

WORD_SEPARATORS = CONTROL_CHARACTERS + b" "
UNWANTED = {
    SEPARATORS: "it holds 0x01 or 0x02, which separate properties",
    CONTROL_CHARACTERS: "it holds a control character",
    WORD_SEPARATORS: "it holds a control character or a blank",
}
"""Unwanted ASCII characters in a text → the rule against them."""
NOT_UTF8 = "it is not UTF-8"
BLANK_IN_KEY = "a key of the list holds a blank: a reader would take it for two keys"
EMPTY = "it is empty: no reader would see it"
_PATTERNS = {unwanted: re.compile(f"[{re.escape(unwanted.decode())}]") for unwanted in UNWANTED}
_TICKS_PER_MS = {"us": 1_000, "ns": 1_000_000}


class Rejection(NamedTuple):
    """Why a row is no message."""

    column: str
    rule: str


class RejectedRow(NamedTuple):
    """A row that is no message: its number in the task, from 0, and the column and rule that it breaks."""

    row: int
    column: str
    rule: str

    def describe(self) -> str:
        """In one sentence."""
        return f"row {self.row}, column {self.column}: {self.rule}"


class Rejections(dict[int, Rejection]):
    """Row → the first rule that it breaks; a permanent one precedes a temporary one."""

    def __init__(self) -> None:
        super().__init__()
        self.passing: set[int] = set()
        """Rows that break only temporary rules: the same row may be accepted later."""

    def add(self, rows: np.ndarray, column: str, rule: str | Callable[[int], str], *, passes: bool = False) -> None:
        """The rows (ascending numbers) break a rule; its text may depend on the row."""
        for row in rows.tolist():
            if row in self and (passes or row not in self.passing):
                continue
            self[row] = Rejection(column, rule if isinstance(rule, str) else rule(row))
            (self.passing.add if passes else self.passing.discard)(row)


def read_texts(name: str, column: pa.Array | None, unwanted: bytes, rejections: Rejections) -> pa.Array | None:
    """A column that becomes a property, large_string, null where it is empty; None if no row has it."""
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
    """Timestamps, or whole numbers of milliseconds, as milliseconds; fractions are rounded down."""
    if column is None or column.null_count == count:
        return np.full(count, absent, np.int64)
    ticks = 1
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz)) if column.type.unit == "s" else column
        ticks = _TICKS_PER_MS.get(column.type.unit, 1)
        column = column.cast(pa.int64())
    values = np.asarray(column.fill_null(absent * ticks).to_numpy(), np.int64)
    return values // ticks if ticks > 1 else values


# Properties of one message


@lru_cache(4_096)
def text_fault(text: str, unwanted: bytes) -> str | None:
    """Why a text cannot be the value of a property; None if it can."""
    if _PATTERNS[unwanted].search(text):
        return UNWANTED[unwanted]
    return None if _is_utf8(text) else NOT_UTF8


def property_fault(name: object, value: object, *, allowed: str = "") -> str | None:
    """Why a program may not give its message that property; None if it may. `allowed` is a reserved name that it may use here."""
    for what, text in (("name", name), ("value", value)):
        if not isinstance(text, str):
            return f"property {name!r}: its {what} is {type(text).__name__}, not text"
        if not text:
            return of_property(str(name), what, EMPTY)
        fault = text_fault(text, SEPARATORS)
        if fault is not None:
            return of_property(str(name), what, fault)
    return reserved(str(name)) if is_reserved_name(str(name)) and name != allowed else None


def of_property(name: str, what: str, rule: str) -> str:
    """Text of a rule for the name or the value of a property."""
    return f"property {name!r}: {rule.replace('it ', f'its {what} ', 1)}"


def reserved(name: str) -> str:
    """Error texts for reserved names."""
    return f"{name} is reserved for brokers and clients; take another name"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
