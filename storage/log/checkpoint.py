"""The checkpoint: what is known to be on the disk. Read at opening, written after everything that it covers is synced.

A page of 4096 bytes with six longs. Java: StoreCheckpoint.

The sixth, since 5.5.0, is the log offset of the last record whose queue entry is on the disk. After an unclean stop that broker begins
in the log file where it lies; with enableAcceleratedRecovery at that record, and a 0 stops it. So a value must never be where no record
begins, nor ahead of the queues; 0, or less, makes the broker compare times, as older ones do. Those neither read nor write it.

A store does not say which release opens it. So the position is written if a broker has written one, or if the named release reads
it. −1 is ours: the position is unknown now, and a broker has written one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from storage.failpoints import reach
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem

PAGE_SIZE = 4096
_FIELDS = struct.Struct(">6q")
_UNKNOWN_NOW = -1


class Checkpoint(NamedTuple):
    """Store times (ms) up to which log, queues and index are known flushed, two replication offsets, and a place in the log."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0
    """The last record whose queue entry is on the disk; 0 or less = unknown."""

    @property
    def recovery_timestamp(self) -> int:
        """An unclean recovery starts at a log file whose first record is not younger (Java: getMinTimestamp)."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - 3_000)

    def queue_position(self, record: int | None, *, is_read: bool = False) -> int:
        """The next `logics_physical_offset`, where that record (None = unknown) is the last one whose queue entry is on the disk.

        `is_read`: the release of the store's broker reads it. The log's first byte is a record that a broker takes for unknown.
        """
        if not is_read and not self.logics_physical_offset:
            return 0
        return record if record is not None and record > 0 else _UNKNOWN_NOW


def decode_checkpoint(page: bytes) -> Checkpoint:
    """The six fields; a too short page reads as zero, as a missing file does."""
    return Checkpoint(*_FIELDS.unpack_from(page)) if len(page) >= _FIELDS.size else Checkpoint()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """One page of 4096 bytes."""
    return _FIELDS.pack(*checkpoint).ljust(PAGE_SIZE, b"\0")


def read_checkpoint(file_system: FileSystem, root: str) -> Checkpoint:
    """The checkpoint of a store; all zero if the file is missing or short, as Java reads it."""
    return decode_checkpoint(file_system.read_file(f"{root}/checkpoint") or b"")


def write_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: Checkpoint) -> None:
    """Overwrite the page in place and sync it; 48 bytes of one sector, as Java does."""
    path = f"{root}/checkpoint"
    page = encode_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.create_file(path, len(page))
        file_system.sync(root)
    file_system.write(path, 0, page)
    reach("checkpoint-written")
    file_system.sync(path)
