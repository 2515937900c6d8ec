"""Who is to blame for messages of a log that a leader does not serve: the hunts' own judgement."""

from __future__ import annotations

from tests.support.kill_hunts import Place
from tests.support.offsets_given import Given, jumps, unserved_by

OWNERS = {"n0": "ours", "n2": "Apache's"}


def log_of(*leaders: tuple[str, int, list[int]]) -> list[Given]:
    """Of one queue: what each leader gave in its term. A key counts where the message stands in the log."""
    found: list[Given] = []
    for giver, term, offsets in leaders:
        for offset in offsets:
            found.append(Given(Place(f"m{len(found)}", 0, offset), 100 * len(found), term, giver))
    return found


def why(log: list[Given], keys: set[str], leader: str) -> dict[str, int]:
    return dict(unserved_by([each.place for each in log if each.place.key in keys], log, OWNERS.__getitem__, leader))


def test_leaders_that_go_on_from_each_other_make_no_jump() -> None:
    assert jumps(log_of(("n0", 1, [0, 1, 2]), ("n2", 2, [3]), ("n0", 3, [4, 5]))) == []


def test_offsets_given_again_are_counted_for_each_leader_that_gave_them() -> None:
    log = log_of(("n0", 1, [0, 1, 2, 3, 4]), ("n2", 2, [1, 2]), ("n0", 3, [3, 4, 5]))
    assert [(each.first.giver, each.first.place.queue_offset, each.end, each.count) for each in jumps(log)] == [
        ("n2", 1, 5, 2),
        ("n0", 3, 5, 2),
    ]


def test_a_hole_is_a_jump() -> None:
    (found,) = jumps(log_of(("n0", 1, [0, 1]), ("n2", 2, [4, 5])))
    assert (found.first.place.queue_offset, found.end, found.count) == (4, 2, 0)
    assert "a hole from 4, where 2 was next, by n2" in str(found)


def test_queues_have_ends_of_their_own() -> None:
    first = Given(Place("a", 0, 0), 0, 1, "n0")
    assert jumps([first, first._replace(place=Place("b", 1, 0)), first._replace(place=Place("c", 0, 1))]) == []


def test_who_gave_an_offset_again_is_to_blame_whichever_message_is_served() -> None:
    log = log_of(("n0", 1, [0, 1, 2]), ("n2", 2, [2, 3]))
    assert why(log, {"m2"}, "n0") == {"offset given again by Apache's": 1}  # the later one took its place
    assert why(log, {"m3"}, "n2") == {"offset given again by Apache's": 1}  # the earlier one keeps it
    log = log_of(("n2", 1, [0, 1, 2]), ("n0", 2, [2, 3]))
    assert why(log, {"m2"}, "n2") == {"offset given again by ours": 1}


def test_who_went_back_first_is_named_beside_who_goes_on_from_there() -> None:
    log = log_of(("n0", 1, [0, 1, 2, 3, 4]), ("n2", 2, [1, 2]), ("n0", 3, [3, 4, 5]))
    assert why(log, {"m1", "m3"}, "n0") == {
        "offset given again by Apache's": 1,
        "offset given again by ours, after Apache's": 1,
    }


def test_a_leader_that_goes_back_itself_is_the_first() -> None:
    log = log_of(("n0", 1, [0, 1, 2, 3, 4]), ("n2", 2, [1, 2, 3, 4, 5]), ("n0", 3, [5, 6]))
    assert why(log, {"m9"}, "n0") == {"offset given again by ours": 1}


def test_where_an_offset_was_given_once_the_leader_is_to_blame() -> None:
    log = log_of(("n0", 1, [0, 1, 2]))
    assert why(log, {"m1"}, "n2") == {"queue of Apache's lacks it": 1}
    assert why(log, {"m1"}, "n0") == {"queue of ours lacks it": 1}
