"""Commit log record, one at a time, its system flag, compressed body and message id.

Java: MessageDecoder, MessageExtEncoder, CommitLog.checkMessageAndReturnSize.

    0      4       8          12         16     20             28                 36         40
    | size | magic | body_crc | queue_id | flag | queue_offset | commitlog_offset | sys_flag |
    40               48                48 + B           56 + B                56 + B + S         60 + B + S
    | born_time_ms   | born host (B)   | store_time_ms  | store host (S)      | reconsume_times  |
    60 + B + S                      68 + B + S
    | prepared_transaction_offset   | body length (4), body | topic length (1; V2: 2), topic | properties length (2), properties

B and S are 8 (IPv4 address and port) or 20 (IPv6), by sysFlag bits 4 and 5. V2 records (magic …AB) have two bytes of
topic length. If a record does not fit into a file's rest, that has a blank filler: 4 bytes size, 4 bytes magic.
With `enabledAppendPropCRC` the last 20 bytes are a property with the sum over all before them (`properties.py`).
The body of an inner batch (BatchCQ) holds messages of its own: `batch_items.py`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import lz4.frame
import numpy as np
import pyarrow as pa
import zstandard

from storage.errors import CorruptMessageError, CorruptRecordError
from storage.format.arrays import body_crc, struct_of
from storage.format.properties import CRC_NAME, CRC_SIZE, decode_properties, stated_crc

Flags = TypeVar("Flags", int, np.ndarray)

# Bits of the system flag. Java: MessageSysFlag, CompressionType.
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40  # the body is a batch, whose messages a consumer gets
INNER_BATCH = 0x80
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
COMPRESSION_MASK = 0x700


def half_flags(sys_flags: Flags) -> Flags:
    """System flags of halves: without transaction bits, so that they have queue entries."""
    return sys_flags & ~TRANSACTION_MASK


def committed_flags(sys_flags: Flags) -> Flags:
    """System flags of committed messages."""
    return half_flags(sys_flags) | TRANSACTION_COMMIT


def has_queue_entry(sys_flag: int) -> bool:
    """Whether a record with this flag is entered in a consume queue: neither prepared nor rolled back."""
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_SIZE = 8  # at least this much stays free for the filler at a file's end
BLANK = struct.Struct(">iI")
V4_HOST_SIZE, V6_HOST_SIZE = 8, 20
"""Bytes of a host: its address, and 4 of port."""


def _header(born_host_size: int, store_host_size: int) -> np.dtype:
    return np.dtype(
        [
            ("size_bytes", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("commitlog_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_time_ms", ">i8"),
            ("born_host", f"V{born_host_size}"),
            ("store_time_ms", ">i8"),
            ("store_host", f"V{store_host_size}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_size_bytes", ">i4"),
        ]
    )


HEADERS: dict[int, np.dtype] = {
    flags: _header(
        V6_HOST_SIZE if flags & BORN_HOST_V6 else V4_HOST_SIZE,
        V6_HOST_SIZE if flags & STORE_HOST_V6 else V4_HOST_SIZE,
    )
    for flags in (0, 16, 32, 48)
}
HEADER_STRUCTS = {flags: struct_of(layout) for flags, layout in HEADERS.items()}
HOST_FLAGS = BORN_HOST_V6 | STORE_HOST_V6
HEADER_SIZE = HEADERS[0].itemsize
assert HEADER_SIZE == 88
SYS_FLAG_POSITION = 36
STORE_TIME_POSITION = {0: 56, BORN_HOST_V6: 68}
MINIMUM_RECORD_SIZE = HEADER_SIZE + 1 + 2


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the commit log. `body` is as stored, `plain_body` decompressed. Java: MessageExt."""

    topic: str
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    size_bytes: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes
    raw_properties: bytes = b""
    magic: int = MAGIC_V1
    properties: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys of property KEYS, in order, empty ones left out."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def unique_key(self) -> str | None:
        return self.properties.get("UNIQ_KEY")

    @property
    def msg_id(self) -> str:
        """The offset message id. Java: MessageExt.getMsgId of a decoded record."""
        return encode_offset_message_id(
            self.store_host[:-4], int.from_bytes(self.store_host[-4:], "big"), self.commitlog_offset
        )

    @property
    def plain_body(self) -> bytes:
        """The body as the producer sent it; raises CorruptMessageError where it does not decompress."""
        if not self.sys_flag & COMPRESSED or not self.body:
            return self.body
        try:
            return decompress(self.body, self.sys_flag)
        except CorruptRecordError as error:
            place = self.topic, self.queue_id, self.queue_offset, self.commitlog_offset
            raise CorruptMessageError(*place, error.field, error.expected, error.found) from error


