"""Splits, whose expected values are those of Spark's KafkaOffsetRangeCalculatorSuite, and how very many of them share partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.source.offsets import QueueId
from spark_mq.source.ranges import QueueRange, pack, ranges_between, split_ranges

Q1, Q2, Q3 = (QueueId(topic, "broker-a", 1) for topic in ("t1", "t2", "t3"))
Rows = list[tuple[QueueId, int, int]]


@pytest.mark.parametrize(
    ("min_partitions", "ranges", "expected"),
    [
        pytest.param(None, [(Q1, 1, 2)], [(Q1, 1, 2)], id="no minimum"),
        pytest.param(None, [(Q1, 1, 2), (Q2, 1, 1)], [(Q1, 1, 2)], id="no minimum, empty ranges ignored"),
        pytest.param(3, [(Q1, 1, 2), (Q2, 1, 2), (Q3, 1, 2)], [(Q1, 1, 2), (Q2, 1, 2), (Q3, 1, 2)], id="N to N"),
        pytest.param(4, [(Q1, 1, 5)], [(Q1, 1, 2), (Q1, 2, 3), (Q1, 3, 4), (Q1, 4, 5)], id="1 to N"),
        pytest.param(
            4,
            [(Q1, 1, 5), (Q2, 1, 21)],
            [(Q1, 1, 5), (Q2, 1, 7), (Q2, 7, 14), (Q2, 14, 21)],
            id="N skewed to M",
        ),
        pytest.param(
            4,
            [(Q1, 1, 1), (Q2, 1, 21)],
            [(Q2, 1, 6), (Q2, 6, 11), (Q2, 11, 16), (Q2, 16, 21)],
            id="SPARK-30656 ignore empty ranges and split the rest",
        ),
        pytest.param(
            4,
            [(Q1, 1, 2), (Q2, 1, 1001)],
            [(Q1, 1, 2), (Q2, 1, 334), (Q2, 334, 667), (Q2, 667, 1001)],
            id="SPARK-30656 very skewed",
        ),
        pytest.param(1, [(Q1, 1, 5), (Q2, 1, 21)], [(Q1, 1, 5), (Q2, 1, 21)], id="fewer than queues"),
        pytest.param(3, [(Q1, 1, 11)], [(Q1, 1, 4), (Q1, 4, 7), (Q1, 7, 11)], id="inexact multiple"),
        pytest.param(
            6,
            [(Q1, 0, 10), (Q2, 0, 10), (Q3, 0, 1)],
            [(Q1, 0, 3), (Q1, 3, 6), (Q1, 6, 10), (Q2, 0, 3), (Q2, 3, 6), (Q2, 6, 10), (Q3, 0, 1)],
            id="SPARK-28489 never drop offsets",
        ),
        pytest.param(
            9,
            [(Q1, 0, 10000), (Q2, 0, 15000), (Q3, 0, 20000)],
            [(Q1, i, i + 5000) for i in range(0, 10000, 5000)]
            + [(Q2, i, i + 5000) for i in range(0, 15000, 5000)]
            + [(Q3, i, i + 5000) for i in range(0, 20000, 5000)],
            id="SPARK-36576 three large",
        ),
        pytest.param(
            6,
            [(Q1, 0, 500), (Q2, 0, 12000), (Q3, 0, 15001)],
            [
                (Q1, 0, 500),
                (Q2, 0, 6000),
                (Q2, 6000, 12000),
                (Q3, 0, 5000),
                (Q3, 5000, 10000),
                (Q3, 10000, 15001),
            ],
            id="SPARK-36576 one small, two large",
        ),
        pytest.param(
            6,
            [(Q1, 0, 1), (Q2, 0, 1), (Q3, 0, 10000)],
            [(Q1, 0, 1), (Q2, 0, 1)] + [(Q3, i, i + 2500) for i in range(0, 10000, 2500)],
            id="SPARK-36576 two small, one large",
        ),
    ],
)
def test_splits_by_a_minimum_are_sparks(min_partitions: int | None, ranges: Rows, expected: Rows) -> None:
    assert split_ranges([QueueRange(*row) for row in ranges], min_partitions) == expected


def test_as_many_ranges_as_the_minimum_are_not_split() -> None:
    sizes = [84_000, 15_000] + [125] * 8
    ranges = [QueueRange(QueueId("t", "b", i), 0, size) for i, size in enumerate(sizes)]
    assert split_ranges(ranges, 10) == ranges
    assert len(split_ranges(ranges, 11)) > 10


@pytest.mark.parametrize(
    ("ranges", "limit", "expected"),
    [
        (
            [(Q1, 0, 9000), (Q2, 0, 900)],
            3000,
            [(Q1, 0, 3000), (Q1, 3000, 6000), (Q1, 6000, 9000), (Q2, 0, 900)],
        ),
        ([(Q1, 5, 15)], 4, [(Q1, 5, 8), (Q1, 8, 11), (Q1, 11, 15)]),  # ceil(10 / 4) = 3 even parts
        ([(Q1, 0, 3)], 1, [(Q1, 0, 1), (Q1, 1, 2), (Q1, 2, 3)]),
        ([(Q1, 0, 3), (Q2, 7, 7)], 10, [(Q1, 0, 3)]),
    ],
)
def test_a_maximum_of_records_cuts_each_range_evenly(ranges: Rows, limit: int, expected: Rows) -> None:
    assert split_ranges([QueueRange(*row) for row in ranges], None, limit) == expected


@pytest.mark.parametrize(("min_partitions", "count"), [(4, 5), (6, 5), (7, 8)])
def test_with_both_the_maximum_comes_first_and_the_minimum_is_a_hint(min_partitions: int, count: int) -> None:
    # Seen with Spark 4.1's Kafka source for a backlog of 9000, 900 and 10 records.
    ranges = [QueueRange(Q1, 0, 9000), QueueRange(Q2, 0, 900), QueueRange(Q3, 0, 10)]
    assert len(split_ranges(ranges, min_partitions, 3000)) == count


some_ranges = st.lists(
    st.builds(
        lambda i, start, size: QueueRange(QueueId("t", "b", i), start, start + size),
        st.integers(0, 5),
        st.integers(0, 2**62),
        st.integers(0, 3000) | st.integers(0, 300).map(lambda n: n * 10**15),
    ),
    max_size=6,
    unique_by=lambda r: r.queue,
)


@given(some_ranges, st.none() | st.integers(1, 50))
def test_splits_cover_the_ranges_exactly_and_in_order(ranges: list[QueueRange], min_partitions: int | None) -> None:
    splits = split_ranges(ranges, min_partitions)
    joined: list[QueueRange] = []
    for split in splits:
        assert split.size > 0
        if joined and joined[-1].queue == split.queue:
            assert joined[-1].end == split.start
            joined[-1] = joined[-1]._replace(end=split.end)
        else:
            joined.append(split)
    assert joined == [r for r in ranges if r.size > 0]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=5), st.none() | st.integers(1, 30), st.integers(1, 100))
def test_no_split_has_more_records_than_the_maximum(counts: list[int], min_partitions: int | None, limit: int) -> None:
    ranges = [QueueRange(QueueId("t", "b", i), 7, 7 + count) for i, count in enumerate(counts)]
    splits = split_ranges(ranges, min_partitions, limit)
    assert all(0 < split.size <= limit for split in splits)
    assert sum(split.size for split in splits) == sum(counts)
    assert len(splits) >= sum(-(-count // limit) for count in counts)


@given(some_ranges, st.integers(1, 50))
def test_parts_of_one_queue_differ_by_one_at_most(ranges: list[QueueRange], min_partitions: int) -> None:
    sizes: dict[QueueId, list[int]] = {}
    for split in split_ranges(ranges, min_partitions):
        sizes.setdefault(split.queue, []).append(split.size)
    assert all(max(parts) - min(parts) <= 1 for parts in sizes.values())


def test_ranges_leave_out_what_is_empty_and_what_is_gone() -> None:
    starts = {Q3: 4, Q1: 5, Q2: 9}
    assert ranges_between(starts, {Q3: 6, Q1: 5}) == [(Q3, 4, 6)]
    assert ranges_between(starts, {Q3: 6, Q1: 7}) == [(Q1, 5, 7), (Q3, 4, 6)]
    assert ranges_between({Q1: 5}, {Q1: 3}) == []


def test_a_queue_without_a_start_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        ranges_between({}, {Q1: 1})


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
