"""Kernels of a commit do to records, queues and index what the functions do that they stand in for."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.files.local_file_system import LocalFileSystem
from storage.format import record_block
from storage.format.kernels.compiled import ENTER, as_int32, as_int64
from storage.format.properties import CRC_SIZE
from storage.format.record_block import stamp, stamp_crcs
from storage.index import writer as index_writer
from storage.index.store import IndexStore
from storage.index.writer import IndexWriter
from storage.log import dispatch, placement
from storage.log.dispatch import IndexKeys, entries_by_queue
from storage.log.placement import place
from tests.support.kernels import ON, both, kernels, need_kernels

EXAMPLES = 60 if ON == "check" else 20
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORD = 120
"""Bytes from one record's beginning to the next one's."""


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    need_kernels()


def shown(*arrays: np.ndarray) -> list[Any]:
    return [(str(array.dtype), array.tolist()) for array in arrays]


def numbers(draw: st.DrawFn, elements: st.SearchStrategy[int], count: int, dtype: str = "int64") -> np.ndarray:
    return np.array(draw(st.lists(elements, min_size=count, max_size=count)), dtype)


@st.composite
def stamps(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(0, 9))
    positions = RECORD * np.arange(count) + draw(st.integers(0, 7))
    times = numbers(draw, INT64, count) if draw(st.booleans()) else draw(INT64)
    columns = numbers(draw, INT64, count), numbers(draw, INT64, count)
    return positions, *columns, times, draw(st.sampled_from([8, 20]))


@settings(max_examples=EXAMPLES)
@given(stamps(), st.integers(0, 255))
def test_records_get_the_same_stamps(case: tuple[Any, ...], filler: int) -> None:
    def stamped() -> bytes:
        data = np.full(RECORD * 10, filler, np.uint8)
        stamp(data, *case)
        return data.tobytes()

    exact, made = both(stamped)
    assert made == exact


@pytest.mark.parametrize("position", [-200, 1_000, 1_000 - 70])
def test_a_stamp_that_leaves_the_buffer_is_refused_either_way(position: int) -> None:
    """Not by writing elsewhere. A few bytes before the beginning are those at the end, as in NumPy."""

    def attempt() -> str:
        data = np.zeros(100, np.uint8)
        try:
            stamp(data, np.array([0, position]), np.zeros(2, np.int64), np.zeros(2, np.int64), 1, 8)
        except IndexError:
            return "refused"
        return "taken"

    assert both(attempt) == ("refused", "refused")


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(CRC_SIZE, 300), max_size=8), st.integers(0, 5), st.randoms(use_true_random=False))
def test_records_get_the_same_sums(sizes: list[int], start: int, random: Any) -> None:
    source = np.frombuffer(random.randbytes(start + sum(sizes)), np.uint8)
    positions = start + np.cumsum([0, *sizes])[:-1]

    def stamped() -> bytes:
        data = source.copy()
        stamp_crcs(data, positions, np.array(sizes, np.int32))
        return data.tobytes()

    exact, made = both(stamped)
    assert made == exact


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_records_get_the_same_places(data: st.DataObject) -> None:
    queues = data.draw(st.integers(1, 5))
    codes = numbers(data.draw, st.integers(0, queues - 1), data.draw(st.integers(1, 20)), "int32")
    sizes = numbers(data.draw, st.integers(91, 200), len(codes), "int32")
    nexts = numbers(data.draw, st.integers(0, 9), queues)

    def placed() -> list[Any]:
        found = place(sizes, codes, nexts, 300, 1_000, 1_000)
        return [*shown(*found[:3]), *found[3:]]

    exact, made = both(placed)
    assert made == exact


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_queues_get_the_same_entries(data: st.DataObject) -> None:
    """In their order, whatever the types of the columns."""
    names = [("T", number) for number in range(data.draw(st.integers(1, 5)))]
    count = data.draw(st.integers(0, 20))
    kind = data.draw(st.sampled_from(["int32", "int64", "uint32"]))
    codes = numbers(data.draw, st.integers(0, len(names) - 1), count, kind)
    size_kind = data.draw(st.sampled_from(["int32", ">i4", "int64"]))
    columns = [numbers(data.draw, INT64, count) for _ in range(4)]
    columns.insert(1, numbers(data.draw, st.integers(0, 2**31 - 1), count, size_kind))

    def entries() -> list[Any]:
        found = entries_by_queue(names, codes, *columns)
        return [
            (one.topic, one.queue_id, one.entries.tobytes(), *shown(one.queue_offsets, one.store_times_ms))
            for one in found
        ]

    exact, made = both(entries)
    assert made == exact


@st.composite
def key_parts(draw: st.DrawFn) -> list[IndexKeys]:
    parts, offset, time = [], 0, draw(st.sampled_from([0, 1_700_000_000_000]))
    for count in draw(st.lists(st.integers(0, 25), min_size=1, max_size=3)):
        hashes = numbers(draw, st.integers(0, 12) | st.integers(0, 2**31 - 1), count, "int32")
        steps = np.cumsum(numbers(draw, st.integers(0, 900), count))
        times = time + numbers(draw, st.integers(-5_000, 10**13), count)
        parts.append(IndexKeys(hashes, offset + steps, times))
        offset += int(steps[-1]) if count else 0
    return parts


@settings(max_examples=EXAMPLES)
@given(key_parts(), st.sampled_from([1, 7, 3_000]), st.sampled_from([6, 40]))
def test_index_files_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, parts: list[IndexKeys], slots: int, items: int
) -> None:
    """Over several files, entered and flushed in parts."""

    def written() -> dict[str, bytes]:
        root = tmp_path_factory.mktemp("index")
        file_system = LocalFileSystem()
        store = IndexStore(file_system, str(root), slots, items)
        writer = IndexWriter(file_system, store, lambda: 1_000)
        for part in parts:
            writer.append(part)
            writer.flush()
        return {path.name: path.read_bytes() for path in root.glob("index/*")}

    exact, made = both(written)
    assert made == exact


def test_ordinary_commits_take_the_kernels() -> None:
    """Else all of the above would compare the exact path with itself."""
    number = np.zeros(2, np.int64)
    with (
        kernels(ON),
        mock.patch.object(record_block, "scatter", side_effect=AssertionError),
        mock.patch.object(record_block, "crcs_between", side_effect=AssertionError),
        mock.patch.object(placement, "sorted_by_code", side_effect=AssertionError),
        mock.patch.object(dispatch, "sorted_by_code", side_effect=AssertionError),
        mock.patch.object(index_writer, "link_items", side_effect=AssertionError),
    ):
        module = ENTER.for_rows()
        assert module is not None
        stamp(np.zeros(300, np.uint8), np.array([0, 100]), number, number, 5, 8)
        if module.HAS_CRC:
            stamp_crcs(np.zeros(300, np.uint8), np.array([0, 100]), np.array([100, 100]))
        place(np.array([100, 100]), np.array([0, 1]), number, 0, 1_000, 1_000)
        assert len(list(entries_by_queue([("T", 0)], *[number] * 6))) == 1


def test_kernels_refuse_what_does_not_fit_together() -> None:
    """And then have done nothing to slots, which nobody could undo."""
    with kernels(ON):
        module = ENTER.for_rows()
    assert module is not None
    slots, items = np.zeros(5, np.int32), np.zeros(40, np.uint8)
    good = module.Keys(as_int32(np.array([3, 4])), as_int64(np.arange(2)), as_int64(np.arange(2)))
    for wrong in (
        (items[:39], slots, good, 1),
        (items, slots[:0], good, 1),
        (items, slots, good._replace(hashes=as_int32(np.array([3, -4]))), 1),
        (items, slots, good._replace(commitlog_offsets=as_int64(np.arange(3))), 1),
    ):
        assert module.enter_keys(*wrong) == -1
        assert not slots.any()
    assert module.enter_keys(items, slots, good, 1) == 2
    assert slots.tolist() == [0, 0, 0, 1, 2]
    codes = as_int64(np.array([0, 2]))
    assert not module.rank(np.zeros(2, np.int64), np.zeros(2, np.int64), codes)
