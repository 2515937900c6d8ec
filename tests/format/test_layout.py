"""One declaration serves arrays and single values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.arrays import struct_of, view_at, words_of
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
