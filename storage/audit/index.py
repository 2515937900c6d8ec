"""Keys of the log's records against the index. Part of `verify.py`.

Of an index file a bit an item is remembered, whether a look-up reaches it, and of each block of items which places of the log they
name: so the items for a window of the log are found without holding all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.audit.findings import Kind, Tally, are_inside
from storage.ends.recovery_plan import RecoveryPlan
from storage.index.store import IndexFile, IndexStore
from storage.log.dispatch import IndexKeys

_BLOCK_ITEMS = 1 << 16
_LONG_MAX = 2**63 - 1


class IndexAudit:
    """Keys of the records against the items that look-ups reach, one index file at a time."""

    def __init__(
        self,
        index: IndexStore,
        log_start: int,
        plan: RecoveryPlan,
        unreadable: list[tuple[int, int]],
        tally: Tally,
    ) -> None:
        self._plan = plan
        self._unreadable = unreadable  # grows as the log is walked
        self._tally = tally
        self._directory = index.directory
        self._files = [file for file in index.files() if file.header().index_count > 1]
        self._ranges = {
            file.name: (file.header().begin_commitlog_offset, file.header().end_commitlog_offset)
            for file in self._files
        }
        self._claim_start = min((begin for begin, _ in self._ranges.values()), default=log_start)
        self._claim_end = max((end for _, end in self._ranges.values()), default=-1)
        self._loaded: dict[str, _Reached] = {}
        self._walked = log_start
        self.expected = 0

    def compare(self, offsets: np.ndarray, wanted: IndexKeys) -> None:
        """The keys of the records at `offsets`, and every item for the part of the log they end."""
        start, self._walked = self._walked, int(offsets[-1]) + 1
        claimed = wanted.commitlog_offsets >= self._claim_start
        if not self._plan.was_clean:  # a broker may be about to enter them
            claimed &= wanted.commitlog_offsets <= self._claim_end
        wanted_pairs = _pairs(offsets, wanted.commitlog_offsets, wanted.key_hashes)
        self.expected += int(np.count_nonzero(claimed))
        found = np.zeros(len(wanted_pairs), bool)
        for file in self._files:
            begin, end = self._ranges[file.name]
            if end < start:
                self._loaded.pop(file.name, None)
            elif begin < self._walked:
                found |= self._compare_file(file, start, offsets, wanted_pairs)
        missing = np.flatnonzero(claimed & ~found)
        if len(missing):
            place, key_hash = wanted.commitlog_offsets[missing[0]], wanted.key_hashes[missing[0]]
            example = f"key with hash {key_hash} of the record at {place} of the log"
            self._tally.add(Kind.MISSING_KEY, self._directory, len(missing), example)

    def _compare_file(self, file: IndexFile, start: int, offsets: np.ndarray, wanted_pairs: np.ndarray) -> np.ndarray:
        found = np.zeros(len(wanted_pairs), bool)
        for places, hashes in self._reached(file).between(start, self._walked):
            pairs = _pairs(offsets, places, hashes)
            self._add_wrong(file, ~np.isin(pairs, wanted_pairs), places, hashes)
            found |= np.isin(wanted_pairs, pairs)
        return found

    def _reached(self, file: IndexFile) -> _Reached:
        if file.name not in self._loaded:
            self._loaded[file.name] = _Reached(file)
        return self._loaded[file.name]

    def finish(self) -> None:
        """Items that point behind the last record; while a broker writes they may be newer than the look at the log."""
        if not self._plan.was_clean:
            return
        for file in self._files:
            if self._ranges[file.name][1] >= self._walked:
                for places, hashes in self._reached(file).between(self._walked, _LONG_MAX):
                    self._add_wrong(file, np.ones(len(places), bool), places, hashes)

    def _add_wrong(self, file: IndexFile, rows: np.ndarray, places: np.ndarray, hashes: np.ndarray) -> None:
        rows &= ~are_inside(places, self._unreadable)
        if rows.any():
            row = int(np.argmin(np.where(rows, places, _LONG_MAX)))
            example = f"an item with hash {hashes[row]} points to {places[row]} of the log"
            self._tally.add(Kind.WRONG_KEY, file.path, int(np.count_nonzero(rows)), example)


class _Reached:
    """The items of one index file that a look-up reaches, by the places that they name."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._reachable = file.reachable_items()
        bounds = []
        for start in range(0, len(self._reachable), _BLOCK_ITEMS):
            places, _ = self._block(start)
            bounds.append((places.min(), places.max()) if len(places) else (_LONG_MAX, -1))
        self._least, self._greatest = np.array(bounds, np.int64).reshape(-1, 2).T

    def between(self, start: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Places in [start, end) and key hashes, block by block; in a block by place."""
        for number in np.flatnonzero((self._least < end) & (self._greatest >= start)).tolist():
            places, hashes = self._block(number * _BLOCK_ITEMS)
            rows = np.flatnonzero((places >= start) & (places < end))
            rows = rows[np.argsort(places[rows], kind="stable")]
            yield places[rows], hashes[rows]

    def _block(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        items = self._file.items(start, start + _BLOCK_ITEMS)
        items = items[self._reachable[start : start + len(items)]]
        self._file.give_pages_back()
        return items["commitlog_offset"].astype(np.int64), items["key_hash"].astype(np.int64)


def _pairs(offsets: np.ndarray, places: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """(record, key hash) as one number; −1 for a place where none of the records begins."""
    rows = np.minimum(np.searchsorted(offsets, places), len(offsets) - 1)
    return np.where(offsets[rows] == places, rows << 32 | hashes.astype(np.int64), -1)
