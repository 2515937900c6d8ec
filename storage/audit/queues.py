"""Records of the log against the entries of their queues. Part of `verify.py`.

What is remembered of a queue is which ranges of its offsets its records have claimed: one range, where nothing is wrong, and never
more ranges than records. Files are preallocated, so what could stand in them says nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from storage.audit.findings import Kind, Tally, are_inside
from storage.ends.recovery_plan import RecoveryPlan
from storage.format.consume_queue import ENTRY, is_entry, is_pre_blank
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.log.dispatch import QueueEntries
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.order import joined, put_in_order
from storage.queues.store import ConsumeQueueStore

QueueName = tuple[str, int]

_SECOND_MS = 1_000
"""The smallest unit of messageDelayLevel."""
_BLOCK_ENTRIES = 1 << 16
_MOST_OPEN = 64
"""Queues whose files are kept open."""
_PLACE = "commitlog_offset"


class QueueAudit:
    """Records against the entries of their queues, and what else the queues hold."""

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
        self._open: dict[ConsumeQueue, None] = {}  # the last one used is the last one
        self._undispatched: dict[QueueName, tuple[int, int, int]] = {}  # records, bytes, first place
        self.expected = 0
        self.deleted_topics: set[str] = set()

    @property
    def undispatched_bytes(self) -> int:
        return sum(size for _, size, _ in self._undispatched.values())

    def compare(self, new: QueueEntries, torn: np.ndarray) -> None:
        """Records of one queue with their entries; of those at `torn` without the tags code.

        Offsets that go back to 0 begin a new life of the topic; those that go back to another one are given again.
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
        """The records before this one whose offset is not less are in the queue no more."""
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
        """Look for entries that no record has claimed."""
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
        """Before the first claimed entry there may be expired and pre-blank ones, behind the last one nothing."""
        name = queue.topic, queue.queue_id
        ends = queue.data_end(max(life.first, life.claimed_end))
        if not self._plan.was_clean:  # later ones may be newer than the look at the log
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
    """One queue, which of its offsets the records of its present life have claimed, and what is wrong with them."""

    __slots__ = ("_claims", "claimed_end", "claimed_start", "faults", "first", "last_offset", "queue")

    def __init__(self, queue: ConsumeQueue | None) -> None:
        self.queue = queue
        self.first = queue.first_file_offset if queue is not None else 0
        self.last_offset = -1
        self.claimed_start = -1
        """The first offset that a record has claimed; −1 if none has."""
        self.claimed_end = 0
        """The offset behind the last one that a record has claimed; 0 if none has."""
        self._claims: array[int] | None = None  # end, start, end, start … of what lies between, where there is anything
        self.faults: tuple[tuple[Kind, np.ndarray, str], ...] = ()
        """Kind of difference, the offsets, and the first one's text."""

    def entries_at(self, offsets: np.ndarray) -> np.ndarray:
        """What stands at ascending queue offsets; zeros outside the files. They are claimed from now on."""
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
        """The next record has this offset: what stands there and behind is claimed by none, and no fault, of the records before."""
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
