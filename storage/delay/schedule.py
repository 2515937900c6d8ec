"""Delivery of the delay levels: messages of SCHEDULE_TOPIC_XXXX that are due go to their own topics. Java: ScheduleMessageService.

The queue of a level is delivered in order, up to the first message that is not due. The due time is the entry's tags code
(CommitLog.checkMessageAndReturnSize). A time further ahead than the level's delay counts as now: the clock went back.
A delivered record is the parked one with its own topic and queue: properties (including DELAY, REAL_TOPIC and REAL_QID), born time,
born host and number of retries stay, and it belongs to no transaction. The first half of this file decides that, pure; the second
delivers.

A round of deliveries: mark · records, put in the order of the mark · their sync · delayOffset.json · mark dropped.
Commit point: the rename to delayOffset.json. A crash before it leaves a part of the round in the log; the next delivery finds by
the mark how much, saves that progress, and continues. So a killed delivery puts each message once, as long as this package
continues. After a power loss a message may come twice if its record was torn where no checksum covers it. A broker that opens the store
after such a crash delivers the round again, at most ROUND_ROWS messages.

Not delivered, as in Java, and reported: messages whose real topic is the half topic, and messages without a readable real topic or
queue. Departures: Java stops at a message that its put path always refuses (a too long topic name), or would leave its directory;
here the message is skipped and reported too. An unreadable delayOffset.json without .bak is an error and
not an empty table, which would deliver everything again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.delay.timer_store import REPORTED_ROWS
from storage.errors import NameIllegalError, StateFileError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem, read_table
from storage.format.consume_queue import MAX_EXT_ADDRESS
from storage.format.delay import SCHEDULE_TOPIC, deliver_time_ms
from storage.format.properties import decode_property_maps, with_crc_room
from storage.format.record_batch import Records
from storage.names import RETRY_PREFIX, RETRY_TOPIC_LENGTH_LIMIT, TOPIC_LENGTH_LIMIT, validate_path_element
from storage.queues.scan import SLICE_ROWS, QueueSlice, scan_queue
from storage.rules.delays import REAL_QUEUE_ID, REAL_TOPIC
from storage.rules.half_messages import HALF_TOPIC
from storage.rules.inner_messages import InnerMessages
from storage.store import MessageStore
from storage.tables.masters import DELAYS_FILE, DelayOffsets

ROUND_ROWS = SLICE_ROWS
"""How many messages must be searched after a crash."""
_FIRST_BLOCK = 64
_INTEGER = re.compile(r"\+?0*([0-9]{1,10})")  # Python's int takes at most 4,300 digits, including zeros
_INT_MAX = 2**31 - 1

DeliverTimes = Callable[[int, int, int], np.ndarray]
"""Due times of a level's messages at queue offsets [start, end), int64 ms; 0 where there is no message."""
_COLUMNS = ("flag", "born_time_ms", "reconsume_times", "body_crc", "body_size_bytes")


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """What one level has to deliver: queue offsets [start, end)."""

    level: int
    saved: int | None
    """The offset that delayOffset.json has; None if it does not name the level."""
    start: int
    end: int
    maximum: int
    """The end of the queue: messages from `end` on wait."""
    next_due_ms: int | None
    """When the first message at or after `end` is due; None if there is none."""


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What all levels have to deliver."""

    levels: tuple[LevelPlan, ...]
    """The levels of broker.conf with a queue or an offset."""
    stranded: Mapping[int, int]
    """Level → messages that are never delivered, because broker.conf has fewer levels (a broker leaves them, too)."""

    def starts(self) -> dict[int, int]:
        """The offsets to continue from; none for a level that has neither an offset nor messages."""
        return {plan.level: plan.start for plan in self.levels if plan.saved is not None or plan.maximum}

    def rounds(self, row_count: int = ROUND_ROWS) -> Iterator[tuple[DueRange, ...]]:
        """The due ranges in order, split into rounds of at most `row_count` queue offsets."""
        ranges: list[DueRange] = []
        room = row_count
        for plan in self.levels:
            at = plan.start
            while at < plan.end:
                end = min(plan.end, at + room)
                ranges.append(DueRange(plan.level, at, end))
                room -= end - at
                at = end
                if not room:
                    yield tuple(ranges)
                    ranges, room = [], row_count
        if ranges:
            yield tuple(ranges)


def plan_deliveries(
    delays_ms: tuple[int, ...],
    saved: Mapping[int, int],
    queues: Mapping[int, tuple[int, int]],
    deliver_times: DeliverTimes,
    now_ms: int,
    *,
    max_messages: int | None = None,
) -> DeliveryPlan:
    """What is due at `now_ms`, level by level, at most `max_messages` in total.

    `saved` are the file's offsets, `queues` the minimum and maximum offset of each queue by its level. A level that the file does not
    name begins at 0; one whose offset lies outside the queue begins at the nearer end. Java: correctDelayOffset, executeOnTimeUp.
    """
    plans = []
    queues = {**dict.fromkeys(saved, (0, 0)), **queues}
    for level in sorted(level for level in queues if 1 <= level <= len(delays_ms)):
        start, maximum = _start(saved.get(level), queues[level]), queues[level][1]
        end, next_due_ms = _due_end(level, start, maximum, deliver_times, now_ms, delays_ms[level - 1])
        if max_messages is not None and end - start > max_messages:
            end = start + max_messages
            next_due_ms = int(deliver_times(level, end, end + 1)[0])
        if max_messages is not None:
            max_messages -= end - start
        plans.append(LevelPlan(level, saved.get(level), start, end, maximum, next_due_ms))
    waiting = {level: queues[level][1] - _start(saved.get(level), queues[level]) for level in sorted(queues)}
    stranded = {level: count for level, count in waiting.items() if level > len(delays_ms) and count}
    return DeliveryPlan(tuple(plans), stranded)


def _start(saved: int | None, queue: tuple[int, int]) -> int:
    minimum, maximum = queue
    return min(max(saved or 0, minimum), maximum)


def _due_end(
    level: int, start: int, maximum: int, deliver_times: DeliverTimes, now_ms: int, delay_ms: int
) -> tuple[int, int | None]:
    """The first offset that is not due, and its due time."""
    at, block_size = start, _FIRST_BLOCK
    while at < maximum:
        times = correct_deliver_times(deliver_times(level, at, min(maximum, at + block_size)), now_ms, delay_ms)
        waiting = np.flatnonzero(times > now_ms)
        if len(waiting):
            return at + int(waiting[0]), int(times[waiting[0]])
        at, block_size = at + len(times), min(8 * block_size, SLICE_ROWS)
    return maximum, None


def correct_deliver_times(deliver_times_ms: np.ndarray, now_ms: int, delay_ms: int) -> np.ndarray:
    """Times further ahead than the level's delay become now. Java: correctDeliverTimestamp."""
    return np.where(deliver_times_ms > now_ms + delay_ms, now_ms, deliver_times_ms)


