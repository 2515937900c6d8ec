"""Ranges laid out in windows: each stands whole in its window, and in one window they are the runs that `coalesce` finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files.file_system import coalesce
from storage.format.arrays import Memory
from storage.format.window_decoder import LaidRanges, WindowLayout
from tests.support.kernels import loaded

FILE = np.random.default_rng(7).integers(0, 255, 1_000, np.uint8)
GAP = 16
MEMORY = Memory()  # of one reader: it holds what was laid out before

ranges = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 16, 17, 90, 400]), st.integers(1, 120)), max_size=25)
"""How far behind the end of the one before each begins, and its size."""
overlapping = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 200)), max_size=25)
windows_of = st.sampled_from([1, 50, 120, 300, 1_000, 1 << 20])


def laid_out(steps: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    positions, sizes, at = list[int](), list[int](), 0
    for gap, size in steps:
        positions.append(max(at + gap, positions[-1] if positions else 0))
        sizes.append(size)
        at = positions[-1] + size
    return np.array(positions, np.int64), np.array(sizes, np.int64)


def lay_out(
    positions: np.ndarray, sizes: np.ndarray, window_bytes: int, *, keep: bool, gap_bytes: int = GAP
) -> LaidRanges:
    return WindowLayout(loaded(), MEMORY, window_bytes, keep).of(positions, sizes, len(FILE), gap_bytes)


def check(positions: np.ndarray, sizes: np.ndarray, window_bytes: int, keep: bool) -> None:
    """Reading what is laid out gives each range its bytes, as far as the file has them."""
    laid = lay_out(positions, sizes, window_bytes, keep=keep)
    row, end = 0, 0
    buffer = np.zeros(max((window.end for window in laid.windows), default=0), np.uint8)
    for window in laid.windows:
        start = end if keep else 0
        assert window.rows.start == row < window.rows.stop
        for position, size, place in window.runs:
            assert place == start, "runs follow each other"
            assert place + size <= window.end
            assert position + size <= len(FILE) or not size
            buffer[place : place + size] = FILE[position : position + size]
            start += size
        assert start == window.end
        for row in range(window.rows.start, window.rows.stop):
            expected = FILE[positions[row] : positions[row] + sizes[row]]
            assert buffer[laid.places[row] : window.end][: len(expected)].tobytes() == expected.tobytes()
        length, last = window.end - (end if keep else 0), window.rows.stop
        assert length <= max(window_bytes, int(sizes[window.rows.start])), "a window is no longer than it may be"
        assert last == len(sizes) or length + int(sizes[last]) + GAP > window_bytes, "nor shorter"
        row, end = window.rows.stop, window.end
    assert row == len(positions) == len(laid.places)


@given(steps=ranges, window_bytes=windows_of, keep=st.booleans())
def test_each_range_stands_in_its_window(steps: list[tuple[int, int]], window_bytes: int, keep: bool) -> None:
    check(*laid_out(steps), window_bytes, keep)


@given(steps=overlapping, window_bytes=windows_of, keep=st.booleans())
def test_ranges_may_overlap(steps: list[tuple[int, int]], window_bytes: int, keep: bool) -> None:
    """Entries may claim what they like."""
    check(*laid_out(steps), window_bytes, keep)


@given(steps=st.one_of(ranges, overlapping).filter(bool), keep=st.booleans())
def test_one_window_has_the_runs_that_are_read_at_once(steps: list[tuple[int, int]], keep: bool) -> None:
    positions, sizes = laid_out(steps)
    inside = positions < len(FILE)
    positions, sizes = positions[inside], sizes[inside]
    if not len(positions):
        return
    starts, stops, places = coalesce(positions, sizes, len(FILE), GAP)
    laid = lay_out(positions, sizes, 1 << 20, keep=keep)
    (window,) = laid.windows
    assert [run[:2] for run in window.runs] == np.column_stack((starts, stops - starts)).tolist()
    assert laid.places.tolist() == places.tolist()


@pytest.mark.parametrize("gap_bytes", [0, 16])
def test_gaps_are_read_along_up_to_a_size(gap_bytes: int) -> None:
    positions = np.array([0, 10 + gap_bytes, 20 + 2 * gap_bytes + 1])
    laid = lay_out(positions, np.full(3, 10), 1 << 20, keep=False, gap_bytes=gap_bytes)
    assert [run[:2] for run in laid.windows[0].runs] == [[0, 20 + gap_bytes], [21 + 2 * gap_bytes, 10]]


@pytest.mark.parametrize("keep", [True, False])
def test_what_lies_behind_the_file_has_no_bytes(keep: bool) -> None:
    check(np.array([990, 995, 1_100]), np.array([5, 50, 100]), 1 << 20, keep)


def test_each_range_may_be_a_window_of_its_own() -> None:
    positions = np.arange(5_000, dtype=np.int64) * 100
    laid = WindowLayout(loaded(), Memory(), 1, False).of(positions, np.full(5_000, 3), 1 << 30, 16)
    assert [(window.end, window.runs) for window in laid.windows] == [(3, [[at, 3, 0]]) for at in positions.tolist()]
