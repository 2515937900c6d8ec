"""SQL92 filters with Java's rules. What the Apache broker makes of such expressions is in the conversation's vector too."""

from __future__ import annotations

from contextlib import suppress

import pytest

from spark_mq.broker.sql92 import SqlError, compile_expression

PROPERTIES = {"a": "1", "b": "3.5", "t": "true", "s": "it's red", "n": "-7", "big": "9999999999", "TAGS": "x"}

MATCHES = """a = 1
a = 1 junk
a > 0 AND b > 3.0
a > 007
a = 1 -- a comment
 AND b > 1.0
a = 1 /* another */ AND n < 0
b BETWEEN 3.0 AND 4.0
a NOT BETWEEN 2 AND 3
s CONTAINS 'red'
s = 'it''s red'
s startswith 'it'
s ENDSWITH 'red'
s NOT CONTAINS 'blue'
s IN ('blue', 'it''s red')
s NOT IN ('blue')
t = TRUE
missing IS NULL
a IS NOT NULL
missing IS NULL OR missing = 1
NOT (missing CONTAINS 'x')
NOT a
big > 5000000000
big = 9999999999L
n = -7
n < -.5
a <> 2
1 = 1.0
TRUE
(a = 1) = TRUE
a >= 1 AND a <= 1
b > .5E0
a < b OR a = 1
+a = 1
a = '1'"""

DOES_NOT_MATCH = """a
missing
a = 1.5
b > 3
a = 2
missing = 1
missing <> 1
NOT missing
s NOT CONTAINS 'red'
missing NOT CONTAINS 'x'
s CONTAINS ''
TAGS = 'y'
big > 5
big = 1
missing IN ('x')
missing NOT IN ('x')
-a = -1
a LIKE '1'
A = 1
TRUE = t
a = TRUE
FALSE
b = 1
missing > 1 OR missing < 1"""

REFUSED = """
a = 0.0
a >
a > 'x'
a > TRUE
a > (a = 1)
a = NULL
a <> NULL
1
'x'
1 AND a = 1
a BETWEEN 3 AND 2
a BETWEEN 'x' AND 'y'
1 IN ('x')
a IN (1)
a IN ()
a CONTAINS b
a NOT b
a IS 1
a != 1
a = 9223372036854775808
TRUE = 1
(a = 1
a = #"""


@pytest.mark.parametrize("text", MATCHES.replace("\n AND", " \x00 AND").replace(" \x00", "\n").split("\n"))
def test_it_matches(text: str) -> None:
    if text.lstrip().startswith("AND"):
        text = "a = 1 -- a comment\n" + text
    assert compile_expression(text)(PROPERTIES)


@pytest.mark.parametrize("text", DOES_NOT_MATCH.split("\n"))
def test_it_does_not_match(text: str) -> None:
    assert not compile_expression(text)(PROPERTIES)


@pytest.mark.parametrize("text", REFUSED.split("\n"))
def test_it_is_refused(text: str) -> None:
    with pytest.raises(SqlError):
        compile_expression(text)


@pytest.mark.parametrize("text", ["(" * 100_000, "NOT " * 100_000 + "a", "a = 1" + " OR a = 2" * 5_000, "9" * 100_000])
def test_hostile_texts_end_in_a_refusal_or_an_expression(text: str) -> None:
    with suppress(SqlError):
        compile_expression(text)(PROPERTIES)


@pytest.mark.parametrize(
    ("value", "text", "matches"),
    [
        ("0" * 5_000 + "7", "a = 7", True),
        ("-" + "0" * 5_000 + "7", "a < 7000000000", True),
        ("9" * 5_000, "a > 7", False),
        ("0x1p99999", "a > 1.5", True),
        ("-0x1p99999", "a < 1.5", True),
        ("1" * 5_000, "a > 1.5", True),
        ("0x1p99999", "a > b", True),
    ],
)
def test_numbers_that_python_refuses_are_what_java_makes_of_them(value: str, text: str, matches: bool) -> None:
    assert compile_expression(text)({"a": value, "b": "1"}) is matches
