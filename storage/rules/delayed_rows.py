"""Rows that are to be delivered later: their columns `delay_level` and `deliver_at`, judged, and where such rows wait. Pure.

The rules are those of one message (`storage/rules/delays.py`). A row says at most one of the two; 0 and null mean at once. So does a
time that has passed, unless the same rows must make the same messages at any time: then the row goes to the timer, which delivers
it at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.format.arrays import is_valid, sizes_of
from storage.format.delay import SCHEDULE_TOPIC, due_codes
from storage.format.record_block import DUE_IN
from storage.rules.delays import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TOO_FAR_AHEAD,
    DelayWish,
    judge_delays,
)
from storage.rules.row_rules import MessageRules
from storage.rules.row_values import Rejections, read_times_ms

COLUMNS = ("delay_level", "deliver_at")

Queue = tuple[str, int]


class Delays(NamedTuple):
    """What n rows have of it; columns of equal length."""

    waits: np.ndarray
    """int32: 0 = not, level, or −1 = in the timer's topic."""
    properties: dict[str, pa.Array]
    """DELAY, TIMER_DELIVER_MS and TIMER_OUT_MS as large_string, null in rows that have none."""
    tags_codes: np.ndarray
    """int64: DUE_IN and its delay of each row with a level, else 0."""

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
        """Where each row that waits does so, by `waits`: the timer's queue is the last."""
        count = int(self.waits.max(initial=0))
        return [*((SCHEDULE_TOPIC, level) for level in range(count)), (TIMER_TOPIC, 0)]

    def codes(self) -> np.ndarray:
        """Of each row that waits, its place in `queues`."""
        waits = self.waits[self.are_waiting]
        return np.where(waits > 0, waits - 1, len(self.queues) - 1)

    def added_sizes(self, topic_sizes: np.ndarray, queue_digits: np.ndarray) -> np.ndarray:
        """Bytes of properties that waiting needs, of the topic that waits too."""
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
    rules: MessageRules,
    now_ms: int,
) -> Delays | None:
    """The rows' delays; None where no row asks for one. `levels` are 0 where a row asks for none."""
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
        return _asked_delays(levels, is_timed, read_times_ms(time_column, count, 0))
    deliver_ms = np.maximum(read_times_ms(time_column, count, 0), 1)
    wish = DelayWish(levels, is_timed, deliver_ms, body_sizes == 0, parks_overdue=rules.is_repeatable)
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


def _asked_delays(levels: np.ndarray, is_timed: np.ndarray, deliver_ms: np.ndarray) -> Delays:
    """What rows ask a broker for. Java: Message.setDelayTimeLevel, setDeliverTimeMs."""
    count = len(levels)
    properties = {DELAY: decimal_texts(levels, levels > 0), TIMER_DELIVER_MS: decimal_texts(deliver_ms, is_timed)}
    present = {name: values for name, values in properties.items() if values.null_count < count}
    return Delays(((levels > 0) | is_timed).astype(np.int32), present, np.zeros(count, np.int64))


def check_levels(levels: np.ndarray, rejections: Rejections) -> None:
    """A row names no level below 1, which a broker would take for none."""
    rejections.add(
        np.flatnonzero(levels < 0),
        "delay_level",
        lambda row: f"{levels[row]} is negative; 0 or null delivers at once, 1 is the first level",
    )


def decimal_texts(numbers: np.ndarray, rows: np.ndarray) -> pa.Array:
    """The numbers in decimal as large_string, null where `rows` is not."""
    return pa.array(numbers.astype(np.int64), mask=~rows).cast(pa.large_string())


def real_places(queues: tuple[Queue, ...], codes: np.ndarray, rows: np.ndarray | None = None) -> dict[str, pa.Array]:
    """REAL_TOPIC and REAL_QID of messages for these queues, as columns of large_string; null but in `rows` (a mask) if it is given."""
    taken = pa.array(codes, mask=None if rows is None else ~rows)
    return {
        REAL_TOPIC: pa.array([topic for topic, _ in queues], pa.large_string()).take(taken),
        REAL_QUEUE_ID: pa.array([str(queue_id) for _, queue_id in queues], pa.large_string()).take(taken),
    }


def moved(
    queues: tuple[Queue, ...], codes: np.ndarray, rows: np.ndarray, other: list[Queue], other_codes: np.ndarray
) -> tuple[tuple[Queue, ...], np.ndarray]:
    """The distinct queues and each row's, when the rows of a mask go to other ones."""
    all_codes = codes.astype(np.int64)
    all_codes[rows] = len(queues) + other_codes
    used, renumbered = np.unique(all_codes, return_inverse=True)
    every = (*queues, *other)
    return tuple(every[code] for code in used.tolist()), renumbered.astype(np.int32)
