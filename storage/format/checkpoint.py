"""The checkpoint page: what is known to be on disk. Java: StoreCheckpoint (4096 bytes, five longs)."""

from __future__ import annotations

import struct
from typing import NamedTuple

PAGE_SIZE = 4096
_FIELDS = struct.Struct(">5q")


class Checkpoint(NamedTuple):
    """Store times (ms) up to which log, queues and index are known flushed, and two replication offsets."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def recovery_timestamp(self) -> int:
        """An unclean recovery starts at a log file whose first record is not younger (Java: getMinTimestamp)."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - 3_000)


def decode_checkpoint(page: bytes) -> Checkpoint:
    """The five fields; a page shorter than they are reads as zero, as a missing file does."""
    return Checkpoint(*_FIELDS.unpack_from(page)) if len(page) >= _FIELDS.size else Checkpoint()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """One page of 4096 bytes."""
    return _FIELDS.pack(*checkpoint).ljust(PAGE_SIZE, b"\0")