# What becomes of a due message


class DueMessages(NamedTuple):
    """The messages to put for n parked records."""

    rows: np.ndarray
    """The rows that are delivered, ascending."""
    messages: InnerMessages
    """These messages, with the topics and queues that they were sent to."""
    half_count: int
    """Rows that are discarded because their topic is the half topic."""
    refused: tuple[tuple[int, str], ...]
    """Rows that cannot be delivered, each with the rule."""


def due_messages(records: Records) -> DueMessages:
    """The messages that parked records become. Java: ScheduleMessageService.messageTimeUp."""
    properties = decode_property_maps(records.raw_properties())
    topics = properties.values_of(REAL_TOPIC)
    topic_names, topic_codes = _distinct(topics)
    queue_texts, queue_codes = _distinct(properties.values_of(REAL_QUEUE_ID))
    rules = [_topic_rule(name) for name in topic_names]
    queue_ids = np.array([_queue_id(text) for text in queue_texts], np.int64)[queue_codes]
    is_half = np.array([name == HALF_TOPIC for name in topic_names], bool)[topic_codes]
    is_wrong = np.array([rule is not None for rule in rules], bool)[topic_codes] | (queue_ids < 0)
    rows = np.flatnonzero(~is_half & ~is_wrong)
    refused = [
        (row, rules[topic_codes[row]] or f"{REAL_QUEUE_ID} is {queue_texts[queue_codes[row]]!r:.40}, no queue id")
        for row in np.flatnonzero(is_wrong & ~is_half).tolist()
    ]
    messages = InnerMessages.of_records(records if len(rows) == len(records) else records.take(rows))
    messages = messages._replace(
        topics=topics.take(pa.array(rows)),
        queue_ids=queue_ids[rows].astype(np.int32),
        prepared_transaction_offsets=np.zeros(len(rows), np.int64),
    )
    return DueMessages(rows, messages, int(is_half.sum()), tuple(refused))


