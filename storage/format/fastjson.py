"""The JSON dialect of a broker's `config/*.json`, as text to values and back.

fastjson writes a map with integer keys without quotes (`{0:12,1:13}`). It also reads unquoted names, single-quoted strings and a comma
before a closing bracket, so operators' hand-made files may have those too. Plain JSON goes to the standard parser. Other text is first
made plain, token by token (a string is one token, whatever it holds). Files are written as plain JSON with quoted keys in fastjson's
layout (tabs, no blank after a colon), which Java reads as well. Bodies between processes also have objects as keys (`parse_sent`), and
are written as fastjson writes them (`quoted`, `double_text`; the layout is `typed_json.py`).

Java: com.alibaba.fastjson 1.2.83, RemotingSerializable.toJson / fromJson.
Not supported: comments, NaN, class names (`@type`); references (`$ref`) are kept as they
are, not followed. Departure: numbers of more than 4,300 digits, and those that no double holds, are refused.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import accumulate, islice
from typing import Any

from storage.errors import StateFileError

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
      | (?P<string>"(?:[^"\\]++|\\.)*+")
      | (?P<single>'(?:[^'\\]++|\\.)*+')
      | (?P<mark>[{}\[\]:,])
      | (?P<word>[^\s{}\[\]:,"']+)
      | (?P<open>["'])""",
    re.VERBOSE | re.DOTALL,
)
_VALUE_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_FRACTION = re.compile(r"[.eE][+-]?[0-9]")  # in a value: it is a double
_KEY_WORD = re.compile(r"-?[0-9]+|[A-Za-z_$][A-Za-z0-9_$]*")
_KEY_FOLLOWS = re.compile(r"\s*:")
_SINGLE_QUOTED_PART = re.compile(r"\\.|\"|[^\\\"]+", re.DOTALL)
_LEVEL_CHANGES = {"{": 1, "[": 1, "}": -1, "]": -1}
_LEVELS = 512  # as deep as Java's parser goes, and Python's with a stack of its usual size
_QUEUE_KEY_BEGINS = '{{"brokerName":'
_QUEUE_KEY = re.compile(
    r"""(?<=[{,]) \{ "brokerName":"(?:[^"\\]++|\\.)*+" , "queueId":-?[0-9]++ , "topic":"(?:[^"\\]++|\\.)*+" \} (?=:)""",
    re.VERBOSE | re.DOTALL,
)
_DIGITS = 4_300  # of a number; more of them are no int of Python's
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_WRITTEN_AS = {
    **{chr(unit): f"\\u{unit:04X}" for unit in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)},
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_IS_ESCAPED = re.compile('[\x00\x03-\x1f"\\\\\x7f-\x9f\u2028\u2029]')  # and 0x01 and 0x02


def parse(text: str, file: str | None = None) -> Any:
    """The value that the text holds; keys are always strings, of equal keys the last wins.

    Raises StateFileError with the line and column of `text` (`file` is for its message) where it is no JSON
    of the dialect.
    """
    with suppress(ValueError, RecursionError):  # errors are reported by the dialect's parser
        value = json.loads(text, strict=False, parse_float=_finite, parse_constant=_refuse)
        if _levels(value) <= _LEVELS:
            return value
    return _parse_dialect(text, file)


def parse_sent(text: str) -> Any:
    """Like `parse`, for bodies between processes: a key may be an object, and becomes the string of its JSON.

    Many equal keys of message queues, as in a topic's statistics, are read at the standard parser's speed.
    """
    with suppress(ValueError, RecursionError):
        plain = _QUEUE_KEY.sub(_queue_key_as_string, text) if _QUEUE_KEY_BEGINS in text else text
        value = json.loads(plain, strict=False, parse_float=_finite, parse_constant=_refuse)
        if _levels(value) <= _LEVELS:
            return value
    return _parse_dialect(text, None, has_object_keys=True)


def _queue_key_as_string(match: re.Match[str]) -> str:
    return json.dumps(match.group(), ensure_ascii=False)


def _parse_dialect(text: str, file: str | None, *, has_object_keys: bool = False) -> Any:
    """Text that may be no plain JSON, token by token: fifty times slower."""
    level = 0
    pieces: list[str] = []
    last = -1  # the last piece that is no blank
    keys = _ObjectKeys(pieces)
    for token in _tokens(text, file):
        piece = _as_json(token, text, file)
        if piece in ("}", "]") and last > 0 and pieces[last] == ",":
            pieces[last] = ""
        if token.lastgroup != "blank":
            last = len(pieces)
        level += _LEVEL_CHANGES.get(piece, 0)
        if level > _LEVELS:
            raise _error(text, token.start(), file, f"it is nested more than {_LEVELS} levels deep")
        pieces.append(piece)
        if has_object_keys and token.lastgroup != "blank" and not keys.see(piece):
            raise _error(text, token.start(), file, "a key within a key is an object")
    try:
        return json.loads("".join(pieces), strict=False)
    except json.JSONDecodeError as error:
        raise _error(text, _source_position(text, pieces, error.pos), file, error.msg) from None


