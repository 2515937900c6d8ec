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
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc

from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.consume_queue_store import ConsumeQueueStore
from storage.dispatch import IndexKeys, QueueEntries, dispatch, index_keys, queue_entries
from storage.format.checkpoint import Checkpoint
from storage.format.consume_queue import ENTRY, is_entry, is_pre_blank
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.record_batch import Records
from storage.index_store import IndexFile, IndexStore
from storage.put import INDEX_LEASE_MS
from storage.recovery_plan import RecoveryPlan

_SECOND_MS = 1_000
"""The smallest unit of messageDelayLevel."""
_BLOCK_ENTRIES = 1 << 16
_PLACE = "commitlog_offset"


class Kind(StrEnum):
    """What is wrong."""

    DAMAGED_LOG = "damaged_log"  # bytes inside the log that are no record
    BAD_BODY = "bad_body"  # a record whose body has another CRC than it says
    BAD_RECORD = "bad_record"  # a record that has another CRC than its property __CRC32# says
    LOG_TAIL = "log_tail"  # bytes behind the log's end: a torn write, or records of before a cut
    MISSING_ENTRY = "missing_entry"  # a record that its queue does not know
    WRONG_ENTRY = "wrong_entry"  # at the record's queue offset stands the entry of something else
    STALE_ENTRY = "stale_entry"  # an entry at an offset that no record has
    HOLE = "hole"  # no entry at all between others: a broker cuts the queue here
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


