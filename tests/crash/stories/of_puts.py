"""Messages put, and queue extensions with them."""

from __future__ import annotations

from pathlib import Path

from storage import MessageStore
from tests.crash.stories.life import WITH_UNITS, Life, bodies, expected, put


def putting(directory: Path, *, sync_flush: bool = True) -> list[str]:
    """A store's first messages, over the end of a log file, of a queue file and of an index file."""
    life = Life(directory, sync_flush=sync_flush)
    with life.open() as store:
        life.disk.begin()
        put(store, 0, 1)
        for number in range(1, 22):
            put(store, number, 1)
        told = life.disk.told()
        assert bodies(store) == expected(22)
    return told


def extending(directory: Path) -> list[str]:
    """Units of two extension files."""
    life = Life(directory, config=WITH_UNITS)
    with life.open() as store:
        life.disk.begin()
        for number in range(6):
            put(store, number, 1)
        told = _of_queues(life)
        assert bodies(store) == expected(6)
        assert _tags_codes(store, 6) == [0] * 6
    return told


def syncing_units(directory: Path) -> list[str]:
    life = Life(directory, config=WITH_UNITS)
    with life.open() as store:
        for number in range(6):
            put(store, number, 1)
        life.disk.begin()
        store.writer.checkpoint()
        told = life.disk.told()
        assert not store.writer.unsynced_paths()
    return told


def _of_queues(life: Life) -> list[str]:
    return [word for word in life.disk.told() if "consumequeue" in word]


def _tags_codes(store: MessageStore, count: int) -> list[int]:
    """As the units say that the first entries name."""
    queue = store.queues.get("A", 0)
    assert queue is not None
    codes: list[int] = store.queues.ext("A", 0).tags_codes(queue.entries(0, count)["tags_code"].astype("i8")).tolist()
    return codes
