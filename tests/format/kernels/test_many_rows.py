"""More rows than 16 bits count, through kernels and through the exact path: the same, from the first row to the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.format.java_hash import string_hashes
from storage.format.kernels.compiled import DECODE, ENCODE, sealed
from storage.format.message_keys import message_keys
from storage.format.property_encoding import encode_columns
from storage.format.record_block import OutgoingMessages, encode_block, stamp, stamp_crcs
from storage.format.unique_key import UniqueKeys
from storage.index.store import IndexStore
from storage.index.writer import IndexWriter
from storage.log.dispatch import IndexKeys, entries_by_queue
from storage.log.placement import place
from tests.support.kernels import ON, both, kernels, loaded, need_kernels
from tests.support.message_builder import HOST_V4

ROWS = (1 << 16) + 300
CODES = np.where(np.arange(ROWS) % 1_000, 0, 1).astype(np.int32)
"""Of the first queue alone there are more than 16 bits count."""
TEXTS = pa.array([f"key-{row % 70_001}" for row in range(ROWS)], pa.large_string())
NUMBERS = np.arange(ROWS, dtype=np.int64) * 1_000_003
RECORD = 110


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


def stamps() -> list[Any]:
    data = np.arange(ROWS * RECORD, dtype=np.int64).astype(np.uint8)
    positions = RECORD * np.arange(ROWS)
    stamp(data, positions, NUMBERS, NUMBERS + 1, NUMBERS + 2, 8)
    stamp_crcs(data, positions, np.full(ROWS, RECORD, np.int32))
    return [data]


def places() -> list[Any]:
    return list(place(np.full(ROWS, 100, np.int32), CODES, np.array([7, 9]), 300, 1 << 20, 1 << 20))


def entries() -> list[Any]:
    sizes = np.full(ROWS, 100, np.int32)
    found = entries_by_queue([("T", 0), ("T", 1)], CODES, NUMBERS, sizes, NUMBERS, NUMBERS, NUMBERS)
    return [part for one in found for part in (one.entries, one.queue_offsets, one.store_times_ms)]


@pytest.mark.parametrize(
    "made",
    [unique_keys, strings_of_properties, hashes_of_keys, records, stamps, places, entries],
    ids=lambda made: made.__name__,
)
def test_rows_beyond_16_bits_are_the_same(made: Callable[[], list[Any]]) -> None:
    exact, by_kernels = both(lambda: [_comparable(part) for part in made()])
    assert len(exact) == len(by_kernels)
    for number, (one, other) in enumerate(zip(exact, by_kernels, strict=True)):
        assert one == other, f"part {number}"


def _comparable(part: Any) -> object:
    return (str(part.dtype), part.tobytes()) if isinstance(part, np.ndarray) else part


def test_an_index_file_of_so_many_keys_is_the_same(tmp_path: Path) -> None:
    def written() -> list[bytes]:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        files = LocalFileSystem()
        writer = IndexWriter(files, IndexStore(files, str(root), 1_000, ROWS + 9), lambda: 1_000)
        writer.append(IndexKeys((NUMBERS % (1 << 31)).astype(np.int32), NUMBERS, 1_700_000_000_000 + NUMBERS))
        writer.flush()
        return [path.read_bytes() for path in root.glob("index/*")]

    exact, by_kernels = both(written)
    assert by_kernels == exact


def test_a_walk_finds_so_many_records_and_their_topics() -> None:
    with kernels(ON):
        assert ENCODE.for_rows() is not None
        data = records()[0]
    walking = loaded(DECODE)
    positions, sizes, properties = (np.zeros(ROWS + 1, np.int64) for _ in range(3))
    assert walking.walk(sealed(data), 0, positions, sizes, properties) == ROWS
    assert (positions[0], positions[ROWS - 1] + sizes[ROWS - 1]) == (0, len(data))
    assert np.array_equal(positions[1:ROWS], np.cumsum(sizes[: ROWS - 1]))