class _Tally:
    """Differences by kind and place."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str], tuple[int, str]] = {}

    def add(self, kind: Kind, where: str, count: int, example: str) -> None:
        if count:
            before, first = self._found.get((kind, where), (0, example))
            self._found[kind, where] = (before + count, first)

    def drop(self, where: str) -> None:
        for key in [key for key in self._found if key[1] == where]:
            del self._found[key]

    def findings(self) -> tuple[Finding, ...]:
        order = list(Kind)
        ranked = sorted(self._found.items(), key=lambda found: (order.index(found[0][0]), found[0][1]))
        return tuple(Finding(*key, *value) for key, value in ranked)


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
    tally = _Tally()
    walk = _LogAudit(log, plan, tally)
    queue_audit = _QueueAudit(queues, plan, tally, known_topics)
    index_audit = _IndexAudit(index, log.minimum, plan, walk.unreadable, tally) if index is not None else None
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
    queue_audit.finish(walk.unreadable, log.minimum)
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


def _compare_checkpoint(checkpoint: Checkpoint, last_time_ms: int, index_lease_ms: int, tally: _Tally) -> None:
    """`index_lease_ms`: between two puts the index time may be so far ahead."""
    leases = {"physic_msg_timestamp": 0, "logics_msg_timestamp": 0, "index_msg_timestamp": index_lease_ms}
    for name, lease_ms in leases.items():
        time_ms = getattr(checkpoint, name)
        if time_ms > last_time_ms + lease_ms:
            example = f"{name} is {time_ms}, the last record was stored at {last_time_ms}"
            tally.add(Kind.CHECKPOINT_AHEAD, "checkpoint", 1, example)


class _LogAudit:
    """All whole records of the log in order, whatever lies between them; tells what does."""

    def __init__(self, log: CommitLog, plan: RecoveryPlan, tally: _Tally) -> None:
        self._log = log
        self._end = plan.log_end
        self._tally = tally
        self.unreadable: list[tuple[int, int]] = []
        if plan.damage is not None:
            tally.add(Kind.DAMAGED_LOG, plan.damage.file, 1, str(plan.damage.describe()))
        elif plan.failure is not None:
            tally.add(Kind.LOG_TAIL, plan.failure.file or "the log", 1, plan.failure.describe())
        for file, following in pairwise(log.files):
            if file.end < following.start <= self._end:
                self._lost(file.end, following.start, following.path, "no file holds them")

    def _lost(self, start: int, end: int, where: str, why: str) -> None:
        self.unreadable.append((start, end))
        self._tally.add(Kind.DAMAGED_LOG, where, 1, f"bytes {start} to {end} of the log cannot be read: {why}")

    def __iter__(self) -> Iterator[tuple[np.ndarray, Records]]:
        start = self._log.minimum
        while start < self._end:
            walk = self._log.walk(start, check_crc=False)
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


class _QueueLife:
    """One queue, and which of its entries the records of its present life have claimed."""

    def __init__(self, queue: ConsumeQueue | None) -> None:
        self.queue = queue
        self.first = queue.first_file_offset if queue is not None else 0
        self.claimed = np.zeros(queue.last_file_end_offset - self.first if queue is not None else 0, bool)
        self.last_offset = -1

    def entries_at(self, offsets: np.ndarray) -> np.ndarray:
        """What stands at ascending queue offsets; zeros outside the files. They are claimed from now on."""
        found = np.zeros(len(offsets), ENTRY)
        rows = np.flatnonzero((offsets >= self.first) & (offsets < self.first + len(self.claimed)))
        if len(rows) and self.queue is not None:
            start = int(offsets[rows[0]])
            found[rows] = self.queue.entries(start, int(offsets[rows[-1]]) + 1)[offsets[rows] - start]
            self.claimed[offsets[rows] - self.first] = True
        return found

    def begin_anew(self) -> None:
        self.claimed[:] = False
        self.last_offset = -1


class _QueueAudit:
    """Records against the entries of their queues, and what else the queues hold."""

    def __init__(
        self, queues: ConsumeQueueStore, plan: RecoveryPlan, tally: _Tally, known_topics: frozenset[str] | None
    ) -> None:
        self._queues = queues
        self._plan = plan
        self._tally = tally
        self._known_topics = known_topics
        self._lives: dict[tuple[str, int], _QueueLife] = {}
        self._undispatched: dict[tuple[str, int], tuple[int, int, int]] = {}  # records, bytes, first place
        self.expected = 0
        self.deleted_topics: set[str] = set()

    @property
    def undispatched_bytes(self) -> int:
        return sum(size for _, size, _ in self._undispatched.values())

    def compare(self, new: QueueEntries, torn: np.ndarray) -> None:
        """Records of one queue with their entries; of those at `torn` without the tags code.

        Offsets that go back begin a new life of the topic.
        """
        name = new.topic, new.queue_id
        queue = self._queues.get(*name)
        if queue is None and self._known_topics is not None and new.topic not in self._known_topics:
            self.deleted_topics.add(new.topic)
            return
        life = self._lives.get(name) or self._lives.setdefault(name, _QueueLife(queue))
        offsets = new.queue_offsets.astype(np.int64)
        back = np.flatnonzero(np.diff(offsets, prepend=life.last_offset) <= 0)
        if len(back):
            life.begin_anew()
            self._tally.drop(_place(*name))
            self._undispatched.pop(name, None)
            new, offsets = new.rows(np.arange(back[-1], len(offsets))), offsets[back[-1] :]
        life.last_offset = int(offsets[-1])
        self.expected += len(offsets)
        self._compare_entries(new, offsets, life.entries_at(offsets), torn)

    def _compare_entries(self, new: QueueEntries, offsets: np.ndarray, found: np.ndarray, torn: np.ndarray) -> None:
        name, wanted = (new.topic, new.queue_id), new.entries
        present = is_entry(found) & ~is_pre_blank(found)
        agrees = found[_PLACE] == wanted[_PLACE]
        agrees &= found["size_bytes"] == wanted["size_bytes"]
        if not np.array_equal(found["tags_code"][present], wanted["tags_code"][present]):
            codes = self._tags_codes(name, found["tags_code"])
            is_own = (codes == wanted["tags_code"]) | np.isin(wanted[_PLACE], torn)
            if new.topic == SCHEDULE_TOPIC:
                delays_ms = codes - new.store_times_ms
                is_own |= (delays_ms >= 0) & (delays_ms % _SECOND_MS == 0)
            agrees &= is_own
        waiting = ~present & (wanted[_PLACE] >= self._plan.greatest_end)
        if waiting.any():
            count, size, place = self._undispatched.get(name, (0, 0, int(wanted[_PLACE][waiting][0])))
            size += int(wanted["size_bytes"][waiting].sum(dtype=np.int64))
            self._undispatched[name] = count + int(np.count_nonzero(waiting)), size, place
        self._add(Kind.MISSING_ENTRY, name, ~present & ~waiting, offsets, wanted, found)
        self._add(Kind.WRONG_ENTRY, name, present & ~agrees, offsets, wanted, found)

    def _tags_codes(self, name: tuple[str, int], codes: np.ndarray) -> np.ndarray:
        ext = self._queues.ext(*name)
        try:
            return ext.tags_codes(codes)
        finally:
            ext.close()

    def _add(
        self,
        kind: Kind,
        name: tuple[str, int],
        rows: np.ndarray,
        offsets: np.ndarray,
        wanted: np.ndarray,
        found: np.ndarray,
    ) -> None:
        if rows.any():
            row = int(np.argmax(rows))
            example = f"offset {offsets[row]}: expected {_text(wanted[row])}, found {_text(found[row])}"
            self._tally.add(kind, _place(*name), int(np.count_nonzero(rows)), example)

    def finish(self, unreadable: list[tuple[int, int]], log_start: int) -> None:
        """Look for entries that no record has claimed."""
        for queue in self._queues:
            life = self._lives.get((queue.topic, queue.queue_id)) or _QueueLife(queue)
            self._compare_rest(queue, life, unreadable, log_start)
        if self._plan.was_clean:
            for name, (count, _, place) in self._undispatched.items():
                self._tally.add(Kind.UNDISPATCHED, _place(*name), count, f"record at {place} of the log")

    def _compare_rest(
        self, queue: ConsumeQueue, life: _QueueLife, unreadable: list[tuple[int, int]], log_start: int
    ) -> None:
        """Before the first claimed entry there may be expired and pre-blank ones, behind the last one nothing."""
        name = queue.topic, queue.queue_id
        ends = life.first + len(life.claimed)
        if not self._plan.was_clean:  # later ones may be newer than the look at the log
            ends = min(ends, self._plan.written_ends.get(name, 0))
        claimed = np.flatnonzero(life.claimed)
        first_claimed, last_claimed = (int(claimed[0]), int(claimed[-1])) if len(claimed) else (len(life.claimed), -1)
        for start in range(life.first, ends, _BLOCK_ENTRIES):
            entries = queue.entries(start, min(ends, start + _BLOCK_ENTRIES))
            numbers = np.arange(start, start + len(entries)) - life.first
            places = entries[_PLACE].astype(np.int64)
            present, free = is_entry(entries), ~life.claimed[numbers]
            stale = free & present & ~is_pre_blank(entries) & ((places >= log_start) | (numbers > first_claimed))
            stale &= ~_are_inside(places, unreadable)
            holes = free & ~present & (numbers > first_claimed) & (numbers < last_claimed)
            for kind, rows in ((Kind.STALE_ENTRY, stale), (Kind.HOLE, holes)):
                if rows.any():
                    row = int(np.argmax(rows))
                    example = f"offset {start + row}: {_text(entries[row])}"
                    self._tally.add(kind, _place(*name), int(np.count_nonzero(rows)), example)


class _IndexAudit:
    """Keys of the records against the items that look-ups reach, one index file at a time."""

    def __init__(
        self,
        index: IndexStore,
        log_start: int,
        plan: RecoveryPlan,
        unreadable: list[tuple[int, int]],
        tally: _Tally,
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
        self._loaded: dict[str, tuple[np.ndarray, np.ndarray]] = {}
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
        places, hashes = self._items(file)
        part = slice(*np.searchsorted(places, [start, self._walked]).tolist())
        pairs = _pairs(offsets, places[part], hashes[part])
        self._add_wrong(file, ~np.isin(pairs, wanted_pairs), places[part], hashes[part])
        return np.isin(wanted_pairs, pairs)

    def _items(self, file: IndexFile) -> tuple[np.ndarray, np.ndarray]:
        """Places and key hashes of the items that a look-up reaches, by place."""
        if file.name not in self._loaded:
            items = file.items()
            items = items[file.reachable_items()[: len(items)]]
            places = items[_PLACE].astype(np.int64)
            order = np.argsort(places, kind="stable")
            self._loaded[file.name] = places[order], items["key_hash"].astype(np.int64)[order]
        return self._loaded[file.name]

    def finish(self) -> None:
        """Items that point behind the last record; while a broker writes they may be newer than the look at the log."""
        if not self._plan.was_clean:
            return
        for file in self._files:
            if self._ranges[file.name][1] >= self._walked:
                places, hashes = self._items(file)
                self._add_wrong(file, places >= self._walked, places, hashes)

    def _add_wrong(self, file: IndexFile, rows: np.ndarray, places: np.ndarray, hashes: np.ndarray) -> None:
        rows &= ~_are_inside(places, self._unreadable)
        if rows.any():
            row = int(np.argmax(rows))
            example = f"an item with hash {hashes[row]} points to {places[row]} of the log"
            self._tally.add(Kind.WRONG_KEY, file.path, int(np.count_nonzero(rows)), example)


def _pairs(offsets: np.ndarray, places: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """(record, key hash) as one number; −1 for a place where none of the records begins."""
    rows = np.minimum(np.searchsorted(offsets, places), len(offsets) - 1)
    return np.where(offsets[rows] == places, rows << 32 | hashes.astype(np.int64), -1)


def _are_inside(places: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    inside = np.zeros(len(places), bool)
    for begin, end in ranges:
        inside |= (places >= begin) & (places < end)
    return inside


def _place(topic: str, queue_id: int) -> str:
    return f"{topic} queue {queue_id}"


def _text(entry: np.ndarray) -> str:
    place, size, tags_code = entry.tolist()
    if place == 0 and size == 0:
        return "nothing"
    return f"{size} bytes at {place} of the log, tags code {tags_code}"
