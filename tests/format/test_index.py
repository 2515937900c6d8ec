"""Index files: the header as Apache reads it, items and slots as a look-up walks them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from storage.format.java_hash import index_key_hash
from storage.format.keys import HEADER_SIZE, HEADER_STRUCT, ITEM, SLOT, index_file_size, index_key
from tests.support.fixture_stores import Fixture, golden_lines


@pytest.mark.parametrize("name", ["clean", "ext", "roll", "recovered"])
def test_headers_are_those_that_apache_reads(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    lines = list(golden_lines(fixture.golden, "indexBefore"))
    assert lines
    for line in lines:
        data = (fixture.root / "index" / line["file"]).read_bytes()
        header = HEADER_STRUCT.unpack_from(data)
        assert header == (
            *(line["beginTimestamp"], line["endTimestamp"], line["beginPhyOffset"], line["endPhyOffset"]),
            *(line["hashSlotCount"], line["indexCount"]),
        )
        assert HEADER_STRUCT.pack(*header) == data[:HEADER_SIZE]


def test_the_length_follows_from_the_geometry(pristine_store: Callable[[str], Fixture]) -> None:
    for name in ("clean", "roll"):
        fixture = pristine_store(name)
        (config,) = golden_lines(fixture.golden, "config")
        for line in golden_lines(fixture.golden, "indexBefore"):
            assert index_file_size(config["maxHashSlotNum"], config["maxIndexNum"]) == line["length"]
    assert index_file_size(5_000_000, 20_000_000) == 420_000_040


def test_slots_and_items_hold_each_key_at_its_hash(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    (config,) = golden_lines(fixture.golden, "config")
    places: dict[int, set[int]] = {}
    for line in golden_lines(fixture.golden, "indexBefore"):
        data = (fixture.root / "index" / line["file"]).read_bytes()
        slots = np.frombuffer(data, SLOT, config["maxHashSlotNum"], HEADER_SIZE)
        items = np.frombuffer(data, ITEM, line["indexCount"], HEADER_SIZE + slots.nbytes)
        for slot, number in enumerate(slots.tolist()):
            while number:
                key_hash, commitlog_offset, _, previous = items[number].item()
                assert key_hash % len(slots) == slot
                assert previous < number
                places.setdefault(key_hash, set()).add(commitlog_offset)
                number = previous
    for line in golden_lines(fixture.golden, "message"):
        for key in [line["properties"].get("UNIQ_KEY"), *line["properties"].get("KEYS", "").split(" ")]:
            if key:
                assert line["physicalOffset"] in places[index_key_hash(index_key(line["topic"], key))]
