"""Delay levels (`messageDelayLevel`), and the files of RocketMQ's timer, which keeps messages with a delivery time until they are due.

Java: MessageStoreConfig, DefaultMessageStore.parseDelayLevel; Slot, TimerLog, TimerCheckpoint.

The wheel (ROOT/timerwheel, 38,707,200 bytes) has a slot for each tick of fourteen days, number (tick mod 1,209,600):

    0      8                16              24      28     32
    | tick | first_position | last_position | count | magic |                big-endian; tick = time / precision

The log (ROOT/timerlog/, 20 digits) has a unit for each message that waits, linked backwards to the one before it in its slot:

    0            4                   12      16              24         28
    | size_bytes | previous_position | magic | write_time_ms | delay_ms |
    28                 36                  40           44         52
    | commitlog_offset | record_size_bytes | topic_hash | reserved |

A unit's slot is that of write_time_ms + delay_ms. Positions count bytes of the whole log. No unit spans two files; what is left at a
file's end, at least 16 bytes, begins with a filler: | rest_bytes 4 | zeros 8 | BLANK_MAGIC 4 |.

The checkpoint (ROOT/config/timercheck, a page) has seven longs, see `TimerCheckpoint`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from storage.format.arrays import struct_of

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_LEVEL = re.compile("[0-9]{1,10}[smhd]")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@lru_cache(maxsize=8)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in milliseconds; level 1 is element 0.

    Raises ValueError where an element is not a number followed by s, m, h or d, or is more than the years that a time may lie ahead.
    """
    delays = []
    for element in text.split():
        if not _LEVEL.fullmatch(element):
            raise ValueError(f"{element!r:.40} is not a number of up to 10 digits followed by s, m, h or d")
        delays.append(int(element[:-1]) * _UNIT_MS[element[-1]])
    return tuple(delays)


def deliver_time_ms(level: int, store_time_ms: int, delays_ms: tuple[int, ...]) -> int:
    """When a message of that level is due; levels above the last count as the last (Java: computeDeliverTimestamp)."""
    return int(due_codes(np.array([level]), store_time_ms, delays_ms)[0])


def due_codes(levels: np.ndarray, from_ms: np.ndarray | int, delays_ms: tuple[int, ...]) -> np.ndarray:
    """The tags codes of messages in the schedule topic, int64: when each is due by its level, from 1 on;
    one above the last is the last.

    `from_ms` is the store time, or a substitute. Used for records that are read and for those that are made.
    Java: CommitLog.checkMessageAndReturnSize, ScheduleMessageService.computeDeliverTimestamp.
    """
    return np.asarray(np.array(delays_ms, np.int64)[np.clip(levels, 1, len(delays_ms)) - 1] + from_ms)


SLOT = np.dtype(
    [
        ("tick", ">i8"),  # deliver time / precision
        ("first_position", ">i8"),  # of the slot's oldest unit in the timer log
        ("last_position", ">i8"),  # of its newest
        ("count", ">i4"),  # messages less deletions
        ("magic", ">i4"),  # unused
    ]
)
assert SLOT.itemsize == 32

UNIT = np.dtype(
    [
        ("size_bytes", ">i4"),
        ("previous_position", ">i8"),  # −1: the first of its slot
        ("magic", ">i4"),
        ("write_time_ms", ">i8"),  # when it was entered, in whole ticks
        ("delay_ms", ">i4"),
        ("commitlog_offset", ">i8"),  # of the record in the timer's topic
        ("record_size_bytes", ">i4"),
        ("topic_hash", ">i4"),  # String.hashCode of the real topic
        ("reserved", ">i8"),
    ]
)
UNIT_SIZE = UNIT.itemsize
assert UNIT_SIZE == 52

FILLER = np.dtype([("rest_bytes", ">i4"), ("zeros", ">i8"), ("magic", ">i4")])
FILLER_SIZE = FILLER.itemsize
_FILLER_STRUCT = struct_of(FILLER)
BLANK_MAGIC = 0xCBD43194 - (1 << 32)

MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_DELETE = 1, 2, 4
"""Bits of a unit's magic: always; put back at its time, because it waits longer than the window; deletes another of its slot."""
_MAGIC_BITS = 0xF

DAY_SECONDS = 86_400
SLOTS_OF_WEEK = 7 * DAY_SECONDS
"""Java: slotsTotal, the reach of the wheel to either side."""
WHEEL_SLOTS = 2 * SLOTS_OF_WEEK
BLANK_SLOTS = 60
PRECISIONS_MS = (100, 200, 500, 1_000)
NO_POSITION = -1


def decode_slots(buffer: bytes | bytearray | memoryview | np.ndarray) -> np.ndarray:
    """All slots of a wheel, without copying; they may be written to if the buffer may."""
    return np.frombuffer(buffer, SLOT)


def decode_units(buffer: bytes | memoryview | np.ndarray) -> np.ndarray:
    """The units of a log file, or what is in their places, without the rest that holds no whole unit. Without copying."""
    return np.frombuffer(buffer, UNIT, len(buffer) // UNIT_SIZE)


def is_unit(units: np.ndarray) -> np.ndarray:
    """Which are units, not fillers or free space. Java: TimerMessageStore.isMagicOK, recoverAndRevise."""
    magic = units["magic"]
    return (units["size_bytes"] == UNIT_SIZE) & (magic & ~_MAGIC_BITS == 0)


def is_filler(units: np.ndarray) -> np.ndarray:
    """Which are fillers."""
    return np.asarray(units["magic"] == BLANK_MAGIC)


def encode_filler(rest_bytes: int) -> bytes:
    """The mark in front of a file's last `rest_bytes` bytes. Java: TimerLog.append."""
    return _FILLER_STRUCT.pack(rest_bytes, 0, BLANK_MAGIC)


def due_times_ms(units: np.ndarray) -> np.ndarray:
    """When each unit's slot is due, int64."""
    return units["write_time_ms"].astype(np.int64) + units["delay_ms"]


def effective_precision_ms(configured_ms: int) -> int:
    """The length of a tick for a configured timerPrecisionMs. Java: MessageStoreConfig.setTimerPrecisionMs."""
    return max((known for known in PRECISIONS_MS if known <= configured_ms), default=PRECISIONS_MS[0])


def effective_window(configured_slots: int) -> int:
    """The greatest number of ticks ahead that a message enters the wheel, for timerRollWindowSlot. Java: TimerMessageStore."""
    greatest = SLOTS_OF_WEEK - BLANK_SLOTS
    return configured_slots if 2 <= configured_slots <= greatest else greatest


# The checkpoint

CHECKPOINT = np.dtype(
    [
        ("last_read_time_ms", ">i8"),
        ("log_position", ">i8"),
        ("queue_offset", ">i8"),
        ("master_queue_offset", ">i8"),
        ("state_version", ">i8"),
        ("version_time_ms", ">i8"),
        ("version_counter", ">i8"),
    ]
)
CHECKPOINT_PAGE_BYTES = 4096
_CHECKPOINT_STRUCT = struct_of(CHECKPOINT)


class TimerCheckpoint(NamedTuple):
    """How far the timer is. The last three are its DataVersion, by which slaves detect a change."""

    last_read_time_ms: int = 0
    """Everything due before this time has been delivered."""
    log_position: int = 0
    """How far log and wheel are on the disk."""
    queue_offset: int = 0
    """The first message of the timer's queue that has not been entered."""
    master_queue_offset: int = 0
    """The master's; a broker starts at the smaller one, unless the log shows more."""
    state_version: int = 0
    version_time_ms: int = 0
    version_counter: int = 0


def decode_timer_checkpoint(page: bytes) -> TimerCheckpoint:
    """The seven fields; a missing or too short page reads as filled up with zeros."""
    return TimerCheckpoint(*_CHECKPOINT_STRUCT.unpack_from(page.ljust(CHECKPOINT.itemsize, b"\0")))


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """One page of 4096 bytes."""
    return _CHECKPOINT_STRUCT.pack(*checkpoint).ljust(CHECKPOINT_PAGE_BYTES, b"\0")
