"""How far a micro-batch reads. Expected values follow KafkaMicroBatchStream.rateLimit and delayBatch."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.conditions import AvailableNowError
from spark_mq.source.offsets import QueueId
from spark_mq.source.ranges import FrozenEnd, ReadLimits, is_delayed, plan_end

Q = [QueueId("t", "broker-a", i) for i in range(8)]


class Sizes:
    """Messages of known sizes in each queue, the first at offset 0."""

    def __init__(self, sizes: Mapping[QueueId, list[int]]) -> None:
        self.sums = {queue: [0] for queue in sizes}
        for queue, each in sizes.items():
            for size in each:
                self.sums[queue].append(self.sums[queue][-1] + size)
        self.furthest = 0

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        self.furthest = max(self.furthest, end)
        return self.sums[queue][end] - self.sums[queue][start]

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        return bisect.bisect_right(self.sums[queue], self.sums[queue][start] + size_bytes) - 1


NO_SIZES = Sizes({})


def offsets(*numbers: int) -> dict[QueueId, int]:
    return dict(zip(Q, numbers, strict=False))


@pytest.mark.parametrize(
    ("starts", "available", "limit", "expected"),
    [
        pytest.param((0, 0), (10, 20), None, (10, 20), id="no limit"),
        pytest.param((0, 0), (10, 20), 30, (10, 20), id="all of it"),
        pytest.param((0, 0), (10, 20), 1000, (10, 20), id="never past the end"),
        pytest.param((0, 0), (10, 30), 8, (2, 6), id="in proportion"),
        pytest.param((100, 1000), (110, 1030), 8, (102, 1006), id="from where it starts"),
        pytest.param((0, 0, 0), (1, 1, 1000), 10, (1, 1, 9), id="small queues are not starved"),
        pytest.param((0, 0, 0), (5, 5, 5), 1, (1, 1, 1), id="each at least one, even over the limit"),
        pytest.param((0, 7), (10, 7), 4, (4, 7), id="a queue without backlog stays"),
        pytest.param((5, 5), (5, 5), 4, (5, 5), id="nothing new"),
        # Kafka computes 10 * (3 / 10.0) and so on in doubles; there 100 * (29 / 100.0) is 28.999… → 28.
        pytest.param((0, 0), (29, 71), 100, (29, 71), id="whole numbers, no rounding error"),
        pytest.param((0, 0), (58, 142), 100, (29, 71), id="whole numbers in proportion"),
    ],
)
def test_rows_are_prorated(
    starts: tuple[int, ...], available: tuple[int, ...], limit: int | None, expected: tuple[int, ...]
) -> None:
    limits = ReadLimits(max_offsets=limit)
    assert plan_end(offsets(*starts), offsets(*available), limits, NO_SIZES) == offsets(*expected)


@pytest.mark.parametrize(
    ("sizes", "limits", "expected"),
    [
        pytest.param([[10] * 5], ReadLimits(max_bytes=30), (3,), id="exactly"),
        pytest.param([[10] * 5], ReadLimits(max_bytes=39), (3,), id="not over"),
        pytest.param([[10] * 5], ReadLimits(max_bytes=50), (5,), id="all"),
        pytest.param([[100, 10]], ReadLimits(max_bytes=5), (1,), id="one large message does not block"),
        pytest.param([[10] * 8, [10] * 8], ReadLimits(max_bytes=80), (4, 4), id="evenly"),
        pytest.param([[10] * 2, [10] * 8], ReadLimits(max_bytes=50), (1, 3), id="20 + 50 in reach, so 14 and 35"),
        pytest.param([[99], [1] * 9], ReadLimits(max_bytes=6), (1, 1), id="each queue at least one"),
        pytest.param([[10] * 5], ReadLimits(max_bytes=30, max_offsets=2), (2,), id="rows first"),
        pytest.param([[10] * 5], ReadLimits(max_bytes=20, max_offsets=3), (2,), id="bytes first"),
    ],
)
def test_bytes_are_prorated(sizes: list[list[int]], limits: ReadLimits, expected: tuple[int, ...]) -> None:
    starts = offsets(*[0 for _ in sizes])
    available = offsets(*[len(each) for each in sizes])
    assert plan_end(starts, available, limits, Sizes(dict(zip(Q, sizes, strict=False)))) == offsets(*expected)


def test_a_long_backlog_is_not_measured_beyond_the_limit() -> None:
    sizes = Sizes({Q[0]: [10] * 100_000})
    plan_end(offsets(0), offsets(100_000), ReadLimits(max_bytes=100), sizes)
    assert sizes.furthest == 10


backlogs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**12)), min_size=1, max_size=8)


@given(backlogs, st.integers(1, 10**13))
def test_rows_stay_within_the_limit_by_one_a_queue_and_starve_nobody(
    backlog: list[tuple[int, int]], limit: int
) -> None:
    starts = offsets(*[start for start, _ in backlog])
    available = offsets(*[start + size for start, size in backlog])
    end = plan_end(starts, available, ReadLimits(max_offsets=limit), NO_SIZES)
    assert end.keys() == available.keys()
    assert sum(end[q] - starts[q] for q in end) <= limit + len(end)
    for q in end:
        assert starts[q] <= end[q] <= available[q]
        assert end[q] > starts[q] or available[q] == starts[q]


@given(backlogs, st.integers(1, 10**13), st.integers(0, 10**12))
def test_a_greater_limit_never_reads_less(backlog: list[tuple[int, int]], limit: int, more: int) -> None:
    starts = offsets(*[start for start, _ in backlog])
    available = offsets(*[start + size for start, size in backlog])
    less = plan_end(starts, available, ReadLimits(max_offsets=limit), NO_SIZES)
    greater = plan_end(starts, available, ReadLimits(max_offsets=limit + more), NO_SIZES)
    assert all(less[q] <= greater[q] for q in less)


@given(
    st.lists(st.lists(st.integers(1, 1000), max_size=30), min_size=1, max_size=5),
    st.integers(1, 20_000),
    st.none() | st.integers(1, 100),
)
def test_bytes_stay_within_the_limit_by_one_message_a_queue_and_starve_nobody(
    messages: list[list[int]], max_bytes: int, max_offsets: int | None
) -> None:
    sizes = Sizes(dict(zip(Q, messages, strict=False)))
    starts = offsets(*[0 for _ in messages])
    available = offsets(*[len(each) for each in messages])
    limits = ReadLimits(max_bytes=max_bytes, max_offsets=max_offsets)
    end = plan_end(starts, available, limits, sizes)
    firsts = sum(each[0] for each in messages if each)
    assert sum(sizes.bytes_between(q, 0, end[q]) for q in end) <= max_bytes + firsts
    assert all((end[q] >= 1) == (available[q] >= 1) and end[q] <= available[q] for q in end)
    if max_offsets is None and sum(map(sum, messages)) <= max_bytes:
        assert end == available


@given(backlogs, st.integers(1, 1000))
def test_reading_on_reaches_the_end(backlog: list[tuple[int, int]], limit: int) -> None:
    position = offsets(*[start for start, _ in backlog])
    available = offsets(*[start + size % 2000 for start, size in backlog])
    batches = 0
    while position != available:
        position = plan_end(position, available, ReadLimits(max_offsets=limit), NO_SIZES)
        batches += 1
        assert batches <= 2000 * len(backlog)


@pytest.mark.parametrize(
    ("minimum", "last_batch_ms", "now_ms", "expected"),
    [
        pytest.param(None, 1000, 1001, False, id="no minimum"),
        pytest.param(11, None, 0, False, id="the first batch is never held back"),
        pytest.param(11, 1000, 1500, True, id="too few"),
        pytest.param(10, 1000, 1500, False, id="enough"),
        pytest.param(11, 1000, 1999, True, id="just before the delay"),
        pytest.param(11, 1000, 2000, False, id="the delay has passed"),
        pytest.param(11, 1000, 500, False, id="the clock was set back"),
    ],
)
def test_a_batch_waits_for_the_minimum_or_the_delay(
    minimum: int | None, last_batch_ms: int | None, now_ms: int, expected: bool
) -> None:
    limits = ReadLimits(min_offsets=minimum, max_delay_ms=1000)
    held = is_delayed(offsets(5, 0), offsets(10, 5), limits, now_ms=now_ms, last_batch_ms=last_batch_ms)
    assert held is expected


def test_available_now_does_not_wait() -> None:
    limits = ReadLimits(min_offsets=99, max_offsets=100).without_minimum()
    assert not is_delayed(offsets(0), offsets(1), limits, now_ms=1, last_batch_ms=0)
    assert limits.max_offsets == 100


def test_a_frozen_end_holds_while_queues_grow_and_appear() -> None:
    frozen = FrozenEnd(offsets(10, 20))
    frozen.check_available(offsets(10, 25, 3))
    frozen.check_end(offsets(10, 15), offsets(10, 25, 3))


@pytest.mark.parametrize(
    ("available", "words"),
    [((10,), "queues have gone.*t/broker-a/1"), ((10, 19), "become shorter.*t/broker-a/1")],
)
def test_a_frozen_end_notices_what_is_gone(available: tuple[int, ...], words: str) -> None:
    with pytest.raises(AvailableNowError, match=words):
        FrozenEnd(offsets(10, 20)).check_available(offsets(*available))


@pytest.mark.parametrize(
    ("end", "available", "words"),
    [
        pytest.param((10,), (10, 20), "differ in queues: t/broker-a/1", id="end lacks a queue"),
        pytest.param((10, 20, 1), (10, 20, 1), "differ in queues: t/broker-a/2", id="end has one more"),
        pytest.param((10, 21), (10, 30), "passes the frozen end: t/broker-a/1", id="end beyond frozen"),
        pytest.param((10, 20), (10,), "queues have gone", id="a queue vanished"),
        pytest.param((10, 20), (9, 20), "become shorter than the batch.*t/broker-a/0", id="went backwards"),
    ],
)
def test_a_batch_is_verified_against_the_frozen_end(
    end: tuple[int, ...], available: tuple[int, ...], words: str
) -> None:
    with pytest.raises(AvailableNowError, match=words):
        FrozenEnd(offsets(10, 20)).check_end(offsets(*end), offsets(*available))
