"""Queue entries: what the broker's files hold, and what counts as an entry."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from storage.format.arrays import struct_of
from storage.format.consume_queue import (
    ENTRY,
    ENTRY_SIZE,
    MAX_EXT_ADDRESS,
    PRE_BLANK,
    decode_entries,
    ext_position,
    is_entry,
    is_pre_blank,
)
from tests.support.fixture_stores import Fixture, golden_lines


@pytest.mark.parametrize("name", ["clean", "roll", "ext"])
def test_entries_are_those_that_apache_reads(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    files = {}
    for line in golden_lines(fixture.golden, "message"):
        directory = fixture.root / "consumequeue" / line["cqTopic"] / str(line["cqQueueId"])
        if directory not in files:
            files[directory] = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
        position = line["cqOffset"] * ENTRY_SIZE
        expected = line["cqPhysicalOffset"], line["cqSize"], line["tagsCodeRaw"]
        assert decode_entries(files[directory])[line["cqOffset"]].item() == expected
        assert struct_of(ENTRY).pack(*expected) == files[directory][position : position + ENTRY_SIZE]


def test_entries_are_read_without_copying() -> None:
    buffer = np.zeros(3 * ENTRY_SIZE, np.uint8)
    entries = decode_entries(buffer)
    buffer[ENTRY_SIZE + 7] = 9
    assert entries["commitlog_offset"].tolist() == [0, 9, 0]


@pytest.mark.parametrize(
    ("entry", "written", "blank"),
    [
        ((0, 0, 0), False, False),
        ((0, 1, 0), True, False),
        ((0, 2**31 - 1, 0), True, True),
        ((1, 2**31 - 1, 0), True, False),
        ((-1, 100, 0), False, False),
        ((100, -1, 0), False, False),
        ((100, 0, 5), False, False),
        ((2**63 - 1, 100, -1), True, False),
    ],
)
def test_what_is_an_entry(entry: tuple[int, int, int], written: bool, blank: bool) -> None:
    entries = decode_entries(struct.pack(">qiq", *entry))
    assert (is_entry(entries).tolist(), is_pre_blank(entries).tolist()) == ([written], [blank])


def test_pre_blank_entries_are_those_that_the_broker_wrote(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("preblank")
    lines = [line for line in golden_lines(fixture.golden, "queue") if line["minOffset"] % 10 and line["messageTotal"]]
    assert lines
    found = 0
    for line in lines:
        directory = fixture.root / "consumequeue" / line["topic"] / str(line["queueId"])
        first = min(directory.iterdir())
        entries = decode_entries(first.read_bytes())[: line["minOffset"] - int(first.name) // ENTRY_SIZE]
        blank = is_pre_blank(entries)
        found += int(blank.sum())
        assert (entries[blank] == PRE_BLANK).all()
    assert found > 0


def test_an_ext_address_counts_from_the_least_long() -> None:
    assert ext_position(-(2**63)) == 0
    assert ext_position(-(2**63) + 46) == 46
    assert MAX_EXT_ADDRESS == -(2**31) - 1  # below every hash
    assert ENTRY.itemsize == 20
