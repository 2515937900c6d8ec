"""More rows than 16 bits count, through kernels and through the exact path: the same, from the first row to the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.format.java_hash import string_hashes
from storage.format.kernels.compiled import DECODE, ENCODE, sealed
from storage.format.keys import UniqueKeys, message_keys
from storage.format.properties import encode_columns
from storage.format.record_block import OutgoingMessages, encode_block
from tests.support.kernels import ON, both, kernels, loaded, need_kernels
from tests.support.message_builder import HOST_V4

ROWS = (1 << 16) + 300
CODES = np.where(np.arange(ROWS) % 1_000, 0, 1).astype(np.int32)
"""Of the first queue alone there are more than 16 bits count."""
TEXTS = pa.array([f"key-{row % 70_001}" for row in range(ROWS)], pa.large_string())
NUMBERS = np.arange(ROWS, dtype=np.int64) * 1_000_003


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    need_kernels()


def unique_keys() -> list[Any]:
    keys = UniqueKeys(bytes(range(10)), 5, ROWS)
    return [keys.texts(), keys.hashes_behind(NUMBERS.astype(np.uint32)), keys.hashes_behind(np.array([7], np.uint32))]


def strings_of_properties() -> list[Any]:
    return [encode_columns({"A": "b"}, {"UNIQ_KEY": TEXTS, "KEYS": TEXTS}, None)]


def hashes_of_keys() -> list[Any]:
    found = string_hashes(TEXTS)
    return [found, *message_keys(np.array([1], np.uint32), np.abs(found), TEXTS)]


def records() -> list[Any]:
    number, bodies = NUMBERS.astype(np.int32), TEXTS.cast(pa.large_binary())
    counts, hashes = np.zeros(ROWS, np.int32), np.zeros(0, np.int32)
    queues = (("T", 0), ("Other", 3))
    block = encode_block(
        OutgoingMessages(queues, CODES, bodies, bodies, number, number & 8, NUMBERS, NUMBERS, counts, hashes), HOST_V4
    )
    return [block.data, *(column for column in block.columns if isinstance(column, np.ndarray))]


@pytest.mark.parametrize(
    "made",
    [unique_keys, strings_of_properties, hashes_of_keys, records],
    ids=lambda made: made.__name__,
)
def test_rows_beyond_16_bits_are_the_same(made: Callable[[], list[Any]]) -> None:
    exact, by_kernels = both(lambda: [_comparable(part) for part in made()])
    assert len(exact) == len(by_kernels)
    for number, (one, other) in enumerate(zip(exact, by_kernels, strict=True)):
        assert one == other, f"part {number}"


def _comparable(part: Any) -> object:
    return (str(part.dtype), part.tobytes()) if isinstance(part, np.ndarray) else part


def test_a_walk_finds_so_many_records_and_their_topics() -> None:
    with kernels(ON):
        assert ENCODE.for_rows() is not None
        data = records()[0]
    walking = loaded(DECODE)
    positions, sizes, properties = (np.zeros(ROWS + 1, np.int64) for _ in range(3))
    assert walking.walk(sealed(data), 0, positions, sizes, properties) == ROWS
    assert (positions[0], positions[ROWS - 1] + sizes[ROWS - 1]) == (0, len(data))
    assert np.array_equal(positions[1:ROWS], np.cumsum(sizes[: ROWS - 1]))
