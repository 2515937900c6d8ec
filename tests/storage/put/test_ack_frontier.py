"""Which puts have their copies: a frontier that knows no time, beside a plain count over all replicas."""

from __future__ import annotations

import random

import pytest

from storage.rules.put_guards import ALL_IN_SET
from storage.service.put_group import AckFrontier, CopiesWanted


def test_a_put_is_settled_when_so_many_copies_reach_its_end() -> None:
    frontier = AckFrontier()
    two, three = frontier.ask(100, 2), frontier.ask(100, 3)
    assert two is not None
    assert three is not None
    assert frontier.see({"a": 99}) == []
    assert frontier.see({"a": 100}) == [two]
    assert frontier.see({"a": 100, "b": 99}) == []
    assert frontier.see({"a": 100, "b": 100}) == [three]


@pytest.mark.parametrize("needed", [0, 1])
def test_the_masters_own_copy_is_enough_for_one(needed: int) -> None:
    assert AckFrontier().ask(1 << 60, needed) is None


def test_one_put_that_lacks_copies_delays_no_other() -> None:
    frontier = AckFrontier()
    stuck, later = frontier.ask(100, 3), frontier.ask(200, 2)
    assert later is not None
    assert frontier.see({"a": 250}) == [later]
    assert frontier.give_up(stuck or later)


def test_a_put_that_has_its_copies_is_not_given_up() -> None:
    frontier = AckFrontier()
    wanted = frontier.ask(100, 2)
    assert wanted is not None
    assert frontier.see({"a": 100}) == [wanted]
    assert not frontier.give_up(wanted)


def test_what_a_replica_holds_that_left_counts_no_more() -> None:
    frontier = AckFrontier()
    frontier.see({"a": 100})
    frontier.see({})
    assert frontier.ask(100, 2) is not None


def test_the_whole_set_is_waited_for_and_nobody_else() -> None:
    frontier = AckFrontier()
    frontier.set_members({"b", "c"})
    wanted = frontier.ask(100, ALL_IN_SET)
    assert wanted is not None
    assert frontier.see({"b": 100, "stranger": 100}) == []
    assert frontier.see({"b": 100, "c": 100}) == [wanted]


def test_a_set_that_shrinks_waits_for_those_that_are_left() -> None:
    frontier = AckFrontier()
    frontier.set_members({"b", "c"})
    frontier.see({"b": 100})
    wanted = frontier.ask(100, ALL_IN_SET)
    assert frontier.set_members({"b"}) == [wanted]
    assert frontier.ask(101, ALL_IN_SET) is not None
    assert len(frontier.set_members(())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_reports_settles_what_a_count_says(seed: int) -> None:
    rng = random.Random(seed)
    frontier = AckFrontier()
    held: dict[str, int] = {}
    waiting: list[CopiesWanted] = []
    for _ in range(200):
        if rng.random() < 0.5:
            wanted = frontier.ask(rng.randrange(100), rng.randrange(1, 5))
            waiting += [wanted] if wanted else []
            continue
        replica = rng.choice("abcd")
        if rng.random() < 0.2:
            held.pop(replica, None)
        else:
            held[replica] = rng.randrange(100)
        settled = frontier.see(dict(held))
        counted = [t for t in waiting if 1 + sum(offset >= t.end for offset in held.values()) >= t.needed]
        assert {id(t) for t in settled} == {id(t) for t in counted}
        waiting = [t for t in waiting if t not in counted]
    assert {id(t) for t in frontier.forget()} == {id(t) for t in waiting}
