"""Does what is derived from the log agree with it? A read-only audit: log ↔ queues ↔ index ↔ checkpoint.

One walk over the log says what must stand elsewhere, and the queues and the index say what stands there besides:

    record that belongs in a queue   its entry stands at the record's queue offset: place, size, tags code agree
    key of a record                  an item of the index that a look-up reaches names the record
    entry, item                      such a record is there
    checkpoint                       vouches for no time behind the last record

Of a queue whose topic was deleted and made again the last life counts. While the abort file stands, a broker may be writing:
what it has not dispatched yet is reported as bytes, not as a difference. A record whose last page a crash took (lengths and
body right, properties ending in zeros) is valid to Java and to us; its entry may know the tags code that it has lost.
A parked message (schedule topic) keeps the deliver time that it was entered with when messageDelayLevel changes, and no file says what
the levels were: any time that is a delay, a whole number of seconds from 0 on, behind the record's store time counts as its own.
Java has no such audit. Not checked: keys of records before the oldest index file, which a broker drops like log files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from storage.audit.findings import Finding, Kind, Tally, are_inside
from storage.audit.queues import QueueAudit
from storage.ends.recovery_plan import RecoveryPlan
from storage.format.checkpoint import Checkpoint
from storage.format.record_batch import Records
from storage.index.store import IndexFile, IndexStore
from storage.log.commit_log import CommitLog
from storage.log.dispatch import DISPATCHED, IndexKeys, dispatch, index_keys, queue_entries
from storage.put.raw_writer import INDEX_LEASE_MS
from storage.queues.store import ConsumeQueueStore

__all__ = ["Finding", "Kind", "VerifyReport", "verify"]
_BLOCK_ITEMS = 1 << 16
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and every difference."""

    log_start: int
    log_end: int
    records: int
    queue_entries: int
    index_keys: int
    undispatched_bytes: int
    torn_records: int  # their properties end in zeros
    deleted_topics: tuple[str, ...]  # their records lie in the log, their queues and settings are gone
    findings: tuple[Finding, ...]


def verify(
    log: CommitLog,
    queues: ConsumeQueueStore,
    index: IndexStore | None,
    checkpoint: Checkpoint,
    plan: RecoveryPlan,
    *,
    delays_ms: tuple[int, ...],
    known_topics: frozenset[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Compare everything with the log from its first file to `plan.log_end`.

    `checkpoint` is to be read before the plan is made; `index` None = the store keeps none; `known_topics` are those with
    settings (None = unknown). `on_progress` hears bytes done and bytes in all.
    Raises IndexGeometryUnknownError where the index cannot be read without configuration.
    """
    tally = Tally()
    walk = _LogAudit(log, plan, tally)
    queue_audit = QueueAudit(queues, plan, tally, known_topics, log.minimum)
    index_audit = IndexAudit(index, log.minimum, plan, walk.unreadable, tally) if index is not None else None
    last_time_ms, record_count, torn_count = 0, 0, 0
    for offsets, records in walk:
        batch = dispatch(offsets, records, delays_ms)
        torn = offsets[pc.ends_with(records.raw_properties(), b"\0").to_numpy(zero_copy_only=False)]
        for new in queue_entries(batch):
            queue_audit.compare(new, torn)
        if index_audit is not None:
            index_audit.compare(offsets, index_keys(batch))
        record_count += len(batch)
        torn_count += len(torn)
        last_time_ms = max(last_time_ms, int(batch.store_times_ms.max()))
        if on_progress is not None:
            on_progress(int(offsets[-1]) - log.minimum, plan.log_end - log.minimum)
    queue_audit.finish(walk.unreadable)
    if index_audit is not None:
        index_audit.finish()
    if record_count:
        _compare_checkpoint(checkpoint, last_time_ms, 0 if plan.was_clean else INDEX_LEASE_MS, tally)
    return VerifyReport(
        log.minimum,
        plan.log_end,
        record_count,
        queue_audit.expected,
        index_audit.expected if index_audit is not None else 0,
        queue_audit.undispatched_bytes,
        torn_count,
        tuple(sorted(queue_audit.deleted_topics)),
        tally.findings(),
    )


def _compare_checkpoint(checkpoint: Checkpoint, last_time_ms: int, index_lease_ms: int, tally: Tally) -> None:
    """`index_lease_ms`: between two puts the index time may be so far ahead."""
    leases = {"physic_msg_timestamp": 0, "logics_msg_timestamp": 0, "index_msg_timestamp": index_lease_ms}
    for name, lease_ms in leases.items():
        time_ms = getattr(checkpoint, name)
        if time_ms > last_time_ms + lease_ms:
            example = f"{name} is {time_ms}, the last record was stored at {last_time_ms}"
            tally.add(Kind.CHECKPOINT_AHEAD, "checkpoint", 1, example)


class _LogAudit:
    """All whole records of the log in order, whatever lies between them; tells what does."""

    def __init__(self, log: CommitLog, plan: RecoveryPlan, tally: Tally) -> None:
        self._log = log
        self._end = plan.log_end
        self._tally = tally
        self.unreadable: list[tuple[int, int]] = []
        if plan.damage is not None:
            tally.add(Kind.DAMAGED_LOG, plan.damage.file, 1, str(plan.damage.describe()))
        elif plan.failure is not None:
            tally.add(Kind.LOG_TAIL, plan.failure.file or "the log", 1, plan.failure.describe())
        for gap in plan.gaps:
            self._lost(gap.start, gap.end, gap.paths[0], "the file is missing")

    def _lost(self, start: int, end: int, where: str, why: str) -> None:
        self.unreadable.append((start, end))
        self._tally.add(Kind.DAMAGED_LOG, where, 1, f"bytes {start} to {end} of the log cannot be read: {why}")

    def __iter__(self) -> Iterator[tuple[np.ndarray, Records]]:
        start = self._log.minimum
        while start < self._end:
            walk = self._log.walk(start, check_crc=False, wanted=DISPATCHED)
            for offsets, records in walk:
                if offsets[-1] >= self._end:
                    inside = offsets < self._end
                    offsets, records = offsets[inside], records.take(inside)
                if len(offsets):
                    self._check_sums(offsets, records)
                    yield offsets, records
                if walk.end >= self._end:
                    return
            if walk.end >= self._end:
                return
            number = self._log.file_index(walk.end)
            start = self._log.files[number + 1].start if number + 1 < len(self._log.files) else self._end
            why = "free space" if walk.failure is None else walk.failure.describe()
            self._lost(walk.end, min(start, self._end), self._log.files[number].path, why)

    def _check_sums(self, offsets: np.ndarray, records: Records) -> None:
        bad_bodies = ~records.crc_agrees()
        bad_records = ~records.property_crc_agrees(required=self._log.force_property_crc) & ~bad_bodies
        for kind, wrong in ((Kind.BAD_BODY, bad_bodies), (Kind.BAD_RECORD, bad_records)):
            if wrong.any():
                first = int(offsets[np.argmax(wrong)])
                file = self._log.files[self._log.file_index(first)]
                self._tally.add(kind, file.path, int(np.count_nonzero(wrong)), f"record at {first} of the log")


class IndexAudit:
    """Keys of the records against the items that look-ups reach, one index file at a time.

    Keys of the log's records against the index. Part of `verify.py`.

    Of an index file a bit an item is remembered, whether a look-up reaches it, and of each block of items which places of the log
    they name: so the items for a window of the log are found without holding all of them.
    """

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
