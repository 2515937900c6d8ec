"""The text format of java.util.Properties, as broker.conf uses it.

Java: Properties.load(InputStream), which BrokerStartup calls with the file's bytes, so the encoding is
ISO-8859-1 and every other character needs a `\\uXXXX` escape: a UTF-8 value arrives in the broker garbled,
and here in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from storage.errors import ConfigurationError

_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_END = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTEGER_BITS = {"int": 32, "long": 64}
_BLANKS = "".join(map(chr, range(0x21)))  # as in String.trim


class Property(NamedTuple):
    """One setting of a file; `line` counts from 1 and is where its logical line begins."""

    key: str
    value: str
    line: int


def parse_properties(content: bytes, file: str | None = None) -> list[Property]:
    """All settings in file order, including doubles (in Java the last one counts).

    A value keeps its trailing blanks, as in Java. Raises ConfigurationError for a malformed `\\u` escape, where Java throws too.
    """
    found = []
    for line, _, text in _logical_lines(_LINE_END.split(content.decode("latin-1"))):
        key = _KEY_END.match(text)
        assert key is not None  # the pattern matches the empty string
        separator = _SEPARATOR.match(text, key.end())
        assert separator is not None
        found.append(
            Property(
                _unescape(key.group(), file, line),
                _unescape(text[separator.end() :], file, line),
                line,
            )
        )
    return found


def changed_properties(content: bytes, changes: Mapping[str, str]) -> bytes:
    """The content of a file with other values; comments, order and all other lines stay as they are.

    A value replaces the setting's last line; a setting without a line is appended. Raises ConfigurationError.
    Departure: Java writes all settings anew, in any order, without comments.
    """
    text = content.decode("latin-1")
    lines, ends = _LINE_END.split(text), _LINE_END.findall(text)
    kept = [line + end for line, end in zip(lines, [*ends, ""], strict=True)]
    new_line = ends[0] if ends else "\n"
    missing = dict(changes)
    logical = [span[:2] for span in _logical_lines(lines)]
    for (first, last), found in reversed(list(zip(logical, parse_properties(content), strict=True))):
        if found.key in changes:
            value = missing.pop(found.key, None)  # of several lines for one setting the last one counts
            kept[first - 1 : last] = [] if value is None else [f"{found.key}={escaped_value(value)}{new_line}"]
    if missing:
        before = "".join(kept)
        is_open = before.rstrip("\r\n").endswith("\\")  # a continued line would swallow the next one
        if before and not before.endswith(("\n", "\r")):
            kept.append(new_line)
        kept += [new_line] * is_open
        kept += [f"{name}={escaped_value(value)}{new_line}" for name, value in missing.items()]
    return "".join(kept).encode("latin-1")


def escaped_value(value: str) -> str:
    """The value so escaped that `java.util.Properties` reads it back unchanged."""
    marked = (
        value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    units = marked.encode("utf-16-be", "replace")
    found = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    escaped = "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04X}" for unit in found)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _logical_lines(natural_lines: Sequence[str]) -> list[tuple[int, int, str]]:
    """Lines without comments and blanks, continuations joined, each with the numbers of its first and last line."""
    lines: list[tuple[int, int, str]] = []
    first, parts = 0, list[str]()  # a continued line: where it starts, its parts
    for number, natural in enumerate(natural_lines, 1):
        stripped = natural.lstrip(_BLANK)
        if not parts and (not stripped or stripped[0] in "#!"):
            first = 0
            continue
        first = first or number
        trailing_backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if trailing_backslashes % 2:
            parts += [stripped[:-1]] if len(stripped) > 1 else []
        else:
            lines.append((first, number, "".join((*parts, stripped))))
            first, parts = 0, []
    if parts:  # a backslash at the end of the file continues nothing
        lines.append((first, len(natural_lines), "".join(parts)))
    return lines


def _unescape(text: str, file: str | None, line: int) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "u":
            raise ConfigurationError(file, line, None, "\\u must be followed by four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROL.get(code, code)

    found = _ESCAPE.sub(replace, text)
    if _SURROGATE.search(found):  # Java's strings hold a character beyond 16 bits as two
        found = found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return found


def setting(java: str, default: Any, kind: str = "", *, unit: str = "", is_secret: bool = False) -> Any:
    """A dataclass field that a file sets under a Java name. The default is a value, or a function that makes it.

    `kind` is Java's type if `java_settings.py` does not have the name.
    """
    metadata = {"java": java, "kind": kind, "unit": unit, "is_secret": is_secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not is_secret)
    return field(default=default, metadata=metadata, repr=not is_secret)


def java_value(kind: str, text: str) -> int | float | bool | str:
    """The value of a Java type: int, long, boolean, double or String. ValueError with the rule for an invalid text."""
    if kind in _INTEGER_BITS:
        bound = 1 << (_INTEGER_BITS[kind] - 1)
        if not _INTEGER.fullmatch(text) or not -bound <= int(text) < bound:
            raise ValueError(f"{text!r} is not a plain integer of {_INTEGER_BITS[kind]} bits")
        return int(text)
    if kind == "boolean":
        return text.lower() == "true"
    if kind == "double":
        return float(text)
    return text.strip(_BLANKS)
