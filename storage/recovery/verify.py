"""A read-only audit: do queues, index and checkpoint agree with the log?

One walk over the log says what they must contain; queues and index show what else they contain:

    record that belongs in a queue   its entry is at the record's queue offset: place, size, tags code agree
    key of a record                  an item of the index that a look-up reaches names the record
    tags of a record                 such an item may name it: 5.4 and later enter it, and no file says which one wrote the record
    entry, item                      its record exists
    checkpoint                       vouches for no time after the last record

If a topic was deleted and made again, its queue's last life counts. While the abort file exists, a broker may be writing: records that
it has not dispatched yet are reported as bytes, not as differences. A record whose last page a crash lost (lengths and body right,
properties ending in zeros) is valid to Java and to us; its entry may have the tags code that the record lost. A delayed message
(schedule topic) keeps the delivery time of its entry when messageDelayLevel changes, and no file records the former levels: any delay
of whole seconds from 0 on after the record's store time is accepted. Java has no such audit. Not checked: keys of records before the
oldest index file, which a broker expires like log files.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.dispatch.recovery_plan import RecoveryPlan
from storage.format.consume_queue import BATCH_UNIT, ENTRY, is_entry, is_pre_blank
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record_batch import Records
from storage.index.store import IndexFile, IndexStore
from storage.log.commit_log import Checkpoint, CommitLog
from storage.log.dispatch import DISPATCHED, IndexKeys, QueueEntries, dispatch, index_keys, queue_entries, tag_keys
from storage.names import QueueName
from storage.put.store_writer import INDEX_LEASE_MS
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.store import ConsumeQueueStore
from storage.queues.writer import joined, put_in_order

__all__ = ["Finding", "Kind", "VerifyReport", "verify"]
_BLOCK_ITEMS = 1 << 16
_LONG_MAX = 2**63 - 1
_SECOND_MS = 1_000
"""The smallest unit of messageDelayLevel."""
_BLOCK_ENTRIES = 1 << 16
_MOST_OPEN = 64
"""Queues whose files are kept open."""
_PLACE = "commitlog_offset"
_BATCH_PROPERTIES = frozenset({"INNER_NUM", "INNER_BASE"})
_MOST_MESSAGES = int(np.iinfo(BATCH_UNIT["message_count"]).max)
"""Of one record of a batch queue."""


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

    Read `checkpoint` before the plan is made. `index` None = the store keeps none; `known_topics` are those with settings (None =
    unknown). `on_progress` gets bytes done and bytes in all.
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
            if new.topic in queues.batch_topics:
                new = _of_messages(new, offsets, records)
            queue_audit.compare(new, torn)
        if index_audit is not None:
            index_audit.compare(offsets, index_keys(batch), tag_keys(batch))
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


def _of_messages(new: QueueEntries, offsets: np.ndarray, records: Records) -> QueueEntries:
    """The entries of a batch queue's records, one for each message. Java: CommitLog.checkMessageAndReturnSize.

    A unit has room for a count of 32,767 at most; a greater INNER_NUM is damage.
    """
    rows = np.searchsorted(offsets, new.entries[_PLACE].astype(np.int64))
    properties = records.take(rows).single_properties(_BATCH_PROPERTIES)
    counts, bases = (
        pc.if_else(pc.match_substring_regex(texts, "^[0-9]{1,9}$"), texts, None).cast(pa.int64())
        for texts in (properties.values_of(name) for name in ("INNER_NUM", "INNER_BASE"))
    )
    counts = pc.if_else(pc.less_equal(counts, _MOST_MESSAGES), counts, None)
    is_batch = (counts.is_valid().to_numpy(zero_copy_only=False)) & bases.is_valid().to_numpy(zero_copy_only=False)
    messages = np.where(is_batch, counts.fill_null(1).to_numpy(), 1)
    first = np.where(is_batch, bases.fill_null(0).to_numpy(), new.queue_offsets)
    own = np.repeat(np.arange(len(messages)), messages)
    numbers = np.arange(len(own)) - np.repeat(np.cumsum(messages) - messages, messages)
    return new.rows(own)._replace(queue_offsets=first[own] + numbers)


def _compare_checkpoint(checkpoint: Checkpoint, last_time_ms: int, index_lease_ms: int, tally: Tally) -> None:
    """`index_lease_ms`: how far ahead the index time may be between two puts."""
    leases = {"physic_msg_timestamp": 0, "logics_msg_timestamp": 0, "index_msg_timestamp": index_lease_ms}
    for name, lease_ms in leases.items():
        time_ms = getattr(checkpoint, name)
        if time_ms > last_time_ms + lease_ms:
            example = f"{name} is {time_ms}, the last record was stored at {last_time_ms}"
            tally.add(Kind.CHECKPOINT_AHEAD, "checkpoint", 1, example)


class _LogAudit:
    """Reads all complete records of the log in order, and reports what lies between them."""

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
    """Compares keys of the records with the items that look-ups reach, one index file at a time.

    For an index file it keeps one bit an item, whether a look-up reaches it, and for each block of items which log offsets they name.
    So it finds the items for a window of the log without holding all of them.
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

    def compare(self, offsets: np.ndarray, wanted: IndexKeys, tags: IndexKeys) -> None:
        """Compare the keys of the records at `offsets`, and every item for the part of the log that they end.

        An item for one of their `tags` is right, and may be missing.
        """
        start, self._walked = self._walked, int(offsets[-1]) + 1
        claimed = wanted.commitlog_offsets >= self._claim_start
        if not self._plan.was_clean:  # a broker may enter them soon
            claimed &= wanted.commitlog_offsets <= self._claim_end
        wanted_pairs = _pairs(offsets, wanted.commitlog_offsets, wanted.key_hashes)
        tag_pairs = _pairs(offsets, tags.commitlog_offsets, tags.key_hashes)
        self.expected += int(np.count_nonzero(claimed))
        found = np.zeros(len(wanted_pairs), bool)
        for file in self._files:
            begin, end = self._ranges[file.name]
            if end < start:
                self._loaded.pop(file.name, None)
            elif begin < self._walked:
                found |= self._compare_file(file, start, offsets, wanted_pairs, tag_pairs)
        missing = np.flatnonzero(claimed & ~found)
        if len(missing):
            place, key_hash = wanted.commitlog_offsets[missing[0]], wanted.key_hashes[missing[0]]
            example = f"key with hash {key_hash} of the record at {place} of the log"
            self._tally.add(Kind.MISSING_KEY, self._directory, len(missing), example)

    def _compare_file(
        self, file: IndexFile, start: int, offsets: np.ndarray, wanted_pairs: np.ndarray, tag_pairs: np.ndarray
    ) -> np.ndarray:
        found = np.zeros(len(wanted_pairs), bool)
        right_pairs = np.concatenate([wanted_pairs, tag_pairs])
        for places, hashes in self._reached(file).between(start, self._walked):
            pairs = _pairs(offsets, places, hashes)
            self._add_wrong(file, ~np.isin(pairs, right_pairs), places, hashes)
            found |= np.isin(wanted_pairs, pairs)
        return found

    def _reached(self, file: IndexFile) -> _Reached:
        if file.name not in self._loaded:
            self._loaded[file.name] = _Reached(file)
        return self._loaded[file.name]

    def finish(self) -> None:
        """Report items that point after the last record; while a broker writes they may be newer than the walk."""
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
    """The items of one index file that a look-up reaches, sorted by the log offsets that they name."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._reachable = file.reachable_items()
        bounds = []
        for start in range(0, len(self._reachable), _BLOCK_ITEMS):
            places, _ = self._block(start)
            bounds.append((places.min(), places.max()) if len(places) else (_LONG_MAX, -1))
        self._least, self._greatest = np.array(bounds, np.int64).reshape(-1, 2).T

    def between(self, start: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Places in [start, end) and key hashes, block by block, sorted within a block."""
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


