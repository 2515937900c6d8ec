"""What a page shows of text and bytes that somebody else has sent: always text, and nothing that hides.

The templates escape every value, and `spark_mq/cli/visible_text.py` writes out what is not drawn. A body is cut at a bound; the rest is
downloaded.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from spark_mq.cli.visible_text import visible_lines
from storage import Message
from storage.errors import CorruptMessageError
from storage.format.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD

TEXT_CHARACTERS = 64 << 10
"""Of a body's text that a page shows at first."""
ALL_CHARACTERS = 5 << 20
"""Of a body's text that a page shows at all: RocketMQ's largest message has 4 MiB."""
HEX_BYTES = 4 << 10
ALL_HEX_BYTES = 256 << 10
JSON_BYTES = 2 << 20
PREVIEW_BYTES = 160
_HEX_WIDTH = 16
_STEP = 16 << 10
_DEEPEST_INDENT = 40
"""Deeper values of JSON begin at the same place: else the blanks of a deep body would be thousands of times its size."""

COMPRESSIONS = {COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def compression_of(message: Message) -> str | None:
    """The compression that its flags name; None without one."""
    if not message.sys_flag & COMPRESSED:
        return None
    return COMPRESSIONS.get(message.sys_flag & COMPRESSION_MASK, "ZLIB")


def beginning(message: Message) -> str:
    """The first characters of a body. A compressed one is not opened: a list of them would cost too much."""
    if (compression := compression_of(message)) is not None:
        return f"({len(message.body):,} bytes, {compression})"
    text = message.body[:PREVIEW_BYTES].decode(errors="replace")
    return text if len(message.body) <= PREVIEW_BYTES else text.rstrip("\ufffd") + "…"


class Body(NamedTuple):
    """A body as a page shows it."""

    stored_bytes: int
    plain: bytes | None
    """None where it does not decompress; then `trouble` says why."""
    compression: str | None
    trouble: str | None
    is_text: bool
    """Whether it is UTF-8."""


def body_of(message: Message) -> Body:
    """Decompressed, up to the limit that every reader has (`storage/format/record.py`)."""
    stored, compression = len(message.body), compression_of(message)
    try:
        plain = message.plain_body
    except CorruptMessageError as error:
        return Body(stored, None, compression, error.reason, False)
    return Body(stored, plain, compression, None, _is_utf8(plain))


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


class Part(NamedTuple):
    """The beginning of something; `is_whole` if it is all of it."""

    text: str
    is_whole: bool


def as_text(body: bytes, *, everything: bool = False) -> Part:
    """As UTF-8; bytes that are none become U+FFFD."""
    limit = _limit(everything=everything)
    text = body[: 4 * limit].decode(errors="replace")
    return _part(text, limit, is_whole=len(body) <= 4 * limit)


def _limit(*, everything: bool) -> int:
    return ALL_CHARACTERS if everything else TEXT_CHARACTERS


def _part(text: str, limit: int, *, is_whole: bool) -> Part:
    """Up to `limit` characters of a text once it is visible: what is not drawn becomes eight characters and more."""
    shown: list[str] = []
    for start in range(0, len(text), _STEP):
        if limit <= 0:
            return Part("".join(shown), False)
        more = visible_lines(text[start : start + _STEP])
        is_whole = is_whole and len(more) <= limit
        shown.append(more[:limit])
        limit -= len(more)
    return Part("".join(shown), is_whole)


def as_hex(body: bytes, *, everything: bool = False) -> Part:
    """Lines of place, sixteen bytes in hex, and the same as ASCII."""
    limit = ALL_HEX_BYTES if everything else HEX_BYTES
    lines = []
    for start in range(0, min(len(body), limit), _HEX_WIDTH):
        row = body[start : min(start + _HEX_WIDTH, limit)]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_WIDTH}} {letters}")
    return Part("\n".join(lines), len(body) <= limit)


class _Number(str):
    """A number of JSON, to be written as it was read."""

    __slots__ = ()


class _Members(list[tuple[str, object]]):
    """The members of an object, those of equal names too."""

    __slots__ = ()


def as_json(body: bytes, *, everything: bool = False) -> Part | None:
    """Indented, numbers as they are written; None for what is no JSON, or more of it than JSON_BYTES."""
    if len(body) > JSON_BYTES:
        return None
    limit = _limit(everything=everything)
    pieces = _Pieces(limit)
    try:
        found = json.loads(body.decode(), parse_int=_Number, parse_float=_Number, object_pairs_hook=_Members)
        _indent(found, 0, pieces)
    except _FullError:
        return _part("".join(pieces.texts), limit, is_whole=False)
    except (ValueError, RecursionError):
        return None
    return _part("".join(pieces.texts), limit, is_whole=True)


class _FullError(Exception):
    """The text has reached its bound."""


class _Pieces:
    """Pieces of a text, up to its bound and the piece that exceeds it."""

    def __init__(self, room: int) -> None:
        self.texts: list[str] = []
        self._room = room

    def add(self, *texts: str) -> None:
        """Raises _FullError at the bound."""
        for text in texts:
            self.texts.append(text)
            self._room -= len(text)
            if self._room < 0:
                raise _FullError


def _indent(value: object, depth: int, pieces: _Pieces) -> None:
    """Add the text of a value that stands at a depth."""
    line, inner = ("\n" + "  " * min(each, _DEEPEST_INDENT) for each in (depth, depth + 1))
    match value:
        case _Number():
            pieces.add(value)
        case _Members() if value:
            for number, (name, each) in enumerate(value):
                pieces.add(",{"[not number], inner, json.dumps(name, ensure_ascii=False), ": ")
                _indent(each, depth + 1, pieces)
            pieces.add(line, "}")
        case _Members():
            pieces.add("{}")
        case list() if value:
            for number, each in enumerate(value):
                pieces.add(",["[not number], inner)
                _indent(each, depth + 1, pieces)
            pieces.add(line, "]")
        case _:
            pieces.add(json.dumps(value, ensure_ascii=False))
