"""The index in a recovery: files that cannot be trusted go, chains are mended, missing keys are entered. Java: IndexService.load.

Java deletes what may not be on the disk and enters again only what its own recovery walks over. Here the index is brought up to
the log's end from the last record that a kept file knows, so that it is complete, with no key of a record twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storage.files.local_file_system import LocalFileSystem
from storage.format.index import ITEM
from storage.index.store import IndexFile, IndexStore
from storage.index.trust import IndexTrust
from storage.index.writer import IndexWriter, mend_chains
from storage.log.commit_log import CommitLog
from storage.log.dispatch import DispatchBatch, IndexKeys, index_keys


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What is to become of the files of `index`; oldest first."""

    index: IndexStore
    kept: list[IndexFile]
    unsynced: list[IndexFile]
    """Those of the kept ones whose chains may not be whole, or not on the disk."""
    dropped: list[IndexFile]

    @property
    def kept_until_ms(self) -> int:
        """Where the last file that is kept ends; 0 if none is."""
        return self.kept[-1].header().end_time_ms if self.kept else 0


def plan_index(index: IndexStore, log_end: int, trust: IndexTrust) -> IndexPlan:
    """From the first file on that may not be on the disk whole, reaches behind the log's end or holds nothing, all go. Reads only."""
    plan = IndexPlan(index, [], [], [])
    for file in index.files():
        header = file.header()
        is_of_the_log = header.index_count > 1 and header.end_commitlog_offset < log_end
        if plan.dropped or not is_of_the_log or not trust.keeps(header.end_time_ms):
            plan.dropped.append(file)
            continue
        plan.kept.append(file)
        if not trust.is_synced(header.end_time_ms):
            plan.unsynced.append(file)
    return plan


class Indexer:
    """Brings the index up to the log's end."""

    def __init__(self, file_system: LocalFileSystem, plan: IndexPlan, clock: Callable[[], int]) -> None:
        """Deletes and mends what `plan` says; durable on return."""
        self.removed = [file.path for file in plan.dropped]
        for path in reversed(self.removed):  # killed in between, the first one still tells that all go
            file_system.unlink(path)
        for file in plan.unsynced:
            mend_chains(file_system, file)
        if plan.unsynced or plan.dropped:
            file_system.sync(plan.index.directory)
        self._writer = IndexWriter(file_system, plan.index, clock, trust_slots=True)
        items = plan.kept[-1].items() if plan.kept else np.empty(0, ITEM)
        # a header cut between its end and its count names an end that no item has
        self._end = min(self._writer.end_commitlog_offset, int(items["commitlog_offset"].max(initial=-1)))
        self._entered = items["key_hash"][items["commitlog_offset"] == self._end]

    def start(self, log: CommitLog) -> int:
        """Where in the log the first record lies whose keys may be missing."""
        return max(self._end, log.minimum)

    def append(self, batch: DispatchBatch) -> None:
        """Enter the keys of a batch's records that are missing."""
        keys = index_keys(batch, self._end)
        if len(keys.key_hashes) and keys.commitlog_offsets[0] == self._end:
            new = (keys.commitlog_offsets != self._end) | ~np.isin(keys.key_hashes, self._entered)
            keys = IndexKeys(*(column[new] for column in keys))
        self._writer.append(keys)

    def finish(self) -> int:
        """Flush and sync; returns how many keys were entered."""
        self._writer.finish()
        return self._writer.key_count
