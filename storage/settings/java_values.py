"""How a broker or a name server reads the text of a setting, by the type that its setter has.

Java: MixAll.properties2Object. What it cannot read it ignores; whoever calls says so.
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTEGER_BITS = {"int": 32, "long": 64}
_BLANKS = "".join(map(chr, range(0x21)))  # as String.trim has them


def java_value(kind: str, text: str) -> int | float | bool | str:
    """The value of a Java type: int, long, boolean, double or String. ValueError with the rule where the text is none."""
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