class EndOfFile(NamedTuple):
    """A blank filler: the rest of this log file holds no record."""

    size_bytes: int


class NeedMoreBytes(NamedTuple):
    """The record continues after the given bytes; it needs so many in all."""

    size_bytes: int


def host_text(host: bytes) -> str:
    """`address:port` as Java prints it: dotted IPv4, or eight uncompressed groups for IPv6."""
    address, port = host[:-4], int.from_bytes(host[-4:], "big", signed=True)
    if len(address) == 4:
        return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}:{port}"
    groups = ":".join(f"{int.from_bytes(address[i : i + 2], 'big'):x}" for i in range(0, 16, 2))
    return f"{groups}:{port}"


def decode_record(
    buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = True, force_property_crc: bool = False
) -> Message | EndOfFile | NeedMoreBytes:
    """The record at a position of a log file.

    Checks what Java's recovery checks: magic, lengths that add up to the size, and the body's CRC (not of an empty body); with
    `force_property_crc` (forceVerifyPropCRC) instead of that the sum over the record in property `__CRC32#`, which must be there.
    Does not check that the record's physical offset is its place, nor its transaction state; the caller does.
    Raises CorruptRecordError(field, position, …) if a check fails.
    """
    available = len(buffer) - position
    if available < BLANK_SIZE:
        return NeedMoreBytes(BLANK_SIZE)
    size, magic = BLANK.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        return EndOfFile(size)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecordError(
            "magic", position, f"{MAGIC_V1:08x}, {MAGIC_V2:08x} or {MAGIC_BLANK:08x}", f"{magic:08x}"
        )
    if size < MINIMUM_RECORD_SIZE:
        raise CorruptRecordError("size", position, f"at least {MINIMUM_RECORD_SIZE}", size)
    if available < size:
        return NeedMoreBytes(size)
    message = _decode_whole(memoryview(buffer)[position : position + size], position, magic)
    if check_crc:
        _check_sums(message, memoryview(buffer)[position : position + size], position, force_property_crc)
    return message


def _check_sums(message: Message, record: memoryview, position: int, force_property_crc: bool) -> None:
    if force_property_crc:
        stated, found = stated_crc(message.properties), body_crc(record[: len(record) - CRC_SIZE])
        if stated is None:
            raise CorruptRecordError("property CRC", position, f"a property {CRC_NAME}", "none")
        if stated != found:
            raise CorruptRecordError("property CRC", position, stated, found)
    elif message.body and body_crc(message.body) != message.body_crc:
        raise CorruptRecordError("body CRC", position, message.body_crc, body_crc(message.body))


