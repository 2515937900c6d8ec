"""Very many splits share partitions, so that Spark can plan them."""

from __future__ import annotations

import pytest

from spark_mq.source.ranges import pack


def test_as_many_as_are_allowed_stay_alone() -> None:
    assert pack([5, 0, 7], 3) == [(0, 1), (1, 2), (2, 3)]
    assert pack([], 3) == []


def test_more_of_them_share_partitions_in_order() -> None:
    runs = pack([1] * 50_000, 1_000)
    assert [number for start, end in runs for number in range(start, end)] == list(range(50_000))
    assert 500 <= len(runs) <= 1_000
    assert max(end - start for start, end in runs) <= 100


def test_a_large_one_stays_alone() -> None:
    sizes = [1] * 10 + [1_000_000] + [1] * 10
    runs = pack(sizes, 5)
    assert (10, 11) in runs or any(
        start <= 10 < end and sum(sizes[start:end]) <= 2 * sum(sizes) // 5 + 1 for start, end in runs
    )
    assert len(runs) <= 6


@pytest.mark.parametrize("most_size", [1, 3, 10])
def test_no_partition_of_several_has_more_rows_than_one_may_have(most_size: int) -> None:
    sizes = [1, 2, 3, 1, 1, 1, 2] * 20
    for start, end in pack(sizes, 10, most_size):
        assert end - start == 1 or sum(sizes[start:end]) <= most_size
