"""What is due of the delay levels. Each case names what of Java's ScheduleMessageService (5.3.3) it is derived from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from storage.delay.schedule import DeliveryPlan, DueRange, _queue_id, plan_deliveries

NOW_MS = 1_700_000_000_000
DELAYS_MS = (1_000, 5_000)


def plan(
    times: Mapping[int, Sequence[int]],
    saved: Mapping[int, int],
    *,
    minimum: int = 0,
    max_messages: int | None = None,
    delays_ms: tuple[int, ...] = DELAYS_MS,
) -> DeliveryPlan:
    """A plan over queues whose messages are due at these times, relative to now, from offset 0 on."""
    asked: list[tuple[int, int, int]] = []

    def deliver_times(level: int, start: int, end: int) -> np.ndarray:
        asked.append((level, start, end))
        assert minimum <= start <= end <= len(times[level])
        return np.array(times[level][start:end], np.int64) + NOW_MS

    queues = {level: (min(minimum, len(found)), len(found)) for level, found in times.items()}
    return plan_deliveries(delays_ms, saved, queues, deliver_times, NOW_MS, max_messages=max_messages)


@pytest.mark.parametrize(
    ("times", "saved", "start", "end", "next_due"),
    [
        pytest.param([-9, 0, 1, 2], 0, 0, 2, 1, id="executeOnTimeUp: due is a countdown of 0 or less"),
        pytest.param([-9, 0, 1, 2], 2, 2, 2, 1, id="executeOnTimeUp: nothing due"),
        pytest.param([5, -9], 0, 0, 0, 5, id="executeOnTimeUp: the first that waits ends it"),
        pytest.param([1_001, 1_000], 0, 0, 1, 1_000, id="correctDeliverTimestamp: more than the delay ahead is due"),
        pytest.param([-9, -9], 2, 2, 2, None, id="executeOnTimeUp: all delivered"),
        pytest.param([-9, -9], 7, 2, 2, None, id="correctDelayOffset: above the maximum"),
        pytest.param([-9, -9, -9], None, 0, 3, None, id="start: a level that is missing begins at 0"),
        pytest.param([0, 0, -9], None, 0, 3, None, id="executeOnTimeUp: entries that are no message do not wait"),
    ],
)
def test_a_level_delivers_from_its_offset_to_the_first_message_that_waits(
    times: list[int], saved: int | None, start: int, end: int, next_due: int | None
) -> None:
    (found,) = plan({1: times}, {} if saved is None else {1: saved}).levels
    assert (found.start, found.end) == (start, end)
    assert found.next_due_ms == (None if next_due is None else NOW_MS + next_due)
    assert (found.saved, found.maximum) == (saved, len(times))


@pytest.mark.parametrize("saved", [0, 1, None], ids=["0", "1", "missing"])
def test_an_offset_below_the_minimum_is_the_minimum(saved: int | None) -> None:
    """ScheduleMessageService.correctDelayOffset, and for a missing level executeOnTimeUp."""
    (found,) = plan({1: [-9] * 4}, {} if saved is None else {1: saved}, minimum=3).levels
    assert (found.start, found.end) == (3, 4)


def test_an_offset_without_a_queue_goes_back_to_0() -> None:
    """ScheduleMessageService.correctDelayOffset makes the queue, whose maximum is 0."""
    found = plan({}, {2: 7})
    assert [(level.level, level.saved, level.start, level.end) for level in found.levels] == [(2, 7, 0, 0)]
    assert found.starts() == {2: 0}


def test_a_level_without_offset_and_messages_gets_no_offset() -> None:
    assert plan({1: [], 2: [5]}, {}).starts() == {2: 0}


def test_levels_above_the_last_are_left_and_told() -> None:
    """ScheduleMessageService.start: delivery tasks only for the levels of messageDelayLevel."""
    found = plan({2: [-9], 3: [-9, -9, -9], 4: [-9], 18: [-9]}, {3: 1, 4: 1})
    assert [level.level for level in found.levels] == [2]
    assert found.stranded == {3: 2, 18: 1}


def test_many_entries_are_looked_at_only_as_far_as_needed() -> None:
    asked = []

    def deliver_times(_level: int, start: int, end: int) -> np.ndarray:
        asked.append((start, end))
        return np.where(np.arange(start, end) < 100, NOW_MS, NOW_MS + 500).astype(np.int64)

    found = plan_deliveries(DELAYS_MS, {1: 0}, {1: (0, 1 << 40)}, deliver_times, NOW_MS)
    assert found.levels[0].end == 100
    assert asked == [(0, 64), (64, 576)]


def test_a_limit_cuts_level_after_level_and_tells_when_the_rest_is_due() -> None:
    found = plan({1: [-9, -8, -7], 2: [-6, -5, 4]}, {1: 0, 2: 0}, max_messages=4)
    assert [(level.start, level.end) for level in found.levels] == [(0, 3), (0, 1)]
    assert [level.next_due_ms for level in found.levels] == [None, NOW_MS - 5]
    nothing = plan({1: [-9, -8, -7], 2: [4]}, {1: 0, 2: 0}, max_messages=0)
    assert [(level.start, level.end, level.next_due_ms) for level in nothing.levels] == [
        (0, 0, NOW_MS - 9),
        (0, 0, NOW_MS + 4),
    ]


def test_rounds_hold_so_many_messages_and_keep_the_order() -> None:
    found = plan({1: [-9] * 5, 2: [-9] * 4}, {1: 0, 2: 0})
    assert list(found.rounds(3)) == [
        (DueRange(1, 0, 3),),
        (DueRange(1, 3, 5), DueRange(2, 0, 1)),
        (DueRange(2, 1, 4),),
    ]
    assert list(found.rounds(9)) == [(DueRange(1, 0, 5), DueRange(2, 0, 4))]
    assert list(plan({1: [5]}, {1: 0}).rounds()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("+3", 3),
        ("0" * 5_000 + "3", 3),
        ("2147483648", -1),
        ("9" * 5_000, -1),
        ("-1", -1),
        ("", -1),
        (None, -1),
    ],
)
def test_a_real_queue_is_read_as_java_reads_it_however_long(text: str | None, expected: int) -> None:
    """Integer.parseInt."""
    assert _queue_id(text) == expected
