"""Where a message with a delay goes first: to the queue of its level, to the timer, or directly to its topic. Pure.

    requested                                            parked in                              until
    DELAY = level > 0                                    SCHEDULE_TOPIC_XXXX, queue level − 1   store time + the level's delay
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS    rmq_sys_wheel_timer, queue 0           TIMER_OUT_MS
      (the first of them that a message has)

A level overrides a time, and a level above the last counts as the last. The parked record keeps its topic and queue as REAL_TOPIC and
REAL_QID. Prepared and rolled-back messages are not moved. `judge_delays` decides, for numbers and for arrays of them;
`route_delayed` calls it for one message with properties, `read_delays` for rows, `retry_rows.py` for rows that are sent back.

A row has at most one of `delay_level` and `deliver_at`; 0 and null mean at once. So does a past time, unless the same rows must always
make the same messages: then the row goes to the timer, which delivers it at once.

Java: HookUtils.handleScheduleMessage, checkIfTimerMessage, transformTimerMessage, transformDelayLevelMessage. As in 5.3.3,
timerInterceptDelayLevel has no effect. Departures, which refuse what would stop a broker's delivery permanently: a message
without body (a broker reads it back with a null body, which its put path always refuses), and a time that overflows
64 bits (Java's sum wraps round and the message goes out at once).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import PutRefusedError
from storage.format.arrays import is_valid, sizes_of
from storage.format.delay import SCHEDULE_TOPIC, due_codes
from storage.format.record import has_queue_entry
from storage.format.record_block import DUE_IN
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage, Numbers, Truths
from storage.rules.values import Rejections, read_times_ms
from storage.settings.nouns import TOPIC_AND_KEY, TimerConfig

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Java: TimerMessageStore.TIMER_TOPIC."""
DELAY, REAL_TOPIC, REAL_QUEUE_ID = "DELAY", "REAL_TOPIC", "REAL_QID"
TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS = "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"
TIMER_OUT_MS, TIMER_DELETED_KEY = "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"
TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
"""Properties that the timer adds: when it entered a message, and when it put it."""
TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)

_INTEGER = re.compile(r"([+-]?)0*(\d{1,19})")
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1

Congestion = Callable[[np.ndarray], np.ndarray]
"""Selects the times (TIMER_OUT_MS, int64, each once) for which the timer accepts no more messages. Java: TimerMessageStore.isReject."""


class Refusal(NamedTuple):
    """Why a message, or rows, may not be put."""

    status: PutStatus
    reason: str
    passes: bool = False
    """The timer is busy: the same message may be accepted later."""


TIMER_OFF = Refusal(
    PutStatus.WHEEL_TIMER_NOT_ENABLE,
    "it asks for a deliver time, and the store's broker has no timer: timerWheelEnable is false, or rocketmqVersion is before 5.0",
)
TOO_FAR_AHEAD = Refusal(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, "its deliver time is more than timerMaxDelaySec ahead")
NO_BODY = Refusal(PutStatus.MESSAGE_ILLEGAL, "it has no body, and a broker cannot deliver it later")
SLOT_FULL = Refusal(PutStatus.WHEEL_TIMER_FLOW_CONTROL, "too many messages have that deliver time", True)
NOTHING_TO_DELETE = Refusal(
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"it deletes a timer message ({TIMER_DELETED_KEY}), and its time has passed"
)


class DelayWish(NamedTuple):
    """The requested delivery of one message (numbers), or of many (arrays)."""

    levels: Numbers
    """Below 1: no level."""
    asks_time: Truths
    """Without a level, whether there is a time."""
    deliver_ms: Numbers
    """That time; times up to 1970 must be given as 1: the wheel has no earlier slot."""
    is_empty: Truths
    """Messages without a body."""
    is_deletion: Truths = False
    """Messages that remove another one from the timer."""
    parks_overdue: bool = False
    """Messages with a past time also go to the timer, which delivers them at once. So the clock never decides where a message
    waits. Java puts them into their topics."""


class Waits(NamedTuple):
    """Where messages wait and until when; numbers for one message, or arrays."""

    levels: Numbers
    """0 = no level; a level above the last is the last."""
    is_timed: Truths
    """In the timer's topic."""
    out_ms: Numbers
    """TIMER_OUT_MS, where `is_timed`."""
    refusals: tuple[tuple[Truths, Refusal], ...]
    """Which messages are refused, and why; the first reason of each message counts."""

    def refused_rows(self) -> Iterator[tuple[np.ndarray, Refusal]]:
        """For arrays: the row numbers of refused messages, ascending, by their first reasons."""
        reported: Truths = False
        for is_refused, refusal in self.refusals:
            new = np.asarray(is_refused) & ~np.asarray(reported)
            reported = reported | is_refused
            if new.any():
                yield np.flatnonzero(new), refusal


