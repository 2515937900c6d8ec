"""Delivery of the delay levels: messages of SCHEDULE_TOPIC_XXXX that are due go to their own topics. Java: ScheduleMessageService.

`delivery_plan.py` says what is due. A delivered record is the parked one with its own topic and queue: properties (DELAY,
REAL_TOPIC and REAL_QID among them), born time, born host and number of retries stay, and it belongs to no transaction.

A round of deliveries: mark (`delivery_plan.py`) · records, put in the order of the mark · their sync · delayOffset.json · mark dropped.
Commit point: the rename to delayOffset.json. A crash before it leaves a part of the round in the log; the next delivery finds by
the mark how much, saves that progress, and goes on from it. So a killed delivery puts each message once, as long as one of us
goes on; after a power loss one may come twice, whose record was torn where no checksum covers it. A broker that opens the store
after such a crash delivers the round again, at most ROUND_ROWS messages.

Not delivered, as in Java, and reported: messages whose real topic is the half topic, and messages without a readable real topic or
queue. Departures: where Java stands still before a message that its put path refuses for ever (a topic name that is too long), or
would leave its directory, the message is passed over and reported too; an unreadable delayOffset.json without .bak is an error and
not an empty table, which would deliver everything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from storage.delay.delivery_plan import (
    DeliveryMark,
    DeliveryPlan,
    DueMessages,
    DueRange,
    correct_deliver_times,
    drop_mark,
    due_messages,
    head_found_in,
    plan_deliveries,
    read_mark,
    record_marks,
    save_mark,
)
from storage.delay.timer_report import REPORTED_ROWS
from storage.failpoints import reach
from storage.files.atomic_file import read_table
from storage.format.consume_queue import MAX_EXT_ADDRESS
from storage.format.delay import SCHEDULE_TOPIC, deliver_time_ms
from storage.message_store import MessageStore
from storage.queues.scan import QueueSlice, scan_queue
from storage.tables.delay_offsets import FILE_NAME, DelayOffsets

DELIVERY = ("after-mark", "amid-delivery", "after-delivery", "after-delivery-sync", "after-delivery-save")
"""The failpoints of a round, in the order in which it passes them."""


class Undeliverable(NamedTuple):
    """A due message that stays where it is, passed over."""

    level: int
    queue_offset: int
    commitlog_offset: int
    rule: str


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """What a delivery did."""

    delivered: Mapping[int, int]
    """Level → messages put."""
    pending: Mapping[int, int]
    """Level → messages that wait; levels where none does are left out."""
    next_due_ms: int | None
    """When the first of them is due."""
    lateness_p50_ms: int
    """Store time less deliver time of the messages put, their median."""
    lateness_max_ms: int
    corrected: Mapping[int, tuple[int, int]]
    """Level → the offset that delayOffset.json had, outside the queue, and the one taken instead."""
    missing_levels: Mapping[int, int]
    """Level that delayOffset.json, which is there, did not name → messages delivered of it from the queue's beginning on. What another
    broker has delivered of them is there twice now. Empty where there is no such file: so a new store is."""
    found_delivered: int
    """Messages of a round that was killed which stood in the log already, and were not put again."""
    half_count: int
    """Half messages with a delay, discarded."""
    undeliverable_count: int
    undeliverable: tuple[Undeliverable, ...]
    """The first REPORTED_ROWS of them."""
    stranded: Mapping[int, int]
    """Level above the last of broker.conf → messages that nobody delivers."""

    @property
    def delivered_count(self) -> int:
        return sum(self.delivered.values())


def deliver_due(store: MessageStore, now_ms: int, *, max_messages: int | None = None) -> DeliveryReport:
    """Deliver what is due at `now_ms`, at most `max_messages`; the store is open for writing.

    When this returns, records and progress are on the disk. A level is delivered before the next one is begun.
    Raises StateFileError for a delayOffset.json or a mark that cannot be read, MessageIllegalError for a message over a limit that
    was lowered since (a broker stands still before it too), StoreNotWritableError, OSError.
    """
    files = store.writer.file_system
    offsets = read_table(f"{store.root}/config/{FILE_NAME}", DelayOffsets.load, files.read_file)
    return _Delivery(store, offsets or DelayOffsets(), now_ms, has_file=offsets is not None).run(max_messages)


def read_plan(store: MessageStore, now_ms: int, *, max_messages: int | None = None) -> DeliveryPlan:
    """What a store, open for reading or writing, has to deliver at `now_ms`; changes nothing."""
    offsets = store.state(FILE_NAME, DelayOffsets.load) or DelayOffsets()
    return _Delivery(store, offsets, now_ms).plan(max_messages)


@dataclass(slots=True)
class _Delivery:
    """One run of `deliver_due`."""

    store: MessageStore
    offsets: DelayOffsets
    now_ms: int
    has_file: bool = True
    """Whether there was a delayOffset.json."""
    delivered: dict[int, int] = field(default_factory=dict)
    lateness_ms: list[np.ndarray] = field(default_factory=list)
    found_delivered: int = 0
    half_count: int = 0
    undeliverable_count: int = 0
    undeliverable: list[Undeliverable] = field(default_factory=list)

    def run(self, max_messages: int | None) -> DeliveryReport:
        files, root = self.store.writer.file_system, self.store.root
        mark = read_mark(files, root)
        if mark is not None:
            self._go_on(mark)
        plan = self.plan(max_messages)
        self._save(plan.starts())
        for ranges in plan.rounds():
            save_mark(files, root, DeliveryMark(self.store.writer.log_end, ranges))
            reach("after-mark")
            self._deliver(ranges)
            drop_mark(files, root)
        return self._report(plan)

    def _go_on(self, mark: DeliveryMark) -> None:
        """Save how far a delivery that was killed has come."""
        if mark.is_current(self.offsets.offsets):
            progress = self._progress_in_log(mark)
            self.store.flush()
            self._save(progress)
        drop_mark(self.store.writer.file_system, self.store.root)

    def plan(self, max_messages: int | None) -> DeliveryPlan:
        store = self.store
        queues = {
            queue_id + 1: (store.min_offset(SCHEDULE_TOPIC, queue_id), store.max_offset(SCHEDULE_TOPIC, queue_id))
            for queue_id in store.queue_ids(SCHEDULE_TOPIC)
        }
        delays_ms, saved = store.config.delay.delays_ms, self.offsets.offsets
        return plan_deliveries(delays_ms, saved, queues, self._deliver_times, self.now_ms, max_messages=max_messages)

    def _deliver_times(self, level: int, start: int, end: int) -> np.ndarray:
        queue = self.store.queues.get(SCHEDULE_TOPIC, level - 1)
        assert queue is not None, "it has messages"
        codes = queue.entries(start, end)["tags_code"].astype(np.int64)
        if not (codes <= MAX_EXT_ADDRESS).any():
            return codes
        times = self.store.queues.ext(SCHEDULE_TOPIC, level - 1).tags_codes(codes)
        for row in np.flatnonzero((codes <= MAX_EXT_ADDRESS) & (times == 0)).tolist():  # units that are lost
            delays_ms = self.store.config.delay.delays_ms
            times[row] = deliver_time_ms(level, self.store.store_time(queue, start + row), delays_ms)
        return times

    def _deliver(self, ranges: Sequence[DueRange]) -> None:
        """Put a round's messages, sync them, save the progress."""
        for range_, part in self._slices(ranges):
            due = due_messages(part.records, self.store.queues.batch_topics)
            self._note(range_.level, part, due)
            if not len(due.rows):
                continue
            put = self.store.put_inner(due.messages)
            reach("amid-delivery")
            due_ms = self._due_times(range_)[part.queue_offsets[due.rows] - range_.start]
            self.lateness_ms.append(np.maximum(put["store_time_ms"].to_numpy() - due_ms, 0))
            self.delivered[range_.level] = self.delivered.get(range_.level, 0) + len(due.rows)
        reach("after-delivery")
        self.store.flush()
        reach("after-delivery-sync")
        self._save({range_.level: range_.end for range_ in ranges})
        reach("after-delivery-save")

    def _due_times(self, due: DueRange) -> np.ndarray:
        delays_ms = self.store.config.delay.delays_ms
        times = self._deliver_times(due.level, due.start, due.end)
        return correct_deliver_times(times, self.now_ms, delays_ms[min(due.level, len(delays_ms)) - 1])

    def _slices(self, ranges: Sequence[DueRange]) -> Iterator[tuple[DueRange, QueueSlice]]:
        log_end = self.store.writer.log_end
        for range_ in ranges:
            queue = self.store.queues.get(SCHEDULE_TOPIC, range_.level - 1)
            assert queue is not None, "it has messages"
            for part in scan_queue(queue, self.store.log, log_end, range_.start, range_.end):
                yield range_, part

    def _progress_in_log(self, mark: DeliveryMark) -> dict[int, int]:
        """Level → the offset behind the round's last message that stands in the log behind the mark; expired ones are passed over."""
        levels, offsets, expected = [], [], []
        for range_, part in self._slices([one for range_ in mark.ranges if (one := self._what_is_left(range_))]):
            due = due_messages(part.records, self.store.queues.batch_topics)
            levels += [range_.level] * len(due.rows)
            offsets += part.queue_offsets[due.rows].tolist()
            expected.append(record_marks(part.records.take(due.rows), due.messages.topics, due.messages.queue_ids))
        found, left = [], sum(range_.end - range_.start for range_ in mark.ranges)
        start = max(mark.log_end, self.store.log.minimum)
        for _, records in self.store.log.walk(start) if start < self.store.writer.log_end else ():
            found.append(record_marks(records, records.topics(), records.column("queue_id")))
            left -= len(records)
            if left <= 0:
                break
        self.found_delivered = head_found_in(found, expected)
        return {
            level: offset + 1
            for level, offset in zip(levels[: self.found_delivered], offsets[: self.found_delivered], strict=True)
        }

    def _what_is_left(self, range_: DueRange) -> DueRange | None:
        """Of the messages of a range those that the queue holds."""
        start = max(range_.start, self.store.min_offset(SCHEDULE_TOPIC, range_.level - 1))
        end = min(range_.end, self.store.max_offset(SCHEDULE_TOPIC, range_.level - 1))
        return DueRange(range_.level, start, end) if start < end else None

    def _note(self, level: int, part: QueueSlice, due: DueMessages) -> None:
        self.half_count += due.half_count
        self.undeliverable_count += len(due.refused)
        places = part.records.column("commitlog_offset")
        for row, rule in due.refused[: REPORTED_ROWS - len(self.undeliverable)]:
            self.undeliverable.append(Undeliverable(level, int(part.queue_offsets[row]), int(places[row]), rule))

    def _save(self, offsets: Mapping[int, int]) -> None:
        table = self.offsets.with_offsets(offsets, now_ms=self.now_ms)
        if table is not self.offsets:
            self.store.save_state(FILE_NAME, table.to_text())
            self.offsets = table

    def _report(self, plan: DeliveryPlan) -> DeliveryReport:
        lateness = np.concatenate(self.lateness_ms) if self.lateness_ms else np.zeros(1, np.int64)
        levels = plan.levels
        return DeliveryReport(
            delivered=self.delivered,
            pending={level.level: level.maximum - level.end for level in levels if level.maximum > level.end},
            next_due_ms=min((level.next_due_ms for level in levels if level.next_due_ms is not None), default=None),
            lateness_p50_ms=int(np.median(lateness)),
            lateness_max_ms=int(lateness.max()),
            corrected={
                level.level: (level.saved, level.start)
                for level in levels
                if level.saved is not None and level.saved != level.start
            },
            missing_levels={
                level.level: self.delivered.get(level.level, 0)
                for level in levels
                if self.has_file and level.saved is None and level.maximum
            },
            found_delivered=self.found_delivered,
            half_count=self.half_count,
            undeliverable_count=self.undeliverable_count,
            undeliverable=tuple(self.undeliverable),
            stranded=plan.stranded,
        )
