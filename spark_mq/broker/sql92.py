"""SQL92 filter expressions over a message's properties, with Java's rules of null, numbers and texts. Pure.

    expression = compile_expression("price > 10 AND color IN ('red', 'blue')")
    expression({"price": "12", "color": "red"})      # True

Properties are texts; an absent property is null. Only TRUE matches; an evaluation that fails does not match. Text after a complete
expression is ignored. Integers, longs and doubles differ: a text is converted to the type of the number that it is compared with, and
"3.5" is no integer.
Java: SelectorParser, ComparisonExpression, LogicExpression, UnaryExpression, ConstantExpression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

Properties = Mapping[str, str]
Value = str | bool | int | float | None


class _Node(NamedTuple):
    """A part of an expression: what it is for a message, and what the compiler may know of it."""

    evaluate: Callable[[Properties], Value]
    is_boolean: bool = False
    name: str | None = None
    """Name of a bare property."""
    is_constant: bool = False

    @property
    def constant(self) -> Value:
        return self.evaluate({})


class Expression:
    """A compiled expression; calling it says whether a message with these properties matches."""

    def __init__(self, text: str, node: _Node) -> None:
        self.text = text
        self._evaluate = node.evaluate

    def __call__(self, properties: Properties) -> bool:
        try:
            return self._evaluate(properties) is True
        except (EvaluationError, RecursionError):
            return False


@lru_cache(128)
def compile_expression(text: str) -> Expression:
    """Raises SqlError where Java refuses the text. The last ones are kept: a pull may carry its expression each time."""
    try:
        return Expression(text, _as_boolean(_or(Tokens(text))))
    except EvaluationError as error:
        raise SqlError(str(error)) from error
    except RecursionError:
        raise SqlError("it is nested too deeply") from None


# Words


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
    """The words of a text, one at a time as the parser asks for them. Raises SqlError where one is looked at that is none.

    So what stands behind a complete expression is looked at no further than one word. Java: SelectorParser.jj, its tokens.
    """

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


# Grammar, weakest binding first


def _or(tokens: Tokens) -> _Node:
    left = _and(tokens)
    while tokens.takes("OR"):
        left = _either(_as_boolean(left), _as_boolean(_and(tokens)))
    return left


def _and(tokens: Tokens) -> _Node:
    left = _equality(tokens)
    while tokens.takes("AND"):
        left = _both(_as_boolean(left), _as_boolean(_equality(tokens)))
    return left


def _equality(tokens: Tokens) -> _Node:
    left = _comparison(tokens)
    while True:
        if tokens.takes("="):
            left = _equal(left, _comparison(tokens))
        elif tokens.takes("<>"):
            left = _not(_equal(left, _comparison(tokens)))
        elif tokens.takes("IS", "NULL"):
            left = _same(left, _NULL)
        elif tokens.takes("IS"):
            tokens.expect("NOT")
            tokens.expect("NULL")
            left = _not(_same(left, _NULL))
        else:
            return left


_WITHIN: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_ORDERS: Mapping[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _comparison(tokens: Tokens) -> _Node:
    left = _unary(tokens)
    while True:
        kind = tokens.peek().kind
        if kind in _ORDERS:
            tokens.take()
            left = _ordered(kind, left, _unary(tokens))
            continue
        negated = kind == "NOT"
        kind = tokens.peek(1).kind if negated else kind
        if kind not in _WITHIN and kind not in ("BETWEEN", "IN"):
            if negated:
                raise SqlError(f"NOT stands before {tokens.peek(1).text!r}")
            return left
        for _ in range(1 + negated):
            tokens.take()
        if kind == "BETWEEN":
            left = _between(tokens, left, negated)
        elif kind == "IN":
            left = _in(tokens, left, negated)
        else:
            left = _part(_WITHIN[kind], left, _string(tokens), negated)


def _unary(tokens: Tokens) -> _Node:
    if tokens.takes("+"):
        return _unary(tokens)
    if tokens.takes("-"):
        return _negative(_unary(tokens))
    if tokens.takes("NOT"):
        return _not(_as_boolean(_unary(tokens)))
    return _primary(tokens)


def _primary(tokens: Tokens) -> _Node:
    kind = tokens.peek().kind
    match kind:
        case "string":
            return _constant(_string(tokens))
        case "integer":
            return _constant(_integer(tokens.take().text))
        case "float":
            return _constant(_double_constant(tokens.take().text))
        case "TRUE" | "FALSE" | "NULL":
            tokens.take()
            return {"TRUE": _TRUE, "FALSE": _FALSE, "NULL": _NULL}[kind]
        case "name":
            name = tokens.take().text
            return _Node(lambda properties: properties.get(name), name=name)
        case "(":
            tokens.take()
            inside = _or(tokens)
            tokens.expect(")")
            return inside
    raise SqlError(f"{tokens.peek().text!r} begins no value")


def _string(tokens: Tokens) -> str:
    return tokens.expect("string").text[1:-1].replace("''", "'")


def _integer(text: str) -> int:
    digits = text.rstrip("lL")
    value = int(digits[:20])
    if len(digits) > 19 or value >= 1 << 63:
        raise SqlError(f"{text[:40]} is no number of 64 bits")
    return value if value < 1 << 31 else Long(value)


def _double_constant(text: str) -> float:
    value = float(text)
    if not 5e-324 <= value < float("inf"):
        raise SqlError(f"{text} is no double above 0")
    return value


def _constant(value: Value, *, is_boolean: bool = False) -> _Node:
    return _Node(lambda _: value, is_boolean=is_boolean, is_constant=True)


_TRUE, _FALSE, _NULL = (_constant(value, is_boolean=True) for value in (True, False, None))


# Rules


def _as_boolean(node: _Node) -> _Node:
    if node.is_boolean:
        return node
    if node.name is None:
        raise SqlError("an expression that is neither true nor false")

    def cast(properties: Properties) -> Value:
        return None if node.evaluate(properties) is None else False  # a property is a text

    return _Node(cast, is_boolean=True)


def _either(left: _Node, right: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        first = left.evaluate(properties)
        if first:
            return True
        second = right.evaluate(properties)
        if second:
            return True
        return None if first is None or second is None else False

    return _Node(evaluate, is_boolean=True)


def _both(left: _Node, right: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        first = left.evaluate(properties)
        if first is False:
            return False
        second = right.evaluate(properties)
        if second is False:
            return False
        return None if first is None or second is None else True

    return _Node(evaluate, is_boolean=True)


def _not(node: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None else not value

    return _Node(evaluate, is_boolean=True)


def _negative(node: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        if isinstance(value, bool | str) or value is None:
            return None
        if isinstance(value, float):
            return -value
        return Long(-value) if isinstance(value, Long) else -value

    return _Node(evaluate)


def _equal(left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        if node.is_constant and node.constant is None:
            raise SqlError("NULL cannot be compared")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise SqlError("a truth value cannot be compared with another constant")
    return _same(left, right)


def _same(left: _Node, right: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        first, second = left.evaluate(properties), right.evaluate(properties)
        if first is None or second is None:
            return True if first is second else None if first is None else False
        return compare(first, second) == 0

    return _Node(evaluate, is_boolean=True)


def _ordered(sign: str, left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        is_numeric = node.is_constant and is_number(node.constant)
        if (node.is_constant or node.is_boolean) and not is_numeric:
            raise SqlError(f"no number beside {sign}")
    holds = _ORDERS[sign]

    def evaluate(properties: Properties) -> Value:
        first = left.evaluate(properties)
        if first is None:
            return None
        second = right.evaluate(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return holds(compare(read_double(first), read_double(second)))
        return holds(compare(first, second))

    return _Node(evaluate, is_boolean=True)


def _between(tokens: Tokens, value: _Node, negated: bool) -> _Node:
    low = _unary(tokens)
    tokens.expect("AND")
    high = _unary(tokens)
    if negated:
        return _either(_ordered("<", value, low), _ordered(">", value, high))
    if low.is_constant and high.is_constant:
        least, most = low.constant, high.constant
        if least is None or most is None or compare(most, least) < 0:
            raise SqlError("BETWEEN wants two values, the lower one first")
    return _both(_ordered(">=", value, low), _ordered("<=", value, high))


def _in(tokens: Tokens, left: _Node, negated: bool) -> _Node:
    tokens.expect("(")
    texts = {_string(tokens)}
    while tokens.takes(","):
        texts.add(_string(tokens))
    tokens.expect(")")
    if left.name is None:
        raise SqlError("IN stands behind a property alone")

    def evaluate(properties: Properties) -> Value:
        value = left.evaluate(properties)
        return None if value is None else (value in texts) != negated

    return _Node(evaluate, is_boolean=True)


def _part(holds: Callable[[str, str], bool], left: _Node, part: str, negated: bool) -> _Node:
    def evaluate(properties: Properties) -> Value:
        value = left.evaluate(properties)
        return bool(part) and isinstance(value, str) and holds(value, part) != negated

    return _Node(evaluate, is_boolean=True)


# Values, compared as Java compares them. Java: ComparisonExpression, Integer.valueOf, Double.valueOf.


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
