"""Values of SQL92 filters, compared as Java compares them. Pure. Java: ComparisonExpression, Integer.valueOf, Double.valueOf."""

from __future__ import annotations

import re

Value = str | bool | int | float | None


class Long(int):
    """A number of 64 bits; other integers have 32."""


class EvaluationError(Exception):
    """Raised where Java throws: the message does not match."""


def is_number(value: Value) -> bool:
    """Whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(left: Value, right: Value) -> int:
    """−1, 0 or 1, as Java compares two values that are there; of kinds that do not fit −1. Java: ComparisonExpression.__compare."""
    if isinstance(left, str) and isinstance(right, str):
        return _order(left.encode("utf-16-be", "surrogatepass"), right.encode("utf-16-be", "surrogatepass"))
    if isinstance(left, bool) and isinstance(right, str):
        raise EvaluationError("a truth value stands left of a text")
    if isinstance(left, str):
        left = _read_as(left, right)
    elif isinstance(right, str):
        right = _read_as(right, left)
    if isinstance(left, bool) != isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _order(_double_key(float(left or 0)), _double_key(float(right or 0)))
    return _order(left, right)


def _read_as(text: str, beside: Value) -> Value:
    """The text as a value of the other's kind."""
    if isinstance(beside, bool):
        return text.lower() == "true"
    if isinstance(beside, float):
        return read_double(text)
    bits = 64 if isinstance(beside, Long) else 32
    found = _INTEGER.fullmatch(text)
    value = None if found is None else int("".join(found.groups()))
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise EvaluationError(f"{text!r:.80} is no number of {bits} bits")
    return value


_INTEGER = re.compile(r"([+-]?)0*(\d{1,19})")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|"
    r"0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?)",
    re.ASCII,
)
_BLANKS = "".join(map(chr, range(0x21)))


def read_double(text: str) -> float:
    """Java: Double.valueOf."""
    number = text.strip(_BLANKS)
    if not _DOUBLE.fullmatch(number):
        raise EvaluationError(f"{text!r} is no number")
    if "x" in number.lower():
        return _hex_double(number.rstrip("fFdD") if number[-1] in "fFdD" and "p" in number.lower() else number)
    return float(number if number.endswith(("NaN", "Infinity")) else number.rstrip("fFdD"))


def _hex_double(number: str) -> float:
    try:
        return float.fromhex(number)
    except OverflowError:
        return float("-inf" if number.startswith("-") else "inf")


def _double_key(value: float) -> tuple[bool, float, bool]:
    """In Java's order: −0.0 before 0.0, NaN behind everything. Java: Double.compareTo."""
    if value != value:
        return True, 0.0, True
    return False, value, value != 0 or str(value)[0] != "-"


def _order(left: object, right: object) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]
