"""A log's records as `struct` alone tells them: another pair of eyes than the engine's. Java: MessageExtEncoder, MessageDecoder.

Shares no code with `storage`, so it repeats no mistake of the engine.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MESSAGE_V1, MESSAGE_V2, FILLER = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
_FIXED = struct.Struct(">iIiiiqqiq")  # to the time of birth
_HOST_BYTES = {False: 8, True: 20}
BORN_HOST_V6, STORE_HOST_V6 = 1 << 4, 1 << 5
TRANSACTION_BITS = 3 << 2


class RawRecord(NamedTuple):
    """One record, its body as stored."""

    commitlog_offset: int
    """Where it was found, which is where it says that it stands."""
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time_ms: int
    body: bytes
    properties: dict[str, str]
    is_torn: bool
    """Topic or properties hold bytes that no writer writes: a power loss took a part of it, where no checksum reaches."""

    @property
    def key(self) -> str:
        """Property KEYS, as it stands there."""
        return self.properties.get("KEYS", "")

    @property
    def transaction_type(self) -> int:
        """0 none, 4 prepared, 8 committed, 12 rolled back. Java: MessageSysFlag.getTransactionValue."""
        return self.sys_flag & TRANSACTION_BITS


class RawLog:
    """The files of a log, read as a whole at first touch."""

    def __init__(self, directories: Iterable[str | Path]) -> None:
        paths = [path for directory in directories if Path(directory).is_dir() for path in Path(directory).iterdir()]
        self._paths = {int(path.name): path for path in paths if path.name.isdigit() and path.stat().st_size}
        self._contents: dict[int, bytes] = {}
        self._size = max((path.stat().st_size for path in self._paths.values()), default=0)

    @property
    def minimum(self) -> int:
        """Where the first file begins; 0 without files."""
        return min(self._paths, default=0)

    def record_at(self, commitlog_offset: int) -> RawRecord | None:
        """The sound record that begins there; None where none does."""
        return self._look(commitlog_offset)[0]

    def records(self) -> Iterator[RawRecord]:
        """All records in order, from the first file to the first place at which neither a record nor a filler stands."""
        at = self.minimum
        while True:
            record, filler = self._look(at)
            if record is not None:
                yield record
                at += record.size_bytes
            elif filler:
                at += filler
            else:
                return

    def _look(self, commitlog_offset: int) -> tuple[RawRecord | None, int]:
        """A record there, or the length of a filler there, or neither."""
        if not self._size or commitlog_offset < 0:
            return None, 0
        start = commitlog_offset - commitlog_offset % self._size
        content, at = self._content(start), commitlog_offset - start
        if len(content) < at + 8:
            return None, 0
        size, magic = struct.unpack_from(">iI", content, at)
        if magic == FILLER:
            return None, size if at + size == len(content) else 0
        if magic not in (MESSAGE_V1, MESSAGE_V2) or size < 91 or at + size > len(content):
            return None, 0
        try:
            return _decode(content[at : at + size], commitlog_offset), 0
        except (struct.error, _NoRecordError):
            return None, 0

    def _content(self, start: int) -> bytes:
        if start not in self._contents:
            path = self._paths.get(start)
            self._contents[start] = path.read_bytes() if path is not None else b""
        return self._contents[start]


class _NoRecordError(Exception):
    """The bytes contradict each other."""


def _decode(raw: bytes, commitlog_offset: int) -> RawRecord:
    """Raises _NoRecordError or struct.error for what is no record of that place."""
    size, magic, crc, queue_id, _, queue_offset, place, sys_flag, _ = _FIXED.unpack_from(raw)
    at = _FIXED.size + _HOST_BYTES[bool(sys_flag & BORN_HOST_V6)]
    (store_time_ms,) = struct.unpack_from(">q", raw, at)
    at += 8 + _HOST_BYTES[bool(sys_flag & STORE_HOST_V6)] + 4 + 8
    body, at = _sized(raw, at, ">i")
    topic, at = _sized(raw, at, ">B" if magic == MESSAGE_V1 else ">h")
    properties, at = _sized(raw, at, ">h")
    if at != size or place != commitlog_offset or (body and zlib.crc32(body) & 0x7FFFFFFF != crc):
        raise _NoRecordError
    pairs = (pair.split("\1", 1) for pair in properties.decode(errors="replace").split("\2"))
    return RawRecord(
        place,
        size,
        topic.decode(errors="replace"),
        queue_id,
        queue_offset,
        sys_flag,
        store_time_ms,
        body,
        {pair[0]: pair[1] for pair in pairs if len(pair) == 2},
        b"\0" in topic + properties,
    )


def _sized(raw: bytes, at: int, kind: str) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(kind, raw, at)
    at += struct.calcsize(kind)
    if length < 0 or at + length > len(raw):
        raise _NoRecordError
    return raw[at : at + length], at + length
