"""Java's hashes: the values are what a JDK 17 prints, or what the broker wrote into its queues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.arrays import body_crc, index_key_hash, string_hash, string_hashes
from storage.format.keys import index_hashes
from tests.support.fixture_stores import Fixture, golden_lines

HASHES = {
    "": 0,
    "a": 97,
    "TagA": 2598919,
    "TopicA#key1": 641858179,
    "Aa": 2112,
    "BB": 2112,
    "AaAa": 2031744,
    "é": 233,
    "ÿ": 255,
    "\uffff": 65535,
    "标签": 857175,
    "日本語": 25921943,
    "😀": 1772899,
    "a😀b": 57849694,
    "Topic#😀": -890935977,
    "\0": 0,
    "\0a": 97,
    "polygenelubricants": -(2**31),
    "rwnamjlkqcgtq": -2038185026,
}


@pytest.mark.parametrize(("text", "value"), HASHES.items())
def test_a_string_has_the_hash_that_java_gives_it(text: str, value: int) -> None:
    assert string_hash(text) == value
    assert string_hashes(pa.array([text])).tolist() == [value]


@pytest.mark.parametrize("texts", [list(HASHES), [text for text in HASHES if text.isascii()]])
def test_all_at_once_they_are_the_same(texts: list[str]) -> None:
    assert string_hashes(pa.array(texts)).tolist() == [HASHES[text] for text in texts]


def test_the_index_takes_the_absolute_value_and_zero_where_java_has_none() -> None:
    expected = {text: 0 if value == -(2**31) else abs(value) for text, value in HASHES.items()}
    assert {text: index_key_hash(text) for text in HASHES} == expected
    assert index_hashes(string_hashes(pa.array(list(HASHES))).view(np.uint32)).tolist() == list(expected.values())


@pytest.mark.parametrize("name", ["clean", "ext"])
def test_tags_have_the_codes_that_the_broker_entered(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    codes = {
        line["properties"]["TAGS"]: line["tagsCode"]
        for line in golden_lines(pristine_store(name).golden, "message")
        if "TAGS" in line["properties"] and line["topic"] != "SCHEDULE_TOPIC_XXXX"
    }
    assert len(codes) >= 3
    assert string_hashes(pa.array(list(codes))).tolist() == list(codes.values())


@given(st.lists(st.none() | st.text(max_size=40)), st.data())
def test_many_have_the_hashes_of_each_one(texts: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    array = pa.array(texts, pa.string())
    expected = [string_hash(text or "") for text in texts]
    assert string_hashes(array).tolist() == expected
    assert string_hashes(array[start:]).tolist() == expected[start:]
    assert index_hashes(string_hashes(array).view(np.uint32)).tolist() == [index_key_hash(text or "") for text in texts]


@given(st.lists(st.none() | st.text(st.characters(max_codepoint=127), max_size=40)), st.data())
def test_ascii_takes_a_way_of_its_own_to_the_same_hashes(texts: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    array = pa.array(texts, pa.string())[start:]
    assert string_hashes(array).tolist() == [string_hash(text or "") for text in texts[start:]]


def test_long_strings_do_not_lose_bits() -> None:
    texts = ["x" * 10_000, "", "z" * 100_000, "a"]
    assert string_hashes(pa.array(texts)).tolist() == [string_hash(text) for text in texts]


def test_the_body_crc_has_no_sign(pristine_store: Callable[[str], Fixture]) -> None:
    assert body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert body_crc(b"") == 0