def judge_delays(
    wish: DelayWish,
    *,
    delays_ms: tuple[int, ...],
    timer: TimerConfig,
    now_ms: int,
    is_congested: Congestion | None = None,
) -> Waits:
    """Decide where messages with a level or a time wait. The same rule for a request, a put and a row.

    `is_congested` selects the times for which the timer accepts nothing more; None = it accepts all.
    """
    levels, asks_time, deliver_ms, is_empty, is_deletion, parks_overdue = wish
    has_level, most_ms = levels > 0, timer.timer_max_delay_sec * 1_000
    is_timed = asks_time & (levels <= 0)
    is_ahead = is_timed & (deliver_ms > now_ms)
    waits = is_timed if parks_overdue else is_ahead
    out_ms = timer_out_ms(deliver_ms, timer.timer_precision_ms)
    refusals = (
        (is_timed & (not timer.timer_wheel_enable), TIMER_OFF),
        (is_timed & (deliver_ms <= now_ms) & is_deletion, NOTHING_TO_DELETE),
        (is_ahead & (deliver_ms - now_ms > most_ms), TOO_FAR_AHEAD),
        (_congested(is_ahead & (deliver_ms - now_ms <= most_ms), out_ms, is_congested), SLOT_FULL),
        ((has_level | waits) & is_empty, NO_BODY),
    )
    return Waits(np.minimum(levels, len(delays_ms)) * has_level, waits, out_ms, refusals)


def deletion_key(form: str, topic: str, unique_key: str) -> str:
    """TIMER_DEL_UNIQKEY of a deletion, in one of the forms of `Release.timer_deletion_keys`. Java: TimerMessageStore.buildDeleteKey."""
    return f"{topic}+{unique_key}" if form == TOPIC_AND_KEY else unique_key


def timer_out_ms(deliver_ms: Numbers, precision_ms: int) -> Numbers:
    """When the timer delivers it: the last multiple of the precision strictly before the delivery time."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def is_slot_full(waiting_counts: Numbers, per_slot: int, draws: Numbers) -> Truths:
    """Whether the timer refuses messages for a slot with so many: never up to `per_slot`, always from twice as many on,
    and in between by draws out of 1,000. Java: TimerMessageStore.isReject.
    """
    excess = waiting_counts - per_slot
    return (waiting_counts >= 2 * per_slot) | ((excess > 0) & (draws > 1_000 * excess / (per_slot + 0.1)))


def _congested(is_ahead: Truths, out_ms: Numbers, is_congested: Congestion | None) -> Truths:
    """Which messages request a time that the timer refuses. Each distinct time is checked once."""
    if is_congested is None or not np.any(is_ahead):
        return is_ahead & False
    times, which = np.unique(np.atleast_1d(out_ms)[np.atleast_1d(is_ahead)], return_inverse=True)
    full = is_congested(times)[which]
    if not isinstance(is_ahead, np.ndarray):
        return bool(full[0])
    found = is_ahead.copy()
    found[is_ahead] = full
    return found


# One message


def route_delayed(
    message: InnerMessage,
    *,
    delays_ms: tuple[int, ...],
    timer: TimerConfig,
    now_ms: int,
    is_congested: Congestion | None = None,
) -> InnerMessage:
    """The message to put: parked, or unchanged. `inner_messages.py` checks its size.

    Raises PutRefusedError. A half message with a delay is parked too, as in Java, and discarded when it is due: code that prepares
    halves must remove the delay or refuse it.
    """
    if not has_queue_entry(message.sys_flag):
        return message
    level = delay_level(message)
    time_name = None
    if level <= 0 and message.topic != TIMER_TOPIC and TIMER_OUT_MS not in message.properties:
        time_name = next((name for name in TIMES if name in message.properties), None)
    if level <= 0 and time_name is None:
        return message
    wish = DelayWish(
        level,
        time_name is not None,
        0 if time_name is None or not timer.timer_wheel_enable else _deliver_ms(message, time_name, now_ms),
        not message.body,
        TIMER_DELETED_KEY in message.properties,
    )
    waits = judge_delays(wish, delays_ms=delays_ms, timer=timer, now_ms=now_ms, is_congested=is_congested)
    for is_refused, refusal in waits.refusals:
        if is_refused:
            raise _refused(message, refusal)
    if level > 0:
        # A message that the timer rolled keeps its times.
        dropped = () if message.topic == TIMER_TOPIC else TIMES
        queue_id, text = int(waits.levels) - 1, str(waits.levels)  # Java keeps "+3", which few readers understand
        return _parked(message, SCHEDULE_TOPIC, queue_id, {DELAY: text}, dropped)
    return _parked(message, TIMER_TOPIC, 0, {TIMER_OUT_MS: str(waits.out_ms)}) if waits.is_timed else message


def _parked(
    message: InnerMessage, topic: str, queue_id: int, added: Mapping[str, str], dropped: tuple[str, ...] = ()
) -> InnerMessage:
    kept = {name: value for name, value in message.properties.items() if name not in dropped}
    real = {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return replace(message, topic=topic, queue_id=queue_id, properties={**kept, **added, **real})


def delay_level(message: InnerMessage) -> int:
    """The requested level of a message, 0 if it has none; below 1 it has no effect.

    Java: Message.getDelayTimeLevel, whose NumberFormatException ends the request in SYSTEM_ERROR. Raises PutRefusedError.
    """
    text = message.properties.get(DELAY)
    if text is None:
        return 0
    level = _parsed(text, _INT_MAX)
    if level is None:
        raise _refused(message, Refusal(PutStatus.UNKNOWN_ERROR, f"{DELAY} {text!r:.40} is no whole number"))
    return level


def _deliver_ms(message: InnerMessage, name: str, now_ms: int) -> int:
    text = message.properties[name]
    value = _parsed(text, _LONG_MAX)
    if value is None:
        raise _refused(message, Refusal(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"{name} {text!r:.40} is no whole number"))
    return {TIMER_DELAY_SEC: now_ms + 1_000 * value, TIMER_DELAY_MS: now_ms + value, TIMER_DELIVER_MS: value}[name]


def _parsed(text: str, maximum: int) -> int | None:
    """As Integer.parseInt and Long.parseLong read it; None where they throw."""
    found = _INTEGER.fullmatch(text)
    value = int(found[1] + found[2]) if found else None
    return value if value is not None and -maximum - 1 <= value <= maximum else None


def _refused(message: InnerMessage, refusal: Refusal) -> PutRefusedError:
    return PutRefusedError(refusal.status, f"message for {message.topic} queue {message.queue_id}: {refusal.reason}")


DELAY_COLUMNS = ("delay_level", "deliver_at")

Queue = tuple[str, int]


class DelayRules(NamedTuple):
    """The settings and options that tasks need for the delays of rows."""

    delays_ms: tuple[int, ...]
    """The delay of each level, from level 1."""
    timer: TimerConfig
    is_congested: Congestion | None = None
    """Selects the times for which the timer accepts nothing more; None = it accepts all."""
    parks_overdue: bool = False
    """A row with a past delivery time goes to the timer, too: the same rows always make the same messages."""
    is_sent: bool = False
    """A broker will apply the delays: rows keep their properties, as a client's messages do."""
    most_level: int | None = None
    """The highest delay level that a row may send to a broker; None = any."""


