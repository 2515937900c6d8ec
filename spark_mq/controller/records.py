"""The records of a controller's journal: pure.

    0       4      8      12         20
    | magic | size | crc  | sequence | size | event | size | event …

All integers are big-endian. `size` at 4 counts what stands behind the header, `crc` is the CRC-32 of sequence and that. A record is one
decision with all of its events, so a torn one is no decision at all. Sequences go up by one: bytes that an older journal left behind do
not pass for what comes next.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_mq.controller.events import Event, decode_event, encode_event
from spark_mq.remoting import BodyError

MAGIC = b"SMQC"
_HEADER = struct.Struct(">4sIIQ")
_SIZE = struct.Struct(">I")
_SEQUENCE_PLACE = 12


class Record(NamedTuple):
    """One decision, and where its record ends."""

    sequence: int
    events: tuple[Event, ...]
    end: int


class Records(NamedTuple):
    """What stands in a journal's bytes."""

    records: tuple[Record, ...]
    end: int
    """Where the last good record ends."""
    damage: int | None
    """Where something is wrong that is no torn end: good records stand behind it, or it is good and says what is not known here."""


def encode_record(sequence: int, events: Sequence[Event]) -> bytes:
    """A record of these events."""
    encoded = [encode_event(event) for event in events]
    payload = b"".join(_SIZE.pack(len(content)) + content for content in encoded)
    crc = zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8)))
    return _HEADER.pack(MAGIC, len(payload), crc, sequence) + payload


def read_records(content: bytes) -> Records:
    """All good records from the beginning on, up to the first that is none."""
    records: list[Record] = []
    position = 0
    while (found := _frame_at(content, position)) is not None:
        if records and found.sequence != records[-1].sequence + 1:
            break
        events = _events(content, position + _HEADER.size, found.end)
        if events is None:
            return Records(tuple(records), position, position)
        records.append(Record(found.sequence, events, found.end))
        position = found.end
    last = records[-1].sequence if records else -1
    damage = position if any(each.sequence > last for each in _frames_from(content, position)) else None
    return Records(tuple(records), position, damage)


class _Frame(NamedTuple):
    """A record whose checksum is right."""

    sequence: int
    end: int


def _frames_from(content: bytes, position: int) -> Iterator[_Frame]:
    """Records whose checksums are right that begin there or behind, wherever."""
    at = content.find(MAGIC, position)
    while at >= 0:
        found = _frame_at(content, at)
        if found is not None:
            yield found
        at = content.find(MAGIC, at + 1)


def _frame_at(content: bytes, position: int) -> _Frame | None:
    """The record that begins there; None where none does, or not all of it is there."""
    if position + _HEADER.size > len(content):
        return None
    magic, size, crc, sequence = _HEADER.unpack_from(content, position)
    end = position + _HEADER.size + size
    if magic != MAGIC or end > len(content):
        return None
    found = zlib.crc32(memoryview(content)[position + _SEQUENCE_PLACE : end])
    return _Frame(sequence, end) if found == crc else None


def _events(content: bytes, position: int, end: int) -> tuple[Event, ...] | None:
    events = []
    while position < end:
        if position + _SIZE.size > end:
            return None
        (size,) = _SIZE.unpack_from(content, position)
        position += _SIZE.size
        if position + size > end:
            return None
        try:
            events.append(decode_event(content[position : position + size]))
        except BodyError:
            return None
        position += size
    return tuple(events)
