"""Columns of text from outside, looked at as bytes: what type they came as, which rows hold what a record must not.

Everything becomes Arrow `large_string` without its bytes being moved or believed: whoever needs them well-formed asks `malformed_rows`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEPARATORS = b"\x01\x02"
"""What stands between and within properties."""
CONTROL_CHARACTERS = bytes(range(0x20)) + b"\x7f"
_DELETE = 0x7F


def as_texts(column: pa.Array) -> pa.Array:
    """A string, binary or null column as large_string; binary is taken for UTF-8 unseen."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary()).view(pa.large_string())
    return column.cast(pa.large_string())


def empty_as_null(texts: pa.Array) -> pa.Array:
    """The same with null for every empty text: a property without a value does not exist (Java drops it on reading)."""
    sizes = pc.binary_length(texts)
    if (pc.min(sizes).as_py() or 0) > 0 or texts.null_count == len(texts):
        return texts
    return pc.if_else(pc.greater(sizes, 0), texts, pa.scalar(None, pa.large_string()))


def sizes_of(texts: pa.Array) -> np.ndarray:
    """Bytes of each text, int64; 0 for null."""
    sizes = pc.binary_length(texts)
    return np.asarray((sizes.fill_null(0) if texts.null_count else sizes).to_numpy(), np.int64)


def is_valid(column: pa.Array) -> np.ndarray:
    """Which rows are not null."""
    if not column.null_count:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def bytes_and_offsets(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a large_string or large_binary array and where in them each row begins and ends: n + 1 offsets."""
    _, offsets_buffer, data_buffer = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64, len(texts) + 1, offset=8 * texts.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def rows_with(texts: pa.Array, characters: bytes) -> np.ndarray:
    """Which rows, ascending, hold one of these ASCII characters."""
    data, offsets = bytes_and_offsets(texts)
    greatest = max(character for character in characters if character != _DELETE)
    if not len(data) or (data.min() > greatest and not (_DELETE in characters and (data == _DELETE).any())):
        return np.empty(0, np.int64)
    unwanted = np.zeros(256, bool)
    unwanted[list(characters)] = True
    places = np.flatnonzero(unwanted[data])
    return _is_present(texts, np.unique(np.searchsorted(offsets, places, side="right") - 1))


def malformed_rows(texts: pa.Array) -> np.ndarray:
    """Which rows, ascending, are not UTF-8."""
    data, offsets = bytes_and_offsets(texts)
    if not len(data) or data.max() < 0x80:
        return np.empty(0, np.int64)
    try:
        texts.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        foreign = np.unique(np.searchsorted(offsets, np.flatnonzero(data >= 0x80), side="right") - 1)
        wrong = [row for row in foreign.tolist() if not is_utf8(data[offsets[row] : offsets[row + 1]].tobytes())]
        return _is_present(texts, np.array(wrong, np.int64))
    return np.empty(0, np.int64)


def _is_present(texts: pa.Array, rows: np.ndarray) -> np.ndarray:
    """Of these rows those that are not null: bytes of a null row say nothing."""
    return rows[is_valid(texts)[rows]] if texts.null_count else rows


def is_utf8(text: bytes) -> bool:
    """Whether a strict decoder takes the bytes."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