def _distinct(texts: pa.Array) -> tuple[list[str | None], np.ndarray]:
    encoded = texts.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _topic_rule(topic: str | None) -> str | None:
    """Why a record cannot go to the topic; None = it can."""
    if topic is None:
        return f"it has no {REAL_TOPIC}"
    limit = RETRY_TOPIC_LENGTH_LIMIT if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_LIMIT
    if len(topic.encode()) > limit:
        return f"{REAL_TOPIC} has more than {limit} bytes"
    try:
        validate_path_element("topic", topic)
    except NameIllegalError as error:
        return f"{REAL_TOPIC}: {error.rule}"
    return None


def _queue_id(text: str | None) -> int:
    """Java: Integer.parseInt; −1 where it throws or gives no queue."""
    found = _INTEGER.fullmatch(text) if text is not None else None
    value = int(found[1]) if found else -1
    return value if value <= _INT_MAX else -1


class DueRange(NamedTuple):
    """Messages of one level at queue offsets [start, end)."""

    level: int
    start: int
    end: int


class DeliveryMark(NamedTuple):
    """One round of deliveries, noted before it starts, so that the next delivery can continue a killed one.

    The mark says where the log ended before the first record of a round, and which messages the round delivers, in order. A delivery
    holds the store, so the records of a killed one are in the log from that place on, row after row, and are recognised by their bytes.
    Others may append after them, so the next delivery first saves that progress, and drops the mark.

    The file is ROOT/spark_mq/delivery.json; a broker does not read it, and delivers such messages twice.
    """

    log_end: int
    """Log offset of the first record."""
    ranges: tuple[DueRange, ...]

    def is_current(self, offsets: Mapping[int, int]) -> bool:
        """Whether none of the round's progress has been saved, by us or by a broker."""
        return all(offsets.get(range_.level) == range_.start for range_ in self.ranges)


def save_mark(file_system: LocalFileSystem, root: str, mark: DeliveryMark) -> None:
    """Write the mark of a round, durably."""
    file_system.replace(_path(root), json.dumps(mark._asdict()).encode())


def drop_mark(file_system: LocalFileSystem, root: str) -> None:
    """Delete the mark; one that comes back with a power loss is not current."""
    file_system.unlink(_path(root))


def read_mark(file_system: LocalFileSystem, root: str) -> DeliveryMark | None:
    """The unfinished round; None if there is none. Raises StateFileError for a file that this module did not write."""
    path = _path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
        ranges = tuple(DueRange(*map(int, range_)) for range_ in document["ranges"])
        return DeliveryMark(int(document["log_end"]), ranges)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StateFileError(path, 1, 1, f"it is no delivery mark: {error}") from error


def record_marks(records: Records, topics: pa.Array, queue_ids: np.ndarray) -> pa.Table:
    """What identifies a delivered record's message: all fields except place, hosts and store time."""
    return pa.table(
        {
            "topic": topics.cast(pa.large_binary()),
            "queue_id": pa.array(queue_ids, pa.int32()),
            "properties": with_crc_room(records.raw_properties()),  # without the record's own checksum
            **{name: pa.array(records.column(name)) for name in _COLUMNS},
        }
    )


def head_found_in(found: Sequence[pa.Table], expected: Sequence[pa.Table]) -> int:
    """How many rows of `expected`, from the first on, are among those of `found`, in their order. Each is at most one round."""
    theirs = iter(_rows(found))
    count = 0
    for row in _rows(expected):
        if row not in theirs:  # searches from the previous match
            break
        count += 1
    return count


def _rows(tables: Sequence[pa.Table]) -> Iterator[tuple[object, ...]]:
    for table in tables:
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _path(root: str) -> str:
    return f"{root}/spark_mq/delivery.json"


DELIVERY = ("after-mark", "amid-delivery", "after-delivery", "after-delivery-sync", "after-delivery-save")
"""The failpoints of a round, in order."""


class Undeliverable(NamedTuple):
    """A due message that is skipped and stays in its queue."""

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
    """Level → waiting messages; levels without any are omitted."""
    next_due_ms: int | None
    """When the first waiting message is due."""
    lateness_p50_ms: int
    """Median of store time minus delivery time of the messages put."""
    lateness_max_ms: int
    corrected: Mapping[int, tuple[int, int]]
    """Level → the offset of delayOffset.json, outside the queue, and the one used instead."""
    missing_levels: Mapping[int, int]
    """Level that an existing delayOffset.json did not name → messages delivered from the queue's beginning. Those that another broker
    had delivered are there twice now. Empty without such a file: then the store is new."""
    found_delivered: int
    """Messages of a killed round that were in the log already, and were not put again."""
    half_count: int
    """Discarded half messages with a delay."""
    undeliverable_count: int
    undeliverable: tuple[Undeliverable, ...]
    """The first REPORTED_ROWS of them."""
    stranded: Mapping[int, int]
    """Level above the last of broker.conf → messages that are never delivered."""

    @property
    def delivered_count(self) -> int:
        return sum(self.delivered.values())


