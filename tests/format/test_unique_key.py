"""Unique keys and the hashes under which the index holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.java_hash import index_key_hash, string_hash
from storage.format.keys import UniqueKeys, hashes_behind, index_hashes

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
