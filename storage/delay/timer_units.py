"""Which unit of the timer log a message gets, and in which slot it waits. Pure. Java: TimerMessageStore.doEnqueue."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.delay.timer_records import TimerRecords
from storage.format.java_hash import string_hashes
from storage.format.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, UNIT, UNIT_SIZE, due_times_ms


class WheelTime(NamedTuple):
    """What decides over slots."""

    now_tick: int
    read_tick: int
    """The first slot that has not been delivered."""
    precision_ms: int
    window: int
    """How many ticks ahead a message may wait."""


def plan_units(timed: TimerRecords, enters: np.ndarray, time: WheelTime) -> tuple[np.ndarray, np.ndarray]:
    """The messages' units, but for the links between them, and the ticks of their slots.

    A message that is due already waits in the first slot that has not been delivered. One beyond the window stops on its way, after
    a window or, so that enough is left for the second round, half of one. One that does not enter gets a slot that is over.
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
    """Which units are those of messages that stand at their places and ask for these times.

    A log that was cut may hold other messages there since. A rolled unit does not say its message's time.
    """
    due_ms, write_ms = due_times_ms(units), units["write_time_ms"].astype(np.int64)
    was_due = (out_ms < due_ms) & (due_ms <= write_ms)
    return (units["magic"] & MAGIC_ROLL != 0) | (out_ms == due_ms) | was_due


def unit_changes(magic: np.ndarray) -> np.ndarray:
    """What units add to their slots' and topics' counts: a message one, a deletion minus one."""
    return np.where(magic & MAGIC_DELETE, -1, 1).astype(np.int32)
