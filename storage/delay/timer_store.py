"""Delivery at any time: messages of rmq_sys_wheel_timer wait in the timer's wheel and go to their own topics. Java: TimerMessageStore.

`deliver_timed` does in one run what a broker's timer does continuously, on the same files, so that each of the two can continue the
other's work. A pass:

    enter     the queue's new messages into log and wheel: of each slot the deletions are known before its messages leave
    deliver   the slots before now, tick by tick: messages to their topics, deleted ones nowhere, those that only went as far as the
              window reaches (rolled) to the end of the timer's queue, from where they are entered again

Order of writes. Entering: commit log synced · checkpoint's master offset, so that a broker continues after the log's last unit · units,
synced · wheel, synced · checkpoint. Delivering, for each group of slots: records · their sync · checkpoint's read time. Commit point:
the sync of the checkpoint. After a crash before it, entered units are found in the timer log and put records in the commit log, and
neither is repeated (`timer_records.py`), whichever process was killed. A broker that opens the store after such a crash
delivers the group again, at most PUT_ROWS messages or one slot.

A slave that stands in for its master delivers to other brokers (`deliver_timed` with `put`). A message that would be rolled enters the
wheel again there, with a new unit for the same record: the own log takes nothing. Java sends it to another broker's timer.

Departures. Every message gets a unit in the log, also one that is due already (Java delivers that at once, and again after its next
start): it enters the first slot that has not been delivered. So a late deletion still finds its message, if no
delivery was in between. A record at which Java's timer stops forever is reported and skipped; its unit goes into a past slot,
so that a broker, too, continues after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from storage.delay.timer_files import ALL_TICKS, TimerLog, TimerWheel
from storage.delay.timer_records import (
    NEVER_ENTERED,
    LastRolls,
    PutBefore,
    TimerRecords,
    cancelled_rows,
    concat_messages,
    due_messages,
    is_sealed,
    put_since,
    read_timer_records,
    seal,
)
from storage.delay.timer_recovery import RecoveredTimer, recover_timer
from storage.failpoints import reach
from storage.format.arrays import string_hashes
from storage.format.delay import (
    BLANK_SLOTS,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_POSITION,
    SLOTS_OF_WEEK,
    UNIT,
    UNIT_SIZE,
    due_times_ms,
    effective_precision_ms,
    effective_window,
    is_unit,
)
from storage.queues.scan import QueueSlice, scan_queue
from storage.rules.delays import TIMER_TOPIC
from storage.rules.inner_messages import InnerMessages
from storage.store import MessageStore
from storage.tables.document import CountedTopics
from storage.tables.masters import forget_followed_timer, write_timer_checkpoint

REPORTED_ROWS = 100
"""How many undeliverable messages a report lists."""


class UndeliverableTimed(NamedTuple):
    """A message that is skipped and stays in the timer's topic."""

    commitlog_offset: int
    rule: str


@dataclass(frozen=True, slots=True)
class TimerReport:
    """The counts of one `deliver_timed`."""

    entered: int = 0
    """Messages entered in the wheel; a rolled one counts each time."""
    delivered: int = 0
    rolled: int = 0
    """Messages put back to the timer's queue, because they wait longer than the wheel's window."""
    cancelled: int = 0
    """Messages that a deletion removed."""
    pending: int = 0
    """Messages that wait in the wheel now, minus deletions."""
    next_due_ms: int | None = None
    """When the first waiting message is due."""
    lateness_p50_ms: int = 0
    """Median of store time minus TIMER_OUT_MS of the messages delivered; up to a tick more than from the requested time."""
    lateness_max_ms: int = 0
    found_delivered: int = 0
    """Messages that a killed timer had put into the log already; they were not put again."""
    missing: int = 0
    """Units whose record has expired from the commit log, or is another one."""
    undeliverable_count: int = 0
    undeliverable: tuple[UndeliverableTimed, ...] = ()
    """The first REPORTED_ROWS of them."""
    due_within: tuple[int, ...] = ()
    """For each bound of `TimerNotes.bounds_s`: number of pending messages that are due between the bound before it and this one."""

    @property
    def delivered_count(self) -> int:
        """Named as in the delay levels' report."""
        return self.delivered


