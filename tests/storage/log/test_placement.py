"""Records are placed as Java places them one by one: the same offsets, the same fillers, whatever is placed at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import MessageIllegalError
from storage.format.arrays import sorted_by_code
from storage.log.writer import Filler, Placement, place, slices

FILE_SIZE = 256
LARGEST = FILE_SIZE - 8


class JavaLog:
    """One record at a time, by CommitLog.asyncPutMessage and DefaultAppendMessageCallback.doAppend."""

    def __init__(self, end: int, file_start: int, next_offsets: list[int]) -> None:
        self.file_start, self.written = file_start, end - file_start
        self.next_offsets = list(next_offsets)
        self.fillers: list[Filler] = []
        self.places: list[tuple[int, int]] = []

    def append(self, size: int, queue: int) -> None:
        if self.written == FILE_SIZE:  # mappedFile.isFull: the next one is taken
            self.file_start, self.written = self.file_start + FILE_SIZE, 0
        room = FILE_SIZE - self.written
        if size + 8 > room:
            self.fillers.append(Filler(self.file_start + self.written, room))
            self.file_start, self.written = self.file_start + FILE_SIZE, 0
            assert size + 8 <= FILE_SIZE
        self.places.append((self.file_start + self.written, self.next_offsets[queue]))
        self.next_offsets[queue] += 1
        self.written += size

    @property
    def end(self) -> int:
        return self.file_start + self.written


def placed(placement: Placement) -> list[tuple[int, int]]:
    return list(zip(placement.commitlog_offsets.tolist(), placement.queue_offsets.tolist(), strict=True))


def place_all(sizes: list[int], *, end: int = 0, file_end: int = FILE_SIZE) -> Placement:
    codes = np.zeros(len(sizes), np.int32)
    return place(np.array(sizes, np.int32), codes, np.zeros(1, np.int64), end, file_end, FILE_SIZE)


sizes = st.integers(1, LARGEST) | st.sampled_from([LARGEST, LARGEST - 1, FILE_SIZE // 2 - 8, FILE_SIZE // 2, 100])


@given(
    records=st.lists(st.tuples(sizes, st.integers(0, 4)), max_size=40),
    file_start=st.integers(0, 2**40),
    written=st.integers(0, LARGEST),
    next_offsets=st.lists(st.integers(0, 2**40), min_size=5, max_size=5),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_places_are_those_of_java_however_many_are_placed_at_once(
    records: list[tuple[int, int]], file_start: int, written: int, next_offsets: list[int], cuts: list[int]
) -> None:
    java = JavaLog(file_start + written, file_start, next_offsets)
    for size, queue in records:
        java.append(size, queue)
    end, next_queue_offsets = file_start + written, np.array(next_offsets, np.int64)
    places, fillers = [], []
    bounds = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    for first, last in pairwise(bounds):
        part = records[first:last]
        file_end = file_start + ((end - file_start) // FILE_SIZE + 1) * FILE_SIZE
        placement = place(
            np.array([size for size, _ in part], np.int32),
            np.array([queue for _, queue in part], np.int32),
            next_queue_offsets,
            end,
            file_end,
            FILE_SIZE,
        )
        places += placed(placement)
        fillers += placement.fillers
        end, next_queue_offsets = placement.end, placement.next_queue_offsets
    assert places == java.places
    assert fillers == java.fillers
    assert end == java.end
    assert next_queue_offsets.tolist() == java.next_offsets


def test_a_record_that_leaves_room_for_a_filler_fits_exactly() -> None:
    placement = place_all([100, FILE_SIZE - 100 - 8])
    assert (placement.commitlog_offsets.tolist(), placement.fillers) == ([0, 100], ())
    assert placement.end == FILE_SIZE - 8
    following = place_all([1], end=placement.end)
    assert (following.commitlog_offsets.tolist(), following.fillers) == ([FILE_SIZE], (Filler(FILE_SIZE - 8, 8),))


def test_one_byte_more_goes_to_the_next_file() -> None:
    placement = place_all([100, FILE_SIZE - 100 - 7])
    assert placement.commitlog_offsets.tolist() == [0, FILE_SIZE]
    assert placement.fillers == (Filler(100, FILE_SIZE - 100),)


def test_a_record_as_large_as_a_file_takes_one_each() -> None:
    placement = place_all([LARGEST] * 3, end=5)
    assert placement.commitlog_offsets.tolist() == [FILE_SIZE, 2 * FILE_SIZE, 3 * FILE_SIZE]
    assert placement.fillers == (Filler(5, FILE_SIZE - 5), Filler(2 * FILE_SIZE - 8, 8), Filler(3 * FILE_SIZE - 8, 8))


@pytest.mark.parametrize("end", [0, 10])
@pytest.mark.parametrize("before", [[], [LARGEST], [100, 100]])
def test_a_record_too_large_for_any_file_is_refused(before: list[int], end: int) -> None:
    with pytest.raises(MessageIllegalError) as caught:
        place_all([*before, LARGEST + 1, 10], end=end)
    assert (caught.value.limit, caught.value.actual) == (LARGEST, LARGEST + 1)


def test_nothing_is_placed_where_nothing_is_given() -> None:
    placement = place_all([], end=7)
    assert (placed(placement), placement.fillers, placement.end) == ([], (), 7)
    assert placement.next_queue_offsets.tolist() == [0]


@pytest.mark.parametrize("queue_count", [1, 2, 65_536, 65_537, 200_000])
def test_each_queue_counts_for_itself_however_many_there_are(queue_count: int) -> None:
    random = np.random.default_rng(queue_count)
    count = 140_000 if queue_count == 2 else 5_000  # of one queue more than 16 bits count
    codes = random.integers(0, queue_count, count, dtype=np.int32)
    codes[:3] = codes[-3:] = queue_count - 1, 0, queue_count - 1
    begin = random.integers(0, 2**40, queue_count)
    placement = place(np.full(count, 20, np.int32), codes, begin, 0, 1 << 23, 1 << 23)
    counted = begin.tolist()
    for code, queue_offset in zip(codes.tolist(), placement.queue_offsets.tolist(), strict=True):
        assert queue_offset == counted[code]
        counted[code] += 1
    assert placement.next_queue_offsets.tolist() == counted
    order = sorted_by_code(codes, queue_count)
    assert order.tolist() == sorted(range(count), key=codes.__getitem__)


@given(
    gaps_and_sizes=st.lists(st.tuples(st.sampled_from([0, 0, 0, 30]), st.integers(1, 50)), max_size=30),
    slice_bytes=st.integers(1, 120),
    start=st.integers(0, 2**40),
)
def test_slices_hold_every_record_once_without_a_gap_and_as_many_as_fit(
    gaps_and_sizes: list[tuple[int, int]], slice_bytes: int, start: int
) -> None:
    expected: list[list[int]] = []
    offsets: list[int] = []
    at, first = start, start
    for row, (gap, size) in enumerate(gaps_and_sizes):
        at += gap
        if not row or gap or at + size - first > slice_bytes:
            first = at
            expected.append([row, row])
        expected[-1][1] = row + 1
        offsets.append(at)
        at += size
    found = slices(np.array(offsets, np.int64), np.array([size for _, size in gaps_and_sizes], np.int32), slice_bytes)
    assert [list(part) for part in found] == expected