class QueueAudit:
    """Compares records with the entries of their queues, and finds entries without a record.

    For a queue it keeps which ranges of its offsets its records have claimed: one range if nothing is wrong, and never more ranges than
    records. Files are preallocated, so their length says nothing.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        plan: RecoveryPlan,
        tally: Tally,
        known_topics: frozenset[str] | None,
        log_start: int,
    ) -> None:
        self._queues = queues
        self._plan = plan
        self._tally = tally
        self._known_topics = known_topics
        self._log_start = log_start
        self._lives: dict[QueueName, _QueueLife] = {}
        self._held: dict[QueueName, QueueEntries] = {}
        self._open: dict[ConsumeQueue, None] = {}  # the most recently used one comes last
        self._undispatched: dict[QueueName, tuple[int, int, int]] = {}  # records, bytes, first place
        self.expected = 0
        self.deleted_topics: set[str] = set()

    @property
    def undispatched_bytes(self) -> int:
        return sum(size for _, size, _ in self._undispatched.values())

    def compare(self, new: QueueEntries, torn: np.ndarray) -> None:
        """Compare records of one queue with their entries; for those at `torn` without the tags code.

        If offsets go back to 0, a new life of the topic begins; if they go back to another offset, they are given again.
        """
        name = new.topic, new.queue_id
        life = self._lives.get(name)
        if life is None:
            queue = self._queues.get(*name)
            if queue is None and self._known_topics is not None and new.topic not in self._known_topics:
                self.deleted_topics.add(new.topic)
                return
            name = name if queue is None else (queue.topic, queue.queue_id)
            life = self._lives[name] = _QueueLife(queue)
        self._compare(life, joined(self._held.pop(name, None), new), torn, is_all=False)

    def _compare(self, life: _QueueLife, new: QueueEntries, torn: np.ndarray, *, is_all: bool) -> None:
        name = new.topic, new.queue_id
        previous = None if life.last_offset < 0 and self._log_start > 0 else life.last_offset
        new, held, misnumbered = put_in_order(new, previous, is_all=is_all)
        if held is not None:
            self._held[name] = held
        for found in misnumbered:
            life.add_fault(Kind.WRONG_OFFSET, np.array([found.queue_offset]), str(found))
        offsets = new.queue_offsets.astype(np.int64)
        back = np.flatnonzero(np.diff(offsets, prepend=life.last_offset if len(offsets) else 0) <= 0)
        if len(back):
            self._go_back(life, name, int(offsets[back].min()), int(offsets[back[-1]]))
            new, offsets = new.rows(np.arange(back[-1], len(offsets))), offsets[back[-1] :]
        if len(offsets):
            life.last_offset = int(offsets[-1])
            self.expected += len(offsets)
            self._compare_entries(life, new, offsets, life.entries_at(offsets), torn)
            self._keep_few_open(life.queue)

    def _keep_few_open(self, used: ConsumeQueue | None) -> None:
        if used is not None:
            self._open.pop(used, None)
            self._open[used] = None
        if len(self._open) > _MOST_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()

    def _go_back(self, life: _QueueLife, name: QueueName, least: int, to: int) -> None:
        """The earlier records at or above offset `least` are in the queue no more."""
        self._undispatched.pop(name, None)
        repeated = life.last_offset - to + 1
        life.go_back(least)
        if least > 0 and repeated > 0:
            example = f"offsets {to} to {life.last_offset} were given again; the older records are in no queue"
            life.add_fault(Kind.REPEATED_OFFSET, np.array([to - 1]), example)

    def _compare_entries(
        self, life: _QueueLife, new: QueueEntries, offsets: np.ndarray, found: np.ndarray, torn: np.ndarray
    ) -> None:
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
        for kind, rows in ((Kind.MISSING_ENTRY, ~present & ~waiting), (Kind.WRONG_ENTRY, present & ~agrees)):
            if rows.any():
                row = int(np.argmax(rows))
                example = f"offset {offsets[row]}: expected {_text(wanted[row])}, found {_text(found[row])}"
                life.add_fault(kind, offsets[rows], example)

    def _tags_codes(self, name: QueueName, codes: np.ndarray) -> np.ndarray:
        ext = self._queues.ext(*name)
        try:
            return ext.tags_codes(codes)
        finally:
            ext.close()

    def finish(self, unreadable: list[tuple[int, int]]) -> None:
        """Report entries that no record has claimed."""
        for name, held in list(self._held.items()):
            del self._held[name]
            self._compare(self._lives[name], held, np.empty(0, np.int64), is_all=True)
        for queue in self._queues:
            life = self._lives.get((queue.topic, queue.queue_id)) or _QueueLife(queue)
            self._compare_rest(queue, life, unreadable)
            queue.close()
        for name, life in self._lives.items():
            for kind, offsets, example in life.faults:
                self._tally.add(kind, _place(*name), len(offsets), example)
        if self._plan.was_clean:
            for name, (count, _, place) in self._undispatched.items():
                self._tally.add(Kind.UNDISPATCHED, _place(*name), count, f"record at {place} of the log")

    def _compare_rest(self, queue: ConsumeQueue, life: _QueueLife, unreadable: list[tuple[int, int]]) -> None:
        """Before the first claimed entry there may be expired and pre-blank ones, after the last one nothing."""
        name = queue.topic, queue.queue_id
        ends = queue.data_end(max(life.first, life.claimed_end))
        if not self._plan.was_clean:  # later ones may be newer than the walk
            ends = min(ends, self._plan.written_ends.get(name, 0))
        for start, end in life.unclaimed(ends):
            is_amid = life.claimed_start < start < life.claimed_end
            for at in range(start, end, _BLOCK_ENTRIES):
                entries = queue.entries(at, min(end, at + _BLOCK_ENTRIES))
                places = entries[_PLACE].astype(np.int64)
                is_message = is_entry(entries) & ~is_pre_blank(entries)
                stale = is_message & ~are_inside(places, unreadable)
                if start <= life.claimed_start or not life.is_claimed:
                    stale &= places >= self._log_start
                for kind, rows in ((Kind.STALE_ENTRY, stale), (Kind.HOLE, ~is_message & is_amid)):
                    if rows.any():
                        row = int(np.argmax(rows))
                        example = f"offset {at + row}: {_text(entries[row])}"
                        if kind is Kind.HOLE:
                            example = f"offsets {start} to {end - 1}, between two messages: {_text(entries[row])}"
                        self._tally.add(kind, _place(*name), int(np.count_nonzero(rows)), example)


class _QueueLife:
    """One queue: which of its offsets the records of its present life have claimed, and their faults."""

    __slots__ = ("_claims", "claimed_end", "claimed_start", "faults", "first", "last_offset", "queue")

    def __init__(self, queue: ConsumeQueue | None) -> None:
        self.queue = queue
        self.first = queue.first_file_offset if queue is not None else 0
        self.last_offset = -1
        self.claimed_start = -1
        """The first claimed offset; −1 if none is."""
        self.claimed_end = 0
        """The offset after the last claimed one; 0 if none is."""
        self._claims: array[int] | None = None  # end, start, end, start … of the gaps, if there are any
        self.faults: tuple[tuple[Kind, np.ndarray, str], ...] = ()
        """Kind of difference, the offsets, and the first one's text."""

    def entries_at(self, offsets: np.ndarray) -> np.ndarray:
        """The entries at ascending queue offsets; zeros outside the files. Marks them as claimed."""
        found = np.zeros(len(offsets), ENTRY)
        if self.queue is None:
            return found
        rows = np.flatnonzero((offsets >= self.first) & (offsets < self.queue.last_file_end_offset))
        inside = offsets[rows]
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(inside) > 1) + 1):
            if len(part):
                start, end = int(inside[part[0]]), int(inside[part[-1]]) + 1
                found[rows[part]] = self.queue.entries(start, end)
                self._claim(start, end)
        return found

    def _claim(self, start: int, end: int) -> None:
        if self.claimed_start < 0:
            self.claimed_start = start
        elif start > self.claimed_end:
            self._claims = self._claims or array("q")
            self._claims.extend((self.claimed_end, start))
        self.claimed_end = end

    @property
    def is_claimed(self) -> bool:
        return self.claimed_start >= 0

    def unclaimed(self, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of offsets in the queue's files, up to `end`, that no record has claimed."""
        if not self.is_claimed:
            bounds = [self.first, end]
        else:
            bounds = [self.first, self.claimed_start, *(self._claims or ()), self.claimed_end, end]
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            if start < min(stop, end):
                yield start, min(stop, end)

    def go_back(self, to: int) -> None:
        """The next record has this offset: drop earlier claims and faults at and after it."""
        while self._claims and self._claims[-1] >= to:
            self.claimed_end = self._claims[-2]
            del self._claims[-2:]
        self.claimed_end = min(self.claimed_end, to)
        if self.claimed_start >= to:
            self.claimed_start, self.claimed_end = -1, 0
        kept = ((kind, offsets[offsets < to], example) for kind, offsets, example in self.faults)
        self.faults = tuple(fault for fault in kept if len(fault[1]))

    def add_fault(self, kind: Kind, offsets: np.ndarray, example: str) -> None:
        self.faults += ((kind, offsets, example),)


def _place(topic: str, queue_id: int) -> str:
    return f"{topic} queue {queue_id}"


def _text(entry: np.ndarray) -> str:
    place, size, tags_code = entry.tolist()
    if place == 0 and size == 0:
        return "nothing"
    if is_pre_blank(entry):
        return "an entry that only fills room"
    return f"{size} bytes at {place} of the log, tags code {tags_code}"


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
    """One kind of difference in one place: how often it occurs, and the first one as an example."""

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
