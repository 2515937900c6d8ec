"""Which messages of the half queue are one transaction, beside a walk over them one by one."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.rules.half_messages import CHECK_TIMES, half_message
from storage.rules.inner_messages import InnerMessage
from storage.transaction.half_queue import NO_PLACE, Halves, copies_of, read_halves

NOW_MS = 1_700_000_000_000


def store_of_halves(root: Path, said: Sequence[tuple[str | None, bool]]) -> MessageStore:
    """A store whose half queue has messages of these keys, sent by a producer or put back."""
    store = open_store(root, config=StoreConfig.tiny(), read_only=False, create=True, clock=lambda: NOW_MS)
    for key, is_copy in said:
        properties = ({} if key is None else {"UNIQ_KEY": key}) | ({CHECK_TIMES: "1"} if is_copy else {})
        message = InnerMessage(topic="T", queue_id=0, body=b"x", properties=properties, born_time_ms=NOW_MS)
        store.put_inner([half_message(message, "P")])
    return store


def walked(halves: Halves, row: int) -> tuple[list[int], int, int]:
    """Queue offsets, beginning and end of one half's transaction."""
    keys, places = halves.keys.to_pylist(), halves.commitlog_offsets.tolist()
    same = [other for other in range(halves.row_count) if keys[row] is not None and keys[other] == keys[row]]
    begins = [other for other in same if not halves.is_copy[other]]
    first = max((other for other in begins if other <= row), default=None)
    following = min((other for other in begins if other > row), default=None)
    started_at = (0 if halves.is_copy[row] else places[row]) if first is None else places[first]
    next_at = NO_PLACE if following is None else places[following]
    own = [other for other in same if (first or 0) <= other and (following is None or other < following)]
    return halves.queue_offsets[own].tolist(), started_at, next_at


@pytest.mark.parametrize("seed", range(8))
def test_the_messages_of_each_transaction_are_those_that_a_walk_finds(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    said = [(drawn.choice(["A", "B", "C", None]), drawn.random() < 0.6) for _ in range(30)]
    with store_of_halves(tmp_path / "store", said) as store:
        halves = read_halves(store, 0, len(said))
        for rows in (range(len(said)), *([row] for row in range(len(said)))):
            copies = copies_of(store, halves.take(np.array(rows)))
            for number, row in enumerate(rows):
                found = copies.queue_offsets[copies.of(number)]
                assert (sorted(found.tolist()), copies.started_at[number], copies.next_at[number]) == walked(
                    halves, row
                )


def test_many_halves_of_one_name_take_no_room_for_pairs_of_them(tmp_path: Path) -> None:
    count = 4_000
    with store_of_halves(tmp_path / "store", []) as store:
        message = InnerMessage(topic="T", queue_id=0, body=b"x", properties={"UNIQ_KEY": "A"}, born_time_ms=NOW_MS)
        store.put_inner([half_message(message, "P")] * count)
        halves = read_halves(store, 0, count)
        tracemalloc.start()
        copies = copies_of(store, halves)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.unique(copies.transactions).size == count
        assert peak_bytes < count * count