def _decode_whole(record: memoryview, position: int, magic: int) -> Message:
    size = len(record)
    sys_flag = int.from_bytes(record[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big", signed=True)
    header = HEADER_STRUCTS[sys_flag & HOST_FLAGS]
    topic_length_size = 2 if magic == MAGIC_V2 else 1
    if size < header.size + topic_length_size + 2:
        raise CorruptRecordError("size", position, f"at least {header.size + topic_length_size + 2}", size)
    (_, _, crc, queue_id, flag, queue_offset, commitlog_offset, _, born_time, born_host,
     store_time, store_host, reconsume_times, prepared_offset, body_size) = header.unpack_from(record)  # fmt: skip
    body_end = header.size + max(body_size, 0)
    topic_start = body_end + topic_length_size
    if body_size < 0 or topic_start + 2 > size:
        raise CorruptRecordError(
            "body length", position, f"0 to {size - header.size - topic_length_size - 2}", body_size
        )
    topic_size = int.from_bytes(record[body_end:topic_start], "big", signed=True)
    topic_end = topic_start + topic_size
    if topic_size < 0 or topic_end + 2 > size:
        raise CorruptRecordError("topic length", position, f"0 to {size - topic_start - 2}", topic_size)
    properties_size = int.from_bytes(record[topic_end : topic_end + 2], "big", signed=True)
    if topic_end + 2 + max(properties_size, 0) != size:
        raise CorruptRecordError("properties length", position, size - topic_end - 2, properties_size)
    body = bytes(record[header.size : body_end])
    raw_properties = bytes(record[topic_end + 2 :])
    return Message(
        topic=bytes(record[topic_start:topic_end]).decode(errors="replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commitlog_offset=commitlog_offset,
        size_bytes=size,
        flag=flag,
        sys_flag=sys_flag,
        born_time_ms=born_time,
        born_host=born_host,
        store_time_ms=store_time,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body_crc=crc,
        body=body,
        raw_properties=raw_properties,
        magic=magic,
        properties=decode_properties(raw_properties),
    )


def encode_record(message: Message) -> bytes:
    """The record's bytes, from the fields alone; size and body CRC are taken as given, not computed."""
    topic = message.topic.encode()
    return b"".join(
        (
            _pack_header(message),
            message.body,
            len(topic).to_bytes(2 if message.magic == MAGIC_V2 else 1, "big"),
            topic,
            len(message.raw_properties).to_bytes(2, "big"),
            message.raw_properties,
        )
    )


def _pack_header(message: Message) -> bytes:
    return HEADER_STRUCTS[message.sys_flag & HOST_FLAGS].pack(
        message.size_bytes,
        message.magic,
        message.body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.commitlog_offset,
        message.sys_flag,
        message.born_time_ms,
        message.born_host,
        message.store_time_ms,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        len(message.body),
    )


def chain(starts: np.ndarray, sizes: np.ndarray, begin: int) -> tuple[np.ndarray, int]:
    """Which candidate records follow each other without a gap from `begin`: their indices, and where the last ends.

    `starts` ascend. Where every candidate's end is the next one's start, as nearly always, nothing is looped over;
    the loop takes one turn for each candidate that is none (a magic number inside a body).
    """
    ends = starts + sizes
    runs: list[np.ndarray] = []
    position = begin
    breaks = np.flatnonzero(ends[:-1] != starts[1:]) if len(starts) else np.empty(0, np.int64)
    while True:
        first = int(np.searchsorted(starts, position))
        if first == len(starts) or starts[first] != position:
            return (np.concatenate(runs) if runs else np.empty(0, np.int64)), position
        after = int(np.searchsorted(breaks, first))
        last = int(breaks[after]) if after < len(breaks) else len(starts) - 1
        runs.append(np.arange(first, last + 1))
        position = int(ends[last])


def find_candidates(buffer: np.ndarray, start: int, end: int) -> np.ndarray:
    """Positions in [start, end) where a record could begin: a record magic stands four bytes on. Ascending."""
    if end - start < 1:
        return np.empty(0, np.int64)
    window = buffer[start + 4 : min(end + 7, len(buffer))]
    first = np.flatnonzero(window[: max(0, len(window) - 3)] == MAGIC_V1 >> 24)
    third = window[first + 3]
    is_magic = (window[first + 1] == 0xA3) & (window[first + 2] == 0x20) & ((third == 0xA7) | (third == 0xAB))
    return first[is_magic] + start


# Bodies that the client compressed: zlib, LZ4 frame, Zstandard. Java: CompressorFactory, MessageSysFlag.getCompressionType.

PLAIN_BODY_LIMIT_BYTES = 64 << 20
"""The largest decompressed body: sixteen times a producer's default limit. A few bytes of Zstandard can claim gigabytes."""
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
    """The complete decompressed body; bytes after the stream's end are ignored."""
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


# Message ids made of an address and a place in the log. Java: MessageDecoder.createMessageId, MessageId.
#
#     0                     4 | 16      8 | 20               16 | 28 bytes, written as upper-case hex
#     | IPv4 | IPv6 address | port      | commitlog_offset |

_HEX_PAIRS = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), np.uint16)


def encode_offset_message_id(address: bytes, port: int, commitlog_offset: int) -> str:
    """The offset message id: `msgId` of a broker's answer, `offsetMsgId` of a client."""
    return (address + port.to_bytes(4, "big") + commitlog_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[bytes, int, int]:
    """(address, port, commitlog_offset) of an offset message id; ValueError if it is none."""
    if len(message_id) not in (32, 56):
        raise ValueError(f"{message_id!r} is no offset message id: it has {len(message_id)} characters, not 32 or 56")
    raw = bytes.fromhex(message_id)
    if 2 * len(raw) != len(message_id):
        raise ValueError(f"{message_id!r} is no offset message id: it has blanks")
    return raw[:-12], int.from_bytes(raw[-12:-8], "big"), int.from_bytes(raw[-8:], "big", signed=True)


def hex_strings(rows: np.ndarray) -> pa.StringArray:
    """An `(n, width)` matrix of bytes as `n` strings of upper-case hex."""
    count, width = rows.shape
    characters = np.ascontiguousarray(_HEX_PAIRS[rows])
    offsets = (
        np.arange(0, (count + 1) * 2 * width, 2 * width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    )
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(characters))
