"""The search for a time gives what a look at every message gives, wherever it begins, and looks at few of them."""

from __future__ import annotations

import random

import pytest

from spark_mq.source.live_cluster import first_not_older


@pytest.mark.parametrize("seed", range(20))
def test_any_guess_leads_to_the_first_message_that_is_not_older(seed: int) -> None:
    order = random.Random(seed)
    minimum, count = order.randrange(50), order.randrange(1, 80)
    times = sorted(order.randrange(30) for _ in range(count))
    for timestamp in range(-1, 32):
        expected = minimum + sum(time < timestamp for time in times)
        for guess in (0, minimum, minimum + order.randrange(count), minimum + count, 10_000):
            found = first_not_older(timestamp, guess, minimum, minimum + count, lambda offset: times[offset - minimum])
            assert found == expected


@pytest.mark.parametrize(("guess", "most"), [(700_000, 2), (699_999, 3), (0, 60), (1_000_000, 60), (700_100, 25)])
def test_a_good_guess_costs_two_looks_and_a_bad_one_few(guess: int, most: int) -> None:
    asked: list[int] = []

    def time_of(offset: int) -> int:
        asked.append(offset)
        return offset

    assert first_not_older(700_000, guess, 0, 1_000_000, time_of) == 700_000
    assert len(asked) <= most


def test_offsets_without_a_message_are_as_old_as_the_message_behind_them() -> None:
    times: dict[int, int | None] = {0: 5, 1: 9, 2: 9, 3: 9, 4: None}
    assert first_not_older(6, 3, 0, 5, times.__getitem__) == 1
    assert first_not_older(10, 0, 0, 5, times.__getitem__) == 4
