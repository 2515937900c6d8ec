"""Text columns of any type, looked at as bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.format.arrays import (
    CONTROL_CHARACTERS,
    SEPARATORS,
    as_texts,
    empty_as_null,
    malformed_rows,
    rows_with,
    sizes_of,
)

TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]


@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_every_type_of_text_becomes_large_string(arrow_type: pa.DataType) -> None:
    column = pa.array(["gone", "a", None, "", "ü😀"]).cast(arrow_type)[1:]
    found = as_texts(column)
    assert found.type == pa.large_string()
    assert found.to_pylist() == ["a", None, "", "ü😀"]
    assert sizes_of(found).tolist() == [1, 0, 0, 6]
    assert empty_as_null(found).to_pylist() == ["a", None, None, "ü😀"]


def test_a_column_of_nulls_is_a_column_of_null_texts() -> None:
    found = empty_as_null(as_texts(pa.nulls(2)))
    assert (found.type, found.to_pylist()) == (pa.large_string(), [None, None])


def test_rows_with_a_character_are_found_wherever_it_stands() -> None:
    values = ["skipped\x01", "\x01", "plain", "", "end\x02", None, "in\x01side\x02", "nul\0 tab\t", "ü"]
    column = as_texts(pa.array(values))[1:]
    assert rows_with(column, SEPARATORS).tolist() == [0, 3, 5]
    assert rows_with(column, CONTROL_CHARACTERS).tolist() == [0, 3, 5, 6]
    assert rows_with(column, b" ").tolist() == [6]
    assert rows_with(column[:0], SEPARATORS).tolist() == []


@pytest.mark.parametrize(
    "raw", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x80"], ids=lambda raw: raw.hex()
)
def test_bytes_that_are_no_utf_8_are_found(raw: bytes) -> None:
    column = as_texts(pa.array([b"\xff", b"fine", raw, "ü😀".encode(), None, raw, b""]))[1:]
    assert malformed_rows(column).tolist() == [1, 4]
    assert malformed_rows(column[2:4]).tolist() == []


def test_halves_of_a_character_in_two_rows_are_malformed_each() -> None:
    assert malformed_rows(as_texts(pa.array([b"\xc3", b"\xbc"]))).tolist() == [0, 1]


def test_bytes_under_a_null_do_not_count() -> None:
    strings = pa.array(["\x01", "x"])
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *strings.buffers()[1:]])
    assert hidden.to_pylist() == [None, "x"]
    assert rows_with(as_texts(hidden), SEPARATORS).tolist() == []
