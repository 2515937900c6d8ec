"""The format of java.util.Properties: the cases of Java's documentation of Properties.load."""

from __future__ import annotations

from random import Random

import pytest

from storage.errors import ConfigurationError
from storage.settings.java_properties import changed_properties, parse_properties


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (b"Truth = Beauty", [("Truth", "Beauty")]),
        (b" Truth:Beauty", [("Truth", "Beauty")]),
        (b"Truth                    :Beauty", [("Truth", "Beauty")]),
        (b"Truth Beauty", [("Truth", "Beauty")]),
        (b"Truth\tBeauty", [("Truth", "Beauty")]),
        (b"a = = b", [("a", "= b")]),
        (b"a==b:c", [("a", "=b:c")]),
        (
            b"fruits                           apple, banana, pear, \\\n"
            b"                                  cantaloupe, watermelon, \\\n"
            b"                                  kiwi, mango",
            [("fruits", "apple, banana, pear, cantaloupe, watermelon, kiwi, mango")],
        ),
        (b"cheeses", [("cheeses", "")]),
        (b"a=", [("a", "")]),
        (b"a=b  ", [("a", "b  ")]),
        (b"# no\n  ! no either\n\n \t\f\na=b", [("a", "b")]),
        (b"# a comment is not continued \\\na=b", [("a", "b")]),
        (b"\\\n# a comment\na=b", [("a", "b")]),
        (b"a=b\\\n# no comment", [("a", "b# no comment")]),
        (b"a=b\r\nc=d\re=f", [("a", "b"), ("c", "d"), ("e", "f")]),
        (b"a=b\\\r\n  c", [("a", "bc")]),
        (b"a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        (b"a=b\\\n\nc=d", [("a", "b"), ("c", "d")]),
        (b"a=b\\", [("a", "b")]),
        (b"a\\=b\\:c\\ d=e", [("a=b:c d", "e")]),
        (b'a=\\t\\n\\r\\f\\q\\\\\\"', [("a", '\t\n\r\fq\\"')]),
        (b"a=\\u6d88\\u606F", [("a", "\u6d88\u606f")]),
        (b"a=b\nb=1\na=c", [("a", "b"), ("b", "1"), ("a", "c")]),
        (b"a=1\x0b2\x852\x1c3", [("a", "1\x0b2\x852\x1c3")]),
        (b"", []),
        (b"\\", []),
        (b"\\\n\\\na=b", [("a", "b")]),
        (b"a=b\\\n\\\n#c", [("a", "b#c")]),
    ],
)
def test_a_file_is_read_as_java_reads_it(content: bytes, settings: list[tuple[str, str]]) -> None:
    assert [(found.key, found.value) for found in parse_properties(content)] == settings


def test_the_encoding_is_latin_1_so_utf8_arrives_as_garbled_as_in_a_broker() -> None:
    assert parse_properties("a=\u00fc".encode())[0].value == "\u00c3\u00bc"


def test_a_setting_knows_the_line_where_it_begins() -> None:
    content = b"# comment\na=b\\\n  c\n\nd=e\\\r\n\r\nf=g"
    assert [(found.key, found.line) for found in parse_properties(content)] == [("a", 2), ("d", 5), ("f", 7)]


@pytest.mark.parametrize("escape", [b"\\u", b"\\u12", b"\\u12g4", b"\\uu0041"])
def test_a_malformed_unicode_escape_is_an_error_as_in_java(escape: bytes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_properties(b"a=b\nc=" + escape, "broker.conf")
    assert (caught.value.file, caught.value.line) == ("broker.conf", 2)


_PIECES = (
    *(b"# a comment\n", b"! another \\\n", b"\n", b" \t\n", b"a=1\n", b"b : 2\r\n", b"  c 3\r", b"\\\n"),
    *(b"d=4 \\\n   5\n", b"a\\\n=6\n", b"\\u0062=7\n", b"e=8\\\\\n", b"f=9\\\n# of the value\n", b"g", b"h=\\"),
)
_VALUES = ("new", "", " blank", "a\\b", "é😀", "x=y:z #!", "tab\tline\nend\r\f", "trailing ")


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_file_says_what_it_said_and_what_was_changed(seed: int) -> None:
    random = Random(seed)
    content = b"".join(random.choices(_PIECES, k=random.randint(0, 6)))
    changes = {name: random.choice(_VALUES) for name in random.sample("abcdefgxyz", random.randint(0, 4))}
    before = parse_properties(content)
    after = changed_properties(content, changes)
    told = {found.key: found.value for found in before}
    assert {found.key: found.value for found in parse_properties(after)} == told | changes
    kept = [found.key for found in before if found.key not in changes]
    assert [found.key for found in parse_properties(after) if found.key not in changes] == kept
    assert after.count(b"# a comment") == content.count(b"# a comment")
    if not changes:
        assert after == content
    order = list(dict.fromkeys(reversed([found.key for found in before])))[::-1]
    given = [found.key for found in parse_properties(after)]
    assert list(dict.fromkeys(reversed(given)))[::-1][: len(order)] == order


def test_comments_order_and_line_ends_stay_where_a_value_is_changed() -> None:
    content = b"# first\r\na=1\r\n\r\n  ! second\r\nb=2\r\nc = 3 \\\r\n  4\r\na=5"
    assert changed_properties(content, {"a": "x", "c": "y", "new": "z"}) == (
        b"# first\r\n\r\n  ! second\r\nb=2\r\nc=y\r\na=x\r\nnew=z\r\n"
    )
