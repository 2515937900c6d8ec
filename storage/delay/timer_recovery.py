"""Restores wheel, log and queue offset as the last timer (ours or Apache's) left them. Java: TimerMessageStore.recover.

1. The log is walked from a little before the place where the checkpoint says that log and wheel are on the disk; data after its end is
   cut.
2. The found units are entered in the wheel; slots that end beyond the log's end get what the log has, or nothing.
3. The queue continues where the checkpoint says that everything is entered. The units of step 1 show which later messages are
   entered too, so that none is entered twice. If the log is shorter than the checkpoint says, the queue continues after the message of
   the log's last unit, or at its first message; messages due before the last delivery are not entered again then.

A store that has followed another one starts again with the queue's first message: wheel and log are deleted, and messages that its
master had delivered by its own account (`storage/tables/masters.py`) are not entered.

Departures. Java starts at the message after the log's last unit: messages that were never entered because they were due are delivered
twice, and after a crash those entered since the last flush too. Without a wheel Java walks two files of the log, here all.
Java drops messages that were due more than seven days ago; here they are delivered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.delay.timer_files import TimerLog, TimerWheel, UnitRun
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import (
    UNIT,
    UNIT_SIZE,
    WHEEL_SLOTS,
    TimerCheckpoint,
    due_times_ms,
    effective_precision_ms,
)
from storage.rules.delays import TIMER_TOPIC
from storage.store import MessageStore
from storage.tables.masters import (
    FollowedTimer,
    read_followed_timer,
    read_timer_checkpoint,
    write_timer_checkpoint,
)

_LOOK_BACK_BYTES = UNIT_SIZE << 16


class RecoveredTimer(NamedTuple):
    """Where a timer continues."""

    wheel: TimerWheel
    log: TimerLog
    checkpoint: TimerCheckpoint
    queue_offset: int
    """The first message to enter, unless it is one of `entered`."""
    entered: np.ndarray
    """Units after `checkpoint.log_position`: of messages that `checkpoint.queue_offset` does not cover yet."""
    log_is_whole: bool
    """Whether the timer log reaches as far as the checkpoint says."""
    followed: FollowedTimer | None = None
    """How far the former master's timer was, if this store has followed it and its own timer starts anew."""


def recover_timer(store: MessageStore, file_system: LocalFileSystem) -> RecoveredTimer:
    """Read and mend. On the disk only the log's tail changes, unless the timer starts anew.

    Raises StoreRefusedError for files of a wrong length, StateFileError.
    """
    timer = store.config.timer
    precision_ms = effective_precision_ms(timer.timer_precision_ms)
    followed = read_followed_timer(file_system, store.root)
    if followed is not None and followed.is_later(read_timer_checkpoint(file_system, store.root)):
        return _anew(store, file_system, followed)
    wheel = TimerWheel(file_system, store.root)
    log = TimerLog(file_system, store.root, timer.mapped_file_size_timer_log)
    checkpoint = read_timer_checkpoint(file_system, store.root)
    is_known = wheel.was_there and checkpoint.log_position <= log.files_end
    begin = max(0, checkpoint.log_position - min(log.file_size_bytes, _LOOK_BACK_BYTES)) if is_known else 0
    runs = list(log.walk(begin))
    is_whole = _reaches(log, checkpoint)
    log.cut()
    first_tick = checkpoint.last_read_time_ms // precision_ms
    _revise(wheel, runs, precision_ms)
    _mend_slots_behind(wheel, log, first_tick, precision_ms)
    found = [run.units[run.positions >= checkpoint.log_position] for run in runs] if is_whole else []
    entered = np.concatenate([np.empty(0, UNIT), *found])
    offset = min(checkpoint.queue_offset, checkpoint.master_queue_offset)
    if not is_whole:
        offset = min(offset, _behind_last_unit(store, log))
    return RecoveredTimer(wheel, log, checkpoint, offset, entered, is_whole)


def _anew(store: MessageStore, file_system: LocalFileSystem, followed: FollowedTimer) -> RecoveredTimer:
    """Start anew in a store that has followed another one: its own wheel and log, if any, are older than its master's deliveries.

    The checkpoint forgets them first: a broker that opens the store before all is entered again starts with the queue, too.
    """
    checkpoint = read_timer_checkpoint(file_system, store.root)
    checkpoint = checkpoint._replace(log_position=0, queue_offset=0, master_queue_offset=0)
    write_timer_checkpoint(file_system, store.root, checkpoint)
    TimerLog(file_system, store.root, store.config.timer.mapped_file_size_timer_log).drop()
    TimerWheel(file_system, store.root).drop()
    log = TimerLog(file_system, store.root, store.config.timer.mapped_file_size_timer_log)
    nothing = np.empty(0, UNIT)
    first = store.min_offset(TIMER_TOPIC, 0)
    return RecoveredTimer(TimerWheel(file_system, store.root), log, checkpoint, first, nothing, True, followed)


def _reaches(log: TimerLog, checkpoint: TimerCheckpoint) -> bool:
    """Whether the log reaches the checkpoint, which may name the next file's start if the log ends in the filler before it."""
    next_file = -(-log.end // log.file_size_bytes) * log.file_size_bytes
    is_at_filler = log.end >= next_file - 2 * UNIT_SIZE and checkpoint.log_position == next_file
    return log.end >= checkpoint.log_position or is_at_filler


def _revise(wheel: TimerWheel, runs: list[UnitRun], precision_ms: int) -> None:
    if not runs:
        return
    positions = np.concatenate([run.positions for run in runs])
    units = np.concatenate([run.units for run in runs])
    ticks = due_times_ms(units) // precision_ms
    recent = ticks > ticks.max() - WHEEL_SLOTS
    wheel.revise(ticks[recent], positions[recent])


def _mend_slots_behind(wheel: TimerWheel, log: TimerLog, first_tick: int, precision_ms: int) -> None:
    """Slots whose newest unit is not in the log end at the newest that is."""
    broken = wheel.behind(log.end, first_tick)
    if not len(broken):
        return
    wheel.empty(broken["tick"].astype(np.int64))
    for run in log.units_between(max(0, int(broken["first_position"].min())), log.end):
        ticks = due_times_ms(run.units) // precision_ms
        rows = np.isin(ticks, broken["tick"])
        wheel.revise(ticks[rows], run.positions[rows])


def _behind_last_unit(store: MessageStore, log: TimerLog) -> int:
    """The queue offset after the message of the log's last unit; the queue's first one if that is not found.

    Java: reviseQueueOffset.
    """
    unit = log.last_unit()
    if unit is None:
        return store.min_offset(TIMER_TOPIC, 0)
    try:
        message = store.message_by_commitlog_offset(int(unit["commitlog_offset"]))
    except (OffsetOutOfRangeError, CorruptRecordError):
        return store.min_offset(TIMER_TOPIC, 0)
    return message.queue_offset + 1 if message.topic == TIMER_TOPIC else store.min_offset(TIMER_TOPIC, 0)