NOTHING_TIMED = TimerReport()


METRICS_FILE = "timermetrics"
TIMER = (
    "timer-announced",
    "timer-log",
    "timer-wheel",
    "timer-entered",
    "timer-put",
    "timer-put-sync",
    "timer-delivered",
)
"""The failpoints of a pass, in order."""
PUT_ROWS = 8_192
PUT_BYTES = 32 << 20
_SCAN_WASTE = 8
"""How many units are read for each wanted one, before links are followed instead."""
_Found = list[tuple[np.ndarray, np.ndarray]]


Put = Callable[[InnerMessages], bool]
"""Puts messages elsewhere; False = not all are there. Then the same ones come again."""


class TimerNotes(Protocol):
    """Is notified of messages that enter the wheel or leave it, many at once. Java: DefaultStoreMetricsManager."""

    @property
    def bounds_s(self) -> Sequence[int]:
        """Seconds from now, in order, for `TimerReport.due_within`."""

    def timer_entered(self, topics: pa.Array, waits_ms: np.ndarray) -> None:
        """Their real topics, and how long each waits from its birth on."""

    def timer_left(self, topics: pa.Array) -> None:
        """Their real topics; deletions, and what they delete, do not come."""


def deliver_timed(
    store: MessageStore,
    now_ms: int,
    put: Put | None = None,
    saved: Callable[[], None] = lambda: None,
    notes: TimerNotes | None = None,
) -> TimerReport:
    """Deliver what the timer has due at `now_ms`; `store` is open for writing.

    With `put` messages go there, not into this store's log; the run ends at the first slots that it does not take completely.
    `saved` is called when what `put` has taken since the last call does not come again: whole slots, which may be several puts.
    `notes` is notified of messages that enter and leave.
    Does nothing if no message ever had a delivery time, or timerWheelEnable is false (as a broker). Raises StoreRefusedError
    for timer files that do not fit the configuration, StoreNotWritableError, OSError.
    """
    timer = store.config.timer
    files = store.writer.file_system
    has_queue = store.max_offset(TIMER_TOPIC, 0) > 0
    if not timer.timer_wheel_enable or not (has_queue or files.exists(f"{store.root}/timerwheel")):
        return NOTHING_TIMED
    run = _TimerRun(store, recover_timer(store, files), now_ms, put, saved, notes)
    try:
        with suppress(_NotPutError):
            run.catch_up()
        run.finish()
        return run.report()
    finally:
        run.log.close()


class _NotPutError(Exception):
    """`Put` has not taken all messages of a group."""


