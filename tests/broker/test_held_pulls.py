"""Pulls that wait: woken by messages that they want, or when their time is up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from spark_mq.broker.held_pulls import LONG_POLLING_LOOK_MS, Arrivals, HeldLimits, HeldPull, HeldPulls
from spark_mq.broker.requests import ClientConnection
from spark_mq.remoting import make_request

NAME = ("T", 0)
ANN, BOB = (ClientConnection(bytes(8), name) for name in ("ann", "bob"))


def held(
    offset: int = 5, at_ms: int = 0, timeout_ms: int = 15_000, codes: set[int] | None = None, of: ClientConnection = ANN
) -> HeldPull:
    wanted = None if codes is None else frozenset(codes)
    return HeldPull(of, make_request(11), offset, at_ms, timeout_ms, wanted)


def codes(*tags_codes: int) -> np.ndarray:
    return np.array(tags_codes, np.dtype(">i8"))


def test_a_message_wakes_the_pulls_that_want_it_and_no_other() -> None:
    pulls = HeldPulls()
    all_of_it, red, blue = held(), held(codes={7}), held(codes={8, -9})
    for pull in (all_of_it, red, blue):
        pulls.hold(NAME, pull)
    pulls.hold(("T", 1), held())
    assert pulls.arrived(NAME, 6, codes(7), 10) == [all_of_it, red]
    assert pulls.arrived(NAME, 7, codes(7), 20) == []
    assert pulls.arrived(NAME, 9, codes(7, -9 + (1 << 32)), 30) == [blue]  # the lower 32 bits count
    assert len(pulls) == 1
    assert not pulls.has(NAME)


def test_messages_before_its_offset_wake_no_pull() -> None:
    pulls = HeldPulls()
    pulls.hold(NAME, held(offset=5))
    assert pulls.arrived(NAME, 5, codes(1), 10) == []
    assert len(pulls.arrived(NAME, 6, codes(1), 10)) == 1


def test_a_pull_whose_time_is_up_goes_at_the_next_look_or_arrival() -> None:
    pulls = HeldPulls()
    first, second = held(at_ms=0, timeout_ms=4_000, codes={1}), held(at_ms=0, timeout_ms=20_000)
    pulls.hold(NAME, first)
    pulls.hold(NAME, second)

    def nothing_new(topic: str, queue_id: int) -> int:
        return 5

    assert pulls.look(0, nothing_new) == []  # the first look is one interval away
    assert pulls.look(LONG_POLLING_LOOK_MS - 1, nothing_new) == []
    assert pulls.look(LONG_POLLING_LOOK_MS, nothing_new) == [first]
    assert pulls.look(20_000, nothing_new) == [second]
    pulls.hold(NAME, first)
    assert pulls.arrived(NAME, 6, codes(2), 4_000) == [first]  # not wanted, but its time is up


def test_a_look_knows_no_tags_and_takes_every_message_for_wanted() -> None:
    pulls = HeldPulls(look_interval_ms=1_000)
    pull = held(codes={1}, timeout_ms=60_000)
    pulls.hold(NAME, pull)
    pulls.look(0, lambda topic, queue_id: 5)
    assert pulls.look(1_000, lambda topic, queue_id: 6) == [pull]


def test_the_pulls_of_a_connection_that_is_gone_are_forgotten() -> None:
    pulls = HeldPulls()
    pulls.hold(NAME, held(of=ANN))
    pulls.hold(NAME, held(of=BOB))
    pulls.drop([ANN])
    assert [pull.connection for pull in pulls.arrived(NAME, 9, None, 0)] == [BOB]


def test_no_more_wait_than_may_of_all_and_of_one_connection() -> None:
    pulls = HeldPulls(limits=HeldLimits(count=4, size_bytes=100, count_of_one=3, size_bytes_of_one=60))
    assert [pulls.hold(("T", number), held()) for number in range(4)] == [True, True, True, False]
    assert [pulls.hold(NAME, held(of=BOB)) for _ in range(2)] == [True, False]
    pulls.drop([ANN])
    assert len(pulls) == 1
    assert not pulls.has(("T", 1))
    large = replace(held(of=ANN), size_bytes=50)
    assert pulls.hold(NAME, large)
    assert not pulls.hold(NAME, replace(large, size_bytes=11))
    assert pulls.hold(NAME, replace(large, connection=BOB))
    assert not pulls.hold(NAME, replace(large, connection=BOB, size_bytes=1))
    assert len(pulls.arrived(NAME, 6, None, 0)) == 3
    assert pulls.hold(NAME, large)


def test_a_pull_that_waits_on_is_there_whenever_somebody_asks() -> None:
    """Who puts asks without a lock: what is looked at by another thread meanwhile must not seem gone."""
    pulls = HeldPulls()
    seen: list[bool] = []

    class Watched(frozenset[int]):
        def isdisjoint(self, other: Iterable[object]) -> bool:
            seen.append(pulls.has(NAME))
            return super().isdisjoint(other)

    pulls.hold(NAME, replace(held(), tags_codes=Watched({1})))
    assert pulls.arrived(NAME, 6, codes(2), 0) == []
    assert seen == [True]


def test_arrivals_are_noted_by_queue_and_taken_once() -> None:
    arrivals = Arrivals()
    arrivals.note(NAME, codes(1))
    arrivals.note(NAME, codes(2, 3))
    arrivals.note(("T", 1), codes(4))
    taken = arrivals.take()
    assert {name: found is not None and found.tolist() for name, found in taken.items()} == {
        NAME: [1, 2, 3],
        ("T", 1): [4],
    }
    assert not arrivals.take()
    for _ in range(1_000):
        arrivals.note(NAME, codes(1))
    assert arrivals.take() == {NAME: None}  # any message may be wanted


def test_a_pull_is_answered_in_time_also_when_the_clock_was_set_back_before() -> None:
    """Java looks by a clock that nobody sets."""
    pulls, hour_ms = HeldPulls(), 3_600_000

    def nothing_new(topic: str, queue_id: int) -> int:
        return 5

    assert pulls.look(hour_ms, nothing_new) == []
    pull = held(at_ms=1_000, timeout_ms=15_000)
    pulls.hold(NAME, pull)
    woken = [found for now_ms in range(1_000, 30_000, 100) for found in pulls.look(now_ms, nothing_new)]
    assert woken == [pull]
