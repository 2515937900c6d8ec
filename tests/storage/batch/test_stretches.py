"""Parts of the runs of a batch: slices of so many bytes, over any number of runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from storage.batch.slices import cut_slices, stretches_of
from storage.format.record_block import BlockColumns, RecordBlock


def run_of(*sizes: int, first: int) -> RecordBlock:
    """Records of so many bytes, each filled with its number; row n has n keys."""
    numbers = np.arange(first, first + len(sizes))
    keys = numbers % 3
    data = np.repeat(numbers, sizes).astype(np.uint8)
    columns = BlockColumns(
        (("T", 0),),
        np.zeros(len(sizes), np.int32),
        np.array(sizes, np.int32),
        numbers.astype(np.int64),
        keys.astype(np.int32),
        np.repeat(numbers, keys).astype(np.int32),
    )
    return RecordBlock(columns, data)


@pytest.mark.parametrize("limit", [1, 9, 10, 25, 30, 31, 1_000])
def test_slices_hold_all_rows_in_their_order_and_no_more_bytes_than_they_may(limit: int) -> None:
    parts = (10, 10, 5), (), (40, 1), (1,) * 30, (29,)
    first, runs = 0, []
    for sizes in parts:
        runs.append(run_of(*sizes, first=first))
        first += len(sizes)
    slices = list(cut_slices(runs, 100, limit))
    row = 0
    for found in slices:
        assert found.first_row == 100 + row
        sizes = [size for part in found.parts for size in part.columns.sizes_bytes.tolist()]
        assert sum(sizes) <= limit or len(sizes) == 1
        for part in found.parts:
            data = np.empty(int(part.columns.sizes_bytes.sum()), np.uint8)
            part.read(0, len(data), data)
            numbers = range(row, row + part.columns.row_count)
            assert data.tolist() == np.repeat(numbers, part.columns.sizes_bytes).tolist()
            assert part.columns.tags_codes.tolist() == list(numbers)
            assert part.columns.key_hashes.tolist() == [number for number in numbers for _ in range(number % 3)]
            row += part.columns.row_count
    assert row == first
    for one, following in itertools.pairwise(slices):
        head = int(following.parts[0].columns.sizes_bytes[0])
        assert sum(int(part.columns.sizes_bytes.sum()) for part in one.parts) + head > limit, (
            "none is shorter than it need be"
        )


def test_no_rows_are_no_slice() -> None:
    assert list(cut_slices([run_of(first=0)], 0, 10)) == []


def test_a_mask_wants_stretches() -> None:
    assert stretches_of(np.array([1, 1, 0, 0, 1, 0, 1], bool)) == [(0, 2), (4, 5), (6, 7)]
    assert stretches_of(np.zeros(3, bool)) == []
