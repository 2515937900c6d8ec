"""Look at a commit log's raw bytes, and damage them on purpose; knows nothing of the project's code.

    damage.py flip ROOT BEHIND     invert one body byte of the record that has BEHIND records behind it
    damage.py stale ROOT END       describe the intact records that stand at or behind END

Both print one JSON object. A record is intact if its magic, lengths, body CRC and own physical offset agree.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGICS = (0xDAA320A7, 0xDAA320AB)
BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20


class Record(NamedTuple):
    commitlog_offset: int
    size_bytes: int
    body_offset: int  # from the record's first byte
    body_size_bytes: int
    store_time_ms: int


def record_at(data: bytes, position: int, commitlog_offset: int) -> Record | None:
    """The intact record at `position` of one file's bytes, or None."""
    if position + 88 > len(data):
        return None
    size, magic, crc = struct.unpack_from(">III", data, position)
    own_offset, sys_flag = struct.unpack_from(">qi", data, position + 28)
    if magic not in MAGICS or own_offset != commitlog_offset or not 88 <= size <= len(data) - position:
        return None
    store_time = position + (68 if sys_flag & BORN_HOST_V6 else 56)
    store_host_end = store_time + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    body = store_host_end + 12 + 4
    if body > position + size:
        return None
    (body_size,) = struct.unpack_from(">i", data, body - 4)
    if not 0 <= body_size <= position + size - body:
        return None
    if body_size and zlib.crc32(data[body : body + body_size]) & 0x7FFFFFFF != crc:
        return None
    (store_time_ms,) = struct.unpack_from(">q", data, store_time)
    return Record(commitlog_offset, size, body - position, body_size, store_time_ms)


def files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())


def walk(file: Path) -> Iterator[Record]:
    """The records from the file's start on, until the first thing that is none."""
    data, position = file.read_bytes(), 0
    while (record := record_at(data, position, int(file.name) + position)) is not None:
        yield record
        position += record.size_bytes


def flip(root: Path, behind: int) -> dict[str, object]:
    records = [record for file in files(root) for record in walk(file)]
    index = len(records) - 1 - behind
    while records[index].body_size_bytes < 8:
        index -= 1
    bad = records[index]
    file = max((f for f in files(root) if int(f.name) <= bad.commitlog_offset), key=lambda f: int(f.name))
    after = records[index + 1 :]
    if any(record.commitlog_offset >= int(file.name) + file.stat().st_size for record in after):
        raise SystemExit(f"the record {behind} before the end is not in the last file; choose another")
    damaged_at = bad.commitlog_offset + bad.body_offset + bad.body_size_bytes // 2
    modified = file.stat()
    with file.open("r+b") as log:
        log.seek(damaged_at - int(file.name))
        byte = log.read(1)
        log.seek(-1, 1)
        log.write(bytes([byte[0] ^ 0xFF]))
    os.utime(file, ns=(modified.st_atime_ns, modified.st_mtime_ns))
    (flushed_ms,) = struct.unpack(">q", (root / "checkpoint").read_bytes()[:8])
    last_good = records[index - 1]
    return {
        "mode": "flip",
        "field": "body",
        "file": file.name,
        "record": bad.commitlog_offset,
        "recordSize": bad.size_bytes,
        "damagedAt": damaged_at,
        "lastRecordEnd": records[-1].commitlog_offset + records[-1].size_bytes,
        "lastGoodStoreTimestamp": last_good.store_time_ms,
        "physicMsgTimestamp": flushed_ms,
        "intactRecordsBehind": len(after),
        "intactRecordsBehindWithinCheckpoint": sum(
            last_good.store_time_ms <= record.store_time_ms <= flushed_ms for record in after
        ),
    }


def stale(root: Path, end: int) -> dict[str, object]:
    found: list[Record] = []
    for file in files(root):
        data, base = file.read_bytes(), int(file.name)
        position = max(0, end - base)
        while position < len(data):
            record = record_at(data, position, base + position)
            if record is not None:
                found.append(record)
            position += record.size_bytes if record is not None else 1
    return {
        "mode": "stale",
        "end": end,
        "staleRecords": [[record.commitlog_offset, record.size_bytes] for record in found],
    }


def flip_body_in_file(root: Path, number: int) -> None:
    """Invert the first body byte of the first record in one of the log's files, counted from 0."""
    file = files(root)[number]
    record = next(walk(file))
    content = bytearray(file.read_bytes())
    content[record.body_offset] ^= 0xFF
    file.write_bytes(content)


if __name__ == "__main__":
    command, root, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({"flip": flip, "stale": stale}[command](root, number)))