class _ObjectKeys:
    """Turns objects that are keys into strings. The parser checks everything else."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self._open: list[int] = []  # where the objects and lists begin around the last piece
        self._key = -1  # where the key begins that is being read
        self._before = ""

    def see(self, piece: str) -> bool:
        """The next piece, blanks apart; False where a key holds another object as a key."""
        if piece in ("{", "["):
            if self._is_key(piece):
                if self._key >= 0:
                    return False
                self._key = len(self._pieces) - 1
            self._open.append(len(self._pieces) - 1)
        elif piece in ("}", "]") and self._open and self._open.pop() == self._key:
            key = "".join(part for part in self._pieces[self._key :] if not part.isspace())
            self._pieces[self._key :] = [json.dumps(key), *[""] * (len(self._pieces) - self._key - 1)]
            self._key = -1
        self._before = piece
        return True

    def _is_key(self, piece: str) -> bool:
        in_object = bool(self._open) and self._pieces[self._open[-1]] == "{"
        return piece == "{" and in_object and self._before in ("{", ",")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _refuse(word: str) -> None:
    raise ValueError(word)


def _levels(value: Any) -> int:
    """How deep lists and objects are nested in it."""
    levels, containers = 0, [value] if isinstance(value, dict | list) else []
    while containers:
        levels += 1
        containers = [
            inner
            for outer in containers
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return levels


def _source_position(text: str, pieces: Sequence[str], position: int) -> int:
    """Where in `text` the token begins that gave the plain JSON at a position; its end where there is none."""
    ends = list(accumulate(map(len, pieces)))
    if not ends or position >= ends[-1]:
        return len(text)
    number = bisect.bisect_right(ends, position)
    return next(islice(_tokens(text, None), number, None)).start()


def to_text(value: Any) -> str:
    """The value as the broker lays it out: tabs, one field a line, keys quoted, other characters than
    controls as they are.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent="\t", separators=(",", ":"))
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def quoted(text: str) -> str:
    """The string as fastjson writes it into what it sends: controls, beyond ASCII too, as upper-case escapes, the rest as it is."""
    escaped = _IS_ESCAPED.sub(_escaped, text)
    # What properties are separated by comes by the dozen: two calls for all of it.
    return '"' + escaped.replace("\x01", _WRITTEN_AS["\x01"]).replace("\x02", _WRITTEN_AS["\x02"]) + '"'


def double_text(value: float) -> str:
    """A double as Java's toString and fastjson write it: 0.5, 1.0E10; null where it is no number."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(repr(value)):f}" if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    whole = "".join(map(str, digits))
    significant = whole.rstrip("0")
    power = len(whole) - 1 + int(exponent)
    return f"{'-' if sign else ''}{significant[0]}.{significant[1:] or '0'}E{power}"


def _escaped(match: re.Match[str]) -> str:
    return _WRITTEN_AS[match.group()]


def _tokens(text: str, file: str | None) -> Iterator[re.Match[str]]:
    position = 1 if text.startswith("\ufeff") else 0  # a byte order mark, which fastjson ignores too
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None  # every character begins one of the alternatives
        if token.lastgroup == "open":
            raise _error(text, position, file, "a string begins here and does not end")
        yield token
        position = token.end()


def _as_json(token: re.Match[str], text: str, file: str | None) -> str:
    piece = token.group()
    if token.lastgroup == "single":
        return _requote(piece[1:-1])
    if token.lastgroup != "word":
        return piece
    if _KEY_FOLLOWS.match(text, token.end()):
        if _KEY_WORD.fullmatch(piece):
            return f'"{piece}"'
        raise _error(text, token.start(), file, f"{piece[:40]!r} is no key: quote it")
    if _VALUE_WORD.fullmatch(piece):
        if len(piece) > _DIGITS or (_FRACTION.search(piece) and math.isinf(float(piece))):
            raise _error(text, token.start(), file, f"{piece[:40]!r} is a number that is too large")
        return piece
    raise _error(text, token.start(), file, f"{piece[:40]!r} is no value")


def _requote(content: str) -> str:
    """The content of a single-quoted string in double quotes."""
    changed = {'"': '\\"', "\\'": "'"}
    parts = (part.group() for part in _SINGLE_QUOTED_PART.finditer(content))
    return '"' + "".join(changed.get(part, part) for part in parts) + '"'


def _error(text: str, position: int, file: str | None, rule: str) -> StateFileError:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return StateFileError(file, line, column, rule)
