"""Which field of its format each byte of a store's file belongs to. For tables of what a wrong bit does; nothing here judges a byte.

Own offsets where they are constants of Java's classes (CommitLog, MessageExtEncoder, ConsumeQueue, IndexHeader, StoreCheckpoint).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

FREE = "free space"
MESSAGE_V1, MESSAGE_V2, FILLER = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
_HEAD = (
    ("size", 4),
    ("magic", 4),
    ("body CRC", 4),
    ("queue id", 4),
    ("flag", 4),
    ("queue offset", 8),
    ("physical offset", 8),
    ("sysFlag", 4),
    ("born time", 8),
    ("born host", 8),
    ("store time", 8),
    ("store host", 8),
    ("reconsume times", 4),
    ("prepared offset", 8),
    ("body length", 4),
)
_ENTRY = (("physical offset", 8), ("size", 4), ("tags code", 8))
_INDEX_HEAD = (
    ("header: begin time", 8),
    ("header: end time", 8),
    ("header: begin offset", 8),
    ("header: end offset", 8),
    ("header: slots in use", 4),
    ("header: items", 4),
)
_ITEM = (("item: key hash", 4), ("item: physical offset", 8), ("item: seconds", 4), ("item: previous", 4))
_CHECKPOINT = (
    ("log time", 8),
    ("queue time", 8),
    ("index time", 8),
    ("master's flushed offset", 8),
    ("confirmed offset", 8),
)
_JSON = re.compile(r'"(?:[^"\\]|\\.)*"(?P<key>\s*:)?|-?[0-9][0-9.eE+-]*|[a-z]+|\s+|.', re.DOTALL)


class Field(NamedTuple):
    """Bytes [start, end) of a file."""

    start: int
    end: int
    name: str


def kind_of(path: str) -> str:
    """What sort of file it is, by its path below ROOT."""
    first, _, rest = path.partition("/")
    if first == "config":
        return f"config/*.json{'.bak' if path.endswith('.bak') else ''}"
    if first == "spark_mq":
        return f"spark_mq/{re.sub('[0-9a-f]{16}.*', '*', rest.partition('/')[0] or rest)}"
    return first


def fields_of(path: str, content: bytes, *, index_slots: int) -> list[Field]:
    """All bytes of a file that lies at `path` below ROOT, in order and without a gap."""
    first = path.partition("/")[0]
    if first == "commitlog":
        return list(_of_log(content))
    if first == "consumequeue":
        return [field for at in range(0, len(content), 20) for field in _entry(content, at)]
    if first == "index":
        return list(_of_index(content, index_slots))
    if path == "checkpoint":
        return [*_rows(0, _CHECKPOINT), Field(40, len(content), FREE)]
    if first == "config":
        return list(_of_json(content))
    if path.startswith("spark_mq/staged/"):
        return list(_of_segment(content))
    return [Field(0, len(content), "content")] if content else []


def _rows(start: int, sizes: tuple[tuple[str, int], ...]) -> Iterator[Field]:
    for name, size in sizes:
        yield Field(start, start + size, name)
        start += size


def _of_log(content: bytes) -> Iterator[Field]:
    at = 0
    while at + 8 <= len(content):
        size, magic = struct.unpack_from(">iI", content, at)
        if magic == FILLER:
            yield Field(at, at + 4, "filler: size")
            yield Field(at + 4, at + 8, "filler: magic")
            yield Field(at + 8, len(content), FREE)
            return
        if magic not in (MESSAGE_V1, MESSAGE_V2):
            break
        yield from _record(content, at, size, magic)
        at += size
    yield Field(at, len(content), FREE)


def _record(content: bytes, at: int, size: int, magic: int) -> Iterator[Field]:
    yield from _rows(at, _HEAD)  # hosts are IPv4 in the stores that are looked at
    body = at + 88
    (body_size,) = struct.unpack_from(">i", content, body - 4)
    yield Field(body, body + body_size, "body")
    length = body + body_size
    length_end = length + (2 if magic == MESSAGE_V2 else 1)
    topic_end = length_end + int.from_bytes(content[length:length_end], "big")
    yield Field(length, length_end, "topic length")
    yield Field(length_end, topic_end, "topic")
    yield Field(topic_end, topic_end + 2, "properties length")
    yield Field(topic_end + 2, at + size, "properties")


def _entry(content: bytes, at: int) -> Iterator[Field]:
    if any(content[at : at + 20]):
        yield from _rows(at, _ENTRY)
    else:
        yield Field(at, at + 20, FREE)


def _of_index(content: bytes, slot_count: int) -> Iterator[Field]:
    yield from _rows(0, _INDEX_HEAD)
    items = 40 + 4 * slot_count
    yield Field(40, items, "slot")
    (count,) = struct.unpack_from(">i", content, 36)
    yield Field(items, items + 20, FREE)  # item 0
    for number in range(1, count):
        yield from _rows(items + 20 * number, _ITEM)
    yield Field(items + 20 * max(count, 1), len(content), FREE)


def _of_json(content: bytes) -> Iterator[Field]:
    text = content.decode("latin-1")  # a byte a character
    for token in _JSON.finditer(text):
        first = token.group()[0]
        if first == '"':
            name = "key" if token.group("key") else "text"
        elif first.isdigit() or first == "-":
            name = "number"
        elif first.isspace():
            name = "white space"
        else:
            name = "true, false, null" if first.isalpha() else "structure"
        yield Field(token.start(), token.end(), name)


def _of_segment(content: bytes) -> Iterator[Field]:
    records = 0
    while records + 8 <= len(content):
        size, magic = struct.unpack_from(">iI", content, records)
        if magic not in (MESSAGE_V1, MESSAGE_V2):
            break
        records += size
    yield Field(0, records, "records")
    yield Field(records, len(content), "columns")
