"""Consume queue entry: where one message of a queue lies in the commit log.

    0                   8            12          20
    | commitlog_offset  | size_bytes | tags_code |   big-endian

A queue file is an array of them; the entry's number is the queue offset. Java: ConsumeQueue (CQ_STORE_UNIT_SIZE = 20).
With storeType=defaultRocksDB an entry is a value in RocksDB, and its key names the queue and the offset:

    key    | topic length (4) | 1 | topic | 1 | queue id (4) | 1 | queue offset (8)     value  | ENTRY (20) | store time (8)
    key    | topic length (4) | 1 | topic | 1 | max or min | 1 | queue id (4)           value  | commitlog_offset (8) | queue offset (8)

The second kind lies in the column family `offset`, and names a queue's last entry, or its first. The key with RocksDB's own topic has
the log offset up to which the entries go. Java: RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable.

The unit of a batch queue begins like it, and says which messages its record holds. Java: BatchConsumeQueue (CQ_STORE_UNIT_SIZE = 46).

    0                   8            12          20              28            36              38                 42         46
    | commitlog_offset  | size_bytes | tags_code | store_time_ms | base_offset | message_count | compacted_offset | reserved |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

ENTRY = np.dtype(
    [
        ("commitlog_offset", ">i8"),  # first byte of the message record
        ("size_bytes", ">i4"),  # whole record
        (
            "tags_code",
            ">i8",
        ),  # String.hashCode of TAGS; deliver time in the schedule topic; address with ConsumeQueueExt
    ]
)
ENTRY_SIZE = ENTRY.itemsize
ROCKSDB_ENTRY = np.dtype([("entry", ENTRY), ("store_time_ms", ">i8")])
_ROCKSDB_OWN_TOPIC = "CHECKPOINT_TOPIC"  # Java: TopicValidator.RMQ_SYS_ROCKSDB_OFFSET_TOPIC
_ROCKSDB_LAST = b"max"
BATCH_UNIT = np.dtype(
    [
        *((name, ENTRY[name]) for name in ENTRY.names or ()),
        ("store_time_ms", ">i8"),
        ("base_offset", ">i8"),  # queue offset of the record's first message
        ("message_count", ">i2"),
        ("compacted_offset", ">i4"),  # always -1
        ("reserved", "V4"),
    ]
)
BATCH_UNIT_SIZE = BATCH_UNIT.itemsize
PRE_BLANK = np.array((0, 2**31 - 1, 0), ENTRY)  # fills the room before a queue's first message
_HALF_BITS = 32
_MAX_HOLE_START = 2**31 - 1
MAX_EXT_ADDRESS = -(2**31) - 1  # a tags code at or below it is an address in consumequeue_ext
_LONG_MIN = -(2**63)
MAX_EXT_POSITION = MAX_EXT_ADDRESS - _LONG_MIN  # Java: ConsumeQueueExt.MAX_REAL_OFFSET


def decode_entries(buffer: bytes | memoryview | np.ndarray) -> np.ndarray:
    """All entries of a whole number of entries, without copying."""
    return np.frombuffer(buffer, ENTRY)


def is_entry(entries: np.ndarray) -> np.ndarray:
    """Java's test for a written entry: offset ≥ 0 and size > 0. Pre-blank entries pass, stale ones too."""
    return (entries["commitlog_offset"] >= 0) & (entries["size_bytes"] > 0)


def is_batch_unit(units: np.ndarray) -> np.ndarray:
    """Java's test for a written unit of a batch queue. Stale units pass."""
    return np.asarray(is_entry(units) & (units["base_offset"] >= 0) & (units["message_count"] > 0))


def is_pre_blank(entries: np.ndarray) -> np.ndarray:
    """Entries that only fill room: before a queue's first message, or in a hole between two messages."""
    return (entries["commitlog_offset"] == 0) & (entries["size_bytes"] == 2**31 - 1)


def hole_filler(start: int) -> np.ndarray:
    """The entry that fills a hole which begins at queue offset `start`: Java's pre-blank entry, with the start in the upper half of the
    tags code.

    So any entry of a hole shows where the last message before it is. Java only reads the lower half when it compares tags. A start
    of more than 31 bits is not stored.
    """
    blank = PRE_BLANK.copy()
    blank["tags_code"] = start << _HALF_BITS if start <= _MAX_HOLE_START else 0
    return blank


def hole_start(filler: np.ndarray) -> int:
    """The queue offset at which the hole of a `hole_filler` begins; 0 for Java's pre-blank entry, which does not name it."""
    return max(0, int(filler["tags_code"]) >> _HALF_BITS)


EXT_UNIT = np.dtype(
    [
        ("size_bytes", ">i2"),  # whole unit, bit map included
        ("tags_code", ">i8"),
        ("store_time_ms", ">i8"),
        ("bit_map_size_bytes", ">i2"),
    ]
)


def is_ext_address(tags_codes: np.ndarray) -> np.ndarray:
    """Which tags codes are addresses in consumequeue_ext. Java: ConsumeQueueExt.isExtAddr."""
    return np.asarray(tags_codes <= MAX_EXT_ADDRESS)


def ext_address(position: int) -> int:
    """The tags code for a byte position in consumequeue_ext. Java: ConsumeQueueExt.decorate."""
    return position + _LONG_MIN


def ext_position(address: int) -> int:
    """Byte position in consumequeue_ext that a tags code at or below MAX_EXT_ADDRESS stands for. Java: ConsumeQueueExt.unDecorate."""
    return address - _LONG_MIN


def may_be_torn(tags_codes: np.ndarray) -> np.ndarray:
    """Which codes look like a half-written entry: a page may end four bytes into the code."""
    codes = tags_codes.astype(np.int64)
    return (codes & (1 << _HALF_BITS) - 1 == 0) & (codes >= -(1 << _HALF_BITS))


def rocksdb_prefix(topic: str, queue_id: int) -> bytes:
    """The key of a queue's entry in RocksDB without the queue offset, which follows with 8 bytes, big-endian."""
    name = topic.encode()
    return b"\x01".join((len(name).to_bytes(4, "big"), name, queue_id.to_bytes(4, "big", signed=True), b""))


class RocksDBOffset(NamedTuple):
    """The queue offset after a queue's last entry, as the column family `offset` has it."""

    topic: str
    queue_id: int
    end: int


def rocksdb_ends(items: Iterable[tuple[bytes, bytes]]) -> tuple[list[RocksDBOffset], int]:
    """The ends of all queues in the column family `offset`, and the log offset up to which the entries go. Keys of another form are
    passed over, as in Java (RocksDBConsumeQueueOffsetTable.forEach).
    """
    ends, dispatched = [], 0
    for key, value in items:
        length = int.from_bytes(key[:4], "big")
        topic, rest = key[5 : 5 + length].decode(errors="replace"), key[5 + length :]
        if rest[:5] != b"\x01".join((b"", _ROCKSDB_LAST, b"")) or len(rest) != 9:
            continue
        if topic == _ROCKSDB_OWN_TOPIC:
            dispatched = int.from_bytes(value[:8], "big")
        elif len(value) == 16:
            queue_id = int.from_bytes(rest[5:], "big", signed=True)
            ends.append(RocksDBOffset(topic, queue_id, 1 + int.from_bytes(value[8:], "big", signed=True)))
    return ends, dispatched
