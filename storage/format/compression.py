"""Bodies that the client compressed: zlib, LZ4 frame, Zstandard. Java: CompressorFactory, MessageSysFlag.getCompressionType."""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from storage.errors import CorruptRecordError
from storage.format.sys_flag import COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD


def decompress(body: bytes | memoryview, sys_flag: int) -> bytes:
    """A compressed body in the clear, by the type in its sysFlag (0 with the compressed bit set is zlib).

    Raises CorruptRecordError where the bytes are not of that type or are cut short.
    """
    compression = sys_flag & COMPRESSION_MASK
    try:
        if compression in (0, COMPRESSION_ZLIB):
            return zlib.decompress(body)
        if compression == COMPRESSION_LZ4:
            plain: bytes = lz4.frame.decompress(body)
            return plain
        if compression == COMPRESSION_ZSTD:
            stream = zstandard.ZstdDecompressor().decompressobj()
            plain = stream.decompress(body)
            if not stream.eof:
                raise CorruptRecordError("body", 0, "a whole Zstandard frame", "one that is cut short")
            return plain
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise CorruptRecordError("body", 0, f"bytes compressed as sysFlag {sys_flag:#x} says", str(error)) from error
    raise CorruptRecordError("sysFlag", 0, "compression type 0 to 3", compression >> 8)
