"""Positions and maps as Java's BloomFilter gives them: those of groups and topics were printed by 5.3.3's class, hashes are Guava's."""

from __future__ import annotations

import numpy as np
import pytest

from storage.format.bloom_filter import BloomFilter, murmur3_low

SHAPE = BloomFilter.of(20, 32)


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("", 0),
        ("hello", 0xCBD8A7B341BD9B02),
        ("The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C),
    ],
)
def test_hashes_are_those_of_murmur3(text: str, low: int) -> None:
    assert murmur3_low(text.encode()) == low


def test_the_default_filter_has_three_positions_in_112_bits() -> None:
    assert SHAPE == (3, 112)


@pytest.mark.parametrize(
    ("key", "positions"),
    [
        ("g#T", (90, 68, 28)),
        ("CG#TopicTest", (109, 15, 3)),
        ("GroupSql#TopicA", (18, 79, 65)),
        ("GroupSql2#TopicA", (58, 0, 84)),
    ],
)
def test_positions_are_javas(key: str, positions: tuple[int, ...]) -> None:
    assert SHAPE.positions(key) == positions


@pytest.mark.parametrize(("error_percent", "expected"), [(0, 32), (100, 32), (20, 0)])
def test_shapes_that_java_refuses_are_refused(error_percent: int, expected: int) -> None:
    with pytest.raises(ValueError, match="is"):
        BloomFilter.of(error_percent, expected)


def test_a_map_has_the_positions_of_those_that_want_the_message() -> None:
    first, second = (90, 68, 28), (109, 15, 3)
    maps = SHAPE.maps([(first, np.array([True, False, True])), (second, np.array([False, False, True]))], 3)
    assert maps.shape == (3, 14)
    assert [[bit for bit in range(112) if row[bit // 8] >> bit % 8 & 1] for row in maps.tolist()] == [
        sorted(first),
        [],
        sorted(first + second),
    ]
    assert SHAPE.has(maps, first).tolist() == [True, False, True]
    assert SHAPE.has(maps, second).tolist() == [False, False, True]
    assert SHAPE.has(maps[:0], second).tolist() == []
