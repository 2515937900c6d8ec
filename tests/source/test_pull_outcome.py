"""What a broker's answer to a pull means, by DefaultMessageStore.getMessage and DefaultPullMessageResultHandler of 5.3.3."""

from __future__ import annotations

import pytest

from spark_mq.source.pulls import Again, Ended, Found, Lost, Misfit, Nothing, Outcome, PullAnswer, outcome_of

RECORD = b"a record"


def answer(code: int, remark: str, next_offset: int, minimum: int, maximum: int, body: bytes = b"") -> PullAnswer:
    return PullAnswer(code, remark, next_offset, minimum, maximum, 0, body)


@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        (10, answer(0, "FOUND", 42, 0, 100, RECORD), Found(42)),
        (10, answer(0, "FOUND", 810, 0, 9_000, RECORD), Found(810)),  # filtered
        (10, answer(20, "NO_MATCHED_MESSAGE", 810, 0, 9_000), Nothing(810)),
        (10, answer(20, "NO_MATCHED_MESSAGE", 11, 0, 11), Nothing(11)),
        (10, answer(20, "MESSAGE_WAS_REMOVING", 42, 0, 100), Lost(42, "the messages from 10 to 42 are deleted from the log")),
        (10, answer(20, "OFFSET_OVERFLOW_ONE", 10, 0, 10), Again("OFFSET_OVERFLOW_ONE")),  # of a slave
        (10, answer(20, "OFFSET_TOO_SMALL", 50, 50, 100), Lost(50, "the queue begins at 50")),  # of a slave
        (10, answer(20, "OFFSET_FOUND_NULL", 1_000, 0, 2_000),
         Lost(1_000, "no entry from 10 to 1000 can be read (OFFSET_FOUND_NULL)")),  # of a slave
        (10, answer(20, "OFFSET_RESET", 90, 0, 100), Again("the group's offset was reset")),  # of a slave
        (10, answer(19, "OFFSET_OVERFLOW_ONE", 10, 0, 10), Ended(10, "the queue ends at 10")),
        (0, answer(19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0), Ended(0, "the queue ends at 0")),
        (10, answer(19, "OFFSET_FOUND_NULL", 1_000, 0, 2_000),
         Lost(1_000, "no entry from 10 to 1000 can be read (OFFSET_FOUND_NULL)")),
        (10, answer(21, "OFFSET_TOO_SMALL", 50, 50, 100), Lost(50, "the queue begins at 50")),
        (10, answer(21, "OFFSET_OVERFLOW_BADLY", 4, 0, 4), Ended(4, "the queue ends at 4")),
        (10, answer(21, "NO_MESSAGE_IN_QUEUE", 0, 0, 0), Ended(0, "the queue ends at 0")),
        (10, answer(21, "NO_MATCHED_LOGIC_QUEUE", 0, 0, 0), Ended(0, "the queue ends at 0")),
        (10, answer(21, "OFFSET_RESET", 3, 0, 100), Again("the group's offset was reset")),
        (10, answer(21, "OFFSET_RESET", 90, 0, 100), Again("the group's offset was reset")),
        (10, answer(19, "OFFSET_OVERFLOW_ONE", 10, 0, 20), Again("OFFSET_OVERFLOW_ONE")),
        (10, answer(19, "", 10, 0, 20), Again("code 19 without news")),
    ],
)  # fmt: skip
def test_each_answer_of_a_broker_has_one_meaning(asked: int, given: PullAnswer, expected: Outcome) -> None:
    assert outcome_of(asked, given) == expected


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (answer(0, "FOUND", 42, 0, 100), "0 bytes of records with code 0"),
        (answer(19, "OFFSET_OVERFLOW_ONE", 42, 0, 100, RECORD), "8 bytes of records with code 19"),
        (answer(0, "FOUND", 10, 0, 100, RECORD), "next offset 10 is not behind 10"),
        (answer(0, "FOUND", 3, 0, 100, RECORD), "next offset 3 is not behind 10"),
        (answer(20, "NO_MATCHED_MESSAGE", -1, 0, 100), "the next offset is -1"),
    ],
)
def test_what_no_broker_says_is_told_apart(given: PullAnswer, rule: str) -> None:
    outcome = outcome_of(10, given)
    assert isinstance(outcome, Misfit)
    assert rule in outcome.reason


@pytest.mark.parametrize("code", [19, 20, 21])
def test_no_answer_without_records_goes_on_where_it_was(code: int) -> None:
    """Who goes on by the next offset never asks for the same place for ever: it moves on, ends, or the answer is none."""
    for remark in (
        "",
        "NO_MATCHED_MESSAGE",
        "MESSAGE_WAS_REMOVING",
        "OFFSET_TOO_SMALL",
        "OFFSET_FOUND_NULL",
        "OFFSET_RESET",
    ):
        for next_offset in (0, 9, 10, 11, 50):
            for maximum in (0, 5, 10, 11, 100):
                match outcome_of(10, answer(code, remark, next_offset, 0, maximum)):
                    case Nothing(next_offset=behind) | Lost(next_offset=behind):
                        assert behind > 10
                    case Ended(maximum=end):
                        assert end <= 10
                    case other:
                        assert isinstance(other, Again)
