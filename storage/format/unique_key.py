"""Unique keys and index key hashes of outgoing messages, many at once.

    | 20 hex digits: who writes | 12 hex digits: rank |     32 characters, as long as the Java client's

The index hashes `topic#key`. Of two joined strings, hash(a + b) = hash(a)·31^length(b) + hash(b) modulo 2^32, so that nothing is
put together to be hashed. Java: MessageClientIDSetter, IndexService.buildKey, String.hashCode.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from storage.format.java_hash import string_hash, string_hashes
from storage.format.kernels.compiled import ENCODE, sealed
from storage.format.texts import bytes_and_offsets

PREFIX_BYTES = 10
RANK_BYTES = 6
FIRST_RANKS = 1 << 16
"""Whoever begins to write begins with one of so many ranks, at random."""
UNIQUE_KEY_LENGTH = 2 * (PREFIX_BYTES + RANK_BYTES)
RANK_DIGITS = 2 * RANK_BYTES
_PROCESS_BYTES = 4
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PAIRS = np.stack((np.repeat(_DIGITS, 16), np.tile(_DIGITS, 16)), axis=1).copy().view(np.uint16)[:, 0]
_RANK_LENGTH = 2 * RANK_BYTES
_RANK_POWERS = np.array([pow(31, _RANK_LENGTH - 1 - i, 1 << 32) for i in range(_RANK_LENGTH)], np.uint32)
_POWER_OF_RANK = np.uint32(pow(31, _RANK_LENGTH, 1 << 32))
_POWER_OF_PREFIX = np.uint32(pow(31, 2 * PREFIX_BYTES, 1 << 32))


def new_prefix(process_id: int, random_bytes: Callable[[int], bytes]) -> bytes:
    """The prefix of who begins to write: the process, and as many random bytes as it lacks."""
    process = process_id.to_bytes(_PROCESS_BYTES, "big")
    return process + random_bytes(PREFIX_BYTES - _PROCESS_BYTES)


class UniqueKeys:
    """The keys of ranks `first_rank` to `first_rank + count` under a prefix of 10 bytes."""

    def __init__(self, prefix: bytes, first_rank: int, count: int) -> None:
        if len(prefix) != PREFIX_BYTES:
            raise ValueError(f"a unique key's prefix has {PREFIX_BYTES} bytes, not {len(prefix)}")
        if first_rank + count > 1 << 8 * RANK_BYTES:
            raise OverflowError(f"rank {first_rank + count} needs more than {RANK_BYTES} bytes")
        self._prefix = prefix.hex().upper()
        self._prefix_hash = np.uint32(string_hash(self._prefix) & 0xFFFFFFFF)
        self._digits = np.empty((count, UNIQUE_KEY_LENGTH), np.uint8)
        digits, kernels = np.frombuffer(self._prefix.encode(), np.uint8), ENCODE.for_rows()
        if kernels is None or not kernels.write_unique_keys(self._digits.reshape(-1), digits, first_rank):
            ranks = np.arange(first_rank, first_rank + count, dtype=">i8").view(np.uint8).reshape(count, 8)
            self._digits[:, : 2 * PREFIX_BYTES] = digits
            self._digits[:, 2 * PREFIX_BYTES :] = _PAIRS[ranks[:, 8 - RANK_BYTES :]].view(np.uint8)

    def texts(self) -> pa.Array:
        """The keys, large_string."""
        count = len(self._digits)
        offsets = np.arange(0, (count + 1) * UNIQUE_KEY_LENGTH, UNIQUE_KEY_LENGTH, dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(self._digits))

    def marked(self, prefix: str) -> pa.Array:
        """The ranks in RANK_DIGITS hex digits behind another text, large_string."""
        ranks = np.ascontiguousarray(self._digits[:, 2 * PREFIX_BYTES :])
        count, begin = len(ranks), np.frombuffer(prefix.encode(), np.uint8)
        texts = np.empty((count, len(begin) + RANK_DIGITS), np.uint8)
        texts[:, : len(begin)] = begin
        texts[:, len(begin) :] = ranks
        offsets = np.arange(0, (count + 1) * texts.shape[1], texts.shape[1], dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))

    def hashes_behind(self, hashes: np.ndarray) -> np.ndarray:
        """`String.hashCode` of each key behind a text with the given hash (a uint32 array of one or n), uint32."""
        if (kernels := ENCODE.for_rows()) is not None:
            found = np.empty(len(self._digits), np.uint32)
            if kernels.hash_unique_keys(found, sealed(hashes), self._prefix_hash, sealed(self._digits.reshape(-1))):
                return found
        before = hashes * _POWER_OF_PREFIX + self._prefix_hash
        ranks = self._digits[:, 2 * PREFIX_BYTES :].astype(np.uint32) @ _RANK_POWERS
        return before * _POWER_OF_RANK + ranks


def hashes_behind(hashes: np.ndarray, texts: pa.Array) -> np.ndarray:
    """`String.hashCode` of each text behind another one with the given hash (uint32), uint32. Texts are large_string without nulls."""
    lengths = _utf16_lengths(texts)
    powers = np.full(int(lengths.max(initial=0)) + 1, 31, np.uint32)
    powers[0] = 1
    return hashes * np.cumprod(powers, dtype=np.uint32)[lengths] + string_hashes(texts).view(np.uint32)


def _utf16_lengths(texts: pa.Array) -> np.ndarray:
    """Java's `String.length` of each."""
    data, offsets = bytes_and_offsets(texts)
    if not len(data) or data.max() < 0x80:
        return np.diff(offsets)
    units = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    return np.diff(np.concatenate(([0], np.cumsum(units)))[offsets])


def index_hashes(hashes: np.ndarray) -> np.ndarray:
    """From `String.hashCode` (uint32) to what the index holds: the absolute value, 0 for the one that has none. int32.

    Java: IndexFile.indexKeyHashMethod.
    """
    values = np.abs(hashes.view(np.int32))
    values[values < 0] = 0
    return values
