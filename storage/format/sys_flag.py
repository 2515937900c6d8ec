"""Bits of a message's system flag. Java: MessageSysFlag, CompressionType."""

from __future__ import annotations

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


def has_queue_entry(sys_flag: int) -> bool:
    """Whether a record with this flag is entered in a consume queue: neither prepared nor rolled back."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