class Delays(NamedTuple):
    """The delays of n rows; columns of equal length."""

    waits: np.ndarray
    """int32: 0 = not, level, or −1 = in the timer's topic."""
    properties: dict[str, pa.Array]
    """DELAY, TIMER_DELIVER_MS and TIMER_OUT_MS as large_string, null in rows that have none."""
    tags_codes: np.ndarray
    """int64: DUE_IN plus its delay for each row with a level, else 0."""

    def filter(self, keep: pa.Array) -> Delays:
        """Some of the rows, by a mask."""
        mask = keep.to_numpy(zero_copy_only=False)
        kept = {name: values.filter(keep) for name, values in self.properties.items()}
        return Delays(self.waits[mask], kept, self.tags_codes[mask])

    @property
    def are_waiting(self) -> np.ndarray:
        return self.waits != 0

    @property
    def queues(self) -> list[Queue]:
        """The queues where rows wait, by `waits`: the timer's queue is the last."""
        count = int(self.waits.max(initial=0))
        return [*((SCHEDULE_TOPIC, level) for level in range(count)), (TIMER_TOPIC, 0)]

    def codes(self) -> np.ndarray:
        """For each waiting row, its index in `queues`."""
        waits = self.waits[self.are_waiting]
        return np.where(waits > 0, waits - 1, len(self.queues) - 1)

    def added_sizes(self, topic_sizes: np.ndarray, queue_digits: np.ndarray) -> np.ndarray:
        """Bytes of the properties for waiting, including those for the topic."""
        sizes = np.zeros(len(self.waits), np.int64)
        for name, values in self.properties.items():
            sizes += np.where(is_valid(values), sizes_of(values) + len(name) + 2, 0)
        real = topic_sizes + queue_digits + len(REAL_TOPIC) + len(REAL_QUEUE_ID) + 4
        return np.asarray(sizes + np.where(self.are_waiting, real, 0))