def deliver_due(store: MessageStore, now_ms: int, *, max_messages: int | None = None) -> DeliveryReport:
    """Deliver what is due at `now_ms`, at most `max_messages`; the store is open for writing.

    When this returns, records and progress are on the disk. A level is finished before the next one is started.
    Raises StateFileError for an unreadable delayOffset.json or mark, MessageIllegalError for a message over a limit that
    was lowered since (a broker stops there too), StoreNotWritableError, OSError.
    """
    files = store.writer.file_system
    offsets = read_table(f"{store.root}/config/{DELAYS_FILE}", DelayOffsets.load, files.read_file)
    return _Delivery(store, offsets or DelayOffsets(), now_ms, has_file=offsets is not None).run(max_messages)


def read_plan(store: MessageStore, now_ms: int, *, max_messages: int | None = None) -> DeliveryPlan:
    """The due deliveries of a store, open for reading or writing, at `now_ms`; changes nothing."""
    offsets = store.state(DELAYS_FILE, DelayOffsets.load) or DelayOffsets()
    return _Delivery(store, offsets, now_ms).plan(max_messages)


# For another broker's log: a slave that stands in for its master puts nothing into its own. Java: EscapeBridge.


class LevelRound(NamedTuple):
    """Due messages of one level, to be put elsewhere."""

    level: int
    messages: InnerMessages
    """As `deliver_due` would put them."""
    next_offsets: np.ndarray
    """int64: the level's offset once a row and all rows before it are there."""
    end: int
    """The level's offset once all are; behind rows that are not delivered."""


def due_rounds(store: MessageStore, now_ms: int, max_messages: int) -> list[LevelRound]:
    """The first due messages of each level, at most `max_messages` of a level. Changes nothing; `store` is open for writing.

    Raises StateFileError, OSError.
    """
    delivery = _Delivery(store, store.state(DELAYS_FILE, DelayOffsets.load) or DelayOffsets(), now_ms)
    firsts = [
        DueRange(plan.level, plan.start, min(plan.end, plan.start + max_messages))
        for plan in delivery.plan(None).levels
        if plan.start < plan.end
    ]
    rounds = []
    for range_, part in delivery.slices(firsts):
        due = due_messages(part.records)
        end = int(part.queue_offsets[-1]) + 1 if len(part.queue_offsets) else range_.end
        rounds.append(LevelRound(range_.level, due.messages, part.queue_offsets[due.rows] + 1, end))
    return rounds


def save_level(store: MessageStore, level: int, offset: int, now_ms: int) -> None:
    """The level is delivered up to this offset, by another broker; an offset never goes back. Raises StateFileError, OSError."""
    with store.tables_lock:  # what a master sends is stored in the same file
        table = store.state(DELAYS_FILE, DelayOffsets.load) or DelayOffsets()
        changed = table.with_offsets({level: max(offset, table.get(level) or 0)}, now_ms=now_ms)
        if changed is not table:
            store.save_state(DELAYS_FILE, changed.to_text())


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
        """Save the progress of a killed delivery."""
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
        for row in np.flatnonzero((codes <= MAX_EXT_ADDRESS) & (times == 0)).tolist():  # lost units
            delays_ms = self.store.config.delay.delays_ms
            times[row] = deliver_time_ms(level, self.store.store_time(queue, start + row), delays_ms)
        return times

    def _deliver(self, ranges: Sequence[DueRange]) -> None:
        """Put a round's messages, sync them, save the progress."""
        for range_, part in self.slices(ranges):
            due = due_messages(part.records)
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

    def slices(self, ranges: Sequence[DueRange]) -> Iterator[tuple[DueRange, QueueSlice]]:
        log_end = self.store.writer.log_end
        for range_ in ranges:
            queue = self.store.queues.get(SCHEDULE_TOPIC, range_.level - 1)
            assert queue is not None, "it has messages"
            for part in scan_queue(queue, self.store.log, log_end, range_.start, range_.end):
                yield range_, part

    def _progress_in_log(self, mark: DeliveryMark) -> dict[int, int]:
        """Level → the offset after the round's last message that is in the log after the mark; expired ones are skipped."""
        levels, offsets, expected = [], [], []
        for range_, part in self.slices([one for range_ in mark.ranges if (one := self._what_is_left(range_))]):
            due = due_messages(part.records)
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
        """The part of a range that the queue still holds."""
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
            self.store.save_state(DELAYS_FILE, table.to_text())
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
