"""The words of an SQL92 filter expression, one at a time as the parser asks for them. Java: SelectorParser.jj, its tokens.

So what stands behind a complete expression is looked at no further than one word.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>[1-9][0-9]*[lL]?|0)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>()+,-])"
)


class SqlError(ValueError):
    """An expression that no broker takes. Java: MQFilterException."""


class Token(NamedTuple):
    """A word: `kind` is integer, float, string, name, a keyword in capitals, a sign, or "" at the end."""

    kind: str
    text: str


END = Token("", "")


class Tokens:
    """The words of a text. Raises SqlError where one is looked at that is none."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._seen: list[Token] = []

    def peek(self, ahead: int = 0) -> Token:
        """The next word, or one behind it."""
        while len(self._seen) <= ahead:
            self._seen.append(self._read())
        return self._seen[ahead]

    def take(self) -> Token:
        """The next word; it is gone over."""
        token = self.peek()
        del self._seen[0]
        return token

    def takes(self, *kinds: str) -> bool:
        """Go over the next words if they are of these kinds."""
        if any(self.peek(number).kind != kind for number, kind in enumerate(kinds)):
            return False
        del self._seen[: len(kinds)]
        return True

    def expect(self, kind: str) -> Token:
        """The next word, which must be of that kind."""
        if self.peek().kind != kind:
            raise SqlError(f"{self.peek().text!r} stands where {kind} is expected")
        return self.take()

    def _read(self) -> Token:
        if found := _SKIPPED.match(self._text, self._at):
            self._at = found.end()
        if self._at >= len(self._text):
            return END
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise SqlError(f"no word begins with {self._text[self._at]!r} at position {self._at}")
        self._at = found.end()
        text, kind = found.group(), found.lastgroup or ""
        if kind == "name" and text.upper() in KEYWORDS:
            return Token(text.upper(), text)
        return Token(text if kind == "sign" else kind, text)
