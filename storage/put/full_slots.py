"""Flow control of the timer for rows: which deliver times have so many messages that the timer takes no more.

Java: TimerMessageStore.isReject.

A row is judged by the wheel as it was when its task, or the put's opening, looked: what the same batch brings for a time is not
counted, as a broker counts only what its timer has taken up. Between timerCongestNumEachSlot and twice as many a broker draws;
a row is not refused by chance, because a task that is run again must make the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.files.local_file_system import LocalFileSystem
from storage.format.timer import WHEEL_SLOTS, decode_slots
from storage.messages.delays import is_slot_full
from storage.settings.nouns import TimerConfig

_NO_LIMIT = 2**31 - 1
_NEVER_BY_CHANCE = -1


@dataclass(frozen=True, slots=True)
class FullSlots:
    """A `storage.messages.delays.Congestion`."""

    times_ms: tuple[int, ...]

    def __call__(self, out_ms: np.ndarray) -> np.ndarray:
        return np.isin(out_ms, np.array(self.times_ms, np.int64))


def full_slots(file_system: LocalFileSystem, root: str, timer: TimerConfig) -> FullSlots | None:
    """Those of ROOT/timerwheel; None where the settings set no limit, or nothing is full. Raises OSError."""
    path = f"{root}/timerwheel"
    if timer.timer_congest_num_each_slot >= _NO_LIMIT or not file_system.exists(path):
        return None
    wheel = file_system.open_file(path)
    times: list[int] = []
    for start, end in wheel.data_ranges(0):
        slots = decode_slots(wheel.view(start, end - start).tobytes())
        numbers = start // slots.itemsize + np.arange(len(slots))
        is_full = np.asarray(is_slot_full(slots["count"], timer.timer_congest_num_each_slot, _NEVER_BY_CHANCE))
        found = slots[is_full & (slots["tick"] % WHEEL_SLOTS == numbers)]
        times += (found["tick"] * timer.timer_precision_ms).tolist()
    wheel.close()
    return FullSlots(tuple(times)) if times else None