class _TimerRun:
    """The timer between its opening and its last checkpoint."""

    def __init__(
        self,
        store: MessageStore,
        found: RecoveredTimer,
        now_ms: int,
        put: Put | None,
        saved: Callable[[], None],
        notes: TimerNotes | None,
    ) -> None:
        self.log = found.log
        self._notes = notes
        self._put_elsewhere = put
        self._saved = saved
        self._rolling: list[TimerRecords] = []
        self._store = store
        self._files = store.writer.file_system
        self._wheel = found.wheel
        self._checkpoint = found.checkpoint
        self._entered_before = found.entered
        self._queue_offset = found.queue_offset
        self._followed = found.followed
        self._last_rolls: LastRolls | None = None
        self._max_message_size = store.config.commit_log.max_message_size
        timer = store.config.timer
        self._stops_entering = timer.timer_stop_enqueue
        self._precision_ms = effective_precision_ms(timer.timer_precision_ms)
        self._window = effective_window(timer.timer_roll_window_slot)
        self._now_ms = now_ms
        self._now_tick = now_ms // self._precision_ms
        read_time_ms = found.checkpoint.last_read_time_ms if found.followed is None else found.followed.read_time_ms
        self._read_tick = read_time_ms // self._precision_ms
        self._put_before = PutBefore()
        if found.wheel.was_there and not is_sealed(self._files, store.root, found.checkpoint):
            self._put_before = put_since(store.log, store.log_end, found.checkpoint.last_read_time_ms)
        self._counts: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        if found.followed is not None:
            self._waiting.subtract((store.state(METRICS_FILE, TimerMetrics.load) or TimerMetrics()).counts)
        self._lateness: list[np.ndarray] = [np.empty(0, np.int64)]
        self._undeliverable: list[UndeliverableTimed] = []

    def catch_up(self) -> None:
        """Enter and deliver until no message before now waits.

        If rolled messages become due meanwhile, slots are delivered only up to the first of them. It is then entered
        in its own slot, beside its possible deletion.
        """
        week_ago = self._now_tick - SLOTS_OF_WEEK + BLANK_SLOTS
        if self._followed is None:
            self._deliver(week_ago)
        else:  # nothing is entered yet, and nothing may be saved before all is
            self._read_tick = max(self._read_tick, week_ago)
        self._enter()
        while self._read_tick < self._now_tick:
            self._deliver(self._now_tick)
            self._enter()

    # Entering

    def _enter(self) -> None:
        """Enter the timer's queue from the last offset to its end. Java: enqueue, doEnqueue."""
        queue, end = self._store.queues.get(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)
        start = max(self._queue_offset, self._store.min_offset(TIMER_TOPIC, 0))
        if self._stops_entering:
            return
        if queue is None or start >= end:
            self._end_following()
            return
        self._store.flush()
        self._save(master_queue_offset=end)
        reach("timer-announced")
        if self._followed is not None:
            slices = scan_queue(queue, self._store.log, self._store.log_end, start, end)
            self._last_rolls = LastRolls(read_timer_records(each.records, self._max_message_size) for each in slices)
        for slice_ in scan_queue(queue, self._store.log, self._store.log_end, start, end):
            self._enter_slice(slice_)
        self.log.sync()
        reach("timer-log")
        self._wheel.save()
        reach("timer-wheel")
        self._queue_offset = end
        place = {"queue_offset": end, "master_queue_offset": end, "log_position": self.log.end}
        if self._followed is not None:
            place["last_read_time_ms"] = self._read_tick * self._precision_ms
        self._save(**place)
        reach("timer-entered")
        self._end_following()

    def _end_following(self) -> None:
        """Forget the former master's progress: from now on this store's own entries say what was delivered."""
        if self._followed is not None:
            forget_followed_timer(self._files, self._store.root)
            self._followed = self._last_rolls = None

    def _enter_slice(self, slice_: QueueSlice) -> None:
        timed = read_timer_records(slice_.records, self._max_message_size)
        is_entered = self._are_entered(slice_.records.column("commitlog_offset"), timed.out_ms)
        if is_entered.any():  # by a timer that was killed before it counted them
            self._count_topics(timed.topics, np.where(is_entered, np.where(timed.is_deletion, -1, 1), 0))
        queue_offset, read_time_ms = self._checkpoint.queue_offset, self._checkpoint.last_read_time_ms
        if self._followed is not None:
            read_time_ms, queue_offset = self._followed
        was_entered = slice_.queue_offsets < queue_offset
        # Messages that came after the last delivery wait for the next one, even if they were due before.
        is_over = was_entered & timed.is_sound & (timed.out_ms < read_time_ms)
        is_over &= slice_.records.column("store_time_ms") < read_time_ms
        if self._last_rolls is not None:
            is_over |= self._last_rolls.are_older(timed)
        timed = timed.take(~is_entered & ~is_over)
        if not len(timed.records):
            return
        self._pass_over(timed, timed.rules)
        is_put = self._put_before.take(timed.names, timed.out_ms, np.full(len(timed.records), NEVER_ENTERED))
        self._counts["found_delivered"] += int(is_put.sum())
        enters = timed.is_sound & ~is_put
        self._enter_units(timed, enters, self._read_tick)
        self._counts["entered"] += int(enters.sum())
        if self._notes is not None and enters.any():
            entered = timed.take(enters)
            waits_ms = entered.out_ms - entered.records.column("born_time_ms")
            self._notes.timer_entered(entered.topics, waits_ms)

    def _are_entered(self, places: np.ndarray, out_ms: np.ndarray) -> np.ndarray:
        """Which messages have units that the timer's queue offset does not cover yet."""
        newest, found = self._newest_entered(places)
        return found & are_of(newest, out_ms) if len(newest) else found

    def _newest_entered(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The newest unit of each record among those that the checkpoint does not cover yet, and which records have one.

        Where there are none at all the first is empty.
        """
        units = self._entered_before
        if not len(units):
            return units, np.zeros(len(places), bool)
        order = np.argsort(units["commitlog_offset"], kind="stable")
        found = np.searchsorted(units["commitlog_offset"][order].astype(np.int64), places, side="right") - 1
        newest = units[order[np.maximum(found, 0)]]
        return newest, (found >= 0) & (newest["commitlog_offset"] == places)

    # Delivering

    def _deliver(self, end_tick: int) -> None:
        """Deliver the slots before a tick, or before the first rolled message that is due before it. Java: dequeue."""
        if end_tick <= self._read_tick:
            return
        due = due_units(self._wheel, self.log, self._read_tick, end_tick, self._precision_ms)
        end_tick = self._first_rolled_due(due, end_tick)
        for group in due.before(end_tick).groups():
            self._break_seal()
            before = self._counts.copy(), self._waiting.copy()
            try:
                self._deliver_group(group)
            except _NotPutError:
                self._rolling = []
                self._counts, self._waiting = before  # the whole group comes again
                raise
            tick = int(group.ticks[-1]) + 1
            self._read_up_to(tick, **self._roll_on(tick))
            self._saved()
        self._read_up_to(end_tick)

    def _read_up_to(self, tick: int, **place: int) -> None:
        self._read_tick = tick
        self._save(last_read_time_ms=tick * self._precision_ms, **place)
        reach("timer-delivered")

    def _first_rolled_due(self, due: DueUnits, end_tick: int) -> int:
        rolled = due.units[due.is_rolled]
        if not len(rolled):
            return end_tick
        first = end_tick
        for _, timed in self._records_of(rolled):
            ticks = timed.out_ms[timed.is_sound] // self._precision_ms
            first = min(first, int(ticks.min(initial=end_tick)))
        return max(first, self._read_tick + 1)

    def _records_of(self, units: np.ndarray) -> Iterator[tuple[np.ndarray, TimerRecords]]:
        """The units' records, a log file at a time, with the rows of the units; units without a record are omitted."""
        order = np.argsort(units["commitlog_offset"], kind="stable")
        places = units["commitlog_offset"][order].astype(np.int64)
        sizes = units["record_size_bytes"][order].astype(np.int64)
        inside = (places >= self._store.log.minimum) & (places + sizes <= self._store.writer.log_end) & (sizes > 0)
        order, places, sizes = order[inside], places[inside], sizes[inside]
        for part, records in self._store.log.records(places, sizes):
            agrees = records.agree(places[part], sizes[part], TIMER_TOPIC.encode(), 0)
            timed = read_timer_records(records.take(agrees), self._max_message_size)
            rows = order[part][agrees]
            is_own = are_of(units[rows], timed.out_ms)
            if is_own.any():
                yield rows[is_own], timed.take(is_own)

    def _deliver_group(self, group: DueUnits) -> None:
        found = list(self._records_of(group.units))
        self._counts["missing"] += len(group.units) - sum(len(rows) for rows, _ in found)
        is_cancelled = _cancelled(group, found)
        self._counts["cancelled"] += int(is_cancelled.sum())
        for rows in group.puts():
            parts = [
                (numbers[inside], timed.take(inside)) for numbers, timed in found if (inside := rows[numbers]).any()
            ]
            if parts:
                self._deliver_part(group, parts, is_cancelled)

    def _deliver_part(
        self,
        group: DueUnits,
        parts: list[tuple[np.ndarray, TimerRecords]],
        is_cancelled: np.ndarray,
    ) -> None:
        found: list[tuple[InnerMessages, np.ndarray, np.ndarray]] = []
        for numbers, timed in parts:
            units, cancelled = group.units[numbers], is_cancelled[numbers]
            rolled = group.is_rolled[numbers]
            entered_ms = units["write_time_ms"].astype(np.int64)
            appends_crc = self._store.writer.settings.appends_crc
            due, fits = due_messages(timed, rolled, entered_ms, self._now_ms, appends_crc=appends_crc)
            leaves = (rolled | ~timed.is_deletion) & ~cancelled
            self._pass_over(timed, {row: rule for row, rule in timed.rules.items() if leaves[row]})
            full = np.flatnonzero(leaves & timed.is_sound & ~fits)
            self._pass_over(timed, dict.fromkeys(full.tolist(), "its properties have no room left"))
            # A deletion that found its message has counted for both; one that did not stops counting.
            spent = np.where(leaves | ~timed.is_deletion, 0, 1) - cancelled
            self._count_topics(timed.topics, np.where(leaves, -unit_changes(units["magic"]), spent))
            is_put = self._put_before.take(timed.names, timed.out_ms, entered_ms) & leaves
            self._counts["found_delivered"] += int(is_put.sum())
            leaves &= timed.is_sound & fits & ~is_put
            if self._put_elsewhere is not None:
                stays = rolled & leaves & ~self._are_rolled_on(units)
                self._rolling.append(timed.take(stays))
                leaves &= ~rolled
            put = np.flatnonzero(leaves)
            if len(put):
                if self._notes is not None:
                    self._notes.timer_left(timed.take(leaves).topics)
                found.append((due.take(put), numbers[put], timed.out_ms[put]))
        if found:
            rows = np.concatenate([numbers for _, numbers, _ in found])
            order = np.argsort(rows, kind="stable")
            out_ms = np.concatenate([times for _, _, times in found])[order]
            messages = concat_messages([messages for messages, _, _ in found]).take(order)
            self._put(messages, out_ms, group.is_rolled[rows[order]])

    def _are_rolled_on(self, units: np.ndarray) -> np.ndarray:
        """Which rolled units have a newer one of the same record: `_roll_on` was killed before the checkpoint."""
        newest, found = self._newest_entered(units["commitlog_offset"].astype(np.int64))
        return found & (newest["write_time_ms"] > units["write_time_ms"]) if len(newest) else found

    def _roll_on(self, tick: int) -> dict[str, int]:
        """Let messages wait on in slots from `tick` on, without copies at the queue's end; returns what the checkpoint must say."""
        rolling, self._rolling = self._rolling, []
        for timed in rolling:
            if len(timed.records):
                self._enter_units(timed, np.ones(len(timed.records), bool), tick)
                self._counts["rolled"] += len(timed.records)
        if not any(len(timed.records) for timed in rolling):
            return {}
        self.log.sync()
        self._wheel.save()
        return {"log_position": self.log.end}

    def _enter_units(self, timed: TimerRecords, enters: np.ndarray, read_tick: int) -> None:
        """Units into log and wheel, in slots from `read_tick` on; those that do not enter into a past one."""
        units, ticks = plan_units(timed, enters, WheelTime(self._now_tick, read_tick, self._precision_ms, self._window))
        positions = self.log.places(len(units))
        changes = unit_changes(units["magic"])
        units["previous_position"] = self._wheel.enter(ticks, positions, changes)
        self.log.append(positions, units)
        self._count_topics(timed.topics, np.where(enters, changes, 0))

    def _put(self, messages: InnerMessages, out_ms: np.ndarray, is_rolled: np.ndarray) -> None:
        if self._put_elsewhere is not None:
            if not self._put_elsewhere(messages):
                raise _NotPutError
            self._counts["delivered"] += messages.row_count
            self._lateness.append(np.maximum(self._now_ms - out_ms, 0))
            return
        results = self._store.put_inner(messages)
        reach("timer-put")
        self._store.flush()
        reach("timer-put-sync")
        self._counts["rolled"] += int(is_rolled.sum())
        self._counts["delivered"] += int((~is_rolled).sum())
        late = results["store_time_ms"].to_numpy() - out_ms
        self._lateness.append(np.maximum(late[~is_rolled], 0))

    # Keeping account

    def _pass_over(self, timed: TimerRecords, rules: Mapping[int, str]) -> None:
        places = timed.records.column("commitlog_offset")
        self._undeliverable += [UndeliverableTimed(int(places[row]), rules[row]) for row in sorted(rules)]

    def _count_topics(self, topics: pa.Array, changes: np.ndarray) -> None:
        """Java: addMetric."""
        if changes.any():
            table = pa.table({"topic": topics, "change": pa.array(changes, pa.int64())})
            summed = table.group_by("topic", use_threads=False).aggregate([("change", "sum")])
            for topic, change in zip(summed["topic"].to_pylist(), summed["change_sum"].to_pylist(), strict=True):
                if topic is not None:
                    self._waiting[topic] += change

    def _save(self, **changes: int) -> None:
        if any(getattr(self._checkpoint, name) != value for name, value in changes.items()):
            version = {"version_time_ms": self._now_ms, "version_counter": self._checkpoint.version_counter + 1}
            self._checkpoint = self._checkpoint._replace(**{**version, **changes})
            write_timer_checkpoint(self._files, self._store.root, self._checkpoint)

    def _break_seal(self) -> None:
        """From the first put on, a later timer must look for what was put."""
        if is_sealed(self._files, self._store.root, self._checkpoint):
            self._save(version_counter=self._checkpoint.version_counter + 1)

    def finish(self) -> None:
        """Write changed counts into config/timermetrics; delete files that are not needed any more."""
        before = self._store.state(METRICS_FILE, TimerMetrics.load) or TimerMetrics()
        after = before.with_changes(self._waiting, now_ms=self._now_ms)
        if after is not before:
            self._store.save_state(METRICS_FILE, after.to_text())
        self.log.delete_expired(self._store.log.minimum)
        if self._put_before.latest_ms // self._precision_ms <= self._read_tick:
            seal(self._files, self._store.root, self._checkpoint)

    def report(self) -> TimerReport:
        slots = self._wheel.waiting(self._read_tick, ALL_TICKS)
        waiting = slots[slots["count"] > 0]
        lateness = np.concatenate(self._lateness)
        return TimerReport(
            entered=self._counts["entered"],
            delivered=self._counts["delivered"],
            rolled=self._counts["rolled"],
            cancelled=self._counts["cancelled"],
            pending=int(slots["count"].sum()),
            next_due_ms=int(waiting["tick"][0]) * self._precision_ms if len(waiting) else None,
            lateness_p50_ms=int(np.median(lateness)) if len(lateness) else 0,
            lateness_max_ms=int(lateness.max(initial=0)),
            found_delivered=self._counts["found_delivered"],
            missing=self._counts["missing"],
            undeliverable_count=len(self._undeliverable),
            undeliverable=tuple(self._undeliverable[:REPORTED_ROWS]),
            due_within=self._due_within(slots),
        )

    def _due_within(self, slots: np.ndarray) -> tuple[int, ...]:
        if self._notes is None:
            return ()
        bounds = np.array(self._notes.bounds_s, np.int64) * 1_000 // self._precision_ms + self._now_tick
        numbers = np.searchsorted(bounds, slots["tick"], side="right")
        counts = np.bincount(numbers, slots["count"], len(bounds) + 1)
        return tuple(int(count) for count in counts[: len(bounds)])


def _cancelled(group: DueUnits, found: list[tuple[np.ndarray, TimerRecords]]) -> np.ndarray:
    """Which of the group's units a deletion removes."""
    cancelled = np.zeros(len(group.units), bool)
    if found and (group.units["magic"] & MAGIC_DELETE).any():
        rows = np.concatenate([numbers for numbers, _ in found])
        keys = pa.concat_arrays([timed.keys for _, timed in found])
        deleted_keys = pa.concat_arrays([timed.deleted_keys for _, timed in found])
        cancelled[rows] = cancelled_rows(keys, deleted_keys, group.ticks[rows], group.is_rolled[rows])
    return cancelled


class WheelTime(NamedTuple):
    """The times and limits that decide about slots."""

    now_tick: int
    read_tick: int
    """The first slot that has not been delivered."""
    precision_ms: int
    window: int
    """How many ticks ahead a message may wait."""


def plan_units(timed: TimerRecords, enters: np.ndarray, time: WheelTime) -> tuple[np.ndarray, np.ndarray]:
    """The messages' units, except the links between them, and the ticks of their slots. Pure. Java: TimerMessageStore.doEnqueue.

    A message that is due already gets the first slot that has not been delivered. One beyond the window gets a slot on its way: after
    a window or, to leave enough for the second round, half of one. One that does not enter gets a past slot.
    """
    precision, window = time.precision_ms, time.window
    write_ms = max(time.now_tick, time.read_tick) * precision
    beyond_ms = timed.out_ms - write_ms - window * precision
    is_rolled = enters & (beyond_ms >= 0)
    stop_ms = write_ms + np.where(beyond_ms < window // 3 * precision, window // 2, window) * precision
    due_ms = np.maximum(np.where(is_rolled, stop_ms, timed.out_ms), time.read_tick * precision)
    due_ms = np.where(enters, due_ms, (time.read_tick - 1) * precision)
    magic = MAGIC_DEFAULT | np.where(is_rolled, MAGIC_ROLL, 0) | np.where(timed.is_deletion, MAGIC_DELETE, 0)
    units = np.zeros(len(due_ms), UNIT)
    units["size_bytes"] = UNIT_SIZE
    units["magic"] = magic
    units["write_time_ms"] = write_ms
    units["delay_ms"] = due_ms - write_ms
    units["commitlog_offset"] = timed.records.column("commitlog_offset")
    units["record_size_bytes"] = timed.records.column("size_bytes")
    units["topic_hash"] = string_hashes(timed.topics)
    return units, due_ms // precision


def are_of(units: np.ndarray, out_ms: np.ndarray) -> np.ndarray:
    """Which units belong to the messages at their places, which request these times.

    A log that was cut may have other messages there now. A rolled unit does not hold its message's time.
    """
    due_ms, write_ms = due_times_ms(units), units["write_time_ms"].astype(np.int64)
    was_due = (out_ms < due_ms) & (due_ms <= write_ms)
    return (units["magic"] & MAGIC_ROLL != 0) | (out_ms == due_ms) | was_due


def unit_changes(magic: np.ndarray) -> np.ndarray:
    """The changes of slots' and topics' counts by units: a message one, a deletion minus one."""
    return np.where(magic & MAGIC_DELETE, -1, 1).astype(np.int32)


class DueUnits(NamedTuple):
    """Units by tick and, within a tick, by place."""

    ticks: np.ndarray
    """int64: the slot of each."""
    units: np.ndarray

    @property
    def is_rolled(self) -> np.ndarray:
        """Which ones go back to the timer's queue."""
        return np.asarray(self.units["magic"] & MAGIC_ROLL != 0)

    def before(self, tick: int) -> DueUnits:
        """The units of slots before a tick."""
        count = int(np.searchsorted(self.ticks, tick))
        return DueUnits(self.ticks[:count], self.units[:count])

    def groups(self) -> Iterator[DueUnits]:
        """Whole slots, together at most PUT_ROWS messages and PUT_BYTES; a single slot may have more."""
        bytes_before = np.concatenate(([0], np.cumsum(self.units["record_size_bytes"], dtype=np.int64)))
        ends = [*(np.flatnonzero(np.diff(self.ticks)) + 1).tolist(), len(self.ticks)]
        start = 0
        for end, after in zip(ends, [*ends[1:], None], strict=True):
            if after is None or after - start > PUT_ROWS or bytes_before[after] - bytes_before[start] > PUT_BYTES:
                if end > start:
                    yield DueUnits(self.ticks[start:end], self.units[start:end])
                start = end

    def puts(self) -> Iterator[np.ndarray]:
        """Masks of the units in order, each of at most about PUT_ROWS and PUT_BYTES."""
        sizes = np.cumsum(self.units["record_size_bytes"], dtype=np.int64)
        numbers = np.maximum.accumulate(np.maximum(np.arange(len(self.units)) // PUT_ROWS, sizes // PUT_BYTES))
        for number in np.unique(numbers).tolist():
            yield numbers == number


def due_units(wheel: TimerWheel, log: TimerLog, start_tick: int, end_tick: int, precision_ms: int) -> DueUnits:
    """All units of the slots of ticks [start, end).

    A slot links its units from the newest to the oldest, so following a full slot is slow. If most units of a part of the
    log are due, that part is read as a whole instead; both give the same result. Java: TimerMessageStore.dequeue.
    """
    slots = wheel.waiting(start_tick, end_tick)
    if not len(slots):
        return DueUnits(np.empty(0, np.int64), np.empty(0, UNIT))
    first, last = max(0, int(slots["first_position"].min())), int(slots["last_position"].max())
    wanted = int(np.maximum(slots["count"], 1).sum())
    is_dense = (last - first) // UNIT_SIZE <= _SCAN_WASTE * wanted + PUT_ROWS
    positions, units = (
        _scanned(log, slots, first, last, precision_ms) if is_dense else _linked(log, slots, precision_ms)
    )
    before = units["previous_position"].astype(np.int64)
    if is_dense and not np.isin(before[before != NO_POSITION], positions).all():
        positions, units = _linked(log, slots, precision_ms)  # a recovery has let a slot begin too late
    ticks = due_times_ms(units) // precision_ms
    order = np.lexsort((positions, ticks))
    return DueUnits(ticks[order], units[order])


def _scanned(
    log: TimerLog, slots: np.ndarray, first: int, last: int, precision_ms: int
) -> tuple[np.ndarray, np.ndarray]:
    """The slots' units, filtered from all in a part of the log."""
    found: _Found = []
    for run in log.units_between(first, last):
        rows = np.isin(due_times_ms(run.units) // precision_ms, slots["tick"])
        found.append((run.positions[rows], run.units[rows]))
    return _joined(found)


def _linked(log: TimerLog, slots: np.ndarray, precision_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """The slots' units, each slot from its newest to its oldest, one step in all slots at once."""
    found: _Found = []
    ticks, positions = slots["tick"].astype(np.int64), slots["last_position"].astype(np.int64)
    while len(positions):
        units = log.units_at(positions)
        sound = is_unit(units) & (due_times_ms(units) // precision_ms == ticks)
        found.append((positions[sound], units[sound]))
        before = units["previous_position"].astype(np.int64)
        goes_on = sound & (before != NO_POSITION) & (before < positions)
        ticks, positions = ticks[goes_on], before[goes_on]
    return _joined(found)


def _joined(found: _Found) -> tuple[np.ndarray, np.ndarray]:
    if not found:
        return np.empty(0, np.int64), np.empty(0, UNIT)
    return np.concatenate([positions for positions, _ in found]), np.concatenate([units for _, units in found])


class TimerMetrics(CountedTopics):
    """How many messages of each topic wait in the timer, minus waiting deletions: `config/timermetrics`.

    Java: TimerMetrics.
    """

    __slots__ = ()
    table = "timingCount"
