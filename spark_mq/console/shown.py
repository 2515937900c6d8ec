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
ALL_CHARACTERS = 8 << 20
"""Of a body's text that a page shows at all."""
HEX_BYTES = 4 << 10
ALL_HEX_BYTES = 256 << 10
JSON_BYTES = 2 << 20
PREVIEW_BYTES = 160
_HEX_WIDTH = 16

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
    limit = ALL_CHARACTERS if everything else TEXT_CHARACTERS
    text = body[: 4 * limit].decode(errors="replace")
    return Part(visible_lines(text[:limit]), len(body) <= 4 * limit and len(text) <= limit)


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
    pieces: list[str] = []
    try:
        found = json.loads(body.decode(), parse_int=_Number, parse_float=_Number, object_pairs_hook=_Members)
        _indent(found, "\n", pieces)
    except (ValueError, RecursionError):
        return None
    text = "".join(pieces)
    limit = ALL_CHARACTERS if everything else TEXT_CHARACTERS
    return Part(visible_lines(text[:limit]), len(text) <= limit)


def _indent(value: object, line: str, pieces: list[str]) -> None:
    """Append the text of a value; `line` begins a line of its own depth."""
    inner = line + "  "
    match value:
        case _Number():
            pieces.append(str(value))
        case _Members() if value:
            for number, (name, each) in enumerate(value):
                pieces += (",{"[not number], inner, json.dumps(name, ensure_ascii=False), ": ")
                _indent(each, inner, pieces)
            pieces += (line, "}")
        case _Members():
            pieces.append("{}")
        case list() if value:
            for number, each in enumerate(value):
                pieces += (",["[not number], inner)
                _indent(each, inner, pieces)
            pieces += (line, "]")
        case _:
            pieces.append(json.dumps(value, ensure_ascii=False))
