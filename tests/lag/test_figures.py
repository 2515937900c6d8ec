"""Lag, ages, rates and the time to catch up follow from looks; what is not known stays unknown."""

from __future__ import annotations

import math

import pytest

from spark_mq.lag.figures import GroupLag, Look, Looks, Reader, catch_up_ms, group_lags
from spark_mq.source.lag import Position
from spark_mq.source.offsets import QueueId

GROUP = Reader("billing")
NOW_MS = 1_700_000_000_000


def queue(number: int, topic: str = "orders", broker: str = "a") -> QueueId:
    return QueueId(topic, broker, number)


def look(time_ms: int = NOW_MS, **positions: Position) -> Look:
    """One group in queues q0, q1 …"""
    return Look(time_ms, {(GROUP, queue(int(name[1:]))): each for name, each in positions.items()}, {}, {})


def only(found: list[GroupLag]) -> GroupLag:
    (group,) = found
    return group


@pytest.mark.parametrize(
    ("position", "lag"),
    [
        (Position(100, 60), 40),
        (Position(100, 100), 0),
        (Position(100, 0), 100),
        (Position(100, None), None),
        (Position(None, 5), None),
        (Position(100, 101), None),
        (Position(0, None), 0),
        (Position(0, 0), 0),
        (Position(0, 3), None),
    ],
)
def test_a_lag_is_counted_where_both_offsets_are_known(position: Position, lag: int | None) -> None:
    assert position.lag == lag


def test_a_group_adds_up_what_is_known_and_counts_what_is_not() -> None:
    found = only(
        group_lags(
            look(
                q0=Position(100, 60, NOW_MS - 7_000, 4_000),
                q1=Position(100, None),
                q2=Position(90, 90),
                q3=Position(80, 10, NOW_MS - 3_000, 7_000),
            )
        )
    )
    assert (found.lag, found.bytes, found.unknown_queues, len(found.queues)) == (110, 11_000, 1, 4)
    assert found.worst is not None
    assert (found.worst.queue, found.worst.lag) == (queue(3), 70)
    assert found.oldest_unread_ms == 7_000
    assert [each.oldest_unread_ms for each in found.queues] == [7_000, None, 0, 3_000]
    assert found.topics == ("orders",)


def test_nothing_known_is_none_and_never_zero() -> None:
    found = only(group_lags(look(q0=Position(100, None), q1=Position(None, 3))))
    assert (found.lag, found.bytes, found.worst, found.oldest_unread_ms, found.catch_up_ms) == (None,) * 5
    assert found.unknown_queues == 2


def test_an_age_is_never_below_zero_where_clocks_differ() -> None:
    assert only(group_lags(look(q0=Position(2, 1, NOW_MS + 50)))).oldest_unread_ms == 0


def test_a_group_that_has_read_all_is_not_behind() -> None:
    found = only(group_lags(look(q0=Position(5, 5))))
    assert (found.lag, found.worst, found.oldest_unread_ms, found.catch_up_ms) == (0, None, 0, 0)


def test_rates_are_those_between_two_looks_and_a_step_back_is_no_rate() -> None:
    before = look(q0=Position(100, 60), q1=Position(500, 400), q2=Position(30, 30))
    now = look(NOW_MS + 10_000, q0=Position(200, 260), q1=Position(50, 90), q2=Position(30, 10))
    first, second, third = only(group_lags(now, before)).queues
    assert (first.in_per_second, first.out_per_second) == (10.0, 20.0)
    assert (second.in_per_second, second.out_per_second) == (None, None), "the topic was made again"
    assert (third.in_per_second, third.out_per_second) == (0.0, None), "the group was set back"


def test_the_first_look_has_the_brokers_rates_and_the_second_its_own() -> None:
    looks = Looks()
    first = Look(
        NOW_MS,
        {(GROUP, queue(0)): Position(100, 60), (GROUP, queue(0, broker="b")): Position(9, 9)},
        {("orders", "a"): 3.0, ("orders", "b"): 1.0, ("other", "a"): 50.0},
        {(GROUP, "orders", "a"): 5.0, (Reader("else"), "orders", "a"): 70.0},
    )
    found = only(list(looks.report(first).groups))
    assert (found.in_per_second, found.out_per_second, found.catch_up_ms) == (4.0, 5.0, 40_000)
    soon = only(list(looks.report(look(NOW_MS + 1_000, q0=Position(101, 61))).groups))
    assert (soon.in_per_second, soon.out_per_second) == (3.0, 5.0), (
        "a second is too short: the brokers' rates still serve"
    )
    later = only(list(looks.report(look(NOW_MS + 10_000, q0=Position(150, 160))).groups))
    assert (later.in_per_second, later.out_per_second) == (5.0, 10.0)


def test_a_queue_without_a_rate_that_is_behind_leaves_the_time_to_catch_up_unknown() -> None:
    looks = Looks()
    looks.report(look(q0=Position(100, 60)))
    later = look(NOW_MS + 10_000, q0=Position(110, 90), q1=Position(1_000, 0))
    found = only(list(looks.report(later).groups))
    assert (found.lag, found.in_per_second, found.catch_up_ms) == (1_020, 1.0, None)


def test_rates_cover_a_minute_at_most_and_a_clock_that_was_set_back_begins_anew() -> None:
    looks = Looks()
    for second in (0, 30, 90):
        found = only(list(looks.report(look(NOW_MS + second * 1_000, q0=Position(second * second, 0))).groups))
    assert found.in_per_second == (90 * 90 - 30 * 30) / 60
    back = only(list(looks.report(look(NOW_MS - 5_000, q0=Position(8_200, 0))).groups))
    assert back.in_per_second is None
    rare = only(list(looks.report(look(NOW_MS + 595_000, q0=Position(8_800, 0))).groups))
    assert rare.in_per_second == 1.0, "looks that are ten minutes apart have a rate, too"


@pytest.mark.parametrize(
    ("lag", "put", "got", "expected"),
    [
        (0, 5.0, 0.0, 0.0),
        (100, 5.0, 15.0, 10_000.0),
        (100, 5.0, 5.0, math.inf),
        (100, 9.0, 5.0, math.inf),
        (100, None, 5.0, None),
        (100, 5.0, None, None),
        (None, 5.0, 6.0, None),
    ],
)
def test_a_group_catches_up_where_it_reads_faster_than_messages_come(
    lag: int | None, put: float | None, got: float | None, expected: float | None
) -> None:
    assert catch_up_ms(lag, put, got) == expected


def test_a_query_and_a_group_of_one_name_are_two_readers() -> None:
    query = Reader("billing", "query")
    both = Look(NOW_MS, {(GROUP, queue(0)): Position(9, 1), (query, queue(0)): Position(9, 5)}, {}, {})
    assert [(each.reader.kind, each.lag) for each in group_lags(both)] == [("group", 8), ("query", 4)]