def read_delays(
    levels: np.ndarray,
    time_column: pa.Array | None,
    body_sizes: np.ndarray,
    rejections: Rejections,
    rules: DelayRules,
    now_ms: int,
) -> Delays | None:
    """The rows' delays; None if no row has one. `levels` are 0 in rows without a level."""
    count = len(body_sizes)
    is_timed = is_valid(time_column) if time_column is not None else np.zeros(count, bool)
    if not (levels.any() or is_timed.any()):
        return None
    check_levels(levels, rejections)
    rule = "the row has a delay_level too, or a retry_group, which has one: a message waits for one or the other"
    rejections.add(np.flatnonzero((levels != 0) & is_timed), "deliver_at", rule)
    if (most := rules.most_level) is not None:
        why = f"above {most}: exactlyOnce cannot look for such a row, because brokers let no client read where it waits"
        rejections.add(np.flatnonzero(levels > most), "delay_level", lambda row: f"{levels[row]} is {why}")
    if rules.is_sent:
        return _requested_delays(levels, is_timed, read_times_ms(time_column, count, 0))
    deliver_ms = np.maximum(read_times_ms(time_column, count, 0), 1)
    wish = DelayWish(levels, is_timed, deliver_ms, body_sizes == 0, parks_overdue=rules.parks_overdue)
    waits = judge_delays(
        wish, delays_ms=rules.delays_ms, timer=rules.timer, now_ms=now_ms, is_congested=rules.is_congested
    )
    for rows, refusal in waits.refused_rows():
        for column, of_column in (("delay_level", rows[levels[rows] > 0]), ("deliver_at", rows[levels[rows] <= 0])):
            reason = refusal.reason
            if refusal is TOO_FAR_AHEAD:
                reason += f", which is {rules.timer.timer_max_delay_sec} s"
            rejections.add(of_column, column, reason, passes=refusal.passes)
    effective, in_timer = np.asarray(waits.levels), np.asarray(waits.is_timed)
    properties = {
        DELAY: decimal_texts(effective, effective > 0),
        TIMER_DELIVER_MS: decimal_texts(deliver_ms, is_timed & (effective == 0)),
        TIMER_OUT_MS: decimal_texts(np.asarray(waits.out_ms), in_timer),
    }
    tags_codes = np.zeros(count, np.int64)
    tags_codes[effective > 0] = due_codes(effective[effective > 0], DUE_IN, rules.delays_ms)
    present = {name: values for name, values in properties.items() if values.null_count < count}
    return Delays(np.where(in_timer, -1, effective).astype(np.int32), present, tags_codes)


def _requested_delays(levels: np.ndarray, is_timed: np.ndarray, deliver_ms: np.ndarray) -> Delays:
    """Delays as properties for a broker. Java: Message.setDelayTimeLevel, setDeliverTimeMs."""
    count = len(levels)
    properties = {DELAY: decimal_texts(levels, levels > 0), TIMER_DELIVER_MS: decimal_texts(deliver_ms, is_timed)}
    present = {name: values for name, values in properties.items() if values.null_count < count}
    return Delays(((levels > 0) | is_timed).astype(np.int32), present, np.zeros(count, np.int64))


def check_levels(levels: np.ndarray, rejections: Rejections) -> None:
    """Reject rows with a level below 1, which a broker would ignore."""
    rejections.add(
        np.flatnonzero(levels < 0),
        "delay_level",
        lambda row: f"{levels[row]} is negative; 0 or null delivers at once, 1 is the first level",
    )


def decimal_texts(numbers: np.ndarray, rows: np.ndarray) -> pa.Array:
    """The numbers in decimal as large_string, null where `rows` is not."""
    return pa.array(numbers.astype(np.int64), mask=~rows).cast(pa.large_string())


def real_places(
    queues: tuple[Queue, ...], codes: np.ndarray, rows: np.ndarray | None = None
) -> dict[str, pa.Array | str]:
    """REAL_TOPIC and REAL_QID of messages for these queues, as columns of large_string; null outside `rows` (a mask) if it is given.

    A topic that all messages have is given once, as a text.
    """
    elsewhere = None if rows is None or rows.all() else ~rows
    topics, taken = [topic for topic, _ in queues], pa.array(codes, mask=elsewhere)
    return {
        REAL_TOPIC: topics[0]
        if elsewhere is None and len(set(topics)) == 1
        else pa.array(topics, pa.large_string()).take(taken),
        REAL_QUEUE_ID: pa.array([str(queue_id) for _, queue_id in queues], pa.large_string()).take(taken),
    }


def moved(
    queues: tuple[Queue, ...], codes: np.ndarray, rows: np.ndarray, other: list[Queue], other_codes: np.ndarray
) -> tuple[tuple[Queue, ...], np.ndarray]:
    """The distinct queues and each row's, if the rows of a mask go to other ones."""
    all_codes = codes.astype(np.int64)
    all_codes[rows] = len(queues) + other_codes
    used, renumbered = np.unique(all_codes, return_inverse=True)
    every = (*queues, *other)
    return tuple(every[code] for code in used.tolist()), renumbered.astype(np.int32)
