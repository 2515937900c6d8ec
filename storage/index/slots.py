"""The slots of the index file that grows, in memory: read page by page as keys fall into them, and kept from one opening to the next.

A broker's index file has 5 million slots, 20 MB, and the keys of a small commit touch some of their pages. A process that commits
batch after batch lets go of the store in between; when it comes back, and nobody else has had the store since (`Hint.name`), the
slots are those that it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from storage.index.store import IndexFile

PAGE_ROWS = 1024
MANY_PAGES = 512
"""More pages than that are read or written as one range, with what lies between them."""


class OpenSlots:
    """The newest item's number of each slot, int32; 0 = none. Writing them is the caller's."""

    def __init__(self, slot_count: int, file: IndexFile | None = None) -> None:
        """Those of a file, which are read when they are asked for; without one those of a new file, all free."""
        self._values = np.zeros(slot_count, np.int32)
        page_count = -(-slot_count // PAGE_ROWS)
        self._unread = np.full(page_count, file is not None)
        self._dirty = np.zeros(page_count, bool)
        self._dirty_slots: set[int] = set()
        """Of pages that are not dirty as a whole, or are."""
        self._file = file
        self.name = "" if file is None else file.name
        """The file's."""

    @property
    def slot_count(self) -> int:
        return len(self._values)

    @property
    def is_dirty(self) -> bool:
        """Whether anything was given out to be changed since the last `take_dirty`."""
        return bool(self._dirty_slots) or bool(self._dirty.any())

    def to_change(self, slots: np.ndarray) -> np.ndarray:
        """All slots, of which those hold what the file does, and are to be written."""
        touched = np.zeros(len(self._dirty), bool)
        touched[slots // PAGE_ROWS] = True
        self._read(touched)
        self._dirty |= touched
        return self._values

    def to_change_few(self, slots: Iterable[int]) -> np.ndarray:
        """The same for a few of them."""
        unread = {page for slot in slots if self._unread[page := slot // PAGE_ROWS]}
        if unread:
            wanted = np.zeros(len(self._dirty), bool)
            wanted[list(unread)] = True
            self._read(wanted)
        self._dirty_slots.update(slots)
        return self._values

    def take_dirty(self) -> tuple[np.ndarray, list[slice]]:
        """All slots, and which of them are to be written; they count as written then."""
        few, self._dirty_slots = self._dirty_slots, set()
        if not self._dirty.any() and len(few) <= MANY_PAGES:
            return self._values, [slice(slot, slot + 1) for slot in sorted(few)]
        self._dirty[[slot // PAGE_ROWS for slot in few]] = True
        pages = np.flatnonzero(self._dirty)
        if len(pages) > MANY_PAGES:
            pages = np.arange(len(self._dirty))
            self._read(np.ones(len(pages), bool))
        self._dirty[:] = False
        return self._values, list(runs_of_pages(pages))

    def let_go(self) -> None:
        """Of the file, which is closed: pages that were not read are forgotten."""
        self._file = None

    def go_on(self, file: IndexFile) -> bool:
        """With the file as it was left; whether these are its slots."""
        self._file = file
        return self.name == file.name and not self.is_dirty

    def _read(self, wanted: np.ndarray) -> None:
        missing = wanted & self._unread
        if not missing.any():
            return
        assert self._file is not None
        if np.count_nonzero(missing) > MANY_PAGES:
            missing = self._unread.copy()
        for rows in runs_of_pages(np.flatnonzero(missing)):
            self._values[rows] = self._file.slots(rows.start, rows.stop)
        self._unread &= ~missing


def runs_of_pages(pages: np.ndarray) -> Iterator[slice]:
    """The rows of neighbouring pages, which ascend; a page is that many rows, whatever their size."""
    first_of_run = np.flatnonzero(np.diff(pages, prepend=-2) > 1)
    for run in np.split(pages, first_of_run[1:]) if len(pages) else ():
        yield slice(int(run[0]) * PAGE_ROWS, (int(run[-1]) + 1) * PAGE_ROWS)


_KEPT: dict[str, tuple[str, OpenSlots]] = {}
"""Of the store last let go of: by its path the name of its hint, and the slots."""


def keep_slots(root: str, hint: str, slots: OpenSlots | None) -> None:
    """For this process's next opening of the store, if the hint of that name still stands then. Those of one store are kept."""
    _KEPT.clear()
    if slots is not None and not slots.is_dirty:
        slots.let_go()
        _KEPT[root] = hint, slots


def kept_slots(root: str, hint: str) -> OpenSlots | None:
    """What was kept under that hint, once."""
    name, slots = _KEPT.pop(root, ("", None))
    return slots if hint and name == hint else None
