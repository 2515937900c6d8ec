"""Text and bytes of strangers, as pages show them: nothing hides, nothing is unbounded, nothing is changed that is shown."""

from __future__ import annotations

import json
import re
import sys
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.cli.visible_text import shown_place, visible, visible_lines
from spark_mq.console.shown import (
    ALL_CHARACTERS,
    HEX_BYTES,
    JSON_BYTES,
    TEXT_CHARACTERS,
    as_hex,
    as_json,
    as_text,
)


def test_every_character_that_is_not_drawn_or_turns_others_is_written_out() -> None:
    hidden = [
        character
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(character := chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    assert len(hidden) > 2_000  # with the surrogates
    for character in hidden:
        assert character not in visible(f"a{character}b")
        assert re.fullmatch(r"a⟨([A-Z]{2,3}|U\+[0-9A-F]{4,6})⟩b", visible(f"a{character}b")), hex(ord(character))


@pytest.mark.parametrize("text", ["plain", "grün", "日本語", "שלום", "مرحبا", "😀", "a\u00a0b", "e\u0301", "\ufffd"])
def test_what_is_drawn_stays(text: str) -> None:
    assert visible(text) == text


def test_lines_and_tabs_stay_in_a_body_alone() -> None:
    assert visible("a\n\tb\r\n") == "a⟨LF⟩⟨TAB⟩b⟨CR⟩⟨LF⟩"
    assert visible_lines("a\n\tb\r\nc\rd\x00") == "a\n\tb\nc⟨CR⟩d⟨NUL⟩"


def test_a_body_is_cut_at_its_bound() -> None:
    assert as_text(b"x" * TEXT_CHARACTERS).is_whole
    cut = as_text(b"x" * (TEXT_CHARACTERS + 1))
    assert (len(cut.text), cut.is_whole) == (TEXT_CHARACTERS, False)
    whole = b"x" * ALL_CHARACTERS
    assert as_text(whole, everything=True) == (whole.decode(), True)
    assert not as_text(b"x" * (ALL_CHARACTERS + 1), everything=True).is_whole
    assert as_text("é".encode() * TEXT_CHARACTERS).is_whole


def test_the_bound_is_of_the_characters_that_are_shown() -> None:
    for body in (b"\x01" * (ALL_CHARACTERS // 2), b"[" + b'"\\u0001",' * 100_000 + b'"\xc2\x85"]'):
        for shown in (as_text, as_json):
            part = shown(body, everything=True)
            assert part is None or len(part.text) <= ALL_CHARACTERS
    cut = as_text(b"\x01" * (ALL_CHARACTERS // 2), everything=True)
    assert (len(cut.text), cut.is_whole) == (ALL_CHARACTERS, False)


def test_indentation_does_not_make_a_small_body_large() -> None:
    deep = b"[" * 500 + b",".join([b"1"] * 50_000) + b"]" * 500
    tracemalloc.start()
    try:
        part = as_json(deep)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert part is not None
    assert (len(part.text), part.is_whole) == (TEXT_CHARACTERS, False)
    assert peak < 20 << 20  # with the values of the body; the whole text would be 50 MB
    few = as_json(b"[" * 500 + b"1,2" + b"]" * 500, everything=True)
    assert few is not None
    assert few.is_whole
    assert json.loads(few.text) == json.loads(b"[" * 500 + b"1,2" + b"]" * 500)
    assert max(map(len, few.text.split("\n"))) < 100


def test_bytes_that_are_no_text_are_marked() -> None:
    assert as_text(b"a\xff\xfeb").text == "a\ufffd\ufffdb"


def test_hex_has_place_bytes_and_letters() -> None:
    text, is_whole = as_hex(bytes(range(16)) + b"<b>")
    first, second = text.split("\n")
    assert first == "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert second.startswith("00000010  3c 62 3e ")
    assert second.endswith(" <b>")
    assert is_whole
    assert not as_hex(b"x" * (HEX_BYTES + 1)).is_whole


def test_json_is_indented_and_its_numbers_and_double_names_stay() -> None:
    part = as_json(b'{"a":1.10,"a":12345678901234567890123,"b":[],"c":{},"d":[1,{"e":null}],"f":"\\u202e<b>"}')
    assert part is not None
    assert part.text.split("\n") == [
        "{",
        '  "a": 1.10,',
        '  "a": 12345678901234567890123,',
        '  "b": [],',
        '  "c": {},',
        '  "d": [',
        "    1,",
        "    {",
        '      "e": null',
        "    }",
        "  ],",
        '  "f": "⟨U+202E⟩<b>"',
        "}",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8", categories=("L", "N", "P"))),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_indented_json_is_the_same_value(value: object) -> None:
    part = as_json(json.dumps(value).encode())
    assert part is not None
    assert json.loads(part.text) == value


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"{", b"\xff", b"[" * 100_000, b"9" * 5_000 + b"x", b'"' + b"x" * JSON_BYTES + b'"'],
    ids=["empty", "text", "open", "bytes", "deep", "digits", "large"],
)
def test_what_is_no_json_or_too_much_is_not_shown_as_json(body: bytes) -> None:
    assert as_json(body) is None


def test_long_numbers_are_no_trouble() -> None:
    assert as_json(b"[" + b"9" * 10_000 + b"]") is not None


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/data/a#b?c@d/store", "/data/a#b?c@d/store"),
        ("s3://bucket/store", "s3://bucket/store"),
        ("sftp://user:pass@word@host:22/a/b", "sftp://host:22/a/b"),
        ("https://account.example/table?sig=secret#secret", "https://account.example/table"),
        ("abfs://box@account.example/table?sig=secret", "abfs://box@account.example/table"),
        ("https://host?sig=secret@x/", "https://host"),
    ],
)
def test_a_place_is_shown_without_secrets(place: str, shown: str) -> None:
    assert shown_place(place) == shown
