"""Pulls in flight: every offset of the range comes once and in order, whatever a broker's answers cover."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from spark_mq.source.pulls import FIRST_STRIDE, FULL_ANSWERS, MOST_STRIDE, Ask, PullWindow


def run(window: PullWindow[int], covers: int, seed: int = 1, reach: int = 0) -> tuple[list[tuple[int, int]], int]:
    """Answers in any order, each of at most `covers` offsets, or `reach` from what was asked. Returns what was given, and the pulls."""
    order = random.Random(seed)
    in_flight: list[Ask] = []
    given: list[tuple[int, int]] = []
    pulls = 0
    while not window.is_done:
        asks = window.asks()
        assert len(window._parts) <= 2 * window._depth, "large messages come one a pull, and all of this is memory"
        pulls += len(asks)
        in_flight += asks
        assert in_flight, "it waits for nothing"
        ask = in_flight.pop(order.randrange(len(in_flight)))
        window.answer(ask, min(ask.offset + covers, max(ask.end, ask.offset + reach)), ask.offset)
        for part in window.take():
            assert part.content == part.offset
            given.append((part.offset, part.end))
    return given, pulls


@pytest.mark.parametrize("covers", [1, 3, 8, 31, 32, 33, 100, 5_000])
@pytest.mark.parametrize("depth", [1, 2, 16])
@pytest.mark.parametrize("seed", range(3))
def test_all_offsets_come_once_and_in_order(covers: int, depth: int, seed: int) -> None:
    given, _ = run(PullWindow(7, 3_000, depth), covers, seed)
    assert given[0][0] == 7
    assert given[-1][1] == 3_000
    assert all(end == start for (_, end), (start, _) in pairwise(given))


def test_offsets_of_a_queue_without_gaps_are_asked_for_ahead() -> None:
    window: PullWindow[None] = PullWindow(100, 10_000, depth=4)
    assert window.asks() == [Ask(100, 132), Ask(132, 164), Ask(164, 196), Ask(196, 228)]
    assert window.asks() == []
    assert window.in_flight == 4


def test_a_short_answer_is_mended_before_anything_new_is_asked_for() -> None:
    window: PullWindow[str] = PullWindow(0, 10_000, depth=3)
    first, second, third = window.asks()
    window.answer(second, 60, "b")
    window.answer(first, 32, "a")
    assert [part.content for part in window.take()] == ["a", "b"]
    assert window.asks() == [Ask(60, 64), Ask(96, 124)], "the rest first, then as many as the short answer had"
    window.answer(third, 96, "c")
    assert window.take() == []
    assert window.position == 60


@pytest.mark.parametrize("covers", [1, 8, 32, 100])
def test_the_stride_becomes_what_the_broker_gives(covers: int) -> None:
    _, pulls = run(PullWindow(0, 20_000, depth=8), covers)
    assert pulls <= 20_000 / covers * 1.3 + 20


def test_a_broker_that_gives_more_is_asked_for_more() -> None:
    _, pulls = run(PullWindow(0, 100_000, depth=4), covers=MOST_STRIDE)
    assert pulls < 100_000 / MOST_STRIDE + 8 * FULL_ANSWERS


def test_answers_of_a_filter_that_cover_more_make_the_stride_greater() -> None:
    window: PullWindow[None] = PullWindow(0, 100_000, depth=1)
    (ask,) = window.asks()
    window.answer(ask, 800, None)
    assert [(part.offset, part.end) for part in window.take()] == [(0, FIRST_STRIDE)]
    assert window.asks() == [Ask(32, 832)]


def test_what_was_in_flight_on_a_broken_connection_is_asked_for_again() -> None:
    window: PullWindow[str] = PullWindow(0, 100, depth=3)
    first, second, third = window.asks()
    window.answer(second, 64, "b")
    window.withdraw()
    assert window.in_flight == 0
    assert window.asks() == [first, third, Ask(96, 100)]


def test_a_queue_that_ends_before_the_range_cuts_it() -> None:
    window: PullWindow[str] = PullWindow(0, 1_000, depth=3)
    first, second, third = window.asks()
    window.cut(40)
    window.answer(third, 96, "c")
    window.answer(second, 40, "b")
    assert window.asks() == [], "what lies behind the end is no rest"
    window.answer(first, 32, "a")
    assert [(part.offset, part.end) for part in window.take()] == [(0, 32), (32, 40)]
    assert window.is_done


def test_no_more_parts_are_kept_than_twice_the_depth() -> None:
    window: PullWindow[None] = PullWindow(0, 1_000_000, depth=4)
    (stuck, *others) = window.asks()
    kept = 0
    while others:
        ask = others.pop()
        window.answer(ask, ask.end, None)
        kept += 1
        others += window.asks()
    assert kept == 7
    window.answer(stuck, stuck.end, None)
    assert len(window.take()) == 8
