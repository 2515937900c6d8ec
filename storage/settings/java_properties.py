"""The text format of java.util.Properties, as broker.conf uses it.

Java: Properties.load(InputStream), which BrokerStartup calls with the file's bytes, so the encoding is
ISO-8859-1 and every other character needs a `\\uXXXX` escape: a UTF-8 value arrives in the broker garbled,
and here in the same way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from storage.errors import ConfigurationError

_BLANK = " \t\f"
_KEY_END = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One setting of a file; `line` counts from 1 and is where its logical line begins."""

    key: str
    value: str
    line: int


def parse_properties(content: bytes, file: str | None = None) -> list[Property]:
    """All settings in the order of the file, doubles included (in Java the last one counts).

    A value keeps the blanks at its end, as in Java. Raises ConfigurationError for a malformed `\\u` escape,
    where Java throws too.
    """
    found = []
    for line, text in _logical_lines(content.decode("latin-1")):
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


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments and blanks, continuations joined, each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    first, begun = 0, list[str]()  # a line that goes on: where it began, its parts
    for number, natural in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        stripped = natural.lstrip(_BLANK)
        if not begun and (not stripped or stripped[0] in "#!"):
            first = 0
            continue
        first = first or number
        trailing_backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if trailing_backslashes % 2:
            begun += [stripped[:-1]] if len(stripped) > 1 else []
        else:
            lines.append((first, "".join((*begun, stripped))))
            first, begun = 0, []
    if begun:  # a backslash at the end of the file continues nothing
        lines.append((first, "".join(begun)))
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
