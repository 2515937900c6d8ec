"""Layouts declared once give arrays and single values; columns of text as bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.arrays import (
    CONTROL_CHARACTERS,
    SEPARATORS,
    Stretches,
    as_texts,
    empty_as_null,
    joined,
    malformed_rows,
    rows_with,
    sizes_of,
    struct_of,
    view_at,
    words_of,
)
from storage.format.consume_queue import ENTRY, EXT_UNIT
from storage.format.keys import HEADER, ITEM
from storage.format.record import HEADERS

LAYOUTS = {
    "queue entry": ENTRY,
    "ext unit": EXT_UNIT,
    "index header": HEADER,
    "index item": ITEM,
    **{f"record header {flags:#x}": layout for flags, layout in HEADERS.items()},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_scalar_struct_reads_what_the_array_reads(layout: np.dtype) -> None:
    data = bytes(range(1, layout.itemsize + 1))
    scalar = struct_of(layout)
    in_array = np.frombuffer(data, layout)[0].item()
    assert scalar.unpack(data) == tuple(value.tobytes() if hasattr(value, "tobytes") else value for value in in_array)
    assert scalar.pack(*scalar.unpack(data)) == data


@pytest.mark.parametrize(
    "layout",
    [
        np.dtype([("a", "u1"), ("b", ">i4")], align=True),
        np.dtype({"names": ["a"], "formats": [">i2"], "offsets": [3]}),
    ],
    ids=["aligned", "with an offset"],
)
def test_a_layout_with_gaps_is_refused(layout: np.dtype) -> None:
    with pytest.raises(ValueError, match="not packed"):
        struct_of(layout)


@given(st.binary(min_size=20, max_size=80), st.data())
def test_structures_are_read_from_any_positions(data: bytes, drawn: st.DataObject) -> None:
    positions = drawn.draw(st.lists(st.integers(0, len(data) - ENTRY.itemsize), max_size=9))
    found = view_at(np.frombuffer(data, np.uint8), np.array(positions, np.int64), ENTRY)
    assert found.tolist() == [np.frombuffer(data, ENTRY, 1, position)[0].item() for position in positions]


@given(st.binary(max_size=40))
def test_a_text_is_covered_by_its_words(text: bytes) -> None:
    covered = bytearray(len(text))
    for at, word in words_of(text):
        covered[at : at + word.itemsize] = word.tobytes()
    assert covered == text
    assert len({word.itemsize for _, word in words_of(text)}) <= 1


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


def test_a_null_adds_nothing_to_a_joined_row_whatever_lies_under_it() -> None:
    strings = pa.array([b"ab", b"c"])
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *strings.buffers()[1:]])
    data, begins, ends = Stretches.of(hidden)
    found = [data[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
    assert found == [b"", b"c"]
    assert joined("<", hidden, ">").to_pylist() == [b"<>", b"<c>"]
