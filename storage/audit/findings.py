"""What an audit of a store finds: kinds of differences, and how often each occurs where (`verify.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Kind(StrEnum):
    """What is wrong."""

    DAMAGED_LOG = "damaged_log"  # bytes inside the log that are no record
    BAD_BODY = "bad_body"  # a record whose body has another CRC than it says
    BAD_RECORD = "bad_record"  # a record that has another CRC than its property __CRC32# says
    LOG_TAIL = "log_tail"  # bytes behind the log's end: a torn write, or records of before a cut
    MISSING_ENTRY = "missing_entry"  # a record that its queue does not know
    WRONG_ENTRY = "wrong_entry"  # at the record's queue offset stands the entry of something else
    STALE_ENTRY = "stale_entry"  # an entry at an offset that no record has
    HOLE = (
        "hole"  # offsets between two messages that have none: fillers, or nothing at all, where a broker cuts the queue
    )
    WRONG_OFFSET = "wrong_offset"  # a record whose queue offset does not fit between those of its neighbours
    REPEATED_OFFSET = (
        "repeated_offset"  # records whose queue offsets were given again, as a broker had lost its queue's end
    )
    UNDISPATCHED = "undispatched"  # records at the end that no queue knows, though the store was closed
    MISSING_KEY = "missing_key"  # a key that a look-up does not find
    WRONG_KEY = "wrong_key"  # an item of the index for a record that is not there or has no such key
    CHECKPOINT_AHEAD = "checkpoint_ahead"  # the checkpoint vouches for more than the log holds


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference in one place: how often, and the first one as an example."""

    kind: Kind
    where: str
    count: int
    example: str


class Tally:
    """Differences by kind and place."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str], tuple[int, str]] = {}

    def add(self, kind: Kind, where: str, count: int, example: str) -> None:
        if count:
            before, first = self._found.get((kind, where), (0, example))
            self._found[kind, where] = (before + count, first)

    def findings(self) -> tuple[Finding, ...]:
        order = list(Kind)
        ranked = sorted(self._found.items(), key=lambda found: (order.index(found[0][0]), found[0][1]))
        return tuple(Finding(*key, *value) for key, value in ranked)


def are_inside(places: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Which places in the log lie in one of the ranges [begin, end)."""
    inside = np.zeros(len(places), bool)
    for begin, end in ranges:
        inside |= (places >= begin) & (places < end)
    return inside
