"""The file epochFileCheckpoint: since which place in the log which master's epoch holds.

    2                number of entries
    1725254278       CRC-32 of what follows, without its highest bit; 0 = not checked
    1-0              epoch-start, a line each
    2-1057

The end of an entry is the next one's start; the last one has none. Java: EpochFileCache, CheckpointFile, RocketMQ 5.3.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from storage.errors import CorruptRecordError

_CRC_BITS = 0x7FFFFFFF


class EpochEntry(NamedTuple):
    """From `start_offset` on the log was written in this epoch. Java: EpochEntry."""

    epoch: int
    start_offset: int


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The file's content. Java writes no file without entries; this has one."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries)
    return f"{len(entries)}\n{zlib.crc32(lines.encode()) & _CRC_BITS}\n{lines}".encode()


def decode_epochs(content: bytes) -> tuple[EpochEntry, ...]:
    """The entries of a file, in its order. Raises CorruptRecordError for what no broker has written whole."""
    try:
        count_text, crc_text, rest = content.decode("ascii").replace("\r\n", "\n").split("\n", 2)
        count, crc = int(count_text), int(crc_text)
        entries = tuple(_entry(line) for line in rest.splitlines())
    except (UnicodeDecodeError, ValueError) as error:
        raise CorruptRecordError("epochs", 0, "a count, a sum and lines epoch-start", content[:40]) from error
    if len(entries) != count:
        raise CorruptRecordError("epochs", 0, count, len(entries))
    found = zlib.crc32(rest.encode()) & _CRC_BITS
    if crc not in (0, found):
        raise CorruptRecordError("epochs' CRC", 0, crc, found)
    return entries


def _entry(line: str) -> EpochEntry:
    epoch, start = line.split("-")
    return EpochEntry(int(epoch), int(start))
