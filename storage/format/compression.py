"""Bodies that the client compressed: zlib, LZ4 frame, Zstandard. Java: CompressorFactory, MessageSysFlag.getCompressionType."""

from __future__ import annotations

import zlib
from typing import Protocol

import lz4.frame
import zstandard

from storage.errors import CorruptRecordError
from storage.format.sys_flag import COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD

PLAIN_BODY_LIMIT_BYTES = 64 << 20
"""What a body may grow to: sixteen times what a producer sends unless told otherwise. A few bytes of Zstandard say gigabytes."""
COMPRESSION_LEVEL = 5
"""Of zlib and Zstandard. Java: DefaultMQProducer.compressLevel."""
_STEP_BYTES = 1 << 10  # of input; no step makes more than a few dozen MiB of it


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def compress(body: bytes, compression: int, level: int = COMPRESSION_LEVEL) -> bytes:
    """A body as a client sends it compressed; `compression` is COMPRESSION_ZLIB, _LZ4 or _ZSTD. LZ4 has no levels, as in Java."""
    if compression == COMPRESSION_ZLIB:
        return zlib.compress(body, level)
    if compression == COMPRESSION_LZ4:
        return bytes(lz4.frame.compress(body))
    if compression == COMPRESSION_ZSTD:
        return zstandard.ZstdCompressor(level).compress(body)
    raise ValueError(f"{compression:#x} is no compression type")


def decompress(body: bytes | memoryview, sys_flag: int) -> bytes:
    """A compressed body in the clear, by the type in its sysFlag (0 with the compressed bit set is zlib).

    Raises CorruptRecordError where the bytes are not of that type, are cut short, or are more than PLAIN_BODY_LIMIT_BYTES in the clear.
    Departure: Java has no limit, and a consumer of such a body runs out of memory.
    """
    compression = sys_flag & COMPRESSION_MASK
    try:
        if compression in (0, COMPRESSION_ZLIB):
            return _decompressed(body, zlib.decompressobj())
        if compression == COMPRESSION_LZ4:
            return _decompressed(body, lz4.frame.LZ4FrameDecompressor())
        if compression == COMPRESSION_ZSTD:
            return _decompressed(body, zstandard.ZstdDecompressor().decompressobj())
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise CorruptRecordError("body", 0, f"bytes compressed as sysFlag {sys_flag:#x} says", str(error)) from error
    raise CorruptRecordError("sysFlag", 0, "compression type 0 to 3", compression >> 8)


def _decompressed(body: bytes | memoryview, stream: _Decompressor) -> bytes:
    """All that the stream makes of the body; what stands behind its end is passed over."""
    pieces, size = [], 0
    for start in range(0, len(body), _STEP_BYTES):
        pieces.append(stream.decompress(bytes(body[start : start + _STEP_BYTES])))
        size += len(pieces[-1])
        if size > PLAIN_BODY_LIMIT_BYTES:
            raise CorruptRecordError(
                "body", 0, f"at most {PLAIN_BODY_LIMIT_BYTES} bytes decompressed", f"{size} or more"
            )
        if stream.eof:
            return b"".join(pieces)
    raise CorruptRecordError("body", 0, "a whole compressed stream", "one that is cut short")
