"""The units of slots that are due: found in the timer log by way of the wheel, in the order in which they are delivered.

A slot links its units from the newest to the oldest, so a full slot is a long way to go. Where most units of a stretch of the log are
due, the stretch is read as a whole instead; both give the same. Java: TimerMessageStore.dequeue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from storage.delay.timer_log import TimerLog
from storage.delay.timer_wheel import TimerWheel
from storage.format.timer import MAGIC_ROLL, NO_POSITION, UNIT, UNIT_SIZE, due_times_ms, is_unit

PUT_ROWS = 8_192
PUT_BYTES = 32 << 20
_SCAN_WASTE = 8
"""So many units are read for one wanted, before links are followed."""

_Found = list[tuple[np.ndarray, np.ndarray]]


class DueUnits(NamedTuple):
    """Units by tick and, within one, by place."""

    ticks: np.ndarray
    """int64: the slot of each."""
    units: np.ndarray

    @property
    def is_rolled(self) -> np.ndarray:
        """Which ones go back to the timer's queue."""
        return np.asarray(self.units["magic"] & MAGIC_ROLL != 0)

    def before(self, tick: int) -> DueUnits:
        """Those of slots before a tick."""
        count = int(np.searchsorted(self.ticks, tick))
        return DueUnits(self.ticks[:count], self.units[:count])

    def groups(self) -> Iterator[DueUnits]:
        """Whole slots, together PUT_ROWS messages and PUT_BYTES at most; one slot may have more."""
        bytes_before = np.concatenate(([0], np.cumsum(self.units["record_size_bytes"], dtype=np.int64)))
        ends = [*(np.flatnonzero(np.diff(self.ticks)) + 1).tolist(), len(self.ticks)]
        start = 0
        for end, after in zip(ends, [*ends[1:], None], strict=True):
            if after is None or after - start > PUT_ROWS or bytes_before[after] - bytes_before[start] > PUT_BYTES:
                if end > start:
                    yield DueUnits(self.ticks[start:end], self.units[start:end])
                start = end

    def puts(self) -> Iterator[np.ndarray]:
        """Masks of the units in order, each of about PUT_ROWS and PUT_BYTES at most."""
        sizes = np.cumsum(self.units["record_size_bytes"], dtype=np.int64)
        numbers = np.maximum.accumulate(np.maximum(np.arange(len(self.units)) // PUT_ROWS, sizes // PUT_BYTES))
        for number in np.unique(numbers).tolist():
            yield numbers == number


def due_units(wheel: TimerWheel, log: TimerLog, start_tick: int, end_tick: int, precision_ms: int) -> DueUnits:
    """All units of the slots of ticks [start, end)."""
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
    """The slots' units, out of all in a stretch of the log."""
    found: _Found = []
    for run in log.units_between(first, last):
        rows = np.isin(due_times_ms(run.units) // precision_ms, slots["tick"])
        found.append((run.positions[rows], run.units[rows]))
    return _joined(found)


def _linked(log: TimerLog, slots: np.ndarray, precision_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """The slots' units from the newest to the oldest of each, a step in all slots at once."""
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
