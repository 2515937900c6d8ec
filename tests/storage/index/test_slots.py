"""Slots in memory: those of the file, page by page, and kept for a store's next opening only if nobody else has had it since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.index import store as kept
from storage.index.store import MANY_PAGES, PAGE_ROWS, IndexFile, OpenSlots

SLOTS = 20 * PAGE_ROWS + 7
CONFIG = replace(
    StoreConfig.tiny(), index=replace(StoreConfig.tiny().index, max_hash_slot_num=SLOTS, max_index_num=130)
)


@pytest.fixture(autouse=True)
def no_slots_of_another_test() -> Iterator[None]:
    kept._KEPT.clear()
    yield
    kept._KEPT.clear()


def put(root: Path, first: int, count: int = 20, *, closes: bool = False) -> bool:
    """Messages with a key each; returns whether the slots were those that the opening before had."""
    before = kept._KEPT.get(str(root), ("", None))[1]
    with open_store(root, config=CONFIG, read_only=False, create=True) as store:
        for number in range(first, first + count, 10):
            put_ten(store, number)
        found = store.writer.index_slots is before is not None
        if closes:
            store.close()
        else:
            store.release()
    return found


def put_ten(store: MessageStore, first: int) -> None:
    for number in range(first, first + 10):
        store.put("A", b"x", keys=f"k{number}", queue_id=0)


def check(root: Path, count: int) -> None:
    """Every key is found, and the slots are what a look at all items would make them."""
    with open_store(root, config=CONFIG) as store:
        for number in range(count):
            assert len(store.query("A", f"k{number}")) == 1, number
        for file in store.index.files():
            assert file.reachable_items().all()


def test_who_comes_back_first_goes_on_with_the_slots_that_it_had(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert [put(root, first) for first in range(0, 60, 20)] == [False, True, True]
    check(root, 60)


def test_what_another_has_entered_in_between_is_not_lost(tmp_path: Path) -> None:
    """Slots of before would make its keys unreachable."""
    root = tmp_path / "store"
    put(root, 0)
    own = dict(kept._KEPT)
    kept._KEPT.clear()
    assert not put(root, 20), "another process has kept nothing of this store"
    kept._KEPT.clear()
    kept._KEPT.update(own)
    assert not put(root, 40)
    check(root, 60)


def test_a_store_that_was_closed_or_has_a_new_file_since_is_read_anew(tmp_path: Path) -> None:
    root = tmp_path / "store"
    put(root, 0, closes=True)
    assert not put(root, 20)
    put(root, 40, 60)  # a second file
    assert put(root, 100)
    check(root, 120)


class Slots(IndexFile):
    """A file of which is noted what is read."""

    name = "20240101000000000"

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.read: list[tuple[int, int]] = []

    def slots(self, start: int = 0, end: int | None = None) -> np.ndarray:
        stop = len(self.values) if end is None else min(end, len(self.values))
        self.read.append((start, stop))
        return self.values[start:stop]


def test_pages_are_read_once_and_only_those_that_are_asked_for() -> None:
    values = np.random.default_rng(1).integers(0, 9, SLOTS).astype(np.int32)
    file = Slots(values)
    opened = OpenSlots(SLOTS, file)
    asked = np.array([5, 3 * PAGE_ROWS, 4 * PAGE_ROWS, SLOTS - 1])
    found = opened.to_change(asked)
    assert file.read == [(0, PAGE_ROWS), (3 * PAGE_ROWS, 5 * PAGE_ROWS), (20 * PAGE_ROWS, SLOTS)]
    assert np.array_equal(found[asked], values[asked])
    found[asked] += 1
    assert opened.to_change(np.array([7]))[5] == values[5] + 1
    assert len(file.read) == 3
    changed, stretches = opened.take_dirty()
    assert changed is found
    assert stretches == [slice(start * PAGE_ROWS, end * PAGE_ROWS) for start, end in ((0, 1), (3, 5), (20, 21))]
    assert not opened.is_dirty


def test_of_many_pages_the_whole_is_read_and_written() -> None:
    count = (MANY_PAGES + 50) * PAGE_ROWS
    values = np.arange(count, dtype=np.int32)
    opened = OpenSlots(count, Slots(values))
    found = opened.to_change(np.arange(MANY_PAGES + 1) * PAGE_ROWS)
    changed, stretches = opened.take_dirty()
    assert stretches == [slice(0, count)]
    assert changed is found
    assert np.array_equal(found, values)
