"""Bits of a message's system flag. Java: MessageSysFlag, CompressionType."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Flags = TypeVar("Flags", int, np.ndarray)

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
INNER_BATCH = 0x80
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
COMPRESSION_MASK = 0x700


def half_flags(sys_flags: Flags) -> Flags:
    """System flags of halves: no transaction's, so that they have entries in their queue."""
    return sys_flags & ~TRANSACTION_MASK


def committed_flags(sys_flags: Flags) -> Flags:
    """System flags of what is committed."""
    return half_flags(sys_flags) | TRANSACTION_COMMIT


def has_queue_entry(sys_flag: int) -> bool:
    """Whether a record with this flag is entered in a consume queue: neither prepared nor rolled back."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
