"""Unique keys, the keys of messages and their hashes; index files as Apache reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.format.arrays import index_key_hash, string_hash
from storage.format.keys import (
    HEADER_SIZE,
    HEADER_STRUCT,
    ITEM,
    NO_KEY,
    SLOT,
    HashedTexts,
    UniqueKeys,
    few_message_keys,
    hashes_behind,
    index_file_size,
    index_hashes,
    index_key,
    message_keys,
)
from tests.support.fixture_stores import Fixture, golden_lines

PREFIX = bytes.fromhex("00FF7A0000010000002A")


@pytest.mark.parametrize("first", [0, 255, 65_534, (1 << 32) - 2, (1 << 48) - 3])
def test_a_key_is_prefix_and_rank_in_upper_case_hex(first: int) -> None:
    found = UniqueKeys(PREFIX, first, 3).texts().to_pylist()
    assert found == [f"00FF7A0000010000002A{rank:012X}" for rank in range(first, first + 3)]


def test_ranks_end_where_their_digits_end() -> None:
    with pytest.raises(OverflowError, match="6 bytes"):
        UniqueKeys(PREFIX, (1 << 48) - 1, 2)
    with pytest.raises(ValueError, match="10 bytes, not 9"):
        UniqueKeys(PREFIX[:9], 0, 1)


def test_no_keys() -> None:
    keys = UniqueKeys(PREFIX, 5, 0)
    assert (len(keys.texts()), len(keys.hashes_behind(np.array([1], np.uint32)))) == (0, 0)


@given(st.lists(st.text(max_size=9), min_size=1, max_size=9), st.integers(0, (1 << 48) - 10))
def test_keys_hash_as_if_put_behind_the_topic(topics: list[str], first: int) -> None:
    keys = UniqueKeys(PREFIX, first, len(topics))
    prefixes = np.array([string_hash(f"{topic}#") & 0xFFFFFFFF for topic in topics], np.uint32)
    expected = [index_key_hash(f"{topic}#{key}") for topic, key in zip(topics, keys.texts().to_pylist(), strict=True)]
    assert index_hashes(keys.hashes_behind(prefixes)).tolist() == expected
    of_first = [index_key_hash(f"{topics[0]}#{key}") for key in keys.texts().to_pylist()]
    assert index_hashes(keys.hashes_behind(prefixes[:1])).tolist() == of_first


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=40)), max_size=9))
def test_the_hash_of_two_joined_texts_follows_from_the_firsts_hash(pairs: list[tuple[str, str]]) -> None:
    before = np.array([string_hash(first) & 0xFFFFFFFF for first, _ in pairs], np.uint32)
    behind = pa.array([second for _, second in pairs], pa.large_string())
    assert hashes_behind(before, behind).view(np.int32).tolist() == [
        string_hash(first + second) for first, second in pairs
    ]


def test_the_one_hash_without_absolute_value_is_zero() -> None:
    assert string_hash("polygenelubricants") == -(1 << 31)
    assert index_hashes(np.array([1 << 31, 0xFFFFFFFF, 7], np.uint32)).tolist() == [0, 1, 7]


def test_ranks_go_on_beyond_16_bits() -> None:
    count = (1 << 16) + 9
    keys = UniqueKeys(PREFIX, 5, count)
    assert keys.texts().to_pylist() == [f"00FF7A0000010000002A{5 + number:012X}" for number in range(count)]
    assert keys.hashes_behind(np.zeros(1, np.uint32)).view(np.int32)[-1] == string_hash(keys.texts()[-1].as_py())


WORDS = st.lists(st.sampled_from(["a", "b", "AaAa", "BBBB", "", "key-17", "x" * 40, "é"]), max_size=6).map(" ".join)


@example([("T", "a", "b k"), ("T", "k1", None)])  # as many keys as messages, and not one of each
@given(st.lists(st.tuples(st.sampled_from(["T", "U"]), st.none() | st.sampled_from(["a", "k1"]), st.none() | WORDS)))
def test_many_messages_have_the_keys_that_each_has_alone(rows: list[tuple[str, str | None, str | None]]) -> None:
    """The unique key, then each word once; a word whose hash the row has already counts as there ("AaAa" and "BBBB" are equal)."""
    topics = [topic for topic, _, _ in rows]
    named = [("UNIQ_KEY", "KEYS") for _ in rows]
    properties = [
        {n: v for n, v in zip(n2, (u, k), strict=True) if v} for n2, (_, u, k) in zip(named, rows, strict=True)
    ]
    prefixes = np.array([string_hash(f"{topic}#") & 0xFFFFFFFF for topic in topics], np.uint32)
    unique = [NO_KEY if key is None else index_key_hash(f"{topic}#{key}") for topic, key, _ in rows]
    keys = pa.array([keys for _, _, keys in rows], pa.large_string())
    counts, hashes = message_keys(prefixes, np.array(unique, np.int32), HashedTexts.of_keys(keys))
    few_counts, few_hashes = few_message_keys(topics, properties)
    assert (counts.tolist(), hashes.tolist()) == (few_counts.tolist(), few_hashes.tolist())


@pytest.mark.parametrize("name", ["clean", "ext", "roll", "recovered"])
def test_headers_are_those_that_apache_reads(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    lines = list(golden_lines(fixture.golden, "indexBefore"))
    assert lines
    for line in lines:
        data = (fixture.root / "index" / line["file"]).read_bytes()
        header = HEADER_STRUCT.unpack_from(data)
        assert header == (
            *(line["beginTimestamp"], line["endTimestamp"], line["beginPhyOffset"], line["endPhyOffset"]),
            *(line["hashSlotCount"], line["indexCount"]),
        )
        assert HEADER_STRUCT.pack(*header) == data[:HEADER_SIZE]


def test_the_length_follows_from_the_geometry(pristine_store: Callable[[str], Fixture]) -> None:
    for name in ("clean", "roll"):
        fixture = pristine_store(name)
        (config,) = golden_lines(fixture.golden, "config")
        for line in golden_lines(fixture.golden, "indexBefore"):
            assert index_file_size(config["maxHashSlotNum"], config["maxIndexNum"]) == line["length"]
    assert index_file_size(5_000_000, 20_000_000) == 420_000_040


def test_slots_and_items_hold_each_key_at_its_hash(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    (config,) = golden_lines(fixture.golden, "config")
    places: dict[int, set[int]] = {}
    for line in golden_lines(fixture.golden, "indexBefore"):
        data = (fixture.root / "index" / line["file"]).read_bytes()
        slots = np.frombuffer(data, SLOT, config["maxHashSlotNum"], HEADER_SIZE)
        items = np.frombuffer(data, ITEM, line["indexCount"], HEADER_SIZE + slots.nbytes)
        for slot, number in enumerate(slots.tolist()):
            while number:
                key_hash, commitlog_offset, _, previous = items[number].item()
                assert key_hash % len(slots) == slot
                assert previous < number
                places.setdefault(key_hash, set()).add(commitlog_offset)
                number = previous
    for line in golden_lines(fixture.golden, "message"):
        for key in [line["properties"].get("UNIQ_KEY"), *line["properties"].get("KEYS", "").split(" ")]:
            if key:
                assert line["physicalOffset"] in places[index_key_hash(index_key(line["topic"], key))]
