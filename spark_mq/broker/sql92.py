"""SQL92 filter expressions over a message's properties, with Java's rules of null, numbers and texts. Pure.

    expression = compile_expression("price > 10 AND color IN ('red', 'blue')")
    expression({"price": "12", "color": "red"})      # True

Properties are texts, absent ones null; only TRUE matches, and so does nothing that fails. What follows a complete expression is
dropped. Integers, longs and doubles differ: a text is read as the number that it meets, and "3.5" is no integer.
Java: SelectorParser, ComparisonExpression, LogicExpression, UnaryExpression, ConstantExpression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from spark_mq.broker.sql92_tokens import SqlError, Tokens
from spark_mq.broker.sql92_values import EvaluationError, Long, Value, compare, is_number, read_double

Properties = Mapping[str, str]


class _Node(NamedTuple):
    """A part of an expression: what it is for a message, and what the compiler may know of it."""

    evaluate: Callable[[Properties], Value]
    is_boolean: bool = False
    name: str | None = None
    """Of a bare property."""
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
