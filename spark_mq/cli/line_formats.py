"""Messages in a line of the user's own form: `dump -f` and `consume -f`, with kcat's words.

    %t topic · %p queue · %o queue offset · %k keys · %s body · %T store time in ms · %h properties (name=value,…)
    %K, %S length of keys and body in bytes, −1 without · %R the body's length, 4 bytes, big-endian
    %% \\n \\r \\t \\xHH as in kcat, and \\\\ a backslash. Nothing is added: a format ends with \\n where it shall be a line

Departures from kcat, whose messages have partitions and one key: %p is RocketMQ's queue id, which each broker counts from 0; %k are all
keys, with blanks between them. Words of our own: %b broker, %g tag, %u unique key, %i message id.
"""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from spark_mq.cli.message_lines import BODY, BODY_BASE64, CORRUPT
from spark_mq.cli.output import UsageError, print_json

Line = Mapping[str, Any]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<word>.?)|\\x(?P<hex>[0-9a-fA-F]{1,2})|\\(?P<escape>.?)", re.DOTALL)


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode(errors="surrogateescape")


def _column(name: str) -> Callable[[Line], bytes]:
    return lambda line: _text(line.get(name))


def body_of(line: Line) -> bytes | None:
    """The body's bytes; None where it does not decompress."""
    if BODY_BASE64 in line:
        return b64decode(line[BODY_BASE64])
    body: str | None = line.get(BODY)
    return None if body is None else body.encode()


def _keys(line: Line) -> bytes | None:
    return None if line.get("keys") is None else _text(line["keys"])


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


_WORDS: dict[str, Callable[[Line], bytes]] = {
    "t": _column("topic"),
    "p": _column("queue_id"),
    "o": _column("queue_offset"),
    "T": _column("store_timestamp"),
    "b": _column("broker_name"),
    "g": _column("tags"),
    "u": _column("unique_key"),
    "i": _column("msg_id"),
    "k": lambda line: _keys(line) or b"",
    "K": lambda line: _text(_length(_keys(line))),
    "s": lambda line: body_of(line) or b"",
    "S": lambda line: _text(_length(body_of(line))),
    "R": lambda line: _length(body_of(line)).to_bytes(4, "big", signed=True),
    "h": lambda line: ",".join(f"{name}={text}" for name, text in line["properties"].items()).encode(
        errors="surrogateescape"
    ),
    "%": lambda _: b"%",
}


class LineFormat:
    """A form of messages. Raises UsageError for a word that is none."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Callable[[Line], bytes]] = []
        end = 0
        for found in _TOKEN.finditer(text):
            self._parts.append(_text(text[end : found.start()]))
            self._parts.append(_part(found))
            end = found.end()
        self._parts.append(_text(text[end:]))

    def render(self, line: Line) -> bytes:
        """A message, given as an object of dump with its body."""
        return b"".join(part if isinstance(part, bytes) else part(line) for part in self._parts)


def _part(found: re.Match[str]) -> bytes | Callable[[Line], bytes]:
    if found["hex"] is not None:
        return bytes([int(found["hex"], 16)])
    if (escape := found["escape"]) is not None:
        if escape not in _ESCAPES:
            raise UsageError(f"-f: \\{escape} is no character; there are \\n \\r \\t \\xHH and \\\\")
        return _ESCAPES[escape]
    word = found["word"]
    if word not in _WORDS:
        known = " ".join(f"%{each}" for each in _WORDS)
        raise UsageError(f"-f: %{word} is no word of a format; there are {known}")
    return _WORDS[word]


Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help="A message's form in kcat's words: %t topic, %p queue, %o offset, %k keys, %s body, %T time, %h properties, \\n, \\t.",
    ),
]


class Printer:
    """Writes messages to stdout, as JSON or in a form."""

    def __init__(self, form: LineFormat | None) -> None:
        self._form = form
        self.hidden = 0
        """How many bodies were unreadable, and the form did not show it, as JSON does. Each was named on stderr."""

    def print(self, line: dict[str, Any]) -> None:
        """Raises what stdout raises."""
        if self._form is None:
            print_json(line)
            return
        sys.stdout.buffer.write(self._form.render(line))
        if line.get(CORRUPT) is not None:
            self.hidden += 1
            where = f"{line['topic']} queue {line['queue_id']} offset {line['queue_offset']}"
            typer.echo(f"no body: {where}: {line[CORRUPT]}", err=True)


def printer_of(form: str | None) -> Printer:
    """Of the option --format. Raises UsageError."""
    return Printer(None if form is None else LineFormat(form))
