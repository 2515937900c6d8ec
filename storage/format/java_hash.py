"""Java's hashes as RocketMQ stores them: String.hashCode, the index's key hash, the body CRC.

`String.hashCode` is s[0]·31^(n-1) + … + s[n-1] over UTF-16 units, modulo 2^32. For many strings at once the
sum is a difference of prefix sums of s[i]·31^-i: 31 is odd, so it has an inverse modulo 2^32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from storage.compiler import COMPILED
from storage.format.arrays import as_int64, as_texts, sealed

CRC_MASK = 0x7FFFFFFF
Hashes = TypeVar("Hashes", int, np.ndarray)
_FEW_CHARACTERS = 400
"""Up to so many are added one by one."""
_INVERSE_OF_31 = pow(31, -1, 2**32)


def string_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit number."""
    value = 0
    if text.isascii():
        units: Iterable[int] = text.encode("ascii")
    else:
        units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def string_hashes(texts: pa.Array) -> np.ndarray:
    """`String.hashCode` of every element of a string array, `int32`; null counts as the empty string."""
    texts = as_texts(texts)
    if len(texts) == 0:
        return np.empty(0, np.int32)
    if texts.null_count:
        texts = texts.fill_null("")
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(texts) + 1, offset=8 * texts.offset)
    if data_buffer is None or offsets[0] == offsets[-1]:
        return np.zeros(len(texts), np.int32)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    if (kernels := COMPILED.for_rows()) is not None:  # rows are counted where their bodies are
        hashes = np.empty(len(texts), np.int32)
        if kernels.hash_texts(hashes, sealed(data), sealed(offsets)):
            return hashes
    if data.max() >= 0x80:  # bytes are not UTF-16 units there: hash the distinct values one by one
        distinct = texts.dictionary_encode()
        hashes = np.array([string_hash(text) for text in distinct.dictionary.to_pylist()], np.int32)
        return hashes[distinct.indices.to_numpy()]
    return _ascii_hashes(data, offsets)


def hashes_of(texts: Sequence[str]) -> np.ndarray:
    """Like `string_hashes` for a few texts, `int32`, where an array would cost more than the hashes."""
    joined = "".join(texts)
    if len(joined) <= _FEW_CHARACTERS:
        return np.array([string_hash(text) for text in texts], np.int32)
    if not joined.isascii():
        return np.array([string_hash(text) for text in texts], np.int32)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=offsets[1:])
    return (
        _ascii_hashes(np.frombuffer(joined.encode("ascii"), np.uint8), offsets)
        if joined
        else np.zeros(len(texts), np.int32)
    )


@lru_cache(maxsize=4)
def _power_table(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


def _powers(base: int, count: int) -> np.ndarray:
    """base^0 to base^(count − 1) modulo 2^32."""
    return _power_table(base, max(1 << 18, 1 << (count - 1).bit_length()))[:count]


def _ascii_hashes(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    prefix = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * _powers(_INVERSE_OF_31, len(data)), dtype=np.uint32, out=prefix[1:])
    starts, ends = offsets[:-1], offsets[1:]
    sums = prefix[ends] - prefix[starts]
    return (sums * _powers(31, len(data))[np.maximum(ends - 1, 0)]).view(np.int32)


def queue_of_hash(hashes: Hashes, queue_counts: Hashes) -> Hashes:
    """Which of so many queues a hash selects, for one (int) or many (int64). Java: SelectMessageQueueByHash, |remainder|."""
    return abs(hashes) % queue_counts


def index_key_hash(key: str) -> int:
    """Hash of an index key: |String.hashCode|, 0 for the one negative absolute value. Java: IndexFile.indexKeyHashMethod."""
    value = abs(string_hash(key))
    return 0 if value == 1 << 31 else value


def body_crc(body: bytes | memoryview | np.ndarray) -> int:
    """CRC-32 of a stored body as a record holds it: the top bit cleared. Java: UtilAll.crc32."""
    return isal_zlib.crc32(body) & CRC_MASK


def crcs_between(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The same of the bytes [start, end) of a `uint8` buffer, for many at once; int64."""
    if (kernels := COMPILED.for_rows(len(starts))) is not None and kernels.HAS_CRC:
        sums = np.empty(len(starts), np.int64)
        if kernels.crcs(sealed(data), as_int64(starts), as_int64(ends), sums):
            return sums
    parts = map(data.data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return np.fromiter(map(isal_zlib.crc32, parts), np.int64, len(starts)) & CRC_MASK
