"""Texts of strangers as people see them: every character that is not drawn, or that makes others be drawn elsewhere, is written out.

These are controls, the marks of right-to-left text, and blanks without width: `⟨ESC⟩`, `⟨U+202E⟩`. Letters of any script stay.
"""

from __future__ import annotations

import re

_CONTAINER_FIRST = ("abfs", "abfss", "wasb", "wasbs")
"""URLs that name a container where others have a user."""
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_HIDDEN_IN_LINES = re.compile(f"(?![\n\t\ufffd]){_HIDDEN.pattern}")
_SHOWN_AS_IT_IS = "\ufffd"
_NAMES = {"\0": "NUL", "\t": "TAB", "\n": "LF", "\r": "CR", "\x1b": "ESC", "\x7f": "DEL"}


def _mark(found: re.Match[str]) -> str:
    character = found.group()
    if character == _SHOWN_AS_IT_IS:
        return character
    name = _NAMES.get(character) or f"U+{ord(character):04X}"
    return f"⟨{name}⟩"


def visible(text: str) -> str:
    """A text of one line: every character that is not drawn, line ends among them, is written out."""
    return _HIDDEN.sub(_mark, text)


def visible_lines(text: str) -> str:
    """The same of a text with lines and tabs."""
    return _HIDDEN_IN_LINES.sub(_mark, text.replace("\r\n", "\n"))


def shown_place(place: str) -> str:
    """A path as it is; a URL without what may be secret in it: user and password, query, fragment."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return place
    rest, _, _ = rest.partition("#")
    rest, _, _ = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    shown_user = user + at if scheme in _CONTAINER_FIRST and ":" not in user else ""
    return f"{scheme}://{shown_user}{host}{slash}{path}"
